//! Budgets in Redis or Valkey, shared by all replicas: one call of one script for each caller.

use std::time::Duration;

use super::Reply;
use crate::engine::decision::Evaluation;
use crate::engine::resolve::Resolved;
use crate::engine::time::{Micros, Timestamp};

mod ask;
mod breaker;
mod client;
mod error;
mod escrow;
mod keeper;
mod key;
mod ledger;
mod link;
mod node;
mod probe;
mod reset;
mod returns;
mod script;
mod slots;
mod target;
mod tls;
mod topology;

pub use client::Client;
pub use error::{CallError, Fate, Kind};
pub use node::{ShardId, ShardState};
pub use probe::{PROBE_LIVES, Probe};
pub use returns::{GiveBack, Return};
pub use script::SCRIPT;
pub use target::{BadTarget, Target};
pub use tls::{BadTls, TlsFiles};

/// The budgets as Redis keeps them.
#[derive(Clone, Debug)]
pub struct Redis {
    client: Client,
    timeout: Duration,
}

impl Redis {
    /// The store behind that client; no call takes longer than `timeout`.
    pub fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// The connections.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Asks for some charges of a request, which share a caller. `quota_refuses` says that no other part
    /// of the request is asked elsewhere. `now` is ours and picks calendar windows only.
    ///
    /// # Errors
    /// When there was no answer in time.
    pub async fn ask(
        &self,
        resolved: &Resolved<'_>,
        group: &[u16],
        wait_cap: Micros,
        quota_refuses: bool,
        now: Timestamp,
    ) -> Result<Reply, CallError> {
        let call = script::call(resolved, group, wait_cap, quota_refuses, now);
        self.call(&call, group.len()).await
    }

    /// Gives back what was charged for some charges of a request that another part of it refused, or whose
    /// caller left.
    ///
    /// # Errors
    /// When there was no answer in time. The units are lost to the caller then.
    pub async fn give_back(&self, part: GiveBack) -> Result<(), CallError> {
        self.call(&part.call, part.charges).await.map(drop)
    }

    async fn call(&self, call: &script::Call, charges: usize) -> Result<Reply, CallError> {
        let key = call.key.as_bytes();
        let value = self.client.call(key, &[&call.arg], self.timeout).await?;
        script::reply(value, charges).map_err(|what| self.client.nonsense(key, what))
    }

    /// Says that this replica lives, and counts those that do.
    ///
    /// # Errors
    /// When there was no answer in time.
    pub async fn heartbeat(&self, replica: u64) -> Result<u32, CallError> {
        let key = REPLICAS.as_bytes();
        let mut command = redis::cmd("EVAL");
        command.arg(HEARTBEAT).arg(1).arg(key).arg(replica);
        // Off the way of requests: it may take as long as it is useful.
        let value = self.client.command(key, &command, BEAT / 2).await?;
        let redis::Value::Int(live) = value else {
            return Err(self.client.nonsense(key, "no count of replicas"));
        };
        Ok(u32::try_from(live).unwrap_or(1).max(1))
    }
}

/// How often a replica says that it lives.
pub const BEAT: Duration = Duration::from_secs(1);

/// The key under which replicas are counted.
const REPLICAS: &str = "c:{replicas}";

/// Five beats missed, and a replica is gone.
const HEARTBEAT: &str = "
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], time[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', time[1] - 5)
redis.call('EXPIRE', KEYS[1], 10)
return redis.call('ZCARD', KEYS[1])";

/// The evaluations of a group's charges, from what the store held.
pub fn evaluations<'s>(
    resolved: &'s Resolved<'_>,
    group: &'s [u16],
    reply: &'s Reply,
    wait_cap: Micros,
) -> impl Iterator<Item = (u16, Evaluation)> + 's {
    group.iter().zip(&reply.slots).map(move |(&i, slot)| {
        let charge = &resolved.charges[usize::from(i)];
        (
            i,
            crate::engine::decision::evaluate(charge, *slot, reply.now, wait_cap),
        )
    })
}

#[cfg(test)]
mod tests;
