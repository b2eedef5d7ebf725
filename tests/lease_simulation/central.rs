//! The shared store of the simulation: the engine on a map, an escrow, and a count of what it was asked.

use std::collections::{BTreeMap, HashMap};

use cota::engine::budget::{Outcome, View};
use cota::engine::decision::{Decision, Slot, Verdict, evaluate, give_back, settle};
use cota::engine::lease::{Ask, HELD_FOR};
use cota::engine::limit::{Algorithm, Limit, Numbers};
use cota::engine::resolve::{Charge, LimitRef, Met, Resolved};
use cota::engine::time::{Micros, Timestamp};
use cota::store::Reply;
use cota::store::redis::Return;

/// A request as it travels: one descriptor, and of each charge the budget's key.
#[derive(Clone, Debug)]
pub(crate) struct Asked(Vec<AskedCharge>);

#[derive(Clone, Debug)]
struct AskedCharge {
    key: String,
    limit: Limit,
    numbers: Numbers,
    refund: u64,
    spend: Option<u64>,
    shadow: bool,
}

/// What the store keeps, and what it did.
#[derive(Debug, Default)]
pub(crate) struct Central {
    slots: HashMap<String, Slot>,
    escrow: HashMap<String, BTreeMap<u64, (u64, Timestamp)>>,
    /// Of each replica: units of blocks charged, units given back.
    pub(crate) ledger: Vec<(u64, u64)>,
    pub(crate) calls: u64,
}

impl Asked {
    pub(crate) fn of(resolved: &Resolved<'_>) -> Self {
        let charge = |charge| AskedCharge {
            key: resolved.key(charge).text(),
            limit: (*charge.limit).clone(),
            numbers: charge.numbers,
            refund: charge.refund,
            spend: charge.spend,
            shadow: charge.shadow,
        };
        Self(resolved.charges.iter().map(charge).collect())
    }

    fn resolved(&self) -> Resolved<'_> {
        let met = Met {
            charges: (0..self.0.len() as u16).collect(),
            ..Met::default()
        };
        Resolved {
            charges: self.0.iter().map(AskedCharge::charge).collect(),
            met: [met].into_iter().collect(),
            ceiling: None,
        }
    }
}

impl AskedCharge {
    fn charge(&self) -> Charge<'_> {
        Charge {
            limit: LimitRef::Policy(&self.limit),
            numbers: self.numbers,
            plan: None,
            changed_by: None,
            met: 0,
            refund: self.refund,
            spend: self.spend,
            shadow: self.shadow,
        }
    }
}

impl Central {
    pub(crate) fn decide(&mut self, asked: &Asked, now: Timestamp) -> (Decision, Reply) {
        self.calls += 1;
        let resolved = asked.resolved();
        let slots: Vec<Slot> = asked
            .0
            .iter()
            .map(|asked| self.slots.get(&asked.key).copied().unwrap_or_default())
            .collect();
        let evaluations: Vec<_> = resolved
            .charges
            .iter()
            .zip(&slots)
            .map(|(charge, slot)| evaluate(charge, *slot, now, Micros::ZERO))
            .collect();
        let decision = settle(&resolved, &evaluations);
        for (i, asked) in asked.0.iter().enumerate() {
            let charged = decision.verdicts[i].charged;
            let slot = if charged {
                evaluations[i].charged
            } else {
                evaluations[i].base
            };
            self.slots.insert(asked.key.clone(), slot);
        }
        let reply = Reply {
            charged: !decision.refused,
            now,
            slots: slots.into(),
        };
        (decision, reply)
    }

    pub(crate) fn flush(&mut self) {
        self.slots.clear();
        self.escrow.clear();
    }

    /// A block is charged.
    pub(crate) fn charge(&mut self, asked: &Asked, now: Timestamp, replica: usize) -> Reply {
        let (_, reply) = self.decide(asked, now);
        if reply.charged {
            self.ledger[replica].0 += asked.0[0].spend.unwrap_or_default();
        }
        reply
    }

    /// A part of a block comes back: by the engine, as it would of a request whose caller went away.
    pub(crate) fn refund(&mut self, asked: &Asked, part: Return, now: Timestamp, replica: usize) {
        self.calls += 1;
        self.ledger[replica].1 += part.units;
        let resolved = asked.resolved();
        let charge = &resolved.charges[0];
        let at = match &charge.limit.algorithm {
            Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => windows.start(part.born),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Timestamp(part.born),
        };
        let verdict = Verdict {
            at,
            outcome: Outcome::Allow,
            view: View {
                reset: part.lasts,
                ..View::default()
            },
            capacity: 0,
            charged: true,
            clamped: false,
            degraded: None,
        };
        let slot = self.slots.entry(asked.0[0].key.clone()).or_default();
        *slot = give_back(charge, &verdict, *slot, now);
    }

    pub(crate) fn reserve(&mut self, budget: &str, id: u64, ask: &Ask, now: Timestamp) -> u64 {
        self.calls += 1;
        let blocks = self.escrow.entry(budget.to_owned()).or_default();
        blocks.retain(|id, (_, ends)| *ends > now && !ask.spent.contains(id));
        let held: u64 = blocks.values().map(|(units, _)| units).sum();
        let units = ask.units.min(ask.bound.saturating_sub(held));
        if units < ask.least {
            return 0;
        }
        blocks.insert(id, (units, now.plus(HELD_FOR)));
        units
    }

    pub(crate) fn strike(&mut self, budget: &str, id: u64) -> bool {
        self.calls += 1;
        let blocks = self.escrow.get_mut(budget);
        blocks.is_some_and(|blocks| blocks.remove(&id).is_some())
    }
}
