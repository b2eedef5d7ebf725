//! The store that replicas share, and what is decided without it.
//!
//! Each caller of a request is asked for in one call; a request that concerns several asks them at once
//! and gives back what some charged if another refuses. Where there is no answer in time, every limit is
//! decided by the failure mode it chose beforehand, and only those of the shard that gave none. A call
//! whose fate is unknown is not repeated: it may have charged, which costs that caller a few units.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::memory::Memory;
use super::redis::{CallError, Redis, evaluations};
use super::{Reply, Store, StoreError};
use crate::clock::{Clock, Stopwatch};
use crate::engine::decision::{Decision, Evaluation, settle};
use crate::engine::reset::Target;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::Micros;

mod barrier;
mod central;
mod given_back;
mod local;
mod outages;
mod remembered;
mod replicas;
mod selftest;
mod verdicts;

use barrier::Barrier;
use remembered::{Remembered, States};
use verdicts::{denied, standing_in, untouched};

pub use outages::{Outages, ShardOutage};
pub use replicas::Replicas;

/// The positions of one caller's charges.
type Group = SmallVec<[u16; 4]>;

/// Called with the time of every call of the store.
pub type OnCall = Box<dyn Fn(Duration) + Send + Sync>;

/// Budgets shared through Redis, with a memory for when it is gone.
pub struct Shared<C> {
    redis: Redis,
    /// What was decided without the store. It lives on between outages: a store that comes and goes must
    /// not hand out a fresh budget each time.
    local: Memory<C>,
    outages: Arc<Outages>,
    remembered: Arc<Remembered>,
    barrier: Barrier,
    /// Held by each task that gives back.
    giving_back: Arc<()>,
    replicas: Replicas,
    clock: C,
    timeout: Duration,
    on_call: OnCall,
}

impl<C: Clock + Clone> Shared<C> {
    /// The store behind `redis`, whose calls take no longer than `timeout`; at most `max_keys` budgets are
    /// kept here while it is gone. Its tasks run until it is dropped.
    pub fn start(
        redis: Redis,
        replicas: Replicas,
        clock: C,
        max_keys: usize,
        timeout: Duration,
        on_call: OnCall,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            redis,
            local: Memory::new(clock.clone(), max_keys),
            outages: Arc::default(),
            remembered: Arc::default(),
            barrier: Barrier::default(),
            giving_back: Arc::default(),
            replicas,
            clock,
            timeout,
            on_call,
        });
        tokio::spawn(replicas::beat(Arc::downgrade(&shared)));
        tokio::spawn(outages::watch(Arc::downgrade(&shared)));
        shared
    }
}

impl<C: Clock + Clone> Shared<C> {
    /// What is known of outages.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// How many requests' charges are on their way back.
    pub fn giving_back(&self) -> usize {
        Arc::strong_count(&self.giving_back) - 1
    }

    /// The store itself.
    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    /// The replicas that share the store.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Forgets all that is kept here of budgets that start afresh in the store.
    pub fn reset(&self, targets: &[Target]) {
        self.local.reset(targets);
        self.barrier.forget(targets);
        self.forget_refusals();
    }

    /// Asks the store again for everybody: budgets have started afresh in it.
    pub fn forget_refusals(&self) {
        self.remembered.forget_all(self.clock.elapsed());
    }

    /// What is out now, for people.
    pub fn degraded(&self) -> Vec<String> {
        let line = |out: ShardOutage| {
            format!(
                "store {} gives no answer for {} s",
                out.address,
                out.lasts.as_secs()
            )
        };
        self.outages.list().into_iter().map(line).collect()
    }

    /// What is kept here of budgets that were decided without the store.
    pub fn local(&self) -> &Memory<C> {
        &self.local
    }

    async fn ask(
        &self,
        resolved: &Resolved<'_>,
        group: &Group,
        wait_cap: Micros,
        alone: bool,
    ) -> Result<Reply, CallError> {
        let watch = Stopwatch::start();
        let answer = self
            .redis
            .ask(resolved, group, wait_cap, alone, self.clock.now())
            .await;
        (self.on_call)(watch.elapsed());
        if let Err(error) = &answer {
            self.outages.failed(error, || self.redis.client().shards());
        }
        answer
    }

    /// Folds what the callers answered, and what is decided here for those that did not. What some charged
    /// and the whole does not is given back. `asked` is when, by [`Clock::elapsed`].
    fn fold(
        &self,
        resolved: &mut Resolved<'_>,
        groups: &[Group],
        answers: &[Result<Reply, CallError>],
        wait_cap: Micros,
        asked: Micros,
    ) -> (Decision, Option<JoinHandle<()>>) {
        let mut evaluated: SmallVec<[Option<Evaluation>; 4]> =
            resolved.charges.iter().map(|_| None).collect();
        let mut failed = Group::new();
        for (group, answer) in groups.iter().zip(answers) {
            match answer {
                Ok(reply) => {
                    for (i, evaluation) in evaluations(resolved, group, reply, wait_cap) {
                        evaluated[usize::from(i)] = Some(evaluation);
                    }
                }
                Err(_) => failed.extend(group.iter().copied()),
            }
        }
        let degraded = (!failed.is_empty()).then(|| self.decide_without(resolved, &failed, wait_cap));
        if let Some(degraded) = &degraded {
            for (i, verdict) in &degraded.verdicts {
                evaluated.resize(evaluated.len().max(usize::from(*i) + 1), None);
                evaluated[usize::from(*i)] = Some(standing_in(verdict));
            }
        }
        let evaluated: SmallVec<[Evaluation; 4]> = evaluated.into_iter().flatten().collect();
        let mut decision = settle(resolved, &evaluated);
        if let Some(degraded) = degraded {
            decision.degraded = true;
            for (i, verdict) in degraded.verdicts {
                decision.verdicts[usize::from(i)] = verdict;
            }
            if decision.refused {
                // The limits decided here let it pass, another did not.
                self.give_back_locally(resolved, &failed, &decision);
                for &i in &failed {
                    let overdraft = resolved.charges[usize::from(i)].limit.overdraft;
                    decision.verdicts[usize::from(i)].charged &= overdraft;
                }
            }
            self.outages.decided(
                answers.iter().filter_map(|answer| answer.as_ref().err()),
                &decision,
            );
        }
        self.remember(resolved, groups, answers, &evaluated, &decision, asked);
        let given = if groups.len() > 1 {
            self.take_back(resolved, groups, answers, &evaluated, &decision)
        } else {
            None
        };
        (decision, given)
    }

    /// The answer to a request that asks for more than one replica lets it ask.
    fn stopped(&self, resolved: &Resolved<'_>) -> Option<Decision> {
        let now = self.clock.now();
        let (at, wait) = self.barrier.stops(resolved, now)?;
        let verdict = |(i, charge): (usize, &Charge<'_>)| {
            if i == at {
                denied(charge, wait, now)
            } else {
                untouched(charge, now)
            }
        };
        Some(Decision {
            refused: true,
            verdicts: resolved.charges.iter().enumerate().map(verdict).collect(),
            unasked: true,
            ..Decision::default()
        })
    }

    /// Keeps what the store held where it refused, and forgets what it held where it was given back to.
    fn remember(
        &self,
        resolved: &Resolved<'_>,
        groups: &[Group],
        answers: &[Result<Reply, CallError>],
        evaluated: &[Evaluation],
        decision: &Decision,
        asked: Micros,
    ) {
        let now = self.clock.elapsed();
        let refunds = |group: &Group| group.iter().any(|&i| resolved.charges[usize::from(i)].refund > 0);
        let refunded = groups.iter().filter(|group| refunds(group));
        let refunded = refunded.map(|group| self.remembered.caller(resolved, group));
        self.remembered.forget(refunded, now);
        if decision.degraded || (!decision.refused && self.remembered.is_empty()) {
            return;
        }
        let after = |&i: &u16| {
            let (evaluation, verdict) = (&evaluated[usize::from(i)], &decision.verdicts[usize::from(i)]);
            let slot = if verdict.charged {
                evaluation.charged
            } else {
                evaluation.base
            };
            (i, slot)
        };
        for (group, answer) in groups.iter().zip(answers) {
            if let (Ok(reply), false) = (answer, refunds(group)) {
                let states = States {
                    slots: group.iter().map(after).collect(),
                    held: reply.now,
                };
                self.remembered
                    .keep(resolved, &states, decision.refused, asked, now);
            }
        }
    }
}

impl<C: Clock + Clone> Store for Shared<C> {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        // A wait begins when the store has answered; its time comes off what the caller allows.
        let wait_cap = wait_cap.saturating_sub(self.timeout.into());
        let watch = Stopwatch::start();
        let groups = groups(resolved);
        let asked = self.clock.elapsed();
        if let Some(refusal) = self.remembered.refuse(resolved, &groups, wait_cap, asked) {
            return Ok(refusal);
        }
        if let Some(refusal) = self.stopped(resolved) {
            return Ok(refusal);
        }
        let alone = groups.len() == 1;
        let answers: SmallVec<[_; 2]> = if alone {
            // Boxed: it would be copied into each of the futures above, a third of what they are.
            let asking = Box::pin(self.ask(resolved, &groups[0], wait_cap, true));
            [asking.await].into_iter().collect()
        } else {
            let asked: &Resolved<'_> = resolved;
            join_all(groups.iter().map(|group| self.ask(asked, group, wait_cap, false)))
                .await
                .into()
        };
        let (decision, given) = self.fold(resolved, &groups, &answers, wait_cap, asked);
        if let Some(given) = given {
            // Whoever asks after this answer finds the units back, unless that takes longer than the store
            // may: it goes on whether waited for or not.
            let left = self.timeout.saturating_sub(watch.elapsed());
            drop(timeout(left, given).await);
        }
        Ok(decision)
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        self.give_back_decided(resolved, decision);
    }
}

/// The charges of a request by caller.
fn groups(resolved: &Resolved<'_>) -> SmallVec<[Group; 2]> {
    let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
    for i in 0..resolved.charges.len() {
        let key = |i: usize| resolved.key(&resolved.charges[i]);
        let same = |group: &&mut Group| {
            let (ours, theirs) = (key(i), key(usize::from(group[0])));
            ours.domain() == theirs.domain() && ours.tag().eq(theirs.tag())
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(i as u16),
            None => groups.push([i as u16].into_iter().collect()),
        }
    }
    groups
}
