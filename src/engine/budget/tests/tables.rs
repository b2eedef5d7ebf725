//! Small cases of each algorithm, by hand.

use super::*;

/// A request of that cost that long after the start gives that answer and leaves that much.
type Row = (u64, u64, Outcome, u64);

const ALLOW: Outcome = Outcome::Allow;

const fn wait(secs: u64) -> Outcome {
    Outcome::Wait(Micros::from_secs(secs))
}

const fn deny(secs: u64) -> Outcome {
    Outcome::Deny {
        retry_after: Some(Micros::from_secs(secs)),
    }
}

/// Seconds count from the start of a minute.
fn check(setup: Setup, rows: &[Row]) {
    let start = T0.0 / MINUTE.0 * MINUTE.0;
    let mut budget = Budget::new(setup);
    for &(secs, cost, outcome, remaining) in rows {
        let now = Timestamp(start + secs * 1_000_000);
        let was = budget.ask(cost, now);
        assert_eq!(
            (was, budget.remaining(now)),
            (outcome, remaining),
            "at {secs} s, cost {cost}"
        );
    }
}

#[test]
fn a_fixed_window_counts_to_its_limit_and_starts_afresh() {
    check(
        Setup::fixed(5, MINUTE),
        &[
            (0, 3, ALLOW, 2),
            (10, 3, deny(50), 2),
            (10, 0, ALLOW, 2),
            (10, 6, NEVER, 2),
            (59, 2, ALLOW, 0),
            (59, 1, deny(1), 0),
            (59, 0, ALLOW, 0),
            (60, 5, ALLOW, 0),
            (60, 1, deny(60), 0),
        ],
    );
}

#[test]
fn a_fixed_window_of_nothing_refuses_all_but_looks() {
    check(
        Setup::fixed(0, MINUTE),
        &[(0, 1, NEVER, 0), (0, 0, ALLOW, 0), (60, 1, NEVER, 0)],
    );
}

#[test]
fn debt_of_a_fixed_window_is_carried_into_the_next_ones() {
    check(
        Setup::fixed(10, MINUTE).in_debt(),
        &[
            (0, 25, NEVER, 0),
            (1, 0, deny(119), 0),
            // 27 used: two windows pay 20, so there is room for 3 in the third.
            (1, 2, deny(119), 0),
            (60, 0, deny(60), 0),
            (120, 0, ALLOW, 3),
            (120, 3, ALLOW, 0),
            (180, 10, ALLOW, 0),
        ],
    );
}

#[test]
fn debt_of_a_fixed_window_shows_the_reset_when_it_is_gone() {
    let start = Timestamp(T0.0 / MINUTE.0 * MINUTE.0);
    let mut budget = Budget::new(Setup::fixed(10, MINUTE).in_debt());
    for (cost, windows) in [(10, 1), (1, 2), (9, 2), (1, 3)] {
        budget.ask(cost, start);
        assert_eq!(
            budget.view(start).reset,
            Micros(windows * MINUTE.0),
            "{:?}",
            budget.state
        );
    }
    budget.refund(1, start);
    assert_eq!(budget.view(start).reset, Micros(2 * MINUTE.0));
}

#[test]
fn calendar_windows_end_at_local_midnight() {
    let mut budget = Budget::new(Setup::calendar(2, Unit::Month, "America/Sao_Paulo"));
    let last = at("2026-12-01T02:59:59Z");
    assert_eq!(budget.passed(3, last), 2);
    assert_eq!(budget.view(last).reset, Micros::SECOND);
    assert_eq!(retry_after(budget.would(1, last)), Some(Micros::SECOND));
    let first = at("2026-12-01T03:00:00Z");
    assert_eq!(budget.passed(3, first), 2);
    assert_eq!(budget.view(first).reset, Micros(31 * Micros::DAY.0));
}

#[test]
fn a_day_without_an_hour_is_a_window_all_the_same() {
    let mut budget = Budget::new(Setup::calendar(1, Unit::Day, "America/New_York"));
    let midnight = at("2026-03-08T05:00:00Z");
    assert_eq!(budget.passed(2, midnight), 1);
    assert_eq!(
        retry_after(budget.would(1, midnight)),
        Some(Micros::from_secs(23 * 3_600))
    );
}

#[test]
fn a_sliding_window_weighs_the_previous_one_by_the_share_in_view() {
    check(
        Setup::sliding(10, MINUTE),
        &[
            (0, 10, ALLOW, 0),
            // The next window sees all of it at its edge and a tenth less every six seconds.
            (0, 1, deny(66), 0),
            (59, 1, deny(7), 0),
            (60, 1, deny(6), 0),
            (66, 1, ALLOW, 0),
            (90, 4, ALLOW, 0),
            (119, 4, ALLOW, 0),
            (119, 1, deny(1), 0),
            (120, 1, ALLOW, 0),
            (1_000, 11, NEVER, 10),
        ],
    );
}

#[test]
fn a_sliding_window_refuses_the_surplus_at_the_edge() {
    let mut budget = Budget::new(Setup::sliding(3, MINUTE));
    let edge = T0.0 / MINUTE.0 * MINUTE.0 + MINUTE.0;
    assert_eq!(budget.passed(3, Timestamp(edge - 1_000_000)), 3);
    assert_eq!(budget.passed(3, Timestamp(edge)), 0);
    assert_eq!(budget.passed(3, Timestamp(edge + 20_000_000)), 1);
}

#[test]
fn a_sliding_window_is_whole_when_what_was_spent_is_out_of_view() {
    let edge = T0.0 / MINUTE.0 * MINUTE.0;
    let mut budget = Budget::new(Setup::sliding(3, MINUTE));
    assert_eq!(budget.view(Timestamp(edge)).reset, Micros::ZERO);
    budget.ask(1, Timestamp(edge));
    assert_eq!(budget.view(Timestamp(edge)).reset, Micros(2 * MINUTE.0));
    assert_eq!(
        budget.view(Timestamp(edge + MINUTE.0 + 1)).reset,
        Micros(MINUTE.0 - 1)
    );
    assert_eq!(budget.view(Timestamp(edge + 2 * MINUTE.0)).reset, Micros::ZERO);
}

#[test]
fn a_token_bucket_holds_its_burst_and_refills_steadily() {
    check(
        Setup::token(6, MINUTE, 3),
        &[
            (0, 3, ALLOW, 0),
            (0, 1, deny(10), 0),
            (9, 1, deny(1), 0),
            (10, 1, ALLOW, 0),
            (30, 3, deny(10), 2),
            (30, 4, NEVER, 2),
            (30, 2, ALLOW, 0),
            (1_000, 0, ALLOW, 3),
        ],
    );
}

#[test]
fn a_token_bucket_holds_answers_as_long_as_max_wait() {
    check(
        Setup::token(6, MINUTE, 3).waiting(Micros::from_secs(20)),
        &[
            (0, 3, ALLOW, 0),
            (0, 1, wait(10), 0),
            (0, 2, deny(10), 0),
            (0, 1, wait(20), 0),
            (0, 1, deny(10), 0),
            // What is held was charged at arrival; only what is beyond that is debt.
            (0, 0, ALLOW, 0),
            (10, 1, wait(20), 0),
        ],
    );
}

#[test]
fn a_wait_is_no_longer_than_the_caller_can_hold() {
    let setup = Setup::token(6, MINUTE, 1).waiting(Micros::from_secs(20));
    let terms = setup.terms();
    let (_, spent) = terms.spend(terms.advance(State::default(), T0).0, 1, T0, FOREVER);
    let ask = |cap| terms.spend(spent, 1, T0, Micros::from_secs(cap)).0;
    assert_eq!(ask(10), wait(10));
    assert_eq!(ask(9), deny(1));
    assert_eq!(ask(0), deny(10));
}

#[test]
fn debt_of_a_token_bucket_recovers_at_its_rate() {
    check(
        Setup::token(6, MINUTE, 3).in_debt(),
        &[
            (0, 5, NEVER, 0),
            (0, 0, deny(20), 0),
            (0, 1, deny(30), 0),
            // The refused attempt was charged too.
            (0, 0, deny(30), 0),
            (30, 0, ALLOW, 0),
            (40, 0, ALLOW, 1),
            (40, 1, ALLOW, 0),
        ],
    );
}

#[test]
fn a_leaky_bucket_starts_each_when_the_one_before_has_taken_its_time() {
    check(
        Setup::leaky(6, MINUTE, Micros::from_secs(20)),
        &[
            (0, 0, ALLOW, 3),
            (0, 1, ALLOW, 2),
            (0, 1, wait(10), 1),
            (0, 1, wait(20), 0),
            (0, 1, deny(10), 0),
            (10, 1, wait(20), 0),
            // Any cost is payable; it delays those behind it.
            (60, 100, ALLOW, 0),
            (60, 1, deny(980), 0),
            (60, 0, deny(970), 0),
            (1_029, 0, deny(1), 0),
            (1_030, 0, ALLOW, 0),
            (1_040, 0, ALLOW, 1),
            (1_040, 1, wait(20), 0),
        ],
    );
}

#[test]
fn a_bucket_without_a_rate_refuses_all() {
    for setup in [
        Setup::token(0, MINUTE, 5),
        Setup::leaky(0, MINUTE, Micros::SECOND),
    ] {
        check(setup, &[(0, 1, NEVER, 0), (0, 0, ALLOW, 0), (999, 1, NEVER, 0)]);
    }
}

#[test]
fn a_cost_above_the_capacity_never_passes() {
    for (setup, payable) in [
        (Setup::fixed(300, MINUTE), 300),
        (Setup::sliding(300, MINUTE), 300),
        (Setup::token(600, MINUTE, 300), 300),
        (Setup::token(600, MINUTE, 300).waiting(FOREVER), 300),
    ] {
        let budget = Budget::new(setup);
        assert_eq!(budget.would(payable, T0), ALLOW);
        for cost in [payable + 1, MAX_UNITS, u64::MAX] {
            assert_eq!(budget.would(cost, T0), NEVER);
        }
    }
}

#[test]
fn a_refused_attempt_does_not_burn_what_was_left() {
    for setup in [
        Setup::fixed(10, MINUTE),
        Setup::sliding(10, MINUTE),
        Setup::token(10, MINUTE, 10),
    ] {
        let mut budget = Budget::new(setup);
        assert_eq!(budget.ask(8, T0), ALLOW);
        assert!(!passes(budget.ask(5, T0)));
        assert_eq!(budget.ask(1, T0), ALLOW);
        assert_eq!(budget.remaining(T0), 1);
    }
}
