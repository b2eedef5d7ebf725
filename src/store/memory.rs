//! Budgets in this process's memory, bounded.
//!
//! The table is cut into shards by caller, each under a lock that is held for the microsecond of a
//! decision and never across an await; a request that concerns several callers takes their shards in
//! ascending order. Budgets are found by a 96-bit keyed hash of what identifies them: with a million
//! budgets the chance that any two meet is below 1e-16, and without the key nobody can look for such
//! a pair. Together with the state an entry takes 40 bytes. Resets of what a hash does not tell are in
//! [`marks`].

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;
use std::hash::Hasher as _;

use super::{Store, StoreError};
use crate::clock::Clock;
use crate::engine::budget::State;
use crate::engine::decision::{Decision, Evaluation, Slot, evaluate, give_back, settle};
use crate::engine::key::BudgetKey;
use crate::engine::limit::{Excess, Unit};
use crate::engine::reset::Target;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::{Micros, Timestamp};

mod marks;

use marks::{Era, Marks};

/// Enough that two cores rarely meet; few enough that an idle store is small.
const SHARDS: usize = 64;

/// How many entries are looked at to find one to evict, before the best of them is taken. Beyond it
/// only exhausted ones were seen.
const SAMPLE: usize = 24;
const LONGEST_SEARCH: usize = 1_024;

/// A store in memory. State is lost with the process.
pub struct Memory<C> {
    shards: Box<[Mutex<Shard>]>,
    keys: (u64, u64),
    /// What expiries are counted from.
    epoch: Timestamp,
    per_shard: usize,
    evictions: [AtomicU64; 2],
    marks: Marks,
    clock: C,
}

/// What had to leave a full store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// A budget in use, but not spent.
    Active,
    /// A budget that was spent: only where a whole neighbourhood of the table was.
    Exhausted,
}

impl Eviction {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Active, Self::Exhausted];

    /// Its word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Exhausted => "exhausted",
        }
    }
}

#[derive(Default)]
struct Shard {
    table: HashTable<Entry>,
    /// Where the next search for a victim begins.
    cursor: usize,
}

/// One budget, or the lane of one.
struct Entry {
    hash: u64,
    tail: u32,
    /// When it can be forgotten (28 bits of seconds since the store's epoch) and how used it is (4 bits).
    meta: u32,
    /// The state, with the era in which it was written above the 48 bits that a part may have.
    packed: State,
}

const PART_BITS: u32 = 48;

const EXPIRY_BITS: u32 = 28;
const EXPIRY_MAX: u64 = (1 << EXPIRY_BITS) - 1;
const EXHAUSTED: u32 = 15;

impl Entry {
    fn expired(&self, seconds: u64) -> bool {
        let expiry = self.expiry();
        expiry < EXPIRY_MAX && expiry <= seconds
    }

    fn expiry(&self) -> u64 {
        u64::from(self.meta) & EXPIRY_MAX
    }

    fn pressure(&self) -> u32 {
        self.meta >> EXPIRY_BITS
    }

    fn state(&self) -> State {
        State {
            part: self.packed.part & ((1 << PART_BITS) - 1),
            ..self.packed
        }
    }

    fn era(&self) -> Era {
        (self.packed.part >> PART_BITS) as Era
    }
}

fn packed(state: State, era: Era) -> State {
    State {
        part: state.part | u64::from(era) << PART_BITS,
        ..state
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The hash of the caller.
    caller: u64,
    shard: usize,
    hash: u64,
    tail: u32,
}

impl Place {
    /// Where the lane of this budget is kept.
    fn lane(self) -> Self {
        Self {
            tail: !self.tail,
            ..self
        }
    }
}

/// A caller, and a hasher that was fed who that is.
#[derive(Clone, Copy)]
struct Caller {
    hash: u64,
    hasher: SipHasher13,
}

impl Caller {
    /// Where a budget of the caller's is kept.
    fn place(mut self, key: &BudgetKey<'_>) -> Place {
        key.feed_within(&mut self.hasher);
        let hash = self.hasher.finish128();
        Place {
            caller: self.hash,
            shard: self.hash as usize % SHARDS,
            hash: hash.h1,
            tail: hash.h2 as u32,
        }
    }
}

impl<C: Clock> Memory<C> {
    /// A store that keeps at most `max_keys` budgets, within a few per cent.
    pub fn new(clock: C, max_keys: usize) -> Self {
        // A year back, so that a clock that is set back later still finds itself after it.
        let epoch = Timestamp(clock.now().0.saturating_sub(Unit::Year.length().0));
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: (fastrand::u64(..), fastrand::u64(..)),
            epoch,
            per_shard: max_keys.div_ceil(SHARDS).max(1),
            evictions: [const { AtomicU64::new(0) }; 2],
            marks: Marks::default(),
            clock,
        }
    }

    /// How many budgets are kept.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().table.len()).sum()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the tables take.
    pub fn allocated(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().table.allocation_size())
            .sum()
    }

    /// How many budgets of that kind were evicted.
    pub fn evicted(&self, kind: Eviction) -> u64 {
        self.evictions[kind as usize].load(Ordering::Relaxed)
    }

    /// Forgets budgets whose state has become the initial one, in one of [`Self::sweeps`] parts.
    pub fn sweep(&self, part: usize) {
        let seconds = self.seconds();
        self.marks.sweep(seconds);
        let mut shard = self.shards[part % SHARDS].lock();
        shard.table.retain(|entry| !entry.expired(seconds));
        let (len, room) = (shard.table.len(), shard.table.capacity());
        if room > 1_024 && len * 4 < room {
            shard.table.shrink_to(len * 2, |entry| entry.hash);
        }
    }

    /// How many calls of [`Self::sweep`] go round the store once.
    pub fn sweeps(&self) -> usize {
        SHARDS
    }

    /// Makes the budgets that are meant start afresh. What their values tell whole is removed; the others are
    /// known only when they are asked for, so a mark is left for them.
    pub fn reset(&self, targets: &[Target]) {
        for target in targets {
            let values = target.values();
            let place = self.place(&target.key(&values));
            if target.is_one() {
                let mut shard = self.shards[place.shard].lock();
                shard.remove(place);
                shard.remove(place.lane());
            } else {
                self.marks.add(target, place.caller);
                // Under the lock of all that the caller has: what is written after this is of the new era.
                let shard = self.shards[place.shard].lock();
                let ends = shard.table.iter().map(Entry::expiry).max();
                self.marks.end(target, place.caller, ends.unwrap_or_default());
            }
        }
    }

    /// How many resets wait for budgets from before them.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    fn seconds(&self) -> u64 {
        self.clock.now().since(self.epoch).0 / Micros::SECOND.0
    }

    fn place(&self, key: &BudgetKey<'_>) -> Place {
        self.caller(key).place(key)
    }

    fn caller(&self, key: &BudgetKey<'_>) -> Caller {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        key.feed_partition(&mut hasher);
        Caller {
            hash: hasher.finish(),
            hasher,
        }
    }

    fn places(&self, resolved: &Resolved<'_>) -> SmallVec<[Place; 4]> {
        // Most budgets of a request are those of one caller, who is hashed once.
        let mut last: Option<(BudgetKey<'_>, Caller)> = None;
        let place = |charge| {
            let key = resolved.key(charge);
            let caller = match &last {
                Some((before, caller)) if key.shares_caller(before) => *caller,
                _ => self.caller(&key),
            };
            last = Some((key, caller));
            caller.place(&key)
        };
        resolved.charges.iter().map(place).collect()
    }

    /// What is kept of a charge's budget, unless it was reset since.
    fn slot<'r>(
        &self,
        locked: &mut Locked<'_>,
        resolved: &Resolved<'r>,
        charge: &Charge<'r>,
        place: Place,
    ) -> Slot {
        let reset = self.marks.find(&resolved.key(charge), place.caller);
        let shard = locked.shard(place.shard);
        let lane = charge.limit.excess.map(|_| shard.read(place.lane(), reset));
        Slot {
            main: shard.read(place, reset),
            lane: lane.unwrap_or_default(),
        }
    }

    /// Decides at once.
    pub fn decide_now(&self, resolved: &Resolved<'_>, wait_cap: Micros) -> Decision {
        let places = self.places(resolved);
        let mut locked = self.lock(&places);
        let now = self.clock.now();
        let mut evaluations: SmallVec<[Evaluation; 4]> = SmallVec::new();
        for (charge, place) in resolved.charges.iter().zip(&places) {
            let slot = self.slot(&mut locked, resolved, charge, *place);
            evaluations.push(evaluate(charge, slot, now, wait_cap));
        }
        let decision = settle(resolved, &evaluations);
        for (i, charge) in resolved.charges.iter().enumerate() {
            let charged = decision.verdicts[i].charged;
            let evaluation = &evaluations[i];
            // A time that was brought back is kept, or the next request would bring it back again.
            if charged || charge.refund > 0 || evaluation.clamped {
                let slot = if charged {
                    evaluation.charged
                } else {
                    evaluation.base
                };
                self.write(&mut locked, places[i], charge, slot, now);
            }
        }
        decision
    }

    fn write(&self, locked: &mut Locked<'_>, place: Place, charge: &Charge<'_>, slot: Slot, now: Timestamp) {
        let shard = locked.shard(place.shard);
        let terms = charge.terms();
        let seconds_at = |at: Timestamp| at.since(self.epoch).secs_ceil().min(EXPIRY_MAX) as u32;
        let seconds = now.since(self.epoch).0 / Micros::SECOND.0;
        let pressure = |used: u64, capacity: u64| {
            let fifteenths = u128::from(used) * u128::from(EXHAUSTED) / u128::from(capacity.max(1));
            u32::try_from(fifteenths).unwrap_or(EXHAUSTED).min(EXHAUSTED)
        };
        let meta = pressure(slot.main.used, terms.capacity()) << EXPIRY_BITS
            | seconds_at(terms.forgotten_at(slot.main, now));
        self.put(shard, place, slot.main, meta, seconds);
        if let (Some(Excess { .. }), Some(lane)) = (charge.limit.excess, terms.lane()) {
            let meta = pressure(slot.lane.used, lane.capacity()) << EXPIRY_BITS
                | seconds_at(lane.forgotten_at(slot.lane, now));
            self.put(shard, place.lane(), slot.lane, meta, seconds);
        }
    }

    fn put(&self, shard: &mut Shard, place: Place, state: State, meta: u32, seconds: u64) {
        let era = self.marks.era();
        let full = shard.table.len() >= self.per_shard;
        let same = |entry: &Entry| entry.hash == place.hash && entry.tail == place.tail;
        let initial = state.used == 0 && state.part == 0;
        if full
            && !initial
            && shard.table.find(place.hash, same).is_none()
            && let Some(kind) = shard.evict(seconds)
        {
            self.evictions[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        match shard.table.entry(place.hash, same, |entry| entry.hash) {
            TableEntry::Occupied(found) if initial => {
                found.remove();
            }
            TableEntry::Occupied(mut found) => {
                let entry = found.get_mut();
                (entry.packed, entry.meta) = (packed(state, era), meta);
            }
            TableEntry::Vacant(free) if !initial => {
                free.insert(Entry {
                    hash: place.hash,
                    tail: place.tail,
                    meta,
                    packed: packed(state, era),
                });
            }
            TableEntry::Vacant(_) => {}
        }
    }

    /// Locks the shards of these places, in ascending order so that two requests never wait for each other.
    fn lock(&self, places: &[Place]) -> Locked<'_> {
        let mut shards: SmallVec<[usize; 4]> = places.iter().map(|place| place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        Locked(shards.into_iter().map(|i| (i, self.shards[i].lock())).collect())
    }
}

struct Locked<'s>(SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>);

impl Locked<'_> {
    fn shard(&mut self, index: usize) -> &mut Shard {
        let found = self.0.iter_mut().find(|(i, _)| *i == index);
        &mut found
            .expect("every shard of a request is locked before it is used")
            .1
    }
}

impl Shard {
    /// What is kept there; what was written before `reset` counts as nothing.
    fn read(&self, place: Place, reset: Option<Era>) -> State {
        let same = |entry: &Entry| entry.hash == place.hash && entry.tail == place.tail;
        let kept = self.table.find(place.hash, same);
        kept.filter(|entry| reset.is_none_or(|reset| !marks::is_before(entry.era(), reset)))
            .map_or_else(State::default, Entry::state)
    }

    fn remove(&mut self, place: Place) {
        let same = |entry: &Entry| entry.hash == place.hash && entry.tail == place.tail;
        if let Ok(entry) = self.table.find_entry(place.hash, same) {
            entry.remove();
        }
    }

    /// Makes room: an expired budget, else the least used of a sample. Spent budgets, which hold an
    /// abuser back, go only when a long search met no other. Says what had to go, if it still mattered.
    fn evict(&mut self, seconds: u64) -> Option<Eviction> {
        let buckets = self.table.num_buckets();
        let (mut best, mut seen) = (None::<(u32, u32, usize)>, 0);
        for step in 0..buckets {
            let index = (self.cursor + step) % buckets;
            let Some(entry) = self.table.get_bucket(index) else {
                continue;
            };
            seen += 1;
            let expiry = entry.meta & EXPIRY_MAX as u32;
            let rank = if entry.expired(seconds) {
                (0, 0, index)
            } else {
                (entry.pressure() + 1, expiry, index)
            };
            best = Some(best.map_or(rank, |best| best.min(rank)));
            let spent_only = best.is_some_and(|best| best.0 > EXHAUSTED);
            if rank.0 == 0 || (seen >= SAMPLE && !spent_only) || seen >= LONGEST_SEARCH {
                break;
            }
        }
        let (rank, _, index) = best?;
        self.cursor = (index + 1) % buckets;
        if let Ok(entry) = self.table.get_bucket_entry(index) {
            entry.remove();
        }
        match rank {
            0 => None,
            rank if rank > EXHAUSTED => Some(Eviction::Exhausted),
            _ => Some(Eviction::Active),
        }
    }
}

impl<C: Clock> Store for Memory<C> {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        Ok(self.decide_now(resolved, wait_cap))
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        let places = self.places(resolved);
        let mut locked = self.lock(&places);
        let now = self.clock.now();
        for (i, charge) in resolved.charges.iter().enumerate() {
            if decision.verdicts[i].charged {
                let slot = self.slot(&mut locked, resolved, charge, places[i]);
                let slot = give_back(charge, &decision.verdicts[i], slot, now);
                self.write(&mut locked, places[i], charge, slot, now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
