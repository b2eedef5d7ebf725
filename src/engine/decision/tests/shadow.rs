//! A limit in shadow mode decides for itself and for nobody else.

use super::*;

#[test]
fn a_shadow_limit_is_charged_as_if_enforced_and_refuses_nothing() {
    let mut world = World::new(&["s{2/minute shadow}"]);
    let mut enforced = World::new(&["s{2/minute}"]);
    for addend in [1, 5, 0, 1, 1, 0] {
        let asked = format!("(s=1) addend {addend}");
        let (shadow, real) = (world.ask(&[&asked]), enforced.ask(&[&asked]));
        assert!(!shadow.refused);
        assert_eq!(shadow.budgets, real.budgets);
        assert_eq!(
            shadow.decision.verdicts[0].outcome,
            real.decision.verdicts[0].outcome
        );
    }
}

#[test]
fn a_shadow_limit_is_invisible() {
    let mut world = World::new(&["s{1/minute shadow}", "a{9/minute;1/minute name:watched shadow}"]);
    let answer = world.repeat(2, &["(s=1)", "(a=1)"]);
    assert_eq!(answer.statuses, [NO_LIMIT, ok(9, 7)]);
    assert_eq!(answer.headline.as_deref(), Some("a/minute"));
    assert_eq!(world.ask(&["(s=1)"]).headline, None);
}

#[test]
fn a_shadow_limit_is_not_charged_by_what_an_enforced_one_refuses() {
    let mut world = World::new(&["s{9/minute shadow}", "a{1/minute}"]);
    world.repeat(3, &["(s=1)", "(a=1)"]);
    assert_eq!(remaining(&mut world, "(s=1)"), 8);
}

#[test]
fn an_enforced_limit_is_charged_beside_a_shadow_refusal() {
    let mut world = World::new(&["s{1/minute shadow}", "a{9/minute}"]);
    world.repeat(3, &["(s=1)", "(a=1)"]);
    assert_eq!(remaining(&mut world, "(a=1)"), 6);
    assert_eq!(remaining(&mut world, "(s=1)"), 0);
}

#[test]
fn a_shadow_wait_is_not_held() {
    let mut world = World::new(&["s{60/minute token burst:1 wait:5000 shadow}"]);
    let answer = world.repeat(3, &["(s=1)"]);
    assert_eq!(
        answer.decision.verdicts[0].outcome,
        Outcome::Wait(Micros::from_secs(2))
    );
    assert_eq!(answer.wait, Micros::ZERO);
}

#[test]
fn a_shadow_quota_takes_no_part_in_the_quota() {
    let mut world = World::new(&[
        "q{1/minute quota}",
        "s{9/minute quota shadow}",
        "t{1/minute quota shadow}",
    ]);
    world.ask(&["(q=1)", "(t=1)"]);
    // The one enforced quota is over, whatever the shadow says.
    assert!(world.ask(&["(q=1)", "(s=1)"]).refused);
    assert!(!world.ask(&["(t=1)"]).refused);
    assert!(!world.ask(&["(q=2)", "(t=1)"]).refused);
    // Nor beside an enforced quota of the same descriptor.
    let mut world = World::new(&["q{9/minute quota;1/minute name:watched quota shadow}"]);
    assert_eq!(world.passed(9, &["(q=1)"]), 9);
    assert_eq!(remaining(&mut world, "(q=1)"), 0);
}

#[test]
fn a_shadow_overdraft_goes_into_debt_all_the_same() {
    let mut world = World::new(&["s{5/minute overdraft shadow}", "a{0/minute}"]);
    assert!(world.ask(&["(s=1) addend 9", "(a=1)"]).refused);
    let answer = world.ask(&["(s=1) addend 0"]);
    assert!(!answer.refused);
    assert!(retry_after(&answer.decision, 0).is_some());
}

#[test]
fn everything_in_shadow_refuses_nothing_and_shows_nothing() {
    let mut world = World::new(&["a{1/minute}", "q{1/minute quota}"]);
    world.shadow_all = true;
    let answer = world.repeat(3, &["(a=1)", "(q=1)"]);
    assert!(!answer.refused);
    assert_eq!(answer.statuses, [NO_LIMIT, NO_LIMIT]);
    assert_eq!(answer.headline, None);
    assert!(retry_after(&answer.decision, 0).is_some());
}
