//! Charges that are given back: another part of the request refused it, or its caller went away.

use super::script;
use crate::engine::budget::Outcome;
use crate::engine::decision::{Evaluation, Verdict};
use crate::engine::limit::Algorithm;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::{Micros, Timestamp};

/// A charge that was made and is given back.
#[derive(Clone, Copy, Debug)]
pub struct Return {
    /// Its position in the request.
    pub charge: u16,
    /// What it took.
    pub units: u64,
    /// It was made to the lane.
    pub lane: bool,
    /// When it was made: of windows the number of the one it counts in, else the time, by the clock of its
    /// store.
    pub born: u64,
    /// After how long what it was charged to was to be empty; 285 years stand for longer.
    pub lasts: Micros,
}

impl Return {
    /// The charge at that position as it was evaluated: just what it added.
    pub fn of_evaluated(position: u16, charge: &Charge<'_>, evaluation: &Evaluation) -> Self {
        let (before, after) = (evaluation.base, evaluation.charged);
        let terms = charge.terms();
        let (terms, before, after, lane) = match (evaluation.outcome, terms.lane()) {
            (Outcome::Excess, Some(lane)) => (lane, before.lane, after.lane, true),
            _ => (terms, before.main, after.main, false),
        };
        Self {
            charge: position,
            units: after.used - before.used,
            lane,
            born: match terms.algorithm {
                Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => after.at,
                Algorithm::TokenBucket | Algorithm::LeakyBucket => evaluation.at.0,
            },
            lasts: terms.view(after, evaluation.at).reset,
        }
    }

    /// The charge at that position as it was decided, with what [`crate::engine::decision::give_back`]
    /// knows of it.
    pub fn of_decided(position: u16, charge: &Charge<'_>, verdict: &Verdict) -> Self {
        let cost = charge.spend.unwrap_or_default();
        let lane = charge.terms().lane();
        let lane = lane.filter(|_| verdict.outcome == Outcome::Excess);
        Self {
            charge: position,
            units: cost,
            lane: lane.is_some(),
            born: match &charge.limit.algorithm {
                Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => {
                    windows.at(verdict.at).index
                }
                Algorithm::TokenBucket | Algorithm::LeakyBucket => verdict.at.0,
            },
            lasts: lane.map_or(verdict.view.reset, |lane| lane.drained_after(cost)),
        }
    }
}

/// A call that gives back: owned, so that it can go on when its request is gone.
#[derive(Debug)]
pub struct GiveBack {
    pub(super) call: script::Call,
    pub(super) charges: usize,
}

impl GiveBack {
    /// The call that gives back some charges of one caller; nothing to give back is `None`. `now` is ours
    /// and picks calendar windows only: what is still spent of them is for the store to say.
    pub fn of(resolved: &Resolved<'_>, returns: &[Return], now: Timestamp) -> Option<Self> {
        (!returns.is_empty()).then(|| Self {
            call: script::give_back(resolved, returns, now),
            charges: returns.len(),
        })
    }
}
