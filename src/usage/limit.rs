//! Where the use of one limit is recorded.

use std::hash::Hasher as _;
use std::sync::Arc;

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::near::{NEAR, NearCeiling};
use super::refusals::Refusals;
use super::{Common, LimitSnapshot, Series, name};
use crate::engine::key::BudgetKey;
use crate::engine::time::Timestamp;

/// The use of one limit.
#[derive(Debug)]
pub struct LimitUsage {
    common: Arc<Common>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Made with the first refusal: most limits never refuse.
    refusals: Option<Box<Refusals>>,
    near: NearCeiling,
}

impl LimitUsage {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self {
            common,
            kept: Mutex::default(),
        }
    }

    /// A budget let a request pass, of which then `used` thousandths were used.
    pub fn passed(&self, budget: &BudgetKey<'_>, used: u32) {
        if used < NEAR {
            return;
        }
        // Whoever is near the ceiling comes again: better to miss one than to wait.
        if let Some(mut kept) = self.kept.try_lock() {
            let id = self.id(budget);
            kept.near
                .reached(id, used, self.common.now(), || name::name(budget));
        }
    }

    /// A budget refused a request; `attributed` is the value of the limit's `attribute_to` beside it.
    pub fn refused(&self, budget: &BudgetKey<'_>, attributed: Option<&str>) {
        let id = self.id(budget);
        let attributed = attributed.map(name::value);
        let mut kept = self.kept.lock();
        let labels = || Box::new(Refusals::new(Arc::clone(&self.common.labels)));
        kept.refusals.get_or_insert_with(labels).add(
            id,
            self.common.now(),
            || name::name(budget),
            attributed.as_deref(),
        );
        kept.near.refused(id);
    }

    pub(super) fn turn(&self, began: Timestamp) {
        let mut kept = self.kept.lock();
        kept.near.turn(began, self.common.now());
        if let Some(refusals) = &mut kept.refusals {
            refusals.turn();
        }
    }

    pub(super) fn snapshot(&self, domain: &Arc<str>, limit: &Arc<str>) -> Option<LimitSnapshot> {
        let kept = self.kept.lock();
        let near = kept.near.list();
        if kept.refusals.is_none() && near.is_empty() {
            return None;
        }
        let refusals = kept.refusals.as_deref();
        let (denied, concentration) = refusals.map(Refusals::denied).unwrap_or_default();
        Some(LimitSnapshot {
            domain: Arc::clone(domain),
            limit: Arc::clone(limit),
            refused: refusals.map_or(0, Refusals::total),
            lately: refusals.map_or(0, Refusals::lately),
            denied,
            concentration,
            near,
        })
    }

    pub(super) fn series(&self, domain: &Arc<str>, limit: &Arc<str>) -> Series {
        let kept = self.kept.lock();
        let refusals = kept.refusals.as_deref();
        Series {
            domain: Arc::clone(domain),
            limit: Arc::clone(limit),
            labelled: refusals.map(Refusals::labelled).unwrap_or_default(),
            other: refusals.map_or(0, Refusals::other),
            near: kept.near.len(),
        }
    }

    #[cfg(test)]
    pub(super) fn followed(&self) -> usize {
        self.kept
            .lock()
            .refusals
            .as_ref()
            .map_or(0, |refusals| refusals.followed())
    }

    /// By the entries, as its name is: who is refused before and after the limit's period changed is one caller,
    /// with one series.
    fn id(&self, budget: &BudgetKey<'_>) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.common.key[0], self.common.key[1]);
        for text in budget.entries().flat_map(|(key, value)| [key, value]) {
            hasher.write_u64(text.len() as u64);
            hasher.write(text.as_bytes());
        }
        hasher.finish128().h1
    }
}
