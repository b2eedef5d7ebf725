//! Verifies the transitions against what they promise, and against models written another way.

use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;
use crate::engine::limit::{ExcessAction, Unit, windows_of};
use crate::engine::time::Windows;

mod bounds;
mod change;
mod clock;
mod exact;
mod tables;
mod waits;

/// 2023-11-14 22:13:20 UTC, a Tuesday.
const T0: Timestamp = Timestamp(1_700_000_000_000_000);
const FOREVER: Micros = Micros(u64::MAX);
const NEVER: Outcome = Outcome::Deny { retry_after: None };
const MINUTE: Micros = Micros::from_secs(60);

/// The terms of a limit, owning their algorithm.
#[derive(Clone, Debug)]
struct Setup {
    algorithm: Algorithm,
    units: u64,
    period: Micros,
    burst: u64,
    max_wait: Micros,
    overdraft: bool,
}

impl Setup {
    fn new(algorithm: Algorithm, units: u64, period: Micros) -> Self {
        Self {
            algorithm,
            units,
            period,
            burst: units,
            max_wait: Micros::ZERO,
            overdraft: false,
        }
    }

    fn fixed(units: u64, period: Micros) -> Self {
        Self::new(Algorithm::FixedWindow(Windows::even(period)), units, period)
    }

    fn calendar(units: u64, unit: Unit, zone: &str) -> Self {
        let windows = windows_of(unit, TimeZone::get(zone).unwrap());
        Self::new(Algorithm::FixedWindow(windows), units, unit.length())
    }

    fn sliding(units: u64, period: Micros) -> Self {
        Self::new(Algorithm::SlidingWindow(Windows::even(period)), units, period)
    }

    fn token(units: u64, period: Micros, burst: u64) -> Self {
        Self {
            burst,
            ..Self::new(Algorithm::TokenBucket, units, period)
        }
    }

    fn leaky(units: u64, period: Micros, max_wait: Micros) -> Self {
        Self {
            max_wait,
            ..Self::new(Algorithm::LeakyBucket, units, period)
        }
    }

    fn waiting(self, max_wait: Micros) -> Self {
        Self { max_wait, ..self }
    }

    fn in_debt(self) -> Self {
        Self {
            overdraft: true,
            ..self
        }
    }

    fn terms(&self) -> Terms<'_> {
        Terms {
            algorithm: &self.algorithm,
            units: self.units,
            period: self.period,
            burst: self.burst,
            max_wait: self.max_wait,
            overdraft: self.overdraft,
            excess: None,
        }
    }
}

/// One budget as a store keeps it.
#[derive(Clone, Debug)]
struct Budget {
    setup: Setup,
    state: State,
}

impl Budget {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            state: State::default(),
        }
    }

    /// Spends; what was refused leaves no trace, unless the limit allows debt.
    fn ask(&mut self, cost: u64, now: Timestamp) -> Outcome {
        let terms = self.setup.terms();
        let (state, _) = terms.advance(self.state, now);
        let (outcome, charged) = terms.spend(state, cost, now, FOREVER);
        if passes(outcome) || self.setup.overdraft {
            self.state = charged;
        }
        outcome
    }

    /// What it would say, asked by someone else.
    fn would(&self, cost: u64, now: Timestamp) -> Outcome {
        self.clone().ask(cost, now)
    }

    fn refund(&mut self, units: u64, now: Timestamp) {
        let terms = self.setup.terms();
        self.state = terms.refund(terms.advance(self.state, now).0, units);
    }

    fn view(&self, now: Timestamp) -> View {
        let terms = self.setup.terms();
        terms.view(terms.advance(self.state, now).0, now)
    }

    fn remaining(&self, now: Timestamp) -> u64 {
        self.view(now).remaining
    }

    /// How many of `tries` requests of cost 1 pass at once.
    fn passed(&mut self, tries: usize, now: Timestamp) -> usize {
        (0..tries).filter(|_| self.ask(1, now) == Outcome::Allow).count()
    }
}

fn passes(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Allow | Outcome::Wait(_))
}

fn retry_after(outcome: Outcome) -> Option<Micros> {
    match outcome {
        Outcome::Deny { retry_after } => retry_after,
        other => panic!("not refused: {other:?}"),
    }
}

fn at(text: &str) -> Timestamp {
    let instant: jiff::Timestamp = text.parse().unwrap();
    Timestamp(u64::try_from(instant.as_microsecond()).unwrap())
}

fn after(micros: u64) -> Timestamp {
    T0.plus(Micros(micros))
}

/// Any limit the policy can hold, and some that only an override can make.
fn any_setup() -> impl Strategy<Value = Setup> {
    let periods = prop_oneof![
        Just(Micros::from_millis(1)),
        Just(Micros::SECOND),
        Just(MINUTE),
        Just(Micros::DAY),
        Just(Unit::Year.length()),
        (1_000..=Unit::Year.length().0).prop_map(Micros),
    ];
    let units = prop_oneof![
        4 => 1..=20_u64,
        4 => 1..=100_000_u64,
        1 => Just(MAX_LIMIT),
        1 => 0..=MAX_LIMIT,
    ];
    (0..8, units.clone(), units, periods, 0..3_u64, any::<bool>()).prop_map(
        |(kind, units, burst, period, patience, overdraft)| {
            let max_wait = Micros(period.0 / 2 * patience);
            // A bucket should be empty again before time ends.
            let burst = burst.min(1_000 * (units + 1));
            let setup = match kind {
                0 => Setup::fixed(units, period),
                1 => Setup::calendar(units, Unit::Month, "America/Sao_Paulo"),
                2 => Setup::calendar(units, Unit::Day, "America/New_York"),
                3 | 4 => Setup::sliding(units, period),
                5 | 6 => Setup::token(units, period, burst).waiting(max_wait),
                _ => Setup::leaky(units, period, max_wait),
            };
            match setup.algorithm {
                Algorithm::FixedWindow(_) | Algorithm::TokenBucket if overdraft => setup.in_debt(),
                _ => setup,
            }
        },
    )
}

/// Limits without debt.
fn any_strict_setup() -> impl Strategy<Value = Setup> {
    any_setup().prop_map(|setup| Setup {
        overdraft: false,
        ..setup
    })
}

/// A gap and a cost, to be sized to a limit.
type Step = ((u8, u64), (u8, u64));

fn any_steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(((0..8_u8, any::<u64>()), (0..8_u8, any::<u64>())), 1..most)
}

/// Gaps from none to some periods and costs from nothing to far too much, mostly near the limit's own size.
fn sized(setup: &Setup, ((gap, g), (cost, c)): Step) -> (Micros, u64) {
    let interval = setup.period.0 / setup.units.max(1) + 1;
    let gap = match gap {
        0 | 1 => 0,
        2 => 1,
        3 | 4 => g % (2 * interval),
        5 | 6 => g % setup.period.0,
        _ => g % (3 * setup.period.0),
    };
    let capacity = setup.terms().capacity();
    let cost = match cost {
        0..=3 => 1,
        4 => c % 4,
        5 => c % (capacity / 4 + 2),
        6 => c % (capacity + 2),
        // A leaky bucket takes any cost, and its queue should end before time does.
        _ if setup.algorithm == Algorithm::LeakyBucket => c % (1_000 * (setup.units + 1)),
        _ => c,
    };
    (Micros(gap), cost)
}

/// A budget after those steps, and the time then.
fn lived(setup: Setup, steps: &[Step]) -> (Budget, Timestamp) {
    let mut now = T0;
    let mut budget = Budget::new(setup);
    for &step in steps {
        let (gap, cost) = sized(&budget.setup, step);
        now = now.plus(gap);
        budget.ask(cost, now);
    }
    (budget, now)
}
