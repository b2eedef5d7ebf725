//! Resets of budgets that a table of hashes cannot find: they are known when they are next asked for.
//!
//! Each mark begins an era, and each entry of the table knows in which it was written: one from before a
//! mark that means it counts as fresh. A mark is forgotten when nothing from before can live any more.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::engine::key::BudgetKey;
use crate::engine::reset::Target;

/// Counts marks, round and round.
pub(super) type Era = u16;

/// Beyond it the mark that would end first goes early: what it reset may come back.
const MOST: usize = 10_000;

/// Marks, by limit and caller.
#[derive(Debug, Default)]
pub(super) struct Marks {
    era: AtomicU16,
    count: AtomicUsize,
    marks: RwLock<HashMap<(u128, u64), Vec<Mark>>>,
}

#[derive(Debug)]
struct Mark {
    target: Target,
    era: Era,
    /// The second, as entries count, at which the last from before it can be forgotten.
    ends: u64,
}

/// Whether what was written in one era is older than a mark. An entry that lives through half of all eras
/// without being written is taken for a newer one: after 32,768 marks.
pub(super) fn is_before(written: Era, mark: Era) -> bool {
    (1..=Era::MAX / 2).contains(&mark.wrapping_sub(written))
}

impl Marks {
    /// The era of what is written now. To be read under the lock of the entry.
    pub(super) fn era(&self) -> Era {
        self.era.load(Ordering::Acquire)
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Leaves a mark, which takes the place of one for the same budgets. It has no end yet.
    pub(super) fn add(&self, target: &Target, caller: u64) {
        let mut marks = self.marks.write();
        let era = self.era().wrapping_add(1);
        let mark = Mark {
            target: target.clone(),
            era,
            ends: u64::MAX,
        };
        let same = marks.entry(key(target, caller)).or_default();
        same.retain(|mark| mark.target.values != target.values);
        same.push(mark);
        let mut count: usize = marks.values().map(Vec::len).sum();
        if count > MOST {
            let ends = marks.values().flatten().map(|mark| mark.ends).min();
            count = forget(&mut marks, ends.unwrap_or_default());
        }
        self.count.store(count, Ordering::Release);
        // After the mark can be seen: whoever writes in the new era has seen it.
        self.era.store(era, Ordering::Release);
    }

    /// Says when the last that was written before a mark can be forgotten.
    pub(super) fn end(&self, target: &Target, caller: u64, ends: u64) {
        let mut marks = self.marks.write();
        let of_limit = marks.get_mut(&key(target, caller)).into_iter().flatten();
        for mark in of_limit.filter(|mark| mark.target.values == target.values) {
            mark.ends = ends;
        }
    }

    /// The newest mark that means a budget.
    pub(super) fn find(&self, budget: &BudgetKey<'_>, caller: u64) -> Option<Era> {
        if self.len() == 0 {
            return None;
        }
        let marks = self.marks.read();
        let of_limit = marks.get(&(budget.identity.digest(), caller))?;
        // The last is the newest.
        let found = of_limit.iter().rev().find(|mark| mark.target.means(budget));
        found.map(|mark| mark.era)
    }

    /// Forgets marks that have ended.
    pub(super) fn sweep(&self, seconds: u64) {
        if self.len() > 0 {
            let count = forget(&mut self.marks.write(), seconds);
            self.count.store(count, Ordering::Release);
        }
    }
}

fn key(target: &Target, caller: u64) -> (u128, u64) {
    (target.limit.identity.digest(), caller)
}

/// Forgets what ends by that second; says how many stay.
fn forget(marks: &mut HashMap<(u128, u64), Vec<Mark>>, seconds: u64) -> usize {
    marks.retain(|_, of_limit| {
        of_limit.retain(|mark| mark.ends > seconds);
        !of_limit.is_empty()
    });
    marks.values().map(Vec::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eras_go_round() {
        assert!(is_before(0, 1));
        assert!(!is_before(1, 1));
        assert!(!is_before(2, 1));
        assert!(is_before(Era::MAX, 3));
        assert!(!is_before(3, Era::MAX));
    }
}
