//! A store that is there and has its data yet to read.

use std::time::Duration;

use crate::everybody;
use crate::support::redis::{Server, await_that};
use crate::world::{STORE_TIMEOUT, World, every_key_ends};

/// Two seconds, of which the server answers somebody every few milliseconds.
const KEYS: &str = "2000";
const SLOWLY: [&str; 4] = [
    "--key-load-delay",
    "1000",
    "--loading-process-events-interval-bytes",
    "1024",
];

#[test]
fn a_server_that_loads_its_data() {
    let options = [&SLOWLY[..], &["--enable-debug-command", "yes"]].concat();
    let mut server = Server::start(&options);
    let fill = "for i = 1, ARGV[1] do redis.call('SET', 'filler:' .. i, ('x'):rep(500), 'EX', 600) end";
    server.ask(&["EVAL", fill, "0", KEYS]);
    let world = World::start(2, &server.url(), &[]);
    world.counted();
    world.undisturbed(300);
    let shard = [server.address().to_string()];
    assert_eq!(world.admitted(0, "chaos", "tight", "acme", 20), 10);
    let loaded = |server: &Server| server.try_ask(&["PING"]).is_ok();

    // It reads them again, and keeps its connections.
    let before = world.before();
    let reload = std::thread::scope(|scope| {
        // Loading holds up whoever asked for it.
        scope.spawn(|| server.ask(&["DEBUG", "RELOAD"]));
        world.degraded();
        let from = world.load.now();
        answered_at_once(&world, from);
        from
    });
    let back = world.load.now();
    assert!(back - reload > Duration::from_secs(1), "it took its time");
    world.over(&before, back, &shard, everybody);
    assert!(world.errors("loading") > 0);
    assert_eq!(world.admitted(1, "chaos", "tight", "acme", 20), 0);

    // It was killed, and has them on its disk.
    let before = world.before();
    server.ask(&["SAVE"]);
    server.kill();
    server.restart();
    world.degraded();
    let from = world.load.now();
    assert!(!loaded(&server), "it loads");
    answered_at_once(&world, from);
    await_that("it has loaded", || loaded(&server));
    let back = world.load.now();
    world.over(&before, back, &shard, everybody);
    assert_eq!(world.admitted(1, "chaos", "tight", "acme", 20), 0);
    every_key_ends(&server);
}

/// Nobody waits for a server that says that it is not ready, but where it is slow to say so.
fn answered_at_once(world: &World, from: Duration) {
    let samples = world.answers(from, 300);
    assert!(samples.iter().all(|sample| sample.degraded));
    let slow = samples
        .iter()
        .filter(|sample| world.load.took(sample) > STORE_TIMEOUT / 2);
    let slow = slow.count();
    assert!(slow <= samples.len() / 20, "{slow} of {}", samples.len());
}
