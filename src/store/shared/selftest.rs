//! Tries each shard at the start, after each reconnect and before an outage is called over: whether the
//! script runs and counts, its keys end, slots are where we reckon, and the clocks agree.
//!
//! A limiter whose every call fails in the same way passes everything and looks healthy; this says so.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::clock::{Clock, Stopwatch};
use crate::engine::time::Micros;
use crate::store::redis::{CallError, PROBE_LIVES, Probe, Redis, ShardId, ShardState};

/// How far the store's clock may be from ours. Budgets follow the store's alone; windows of the calendar
/// and what people read from headers assume that the two agree.
const SKEW: Micros = Micros::SECOND;

/// What a key may outlive its budget: it is rounded up.
const ROUNDING_MS: i64 = 1_010;

/// Which shards were tried.
#[derive(Debug, Default)]
pub(super) struct SelfTests {
    passed: HashMap<ShardId, Stopwatch>,
    asked_for_eviction: HashSet<ShardId>,
}

impl SelfTests {
    /// Whether a shard is new, or was connected to again since it was tried.
    pub(super) fn due(&self, shard: &ShardState) -> bool {
        let before = self.passed.get(&shard.id).map(Stopwatch::elapsed);
        before.is_none_or(|before| shard.since < before)
    }

    /// Tries a shard, and says in one line what is wrong with it.
    ///
    /// # Errors
    /// When it gave no answer in time, or answered with an error.
    pub(super) async fn run(
        &mut self,
        redis: &Redis,
        clock: &impl Clock,
        shard: &ShardState,
    ) -> Result<(), CallError> {
        let began = Stopwatch::start();
        if let Some(probe) = redis.probe(shard.id, clock).await? {
            let faults = faults(&probe);
            if !faults.is_empty() {
                let faults = faults.join("; ");
                tracing::error!(shard = shard.address, faults, "the store fails its self-test");
            }
        }
        self.passed.insert(shard.id, began);
        if self.asked_for_eviction.insert(shard.id) {
            tokio::spawn(warn_of_eviction(redis.clone(), shard.clone()));
        }
        Ok(())
    }
}

async fn warn_of_eviction(redis: Redis, shard: ShardState) {
    if let Some(policy) = redis.eviction_policy(shard.id).await
        && policy != "noeviction"
    {
        tracing::warn!(
            shard = shard.address,
            maxmemory_policy = policy,
            "the store may evict budgets, which then start full: set maxmemory-policy noeviction"
        );
    }
}

fn faults(probe: &Probe) -> Vec<String> {
    let mut faults = Vec::new();
    let [first, second] = &probe.charges;
    if !first.charged {
        faults.push("a full budget refused".into());
    }
    if second.charged {
        faults.push("an empty budget admitted".into());
    }
    let longest = (PROBE_LIVES.0 / 1_000) as i64 + ROUNDING_MS;
    if !(0..=longest).contains(&probe.expires_ms) {
        faults.push(format!("a key expires in {} ms", probe.expires_ms));
    }
    if let Some((theirs, ours)) = probe.slots
        && theirs != ours
    {
        faults.push(format!("a key is in slot {theirs}, not {ours}"));
    }
    let [before, after] = probe.ours;
    let (behind, ahead) = (before.since(first.now), first.now.since(after));
    if behind > SKEW || ahead > SKEW {
        let (by, which) = if behind > ahead {
            (behind, "behind")
        } else {
            (ahead, "ahead of")
        };
        faults.push(format!("its clock is {:?} {which} ours", Duration::from(by)));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::time::Timestamp;
    use crate::store::Reply;

    const NOON: Timestamp = Timestamp(1_796_040_000_000_000);

    fn sound() -> Probe {
        let reply = |charged| Reply {
            charged,
            now: NOON,
            slots: Default::default(),
        };
        Probe {
            charges: [reply(true), reply(false)],
            ours: [NOON, NOON],
            expires_ms: 10_001,
            slots: Some((7, 7)),
        }
    }

    #[test]
    fn a_sound_store_has_no_fault() {
        assert_eq!(faults(&sound()), Vec::<String>::new());
        let mut probe = sound();
        probe.ours = [NOON, NOON.plus(Micros::from_secs(9))];
        probe.charges[0].now = NOON.plus(Micros::from_secs(5));
        probe.slots = None;
        assert_eq!(faults(&probe), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_named() {
        let mut probe = sound();
        probe.charges[0].charged = false;
        probe.charges[1].charged = true;
        probe.expires_ms = -1;
        probe.slots = Some((7, 8));
        probe.ours = [NOON.plus(Micros::from_secs(61)); 2];
        assert_eq!(
            faults(&probe),
            [
                "a full budget refused",
                "an empty budget admitted",
                "a key expires in -1 ms",
                "a key is in slot 7, not 8",
                "its clock is 61s behind ours"
            ]
        );
        let mut probe = sound();
        probe.charges[0].now = NOON.plus(Micros::from_millis(1_001));
        assert_eq!(faults(&probe), ["its clock is 1.001s ahead of ours"]);
    }
}
