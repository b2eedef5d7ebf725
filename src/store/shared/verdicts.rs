//! Verdicts of limits that the store was not asked about.

use crate::engine::budget::{Outcome, State, View};
use crate::engine::decision::{Evaluation, Slot, Verdict};
use crate::engine::limit::FailureMode;
use crate::engine::resolve::Charge;
use crate::engine::time::{Micros, Timestamp};

/// When a request refused for want of a store may come again: about when the store is asked again.
const DENIED_FOR: Micros = Micros::SECOND;

/// An evaluation that only says how a budget answered: its verdict is known from elsewhere.
pub(super) fn standing_in(verdict: &Verdict) -> Evaluation {
    Evaluation {
        at: verdict.at,
        outcome: verdict.outcome,
        base: Slot::default(),
        charged: Slot::default(),
        clamped: false,
    }
}

/// The verdict of a limit whose store gave no answer, by a mode that keeps nothing.
pub(super) fn without_store(charge: &Charge<'_>, mode: FailureMode, now: Timestamp) -> Verdict {
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
pub(super) fn denied(charge: &Charge<'_>, wait: Micros, now: Timestamp) -> Verdict {
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
pub(super) fn untouched(charge: &Charge<'_>, now: Timestamp) -> Verdict {
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
