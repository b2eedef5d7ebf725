//! The client of Redis against a real cluster, and real sentinels, whose servers change their places.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cota::clock::Stopwatch;
use cota::store::redis::{Client, Kind};
use support::calls::{BACK, Punctual, WITHIN, add_at_leisure, client, fails_with, recovers};
use support::redis::{self, Cluster, Server, await_that};
use tokio::task::JoinHandle;

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
            let (mut calls, mut punctual) = (0, Punctual::default());
            while !stopped.load(Ordering::Relaxed) {
                for key in &keys {
                    let watch = Stopwatch::start();
                    let result = add_at_leisure(&client, key).await;
                    assert!(result.is_ok(), "{key}: {result:?} after {:?}", watch.elapsed());
                    punctual.saw(watch.elapsed(), WITHIN);
                    calls += 1;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            punctual.assert();
            calls
        });
        Self { stop, calls }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.calls.await.unwrap() > 0);
    }
}

/// A key in the slot.
fn key_in(slot: u16) -> String {
    (0..)
        .map(|i| format!("key-{i}"))
        .find(|key| redis::slot(key) == slot)
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
    // Three, and what a machine that stalls adds; a client that waits would do so for a second's worth.
    assert!(slow <= 10, "{slow} of {errors} failed calls were waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_followed_wherever_it_goes() {
    let mut cluster = tokio::task::block_in_place(Cluster::start);
    let client = client(&cluster.url());
    let slots: Vec<u16> = (0..16).map(|i| i * 1_024 + 7).collect();
    let keys: Vec<_> = slots.iter().map(|&slot| key_in(slot)).collect();

    // Every slot is found, and each key was counted once.
    for key in &keys {
        assert_eq!(add_at_leisure(&client, key).await, Ok(1));
    }
    assert_eq!(client.shards().len(), 3);
    assert!(client.shards().iter().all(|shard| shard.up));

    // Scripts are forgotten everywhere.
    for server in &cluster.servers {
        server.ask(&["SCRIPT", "FLUSH"]);
    }
    for key in &keys {
        assert_eq!(add_at_leisure(&client, key).await, Ok(2));
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
        assert_eq!(add_at_leisure(&client, &keys[0]).await, Ok(count));
    }
    let before = client.shard(keys[0].as_bytes());
    for server in [to, from] {
        cluster.servers[server].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &cluster.id(to)]);
    }
    for count in 4..=6 {
        assert_eq!(add_at_leisure(&client, &keys[0]).await, Ok(count));
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
    add_at_leisure(&client, &key_in(slot)).await.unwrap();
    let undisturbed = Undisturbed::start(&client, others(primary));
    cluster.servers[primary].freeze();
    fails_over(&cluster, &client, slot, primary).await;
    cluster.servers[primary].thaw();
    tokio::task::block_in_place(|| cluster.settle());
    assert!(add_at_leisure(&client, &key_in(slot)).await.is_ok());
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
        add_at_leisure(&client, key).await.unwrap();
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
    assert_eq!(add_at_leisure(&client, "a").await, Ok(1));
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
