//! Tries a shard on a key of our own.

use std::borrow::Cow;

use redis::{Value, cmd};

use super::error::CallError;
use super::node::ShardId;
use super::{Redis, script, slots};
use crate::clock::Clock;
use crate::engine::key::Identity;
use crate::engine::limit::{Algorithm, Limit, Numbers, Period};
use crate::engine::resolve::{Charge, Found, LimitRef, Met, Resolved};
use crate::engine::time::{Micros, Timestamp};
use crate::store::Reply;

/// How long the budget takes to be whole again, and so the longest that its key may live.
pub const PROBE_LIVES: Micros = Micros::from_secs(10);

/// How many names are tried to find one that the shard serves; it may serve a single slot.
const NAMES: usize = 4 * slots::SLOTS;

/// What a shard made of two charges on a budget of one unit.
#[derive(Debug)]
pub struct Probe {
    /// What the script answered.
    pub charges: [Reply; 2],
    /// Our time before and after the first of them.
    pub ours: [Timestamp; 2],
    /// How long the key lives (ms); negative without an end.
    pub expires_ms: i64,
    /// In a cluster that says so: the slot of the key by its reckoning, and by ours.
    pub slots: Option<(usize, usize)>,
}

impl Redis {
    /// Runs the script twice on a key that this shard serves; `None` if it serves none.
    ///
    /// # Errors
    /// When a call gave no answer.
    pub async fn probe(&self, shard: ShardId, clock: &impl Clock) -> Result<Option<Probe>, CallError> {
        let name = || format!("cota:{{selftest|{:016x}}}", fastrand::u64(..));
        let serves = |key: &String| self.client.shard(key.as_bytes()) == shard;
        let Some(key) = std::iter::repeat_with(name).take(NAMES).find(serves) else {
            return Ok(None);
        };
        let before = clock.now();
        let limit = limit();
        let call = script::Call {
            key,
            ..script::call(&resolved(&limit), &[0], Micros::ZERO, true, before)
        };
        let first = self.call(&call, 1).await?;
        let after = clock.now();
        let second = self.call(&call, 1).await?;
        let expires_ms = self.number("PTTL", None, &call.key).await?.unwrap_or(-1);
        let slots = if self.client.is_cluster() {
            // Who may not ask goes without.
            let theirs = self.number("CLUSTER", Some("KEYSLOT"), &call.key).await;
            let theirs = theirs.ok().flatten().and_then(|slot| usize::try_from(slot).ok());
            theirs.map(|slot| (slot, slots::slot(call.key.as_bytes())))
        } else {
            None
        };
        Ok(Some(Probe {
            charges: [first, second],
            ours: [before, after],
            expires_ms,
            slots,
        }))
    }

    /// What a shard that is full would do, if it says so. Asked on a connection of its own, since proxies
    /// hang up on what they do not know.
    pub async fn eviction_policy(&self, shard: ShardId) -> Option<String> {
        let mut command = cmd("CONFIG");
        command.arg("GET").arg("maxmemory-policy");
        let answer = self.client.aside(shard, &command).await?;
        let (_, policy): (String, String) = redis::from_redis_value(answer).ok()?;
        Some(policy)
    }

    async fn number(&self, verb: &str, noun: Option<&str>, key: &str) -> Result<Option<i64>, CallError> {
        let mut command = cmd(verb);
        noun.map(|noun| command.arg(noun));
        command.arg(key);
        let value = self
            .client
            .command(key.as_bytes(), &command, self.timeout)
            .await?;
        Ok(match value {
            Value::Int(number) => Some(number),
            _ => None,
        })
    }
}

/// One unit in ten seconds.
fn limit() -> Limit {
    let period = Period {
        length: PROBE_LIVES,
        unit: None,
        text: "10s".into(),
    };
    let algorithm = Algorithm::TokenBucket;
    let identity = Identity::new("cota", &["selftest"], None, &algorithm, &period);
    let numbers = Numbers {
        requests_per_unit: 1,
        burst: 1,
        max_wait: Micros::ZERO,
        unlimited: false,
    };
    Limit::plain(None, identity, algorithm, period, numbers)
}

/// A request of one unit.
fn resolved(limit: &Limit) -> Resolved<'_> {
    let charge = Charge {
        limit: LimitRef::Policy(limit),
        numbers: limit.numbers,
        plan: None,
        changed_by: None,
        met: 0,
        refund: 0,
        spend: Some(1),
        shadow: false,
    };
    let met = Met {
        found: Found::Limits,
        charges: [0].into_iter().collect(),
        values: [Cow::Borrowed("")].into_iter().collect(),
        caller: Some(0),
        ..Met::default()
    };
    Resolved {
        charges: [charge].into_iter().collect(),
        met: [met].into_iter().collect(),
        ceiling: None,
    }
}
