//! The one state transition of each algorithm: old state, terms, cost and time in; new state and
//! outcome out. No clock, no I/O, and exact: every comparison is made on integers.
//!
//! A state keeps what was *used*, not what is left and not a schedule, so that a changed limit holds
//! from the next request with what was spent still spent. A bucket's use drains by `requests_per_unit`
//! each `period`; the fraction of a unit that is left over is kept in parts of one period-th of a
//! unit (`period` in microseconds), so nothing is ever rounded.

use super::limit::{Algorithm, Excess, Limit, MAX_LIMIT, MAX_UNITS, Numbers};
use super::time::{Micros, Timestamp};

mod waits;

/// A clock may be this far behind a stored time before the stored time is taken for a mistake: small
/// differences between two primaries are met by waiting, large steps back heal within one period.
const MAX_SKEW: Micros = Micros::from_secs(60);

/// What was used of one budget. The default is the initial state of every algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whole units used: in the bucket, or in the current window.
    pub used: u64,
    /// A bucket's fraction of a unit used, in parts of 1/period; a sliding window's previous count.
    pub part: u64,
    /// A bucket's time of the last change, in microseconds; a window's number.
    pub at: u64,
}

/// A limit's numbers in force for one budget at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'p> {
    /// How the budget is spent.
    pub algorithm: &'p Algorithm,
    /// Units per period.
    pub units: u64,
    /// The nominal period; never zero.
    pub period: Micros,
    /// Capacity of a token bucket.
    pub burst: u64,
    /// How long an answer may be held.
    pub max_wait: Micros,
    /// Charge even when refused.
    pub overdraft: bool,
    /// The lane for marked excess.
    pub excess: Option<Excess>,
}

/// How one budget answers a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fits.
    Allow,
    /// It fits after this wait.
    Wait(Micros),
    /// It fits the lane beside the budget only.
    Excess,
    /// It does not fit.
    Deny {
        /// When the same cost would fit; `None` when it never will.
        retry_after: Option<Micros>,
    },
}

/// What a budget looks like at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Units that could be spent at once.
    pub remaining: u64,
    /// Time until the whole budget is back; a fixed window: until it ends.
    pub reset: Micros,
    /// Time until one more unit than now could be spent; zero when the budget is full.
    pub next_unit: Micros,
}

impl<'p> Terms<'p> {
    /// The terms of a limit under those numbers.
    pub fn new(limit: &'p Limit, numbers: Numbers) -> Self {
        Self {
            algorithm: &limit.algorithm,
            units: numbers.requests_per_unit.min(MAX_LIMIT),
            period: Micros(limit.period.length.0.max(1)),
            burst: numbers.burst.min(MAX_LIMIT),
            max_wait: numbers.max_wait,
            overdraft: limit.overdraft,
            excess: limit.excess,
        }
    }

    /// The terms of the lane beside a budget: what `up_to` adds to its limit and burst, rounded down.
    pub fn lane(&self) -> Option<Self> {
        let percent = u128::from(self.excess?.up_to_percent.saturating_sub(100));
        let share = |n: u64| {
            u64::try_from(u128::from(n) * percent / 100)
                .unwrap_or(u64::MAX)
                .min(MAX_LIMIT)
        };
        Some(Self {
            units: share(self.units),
            burst: share(self.burst),
            max_wait: Micros::ZERO,
            excess: None,
            ..*self
        })
    }

    /// The most units that can ever be spent at once: the burst, the limit, or what `max_wait` holds.
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => self.units,
            Algorithm::TokenBucket if self.units == 0 => 0,
            Algorithm::TokenBucket => self.burst,
            Algorithm::LeakyBucket => self.accepted(0),
        }
    }

    /// Whether a budget under these terms could ever pay `cost` out of its main part.
    fn payable(&self, cost: u64) -> bool {
        match self.algorithm {
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => cost <= self.units,
            Algorithm::TokenBucket => self.units > 0 && cost <= self.burst,
            Algorithm::LeakyBucket => self.units > 0,
        }
    }

    /// What the state is at `now`: windows turned, buckets drained. The flag says that a stored time
    /// lay too far in the future and was brought back.
    pub fn advance(&self, state: State, now: Timestamp) -> (State, bool) {
        match self.algorithm {
            Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => {
                let window = windows.at(now);
                if state.used == 0 && state.part == 0 {
                    return (
                        State {
                            at: window.index,
                            ..state
                        },
                        false,
                    );
                }
                if state.at > window.index {
                    // The clock went back. Just across an edge, the later window stays in force.
                    let legal = state.at == window.index + 1 && window.end.since(now) <= self.skew();
                    return if legal {
                        (state, false)
                    } else {
                        (
                            State {
                                at: window.index,
                                ..state
                            },
                            true,
                        )
                    };
                }
                let turned = window.index - state.at;
                let state = match (self.algorithm, turned) {
                    (_, 0) => state,
                    (Algorithm::SlidingWindow(_), 1) => State {
                        used: 0,
                        part: state.used,
                        at: window.index,
                    },
                    (Algorithm::FixedWindow(_), n) if self.overdraft => {
                        let earned = u128::from(self.units) * u128::from(n);
                        let used = u128::from(state.used).saturating_sub(earned);
                        State {
                            used: u64::try_from(used).unwrap_or(MAX_UNITS),
                            part: 0,
                            at: window.index,
                        }
                    }
                    _ => State {
                        used: 0,
                        part: 0,
                        at: window.index,
                    },
                };
                (state, false)
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                if state.used == 0 && state.part == 0 {
                    return (State { at: now.0, ..state }, false);
                }
                if state.at > now.0 {
                    let latest = now.plus(self.skew()).0;
                    let clamped = state.at > latest;
                    return (
                        State {
                            at: state.at.min(latest),
                            ..state
                        },
                        clamped,
                    );
                }
                let drained = u128::from(now.0 - state.at) * u128::from(self.units);
                let parts = self.parts(&state).saturating_sub(drained);
                (self.bucket(parts, now.0), false)
            }
        }
    }

    /// Tries to spend `cost` from an advanced state, holding the answer no longer than `wait_cap`.
    /// Returns the state as it would be once charged; the caller keeps the old one if it is not.
    pub fn spend(&self, state: State, cost: u64, now: Timestamp, wait_cap: Micros) -> (Outcome, State) {
        let charged = self.charged(state, cost);
        if cost == 0 {
            return match self.wait_for(state, 0, now) {
                Some(Micros::ZERO) => (Outcome::Allow, state),
                retry_after => (Outcome::Deny { retry_after }, state),
            };
        }
        if !self.payable(cost) {
            return (Outcome::Deny { retry_after: None }, charged);
        }
        let patience = self.max_wait.min(wait_cap);
        let outcome = match self.wait_for(state, cost, now) {
            Some(Micros::ZERO) => Outcome::Allow,
            Some(wait) if wait <= patience => Outcome::Wait(wait),
            Some(wait) => Outcome::Deny {
                retry_after: Some(wait.saturating_sub(patience)),
            },
            None => Outcome::Deny { retry_after: None },
        };
        (outcome, charged)
    }

    /// Gives units back to an advanced state, never beyond the full budget.
    pub fn refund(&self, state: State, units: u64) -> State {
        match self.algorithm {
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => State {
                used: state.used.saturating_sub(units),
                ..state
            },
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let parts = self.parts(&state);
                self.bucket(
                    parts.saturating_sub(u128::from(units) * u128::from(self.period.0)),
                    state.at,
                )
            }
        }
    }

    /// How much of a `cost` charged at `decided` is still spent in a state advanced to `now`, so that
    /// giving it back admits no more than if it had never been charged: none once its window turned; of a
    /// bucket at most what has not drained, where the whole bucket was to be empty after `reset`.
    pub fn still_spent(
        &self,
        state: State,
        cost: u64,
        reset: Micros,
        decided: Timestamp,
        now: Timestamp,
    ) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => {
                if windows.at(decided).index == state.at {
                    cost
                } else {
                    0
                }
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let left = u128::from(reset.saturating_sub(now.since(decided)).0) * u128::from(self.units);
                u64::try_from(left / u128::from(self.period.0)).map_or(cost, |left| left.min(cost))
            }
        }
    }

    /// What an advanced state shows at `now`.
    pub fn view(&self, state: State, now: Timestamp) -> View {
        let capacity = self.capacity();
        let remaining = match self.algorithm {
            Algorithm::FixedWindow(_) => self.units.saturating_sub(state.used),
            Algorithm::SlidingWindow(windows) => {
                let left = windows.window(state.at).end.since(now).min(self.period);
                let free = self
                    .product(self.units)
                    .saturating_sub(self.product(state.used))
                    .saturating_sub(u128::from(state.part) * u128::from(left.0));
                u64::try_from(free / u128::from(self.period.0)).unwrap_or(0)
            }
            Algorithm::TokenBucket => {
                let free = self.product(self.burst).saturating_sub(self.parts(&state));
                u64::try_from(free / u128::from(self.period.0)).unwrap_or(0)
            }
            Algorithm::LeakyBucket => self.accepted(self.queued(state, now)),
        };
        let remaining = remaining.min(capacity);
        let next_unit = if remaining >= capacity {
            Micros::ZERO
        } else {
            self.until_remaining(state, remaining + 1, now)
        };
        View {
            remaining,
            reset: self.whole_at(state).map_or(Micros::ZERO, |at| at.since(now)),
            next_unit,
        }
    }

    /// When a state will equal the initial one, if nothing more is spent: it may be forgotten then.
    pub fn forgotten_at(&self, state: State, now: Timestamp) -> Timestamp {
        if state.used == 0 && state.part == 0 {
            return now;
        }
        // Without a rate nothing drains; such a budget can only be used by a limit lowered to zero.
        self.whole_at(state)
            .unwrap_or_else(|| now.plus(self.period))
            .max(now)
    }

    /// When the whole budget is back; of a fixed window, when it ends. `None` without a rate.
    fn whole_at(&self, state: State) -> Option<Timestamp> {
        match self.algorithm {
            Algorithm::FixedWindow(windows) => {
                // Debt is carried: the whole budget is back when as many windows ended as it fills.
                let owed = if self.overdraft && self.units > 0 {
                    state.used.div_ceil(self.units)
                } else {
                    1
                };
                Some(windows.start(state.at.saturating_add(owed.max(1))))
            }
            Algorithm::SlidingWindow(windows) => {
                let window = windows.window(state.at);
                Some(match (state.used, state.part) {
                    (0, 0) => window.start,
                    (0, _) => window.end,
                    _ => window.end.plus(self.period),
                })
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let drained = self.drain_time(self.parts(&state))?;
                Some(Timestamp(state.at).plus(drained))
            }
        }
    }

    /// How long an empty bucket takes to drain `cost`.
    pub fn drained_after(&self, cost: u64) -> Micros {
        self.drain_time(self.product(cost)).unwrap_or(Micros(u64::MAX))
    }

    fn charged(&self, state: State, cost: u64) -> State {
        let ceiling = if self.overdraft { self.deepest() } else { MAX_UNITS };
        let used = state.used.saturating_add(cost).min(MAX_UNITS);
        // A debt that is deeper already (the limit was lowered) is not forgiven by this charge.
        State {
            used: used.min(ceiling.max(state.used)),
            ..state
        }
    }

    /// Where a debt stops: the full budget and what the limit earns in a day, or in its period if longer.
    pub fn deepest(&self) -> u64 {
        let span = u128::from(self.period.max(Micros::DAY).0);
        let earned = u128::from(self.units) * span / u128::from(self.period.0);
        u64::try_from(earned + u128::from(self.capacity()))
            .unwrap_or(MAX_UNITS)
            .min(MAX_UNITS)
    }

    fn skew(&self) -> Micros {
        self.period.min(MAX_SKEW)
    }

    /// Whole units as parts.
    fn product(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.period.0)
    }

    fn parts(&self, state: &State) -> u128 {
        self.product(state.used) + u128::from(state.part)
    }

    /// What drains in `max_wait`, in parts.
    fn wait_parts(&self) -> u128 {
        u128::from(self.max_wait.0) * u128::from(self.units)
    }

    fn bucket(&self, parts: u128, at: u64) -> State {
        let period = u128::from(self.period.0);
        // Up to a few hundred thousand units a 64-bit division will do, at a quarter of the cost.
        let (used, part) = match u64::try_from(parts) {
            Ok(parts) => (parts / self.period.0, parts % self.period.0),
            Err(_) => (
                u64::try_from(parts / period).unwrap_or(MAX_UNITS),
                u64::try_from(parts % period).unwrap_or(0),
            ),
        };
        State { used, part, at }
    }

    /// How long `parts` take to drain, rounded up; `None` without a rate.
    fn drain_time(&self, parts: u128) -> Option<Micros> {
        if parts == 0 {
            return Some(Micros::ZERO);
        }
        if self.units == 0 {
            return None;
        }
        Some(Micros(
            u64::try_from(parts.div_ceil(u128::from(self.units))).unwrap_or(u64::MAX),
        ))
    }
}

#[cfg(test)]
mod tests;
