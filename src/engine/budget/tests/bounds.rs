//! Never more than the bound, and in the long run no less than the limit.

use super::*;
use std::collections::BTreeMap;

/// What passed: when, when it may start, and what it cost.
#[derive(Clone, Copy, Debug)]
struct Passed {
    arrived: Timestamp,
    starts: Timestamp,
    cost: u64,
}

fn run(setup: &Setup, steps: &[Step]) -> Vec<Passed> {
    let mut now = T0;
    let mut budget = Budget::new(setup.clone());
    let mut passed = Vec::new();
    for &step in steps {
        let (gap, cost) = sized(setup, step);
        now = now.plus(gap);
        let wait = match budget.ask(cost, now) {
            Outcome::Allow => Micros::ZERO,
            Outcome::Wait(wait) => wait,
            _ => continue,
        };
        passed.push(Passed {
            arrived: now,
            starts: now.plus(wait),
            cost,
        });
    }
    passed
}

/// What passed but the looks, which take no turn.
fn spenders(setup: &Setup, steps: &[Step]) -> Vec<Passed> {
    let mut passed = run(setup, steps);
    passed.retain(|p| p.cost > 0);
    passed
}

/// Units in each window.
fn by_window(windows: &Windows, passed: &[Passed]) -> BTreeMap<u64, u128> {
    let mut sums = BTreeMap::new();
    for p in passed {
        *sums.entry(windows.at(p.arrived).index).or_default() += u128::from(p.cost);
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_window_never_passes_more_than_its_limit(setup in any_strict_setup(), steps in any_steps(80)) {
        if let Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) = &setup.algorithm {
            for (window, sum) in by_window(windows, &run(&setup, &steps)) {
                prop_assert!(sum <= u128::from(setup.units), "{sum} in window {window}");
            }
        }
    }

    #[test]
    fn a_sliding_window_passes_only_what_fits_beside_the_weighted_previous_one(
        units in 1..=1_000_u64,
        period in 1_000..=10_000_000_u64,
        steps in any_steps(80),
    ) {
        let setup = Setup::sliding(units, Micros(period));
        let mut sums: BTreeMap<u64, u128> = BTreeMap::new();
        let mut budget = Budget::new(setup.clone());
        let mut now = T0;
        for step in steps {
            let (gap, cost) = sized(&setup, step);
            now = now.plus(gap);
            let (window, into) = (now.0 / period, now.0 % period);
            let sum = |w: u64| sums.get(&w).copied().unwrap_or(0);
            let weighted = sum(window - 1) * u128::from(period - into) + sum(window) * u128::from(period);
            let fits = weighted + u128::from(cost) * u128::from(period) <= u128::from(units) * u128::from(period);
            prop_assert_eq!(passes(budget.ask(cost, now)), fits, "cost {} at {:?}", cost, now);
            if fits {
                *sums.entry(window).or_default() += u128::from(cost);
            }
        }
    }

    #[test]
    fn a_token_bucket_passes_its_burst_and_rate_in_any_interval(
        units in 1..=1_000_000_u64,
        burst in 1..=1_000_u64,
        period in 1_000..=100_000_000_u64,
        patience in prop_oneof![Just(0), 0..=100_000_000_u64],
        steps in any_steps(60),
    ) {
        let setup = Setup::token(units, Micros(period), burst).waiting(Micros(patience));
        let passed = spenders(&setup, &steps);
        let bound = |from: Timestamp, to: Timestamp, held: u64| {
            u128::from(burst) * u128::from(period) + u128::from(to.since(from).0 + held) * u128::from(units)
        };
        for i in 0..passed.len() {
            let mut sum = 0;
            for p in &passed[i..] {
                sum += u128::from(p.cost) * u128::from(period);
                prop_assert!(sum <= bound(passed[i].arrived, p.arrived, patience));
                // What starts keeps to the rate whatever was held; a wait is rounded up by less than 1 us.
                prop_assert!(sum <= bound(passed[i].starts, p.starts, 1));
            }
        }
    }

    /// The same bucket as a virtual schedule (GCRA), which shares no arithmetic with it.
    #[test]
    fn a_bucket_decides_like_a_virtual_schedule(
        units in 1..=20_000_000_u64,
        burst in 1..=1_000_u64,
        period in 1_000..=60_000_000_u64,
        patience in prop_oneof![Just(0), 0..=60_000_000_u64],
        leaky in any::<bool>(),
        steps in any_steps(60),
    ) {
        let setup = if leaky {
            Setup::leaky(units, Micros(period), Micros(patience))
        } else {
            Setup::token(units, Micros(period), burst).waiting(Micros(patience))
        };
        let mut budget = Budget::new(setup.clone());
        let (units, period, patience) = (u128::from(units), u128::from(period), u128::from(patience));
        let mut now = T0;
        let mut schedule = 0_u128;
        for step in steps {
            let (gap, cost) = sized(&setup, step);
            now = now.plus(gap);
            // Costs of this size would make the schedule, not the engine, overflow.
            if cost == 0 || cost > MAX_LIMIT {
                continue;
            }
            let scaled = u128::from(now.0) * units;
            let from = schedule.max(scaled);
            let next = from + u128::from(cost) * period;
            let over = if leaky {
                from - scaled
            } else {
                (next - scaled).saturating_sub(u128::from(burst) * period)
            };
            let wait = over.div_ceil(units);
            let payable = leaky || cost <= burst;
            let expected = if !payable {
                Outcome::Deny { retry_after: None }
            } else if wait == 0 {
                Outcome::Allow
            } else if wait <= patience {
                Outcome::Wait(Micros(wait as u64))
            } else {
                Outcome::Deny { retry_after: Some(Micros((wait - patience) as u64)) }
            };
            prop_assert_eq!(budget.ask(cost, now), expected);
            if passes(expected) {
                schedule = next;
            }
        }
    }

    #[test]
    fn a_leaky_bucket_spaces_starts_by_the_cost_before(
        units in 1..=1_000_u64,
        period in 1_000..=10_000_000_u64,
        patience in 0..=10_000_000_u64,
        steps in any_steps(60),
    ) {
        let setup = Setup::leaky(units, Micros(period), Micros(patience));
        let passed = spenders(&setup, &steps);
        for pair in passed.windows(2) {
            let spacing = u128::from(pair[1].starts.since(pair[0].starts).0 + 1) * u128::from(units);
            prop_assert!(spacing >= u128::from(pair[0].cost.min(MAX_UNITS)) * u128::from(period));
            prop_assert!(pair[1].starts.since(pair[1].arrived).0 <= patience);
        }
    }

    #[test]
    fn remaining_is_the_most_that_passes_at_once(setup in any_setup(), steps in any_steps(30)) {
        let (budget, now) = lived(setup, &steps);
        let (remaining, capacity) = (budget.remaining(now), budget.setup.terms().capacity());
        prop_assert!(remaining <= capacity);
        if budget.setup.algorithm == Algorithm::LeakyBucket {
            let mut budget = budget.clone();
            let taken = (0..=remaining.min(300)).take_while(|_| passes(budget.ask(1, now))).count();
            prop_assert_eq!(taken as u64, remaining.min(301));
        } else {
            prop_assert!(remaining == 0 || budget.would(remaining, now) == Outcome::Allow);
            prop_assert_ne!(budget.would(remaining + 1, now), Outcome::Allow);
        }
    }

    /// Offered less than the limit all pass, offered more the limit passes, to the unit.
    #[test]
    fn a_token_bucket_keeps_its_rate_for_any_spacing(
        units in prop_oneof![1..=100_u64, 1..=10_000_000_u64],
        period in prop_oneof![Just(MINUTE), Just(Micros::SECOND), Just(Unit::Year.length())],
        spread in -6..=6_i32,
    ) {
        let setup = Setup::token(units, period, 2);
        let interval = period.0 as f64 / units as f64;
        let spacing = (interval * f64::from(spread).exp2() * 0.97) as u64;
        let (calls, mut passed, mut now) = (2_000_u64, 0, T0);
        let mut budget = Budget::new(setup);
        for _ in 0..calls {
            passed += u64::from(budget.ask(1, now) == Outcome::Allow);
            now = now.plus(Micros(spacing));
        }
        let earned = u128::from(spacing) * u128::from(calls - 1) * u128::from(units) / u128::from(period.0);
        let expected = u128::from(calls).min(2 + earned) as u64;
        prop_assert!(passed.abs_diff(expected) <= 1, "{passed} passed, {expected} expected");
    }
}

#[test]
fn ten_million_a_second_pass_exactly() {
    for (units, period) in [
        (10_000_000, Micros::SECOND),
        (7_000_000, MINUTE),
        (9_999_991, Micros::SECOND),
    ] {
        let mut budget = Budget::new(Setup::token(units, period, 100));
        let mut passed = 0;
        for micros in 0..10_000 {
            // Twenty calls a microsecond, twice what ten million a second is.
            for _ in 0..20 {
                passed += u64::from(budget.ask(1, after(micros)) == Outcome::Allow);
            }
        }
        let expected = 100 + 9_999 * units / period.0;
        assert_eq!(passed, expected, "{units} in {period:?}");
    }
}

#[test]
fn one_a_year_passes_exactly() {
    let mut budget = Budget::new(Setup::token(1, Unit::Year.length(), 1));
    let day = Micros::DAY.0;
    let passed = (0..365 * 40)
        .filter(|n| budget.ask(1, after(n * day)) == Outcome::Allow)
        .count();
    assert_eq!(passed, 40);
}

#[test]
fn windows_under_load_pass_their_limit_in_each() {
    for units in [1, 3, 1_000] {
        let mut fixed = Budget::new(Setup::fixed(units, Micros::SECOND));
        let mut sliding = Budget::new(Setup::sliding(units, Micros::SECOND));
        let (mut in_fixed, mut in_sliding) = (0, 0);
        let (windows, calls) = (20, 4 * units + 1);
        for call in 0..windows * calls {
            let now = after(call * 1_000_000 / calls);
            in_fixed += u64::from(fixed.ask(1, now) == Outcome::Allow);
            in_sliding += u64::from(sliding.ask(1, now) == Outcome::Allow);
        }
        assert_eq!(in_fixed, windows * units);
        // Compared exactly, the last unit fits only when nothing of a full window before is in view: one
        // less a window under steady load, and every other window where that is all there is.
        let steady = if units == 1 {
            windows / 2
        } else {
            units + (windows - 1) * (units - 1)
        };
        assert!(
            in_sliding >= steady && in_sliding <= windows * units,
            "{in_sliding} of {steady}"
        );
        assert!(in_sliding.abs_diff(steady) <= windows, "{in_sliding} of {steady}");
    }
}

#[test]
fn hits_at_a_steady_pace_do_not_refill_a_bucket_twice() {
    // Three a second, one call each 100 ms: the burst and then three a second, never more remaining than the burst.
    let mut budget = Budget::new(Setup::token(3, Micros::SECOND, 3));
    let mut passed = 0;
    for n in 0..100 {
        let now = after(n * 100_000);
        passed += u64::from(budget.ask(1, now) == Outcome::Allow);
        assert!(budget.remaining(now) <= 3);
    }
    assert_eq!(passed, 3 + 29);
}
