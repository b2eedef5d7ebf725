//! How many replicas share the store, counted through it.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::Shared;
use crate::clock::Clock;
use crate::store::redis::BEAT;

/// The replicas that live; the last known count while the store is gone.
#[derive(Debug)]
pub struct Replicas {
    live: AtomicU32,
    counted: AtomicBool,
    fixed: bool,
    id: u64,
    /// The last count was lower than what is believed.
    fewer: AtomicBool,
}

impl Replicas {
    /// Counted; `expected` until a count is known.
    pub fn counted(expected: u32) -> Self {
        Self {
            live: AtomicU32::new(expected.max(1)),
            counted: AtomicBool::new(false),
            fixed: false,
            id: fastrand::u64(..),
            fewer: AtomicBool::new(false),
        }
    }

    /// Given, not counted.
    pub fn fixed(replicas: u32) -> Self {
        Self {
            fixed: true,
            ..Self::counted(replicas)
        }
    }

    /// Whether the store was reached at least once.
    pub fn counted_once(&self) -> bool {
        self.counted.load(Ordering::Relaxed)
    }

    /// How many live, this one included.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Takes a count. A lower one counts when the next one is low too: in a store that lost its data the
    /// first to come back is alone for a moment, and must not take the others' share.
    fn count(&self, live: u32) {
        self.counted.store(true, Ordering::Relaxed);
        let fewer = live < self.live();
        let certain = self.fewer.swap(fewer, Ordering::Relaxed) || !fewer;
        if !self.fixed && certain && self.live.swap(live, Ordering::Relaxed) != live {
            tracing::info!(replicas = live, "replicas that share the store");
        }
    }
}

/// Says every second that this replica lives.
pub(super) async fn beat<C: Clock>(shared: Weak<Shared<C>>) {
    let mut tick = tokio::time::interval(BEAT);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.remembered.sweep(shared.clock.elapsed());
        // A failure is seen by the calls that matter; the last count stands.
        if let Ok(live) = shared.redis.heartbeat(shared.replicas.id).await {
            shared.replicas.count(live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_count_at_once_and_fewer_when_seen_twice() {
        let replicas = Replicas::counted(2);
        let live = |counts: &[u32]| {
            counts.iter().for_each(|&live| replicas.count(live));
            replicas.live()
        };
        assert_eq!(live(&[]), 2);
        assert_eq!(live(&[1]), 2);
        assert_eq!(live(&[3]), 3);
        assert_eq!(live(&[1, 3, 1]), 3);
        assert_eq!(live(&[2]), 2);
        assert_eq!(live(&[1, 1]), 1);
    }

    #[test]
    fn a_given_number_stays() {
        let replicas = Replicas::fixed(4);
        replicas.count(9);
        replicas.count(1);
        replicas.count(1);
        assert_eq!(replicas.live(), 4);
        assert!(replicas.counted_once());
    }
}
