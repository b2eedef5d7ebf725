//! Leases in a simulated world: replicas with clocks of their own, messages that are late or lost, a store that
//! comes and goes, crashes. What passes is compared with one ideal budget in the middle of it.
//!
//! A seed is a whole history. One that fails is printed; `LEASE_SEED=n` runs it alone.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use cota::engine::budget::{Outcome, State, Terms};
use cota::engine::lease::bound;
use cota::engine::limit::{Limit, Unit};
use cota::engine::time::{Micros, Timestamp};

#[path = "lease_simulation/cases.rs"]
mod cases;
#[path = "lease_simulation/central.rs"]
mod central;
mod support;
#[path = "lease_simulation/world.rs"]
mod world;

use support::policy::{NOON, bucket, domain, every, fixed, leased, sliding};
use world::{Admitted, Network, World};

/// How many histories there are of each kind.
const SEEDS: u64 = 1_000;

/// What one history came to.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Units that were let pass, and that the ideal budget would have let pass.
    passed: u64,
    ideal: u64,
    /// Requests that were let pass, those of them decided without the store, and calls of the store.
    admitted: u64,
    here: u64,
    calls: u64,
    asked: u64,
}

/// What happens in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing goes wrong.
    Quiet,
    /// All that may go wrong does.
    Rough,
}

fn limits(rng: &mut fastrand::Rng) -> Vec<Limit> {
    let how_many = if rng.u8(..4) == 0 { 2 } else { 1 };
    let limit = |rng: &mut fastrand::Rng, name: &str| {
        let units = rng.u64(20..3_000);
        let limit = match rng.u8(..3) {
            0 => bucket(name, units, rng.u64(16..=units.max(17)), Unit::Second),
            1 => fixed(name, units, Unit::Second),
            _ => sliding(name, units, Unit::Second),
        };
        let millis = [500, 1_000, 3_000, 10_000][rng.usize(..4)];
        leased(every(limit, millis), rng.u32(100..=6_000))
    };
    (0..how_many)
        .map(|i| limit(rng, ["first", "second"][i]))
        .collect()
}

fn terms(limit: &Limit) -> Terms<'_> {
    Terms::new(limit, limit.numbers)
}

/// What the limit lets pass with that many units more at once. The count of one window has no error.
fn at_most(limit: &Limit) -> Terms<'_> {
    let terms = terms(limit);
    let more = bound(&terms, limit.numbers.max_overshoot);
    Terms {
        burst: terms.burst + more,
        ..terms
    }
}

/// Spends from a budget what fits it, in order of time; returns how much that was, and the first that did not fit.
fn spend(terms: &Terms<'_>, asked: &[(Timestamp, u64)]) -> (u64, Option<(Timestamp, u64)>) {
    let (mut state, mut passed, mut refused) = (State::default(), 0, None);
    for &(at, cost) in asked {
        let (now, _) = terms.advance(state, at);
        match terms.spend(now, cost, at, Micros::ZERO) {
            (Outcome::Allow, next) => (state, passed) = (next, passed + cost),
            _ => {
                state = now;
                refused.get_or_insert((at, cost));
            }
        }
    }
    (passed, refused)
}

/// Runs one history, and checks all that must hold in it.
fn history(seed: u64, kind: Kind) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Names of blocks and places in tables, too.
    fastrand::seed(seed);
    let limits = limits(&mut rng);
    let replicas = rng.usize(1..=4);
    let rough = kind == Kind::Rough;
    let network = Network {
        delay: rng.u64(100..if rough { 20_000 } else { 2_000 }),
        late: if rough { rng.u32(20..200) } else { 0 },
        lost: if rough { rng.u32(20..200) } else { 0 },
    };
    let domain = domain([(&[("tenant", None)], limits.clone())]);
    let mut world = World::new(seed, domain, replicas, network);
    if rough && rng.bool() {
        world.set_believed(rng.u32(1..=6));
    }
    // What is held grows only when something that a replica does ends.
    let check = |world: &World| {
        let held = world.held();
        for limit in &limits {
            let most = bound(&terms(limit), limit.numbers.max_overshoot);
            let held = held.get(&limit.label).copied().unwrap_or_default();
            assert!(held <= most, "{held} units of {} held, not {most}", limit.label);
        }
    };
    // Each replica's callers come in phases of one pace.
    let mut now = NOON.plus(Micros(rng.u64(..1_000_000)));
    let (mut asked, mut next_tend) = (Vec::new(), vec![now; replicas]);
    for _ in 0..rng.u32(1..=4) {
        let ends = now.plus(Micros(rng.u64(100_000..2_000_000)));
        let busy: Vec<usize> = (0..replicas).filter(|_| rng.u8(..4) > 0).collect();
        let gap = rng.u64(500..20_000);
        let dearest = [1, 1, 1, 3, 20][rng.usize(..5)];
        let mut left = 100;
        while now < ends && left > 0 {
            left -= 1;
            now = now.plus(Micros(rng.u64(0..=2 * gap)));
            world.run(now, check);
            for (replica, at) in next_tend.iter_mut().enumerate() {
                if now >= *at {
                    world.tend(replica);
                    let stall = if rough && rng.u8(..20) == 0 {
                        900_000
                    } else {
                        100_000
                    };
                    *at = now.plus(Micros(stall));
                }
            }
            if rough {
                match rng.u16(..400) {
                    0 => world.crash(rng.usize(..replicas)),
                    1 => world.set_down(true),
                    2..10 => world.set_down(false),
                    _ => {}
                }
            }
            let Some(&replica) = busy.get(rng.usize(..busy.len().max(1))) else {
                continue;
            };
            let cost = rng.u64(1..=dearest);
            asked.push((now, cost));
            world.ask(replica, cost);
        }
    }
    world.set_down(false);
    now = now.plus(Micros::from_secs(4));
    world.run(now, check);
    for replica in 0..replicas {
        world.end(replica);
    }
    world.run(now.plus(Micros::from_secs(4)), check);

    let admitted = world.admitted();
    for limit in &limits {
        let passed: Vec<_> = admitted.iter().map(|passed| (passed.at, passed.cost)).collect();
        let (_, over) = spend(&at_most(limit), &passed);
        assert_eq!(over, None, "more passed than {limit:?} and its overshoot allow");
    }
    no_unit_is_made(&world, &admitted, limits.len() as u64, kind);
    let least = limits.iter().map(|limit| spend(&terms(limit), &asked).0).min();
    Tally {
        passed: admitted.iter().map(|passed| passed.cost).sum(),
        ideal: least.unwrap(),
        admitted: admitted.len() as u64,
        here: admitted.iter().filter(|passed| passed.here).count() as u64,
        calls: world.calls(),
        asked: asked.len() as u64,
    }
}

/// What a replica spent of blocks and gave back of them is no more than was charged for them; and if nothing got
/// lost, it is just that.
fn no_unit_is_made(world: &World, admitted: &[Admitted], limits: u64, kind: Kind) {
    for (replica, (charged, back)) in world.ledger().into_iter().enumerate() {
        let here = admitted
            .iter()
            .filter(|passed| passed.here && passed.replica == replica);
        let spent = limits * here.map(|passed| passed.cost).sum::<u64>();
        assert!(
            spent + back <= charged,
            "replica {replica} spent {spent} and gave back {back} of {charged}"
        );
        if kind == Kind::Quiet {
            assert_eq!(spent + back, charged, "replica {replica}: units were lost");
        }
    }
}

/// Runs many histories, on as many threads as there are cores.
fn histories(kind: Kind) -> Tally {
    if let Some(seed) = std::env::var_os("LEASE_SEED") {
        let seed = seed.to_str().and_then(|seed| seed.parse().ok());
        return history(seed.expect("LEASE_SEED is a number"), kind);
    }
    let threads = std::thread::available_parallelism().map_or(2, usize::from) as u64;
    let of = |thread: u64| {
        let mut all = Tally::default();
        for seed in (0..SEEDS).filter(|seed| seed % threads == thread) {
            let told = std::panic::catch_unwind(|| history(seed, kind));
            let one = told.unwrap_or_else(|_| panic!("LEASE_SEED={seed} fails, of a {kind:?} world"));
            all = Tally {
                passed: all.passed + one.passed,
                ideal: all.ideal + one.ideal,
                admitted: all.admitted + one.admitted,
                here: all.here + one.here,
                calls: all.calls + one.calls,
                asked: all.asked + one.asked,
            };
        }
        all
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || of(thread)))
            .collect();
        let all = all
            .into_iter()
            .map(|thread| thread.join().expect("a history failed, see above"));
        all.reduce(|a, b| Tally {
            passed: a.passed + b.passed,
            ideal: a.ideal + b.ideal,
            admitted: a.admitted + b.admitted,
            here: a.here + b.here,
            calls: a.calls + b.calls,
            asked: a.asked + b.asked,
        })
        .unwrap()
    })
}

#[test]
fn where_nothing_fails_no_unit_is_lost_and_no_more_passes_than_was_stated() {
    let all = histories(Kind::Quiet);
    println!("{all:?}");
    // The world must be one in which leases are of use, and cost callers little.
    if all.asked > 10_000 {
        assert!(all.here * 2 > all.admitted, "{all:?}");
        assert!(all.passed * 100 > all.ideal * 95, "{all:?}");
    }
}

#[test]
fn whatever_fails_no_unit_is_made_and_no_more_passes_than_was_stated() {
    let all = histories(Kind::Rough);
    println!("{all:?}");
    if all.asked > 10_000 {
        assert!(all.here * 4 > all.admitted, "{all:?}");
    }
}
