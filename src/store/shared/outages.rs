//! Outages of the store, shard by shard: an event with a beginning and an end, each one line in the log.

use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Shared;
use super::selftest::SelfTests;
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
    /// Kept, for when the shard serves nobody any more.
    address: String,
    began: Stopwatch,
    /// When it was last known to go on.
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

    /// The shards that are out.
    pub fn list(&self) -> Vec<ShardOutage> {
        let open = self.open.lock();
        let mut list: Vec<ShardOutage> = open
            .values()
            .map(|outage| ShardOutage {
                address: outage.address.clone(),
                lasts: outage.began.elapsed(),
            })
            .collect();
        list.sort_by(|a, b| a.address.cmp(&b.address));
        list
    }

    /// A call failed; `shards` tells where the shard is.
    pub(super) fn failed(&self, error: &CallError, shards: impl FnOnce() -> Vec<ShardState>) {
        self.errors[error.kind as usize].fetch_add(1, Ordering::Relaxed);
        self.goes_on(error, shards);
    }

    fn goes_on(&self, error: &CallError, shards: impl FnOnce() -> Vec<ShardState>) {
        let mut open = self.open.lock();
        let outage = open.entry(error.shard).or_insert_with(|| {
            let outage = Outage::begin(address(&shards(), error.shard));
            tracing::warn!(shard = outage.address, %error, "store gives no answer, deciding by failure mode");
            outage
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

    /// Begins outages of shards that are known to be down.
    fn look(&self, shards: &[ShardState]) {
        let mut open = self.open.lock();
        for shard in shards.iter().filter(|shard| !shard.up) {
            if let Some(outage) = open.get_mut(&shard.id) {
                outage.last = Stopwatch::start();
            } else if shard.since >= LOOK {
                let error = shard.error.as_deref();
                tracing::warn!(
                    shard = shard.address,
                    error,
                    "store is down, deciding by failure mode"
                );
                open.insert(shard.id, Outage::begin(shard.address.clone()));
            }
        }
    }

    /// Whether a shard that was out has failed nobody for a while.
    fn quiet(&self, shard: ShardId) -> bool {
        let open = self.open.lock();
        open.get(&shard)
            .is_some_and(|outage| outage.last.elapsed() >= QUIET)
    }

    /// A shard that answers again.
    fn end(&self, shard: ShardId) {
        if let Some(outage) = self.open.lock().remove(&shard) {
            outage.end("store answers again");
        }
    }

    /// Ends the outages of shards that serve nobody any more: others took their place.
    fn end_departed(&self, shards: &[ShardState]) {
        let gone = |id: &ShardId, outage: &mut Outage| {
            shards.iter().all(|shard| shard.id != *id) && outage.last.elapsed() >= QUIET
        };
        for (id, outage) in self.open.lock().extract_if(gone) {
            outage.end(if id == ShardId::UNKNOWN {
                "store answers again"
            } else {
                "store answers again, from elsewhere"
            });
        }
    }
}

impl Outage {
    fn begin(address: String) -> Self {
        Self {
            address,
            began: Stopwatch::start(),
            last: Stopwatch::start(),
            decisions: [0; FailureMode::ALL.len()],
        }
    }

    fn end(self, how: &'static str) {
        let [local, allow, deny] = self.decisions;
        tracing::warn!(
            shard = self.address,
            lasted = ?self.began.elapsed().saturating_sub(self.last.elapsed()),
            decided_local = local,
            decided_allow = allow,
            decided_deny = deny,
            "{how}"
        );
    }
}

fn address(shards: &[ShardState], id: ShardId) -> String {
    let found = shards.iter().find(|shard| shard.id == id);
    found.map_or_else(|| "unknown".into(), |shard| shard.address.clone())
}

/// Looks at the shards again and again, and tries those that are new or back.
pub(super) async fn watch<C: Clock>(shared: Weak<Shared<C>>) {
    let mut tests = SelfTests::default();
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let (redis, outages) = (&shared.redis, &shared.outages);
        let shards = redis.client().shards();
        outages.look(&shards);
        for shard in shards.iter().filter(|shard| shard.up) {
            let over = outages.quiet(shard.id);
            if !over && !tests.due(shard) {
                continue;
            }
            match tests.run(redis, &shared.clock, shard).await {
                Ok(()) if over => outages.end(shard.id),
                Ok(()) => {}
                // A test that was slow once, while calls are not, is no outage; it is repeated.
                Err(error) if error.kind == Kind::Timeout && !over => {}
                Err(error) => outages.goes_on(&error, || shards.clone()),
            }
        }
        outages.end_departed(&shards);
    }
}
