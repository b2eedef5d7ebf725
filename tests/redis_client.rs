//! The client of Redis against real servers that are killed, frozen, restarted and demoted.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cota::clock::Stopwatch;
use cota::store::redis::{CallError, Client, Fate, Kind, TlsFiles};
use redis::Value;
use support::certificates::Authority;
use support::redis::{Cluster, PATIENCE, Server, await_that, free_port};
use tokio::task::{JoinHandle, JoinSet};

/// Counts what it did, so that a call that was done twice shows.
const SCRIPT: &str = "return redis.call('INCRBY', KEYS[1], ARGV[1])";

const WITHIN: Duration = Duration::from_millis(50);
/// What the machine may add to a limit of time: two busy cores and a debug build.
const GRACE: Duration = Duration::from_millis(10);
/// Within which a server that is back must be used.
const BACK: Duration = Duration::from_secs(1);

fn client(url: &str) -> Client {
    Client::start(url.parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap()
}

async fn add(client: &Client, key: &str) -> Result<i64, CallError> {
    let value = client.call(key.as_bytes(), &[b"1"], WITHIN).await?;
    match value {
        Value::Int(count) => Ok(count),
        other => panic!("{other:?}"),
    }
}

/// Calls until one succeeds, and says how long that took. The errors on the way go to `see`.
async fn recovers(client: &Client, key: &str, mut see: impl FnMut(CallError)) -> Duration {
    let watch = Stopwatch::start();
    loop {
        match add(client, key).await {
            Ok(_) => return watch.elapsed(),
            Err(error) => see(error),
        }
        assert!(watch.elapsed() < PATIENCE, "{:?}", client.shards());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Calls until one fails in this way.
async fn fails_with(client: &Client, key: &str, kind: Kind) -> CallError {
    let watch = Stopwatch::start();
    loop {
        match add(client, key).await {
            Err(error) if error.kind == kind => return error,
            _ => {}
        }
        assert!(watch.elapsed() < PATIENCE, "{:?}", client.shards());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_is_brought_to_a_server_that_does_not_know_it() {
    let server = Server::start(&[]);
    let client = client(&server.url());
    assert_eq!(add(&client, "a").await, Ok(1));
    assert_eq!(add(&client, "a").await, Ok(2));
    server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(add(&client, "a").await, Ok(3));
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
    add(&client, "a").await.unwrap();
    for outage in [Duration::ZERO, Duration::from_secs(3)] {
        server.kill();
        let error = fails_with(&client, "a", Kind::Refused).await;
        assert_eq!(error.fate(), Fate::NotDone);
        let down = Stopwatch::start();
        while down.elapsed() < outage {
            let watch = Stopwatch::start();
            add(&client, "a").await.unwrap_err();
            assert!(watch.elapsed() < GRACE, "{:?}", watch.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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
    add(&client, "a").await.unwrap();
    server.freeze();
    let (mut timeouts, frozen) = (0, Stopwatch::start());
    while frozen.elapsed() < Duration::from_secs(2) {
        let watch = Stopwatch::start();
        let error = add(&client, "a").await.unwrap_err();
        assert!(watch.elapsed() < WITHIN + GRACE, "{:?}", watch.elapsed());
        timeouts += u32::from(error.kind == Kind::Timeout);
        if error.kind == Kind::Refused {
            assert!(watch.elapsed() < GRACE, "{:?}", watch.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(timeouts, 3);
    server.thaw();
    let took = recovers(&client, "a", |_| {}).await;
    assert!(took < BACK, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_are_bounded() {
    let server = Server::start(&[]);
    let client = client(&server.url());
    add(&client, "a").await.unwrap();
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
    add(&client, "a").await.unwrap();
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
    assert_eq!(add(&client, "a").await, Ok(1));
    assert_eq!(add(&client, "a").await, Ok(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_named_and_a_new_one_read_from_the_file() {
    let server = Server::start(&["--requirepass", "right"]).with_admin("default", "right");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    std::fs::write(&file, format!("redis://:wrong@{}", server.address())).unwrap();
    let target = cota::store::redis::Target::from_file(&file).unwrap();
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
    add(&client, "a").await.unwrap();
    assert!(server.text(&["INFO", "keyspace"]).contains("db7:keys=1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_did_nothing() {
    let server = Server::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let client = client(&server.url());
    let error = add(&client, "a").await.unwrap_err();
    assert_eq!((error.kind, error.fate()), (Kind::Oom, Fate::NotDone));
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(add(&client, "a").await, Ok(1));
}

/// Calls on these keys until it is stopped; none may fail.
struct Undisturbed {
    stop: Arc<AtomicBool>,
    calls: JoinHandle<u32>,
}

impl Undisturbed {
    fn start(client: &Client, keys: Vec<String>) -> Self {
        let (stop, client) = (Arc::<AtomicBool>::default(), client.clone());
        let stopped = Arc::clone(&stop);
        let calls = tokio::spawn(async move {
            let mut calls = 0;
            while !stopped.load(Ordering::Relaxed) {
                for key in &keys {
                    let watch = Stopwatch::start();
                    let result = add(&client, key).await;
                    assert!(result.is_ok(), "{key}: {result:?} after {:?}", watch.elapsed());
                    calls += 1;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            calls
        });
        Self { stop, calls }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.calls.await.unwrap() > 0);
    }
}

/// A key of each slot in the list.
fn key_in(slot: u16) -> String {
    let crc = |key: &str| {
        key.bytes().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 {
                    crc << 1
                } else {
                    crc << 1 ^ 0x1021
                }
            })
        })
    };
    (0..)
        .map(|i| format!("key-{i}"))
        .find(|key| crc(key) % 16_384 == slot)
        .unwrap()
}

/// After what was done to the server of `slot`: when another serves it, so do we within a second.
async fn fails_over(cluster: &Cluster, client: &Client, slot: u16, victim: usize) {
    let witness = (0..6).find(|&server| server != victim).unwrap();
    let key = key_in(slot);
    let failing = {
        let (client, key) = (client.clone(), key.clone());
        tokio::spawn(async move {
            let (mut slow, mut errors) = (0, 0);
            recovers(&client, &key, |error| {
                errors += 1;
                slow += u32::from(error.kind != Kind::Refused);
            })
            .await;
            (errors, slow)
        })
    };
    tokio::task::block_in_place(|| {
        await_that("the replica takes over", || {
            cluster.serving_of(slot, witness) != victim
        });
    });
    let watch = Stopwatch::start();
    let (errors, slow) = failing.await.unwrap();
    assert!(watch.elapsed() < BACK, "{:?}", watch.elapsed());
    assert!(slow <= 5, "{slow} of {errors} failed calls were waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_followed_wherever_it_goes() {
    let mut cluster = tokio::task::block_in_place(Cluster::start);
    let client = client(&cluster.url());
    let slots: Vec<u16> = (0..16).map(|i| i * 1_024 + 7).collect();
    let keys: Vec<_> = slots.iter().map(|&slot| key_in(slot)).collect();

    // Every slot is found, and each key was counted once.
    for key in &keys {
        assert_eq!(add(&client, key).await, Ok(1));
    }
    assert_eq!(client.shards().len(), 3);
    assert!(client.shards().iter().all(|shard| shard.up));

    // Scripts are forgotten everywhere.
    for server in &cluster.servers {
        server.ask(&["SCRIPT", "FLUSH"]);
    }
    for key in &keys {
        assert_eq!(add(&client, key).await, Ok(2));
    }

    // A slot is on its way, and then arrives.
    let (from, _) = cluster.serving(slots[0], 0);
    let (to, _) = cluster.serving(slots[15], 0);
    let slot = slots[0].to_string();
    cluster.servers[from].ask(&["DEL", &keys[0]]);
    cluster.servers[to].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &cluster.id(from)]);
    cluster.servers[from].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &cluster.id(to)]);
    cluster.servers[to].ask(&["SCRIPT", "FLUSH"]);
    for count in 1..=3 {
        assert_eq!(add(&client, &keys[0]).await, Ok(count));
    }
    let before = client.shard(keys[0].as_bytes());
    for server in [to, from] {
        cluster.servers[server].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &cluster.id(to)]);
    }
    for count in 4..=6 {
        assert_eq!(add(&client, &keys[0]).await, Ok(count));
    }
    assert_ne!(client.shard(keys[0].as_bytes()), before);
    assert_eq!(
        client.shard(keys[0].as_bytes()),
        client.shard(keys[15].as_bytes())
    );

    // The replica of a primary that is well takes over.
    tokio::task::block_in_place(|| cluster.settle());
    let slot = slots[8];
    let others = |victim: usize| -> Vec<String> {
        let elsewhere = |slot: &&u16| cluster.serving_of(**slot, victim) != victim;
        slots.iter().filter(elsewhere).map(|&slot| key_in(slot)).collect()
    };
    let (primary, replica) = cluster.serving(slot, 0);
    let undisturbed = Undisturbed::start(&client, others(primary));
    cluster.servers[replica].ask(&["CLUSTER", "FAILOVER"]);
    fails_over(&cluster, &client, slot, primary).await;
    undisturbed.end().await;
    tokio::task::block_in_place(|| cluster.settle());

    // A primary is frozen, and comes back as a replica.
    let (primary, _) = cluster.serving(slot, 0);
    add(&client, &key_in(slot)).await.unwrap();
    let undisturbed = Undisturbed::start(&client, others(primary));
    cluster.servers[primary].freeze();
    fails_over(&cluster, &client, slot, primary).await;
    cluster.servers[primary].thaw();
    tokio::task::block_in_place(|| cluster.settle());
    assert!(add(&client, &key_in(slot)).await.is_ok());
    undisturbed.end().await;

    // A primary is killed.
    let (primary, _) = cluster.serving(slot, 0);
    let undisturbed = Undisturbed::start(&client, others(primary));
    cluster.servers[primary].kill();
    fails_over(&cluster, &client, slot, primary).await;
    undisturbed.end().await;
    cluster.servers[primary].restart();
    tokio::task::block_in_place(|| cluster.settle());
    for key in &keys {
        add(&client, key).await.unwrap();
    }
    assert!(
        client.shards().iter().all(|shard| shard.up),
        "{:?}",
        client.shards()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_asked_for_the_new_master() {
    let mut primary = Server::start(&[]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    tokio::task::block_in_place(|| {
        await_that("the replica is in step", || {
            primary.text(&["INFO", "replication"]).contains("state=online")
        });
    });
    let sentinel = Server::sentinel(&primary, 1);
    let nobody = Server::absent(&[]);
    let master = |name| {
        format!(
            "redis-sentinel://{},{}/{name}",
            nobody.address(),
            sentinel.address()
        )
    };
    let client = client(&master("budgets"));
    assert_eq!(add(&client, "a").await, Ok(1));
    tokio::task::block_in_place(|| {
        await_that("the replica is known", || {
            sentinel.text(&["INFO", "sentinel"]).contains("slaves=1")
        });
    });

    primary.kill();
    fails_with(&client, "a", Kind::Refused).await;
    tokio::task::block_in_place(|| {
        await_that("the replica takes over", || {
            replica.text(&["INFO", "replication"]).contains("role:master")
        });
    });
    let took = recovers(&client, "a", |_| {}).await;
    assert!(took < BACK, "{took:?}");
    assert_eq!(client.shards()[0].address, replica.address().to_string());

    let stranger = self::client(&master("nonsense"));
    fails_with(&stranger, "a", Kind::Refused).await;
    let said = stranger.shards().remove(0).error.unwrap();
    assert!(
        said.contains("knows no master of that name") || said.contains("refused"),
        "{said}"
    );
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
