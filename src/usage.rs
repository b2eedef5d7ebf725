//! How limits are used, by whom: what a count of refusals cannot say.
//!
//! For each limit: who is refused and how concentrated that is (few callers: the limit isolates; many small
//! ones: it is too low), and who was never refused but is near the ceiling. What is kept is bounded whatever
//! the traffic: callers are found by a sketch (HeavyKeeper), not counted one by one, and a request that
//! passes well below its ceiling costs a comparison.
//!
//! "Lately" is the window that runs and the one before it: ten to twenty minutes. Time comes in by
//! [`Usage::tick`] only, so that recording reads no clock.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::engine::time::{Micros, Timestamp};

mod limit;
mod name;
mod near;
mod refusals;

pub use limit::LimitUsage;
pub use near::{MOST_NEAR, NEAR};
pub use refusals::{LABELS, LABELS_OF_A_LIMIT};

/// How long a window of [`Usage`] is.
pub const WINDOW: Micros = Micros::from_secs(600);

/// The use of all limits.
#[derive(Debug)]
pub struct Usage {
    common: Arc<Common>,
    limits: Mutex<BTreeMap<Name, Arc<LimitUsage>>>,
}

/// Domain and limit.
type Name = (Arc<str>, Arc<str>);

/// What the limits share.
#[derive(Debug)]
struct Common {
    /// As told by the last tick, in microseconds.
    now: AtomicU64,
    /// When the window that runs began.
    began: AtomicU64,
    /// How many callers have a series of their own, over all limits.
    labels: Arc<AtomicUsize>,
    /// Of the hash by which callers are told apart: nobody outside can search for two that share one.
    key: [u64; 2],
}

/// One limit's use.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitSnapshot {
    /// The domain.
    pub domain: Arc<str>,
    /// The limit's label.
    pub limit: Arc<str>,
    /// Refusals since the start; of a limit in shadow mode, what it would have refused.
    pub refused: u64,
    /// Refusals lately.
    pub lately: u64,
    /// Who was refused most lately, most first; counts are never more than there were.
    pub denied: Vec<Denied>,
    /// How concentrated the refusals are.
    pub concentration: Concentration,
    /// Who was not refused lately but came near the ceiling, nearest first.
    pub near: Vec<Near>,
}

/// A caller that is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Denied {
    /// The entries of its budget, escaped and bounded: `tenant=acme`.
    pub caller: Arc<str>,
    /// How often it was refused lately.
    pub refused: u64,
    /// Which share of all refusals lately that is.
    pub share: f64,
    /// The value of the limit's `attribute_to` that stood beside most of them, escaped and bounded.
    pub attributed: Option<Arc<str>>,
    /// When it was refused last.
    pub last: Timestamp,
}

/// Which share of the refusals lately the most refused callers make.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Concentration {
    /// The first.
    pub top1: f64,
    /// The first five.
    pub top5: f64,
    /// The first twenty.
    pub top20: f64,
}

/// A caller near the ceiling.
#[derive(Clone, Debug, PartialEq)]
pub struct Near {
    /// The entries of its budget, escaped and bounded.
    pub caller: Arc<str>,
    /// The most of its budget that was used at once lately, 0.8 to 1.
    pub ratio: f64,
    /// When.
    pub at: Timestamp,
}

/// How often a caller with a series of its own was refused since it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// The entries of its budget, escaped and bounded.
    pub caller: Arc<str>,
    /// How often.
    pub refused: u64,
}

/// What metrics show of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// The domain.
    pub domain: Arc<str>,
    /// The limit's label.
    pub limit: Arc<str>,
    /// Callers with a series of their own.
    pub labelled: Vec<Labelled>,
    /// Refusals of all others.
    pub other: u64,
    /// How many callers are near the ceiling, [`MOST_NEAR`] at most.
    pub near: usize,
}

impl Default for Usage {
    fn default() -> Self {
        let random = RandomState::new();
        Self {
            common: Arc::new(Common {
                now: AtomicU64::new(0),
                began: AtomicU64::new(0),
                labels: Arc::default(),
                key: [random.hash_one(1), random.hash_one(2)],
            }),
            limits: Mutex::default(),
        }
    }
}

impl Usage {
    /// The place where a limit's use is recorded; made when there is none yet.
    pub fn limit(&self, domain: &Arc<str>, limit: &Arc<str>) -> Arc<LimitUsage> {
        let name = (Arc::clone(domain), Arc::clone(limit));
        let make = || Arc::new(LimitUsage::new(Arc::clone(&self.common)));
        Arc::clone(self.limits.lock().entry(name).or_insert_with(make))
    }

    /// Forgets the limits that are no longer in force.
    pub fn retain(&self, in_force: impl Fn(&str, &str) -> bool) {
        self.limits
            .lock()
            .retain(|(domain, limit), _| in_force(domain, limit));
    }

    /// Says what time it is, a few times a minute at least; turns the windows.
    pub fn tick(&self, now: Timestamp) {
        self.common.now.store(now.0, Ordering::Relaxed);
        let began = self.common.began.load(Ordering::Relaxed);
        // A clock set back starts a window, too: otherwise this one might last for years.
        let over = now.0 < began || now.0 - began >= WINDOW.0;
        if over {
            self.common.began.store(now.0, Ordering::Relaxed);
            for usage in self.limits.lock().values() {
                usage.turn(Timestamp(began));
            }
        }
    }

    /// How all limits are used, by domain and limit; those that nobody came near to are left out.
    pub fn snapshot(&self) -> Vec<LimitSnapshot> {
        let limits = self.limits.lock();
        let used = limits.iter();
        used.filter_map(|((domain, limit), usage)| usage.snapshot(domain, limit))
            .collect()
    }

    /// What metrics show of all limits.
    pub fn series(&self) -> Vec<Series> {
        let limits = self.limits.lock();
        let all = limits.iter();
        all.map(|((domain, limit), usage)| usage.series(domain, limit))
            .collect()
    }
}

impl Common {
    fn now(&self) -> Timestamp {
        Timestamp(self.now.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;
