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
use tokio::time::timeout;

use super::memory::Memory;
use super::redis::{CallError, GiveBack, Redis, evaluations, still_spent};
use super::{Reply, Store, StoreError};
use crate::clock::{Clock, Stopwatch};
use crate::engine::budget::{Outcome, State, View};
use crate::engine::decision::{Decision, Evaluation, Slot, Verdict, settle};
use crate::engine::limit::FailureMode;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::Micros;

mod local;
mod outages;
mod replicas;
mod selftest;

pub use outages::{Outages, ShardOutage};
pub use replicas::Replicas;

/// When a request refused for want of a store may come again: about when the store is asked again.
const DENIED_FOR: Micros = Micros::SECOND;

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

impl<C: Clock> Shared<C> {
    /// What is known of outages.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// The replicas that share the store.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
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

    /// Folds what the callers answered, and what is decided here for those that did not.
    async fn fold(
        &self,
        resolved: &mut Resolved<'_>,
        groups: &[Group],
        answers: &[Result<Reply, CallError>],
        wait_cap: Micros,
    ) -> Decision {
        let mut evaluated: SmallVec<[Option<Evaluation>; 4]> =
            resolved.charges.iter().map(|_| None).collect();
        let mut at = None;
        let mut failed = Group::new();
        for (group, answer) in groups.iter().zip(answers) {
            match answer {
                Ok(reply) => {
                    at.get_or_insert(reply.now);
                    for (i, evaluation) in evaluations(resolved, group, reply, wait_cap) {
                        evaluated[usize::from(i)] = Some(evaluation);
                    }
                }
                Err(_) => failed.extend(group.iter().copied()),
            }
        }
        let at = at.unwrap_or_else(|| self.clock.now());
        let degraded = (!failed.is_empty()).then(|| self.decide_without(resolved, &failed, wait_cap));
        if let Some(degraded) = &degraded {
            for (i, verdict) in &degraded.verdicts {
                evaluated.resize(evaluated.len().max(usize::from(*i) + 1), None);
                evaluated[usize::from(*i)] = Some(standing_in(verdict.outcome));
            }
        }
        let evaluated: SmallVec<[Evaluation; 4]> = evaluated.into_iter().flatten().collect();
        let mut decision = settle(resolved, &evaluated, at);
        if let Some(degraded) = degraded {
            decision.degraded = true;
            for (i, verdict) in degraded.verdicts {
                decision.verdicts[usize::from(i)] = verdict;
            }
            if decision.refused {
                // The limits decided here let it pass, another did not.
                self.give_back_locally(resolved, &failed, &decision);
            }
            self.outages.decided(
                answers.iter().filter_map(|answer| answer.as_ref().err()),
                &decision,
            );
        }
        decision
    }

    /// Gives back what some callers charged of a request that another refused, in what is left of the
    /// store's time; the answer does not wait for the rest.
    async fn give_back_refused(
        &self,
        resolved: &Resolved<'_>,
        groups: &[Group],
        answers: &[Result<Reply, CallError>],
        left: Duration,
    ) {
        let parts = groups.iter().zip(answers).filter_map(|(group, answer)| {
            let reply = answer.as_ref().ok().filter(|reply| reply.charged)?;
            // Overdraft is charged whatever is decided.
            let units = |i: u16| {
                let charge = &resolved.charges[usize::from(i)];
                charge.spend.filter(|&cost| cost > 0 && !charge.limit.overdraft)
            };
            GiveBack::of(resolved, group, units, reply.now)
        });
        let given = parts.map(|part| {
            let (redis, outages) = (self.redis.clone(), Arc::clone(&self.outages));
            tokio::spawn(async move {
                if let Err(error) = redis.give_back(part).await {
                    // The caller loses these units until its budget recovers; nobody gains any.
                    outages.failed(&error, || redis.client().shards());
                }
            })
        });
        // It goes on whether waited for or not.
        drop(timeout(left, join_all(given)).await);
    }
}

impl<C: Clock + Clone> Store for Shared<C> {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        // A wait begins when the store has answered; its time comes off what the caller allows.
        let wait_cap = wait_cap.saturating_sub(self.timeout.into());
        let watch = Stopwatch::start();
        let groups = groups(resolved);
        let alone = groups.len() == 1;
        let answers: SmallVec<[_; 2]> = if alone {
            [self.ask(resolved, &groups[0], wait_cap, true).await]
                .into_iter()
                .collect()
        } else {
            let asked: &Resolved<'_> = resolved;
            join_all(groups.iter().map(|group| self.ask(asked, group, wait_cap, false)))
                .await
                .into()
        };
        let decision = self.fold(resolved, &groups, &answers, wait_cap).await;
        if decision.refused && !alone {
            let left = self.timeout.saturating_sub(watch.elapsed());
            self.give_back_refused(resolved, &groups, &answers, left).await;
        }
        Ok(decision)
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        let now = decision.at.plus(self.clock.now().since(decision.at));
        let mut local = Group::new();
        for group in groups(resolved) {
            let (here, there): (Group, Group) = group
                .into_iter()
                .partition(|&i| decision.verdicts[usize::from(i)].degraded.is_some());
            local.extend(here);
            if let Some(part) = GiveBack::of(
                resolved,
                &there,
                still_spent(resolved, decision, now),
                decision.at,
            ) {
                let redis = self.redis.clone();
                // What does not arrive is lost to the caller, who has gone.
                tokio::spawn(async move { drop(redis.give_back(part).await) });
            }
        }
        self.give_back_locally(resolved, &local, decision);
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

/// An evaluation that only says how a budget answered: its verdict is known from elsewhere.
fn standing_in(outcome: Outcome) -> Evaluation {
    Evaluation {
        outcome,
        base: Slot::default(),
        charged: Slot::default(),
        clamped: false,
    }
}

/// The verdict of a limit whose store gave no answer, by a mode that keeps nothing.
fn without_store(charge: &Charge<'_>, mode: FailureMode, now: crate::engine::time::Timestamp) -> Verdict {
    let terms = charge.terms();
    let denied = mode == FailureMode::Deny && charge.spend.is_some();
    Verdict {
        outcome: if denied {
            Outcome::Deny {
                retry_after: Some(DENIED_FOR),
            }
        } else {
            Outcome::Allow
        },
        view: if denied {
            View {
                remaining: 0,
                reset: DENIED_FOR,
                next_unit: DENIED_FOR,
            }
        } else {
            terms.view(terms.advance(State::default(), now).0, now)
        },
        capacity: terms.capacity(),
        charged: false,
        clamped: false,
        degraded: Some(mode),
    }
}
