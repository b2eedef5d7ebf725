//! The service on stores that are killed, frozen, moved, filled, emptied and slow, under load: every answer
//! in time and by the failure mode of its limit, nobody else concerned, and back within a second.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(dead_code, reason = "a part of what test files share is used")]

#[path = "chaos/clock.rs"]
mod clock;
#[path = "support/cota.rs"]
mod cota;
#[path = "chaos/elsewhere.rs"]
mod elsewhere;
#[path = "chaos/load.rs"]
mod load;
#[path = "chaos/loading.rs"]
mod loading;
#[path = "chaos/long.rs"]
mod long;
mod support;
#[path = "chaos/told.rs"]
mod told;
#[path = "chaos/world.rs"]
mod world;

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

use support::proxy::Proxy;
use support::redis::{Cluster, Server, await_that};
use world::{BACK, World, every_key_ends, lasts};

/// How long an outage lasts that we decide.
const OUTAGE: Duration = Duration::from_millis(1_500);

fn everybody(_: u16) -> bool {
    true
}

#[test]
fn a_frozen_server_refills_nothing() {
    let server = Server::start(&[]);
    let world = World::start(2, &server.url(), &[]);
    world.counted();
    world.undisturbed(500);
    let shard = [server.address().to_string()];
    for outage in 0..2 {
        let before = world.before();
        server.freeze();
        world.degraded();
        lasts(OUTAGE);
        // Each replica's share of ten, and nothing the second time.
        for replica in 0..2 {
            assert!(world.is_degraded(replica, "deny", "somebody"));
            let admitted = world.admitted(replica, "chaos", "tight", "acme", 20);
            assert_eq!(admitted, if outage == 0 { 5 } else { 0 });
            // All callers under the ceiling together; the ceiling does not cover what `allow` lets pass.
            let capped = world.admitted(replica, "capped", "local", &format!("c{outage}"), 9);
            assert_eq!(capped, if outage == 0 { 3 } else { 0 });
            assert_eq!(world.admitted(replica, "capped", "allow", "c", 9), 9);
        }
        server.thaw();
        let thawed = world.load.now();
        world.over(&before, thawed, &shard, everybody);
    }
    assert!(world.errors("timeout") > 0 && world.errors("refused") > 0);
    for replica in 0..2 {
        let counted = || ["local", "allow", "deny"].map(|mode| world.verdicts(replica, mode));
        assert!(counted().iter().all(|&verdicts| verdicts > 50));
        await_that("what is counted is told", || {
            world.told_verdicts(replica) == counted()
        });
    }
    // What was decided here was never written to the store.
    let admitted = |replica| world.admitted(replica, "chaos", "tight", "acme", 20);
    assert_eq!(admitted(0) + admitted(1), 10);
    every_key_ends(&server);
}

#[test]
fn a_server_that_loses_its_data_its_rank_or_its_memory() {
    let mut server = Server::start(&[]);
    let other = Server::start(&[]);
    let world = World::start(2, &server.url(), &[]);
    world.counted();
    world.undisturbed(300);
    let shard = [server.address().to_string()];
    assert_eq!(world.admitted(0, "chaos", "tight", "acme", 20), 10);

    // Restarted without its data.
    let before = world.before();
    server.kill();
    world.degraded();
    lasts(OUTAGE);
    server.restart();
    let back = world.load.now();
    world.over(&before, back, &shard, everybody);
    assert_eq!(world.admitted(1, "chaos", "tight", "acme", 20), 10);
    every_key_ends(&server);

    // A replica, where it was.
    let before = world.before();
    server.ask(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    world.degraded();
    lasts(OUTAGE);
    assert!(world.is_degraded(0, "local", "somebody"));
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    let back = world.load.now();
    world.over(&before, back, &shard, everybody);
    assert!(world.errors("read_only") > 0);
    every_key_ends(&server);

    // Full.
    assert_eq!(world.admitted(1, "chaos", "tight", "full", 20), 10);
    let before = world.before();
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    world.degraded();
    lasts(OUTAGE);
    // What is spent is known without writing.
    await_that("it is known", || !world.is_degraded(0, "tight", "full"));
    assert_eq!(world.admitted(0, "chaos", "tight", "full", 3), 0);
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let back = world.load.now();
    world.over(&before, back, &shard, everybody);
    assert!(world.errors("oom") > 0);
    every_key_ends(&server);
}

#[test]
fn a_store_that_comes_after_the_service() {
    let mut server = Server::absent(&[]);
    let world = World::start(1, &server.url(), &["--expected-replicas", "3"]);
    world.degraded();
    assert_eq!(world.replicas[0].health("").unwrap(), 1);
    world.answers(Duration::ZERO, 200);
    assert_eq!(world.admitted(0, "chaos", "tight", "acme", 20), 4);
    server.restart();
    let back = world.load.now();
    await_that("the store is used", || !world.is_degraded(0, "tight", "new"));
    let took = world.load.now() - back;
    assert!(took < BACK, "{took:?}");
    world.by_failure_mode(Duration::ZERO, everybody);
    world.well();
    let told = told::told(&world.replicas[0].log());
    let counts: Vec<_> = told.iter().filter(|told| told.counts()).collect();
    assert!(
        matches!(counts[..], [outage] if outage.shard == server.address().to_string()),
        "{told:?}"
    );
    assert_eq!(world.admitted(0, "chaos", "tight", "acme", 20), 10);
    world.undisturbed(100);
    world.in_time();
    every_key_ends(&server);
}

#[test]
fn a_cluster_that_never_comes() {
    let (one, two) = (Server::absent(&[]), Server::absent(&[]));
    let url = format!("redis-cluster://{},{}", one.address(), two.address());
    let world = World::start(1, &url, &[]);
    world.degraded();
    world.answers(Duration::ZERO, 300);
    world.by_failure_mode(Duration::ZERO, everybody);
    assert!(
        world
            .load
            .since(Duration::ZERO)
            .iter()
            .all(|sample| sample.degraded)
    );
    let log = world.replicas[0].log();
    assert_eq!(log.matches("deciding by failure mode").count(), 1, "{log}");
    assert!(log.contains(&one.address().to_string()), "{log}");
    world.in_time();
}

#[test]
fn a_way_to_the_store_that_takes_a_second() {
    let server = Server::start(&[]);
    // The settings' own timeout: Envoy gives up at 20 ms.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(Proxy::start(server.address()));
    let url = format!("redis://{}", proxy.address);
    let world = World::with_timeout(1, &url, &[], Duration::from_millis(10));
    // On a busy machine some of those 10 ms run out in any case.
    let recovered = |after| {
        let samples = world.load.since(after);
        let last = samples.iter().rev().take(50);
        samples.len() >= 50 && last.filter(|sample| sample.degraded).count() < 10
    };
    await_that("the store is used", || recovered(Duration::ZERO));
    let before = world.now();
    proxy.delay(Duration::from_secs(1));
    world.degraded();
    lasts(OUTAGE);
    assert!(world.is_degraded(0, "local", "somebody"));
    proxy.delay(Duration::ZERO);
    let back = world.load.now();
    world.by_failure_mode(before.began, everybody);
    await_that("the store is used", || recovered(back));
    world.in_time();
    every_key_ends(&server);
}

#[test]
fn a_cluster_that_changes_under_the_load() {
    let mut cluster = Cluster::start();
    let world = World::start(2, &cluster.url(), &[]);
    world.counted();
    let samples = world.undisturbed(1_000);
    let used: HashSet<u16> = samples.iter().map(|sample| sample.slot).collect();
    let slots_of = |cluster: &Cluster, server: usize, asked: usize| -> HashSet<u16> {
        let serves = |slot: &&u16| cluster.serving_of(**slot, asked) == server;
        used.iter().filter(serves).copied().collect()
    };
    let nobody = |_: u16| false;

    // Scripts are forgotten everywhere.
    let before = world.before();
    for server in &cluster.servers {
        server.ask(&["SCRIPT", "FLUSH"]);
    }
    world.undisturbed(500);
    world.over(&before, Duration::ZERO, &[], nobody);

    // Slots in use move.
    let before = world.before();
    let (from, to) = (cluster.serving_of(0, 0), cluster.serving_of(16_383, 0));
    let held = slots_of(&cluster, from, 0).len();
    let address = cluster.servers[0].address().to_string();
    let moved = Command::new("redis-cli")
        .args(["--cluster", "reshard", &address, "--cluster-yes"])
        .args([
            "--cluster-from",
            &cluster.id(from),
            "--cluster-to",
            &cluster.id(to),
        ])
        .args(["--cluster-slots", "1000"])
        .output()
        .unwrap();
    assert!(
        moved.status.success(),
        "{}",
        String::from_utf8_lossy(&moved.stdout)
    );
    assert!(slots_of(&cluster, from, 0).len() < held);
    world.undisturbed(500);
    world.over(&before, world.load.now(), &[], nobody);
    cluster.settle();

    // A planned failover: its primary stops for a moment at most.
    let slot = 8_192;
    let (primary, replica) = cluster.serving(slot, 0);
    let concerned = slots_of(&cluster, primary, 0);
    let before = world.before();
    cluster.servers[replica].ask(&["CLUSTER", "FAILOVER"]);
    await_that("the replica takes over", || {
        cluster.serving_of(slot, primary) == replica
    });
    world.undisturbed(500);
    // Nobody notices: calls that the primary holds back are told where to go before their time is over.
    let (degraded, of) = world.degraded_of(before.began, |slot| concerned.contains(&slot));
    eprintln!("planned failover: {degraded} of {of} degraded where slots moved");
    world.over(&before, world.load.now(), &[], nobody);
    cluster.settle();

    // A primary is frozen, then killed.
    for kill in [false, true] {
        let (primary, _) = cluster.serving(slot, 0);
        let witness = (0..6).find(|&server| server != primary).unwrap();
        let concerned = slots_of(&cluster, primary, 0);
        let shard = [cluster.servers[primary].address().to_string()];
        let before = world.before();
        if kill {
            cluster.servers[primary].kill();
        } else {
            cluster.servers[primary].freeze();
        }
        world.degraded();
        await_that("a replica takes over", || {
            cluster.serving_of(slot, witness) != primary
        });
        let back = world.load.now();
        world.over(&before, back, &shard, |slot| concerned.contains(&slot));
        if kill {
            cluster.servers[primary].restart();
        } else {
            cluster.servers[primary].thaw();
        }
        cluster.settle();
        world.undisturbed(300);
    }
    for server in &cluster.servers {
        every_key_ends(server);
    }
    // All of it together: still one budget for both replicas.
    let admitted = |replica| world.admitted(replica, "chaos", "tight", "acme", 20);
    assert_eq!(admitted(0) + admitted(1), 10);

    // A shard is gone with its replica: one outage that goes on, and the others do not notice.
    let (primary, replica) = cluster.serving(slot, 0);
    let witness = (0..6)
        .find(|server| ![primary, replica].contains(server))
        .unwrap();
    let concerned = slots_of(&cluster, primary, 0);
    let before = world.before();
    cluster.servers[replica].kill();
    cluster.servers[primary].kill();
    world.degraded();
    await_that("the cluster knows", || {
        let info = cluster.servers[witness].text(&["CLUSTER", "INFO"]);
        info.lines()
            .any(|line| line.starts_with("cluster_slots_fail:") && !line.ends_with(":0"))
    });
    world.answers(world.load.now(), 500);
    world.by_failure_mode(before.began, |slot| concerned.contains(&slot));
    let shard = cluster.servers[primary].address().to_string();
    for replica in 0..2 {
        assert_eq!(world.told(&before, replica), std::slice::from_ref(&shard));
    }
    world.in_time();
}

#[test]
fn a_store_that_is_not_what_it_should_be_is_told_once() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    for user in [
        // May not be asked how it is configured: no complaint, and nothing fails.
        ["modest", "~c:*", "+@all", "-config", "-script", "-info"],
        // May not run what decides.
        ["barred", "~c:*", "+@all", "-config", "-eval", "-evalsha"],
    ] {
        let mut setuser = vec!["ACL", "SETUSER", user[0], "on", ">secret"];
        setuser.extend(&user[1..]);
        server.ask(&setuser);
    }
    let world = |user: &str| {
        let url = format!("redis://{user}{}", server.address());
        World::start(1, &url, &[])
    };
    let faults = |world: &World| {
        let log = world.replicas[0].log();
        let count = |what: &str| log.matches(what).count();
        (
            count("maxmemory_policy="),
            count("self-test"),
            count("deciding by failure mode"),
        )
    };

    let open = world("");
    await_that("the policy is told", || faults(&open).0 > 0);
    // A reconnect tells nothing twice.
    server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    open.answers(open.load.now(), 500);
    let (policy, selftest, _) = faults(&open);
    assert_eq!((policy, selftest), (1, 0));
    drop(open);

    let modest = world("modest:secret@");
    modest.counted();
    modest.undisturbed(300);
    let (policy, selftest, _) = faults(&modest);
    assert_eq!((policy, selftest), (0, 0));
    for kind in ["denied", "script", "disconnected"] {
        assert_eq!(modest.errors(kind), 0, "{kind}");
    }
    drop(modest);

    let barred = world("barred:secret@");
    barred.degraded();
    barred.answers(Duration::ZERO, 300);
    barred.by_failure_mode(Duration::ZERO, everybody);
    // An event like any other, and it goes on.
    lasts(OUTAGE);
    assert_eq!(faults(&barred), (0, 0, 1));
    assert!(barred.errors("denied") > 100);
    let log = barred.replicas[0].log();
    assert!(log.contains("the store does not let us"), "{log}");
    assert!(!log.contains("secret"), "{log}");
}
