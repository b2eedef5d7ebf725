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
}

impl Replicas {
    /// Counted; `expected` until a count is known.
    pub fn counted(expected: u32) -> Self {
        Self {
            live: AtomicU32::new(expected.max(1)),
            counted: AtomicBool::new(false),
            fixed: false,
            id: fastrand::u64(..),
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
}

/// Says every second that this replica lives.
pub(super) async fn beat<C: Clock>(shared: Weak<Shared<C>>) {
    let mut tick = tokio::time::interval(BEAT);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let replicas = &shared.replicas;
        // A failure is seen by the calls that matter; the last count stands.
        let Ok(live) = shared.redis.heartbeat(replicas.id).await else {
            continue;
        };
        replicas.counted.store(true, Ordering::Relaxed);
        if !replicas.fixed && replicas.live.swap(live, Ordering::Relaxed) != live {
            tracing::info!(replicas = live, "replicas that share the store");
        }
    }
}
