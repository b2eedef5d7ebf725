//! The only place that reads the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::engine::time::{Micros, Timestamp};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// What has passed since some instant in the past. Unlike [`Self::now`] it does not step when the clock
    /// is set: what is measured with it are spans.
    fn elapsed(&self) -> Micros;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    fn now(&self) -> Timestamp {
        // A clock before 1970 is a broken clock: it stands still at zero rather than panic.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(Micros::from(since).0)
    }

    fn elapsed(&self) -> Micros {
        static BEGAN: OnceLock<Stopwatch> = OnceLock::new();
        BEGAN.get_or_init(Stopwatch::start).elapsed().into()
    }
}

/// Measures how long something took, on the monotonic clock: the wall clock may step meanwhile.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(PartialEq, PartialOrd))]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// A stopwatch that runs.
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// A stopwatch that has run so long.
    #[cfg(test)]
    pub fn started(ago: Duration) -> Self {
        Self(Self::start().0 - ago)
    }

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that moves when told to; clones share one now.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Micros) {
        self.0.fetch_add(by.0, Ordering::SeqCst);
    }

    /// Moves it anywhere, backward too.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    fn elapsed(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn elapsed(&self) -> Micros {
        (**self).elapsed()
    }
}
