//! A store behind sentinels, and one behind TLS.

use std::time::Duration;

use crate::everybody;
use crate::support::certificates::Authority;
use crate::support::redis::{Server, await_that, free_port};
use crate::world::{World, every_key_ends, lasts};

#[test]
fn sentinels_that_name_another_master() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port.to_string();
    // Its clock is behind by half a minute: what was spent stays spent.
    let replica = Server::skewed(&["--replicaof", "127.0.0.1", &port]);
    replica.skew(-30);
    await_that("the replica is in step", || {
        primary.text(&["INFO", "replication"]).contains("state=online")
    });
    let sentinel = Server::sentinel(&primary, 1);
    await_that("the replica is known", || {
        sentinel.text(&["INFO", "sentinel"]).contains("slaves=1")
    });
    let url = format!("redis-sentinel://{}/budgets", sentinel.address());
    let world = World::start(2, &url, &[]);
    world.counted();
    world.undisturbed(500);
    assert_eq!(world.admitted(0, "chaos", "tight", "acme", 20), 10);
    let is = |server: &Server, role: &str| {
        let info = server.text(&["INFO", "replication"]);
        info.contains(role) && (role == "role:master" || info.contains("master_link_status:up"))
    };

    // Planned: the old master hangs up on everybody and is a replica.
    let before = world.before();
    await_that("a failover is begun", || {
        sentinel.try_ask(&["SENTINEL", "FAILOVER", "budgets"]).is_ok()
    });
    await_that("they have changed places", || {
        is(&replica, "role:master") && is(&primary, "role:slave")
    });
    world.undisturbed(300);
    let (degraded, of) = world.degraded_of(before.began, everybody);
    eprintln!("planned failover by sentinels: {degraded} of {of} degraded");
    // Nobody notices: who held the old master's connection waits for the new one's.
    world.over(&before, world.load.now(), &[], |_| false);
    let admitted = |replica| world.admitted(replica, "chaos", "tight", "acme", 20);
    assert_eq!(admitted(0) + admitted(1), 0);

    // The new master is frozen.
    await_that("the old master is known as a replica", || {
        let replicas = sentinel.query(&["SENTINEL", "REPLICAS", "budgets"]);
        let replicas = format!("{replicas:?}");
        replicas.contains("\"ok\"") && replicas.contains(&primary.port.to_string())
    });
    let before = world.before();
    let shard = [replica.address().to_string()];
    replica.freeze();
    world.degraded();
    // A sentinel hears of it by asking, once a second; the store is back when it says so.
    await_that("the old master takes over", || {
        let named = sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "budgets"]);
        format!("{named:?}").contains(&primary.port.to_string()) && is(&primary, "role:master")
    });
    let back = world.load.now();
    world.over(&before, back, &shard, everybody);
    assert_eq!(admitted(0) + admitted(1), 0);
    replica.thaw();
    world.undisturbed(300);
    every_key_ends(&primary);
}

#[test]
fn a_server_behind_tls() {
    let authority = Authority::new();
    let (cert, key) = authority.issue("server", "127.0.0.1");
    let port = free_port().to_string();
    let ca = authority.path("ca.pem").display().to_string();
    let mut server = Server::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-key-file",
        key.to_str().unwrap(),
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
    ]);
    let address = format!("127.0.0.1:{port}");
    let world = World::start(2, &format!("rediss://{address}"), &["--store-ca", &ca]);
    world.counted();
    world.undisturbed(300);
    let shard = [address];
    for kill in [false, true] {
        let before = world.before();
        if kill {
            server.kill();
        } else {
            server.freeze();
        }
        world.degraded();
        lasts(Duration::from_millis(1_500));
        if kill {
            server.restart();
        } else {
            server.thaw();
        }
        let back = world.load.now();
        world.over(&before, back, &shard, everybody);
    }
    every_key_ends(&server);
}
