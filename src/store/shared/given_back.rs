//! What is given back: charges of a request that was refused elsewhere, or whose caller went away.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::task::JoinHandle;

use super::{Group, Shared, groups};
use crate::clock::Clock;
use crate::engine::decision::{Decision, Evaluation, pays};
use crate::engine::resolve::Resolved;
use crate::store::Reply;
use crate::store::redis::{CallError, GiveBack, Return};

impl<C: Clock + Clone> Shared<C> {
    /// Gives back what callers charged that did not know of the others: the request was refused elsewhere,
    /// or a descriptor was over its quota.
    pub(super) fn take_back(
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
            let part = GiveBack::of(resolved, &returns, now)?;
            Some((self.remembered.caller(resolved, group), part))
        };
        self.give_back_later(groups.iter().zip(answers).filter_map(part).collect())
    }

    /// Gives back what a decision charged, there and here.
    pub(super) fn give_back_decided(&self, resolved: &Resolved<'_>, decision: &Decision) {
        let now = self.clock.now();
        let mut local = Group::new();
        let mut parts = SmallVec::new();
        for group in groups(resolved) {
            let (here, there): (Group, Group) = group
                .iter()
                .copied()
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
            parts.extend(
                GiveBack::of(resolved, &returns, now)
                    .map(|part| (self.remembered.caller(resolved, &group), part)),
            );
        }
        drop(self.give_back_later(parts));
        self.give_back_locally(resolved, &local, decision);
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
