//! The client of Redis against real servers that are killed, frozen, restarted and demoted.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cota::clock::Stopwatch;
use cota::store::redis::{Client, Fate, Kind, Target, TlsFiles};
use redis::Value;
use support::calls::{BACK, Punctual, SCRIPT, WITHIN, add, add_at_leisure, client, fails_with, recovers};
use support::certificates::Authority;
use support::proxy::Proxy;
use support::redis::{PATIENCE, Server, await_that, free_port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn the_script_is_brought_to_a_server_that_does_not_know_it() {
    let server = Server::start(&[]);
    let client = client(&server.url());
    assert_eq!(add_at_leisure(&client, "a").await, Ok(1));
    assert_eq!(add_at_leisure(&client, "a").await, Ok(2));
    server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(add_at_leisure(&client, "a").await, Ok(3));
    assert!(client.shards()[0].up);
    let mut get = redis::cmd("GET");
    get.arg("a");
    let held = client.command(b"a", &get, WITHIN).await.unwrap();
    assert_eq!(held, Value::BulkString(b"3".to_vec()));
    let stats = server.text(&["INFO", "commandstats"]);
    for word in [
        "cmdstat_hello",
        "cmdstat_client",
        "cmdstat_select",
        "cmdstat_script|load",
    ] {
        assert!(!stats.contains(word), "{stats}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_left_alone_and_found_again() {
    let mut server = Server::start(&[]);
    let client = client(&server.url());
    add_at_leisure(&client, "a").await.unwrap();
    for outage in [Duration::ZERO, Duration::from_secs(3)] {
        server.kill();
        let error = fails_with(&client, "a", Kind::Refused).await;
        assert_eq!(error.fate(), Fate::NotDone);
        let (down, mut punctual) = (Stopwatch::start(), Punctual::default());
        while down.elapsed() < outage {
            let watch = Stopwatch::start();
            add(&client, "a").await.unwrap_err();
            punctual.saw(watch.elapsed(), Duration::ZERO);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        punctual.assert();
        let shard = client.shards().remove(0);
        assert!(!shard.up && shard.error.is_some(), "{shard:?}");
        server.restart();
        let took = recovers(&client, "a", |_| {}).await;
        assert!(took < BACK, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_late_is_found() {
    let mut server = Server::absent(&[]);
    let client = client(&server.url());
    let error = add(&client, "a").await.unwrap_err();
    assert_eq!((error.kind, error.fate()), (Kind::Refused, Fate::NotDone));
    let mut changes = client.changes();
    changes.borrow_and_update();
    server.restart();
    assert!(recovers(&client, "a", |_| {}).await < BACK);
    assert!(changes.has_changed().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_costs_a_few_timeouts() {
    let server = Server::start(&[]);
    let client = client(&server.url());
    add_at_leisure(&client, "a").await.unwrap();
    server.freeze();
    let (mut timeouts, mut punctual, frozen) = (0, Punctual::default(), Stopwatch::start());
    while frozen.elapsed() < Duration::from_secs(2) {
        let watch = Stopwatch::start();
        let error = add(&client, "a").await.unwrap_err();
        let limit = if error.kind == Kind::Refused {
            Duration::ZERO
        } else {
            WITHIN
        };
        punctual.saw(watch.elapsed(), limit);
        timeouts += u32::from(error.kind == Kind::Timeout);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    punctual.assert();
    // Fewer where the machine stalled, and the client found out by itself.
    assert!((1..=3).contains(&timeouts), "{timeouts}");
    server.thaw();
    let took = recovers(&client, "a", |_| {}).await;
    assert!(took < BACK, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_dead_without_a_word_is_replaced() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address()).await;
    let client = client(&format!("redis://{}", proxy.address));
    add_at_leisure(&client, "a").await.unwrap();
    proxy.stall_connections();
    let mut timeouts = 0;
    let took = recovers(&client, "a", |error| {
        timeouts += u32::from(error.kind == Kind::Timeout)
    })
    .await;
    assert!(took < WITHIN * 3 + BACK / 2, "{took:?}");
    assert_eq!(timeouts, 3);
    // Those three were done, and none was done again.
    assert_eq!(add_at_leisure(&client, "a").await, Ok(6));

    // Nobody calls: found all the same.
    proxy.stall_connections();
    let mut changes = client.changes();
    for _ in 0..2 {
        tokio::time::timeout(PATIENCE, changes.changed())
            .await
            .unwrap()
            .unwrap();
    }
    assert!(recovers(&client, "a", |error| assert_eq!(error.kind, Kind::Refused)).await < BACK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_way_is_a_dead_one() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.address()).await;
    let client = client(&format!("redis://{}", proxy.address));
    add_at_leisure(&client, "a").await.unwrap();
    // Within the limit of a greeting, and beyond it.
    for delay in [WITHIN * 3, Duration::from_secs(1)] {
        proxy.delay(delay);
        let (mut timeouts, mut punctual, slow) = (0, Punctual::default(), Stopwatch::start());
        while slow.elapsed() < Duration::from_secs(2) {
            let watch = Stopwatch::start();
            let error = add(&client, "a").await.unwrap_err();
            punctual.saw(watch.elapsed(), WITHIN);
            timeouts += u32::from(error.kind == Kind::Timeout);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        punctual.assert();
        assert!((1..=3).contains(&timeouts), "{timeouts}");
        proxy.delay(Duration::ZERO);
        let took = recovers(&client, "a", |_| {}).await;
        assert!(took < BACK, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_answers_for_a_dead_server_gets_a_call_now_and_then() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let alive = Arc::<AtomicBool>::default();
    let answers = Arc::clone(&alive);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while let Ok(read @ 1..) = client.read(&mut buffer).await {
                    let ping = buffer[..read].windows(4).any(|word| word == b"PING");
                    if ping || answers.load(Ordering::Relaxed) {
                        client
                            .write_all(if ping { b"+PONG\r\n" } else { b":1\r\n" })
                            .await
                            .unwrap();
                    }
                }
            });
        }
    });
    let client = client(&format!("redis://{address}"));
    let (mut timeouts, watch) = (0, Stopwatch::start());
    while watch.elapsed() < Duration::from_secs(2) {
        timeouts += u32::from(add(&client, "a").await.unwrap_err().kind == Kind::Timeout);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // One every 100 ms, after the first three.
    assert!((5..=3 + 20).contains(&timeouts), "{timeouts}");
    alive.store(true, Ordering::Relaxed);
    let took = recovers(&client, "a", |_| {}).await;
    assert!(took < BACK, "{took:?}");
    tokio::task::block_in_place(|| await_that("it is trusted again", || client.shards()[0].up));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_are_bounded() {
    let server = Server::start(&[]);
    let client = client(&server.url());
    add_at_leisure(&client, "a").await.unwrap();
    server.freeze();
    let mut calls = JoinSet::new();
    for _ in 0..5_000 {
        let client = client.clone();
        calls.spawn(async move { client.call(b"a", &[b"1"], Duration::from_millis(500)).await });
    }
    let results = calls.join_all().await;
    let of = |kind| {
        results
            .iter()
            .filter(|result| result.as_ref().unwrap_err().kind == kind)
            .count()
    };
    assert_eq!(of(Kind::Overloaded), 5_000 - 4_096);
    assert_eq!(of(Kind::Timeout) + of(Kind::Disconnected), 4_096);
    server.thaw();
    assert!(recovers(&client, "a", |_| {}).await < BACK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_a_replica_says_so_until_it_is_none() {
    let (primary, server) = (Server::start(&[]), Server::start(&[]));
    let client = client(&server.url());
    add_at_leisure(&client, "a").await.unwrap();
    server.ask(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    let error = fails_with(&client, "a", Kind::ReadOnly).await;
    assert_eq!(error.fate(), Fate::NotDone);
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    let took = recovers(&client, "a", |_| {}).await;
    assert!(took < BACK, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_load_scripts_may_call_them() {
    let server = Server::start(&[]);
    let rights = "ACL SETUSER app on >s3cret ~* +@all -script -client -hello -info -select -ping -cluster";
    server.ask(&rights.split(' ').collect::<Vec<_>>());
    server.ask(&["CONFIG", "SET", "requirepass", "other"]);
    let client = client(&format!("redis://app:s3cret@{}", server.address()));
    assert_eq!(add_at_leisure(&client, "a").await, Ok(1));
    assert_eq!(add_at_leisure(&client, "a").await, Ok(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_named_and_a_new_one_read_from_the_file() {
    let server = Server::start(&["--requirepass", "right"]).with_admin("default", "right");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    std::fs::write(&file, format!("redis://:wrong@{}", server.address())).unwrap();
    let target = Target::from_file(&file).unwrap();
    let client = Client::start(target, TlsFiles::default(), SCRIPT).unwrap();
    fails_with(&client, "a", Kind::Refused).await;
    let said = client.shards().remove(0).error.unwrap();
    assert!(
        said.starts_with("WRONGPASS") && !said.contains("wrong@"),
        "{said}"
    );
    std::fs::write(&file, format!("redis://:right@{}", server.address())).unwrap();
    assert!(recovers(&client, "a", |_| {}).await < BACK);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_the_one_that_was_asked_for() {
    let server = Server::start(&[]);
    let client = client(&format!("{}/7", server.url()));
    add_at_leisure(&client, "a").await.unwrap();
    assert!(server.text(&["INFO", "keyspace"]).contains("db7:keys=1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_did_nothing() {
    let server = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let client = client(&server.url());
    let error = add(&client, "a").await.unwrap_err();
    assert_eq!((error.kind, error.fate()), (Kind::Oom, Fate::NotDone));
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(add_at_leisure(&client, "a").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_prove_who_they_are() {
    let authority = Authority::new();
    let (cert, key) = authority.issue("server", "127.0.0.1");
    let port = free_port().to_string();
    let ca = authority.path("ca.pem");
    let _server = Server::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-key-file",
        key.to_str().unwrap(),
        "--tls-ca-cert-file",
        ca.to_str().unwrap(),
    ]);
    let start = |files: TlsFiles| {
        let target = format!("rediss://127.0.0.1:{port}").parse().unwrap();
        Client::start(target, files, SCRIPT).unwrap()
    };
    let (cert, key) = authority.issue("client", "client");
    let ours = TlsFiles {
        ca: Some(ca.clone()),
        cert: Some(cert),
        key: Some(key),
    };
    assert!(recovers(&start(ours.clone()), "a", |_| {}).await < BACK);

    for (files, said) in [
        (
            TlsFiles {
                ca: None,
                ..ours.clone()
            },
            "UnknownIssuer",
        ),
        (
            TlsFiles {
                ca: Some(ca),
                ..TlsFiles::default()
            },
            "",
        ),
    ] {
        let client = start(files);
        fails_with(&client, "a", Kind::Refused).await;
        let error = client.shards().remove(0).error.unwrap();
        assert!(error.contains(said), "{error}");
    }
    let half = TlsFiles { key: None, ..ours };
    let target = format!("rediss://127.0.0.1:{port}").parse().unwrap();
    let fault = Client::start(target, half, SCRIPT).unwrap_err().to_string();
    assert_eq!(fault, "a certificate and its key must be given together");
}
