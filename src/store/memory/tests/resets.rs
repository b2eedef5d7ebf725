//! Budgets that start afresh because somebody says so.

use super::*;
use crate::engine::reset::targets;

/// A tenant's budget and those of its routes, five an hour each.
fn desk() -> Desk {
    let hourly = |name| vec![fixed(name, 5, Unit::Hour)];
    let rules = [
        (&[("tenant", None)][..], hourly("tenant")),
        (&[("tenant", None), ("route", None)], hourly("route")),
    ];
    Desk::new(1_000, domain(rules))
}

fn reset(desk: &Desk, matches: &[(&str, &str)], limit: Option<&str>) {
    desk.store.reset(&targets(&desk.domain, matches, limit).unwrap());
}

/// What is left to a tenant, and on a route of it.
fn left(desk: &Desk, tenant: &str, route: &str) -> [u64; 2] {
    let look = costing(
        request(&[&[("tenant", tenant)], &[("tenant", tenant), ("route", route)]]),
        0,
    );
    let verdicts = desk.ask(&look).verdicts;
    [verdicts[0].view.remaining, verdicts[1].view.remaining]
}

fn spend(desk: &Desk, tenant: &str, route: &str, cost: u64) {
    let request = request(&[&[("tenant", tenant)], &[("tenant", tenant), ("route", route)]]);
    assert!(!desk.ask(&costing(request, cost)).refused);
}

#[test]
fn a_caller_starts_afresh_with_all_its_budgets_and_nobody_else_does() {
    let desk = desk();
    for (tenant, route) in [("acme", "a"), ("acme", "b"), ("beta", "a")] {
        spend(&desk, tenant, route, 2);
    }
    reset(&desk, &[("tenant", "acme")], None);
    assert_eq!(left(&desk, "acme", "a"), [5, 5]);
    assert_eq!(left(&desk, "acme", "b"), [5, 5]);
    assert_eq!(left(&desk, "beta", "a"), [3, 3]);
    // What is spent afterwards counts, beside what still waits for the mark.
    spend(&desk, "acme", "a", 1);
    assert_eq!(left(&desk, "acme", "a"), [4, 4]);
    assert_eq!(left(&desk, "acme", "b"), [4, 5]);
}

#[test]
fn one_limit_or_one_budget_of_a_caller_starts_afresh() {
    let desk = desk();
    for route in ["a", "b"] {
        spend(&desk, "acme", route, 2);
    }
    reset(&desk, &[("tenant", "acme")], Some("tenant"));
    assert_eq!(desk.store.marks(), 0, "the budget is one, and is found");
    assert_eq!(left(&desk, "acme", "a"), [5, 3]);
    reset(&desk, &[("tenant", "acme"), ("route", "b")], None);
    assert_eq!(desk.store.marks(), 0);
    assert_eq!(left(&desk, "acme", "a"), [5, 3]);
    assert_eq!(left(&desk, "acme", "b"), [5, 5]);
    reset(&desk, &[("tenant", "acme")], Some("route"));
    assert_eq!(desk.store.marks(), 1);
    assert_eq!(left(&desk, "acme", "a"), [5, 5]);
}

#[test]
fn a_mark_takes_the_place_of_its_like_and_goes_when_nothing_older_lives() {
    let desk = desk();
    spend(&desk, "acme", "a", 2);
    for _ in 0..3 {
        reset(&desk, &[("tenant", "acme")], None);
    }
    assert_eq!(desk.store.marks(), 1);
    desk.clock.advance(Micros::from_secs(3_599));
    desk.sweep();
    assert_eq!(desk.store.marks(), 1);
    desk.clock.advance(Micros::SECOND);
    desk.sweep();
    assert_eq!(desk.store.marks(), 0);
}

#[test]
fn marks_are_bounded() {
    let desk = desk();
    for i in 0..11_000 {
        reset(&desk, &[("tenant", &format!("caller-{i}"))], None);
        // Nothing is spent, so that none has anything to wait for but this moment.
        assert!(desk.store.marks() <= 10_000);
    }
}

#[test]
fn a_lane_starts_afresh_with_its_budget() {
    let lane = |name| Limit {
        excess: Some(Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 200,
        }),
        ..fixed(name, 5, Unit::Hour)
    };
    for path in [&[("tenant", None)][..], &[("tenant", None), ("route", None)]] {
        let desk = Desk::new(1_000, domain([(path, vec![lane("limit")])]));
        let entries = &[("tenant", "acme"), ("route", "a")][..path.len()];
        let spend = |cost| desk.ask(&costing(request(&[entries]), cost));
        for expected in [Outcome::Allow, Outcome::Excess] {
            assert_eq!(spend(5).verdicts[0].outcome, expected);
        }
        assert!(spend(1).refused);
        reset(&desk, &[("tenant", "acme")], None);
        for expected in [Outcome::Allow, Outcome::Excess] {
            assert_eq!(spend(5).verdicts[0].outcome, expected);
        }
        assert!(spend(1).refused);
    }
}
