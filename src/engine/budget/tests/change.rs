//! Changed numbers, refunds and the depth of debt.

use super::*;

fn each_kind(units: u64) -> [Setup; 4] {
    [
        Setup::fixed(units, MINUTE),
        Setup::sliding(units, MINUTE),
        Setup::token(units, MINUTE, units),
        // Room for as many as the others: one at once, the rest waiting.
        Setup::leaky(units, MINUTE, Micros((units - 1) * MINUTE.0 / units)),
    ]
}

fn take_all(budget: &mut Budget, now: Timestamp) -> usize {
    (0..1_000).take_while(|_| passes(budget.ask(1, now))).count()
}

#[test]
fn a_raised_limit_frees_the_difference_at_once() {
    for (low, high) in each_kind(10).into_iter().zip(each_kind(20)) {
        let mut budget = Budget::new(low);
        assert_eq!(take_all(&mut budget, T0), 10);
        // Forty refused attempts count for nothing.
        for _ in 0..40 {
            assert!(!passes(budget.ask(1, T0)));
        }
        budget.setup = high;
        assert_eq!(budget.remaining(T0), 10, "{:?}", budget.setup);
        assert_eq!(take_all(&mut budget, T0), 10, "{:?}", budget.setup);
    }
}

#[test]
fn a_lowered_limit_keeps_what_was_spent_and_refuses_looks_until_it_is_paid() {
    for (high, low) in each_kind(20).into_iter().zip(each_kind(10)) {
        let mut budget = Budget::new(high);
        assert_eq!(take_all(&mut budget, T0), 20);
        budget.setup = low;
        let view = budget.view(T0);
        assert_eq!(view.remaining, 0);
        let wait = retry_after(budget.would(0, T0)).unwrap();
        assert!(wait > Micros::ZERO && wait <= Micros(2 * MINUTE.0), "{wait:?}");
        assert!(passes(budget.would(0, T0.plus(wait))));
        assert!(
            passes(budget.would(1, T0.plus(view.next_unit))),
            "{:?}",
            budget.setup
        );
    }
}

#[test]
fn a_raised_rate_holds_from_the_next_request() {
    let mut budget = Budget::new(Setup::token(1, MINUTE, 10));
    assert_eq!(take_all(&mut budget, T0), 10);
    assert_eq!(retry_after(budget.would(1, T0)), Some(MINUTE));
    budget.setup = Setup::token(100, MINUTE, 1_000);
    assert_eq!(budget.remaining(T0), 990);
    // Without a larger burst it waits a hundredth of what it would have.
    budget.setup = Setup::token(100, MINUTE, 10);
    assert_eq!(retry_after(budget.would(1, T0)), Some(Micros(MINUTE.0 / 100)));
}

#[test]
fn a_limit_of_zero_refuses_for_as_long_as_it_is_zero() {
    for (some, none) in each_kind(10).into_iter().zip(each_kind(10)) {
        let mut budget = Budget::new(some.clone());
        budget.ask(4, T0);
        budget.setup = Setup { units: 0, ..none };
        assert_eq!(budget.would(1, T0), NEVER);
        assert_eq!(budget.remaining(T0), 0);
        budget.setup = some;
        assert!(passes(budget.would(1, T0)));
    }
}

#[test]
fn a_refund_makes_room_and_never_more_than_all() {
    for setup in each_kind(10) {
        let mut budget = Budget::new(setup);
        assert_eq!(take_all(&mut budget, T0), 10);
        budget.refund(3, T0);
        assert_eq!(budget.remaining(T0), 3, "{:?}", budget.setup);
        budget.refund(u64::MAX, T0);
        assert_eq!(budget.remaining(T0), 10, "{:?}", budget.setup);
        assert_eq!((budget.state.used, budget.state.part), (0, 0));
    }
}

#[test]
fn a_refund_gives_nothing_after_the_window_turned() {
    for setup in [Setup::fixed(10, MINUTE), Setup::sliding(10, MINUTE)] {
        let mut budget = Budget::new(setup);
        budget.ask(8, T0);
        let next = T0.plus(MINUTE);
        let before = budget.view(next);
        budget.refund(8, next);
        assert_eq!(budget.view(next), before);
    }
}

#[test]
fn one_absurd_number_is_a_debt_of_a_day_at_most() {
    for setup in [
        Setup::fixed(10, MINUTE),
        Setup::fixed(10, Micros::from_secs(420)),
        Setup::calendar(10, Unit::Day, "America/New_York"),
        Setup::calendar(10, Unit::Month, "UTC"),
        Setup::token(10, MINUTE, 5),
        Setup::token(1, Unit::Month.length(), 3),
        Setup::token(MAX_LIMIT, Micros::from_millis(1), MAX_LIMIT),
    ] {
        let mut budget = Budget::new(setup.in_debt());
        for cost in [1, MAX_UNITS, u64::MAX, 7] {
            budget.ask(cost, T0);
        }
        assert!(budget.state.used > budget.setup.burst || budget.setup.units == MAX_LIMIT);
        let longest = budget
            .setup
            .period
            .max(Micros::DAY)
            .saturating_add(Micros(budget.setup.period.0.min(2 * Micros::DAY.0)));
        if let Outcome::Deny { retry_after } = budget.would(0, T0) {
            assert!(
                retry_after.unwrap() <= longest,
                "{retry_after:?} {:?}",
                budget.setup
            );
        }
    }
}

#[test]
fn a_debt_deeper_than_the_limit_now_allows_is_not_forgiven_by_a_charge() {
    let mut budget = Budget::new(Setup::token(1_000, MINUTE, 10).in_debt());
    budget.ask(1_000_000, T0);
    let used = budget.state.used;
    budget.setup = Setup::token(10, MINUTE, 10).in_debt();
    budget.ask(5, T0);
    assert_eq!(budget.state.used, used);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_refund_at_once_undoes_a_charge(setup in any_strict_setup(), steps in any_steps(30), last in any_steps(2)) {
        let (budget, now) = lived(setup, &steps);
        let (_, cost) = sized(&budget.setup, last[0]);
        let mut trial = budget.clone();
        if passes(trial.ask(cost, now)) && trial.state.used < MAX_UNITS {
            trial.refund(cost, now);
            let terms = budget.setup.terms();
            prop_assert_eq!(trial.state, terms.advance(budget.state, now).0);
        }
    }

    #[test]
    fn refunds_never_go_beyond_the_full_budget(setup in any_setup(), steps in any_steps(30), units in any::<u64>()) {
        let (mut budget, now) = lived(setup, &steps);
        let before = budget.remaining(now);
        budget.refund(units, now);
        let after = budget.remaining(now);
        prop_assert!(before <= after && after <= budget.setup.terms().capacity());
    }

    #[test]
    fn any_change_of_numbers_keeps_what_was_used(
        old in any_strict_setup(),
        new in any_strict_setup(),
        steps in any_steps(30),
    ) {
        let (mut budget, now) = lived(old, &steps);
        let Setup { units, burst, max_wait, .. } = new;
        let changed = Setup { units, burst, max_wait, ..budget.setup.clone() };
        let used = budget.setup.terms().advance(budget.state, now).0;
        budget.setup = changed;
        prop_assert_eq!(budget.setup.terms().advance(used, now).0, used);
        prop_assert!(budget.remaining(now) <= budget.setup.terms().capacity());
    }
}
