//! Changes of operators that break off midway, on a real Redis.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use cota::clock::{Clock as _, Stopwatch, SystemClock};
use cota::engine::limit::Unit;
use cota::engine::policy::Domain;
use cota::engine::resolve::resolve;
use cota::engine::time::Micros;
use cota::overrides::{Overrides, ResetSpec, Spec, rfc3339};
use cota::store::Store as _;
use cota::store::ledger::Ledger;
use cota::store::redis::{Client, Redis, SCRIPT, TlsFiles};
use cota::store::shared::{Replicas, Shared};
use support::policy::{bucket, domain, policy, request};
use support::proxy::Proxy;
use support::redis::{PATIENCE, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const TIMEOUT: Duration = Duration::from_secs(10);

fn api() -> Domain {
    domain([(&[("tenant", None)][..], vec![bucket("tenant", 5, 5, Unit::Day)])])
}

fn redis(address: SocketAddr) -> Redis {
    let url = format!("redis://{address}");
    let client = Client::start(url.parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap();
    Redis::new(client, TIMEOUT)
}

fn overrides(redis: Redis) -> Arc<Overrides> {
    let policy = Arc::new(ArcSwap::from_pointee(policy([api()])));
    let overrides = Overrides::new(Ledger::Redis(redis), policy, SystemClock, Box::new(|_| {}));
    Arc::new(overrides)
}

fn unlimited(tenant: &str) -> Spec {
    Spec {
        domain: "api".into(),
        matches: [("tenant".into(), tenant.into())].into(),
        limit: Some("tenant".into()),
        unlimited: Some(true),
        expires_at: Some(rfc3339(SystemClock.now().plus(Micros::from_secs(3_600)))),
        author: Some("ana".into()),
        reason: Some("r".into()),
        ..Spec::default()
    }
}

async fn refreshed(overrides: &Overrides) {
    let watch = Stopwatch::start();
    while let Err(error) = overrides.refresh().await {
        assert!(watch.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn ids(overrides: &Overrides) -> Vec<String> {
    let mut ids: Vec<String> = overrides.list().into_iter().map(|item| item.id).collect();
    ids.sort();
    ids
}

/// A way to a server. When `left` of the calls that give an override back have come down to none, the
/// connection of the last of them breaks, and the server never hears of it.
async fn breaking(server: SocketAddr, left: Arc<AtomicI64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                let server = TcpStream::connect(server).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let there = async {
                    let mut buffer = vec![0; 65_536];
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        let word = b"\r\nrestored\r\n";
                        let gives_back = buffer[..read].windows(word.len()).any(|part| part == word);
                        if gives_back && left.fetch_sub(1, Ordering::SeqCst) == 1 {
                            return;
                        }
                        if to_server.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = there => {}
                    _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_breaks_while_it_gets_overrides_back_gets_the_rest_later() {
    let server = Server::start(&[]);
    let left = Arc::new(AtomicI64::new(2));
    let replica = overrides(redis(breaking(server.address(), Arc::clone(&left)).await));
    refreshed(&replica).await;
    for tenant in ["acme", "beta", "gamma"] {
        replica.set(unlimited(tenant)).await.unwrap();
    }
    let set = ids(&replica);
    assert_eq!(set.len(), 3);
    server.ask(&["FLUSHALL"]);
    assert!(replica.refresh().await.is_err(), "the second broke");
    assert_eq!(left.load(Ordering::SeqCst), 0);
    assert_eq!(ids(&replica), set, "they stay in force here");
    refreshed(&replica).await;
    assert_eq!(ids(&replica), set);
    let other = overrides(redis(server.address()));
    refreshed(&other).await;
    assert_eq!(ids(&other), set);
    let told = other.audit().await.unwrap();
    let events: Vec<&str> = told.iter().map(|line| line.event.as_str()).collect();
    assert_eq!(events, ["restored"; 3], "each was given back once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_on_the_record_is_done_though_who_asked_has_gone() {
    let server = Server::start(&[]);
    let shared = Shared::start(
        redis(server.address()),
        Replicas::fixed(1),
        SystemClock,
        1_000,
        TIMEOUT,
        Box::new(|_| {}),
    );
    let keys = || -> Vec<String> { server.ttls().into_iter().map(|(key, _)| key).collect() };
    let watch = Stopwatch::start();
    let (before, budget) = loop {
        let before = keys();
        let api = api();
        let request = request(&[&[("tenant", "acme")]]);
        let mut resolved = resolve(Some(&api), &request, false, SystemClock.now());
        let decision = shared.decide(&mut resolved, Micros::ZERO).await.unwrap();
        let made = keys().into_iter().find(|key| key.contains("acme"));
        if let Some(made) = made.filter(|_| !decision.degraded) {
            break (before, made);
        }
        assert!(watch.elapsed() < PATIENCE, "{:?}", keys());
    };
    assert!(!before.contains(&budget));
    let proxy = Proxy::start(server.address()).await;
    let replica = overrides(redis(proxy.address));
    refreshed(&replica).await;
    proxy.delay(Duration::from_millis(400));
    let asking = tokio::spawn({
        let replica = Arc::clone(&replica);
        async move {
            let spec = ResetSpec {
                domain: "api".into(),
                matches: [("tenant".into(), "acme".into())].into(),
                author: Some("ana".into()),
                reason: Some("r".into()),
                ..ResetSpec::default()
            };
            replica.reset(&spec).await
        }
    });
    // On the record, and the answer that says so is still on its way.
    while !keys().iter().any(|key| key.ends_with(":audit")) {
        assert!(watch.elapsed() < PATIENCE, "{:?}", keys());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asking.abort();
    assert!(keys().contains(&budget), "not reset yet");
    while keys().contains(&budget) {
        assert!(watch.elapsed() < PATIENCE, "it was recorded and never done");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
