//! All or nothing, whose refusal speaks, who is tightest, how long to hold.

use super::*;

#[test]
fn w1_hits_up_to_the_limit_pass_and_the_next_does_not() {
    let mut world = World::new(&["a{3/minute}"]);
    for left in [2, 1, 0] {
        assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(3, left)]);
    }
    assert_eq!(world.ask(&["(a=1)"]).statuses, [over_limit(3, 0)]);
}

#[test]
fn w3_the_reset_of_a_window_is_its_end() {
    let mut world = World::new(&["a{3/minute}"]);
    for (later, reset) in [(0, 40), (39, 1), (1, 60)] {
        world.later(Micros::from_secs(later));
        let view = world.ask(&["(a=1)"]).decision.verdicts[0].view;
        assert_eq!(view.reset.secs_ceil(), reset);
    }
}

#[test]
fn w4_refused_hits_are_not_consumed() {
    let mut world = World::new(&["a{5/minute}"]);
    assert_eq!(world.ask(&["(a=1) addend 3"]).statuses, [ok(5, 2)]);
    assert_eq!(world.ask(&["(a=1) addend 3"]).statuses, [over_limit(5, 2)]);
    assert_eq!(world.ask(&["(a=1) addend 1"]).statuses, [ok(5, 1)]);
}

#[test]
fn w5_a_look_changes_nothing_and_is_not_refused_at_the_limit() {
    let mut world = World::new(&["a{2/minute}"]);
    for left in [1, 0] {
        world.ask(&["(a=1)"]);
        assert_eq!(world.repeat(3, &["(a=1) addend 0"]).statuses, [ok(2, left)]);
    }
    assert!(world.ask(&["(a=1)"]).refused);
    assert!(!world.ask(&["(a=1) addend 0"]).refused);
}

#[test]
fn w6_a_request_wide_addend_of_zero_is_one() {
    let mut world = World::new(&["a{2/minute}"]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(2, 1)]);
}

#[test]
fn w7_a_limit_of_zero_refuses_all_for_ever() {
    let mut world = World::new(&["a{0/minute}"]);
    let answer = world.ask(&["(a=1)"]);
    assert_eq!(answer.statuses, [over_limit(0, 0)]);
    assert_eq!(retry_after(&answer.decision, 0), None);
}

#[test]
fn w8_an_unlimited_limit_meets_no_budget() {
    let mut world = World::new(&["a{unlimited}"]);
    let answer = world.repeat(9, &["(a=1)"]);
    assert_eq!(answer.statuses, [NO_LIMIT]);
    assert!(answer.budgets.is_empty() && !answer.refused);
}

#[test]
fn a_refused_request_is_charged_to_none() {
    let mut world = World::new(&["a{10/minute}", "b{1/minute;10/hour}"]);
    let asked = ["(a=1)", "(b=1)"];
    assert_eq!(world.passed(5, &asked), 1);
    let answer = world.ask(&asked);
    assert_eq!(answer.statuses, [ok(10, 9), over_limit(1, 0)]);
    assert_eq!(
        answer.budgets,
        [
            ("a/minute".to_owned(), false, 9),
            ("b/minute".to_owned(), false, 0),
            ("b/hour".to_owned(), false, 9),
        ]
    );
}

#[test]
fn w11_the_limit_with_the_least_share_left_speaks() {
    let mut world = World::new(&["a{10/minute}", "b{5/second}"]);
    world.ask(&["(a=1) addend 5"]);
    world.ask(&["(b=1) addend 2"]);
    let answer = world.ask(&["(a=1)", "(b=1)"]);
    assert_eq!(answer.statuses, [ok(10, 4), ok(5, 2)]);
    // Both have two fifths left; the smaller number wins.
    assert_eq!(answer.headline.as_deref(), Some("b/second"));
}

#[test]
fn tightest_is_the_least_share_then_the_smaller_number_then_the_first() {
    for (rules, used, headline) in [
        // 8 of 10 left against 90 of 100.
        (["a{10/minute}", "b{100/minute}"], [1, 9], "a/minute"),
        (["a{100/minute}", "b{10/minute}"], [49, 3], "a/minute"),
        (["a{100/minute}", "b{10/minute}"], [49, 4], "b/minute"),
        (["a{10/minute}", "b{10/hour}"], [3, 3], "a/minute"),
        (["a{10/hour}", "b{10/minute}"], [3, 3], "a/hour"),
        // The capacity of a token bucket is its burst.
        (
            ["a{1000/minute token burst:10}", "b{20/minute}"],
            [4, 9],
            "a/minute",
        ),
        (
            ["a{1000/minute token burst:10}", "b{20/minute}"],
            [4, 10],
            "b/minute",
        ),
    ] {
        let mut world = World::new(&rules);
        world.ask(&[&format!("(a=1) addend {}", used[0])]);
        world.ask(&[&format!("(b=1) addend {}", used[1])]);
        let answer = world.ask(&["(a=1)", "(b=1)"]);
        assert_eq!(answer.headline.as_deref(), Some(headline), "{rules:?} {used:?}");
    }
}

#[test]
fn a_descriptor_shows_its_refusing_limit_else_its_tightest() {
    let mut world = World::new(&["a{2/minute;3/hour;100/day}"]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(2, 1)]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(2, 0)]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [over_limit(2, 0)]);
    world.later(MINUTE);
    // One of three is left of the hour, all of the minute.
    assert_eq!(world.ask(&["(a=1) addend 0"]).statuses, [ok(3, 1)]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(3, 0)]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [over_limit(3, 0)]);
}

#[test]
fn of_two_refusing_limits_the_longest_wait_speaks() {
    let mut world = World::new(&["a{1/minute}", "b{1/hour}", "c{1/day}"]);
    world.ask(&["(a=1)", "(b=1)"]);
    for asked in [["(a=1)", "(b=1)", "(c=1)"], ["(c=1)", "(b=1)", "(a=1)"]] {
        let answer = world.ask(&asked);
        assert_eq!(answer.headline.as_deref(), Some("b/hour"));
    }
    // What can never pass waits longest.
    let answer = world.ask(&["(b=1)", "(c=1) addend 2"]);
    assert_eq!(answer.headline.as_deref(), Some("c/day"));
}

#[test]
fn denied_attempts_burn_nothing() {
    // Ten: use eight, ask five, ask one.
    let mut world = World::new(&["a{10/minute}"]);
    world.ask(&["(a=1) addend 8"]);
    assert_eq!(world.ask(&["(a=1) addend 5"]).statuses, [over_limit(10, 2)]);
    assert_eq!(world.ask(&["(a=1)"]).statuses, [ok(10, 1)]);
    // Ten a minute and thirty a day: 31 calls in two minutes charge the second limit twenty.
    let mut world = World::new(&["a{10/minute;30/day}"]);
    assert_eq!(world.passed(16, &["(a=1)"]), 10);
    world.later(MINUTE);
    assert_eq!(world.passed(15, &["(a=1)"]), 10);
    assert_eq!(world.ask(&["(a=1)"]).budgets[1].2, 10);
}

#[test]
fn r3_what_one_limit_refused_is_not_charged_to_another() {
    let mut world = World::new(&["g=bar{10/minute}", "sp=x{3/minute}"]);
    assert_eq!(world.passed(5, &["(g=bar)", "(sp=x)"]), 3);
    assert_eq!(world.ask(&["(g=bar)"]).statuses, [ok(10, 6)]);
}

#[test]
fn f5_one_integrator_does_not_starve_another() {
    let mut world = World::new(&["org{10/minute}", "org > integrator{5/minute}"]);
    let ask =
        |world: &mut World, times, n| world.passed(times, &["(org=o)", &format!("(org=o)(integrator={n})")]);
    assert_eq!(ask(&mut world, 8, 1), 5);
    assert_eq!(ask(&mut world, 5, 2), 5);
    assert_eq!(ask(&mut world, 5, 3), 0);
}

#[test]
fn quota_descriptors_refuse_only_all_together() {
    let mut world = World::new(&["q{1/minute quota}", "r{2/minute quota}", "n{3/minute}"]);
    let asked = ["(q=1)", "(r=1)", "(n=1)"];
    assert!(!world.ask(&asked).refused);
    // One over: it is not charged, the others are.
    let answer = world.ask(&asked);
    assert!(!answer.refused);
    assert_eq!(answer.statuses, [over_limit(1, 0), ok(2, 0), ok(3, 1)]);
    assert_ne!(answer.headline.as_deref(), Some("q/minute"));
    // Both over: refused, and nothing is charged.
    let answer = world.ask(&asked);
    assert!(answer.refused);
    assert_eq!(answer.statuses, [over_limit(1, 0), over_limit(2, 0), ok(3, 1)]);
    // A single quota descriptor is all of them.
    assert!(world.ask(&["(q=1)", "(n=1)"]).refused);
    assert_eq!(remaining(&mut world, "(n=1)"), 1);
}

#[test]
fn an_enforced_limit_refuses_beside_a_quota_and_speaks() {
    let mut world = World::new(&["q{1/hour quota}", "n{1/minute}"]);
    assert!(!world.ask(&["(q=1)", "(n=1)"]).refused);
    let answer = world.ask(&["(q=2)", "(n=1)"]);
    assert!(answer.refused);
    assert_eq!(answer.statuses, [ok(1, 1), over_limit(1, 0)]);
    assert_eq!(answer.headline.as_deref(), Some("n/minute"));
    let answer = world.ask(&["(q=1)", "(n=1)"]);
    assert_eq!(answer.headline.as_deref(), Some("n/minute"));
}

#[test]
fn a_descriptor_over_its_quota_charges_none_of_its_limits() {
    let mut world = World::new(&["q{1/minute quota;9/hour}", "r{9/minute quota}"]);
    world.ask(&["(q=1)", "(r=1)"]);
    let answer = world.ask(&["(q=1)", "(r=1)"]);
    let charged: Vec<bool> = answer.budgets.iter().map(|(_, charged, _)| *charged).collect();
    assert_eq!(charged, [false, false, true]);
}

#[test]
fn the_longest_wait_is_held_and_a_refusal_holds_nothing() {
    let mut world = World::new(&[
        "a{60/minute token burst:1 wait:2000}",
        "b{30/minute token burst:1 wait:5000}",
        "c{1/minute}",
    ]);
    let ask = |world: &mut World, asked: &[&str]| (world.ask(asked).refused, world.now.since(T0));
    assert_eq!(ask(&mut world, &["(a=1)", "(b=1)"]), (false, Micros::ZERO));
    let answer = world.ask(&["(a=1)", "(b=1)"]);
    assert_eq!((answer.refused, answer.wait), (false, Micros::from_secs(2)));
    // What is refused is not held and not charged.
    world.ask(&["(c=1)"]);
    let answer = world.ask(&["(a=1)", "(c=1)"]);
    assert_eq!((answer.refused, answer.wait), (true, Micros::ZERO));
    assert_eq!(world.ask(&["(a=1)"]).wait, Micros::from_secs(2));
}

#[test]
fn a_wait_beyond_what_the_caller_can_hold_is_refused_at_once() {
    let mut world = World::new(&["a{60/minute token burst:1 wait:2000}"]);
    world.ask(&["(a=1)"]);
    world.wait_cap = Micros::from_millis(15);
    let answer = world.ask(&["(a=1)"]);
    assert!(answer.refused);
    assert_eq!(retry_after(&answer.decision, 0), Some(Micros::from_millis(985)));
    world.later(Micros::from_millis(985));
    assert_eq!(world.ask(&["(a=1)"]).wait, Micros::from_millis(15));
}

#[test]
fn an_overdraft_is_charged_whatever_is_decided() {
    let mut world = World::new(&["t{10/minute overdraft;100/minute name:other}", "n{1/minute}"]);
    // Refused by its own limit, by another, and not at all.
    assert!(world.ask(&["(t=1) addend 12"]).refused);
    assert_eq!(remaining(&mut world, "(t=1)"), 0);
    world.ask(&["(n=1)"]);
    let answer = world.ask(&["(t=2) addend 4", "(n=1)"]);
    assert!(answer.refused);
    assert_eq!(
        answer.budgets[..2],
        [("t/minute".to_owned(), true, 6), ("other".to_owned(), false, 100),]
    );
    // A look is refused in debt, and a refund pays it.
    assert!(world.ask(&["(t=1) addend 0"]).refused);
    assert!(!world.ask(&["(t=1) refund 2"]).refused);
    assert!(!world.ask(&["(t=1) addend 0"]).refused);
    // 10 used: two attempts were 12, two were refunded.
    assert_eq!(world.ask(&["(t=1) refund 3"]).budgets[0].2, 3);
}

#[test]
fn a_wait_and_a_clamp_show_in_the_verdict() {
    let mut world = World::new(&["a{60/minute token burst:2 wait:2000}"]);
    world.ask(&["(a=1) addend 2"]);
    let answer = world.ask(&["(a=1)"]);
    let verdict = answer.decision.verdicts[0];
    assert_eq!(verdict.outcome, Outcome::Wait(Micros::SECOND));
    assert!(verdict.charged && !verdict.clamped && verdict.capacity == 2);
    world.now = Timestamp(world.now.0 - 3_600_000_000);
    let answer = world.ask(&["(a=1)"]);
    assert!(answer.refused && answer.decision.verdicts[0].clamped);
    assert!(!world.ask(&["(a=1)"]).decision.verdicts[0].clamped);
}

#[test]
fn a_request_that_meets_nothing_passes() {
    let answer = World::new(&["a{1/minute}"]).ask(&["(x=1)"]);
    assert!(!answer.refused && answer.headline.is_none());
    assert_eq!(answer.wait, Micros::ZERO);
}
