//! What a budget says about the future is true: refused one microsecond before, allowed at it.

use super::*;

fn rated(setup: &Setup) -> bool {
    setup.units > 0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn retry_after_is_true(setup in any_setup(), steps in any_steps(30), last in any_steps(2)) {
        let (budget, now) = lived(setup, &steps);
        let (_, cost) = sized(&budget.setup, last[0]);
        match budget.would(cost, now) {
            Outcome::Deny { retry_after: Some(wait) } => {
                prop_assert!(wait > Micros::ZERO);
                prop_assert!(passes(budget.would(cost, now.plus(wait))), "{:?} after {:?}", cost, wait);
                prop_assert!(!passes(budget.would(cost, Timestamp(now.0 + wait.0 - 1))));
            }
            Outcome::Deny { retry_after: None } => {
                let fresh = Budget::new(budget.setup.clone());
                prop_assert!(cost == 0 || fresh.would(cost, now) == NEVER);
            }
            _ => {}
        }
    }

    #[test]
    fn a_wait_ends_when_the_cost_fits_at_once(setup in any_setup(), steps in any_steps(30)) {
        let (budget, now) = lived(setup, &steps);
        if let Outcome::Wait(wait) = budget.would(1, now) {
            let impatient = Budget { setup: budget.setup.clone().waiting(Micros::ZERO), ..budget };
            prop_assert_eq!(impatient.would(1, now.plus(wait)), Outcome::Allow);
            prop_assert_ne!(impatient.would(1, Timestamp(now.0 + wait.0 - 1)), Outcome::Allow);
        }
    }

    #[test]
    fn next_unit_is_true(setup in any_setup().prop_filter("a rate", rated), steps in any_steps(30)) {
        let (budget, now) = lived(setup, &steps);
        let View { remaining, next_unit, .. } = budget.view(now);
        if remaining == budget.setup.terms().capacity() {
            prop_assert_eq!(next_unit, Micros::ZERO);
        } else {
            prop_assert!(budget.remaining(now.plus(next_unit)) > remaining, "after {:?}", next_unit);
            prop_assert!(budget.remaining(Timestamp(now.0 + next_unit.0 - 1)) <= remaining);
        }
    }

    #[test]
    fn reset_is_when_the_whole_budget_is_back(
        setup in any_setup().prop_filter("a rate", rated),
        steps in any_steps(30),
    ) {
        let (budget, now) = lived(setup, &steps);
        let reset = budget.view(now).reset;
        let capacity = budget.setup.terms().capacity();
        prop_assert_eq!(budget.remaining(now.plus(reset)), capacity);
        prop_assert_eq!(budget.would(0, now.plus(reset)), Outcome::Allow);
        if !matches!(budget.setup.algorithm, Algorithm::FixedWindow(_)) && reset > Micros::ZERO {
            let (state, _) = budget.setup.terms().advance(budget.state, Timestamp(now.0 + reset.0 - 1));
            prop_assert!(state.used > 0 || state.part > 0);
        }
    }

    #[test]
    fn a_state_may_be_forgotten_exactly_when_it_is_initial_again(
        setup in any_setup().prop_filter("a rate", rated),
        steps in any_steps(30),
    ) {
        let (budget, now) = lived(setup, &steps);
        let terms = budget.setup.terms();
        let (state, _) = terms.advance(budget.state, now);
        let forgotten = terms.forgotten_at(state, now);
        let initial = |at| terms.advance(state, at).0 == terms.advance(State::default(), at).0;
        prop_assert!(initial(forgotten), "{:?} at {:?}", state, forgotten);
        prop_assert!(forgotten == now || !initial(Timestamp(forgotten.0 - 1)));
    }
}
