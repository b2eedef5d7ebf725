//! Tells from the answers on a connection whether calls may pass.
//!
//! Three timeouts without an answer between them shut it, for ever: the connection is replaced. One that took
//! the place of such a connection is suspect, and lets calls through one by one until an answer frees it.
//! Calls only read it, unless something is wrong. A late timeout of an old connection's call cannot shut the
//! new one, since each has its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Whether calls pass on one connection.
pub(super) struct Breaker {
    /// Timeouts since the last answer.
    streak: AtomicU32,
    /// [`FREE`], [`SHUT`], or when (ms) the next call may try.
    gate: AtomicU64,
}

const FREE: u64 = 0;
const SHUT: u64 = u64::MAX;
const TIMEOUTS: u32 = 3;
const TRIAL_EVERY_MS: u64 = 100;

impl Default for Breaker {
    fn default() -> Self {
        Self {
            streak: AtomicU32::new(0),
            gate: AtomicU64::new(FREE),
        }
    }
}

impl Breaker {
    /// Lets one call through at once, and one every 100 ms until one succeeds.
    pub(super) fn suspect(&self, now_ms: u64) {
        self.gate.store(now_ms.max(1), Ordering::Relaxed);
    }

    /// Whether a call may pass now.
    pub(super) fn pass(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let gate = self.gate.load(Ordering::Relaxed);
        if gate == FREE || gate == SHUT {
            return gate == FREE;
        }
        let now = now_ms();
        let next = now + TRIAL_EVERY_MS;
        now >= gate
            && self
                .gate
                .compare_exchange(gate, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Whether all calls pass.
    pub(super) fn free(&self) -> bool {
        self.gate.load(Ordering::Relaxed) == FREE
    }

    /// An answer came. True if it ends the suspicion.
    pub(super) fn answered(&self) -> bool {
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
        let gate = self.gate.load(Ordering::Relaxed);
        gate != FREE
            && gate != SHUT
            && self
                .gate
                .compare_exchange(gate, FREE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// No answer came in time. True if it was one too many.
    pub(super) fn timed_out(&self) -> bool {
        self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS
            && self.gate.swap(SHUT, Ordering::Relaxed) != SHUT
    }

    /// Whether it is too late for this connection.
    pub(super) fn shut(&self) -> bool {
        self.gate.load(Ordering::Relaxed) == SHUT
    }

    /// Whether calls are let through one by one, and the last of them was let through before this moment.
    pub(super) fn idle_since(&self, moment_ms: u64) -> bool {
        let gate = self.gate.load(Ordering::Relaxed);
        gate != FREE && gate != SHUT && gate <= moment_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_timeouts_without_an_answer_shut_it_for_ever() {
        let breaker = Breaker::default();
        assert!(!breaker.timed_out());
        assert!(!breaker.timed_out());
        assert!(!breaker.answered());
        assert!(!breaker.timed_out());
        assert!(!breaker.timed_out());
        assert!(breaker.pass(|| unreachable!("nobody needs the time")));
        assert!(breaker.timed_out());
        // Said once; a late answer changes nothing.
        assert!(!breaker.timed_out());
        assert!(!breaker.answered());
        assert!(breaker.shut());
        assert!(!breaker.pass(|| u64::MAX));
    }

    #[test]
    fn a_suspect_lets_calls_through_one_by_one_until_it_answers() {
        let breaker = Breaker::default();
        breaker.suspect(1_000);
        assert!(breaker.pass(|| 1_000));
        assert!(!breaker.pass(|| 1_000));
        assert!(!breaker.pass(|| 1_099));
        assert!(!breaker.timed_out());
        assert!(breaker.pass(|| 1_100));
        assert!(!breaker.pass(|| 1_101));
        assert!(breaker.answered());
        assert!(breaker.free());
        assert!(breaker.pass(|| unreachable!("nobody needs the time")));
    }

    #[test]
    fn a_suspect_that_nobody_calls_is_known_as_idle() {
        let breaker = Breaker::default();
        assert!(!breaker.idle_since(u64::MAX));
        breaker.suspect(1_000);
        assert!(breaker.idle_since(1_000));
        assert!(breaker.pass(|| 1_010));
        assert!(!breaker.idle_since(1_100));
        assert!(breaker.idle_since(1_110));
    }
}
