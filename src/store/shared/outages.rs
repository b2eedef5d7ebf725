//! Outages of the store, shard by shard: an event with a beginning and an end, each one line in the log.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Shared;
use crate::clock::{Clock, Stopwatch};
use crate::engine::decision::Decision;
use crate::engine::limit::FailureMode;
use crate::store::redis::{CallError, Kind, ShardId, ShardState};

/// How long a shard must have answered everything before its outage is over.
const QUIET: Duration = Duration::from_secs(1);

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// What is known of outages.
#[derive(Debug)]
pub struct Outages {
    errors: [AtomicU64; Kind::ALL.len()],
    open: Mutex<HashMap<ShardId, Outage>>,
}

#[derive(Debug)]
struct Outage {
    began: Stopwatch,
    last: Stopwatch,
    decisions: [u64; FailureMode::ALL.len()],
}

/// An outage that goes on.
#[derive(Clone, Debug)]
pub struct ShardOutage {
    /// Where the shard is.
    pub address: String,
    /// For how long.
    pub lasts: Duration,
}

impl Default for Outages {
    fn default() -> Self {
        Self {
            errors: Kind::ALL.map(|_| AtomicU64::new(0)),
            open: Mutex::default(),
        }
    }
}

impl Outages {
    /// Whether a shard gives no answers.
    pub fn degraded(&self) -> bool {
        !self.open.lock().is_empty()
    }

    /// How many calls failed in that way.
    pub fn errors(&self, kind: Kind) -> u64 {
        self.errors[kind as usize].load(Ordering::Relaxed)
    }

    /// The shards that are out, among these.
    pub fn list(&self, shards: &[ShardState]) -> Vec<ShardOutage> {
        let open = self.open.lock();
        let mut list: Vec<ShardOutage> = open
            .iter()
            .map(|(id, outage)| ShardOutage {
                address: address(shards, *id),
                lasts: outage.began.elapsed(),
            })
            .collect();
        list.sort_by(|a, b| a.address.cmp(&b.address));
        list
    }

    /// A call failed; `shards` tells where the shard is.
    pub(super) fn failed(&self, error: &CallError, shards: impl FnOnce() -> Vec<ShardState>) {
        self.errors[error.kind as usize].fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.lock();
        let outage = open.entry(error.shard).or_insert_with(|| {
            tracing::warn!(shard = address(&shards(), error.shard), %error, "store gives no answer, deciding by failure mode");
            Outage::begin()
        });
        outage.last = Stopwatch::start();
    }

    /// A request was decided without the shards that these errors came from.
    pub(super) fn decided<'e>(&self, errors: impl Iterator<Item = &'e CallError>, decision: &Decision) {
        let mut open = self.open.lock();
        // One request without two shards counts for the first.
        if let Some(outage) = errors
            .filter_map(|error| open.get_mut(&error.shard).map(|_| error.shard))
            .next()
            && let Some(outage) = open.get_mut(&outage)
        {
            for mode in decision.verdicts.iter().filter_map(|verdict| verdict.degraded) {
                outage.decisions[mode as usize] += 1;
            }
        }
    }

    /// Begins outages of shards that are known to be down, and ends those of shards that are up, or serve
    /// nobody any more, and gave every answer for a while.
    fn look(&self, shards: &[ShardState]) {
        let mut open = self.open.lock();
        for shard in shards.iter().filter(|shard| !shard.up && shard.since >= LOOK) {
            open.entry(shard.id).or_insert_with(|| {
                tracing::warn!(
                    shard = shard.address,
                    error = shard.error.as_deref(),
                    "store is down"
                );
                Outage::begin()
            });
        }
        open.retain(|id, outage| {
            let down = shards.iter().any(|shard| shard.id == *id && !shard.up);
            if down || outage.last.elapsed() < QUIET {
                return true;
            }
            let [local, allow, deny] = outage.decisions;
            tracing::warn!(
                shard = address(shards, *id),
                lasted = ?outage.began.elapsed(),
                decided_local = local,
                decided_allow = allow,
                decided_deny = deny,
                "store answers again"
            );
            false
        });
    }
}

impl Outage {
    fn begin() -> Self {
        Self {
            began: Stopwatch::start(),
            last: Stopwatch::start(),
            decisions: [0; FailureMode::ALL.len()],
        }
    }
}

fn address(shards: &[ShardState], id: ShardId) -> String {
    let found = shards.iter().find(|shard| shard.id == id);
    found.map_or_else(|| "unknown".into(), |shard| shard.address.clone())
}

/// Looks at the shards again and again.
pub(super) async fn watch<C: Clock>(shared: Weak<Shared<C>>) {
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tick.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.outages.look(&shared.redis.client().shards());
    }
}
