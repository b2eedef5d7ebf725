//! The moments at which leases are known to go wrong, one by one, and the requests that leases are not for.

use cota::engine::descriptor::{Request, WireOverride};
use cota::engine::limit::{Limit, Unit};
use cota::engine::policy::Domain;
use cota::engine::time::Micros;

use crate::support::policy::{
    NOON, bucket, costing, domain, every, fixed, leased, refunding, request, sliding,
};
use crate::world::{Admitted, Network, Told, World};

const FAST: Network = Network {
    delay: 500,
    late: 0,
    lost: 0,
};

fn world(limit: Limit, replicas: usize) -> World {
    World::new(7, of_tenants(limit), replicas, FAST)
}

fn of_tenants(limit: Limit) -> Domain {
    domain([(&[("tenant", None)], vec![limit])])
}

fn acme() -> Request<'static> {
    request(&[&[("tenant", "acme")]])
}

/// That many requests at each of these replicas in turn, one every `gap` microseconds, and what is done beside.
fn flood(world: &mut World, replicas: &[usize], requests: u64, gap: u64) {
    for i in 0..requests {
        world.run(world.now().plus(Micros(gap)), |_| {});
        if i % (100_000 / gap).max(1) == 0 {
            replicas.iter().for_each(|&replica| world.tend(replica));
        }
        for &replica in replicas {
            world.ask(replica, 1);
        }
    }
    world.run(world.now().plus(Micros::from_millis(10)), |_| {});
}

fn wait(world: &mut World, replicas: usize, millis: u64) {
    for _ in 0..millis / 50 {
        world.run(world.now().plus(Micros::from_millis(50)), |_| {});
        (0..replicas).for_each(|replica| world.tend(replica));
    }
    world.run(world.now().plus(Micros::from_millis(10)), |_| {});
}

fn passed(world: &World) -> u64 {
    world.admitted().iter().map(|passed| passed.cost).sum()
}

fn spent_here(world: &World, replica: usize) -> u64 {
    let here = |passed: &&Admitted| passed.here && passed.replica == replica;
    world
        .admitted()
        .iter()
        .filter(here)
        .map(|passed| passed.cost)
        .sum()
}

fn held(world: &World) -> u64 {
    world.held().values().sum()
}

/// A replica that holds units of `acme`, as long as the clock stands.
fn warm(limit: Limit) -> World {
    let mut world = world(limit, 2);
    flood(&mut world, &[0], 100, 1_000);
    assert!(held(&world) > 0);
    assert!(world.decide(0, acme()).here);
    world
}

#[test]
fn start_up_asks_exactly_until_a_caller_is_known_to_come_often() {
    let mut world = world(leased(bucket("tenant", 10_000, 10_000, Unit::Hour), 1_000), 3);
    assert_eq!(
        world.decide(0, acme()),
        Told {
            here: false,
            passed: Some(true),
            remaining: vec![9_999]
        }
    );
    // All replicas start into a flood on one caller at once: more than there is, and nobody waits for a block.
    flood(&mut world, &[0, 1, 2], 4_000, 100);
    let admitted = world.admitted();
    let first = admitted.iter().position(|passed| passed.here).unwrap();
    assert!((8..60).contains(&first), "{first} were asked for first");
    assert!(admitted.iter().filter(|passed| passed.here).count() > 9_000);
    // Ten thousand, and what came back meanwhile: not one more.
    assert!((10_000..=10_001).contains(&passed(&world)), "{}", passed(&world));
}

#[test]
fn a_caller_that_comes_rarely_is_never_leased() {
    let mut world = world(leased(bucket("tenant", 10_000, 10_000, Unit::Hour), 1_000), 1);
    flood(&mut world, &[0], 200, 90_000);
    assert!(world.admitted().iter().all(|passed| !passed.here));
    assert_eq!(world.calls(), 200);
    assert_eq!(held(&world), 0);
}

#[test]
fn running_dry_leaves_no_unit_behind_and_is_told_by_the_store() {
    for limit in [
        fixed("tenant", 3_000, Unit::Day),
        sliding("tenant", 3_000, Unit::Day),
        bucket("tenant", 3_000, 3_000, Unit::Year),
    ] {
        let mut world = world(leased(limit, 500), 3);
        flood(&mut world, &[0, 1, 2], 3_000, 300);
        // What one replica holds while others are refused is spent or back within the life of a block.
        wait(&mut world, 3, 2_000);
        flood(&mut world, &[0, 1, 2], 60, 300);
        assert_eq!((passed(&world), held(&world)), (3_000, 0));
        let told = world.decide(1, acme());
        assert_eq!(
            told,
            Told {
                here: false,
                passed: Some(false),
                remaining: vec![0]
            }
        );
    }
}

#[test]
fn near_the_end_of_a_budget_blocks_become_small_and_then_none() {
    let mut world = world(leased(fixed("tenant", 1_000, Unit::Day), 5_000), 2);
    world.decide(0, costing(acme(), 970));
    flood(&mut world, &[0], 30, 500);
    assert_eq!(held(&world), 0, "thirty units are for whoever asks");
    assert_eq!(world.admitted().iter().filter(|passed| passed.here).count(), 0);
}

#[test]
fn expiry_gives_back_what_was_not_used() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    wait(&mut world, 2, 2_000);
    assert_eq!(held(&world), 0);
    let (charged, back) = world.ledger()[0];
    assert!(back > 0 && back < charged);
    // All that was not spent is there for the other replica.
    let left = 10_000 - passed(&world) - 1;
    assert_eq!(world.decide(1, acme()).remaining, [left]);
}

#[test]
fn expiry_without_the_store_costs_units_and_makes_none() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    world.set_down(true);
    // What is held may be spent.
    assert_eq!(world.decide(0, acme()).passed, Some(true));
    wait(&mut world, 2, 2_500);
    assert_eq!(world.decide(0, acme()).passed, None);
    world.set_down(false);
    let (charged, back) = world.ledger()[0];
    assert_eq!(back, 0);
    let (spent, lost) = (spent_here(&world, 0), charged - spent_here(&world, 0));
    assert!(spent > 0 && (1..=1_000).contains(&lost), "{charged} {spent}");
    let left = 10_000 - passed(&world) - lost - 1;
    assert_eq!(world.decide(1, acme()).remaining, [left]);
}

#[test]
fn a_crash_frees_the_bound_after_two_seconds() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    world.crash(0);
    assert_eq!(held(&world), 0);
    // The other one takes all that the bound allows it as soon as the escrow has forgotten the dead one.
    wait(&mut world, 2, 2_000);
    flood(&mut world, &[1], 200, 1_000);
    assert!(held(&world) > 0);
    let lost = world.ledger()[0].0;
    assert!(lost - spent_here(&world, 0) <= 1_000);
}

#[test]
fn a_store_that_lost_its_data_is_given_nothing_back() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    world.flush();
    world.decide(1, costing(acme(), 500));
    wait(&mut world, 2, 2_000);
    assert_eq!((held(&world), world.ledger()[0].1), (0, 0));
    assert_eq!(world.decide(1, acme()).remaining, [9_499]);
}

#[test]
fn a_block_dies_with_its_window() {
    let limit = every(leased(fixed("tenant", 2_000, Unit::Second), 2_000), 1_000);
    let mut world = world(limit, 2);
    world.run(NOON.plus(Micros::from_millis(600)), |_| {});
    flood(&mut world, &[0], 300, 1_000);
    assert!(held(&world) > 0);
    // Just before the edge, by the replica's clock that knows it only roughly, nothing is in hand any more.
    world.run(NOON.plus(Micros::from_millis(996)), |_| {});
    assert_eq!(held(&world), 0);
    assert!(!world.decide(0, acme()).here);
}

#[test]
fn a_block_dies_with_its_window_however_long_its_calls_took() {
    let limit = every(leased(fixed("tenant", 5_000, Unit::Second), 2_000), 1_000);
    let mut world = world(limit, 1);
    world.set_network(Network {
        delay: 45_000,
        ..FAST
    });
    let mut held_before = 0;
    for window in 1..=20 {
        let edge = NOON.plus(Micros::from_secs(window));
        while world.now().plus(Micros(2_000)) < edge {
            flood_once(&mut world, 2_000);
        }
        held_before += held(&world);
        world.run(edge, |_| {});
        assert_eq!(held(&world), 0, "at the edge of window {window}");
    }
    assert_eq!(held_before, 0, "five milliseconds before it nothing is in hand");
    assert!(spent_here(&world, 0) > 5_000);
}

fn flood_once(world: &mut World, gap: u64) {
    world.run(world.now().plus(Micros(gap)), |_| {});
    world.ask(0, 1);
}

#[test]
fn a_replica_that_ends_gives_all_back() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    world.end(0);
    world.run(world.now().plus(Micros::from_millis(20)), |_| {});
    assert_eq!(held(&world), 0);
    let here = spent_here(&world, 0);
    let (charged, back) = world.ledger()[0];
    assert_eq!(here + back, charged);
    flood(&mut world, &[0], 50, 1_000);
    assert_eq!(held(&world), 0, "it takes no more");
}

#[test]
fn looks_refunds_and_what_meets_an_exact_limit_go_to_the_store() {
    let limit = leased(bucket("tenant", 10_000, 10_000, Unit::Hour), 1_000);
    let mut world = warm(limit.clone());
    let in_hand = held(&world);
    assert!(!world.decide(0, costing(acme(), 0)).here);
    let before = world.decide(0, costing(acme(), 0)).remaining[0];
    // A refund is the store's, and is seen at once.
    assert!(!world.decide(0, refunding(acme(), 3)).here);
    assert_eq!(world.decide(0, costing(acme(), 0)).remaining, [before + 3]);
    // More than is in hand is asked for whole.
    let told = world.decide(0, costing(acme(), in_hand + 1));
    assert_eq!((told.here, told.passed), (false, Some(true)));
    assert_eq!(held(&world), in_hand);
    // Two limits of which one is exact.
    let exact = bucket("exact", 50, 50, Unit::Hour);
    world.set_domain(domain([
        (&[("tenant", None)], vec![limit]),
        (&[("key", None)], vec![exact]),
    ]));
    let both = request(&[&[("tenant", "acme")], &[("key", "k")]]);
    let told = world.decide(0, both);
    assert_eq!(
        (told.here, told.passed, told.remaining[1]),
        (false, Some(true), 49)
    );
    // A limit that comes with a request is a budget of its own.
    let mut wire = acme();
    wire.descriptors[0].limit = Some(WireOverride {
        requests_per_unit: 5,
        unit: Some(Unit::Hour),
        multiplier: 1,
    });
    let told = world.decide(0, wire);
    assert_eq!((told.here, told.remaining), (false, vec![4]));
}

#[test]
fn what_is_shown_is_what_the_store_said_less_what_was_spent() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    let shown = world.decide(0, acme()).remaining[0];
    assert_eq!(world.decide(0, costing(acme(), 2)).remaining, [shown - 2]);
    assert_eq!(shown, 10_000 - (passed(&world) - 2));
}

#[test]
fn a_shadow_limit_is_leased_like_any_other() {
    let mut limit = leased(fixed("tenant", 300, Unit::Day), 2_000);
    limit.shadow = true;
    let mut world = world(limit, 1);
    flood(&mut world, &[0], 500, 1_000);
    assert!(world.admitted().iter().filter(|passed| passed.here).count() > 150);
    assert_eq!(world.others(), (0, 0));
    let told = world.decide(0, acme());
    assert_eq!(
        (told.here, told.passed, told.remaining),
        (false, Some(true), vec![0])
    );
}

#[test]
fn other_numbers_are_not_paid_from_what_was_taken_before() {
    let limit = fixed("tenant", 10_000, Unit::Day);
    let mut world = warm(leased(limit.clone(), 1_000));
    let mut lowered = leased(limit, 1_000);
    lowered.numbers.requests_per_unit = 20;
    world.set_domain(of_tenants(lowered));
    let told = world.decide(0, acme());
    assert_eq!((told.here, told.passed), (false, Some(false)));
    wait(&mut world, 2, 2_000);
    assert_eq!(held(&world), 0);
    let here = spent_here(&world, 0);
    let (charged, back) = world.ledger()[0];
    assert_eq!(here + back, charged);
}

#[test]
fn what_is_forgotten_is_neither_spent_nor_given_back() {
    let mut world = warm(leased(fixed("tenant", 10_000, Unit::Day), 1_000));
    world
        .leased(0)
        .forget(|key| key.entries().any(|entry| entry == ("tenant", "other")));
    assert!(held(&world) > 0);
    world
        .leased(0)
        .forget(|key| key.entries().any(|entry| entry == ("tenant", "acme")));
    assert_eq!(held(&world), 0);
    assert!(!world.decide(0, acme()).here);
    wait(&mut world, 1, 2_500);
    assert_eq!(world.ledger()[0].1, 0);
}

#[test]
fn a_block_that_arrives_after_it_was_forgotten_is_not_spent() {
    let mut world = world(leased(fixed("tenant", 10_000, Unit::Day), 1_000), 1);
    let slow = Network {
        delay: 40_000,
        ..FAST
    };
    world.set_network(slow);
    flood(&mut world, &[0], 60, 1_000);
    world.leased(0).forget(|_| true);
    world.set_network(FAST);
    let charged = |world: &World| world.ledger()[0].0;
    world.run(world.now().plus(Micros::from_millis(200)), |_| {});
    assert!(charged(&world) > 0, "it was on its way");
    assert_eq!((held(&world), world.ledger()[0].1), (0, 0));
}

#[test]
fn a_bound_of_a_few_units_is_not_leased() {
    // Fifteen units for two blocks of eight requests.
    let mut world = world(leased(bucket("tenant", 300, 150, Unit::Second), 1_000), 1);
    flood(&mut world, &[0], 200, 2_000);
    assert_eq!(world.calls(), 200);
}

#[test]
fn a_hot_caller_costs_the_store_few_calls() {
    let mut world = world(leased(bucket("tenant", 600_000, 90_000, Unit::Minute), 500), 2);
    flood(&mut world, &[0, 1], 6_000, 250);
    let calls = world.calls();
    assert_eq!(passed(&world), 12_000);
    assert!(calls * 50 <= 12_000, "{calls} calls for 12,000 requests");
}
