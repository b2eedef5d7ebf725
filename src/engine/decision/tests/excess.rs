//! The lane beside a budget.

use super::*;
use crate::engine::budget::State;
use crate::engine::limit::MAX_UNITS;
use crate::engine::resolve::resolve;
use crate::engine::testing::{domain, request};
use proptest::prelude::*;

fn outcomes(world: &mut World, times: usize, descriptor: &str) -> (usize, usize, usize) {
    let mut counts = (0, 0, 0);
    for _ in 0..times {
        match world.ask(&[descriptor]).decision.verdicts[0].outcome {
            Outcome::Allow | Outcome::Wait(_) => counts.0 += 1,
            Outcome::Excess => counts.1 += 1,
            Outcome::Deny { .. } => counts.2 += 1,
        }
    }
    counts
}

#[test]
fn requests_above_the_limit_pass_marked_up_to_the_lane() {
    for rule in [
        "a{10/minute excess:150}",
        "a{10/minute sliding excess:150}",
        "a{10/minute token burst:10 excess:150}",
    ] {
        let mut world = World::new(&[rule]);
        assert_eq!(outcomes(&mut world, 20, "(a=1)"), (10, 5, 5), "{rule}");
    }
}

#[test]
fn a_lane_of_part_of_a_unit_is_rounded_down() {
    let mut world = World::new(&["a{3/minute excess:150}"]);
    assert_eq!(outcomes(&mut world, 9, "(a=1)"), (3, 1, 5));
    let mut world = World::new(&["a{3/minute excess:110}"]);
    assert_eq!(outcomes(&mut world, 9, "(a=1)"), (3, 0, 6));
}

#[test]
fn a_cost_uses_the_main_budget_or_the_lane_whole() {
    let mut world = World::new(&["a{10/minute excess:150}"]);
    world.ask(&["(a=1) addend 8"]);
    // Two are left beside five: four fit the lane only, and two the budget.
    let answer = world.ask(&["(a=1) addend 4"]);
    assert_eq!(answer.decision.verdicts[0].outcome, Outcome::Excess);
    assert_eq!(answer.statuses, [ok(10, 2)]);
    assert!(answer.budgets[0].1 && !answer.refused);
    assert!(world.ask(&["(a=1) addend 3"]).refused);
    assert_eq!(
        world.ask(&["(a=1) addend 2"]).decision.verdicts[0].outcome,
        Outcome::Allow
    );
}

#[test]
fn a_cost_that_fits_the_lane_alone_is_payable() {
    let mut world = World::new(&["a{10/minute excess:300}"]);
    let ask = |world: &mut World, addend| {
        world.ask(&[&format!("(a=1) addend {addend}")]).decision.verdicts[0].outcome
    };
    assert_eq!(ask(&mut world, 20), Outcome::Excess);
    assert_eq!(ask(&mut world, 21), Outcome::Deny { retry_after: None });
    let Outcome::Deny {
        retry_after: Some(wait),
    } = ask(&mut world, 20)
    else {
        panic!("the lane is empty")
    };
    world.later(wait);
    assert_eq!(ask(&mut world, 20), Outcome::Excess);
}

#[test]
fn a_wait_is_tried_before_the_lane() {
    let mut world = World::new(&["a{60/minute token burst:2 wait:1000 excess:200}"]);
    let mut next = || world.ask(&["(a=1)"]).decision.verdicts[0].outcome;
    assert_eq!(next(), Outcome::Allow);
    assert_eq!(next(), Outcome::Allow);
    assert_eq!(next(), Outcome::Wait(Micros::SECOND));
    assert_eq!(next(), Outcome::Excess);
    assert_eq!(next(), Outcome::Excess);
    // The bucket would wait two seconds, one more than it may; the lane has a unit in one.
    assert_eq!(
        next(),
        Outcome::Deny {
            retry_after: Some(Micros::SECOND)
        }
    );
}

#[test]
fn a_refund_goes_to_the_main_budget() {
    let mut world = World::new(&["a{10/minute excess:150}"]);
    assert_eq!(outcomes(&mut world, 15, "(a=1)"), (10, 5, 0));
    world.ask(&["(a=1) refund 3"]);
    assert_eq!(outcomes(&mut world, 9, "(a=1)"), (3, 0, 6));
}

#[test]
fn the_lane_is_not_charged_by_a_request_that_another_limit_refuses() {
    let mut world = World::new(&["a{1/minute excess:300}", "b{0/minute}"]);
    world.ask(&["(a=1)"]);
    assert!(world.repeat(9, &["(a=1)", "(b=1)"]).refused);
    assert_eq!(outcomes(&mut world, 9, "(a=1)"), (0, 2, 7));
}

#[test]
fn the_lane_comes_back_with_its_own_windows() {
    let mut world = World::new(&["a{10/minute excess:150}"]);
    assert_eq!(outcomes(&mut world, 20, "(a=1)"), (10, 5, 5));
    world.later(Micros::from_secs(40));
    assert_eq!(outcomes(&mut world, 20, "(a=1)"), (10, 5, 5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn main_and_lane_pass_no_more_than_the_percentage(
        (units, percent) in (1..200_u64, 101..400_u64),
        kind in 0..3_usize,
        steps in prop::collection::vec((0..20_000_000_u64, 1..60_u64), 1..60),
    ) {
        let kind = ["", " sliding", " token"][kind];
        let rule = format!("a{{{units}/minute{kind} excess:{percent}}}");
        let mut world = World::new(&[&rule]);
        let mut sums = std::collections::BTreeMap::<u64, u64>::new();
        let (mut total, mut marked) = (0, 0);
        for (gap, cost) in steps {
            world.later(Micros(gap));
            let outcome = world.ask(&[&format!("(a=1) addend {cost}")]).decision.verdicts[0].outcome;
            if !matches!(outcome, Outcome::Deny { .. }) {
                *sums.entry(world.now.0 / MINUTE.0).or_default() += cost;
                total += cost;
                marked += u64::from(outcome == Outcome::Excess) * cost;
            }
        }
        let lane = units * (percent - 100) / 100;
        if kind == " token" {
            let elapsed = world.now.since(T0).0;
            prop_assert!(u128::from(marked) <= u128::from(lane) + u128::from(lane) * u128::from(elapsed) / u128::from(MINUTE.0));
            prop_assert!(u128::from(total) <= u128::from(units + lane) * (1 + u128::from(elapsed) / u128::from(MINUTE.0) + 1));
        } else {
            prop_assert!(sums.values().all(|&sum| sum <= units + lane), "{:?}", sums);
        }
    }

    #[test]
    fn the_wait_for_either_is_true(
        (units, percent) in (1..50_u64, 101..400_u64),
        kind in 0..3_usize,
        steps in prop::collection::vec((0..20_000_000_u64, 1..60_u64), 1..30),
        cost in 1..100_u64,
    ) {
        let kind = ["", " sliding", " token wait:700"][kind];
        let domain = domain(&[&format!("a{{{units}/minute{kind} excess:{percent}}}")]);
        let try_at = |slot: Slot, cost: u64, now: Timestamp| {
            let text = format!("(a=1) addend {cost}");
            let request = request(&[&text]);
            let resolved = resolve(Some(&domain), &request, false, now);
            evaluate(&resolved.charges[0], slot, now, Micros(MAX_UNITS))
        };
        let (mut slot, mut now) = (Slot::default(), T0);
        for (gap, cost) in steps {
            now = now.plus(Micros(gap));
            let evaluation = try_at(slot, cost, now);
            let denied = matches!(evaluation.outcome, Outcome::Deny { .. });
            slot = if denied { evaluation.base } else { evaluation.charged };
        }
        if let Outcome::Deny { retry_after: Some(wait) } = try_at(slot, cost, now).outcome {
            let at = |later: u64| try_at(slot, cost, Timestamp(now.0 + later)).outcome;
            let (then, before) = (at(wait.0), at(wait.0 - 1));
            prop_assert!(!matches!(then, Outcome::Deny { .. }), "{:?}", then);
            prop_assert!(matches!(before, Outcome::Deny { .. }), "{:?}", before);
        }
    }

    #[test]
    fn a_slot_may_be_forgotten_when_both_are_whole(
        kind in 0..3_usize,
        steps in prop::collection::vec((0..90_000_000_u64, 1..30_u64), 1..30),
    ) {
        let kind = ["", " sliding", " token"][kind];
        let domain = domain(&[&format!("a{{10/minute{kind} excess:200}}")]);
        let (mut slot, mut now) = (Slot::default(), T0);
        for (gap, cost) in steps {
            now = now.plus(Micros(gap));
            let text = format!("(a=1) addend {cost}");
            let request = request(&[&text]);
            let resolved = resolve(Some(&domain), &request, false, now);
            let evaluation = evaluate(&resolved.charges[0], slot, now, Micros::ZERO);
            let denied = matches!(evaluation.outcome, Outcome::Deny { .. });
            slot = if denied { evaluation.base } else { evaluation.charged };
            let terms = resolved.charges[0].terms();
            let lane = terms.lane().unwrap();
            let whole = |at: Timestamp| {
                let empty = |state: State| state.used == 0 && state.part == 0;
                empty(terms.advance(slot.main, at).0) && empty(lane.advance(slot.lane, at).0)
            };
            let forgotten = terms.forgotten_at(slot.main, now).max(lane.forgotten_at(slot.lane, now));
            prop_assert!(whole(forgotten));
            prop_assert!(forgotten <= now || !whole(Timestamp(forgotten.0 - 1)), "{:?} at {:?}", slot, forgotten);
        }
    }
}
