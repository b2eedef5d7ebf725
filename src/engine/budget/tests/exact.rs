//! Exactness: time may pass in any number of steps, looks and refusals leave no trace, and no input
//! panics or wraps.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn two_steps_of_time_are_one(
        setup in any_setup(),
        steps in any_steps(30),
        (first, second) in (any_steps(2), any_steps(2)),
    ) {
        let (budget, now) = lived(setup, &steps);
        let terms = budget.setup.terms();
        let middle = now.plus(sized(&budget.setup, first[0]).0);
        let end = middle.plus(sized(&budget.setup, second[0]).0);
        let (halfway, _) = terms.advance(budget.state, middle);
        prop_assert_eq!(terms.advance(halfway, end), terms.advance(budget.state, end));
    }

    /// One store keeps what each look and refusal brought up to date, the other keeps only charges.
    #[test]
    fn looks_and_refusals_leave_no_trace(setup in any_setup(), steps in any_steps(60)) {
        let mut budget = Budget::new(setup);
        let mut busy = budget.clone();
        let mut now = T0;
        for step in steps {
            let (gap, cost) = sized(&budget.setup, step);
            now = now.plus(gap);
            busy.state = busy.setup.terms().advance(busy.state, now).0;
            let kept = busy.state;
            prop_assert_eq!(busy.would(0, now), budget.would(0, now));
            let outcome = budget.ask(cost, now);
            prop_assert_eq!(busy.ask(cost, now), outcome);
            if cost == 0 || !(passes(outcome) || busy.setup.overdraft) {
                prop_assert_eq!(busy.state, kept);
            }
        }
        let terms = budget.setup.terms();
        prop_assert_eq!(terms.advance(budget.state, now), terms.advance(busy.state, now));
    }

    #[test]
    fn states_stay_exact_in_a_double(setup in any_setup(), steps in any_steps(60)) {
        let mut budget = Budget::new(setup);
        let mut now = T0;
        for step in steps {
            let (gap, cost) = sized(&budget.setup, step);
            now = Timestamp(now.plus(gap).0.min(MAX_UNITS));
            budget.ask(cost, now);
            let State { used, part, at } = budget.state;
            prop_assert!(used <= MAX_UNITS && part <= MAX_UNITS && at <= MAX_UNITS, "{:?}", budget.state);
            if matches!(budget.setup.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
                prop_assert!(part < budget.setup.period.0);
            }
        }
    }

    #[test]
    fn no_input_panics(
        setup in any_setup(),
        used in extreme(),
        part in extreme(),
        at in extreme(),
        now in extreme(),
        cost in extreme(),
        cap in extreme(),
        percent in any::<u32>(),
    ) {
        let excess = Some(Excess { action: ExcessAction::Degrade, up_to_percent: percent });
        let (now, cap) = (Timestamp(now), Micros(cap));
        let main = Terms { excess, ..setup.terms() };
        let lane = main.lane().unwrap();
        for terms in [main, lane] {
            let raw = State { used, part, at };
            let (advanced, _) = terms.advance(raw, now);
            for state in [raw, advanced] {
                let (_, charged) = terms.spend(state, cost, now, cap);
                for state in [state, charged, terms.refund(state, cost)] {
                    prop_assert!(terms.view(state, now).remaining <= terms.capacity());
                    terms.forgotten_at(state, now);
                }
            }
        }
    }
}

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(MAX_LIMIT),
        Just(MAX_UNITS),
        Just(u64::MAX - 1),
        Just(u64::MAX),
        Just(T0.0),
        any::<u64>(),
    ]
}

#[test]
fn a_long_idle_bucket_is_full_not_overflown() {
    let mut budget = Budget::new(Setup::token(MAX_LIMIT, Micros::from_millis(1), MAX_LIMIT));
    assert_eq!(budget.ask(MAX_LIMIT, T0), Outcome::Allow);
    for now in [
        T0.plus(Micros::DAY),
        at("2048-09-10T00:00:00Z"),
        at("2106-02-08T00:00:00Z"),
        Timestamp(u64::MAX),
    ] {
        assert_eq!(budget.remaining(now), MAX_LIMIT);
        assert_eq!(budget.would(MAX_LIMIT, now), Outcome::Allow);
    }
}

#[test]
fn a_huge_addend_is_refused_and_changes_nothing() {
    for setup in [
        Setup::fixed(10, MINUTE),
        Setup::sliding(10, MINUTE),
        Setup::token(10, MINUTE, 10),
    ] {
        let mut budget = Budget::new(setup);
        budget.ask(4, T0);
        for cost in [u64::from(u32::MAX), MAX_UNITS, u64::MAX] {
            let before = budget.state;
            assert_eq!(budget.ask(cost, T0), NEVER);
            assert_eq!(budget.state, before);
            assert_eq!(budget.remaining(T0), 6);
        }
    }
}
