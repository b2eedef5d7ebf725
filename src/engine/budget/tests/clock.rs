//! Clocks that disagree, jump and run backward.

use super::*;

const SECOND: u64 = 1_000_000;

fn kept(budget: &mut Budget, now: Timestamp) -> bool {
    let (state, clamped) = budget.setup.terms().advance(budget.state, now);
    budget.state = state;
    clamped
}

fn each_kind(units: u64, period: Micros) -> [Setup; 4] {
    [
        Setup::fixed(units, period),
        Setup::sliding(units, period),
        Setup::token(units, period, units),
        Setup::leaky(units, period, period),
    ]
}

#[test]
fn a_second_is_refilled_once_whichever_node_counts_it() {
    // Two nodes, one a second behind, take turns.
    let mut budget = Budget::new(Setup::token(10, Micros::SECOND, 10));
    assert_eq!(budget.passed(20, after(290 * SECOND)), 10);
    for _ in 0..5 {
        assert_eq!(budget.passed(20, after(289 * SECOND)), 0);
        assert_eq!(budget.passed(20, after(290 * SECOND)), 0);
    }
    assert_eq!(budget.passed(20, after(291 * SECOND)), 10);
}

#[test]
fn the_retry_after_of_a_node_behind_counts_its_own_clock() {
    let mut budget = Budget::new(Setup::token(10, Micros::SECOND, 10));
    budget.passed(10, after(290 * SECOND));
    let behind = after(289 * SECOND);
    assert_eq!(retry_after(budget.would(1, behind)), Some(Micros(1_100_000)));
    assert_eq!(budget.view(behind).next_unit, Micros(1_100_000));
    assert_eq!(budget.view(behind).reset, Micros(2_000_000));
}

#[test]
fn a_window_stays_in_force_for_a_node_just_behind_its_edge() {
    let edge = T0.0 / MINUTE.0 * MINUTE.0;
    for setup in [Setup::fixed(10, MINUTE), Setup::sliding(10, MINUTE)] {
        let mut budget = Budget::new(setup);
        assert_eq!(budget.passed(20, Timestamp(edge)), 10);
        let behind = Timestamp(edge - SECOND);
        assert_eq!(budget.passed(20, behind), 0);
        assert!(retry_after(budget.would(1, behind)).unwrap() > MINUTE);
        assert_eq!(budget.remaining(Timestamp(edge + 1)), 0);
    }
}

#[test]
fn a_clock_set_back_by_an_hour_locks_nobody_out_for_longer_than_a_period() {
    for setup in each_kind(10, MINUTE) {
        let mut budget = Budget::new(setup);
        while passes(budget.ask(1, T0)) {}
        let back = Timestamp(T0.0 - 3_600 * SECOND);
        assert!(kept(&mut budget, back), "{:?}", budget.setup);
        assert!(!kept(&mut budget, back), "one step is one clamp");
        assert!(!passes(budget.ask(1, back)), "{:?}", budget.setup);
        // The period itself, and one unit of a smooth limit.
        let healed = back.plus(MINUTE).plus(Micros(MINUTE.0 / 10));
        assert!(passes(budget.ask(1, healed)), "{:?}", budget.setup);
        let view = budget.view(healed);
        assert!(view.reset.0 <= 2 * MINUTE.0, "{view:?}");
    }
}

#[test]
fn an_hour_forward_and_back_is_harmless() {
    for setup in each_kind(10, MINUTE) {
        let mut budget = Budget::new(setup);
        budget.ask(1, T0);
        while passes(budget.ask(1, after(3_600 * SECOND))) {}
        assert!(kept(&mut budget, after(SECOND)));
        assert!(!passes(budget.ask(1, after(SECOND))));
        assert!(passes(budget.ask(1, after(SECOND + MINUTE.0 + MINUTE.0 / 10))));
    }
}

#[test]
fn a_step_is_clamped_only_beyond_what_is_legal() {
    for setup in [Setup::token(10, MINUTE, 10), Setup::leaky(10, MINUTE, MINUTE)] {
        for (period, skew) in [
            (Micros::from_millis(10), Micros::from_millis(10)),
            (MINUTE, MINUTE),
            (Micros::DAY, MINUTE),
        ] {
            let mut budget = Budget::new(Setup {
                period,
                ..setup.clone()
            });
            budget.ask(1, T0);
            assert!(!kept(&mut budget.clone(), Timestamp(T0.0 - skew.0)));
            assert!(kept(&mut budget, Timestamp(T0.0 - skew.0 - 1)));
            assert_eq!(budget.state.at, T0.0 - 1);
        }
    }
    // A window may be ahead by one only, and only as long before its edge.
    let hour = 3_600 * SECOND;
    let edge = T0.0 / hour * hour;
    let mut budget = Budget::new(Setup::fixed(10, Micros(hour)));
    budget.ask(1, Timestamp(edge));
    assert!(!kept(&mut budget.clone(), Timestamp(edge - MINUTE.0)));
    assert!(kept(&mut budget.clone(), Timestamp(edge - MINUTE.0 - 1)));
    assert!(kept(&mut budget, Timestamp(edge - hour - 1)));
}

#[test]
fn what_was_never_spent_cannot_be_from_the_future() {
    for setup in each_kind(10, MINUTE) {
        let mut budget = Budget::new(setup);
        budget.ask(1, T0);
        budget.refund(1, T0);
        assert!(
            !kept(&mut budget, Timestamp(T0.0 - 3_600 * SECOND)),
            "{:?}",
            budget.setup
        );
    }
}

#[test]
fn a_leaky_bucket_ahead_of_the_clock_says_what_it_would_accept_now() {
    let mut budget = Budget::new(Setup::leaky(10, Micros::SECOND, Micros::from_millis(500)));
    budget.ask(1, after(SECOND));
    for behind in [0, 100_000, 700_000, 950_000] {
        let now = after(SECOND - behind);
        let mut trial = budget.clone();
        let accepted = (0..10).filter(|_| passes(trial.ask(1, now))).count() as u64;
        let view = budget.view(now);
        assert_eq!(view.remaining, accepted, "{behind} us behind");
        assert_eq!(view.reset, Micros(behind + 100_000));
        let next = now.plus(view.next_unit);
        assert!(budget.remaining(next) > view.remaining);
        assert!(budget.remaining(Timestamp(next.0 - 1)) <= view.remaining);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn clocks_that_disagree_within_the_skew_pass_no_more(
        setup in any_strict_setup(),
        steps in any_steps(60),
        jitter in prop::collection::vec(any::<u64>(), 60),
    ) {
        let setup = setup.waiting(Micros::ZERO);
        let skew = setup.period.min(MINUTE).0;
        let mut budget = Budget::new(setup.clone());
        let (mut now, mut first, mut last, mut sum) = (T0, T0, T0, 0_u128);
        let mut windows = std::collections::BTreeSet::new();
        for (step, jitter) in steps.into_iter().zip(jitter) {
            let (gap, cost) = sized(&setup, step);
            now = now.plus(gap);
            let seen = Timestamp(now.0 - jitter % skew);
            (first, last) = (first.min(seen), last.max(seen));
            let before = budget.state;
            if passes(budget.ask(cost, seen)) {
                sum += u128::from(cost);
            }
            // Of a budget that is whole nothing needs to be remembered, not even the time.
            let whole = before.used == 0 && before.part == 0;
            prop_assert!(whole || budget.state.at >= before.at, "stored time runs backward");
            if let Algorithm::FixedWindow(w) | Algorithm::SlidingWindow(w) = &setup.algorithm {
                windows.insert(w.at(seen).index);
            }
        }
        let units = u128::from(setup.units);
        match setup.algorithm {
            Algorithm::TokenBucket => {
                let earned = u128::from(last.since(first).0) * units;
                prop_assert!(sum * u128::from(setup.period.0)
                    <= u128::from(setup.burst) * u128::from(setup.period.0) + earned);
            }
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => {
                prop_assert!(sum <= units * windows.len() as u128);
            }
            Algorithm::LeakyBucket => {}
        }
    }

    #[test]
    fn any_clock_at_all_never_panics_and_heals(
        setup in any_strict_setup(),
        times in prop::collection::vec(0..=MAX_UNITS, 1..20),
    ) {
        let mut budget = Budget::new(setup);
        for &time in &times {
            kept(&mut budget, Timestamp(time));
            budget.ask(1, Timestamp(time));
            budget.view(Timestamp(time));
        }
        let end = Timestamp(times[times.len() - 1]);
        kept(&mut budget, end);
        let longest = Micros(budget.view(end).reset.0);
        let full = budget.setup.terms().drain_time(budget.setup.terms().product(budget.state.used + 1));
        let calendar = matches!(
            &budget.setup.algorithm,
            Algorithm::FixedWindow(Windows::Calendar { .. })
        );
        let nominal = budget.setup.period.0 * 2 + MINUTE.0 + 31 * Micros::DAY.0 * u64::from(calendar);
        prop_assert!(longest.0 <= nominal + full.map_or(0, |d| d.0));
    }
}
