//! How the verdicts of all budgets of a request fold into one answer.
//!
//! The order of things is the store's to keep atomic: read every state, [`evaluate`] each charge,
//! [`settle`] them together, write what was settled.

use smallvec::SmallVec;

use super::budget::{Outcome, State, View};
use super::limit::FailureMode;
use super::resolve::{Charge, Resolved};
use super::time::{Micros, Timestamp};

/// What is kept of one budget: its state, and that of the lane beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// The budget.
    pub main: State,
    /// The lane for marked excess; stays initial for limits without one.
    pub lane: State,
}

/// What one charge would do to its budget.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation {
    /// When, by the clock of the store that keeps the budget.
    pub at: Timestamp,
    /// How the budget answers.
    pub outcome: Outcome,
    /// The state at this time with refunds given, nothing spent.
    pub base: Slot,
    /// The state once charged.
    pub charged: Slot,
    /// A stored time lay too far in the future. `base` must then be kept even if nothing is charged: while
    /// the stored time stays where it was, each request would bring it back to the same distance ahead.
    pub clamped: bool,
}

/// Evaluates one charge against what is stored of its budget.
pub fn evaluate(charge: &Charge<'_>, slot: Slot, now: Timestamp, wait_cap: Micros) -> Evaluation {
    let terms = charge.terms();
    let (main, mut clamped) = terms.advance(slot.main, now);
    let main = if charge.refund > 0 {
        terms.refund(main, charge.refund)
    } else {
        main
    };
    let mut base = Slot {
        main,
        lane: slot.lane,
    };
    let Some(cost) = charge.spend else {
        return Evaluation {
            at: now,
            outcome: Outcome::Allow,
            base,
            charged: base,
            clamped,
        };
    };
    let (mut outcome, main) = terms.spend(base.main, cost, now, wait_cap);
    let mut charged = Slot { main, ..base };
    if let (Outcome::Deny { retry_after }, true, Some(lane)) = (outcome, cost > 0, terms.lane()) {
        let (state, lane_clamped) = lane.advance(slot.lane, now);
        clamped |= lane_clamped;
        base.lane = state;
        let (in_lane, state) = lane.spend(state, cost, now, Micros::ZERO);
        if in_lane == Outcome::Allow {
            outcome = Outcome::Excess;
            charged = Slot {
                main: base.main,
                lane: state,
            };
        } else if let Outcome::Deny {
            retry_after: Some(in_lane),
        } = in_lane
        {
            let sooner = retry_after.map_or(in_lane, |wait| wait.min(in_lane));
            outcome = Outcome::Deny {
                retry_after: Some(sooner),
            };
        }
    }
    Evaluation {
        at: now,
        outcome,
        base,
        charged,
        clamped,
    }
}

/// What is left of a budget's slot when a charge is given back, because its caller went away while the
/// answer was held: where it was charged, and only what of it is still spent.
pub fn give_back(charge: &Charge<'_>, verdict: &Verdict, slot: Slot, now: Timestamp) -> Slot {
    let (true, Some(cost)) = (verdict.charged, charge.spend) else {
        return slot;
    };
    let terms = charge.terms();
    if let (Outcome::Excess, Some(lane)) = (verdict.outcome, terms.lane()) {
        // Of the lane no more is known than this charge, taken as the first to drain.
        let (state, _) = lane.advance(slot.lane, now);
        let units = lane.still_spent(state, cost, lane.drained_after(cost), verdict.at, now);
        return Slot {
            lane: lane.refund(state, units),
            ..slot
        };
    }
    let (state, _) = terms.advance(slot.main, now);
    let units = terms.still_spent(state, cost, verdict.view.reset, verdict.at, now);
    Slot {
        main: terms.refund(state, units),
        ..slot
    }
}

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Decision {
    /// The request is over a limit that is enforced.
    pub refused: bool,
    /// One for each charge, in order.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// How long the answer must be held.
    pub wait: Micros,
    /// Part of it was decided without the store.
    pub degraded: bool,
    /// It is a refusal that was known without asking the store.
    pub unasked: bool,
}

/// What one budget had to say, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// When, by the clock of the store that keeps the budget.
    pub at: Timestamp,
    /// How it answered.
    pub outcome: Outcome,
    /// What it shows after the request.
    pub view: View,
    /// The most it can ever show.
    pub capacity: u64,
    /// The request was charged to it.
    pub charged: bool,
    /// A stored time lay too far in the future and was brought back.
    pub clamped: bool,
    /// How it was decided without the store.
    pub degraded: Option<FailureMode>,
}

/// Folds evaluations, one for each charge of `resolved`, into a decision. A request that one enforced
/// limit refuses is charged to none but overdraft limits; a charge that was made is marked `charged`,
/// and its budget's new state is `charged` of its evaluation, `base` otherwise.
pub fn settle(resolved: &Resolved<'_>, evaluations: &[Evaluation]) -> Decision {
    let denies = |i: u16| evaluations[usize::from(i)].denies();
    let enforced = |charge: &Charge<'_>| !charge.shadow && !charge.limit.quota;
    let mut refused = resolved
        .charges
        .iter()
        .zip(evaluations)
        .any(|(charge, evaluation)| enforced(charge) && evaluation.denies());
    // A quota descriptor is over when one of its quota limits is; only all of them together refuse.
    let mut quota = resolved
        .met
        .iter()
        .filter(|met| met.charges.iter().any(|&i| is_quota(resolved, i)))
        .peekable();
    if quota.peek().is_some() {
        refused |= quota.all(|met| over_quota(resolved, &met.charges, denies));
    }
    let mut decision = Decision {
        refused,
        ..Decision::default()
    };
    for (i, (charge, evaluation)) in resolved.charges.iter().zip(evaluations).enumerate() {
        let charged = pays(resolved, i as u16, refused, denies);
        let slot = if charged {
            evaluation.charged
        } else {
            evaluation.base
        };
        if let (Outcome::Wait(wait), true, false) = (evaluation.outcome, charged && !refused, charge.shadow) {
            decision.wait = decision.wait.max(wait);
        }
        let terms = charge.terms();
        decision.verdicts.push(Verdict {
            at: evaluation.at,
            outcome: evaluation.outcome,
            view: terms.view(slot.main, evaluation.at),
            capacity: terms.capacity(),
            charged,
            clamped: evaluation.clamped,
            degraded: None,
        });
    }
    decision
}

/// Whether a charge of a request is made, where the request is refused or not and `denies` says which of
/// its budgets refuse.
pub fn pays(resolved: &Resolved<'_>, i: u16, refused: bool, denies: impl Fn(u16) -> bool + Copy) -> bool {
    let charge = &resolved.charges[usize::from(i)];
    let over = || {
        let mut meeting = resolved.met.iter().filter(|met| met.charges.contains(&i));
        meeting.all(|met| over_quota(resolved, &met.charges, denies))
    };
    charge.spend.is_some_and(|cost| cost > 0)
        && (charge.limit.overdraft || (!refused && !denies(i) && !over()))
}

fn is_quota(resolved: &Resolved<'_>, i: u16) -> bool {
    let charge = &resolved.charges[usize::from(i)];
    charge.limit.quota && !charge.shadow
}

fn over_quota(resolved: &Resolved<'_>, met: &[u16], denies: impl Fn(u16) -> bool) -> bool {
    met.iter().any(|&i| is_quota(resolved, i) && denies(i))
}

impl Evaluation {
    /// Whether the budget refuses.
    pub fn denies(&self) -> bool {
        matches!(self.outcome, Outcome::Deny { .. })
    }
}

impl Decision {
    /// Of these charges, the enforced one that describes them best: the refusing one with the longest
    /// wait, else the tightest: least remaining share, then the smaller capacity, then the first.
    pub fn spokesman(&self, resolved: &Resolved<'_>, charges: impl Iterator<Item = u16>) -> Option<u16> {
        self.tightest(charges.filter(|&i| !resolved.charges[usize::from(i)].shadow))
    }

    /// The same of all of them, enforced or not.
    pub fn tightest(&self, charges: impl Iterator<Item = u16>) -> Option<u16> {
        charges.reduce(|best, other| {
            if self.speaks_before(other, best) {
                other
            } else {
                best
            }
        })
    }

    /// The charge that fills headers and body: among all that refuse the request, or else among all.
    pub fn headline(&self, resolved: &Resolved<'_>) -> Option<u16> {
        let all = 0..resolved.charges.len() as u16;
        if self.refused {
            // A quota limit that is over does not refuse beside an enforced one that does.
            let enforced = |i: &u16| self.denies(*i) && !resolved.charges[usize::from(*i)].limit.quota;
            if let Some(found) = self.spokesman(resolved, all.clone().filter(enforced)) {
                return Some(found);
            }
        }
        let relevant = |i: &u16| self.refused || !self.denies(*i);
        self.spokesman(resolved, all.clone().filter(relevant))
            .or_else(|| self.spokesman(resolved, all))
    }

    /// Whether that charge's budget refused.
    pub fn denies(&self, charge: u16) -> bool {
        matches!(self.verdicts[usize::from(charge)].outcome, Outcome::Deny { .. })
    }

    fn speaks_before(&self, a: u16, b: u16) -> bool {
        let rank = |i: u16| match self.verdicts[usize::from(i)].outcome {
            Outcome::Deny { retry_after } => (true, retry_after.unwrap_or(Micros(u64::MAX))),
            _ => (false, Micros::ZERO),
        };
        if rank(a) != rank(b) {
            return rank(a) > rank(b);
        }
        let (a, b) = (&self.verdicts[usize::from(a)], &self.verdicts[usize::from(b)]);
        // r/c < r'/c' without dividing; an empty capacity has no share left.
        let left = u128::from(a.view.remaining) * u128::from(b.capacity.max(1));
        let right = u128::from(b.view.remaining) * u128::from(a.capacity.max(1));
        (left, a.capacity) < (right, b.capacity)
    }
}

#[cfg(test)]
mod tests;
