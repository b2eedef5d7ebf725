//! What is decided here while the store is gone: each limit by its failure mode.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::verdicts::without_store;
use super::{Group, Shared};
use crate::clock::Clock;
use crate::engine::decision::{Decision, Verdict};
use crate::engine::limit::{FailureMode, Limit, Numbers};
use crate::engine::resolve::{Charge, Found, LimitRef, Met, Resolved};
use crate::engine::time::Micros;
use crate::store::Store as _;

/// The verdicts found without the store, by charge.
pub(super) struct Degraded {
    pub(super) verdicts: SmallVec<[(u16, Verdict); 4]>,
}

impl<C: Clock> Shared<C> {
    /// Decides these charges by their failure modes. Where some are decided locally under a ceiling, the
    /// ceiling's charge is added to the request.
    pub(super) fn decide_without(
        &self,
        resolved: &mut Resolved<'_>,
        failed: &[u16],
        wait_cap: Micros,
    ) -> Degraded {
        let now = self.clock.now();
        let mode = |i: &u16| resolved.charges[usize::from(*i)].limit.failure_mode;
        let (local, others): (Group, Group) = failed
            .iter()
            .copied()
            .partition(|i| mode(i) == FailureMode::Local);
        let mut verdicts: SmallVec<[(u16, Verdict); 4]> = others
            .iter()
            .map(|&i| {
                let charge = &resolved.charges[usize::from(i)];
                (i, without_store(charge, charge.limit.failure_mode, now))
            })
            .collect();
        if local.is_empty() {
            return Degraded { verdicts };
        }
        let share = self.replicas.live();
        let part = locally(resolved, &local, share);
        let decision = self.local.decide_now(&part, wait_cap);
        let found = decision.verdicts.into_iter().map(|verdict| Verdict {
            degraded: Some(FailureMode::Local),
            ..verdict
        });
        // The ceiling, when there is one, comes last and after all others.
        let added = resolved.charges.len() as u16;
        let positions = local.iter().copied().chain(std::iter::once(added));
        verdicts.extend(positions.zip(found));
        if let Some(ceiling) = resolved.ceiling {
            let spend = part.charges.last().and_then(|charge| charge.spend);
            drop(part);
            // It answers beside the limits that it is over.
            let mut first = None;
            for (at, met) in resolved.met.iter_mut().enumerate() {
                if met.charges.iter().any(|i| local.contains(i)) {
                    met.charges.push(added);
                    first.get_or_insert(at as u16);
                }
            }
            let met = first.unwrap_or_default();
            resolved.charges.push(ceiling_charge(ceiling, share, spend, met));
        }
        Degraded { verdicts }
    }

    /// Gives back what a decision charged here to these charges of a request.
    pub(super) fn give_back_locally(&self, resolved: &Resolved<'_>, charges: &[u16], decision: &Decision) {
        let is_ceiling = |i: u16| {
            let limit: &Limit = &resolved.charges[usize::from(i)].limit;
            resolved
                .ceiling
                .is_some_and(|ceiling| std::ptr::eq(ceiling, limit))
        };
        // What the ceiling let pass is not given back: it is a loose bound, and this keeps it one.
        let local: Group = charges
            .iter()
            .copied()
            .filter(|&i| decision.verdicts[usize::from(i)].degraded == Some(FailureMode::Local))
            .filter(|&i| !is_ceiling(i))
            .filter(|&i| {
                let refused_anyway = resolved.charges[usize::from(i)].limit.overdraft && decision.refused;
                decision.verdicts[usize::from(i)].charged && !refused_anyway
            })
            .collect();
        if local.is_empty() {
            return;
        }
        let part = locally(resolved, &local, self.replicas.live());
        let verdicts = local.iter().map(|&i| decision.verdicts[usize::from(i)]);
        let verdicts: SmallVec<[Verdict; 4]> = verdicts.collect();
        let part = Resolved {
            charges: part.charges.into_iter().take(verdicts.len()).collect(),
            ..part
        };
        self.local.give_back(
            &part,
            &Decision {
                verdicts,
                ..Decision::default()
            },
        );
    }
}

/// The part of a request that is decided here, each limit at this replica's share, and the domain's
/// ceiling over all of it.
fn locally<'s>(resolved: &'s Resolved<'_>, local: &[u16], replicas: u32) -> Resolved<'s> {
    let place = |i: &u16| local.iter().position(|member| member == i).map(|at| at as u16);
    let mut met: SmallVec<[Met<'s>; 4]> = resolved
        .met
        .iter()
        .map(|met| Met {
            found: Found::Limits,
            charges: met.charges.iter().filter_map(place).collect(),
            values: met.values.iter().map(|value| Cow::Borrowed(&**value)).collect(),
            caller: met.caller,
            ..Met::default()
        })
        .collect();
    let mut charges: SmallVec<[Charge<'s>; 4]> = local
        .iter()
        .map(|&i| {
            let charge = &resolved.charges[usize::from(i)];
            Charge {
                limit: LimitRef::Policy(&charge.limit),
                numbers: share(charge.numbers, replicas),
                plan: None,
                changed_by: None,
                ..*charge
            }
        })
        .collect();
    if let Some(ceiling) = resolved.ceiling {
        let spend = charges
            .iter()
            .filter(|charge| !charge.shadow)
            .filter_map(|charge| charge.spend)
            .max();
        let at = charges.len() as u16;
        charges.push(ceiling_charge(ceiling, replicas, spend, met.len() as u16));
        // What no descriptor meets is not charged.
        met.push(Met {
            found: Found::Limits,
            charges: [at].into_iter().collect(),
            ..Met::default()
        });
    }
    Resolved {
        charges,
        met,
        ceiling: None,
    }
}

fn ceiling_charge<'c>(ceiling: &'c Limit, replicas: u32, spend: Option<u64>, met: u16) -> Charge<'c> {
    Charge {
        limit: LimitRef::Policy(ceiling),
        numbers: share(ceiling.numbers, replicas),
        plan: None,
        changed_by: None,
        met,
        refund: 0,
        spend,
        shadow: false,
    }
}

/// One replica's share of the numbers, rounded up: at least one unit of what is not nothing.
fn share(numbers: Numbers, replicas: u32) -> Numbers {
    let replicas = u64::from(replicas.max(1));
    Numbers {
        requests_per_unit: numbers.requests_per_unit.div_ceil(replicas),
        burst: numbers.burst.div_ceil(replicas),
        ..numbers
    }
}
