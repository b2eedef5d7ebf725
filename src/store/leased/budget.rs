//! A budget that outlives the request that met it: what is needed to charge it in the background.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::engine::budget::Terms;
use crate::engine::found::Found;
use crate::engine::key::{BudgetKey, Values};
use crate::engine::limit::{Limit, Numbers};
use crate::engine::resolve::{Charge, LimitRef, Met, Resolved};

/// A budget, owned.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) limit: Limit,
    pub(super) numbers: Numbers,
    values: Values<'static>,
    caller: Option<usize>,
}

impl Budget {
    pub(super) fn of<'r>(resolved: &Resolved<'r>, charge: &Charge<'r>) -> Self {
        let (limit, key) = (&charge.limit, resolved.key(charge));
        let plain = Limit::plain(
            limit.name.as_deref(),
            limit.identity.clone(),
            limit.algorithm.clone(),
            limit.period.clone(),
            charge.numbers,
        );
        Self {
            // Not what says how a refusal is handled: a block is charged or it is not.
            limit: Limit {
                label: limit.label.clone(),
                ..plain
            },
            numbers: charge.numbers,
            values: key
                .values
                .iter()
                .map(|value| Cow::Owned(value.clone().into_owned()))
                .collect(),
            caller: key.caller,
        }
    }

    pub(super) fn key(&self) -> BudgetKey<'_> {
        BudgetKey {
            identity: &self.limit.identity,
            values: &self.values,
            caller: self.caller,
        }
    }

    pub(super) fn terms(&self) -> Terms<'_> {
        Terms::new(&self.limit, self.numbers)
    }

    /// A request for that many units of it and nothing else.
    pub(super) fn asking(&self, units: u64) -> Resolved<'_> {
        let charge = Charge {
            limit: LimitRef::Policy(&self.limit),
            numbers: self.numbers,
            plan: None,
            changed_by: None,
            met: 0,
            refund: 0,
            spend: Some(units),
            shadow: false,
        };
        let met = Met {
            found: Found::Limits,
            charges: SmallVec::from_slice(&[0]),
            values: self.values.iter().map(|value| Cow::Borrowed(&**value)).collect(),
            caller: self.caller,
            ..Met::default()
        };
        Resolved {
            charges: [charge].into_iter().collect(),
            met: [met].into_iter().collect(),
            ceiling: None,
        }
    }
}
