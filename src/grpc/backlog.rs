//! Which calls are told at once that they are late, so that others are answered in time.
//!
//! With more calls than it can decide, a service that takes them in turn decides all of them when nobody waits any
//! more. A queue that a pause has left is another thing: it is gone soon, and its calls have time. What tells
//! them apart is the shortest wait: in a queue that stands, no call has its turn soon (Nichols and Jacobson,
//! "Controlling Queue Delay", 2012).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::time::Micros;

/// A call that waited no longer had its turn soon: an eighth of what Envoy waits unless told otherwise.
const SOON: Duration = Duration::from_micros(2_500);

/// A queue that is older was not left by a pause.
const STANDS: Micros = Micros::from_millis(5);

/// How the calls wait that have their turn now.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// When a call first had its turn late, since one that had it soon; 0 if none has.
    since: AtomicU64,
}

impl Backlog {
    /// What is left of a deadline to a call that waited so long for its turn. Nothing, if the queue stands and
    /// the call waited half of it: before its answer stands the same queue once more.
    pub(super) fn left(&self, clock: &impl Clock, deadline: Duration, waited: Duration) -> Duration {
        let since = Micros(self.since.load(Ordering::Relaxed));
        if waited <= SOON {
            if since != Micros::ZERO {
                self.since.store(0, Ordering::Relaxed);
            }
        } else if since == Micros::ZERO {
            self.since.store(clock.elapsed().0, Ordering::Relaxed);
        } else if waited > deadline / 2 && clock.elapsed().saturating_sub(since) > STANDS {
            return Duration::ZERO;
        }
        deadline.saturating_sub(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::support::policy::NOON;

    const DEADLINE: Duration = Duration::from_millis(20);

    /// What is left to calls that waited so many milliseconds, one each millisecond.
    fn left(backlog: &Backlog, clock: &ManualClock, waits: impl IntoIterator<Item = u64>) -> Vec<u128> {
        let left = |wait| {
            clock.advance(Micros::from_millis(1));
            backlog
                .left(clock, DEADLINE, Duration::from_millis(wait))
                .as_millis()
        };
        waits.into_iter().map(left).collect()
    }

    #[test]
    fn what_a_pause_has_left_is_decided_as_long_as_somebody_waits() {
        let (backlog, clock) = (Backlog::default(), ManualClock::at(NOON));
        for _ in 0..3 {
            assert_eq!(
                left(&backlog, &clock, [1, 19, 15, 11, 7, 3, 1]),
                [19, 1, 5, 9, 13, 17, 19]
            );
            assert_eq!(left(&backlog, &clock, [20, 30, 2]), [0, 0, 18]);
        }
    }

    #[test]
    fn of_a_queue_that_stands_who_waited_half_his_time_gets_none() {
        let (backlog, clock) = (Backlog::default(), ManualClock::at(NOON));
        assert_eq!(left(&backlog, &clock, [3; 6]), [17; 6]);
        assert_eq!(left(&backlog, &clock, [11, 10, 12, 3]), [0, 10, 0, 17]);
        // One that had its turn soon, and it does not stand.
        assert_eq!(left(&backlog, &clock, [11, 2, 11]), [0, 18, 9]);
        assert_eq!(left(&backlog, &clock, [12; 5]), [8; 5]);
        assert_eq!(left(&backlog, &clock, [12]), [0]);
    }
}
