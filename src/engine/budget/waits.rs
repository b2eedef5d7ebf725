//! How long until a budget allows what it does not allow now.

use super::{State, Terms};
use crate::engine::limit::{Algorithm, MAX_UNITS};
use crate::engine::time::{Micros, Timestamp, Window};

impl Terms<'_> {
    /// How long until `cost` would be allowed at once; zero: now. `None` when waiting does not help.
    /// For a cost of 0 it is how long the budget stays in debt.
    pub(super) fn wait_for(&self, state: State, cost: u64, now: Timestamp) -> Option<Micros> {
        match self.algorithm {
            Algorithm::FixedWindow(windows) => {
                let over = state.used.saturating_add(cost).saturating_sub(self.units);
                if over == 0 {
                    return Some(Micros::ZERO);
                }
                let turns = if !self.overdraft {
                    1
                } else if self.units == 0 {
                    return None;
                } else {
                    over.div_ceil(self.units)
                };
                Some(windows.start(state.at.saturating_add(turns)).since(now))
            }
            Algorithm::SlidingWindow(windows) => {
                self.sliding_wait(state, cost, now, windows.window(state.at))
            }
            Algorithm::TokenBucket => {
                let over = (self.parts(&state) + self.product(cost)).saturating_sub(self.product(self.burst));
                let over = if cost == 0 {
                    over.saturating_sub(self.wait_parts())
                } else {
                    over
                };
                self.bucket_wait(state, over, now)
            }
            Algorithm::LeakyBucket if cost == 0 => {
                // A full queue is no debt: one that waits `max_wait`, and its own unit.
                let full = self.wait_parts() + self.product(1);
                self.bucket_wait(state, self.parts(&state).saturating_sub(full), now)
            }
            Algorithm::LeakyBucket => self.bucket_wait(state, self.parts(&state), now),
        }
    }

    fn sliding_wait(&self, state: State, cost: u64, now: Timestamp, window: Window) -> Option<Micros> {
        let period = u128::from(self.period.0);
        let left = window.end.since(now).min(self.period);
        // In this window `previous` may weigh at most what `used + cost` leaves of the limit.
        if let Some(room) = self.units.checked_sub(state.used.saturating_add(cost)) {
            let room = self.product(room);
            if u128::from(state.part) * u128::from(left.0) <= room {
                return Some(Micros::ZERO);
            }
            // At most this much of the previous window may be in view.
            let view = u64::try_from(room / u128::from(state.part)).unwrap_or(self.period.0);
            return Some(Micros(window.end.since(now).0 - view.min(left.0)));
        }
        // In the next window this one is the previous. With cost 0 the window after it is clean at the latest.
        let room = self.product(self.units.saturating_sub(cost));
        let view = if state.used == 0 {
            period
        } else {
            (room / u128::from(state.used)).min(period)
        };
        let view = u64::try_from(view).unwrap_or(self.period.0);
        Some(window.end.since(now).saturating_add(Micros(self.period.0 - view)))
    }

    /// How long until `over` parts have drained.
    fn bucket_wait(&self, state: State, over: u128, now: Timestamp) -> Option<Micros> {
        if over == 0 {
            return Some(Micros::ZERO);
        }
        // A stored time in the future drains nothing until the clock is there.
        let ahead = Timestamp(state.at).since(now);
        Some(self.drain_time(over)?.saturating_add(ahead))
    }

    /// What a leaky bucket must drain before the next request starts, with the time that a stored time
    /// in the future stands still, in parts.
    pub(super) fn queued(&self, state: State, now: Timestamp) -> u128 {
        match self.parts(&state) {
            0 => 0,
            parts => parts + u128::from(Timestamp(state.at).since(now).0) * u128::from(self.units),
        }
    }

    pub(super) fn until_remaining(&self, state: State, remaining: u64, now: Timestamp) -> Micros {
        let wait = match self.algorithm {
            Algorithm::LeakyBucket => {
                // The `remaining`-th request of cost 1 waits for those before it.
                let queued = self.queued(state, now) + self.product(remaining - 1);
                self.drain_time(queued.saturating_sub(self.wait_parts()))
            }
            _ => self.wait_for(state, remaining, now),
        };
        wait.unwrap_or(Micros::ZERO)
    }

    /// How many requests of cost 1 a leaky bucket takes on top of `parts`.
    pub(super) fn accepted(&self, parts: u128) -> u64 {
        match self.wait_parts().checked_sub(parts) {
            Some(room) if self.units > 0 => {
                u64::try_from(room / u128::from(self.period.0))
                    .unwrap_or(MAX_UNITS)
                    .min(MAX_UNITS - 1)
                    + 1
            }
            _ => 0,
        }
    }
}
