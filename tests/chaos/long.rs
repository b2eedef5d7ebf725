//! An outage that goes on.

use std::time::Duration;

use crate::everybody;
use crate::support::redis::Server;
use crate::world::{World, lasts};

#[test]
fn a_long_outage_costs_no_memory() {
    let server = Server::absent(&[]);
    // About two thousand calls a second where the machine has the time.
    let world = World::busy(&server.url(), 24);
    world.degraded();
    lasts(Duration::from_secs(2));
    let (from, early) = (world.load.now(), world.replicas[0].resident());
    lasts(Duration::from_secs(7));
    let late = world.replicas[0].resident();
    let answers = world.load.since(from).len();
    eprintln!("{answers} answers without a store: from {early} to {late} kB");
    assert!(answers > 2_000, "{answers}");
    // What each answer leaves behind would be at least some hundred bytes; the allocator by itself was seen to
    // move by 1,100 kB.
    assert!(
        late < early + 2_500,
        "from {early} to {late} kB after {answers} answers"
    );
    world.by_failure_mode(Duration::ZERO, everybody);
    world.in_time();
}
