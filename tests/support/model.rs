//! The plainest store there can be: a map of states, the engine, nothing else. What others are compared with.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "several tests include it, each uses a part"
)]

use std::cell::RefCell;
use std::collections::HashMap;

use cota::engine::budget::State;
use cota::engine::decision::{Decision, Slot, evaluate, give_back, settle};
use cota::engine::resolve::{Charge, Resolved};
use cota::engine::time::{Micros, Timestamp};

use super::policy::initial;

#[derive(Debug, Default)]
pub struct Model {
    slots: RefCell<HashMap<String, Slot>>,
}

impl Model {
    pub fn decide(&self, resolved: &Resolved<'_>, wait_cap: Micros, now: Timestamp) -> Decision {
        let evaluations: Vec<_> = resolved
            .charges
            .iter()
            .map(|charge| evaluate(charge, self.read(resolved, charge), now, wait_cap))
            .collect();
        let decision = settle(resolved, &evaluations);
        for ((charge, verdict), evaluation) in
            resolved.charges.iter().zip(&decision.verdicts).zip(&evaluations)
        {
            if verdict.charged {
                self.write(resolved, charge, evaluation.charged);
            } else if charge.refund > 0 || verdict.clamped {
                self.write(resolved, charge, evaluation.base);
            }
        }
        decision
    }

    pub fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision, now: Timestamp) {
        for (charge, verdict) in resolved.charges.iter().zip(&decision.verdicts) {
            let slot = give_back(charge, verdict, self.read(resolved, charge), now);
            self.write(resolved, charge, slot);
        }
    }

    /// How many states are kept.
    pub fn len(&self) -> usize {
        let kept = |state: State| usize::from(!initial(state));
        let slots = self.slots.borrow();
        slots.values().map(|slot| kept(slot.main) + kept(slot.lane)).sum()
    }

    fn read<'r>(&self, resolved: &Resolved<'r>, charge: &Charge<'r>) -> Slot {
        let key = resolved.key(charge).text();
        self.slots.borrow().get(&key).copied().unwrap_or_default()
    }

    fn write<'r>(&self, resolved: &Resolved<'r>, charge: &Charge<'r>, slot: Slot) {
        let kept = |state| if initial(state) { State::default() } else { state };
        let slot = Slot {
            main: kept(slot.main),
            lane: kept(slot.lane),
        };
        let key = resolved.key(charge).text();
        self.slots.borrow_mut().insert(key, slot);
    }
}
