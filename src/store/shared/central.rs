//! The shared store as what leases are taken from: past all that this replica remembers.

use std::time::Duration;

use super::{Group, Shared};
use crate::clock::Clock;
use crate::engine::key::BudgetKey;
use crate::engine::lease::Ask;
use crate::engine::resolve::Resolved;
use crate::engine::time::Micros;
use crate::store::Reply;
use crate::store::leased::{Central, NoAnswer};
use crate::store::redis::{CallError, GiveBack, Redis, Return};

/// Off the way of requests a call may take longer, and one whose fate is unknown costs its caller a block.
const PATIENCE: Duration = Duration::from_millis(250);

impl<C: Clock + Clone> Shared<C> {
    fn patient(&self) -> Redis {
        Redis::new(self.redis.client().clone(), self.timeout.max(PATIENCE))
    }

    fn heard<T>(&self, answer: Result<T, CallError>) -> Result<T, NoAnswer> {
        answer.map_err(|error| {
            self.outages.failed(&error, || self.redis.client().shards());
            NoAnswer
        })
    }
}

impl<C: Clock + Clone> Central for Shared<C> {
    async fn reserve(&self, budget: &BudgetKey<'_>, id: u64, ask: &Ask) -> Result<u64, NoAnswer> {
        self.heard(self.patient().reserve(budget, id, ask).await)
    }

    async fn strike(&self, budget: &BudgetKey<'_>, id: u64) -> Result<bool, NoAnswer> {
        self.heard(self.patient().strike(budget, id).await)
    }

    async fn charge(&self, asked: &Resolved<'_>) -> Result<Reply, NoAnswer> {
        let all: Group = (0..asked.charges.len() as u16).collect();
        let (redis, now) = (self.patient(), self.clock.now());
        self.heard(redis.ask(asked, &all, Micros::ZERO, true, now).await)
    }

    async fn refund(&self, asked: &Resolved<'_>, part: Return) -> Result<(), NoAnswer> {
        let Some(call) = GiveBack::of(asked, &[part], self.clock.now()) else {
            return Ok(());
        };
        let given = self.heard(self.patient().give_back(call).await);
        // Whoever was refused meanwhile may pass now.
        let caller = self.remembered.caller(asked, &[0]);
        self.remembered.forget([caller].into_iter(), self.clock.elapsed());
        given
    }

    fn replicas(&self) -> u32 {
        self.replicas.live()
    }
}
