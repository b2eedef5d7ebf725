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
use super::redis::{CallError, GiveBack, Redis, Return, evaluations};
use super::{Reply, Store, StoreError};
use crate::clock::{Clock, Stopwatch};
use crate::engine::budget::{Outcome, State, View};
use crate::engine::decision::{Decision, Evaluation, Slot, Verdict, pays, settle};
use crate::engine::limit::FailureMode;
use crate::engine::reset::Target;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::{Micros, Timestamp};

mod barrier;
mod central;
mod local;
mod outages;
mod remembered;
mod replicas;
mod selftest;

use barrier::Barrier;
use remembered::{Remembered, States};

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
    /// and the whole does not is given back.
    fn fold(
        &self,
        resolved: &mut Resolved<'_>,
        groups: &[Group],
        answers: &[Result<Reply, CallError>],
        wait_cap: Micros,
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
        let given = if groups.len() > 1 {
            self.take_back(resolved, groups, answers, &evaluated, &decision)
        } else {
            None
        };
        (decision, given)
    }

    /// Gives back what callers charged that did not know of the others: the request was refused elsewhere,
    /// or a descriptor was over its quota.
    fn take_back(
        &self,
        resolved: &Resolved<'_>,
        groups: &[Group],
        answers: &[Result<Reply, CallError>],
        evaluated: &[Evaluation],
        decision: &Decision,
    ) -> Option<JoinHandle<()>> {
        let now = self.clock.now();
        let part = |(group, answer): (&Group, &Result<Reply, CallError>)| {
            let reply = answer.as_ref().ok()?;
            let denies = |i: u16| group.contains(&i) && evaluated[usize::from(i)].denies();
            let in_vain = |&i: &u16| {
                pays(resolved, i, !reply.charged, denies) && !decision.verdicts[usize::from(i)].charged
            };
            let returns = group.iter().copied().filter(in_vain);
            let returns: SmallVec<[Return; 4]> = returns
                .map(|i| {
                    Return::of_evaluated(i, &resolved.charges[usize::from(i)], &evaluated[usize::from(i)])
                })
                .collect();
            Some((
                self.remembered.caller(resolved, group),
                GiveBack::of(resolved, &returns, now)?,
            ))
        };
        self.give_back_later(groups.iter().zip(answers).filter_map(part).collect())
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
        decision: &Decision,
        wait_cap: Micros,
        asked: Micros,
    ) {
        let refunds = |group: &Group| group.iter().any(|&i| resolved.charges[usize::from(i)].refund > 0);
        let refunded = groups.iter().filter(|group| refunds(group));
        self.remembered.forget(
            refunded.map(|group| self.remembered.caller(resolved, group)),
            self.clock.elapsed(),
        );
        if !decision.refused && self.remembered.is_empty() {
            return;
        }
        let now = self.clock.elapsed();
        for (group, answer) in groups.iter().zip(answers) {
            if let (Ok(reply), false) = (answer, decision.degraded || refunds(group)) {
                let after = |(i, evaluation): (u16, Evaluation)| {
                    let charged = decision.verdicts[usize::from(i)].charged;
                    (
                        i,
                        if charged {
                            evaluation.charged
                        } else {
                            evaluation.base
                        },
                    )
                };
                let states = States {
                    slots: evaluations(resolved, group, reply, wait_cap).map(after).collect(),
                    held: reply.now,
                };
                self.remembered
                    .keep(resolved, &states, decision.refused, asked, now);
            }
        }
    }

    /// Gives back to callers in the background. What does not arrive is lost to the caller until its budget
    /// recovers; nobody gains any.
    fn give_back_later(&self, parts: SmallVec<[(u128, GiveBack); 2]>) -> Option<JoinHandle<()>> {
        if parts.is_empty() {
            return None;
        }
        let under_way = Arc::clone(&self.giving_back);
        let (redis, outages) = (self.redis.clone(), Arc::clone(&self.outages));
        let (remembered, clock) = (Arc::clone(&self.remembered), self.clock.clone());
        Some(tokio::spawn(async move {
            let callers: SmallVec<[u128; 2]> = parts.iter().map(|(caller, _)| *caller).collect();
            for failure in join_all(parts.into_iter().map(|(_, part)| redis.give_back(part))).await {
                if let Err(error) = failure {
                    outages.failed(&error, || redis.client().shards());
                }
            }
            remembered.forget(callers.into_iter(), clock.elapsed());
            drop(under_way);
        }))
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
            [self.ask(resolved, &groups[0], wait_cap, true).await]
                .into_iter()
                .collect()
        } else {
            let asked: &Resolved<'_> = resolved;
            join_all(groups.iter().map(|group| self.ask(asked, group, wait_cap, false)))
                .await
                .into()
        };
        let (decision, given) = self.fold(resolved, &groups, &answers, wait_cap);
        self.remember(resolved, &groups, &answers, &decision, wait_cap, asked);
        if let Some(given) = given {
            // Whoever asks after this answer finds the units back, unless that takes longer than the store
            // may: it goes on whether waited for or not.
            let left = self.timeout.saturating_sub(watch.elapsed());
            drop(timeout(left, given).await);
        }
        Ok(decision)
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        let now = self.clock.now();
        let mut local = Group::new();
        let mut parts = SmallVec::new();
        for group in groups(resolved) {
            let caller = self.remembered.caller(resolved, &group);
            let (here, there): (Group, Group) = group
                .into_iter()
                .partition(|&i| decision.verdicts[usize::from(i)].degraded.is_some());
            local.extend(here);
            let returns: SmallVec<[Return; 4]> = there
                .into_iter()
                .filter(|&i| decision.verdicts[usize::from(i)].charged)
                .map(|i| {
                    Return::of_decided(
                        i,
                        &resolved.charges[usize::from(i)],
                        &decision.verdicts[usize::from(i)],
                    )
                })
                .collect();
            parts.extend(GiveBack::of(resolved, &returns, now).map(|part| (caller, part)));
        }
        drop(self.give_back_later(parts));
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
fn standing_in(verdict: &Verdict) -> Evaluation {
    Evaluation {
        at: verdict.at,
        outcome: verdict.outcome,
        base: Slot::default(),
        charged: Slot::default(),
        clamped: false,
    }
}

/// The verdict of a limit whose store gave no answer, by a mode that keeps nothing.
fn without_store(charge: &Charge<'_>, mode: FailureMode, now: Timestamp) -> Verdict {
    let verdict = if mode == FailureMode::Deny && charge.spend.is_some() {
        denied(charge, DENIED_FOR, now)
    } else {
        untouched(charge, now)
    };
    Verdict {
        degraded: Some(mode),
        ..verdict
    }
}

/// The verdict of a limit that refuses for so long without knowing more.
fn denied(charge: &Charge<'_>, wait: Micros, now: Timestamp) -> Verdict {
    Verdict {
        outcome: Outcome::Deny {
            retry_after: Some(wait),
        },
        view: View {
            remaining: 0,
            reset: wait,
            next_unit: wait,
        },
        ..untouched(charge, now)
    }
}

/// The verdict of a limit of whose budget nothing is known: as if it were whole.
fn untouched(charge: &Charge<'_>, now: Timestamp) -> Verdict {
    let terms = charge.terms();
    Verdict {
        at: now,
        outcome: Outcome::Allow,
        view: terms.view(terms.advance(State::default(), now).0, now),
        capacity: terms.capacity(),
        charged: false,
        clamped: false,
        degraded: None,
    }
}
