//! A store whose clock is set: no budget comes back for it, and nobody waits longer than a minute for it.

use std::time::Duration;

use cota::clock::Stopwatch;

use crate::support::redis::{Server, await_that};
use crate::world::{World, every_key_ends, lasts};

const HOUR: i64 = 3_600;
/// How far ahead a stored time may be: the period of those limits, and the time of a unit of theirs.
const LEGAL: i64 = 60;
const UNIT: i64 = 6;
/// What was refused is remembered for a second, in which the store is not asked.
const REMEMBERED: Duration = Duration::from_millis(1_100);

#[test]
fn a_clock_that_steps_back_and_forth() {
    let server = Server::skewed(&[]);
    let world = World::start(1, &server.url(), &[]);
    world.undisturbed(300);
    let before = world.before();
    let clamps = || world.replicas[0].metric("cota_clock_clamps_total", &[]);
    let admitted = |key: &str| world.admitted(0, "chaos", key, "acme", 20);
    let spent = || {
        lasts(REMEMBERED);
        let watch = Stopwatch::start();
        for key in ["bucket", "tight"] {
            let admitted = admitted(key);
            // A unit of the bucket comes back every six seconds.
            let earned = if key == "bucket" {
                1 + watch.elapsed().as_secs() / UNIT as u64
            } else {
                0
            };
            assert!(admitted as u64 <= earned, "{admitted} of {key}");
        }
    };
    assert_eq!(admitted("bucket"), 10);
    assert_eq!(admitted("tight"), 10);
    assert_eq!(clamps(), 0);

    // A replica that is a little behind took over.
    server.skew(-30);
    world.undisturbed(300);
    spent();
    assert_eq!(clamps(), 0, "that much is legal");

    // Hours behind: spent is spent, until what is legal has passed.
    server.skew(-2 * HOUR);
    world.undisturbed(300);
    spent();
    let counted = clamps();
    // Every caller of the load, and ours.
    assert!(counted >= 100, "{counted}");
    server.skew(-2 * HOUR + LEGAL + UNIT + 1);
    await_that("one of the bucket passes", || admitted("bucket") > 0);
    assert_eq!(admitted("tight"), 0);

    // Hours ahead: what has a minute to come back has come back, and nothing else.
    server.skew(2 * HOUR);
    world.undisturbed(300);
    lasts(REMEMBERED);
    assert_eq!(admitted("bucket"), 10);
    assert_eq!(admitted("tight"), 0);

    // And right again, which is back.
    let counted = clamps();
    server.skew(0);
    world.undisturbed(300);
    spent();
    assert!(clamps() > counted);
    server.skew(LEGAL + UNIT + 1);
    await_that("one of the bucket passes", || admitted("bucket") > 0);
    assert_eq!(admitted("tight"), 0);

    world.over(&before, world.load.now(), &[], |_| false);
    assert!(
        world.load.now() < Duration::from_secs(LEGAL as u64),
        "no minute passed but by the clock"
    );
    every_key_ends(&server);
}
