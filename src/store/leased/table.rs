//! What is held and seen of each budget, bounded.

use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use super::budget::Budget;
use super::{Holding, Job};
use crate::engine::key::BudgetKey;
use crate::engine::lease::{Block, Lease, bound};
use crate::engine::limit::Numbers;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::Timestamp;

/// Enough that two cores rarely meet.
const SHARDS: usize = 64;

/// How many budgets a shard has room for, of those that were asked for lately: 10,000 in all, in some 4 MB. A
/// caller that finds no room asks the store.
const ROOM: usize = 160;

/// The budgets of which something is held, or that are watched.
pub(super) struct Table {
    shards: Box<[Mutex<HashTable<Entry>>]>,
    keys: (u64, u64),
}

/// What is known of one budget.
pub(super) struct Entry {
    place: Place,
    pub(super) lease: Lease,
    /// Made when units are first asked for.
    budget: Option<Arc<Budget>>,
}

/// Where a budget is found: by a keyed hash, as in the memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    hash: u64,
    tail: u64,
}

impl Place {
    fn shard(self) -> usize {
        self.tail as usize % SHARDS
    }
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: (fastrand::u64(..), fastrand::u64(..)),
        }
    }

    /// The places of a request's budgets.
    pub(super) fn places(&self, resolved: &Resolved<'_>) -> SmallVec<[Place; 4]> {
        let place = |charge| {
            let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
            resolved.key(charge).feed(&mut hasher);
            let hash = hasher.finish128();
            Place {
                hash: hash.h1,
                tail: hash.h2,
            }
        };
        resolved.charges.iter().map(place).collect()
    }

    /// Locks what these places are in, in ascending order so that two requests never wait for each other.
    pub(super) fn lock(&self, places: &[Place]) -> Locked<'_> {
        let mut shards: SmallVec<[usize; 4]> = places.iter().map(|place| place.shard()).collect();
        shards.sort_unstable();
        shards.dedup();
        Locked(shards.into_iter().map(|i| (i, self.shards[i].lock())).collect())
    }

    /// What is to go back; budgets that are asked for no more are forgotten.
    pub(super) fn tend(&self, now: Timestamp) -> Vec<Job> {
        let mut jobs = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.is_empty() {
                continue;
            }
            shard.retain(|entry| {
                let blocks = entry.lease.tend(now);
                if let (Some(budget), false) = (&entry.budget, blocks.is_empty()) {
                    let budget = Arc::clone(budget);
                    jobs.push(Job::Settle { budget, blocks });
                }
                !entry.lease.is_cold(now)
            });
        }
        jobs
    }

    /// Takes out all that is held.
    pub(super) fn end(&self) -> Vec<(Arc<Budget>, SmallVec<[Block; 2]>)> {
        let mut held = Vec::new();
        for shard in &self.shards {
            for entry in shard.lock().iter_mut() {
                held.extend(entry.budget.clone().map(|budget| (budget, entry.lease.end())));
            }
        }
        held
    }

    /// Forgets what is held of budgets that match.
    pub(super) fn forget(&self, mut matches: impl FnMut(&BudgetKey<'_>) -> bool) {
        for shard in &self.shards {
            shard.lock().retain(|entry| {
                let budget = entry.budget.as_ref();
                !budget.is_some_and(|budget| matches(&budget.key()))
            });
        }
    }

    pub(super) fn holdings(&self, now: Timestamp) -> Vec<Holding> {
        let mut holdings: Vec<Holding> = Vec::new();
        for shard in &self.shards {
            for entry in shard.lock().iter().filter(|entry| entry.lease.is_held()) {
                let Some(budget) = &entry.budget else { continue };
                let (domain, limit) = (budget.limit.identity.domain(), &budget.limit.label);
                let units = entry.lease.in_hand(now);
                let bound = bound(&budget.terms(), budget.numbers.max_overshoot);
                match holdings
                    .iter_mut()
                    .find(|held| *held.domain == *domain && held.limit == *limit)
                {
                    Some(held) => {
                        held.units += units;
                        held.bound += bound;
                    }
                    None => holdings.push(Holding {
                        domain: domain.into(),
                        limit: limit.clone(),
                        units,
                        bound,
                    }),
                }
            }
        }
        holdings
    }
}

/// The entries that a request concerns.
pub(super) struct Locked<'t>(SmallVec<[(usize, MutexGuard<'t, HashTable<Entry>>); 4]>);

impl Locked<'_> {
    /// The entry at that place, made if there is room.
    pub(super) fn entry(&mut self, place: Place, numbers: Numbers, now: Timestamp) -> Option<&mut Entry> {
        let shard = self.shard(place);
        let full = shard.len() >= ROOM;
        match shard.entry(place.hash, |entry| entry.place == place, |entry| entry.place.hash) {
            TableEntry::Occupied(found) => Some(found.into_mut()),
            TableEntry::Vacant(_) if full => None,
            TableEntry::Vacant(free) => {
                let entry = Entry {
                    place,
                    lease: Lease::new(numbers, now),
                    budget: None,
                };
                Some(free.insert(entry).into_mut())
            }
        }
    }

    /// The entry at that place, if there is one.
    pub(super) fn found(&mut self, place: Place) -> Option<&mut Entry> {
        self.shard(place)
            .find_mut(place.hash, |entry| entry.place == place)
    }

    fn shard(&mut self, place: Place) -> &mut HashTable<Entry> {
        let found = self.0.iter_mut().find(|(i, _)| *i == place.shard());
        &mut found
            .expect("every shard of a request is locked before it is used")
            .1
    }
}

impl Entry {
    /// The budget, with its present numbers.
    pub(super) fn budget<'r>(&mut self, resolved: &Resolved<'r>, charge: &Charge<'r>) -> Arc<Budget> {
        let known = self.budget.as_ref();
        if let Some(budget) = known.filter(|budget| budget.numbers == charge.numbers) {
            return Arc::clone(budget);
        }
        let budget = Arc::new(Budget::of(resolved, charge));
        self.budget = Some(Arc::clone(&budget));
        budget
    }
}
