//! Leases: units that a replica charges to a shared budget ahead and spends alone.
//!
//! Units are charged when they are taken, so the budget's own arithmetic bounds what is let pass in the
//! long run. The error is in when: what was charged before an instant may be spent after it. In any span
//! of time no more passes than the limit alone would let pass and what replicas held as it began, and
//! that sum is kept within [`bound`]. A block dies with its window, so the count of one window has no error.
//!
//! Times here are the replica's own, from a clock that only has to run at about the pace of the store's: a
//! block's life is counted from before it was asked for, and is shorter here than there.

use smallvec::SmallVec;

use super::budget::{State, Terms, View};
use super::limit::{Algorithm, Numbers, Share};
use super::time::{Micros, Timestamp};

/// How long the store counts a block as held.
pub const HELD_FOR: Micros = Micros::from_secs(2);

/// How long a replica spends a block. What is left of it then has the rest of [`HELD_FOR`] to go back.
const SPENT_FOR: Micros = Micros::from_millis(1_500);

/// How long before the end of its window, reckoned at its latest, a block dies.
const GUARD: Micros = Micros::from_millis(5);

/// How long units may lie unused before they go back, and how long none are asked for then.
const COOLS: Micros = Micros::from_millis(500);

/// How long nothing is asked for after the store had nothing to give.
const REFUSED: Micros = Micros::from_millis(50);

/// The same after it gave no answer.
const UNANSWERED: Micros = Micros::from_millis(500);

/// Demand is counted in spans of this length, and a block is to last for so many.
const SPAN: Micros = Micros::from_millis(100);
const SPANS: u64 = 5;

/// The fewest requests that a block is taken for: it takes two calls of the store.
const LEAST: u64 = 8;

/// The smallest bound that is of use: one replica may hold two blocks.
pub const LEAST_BOUND: u64 = 2 * LEAST;

/// The most units of one budget that all replicas hold together: the share of what the budget lets pass at
/// once, its burst or the limit of its window. A share of `requests_per_unit` would be several times the burst
/// of most buckets; what passes in any span of time is at least the burst, so the error is never above the share.
pub fn bound(terms: &Terms<'_>, share: Share) -> u64 {
    share.of(terms.capacity())
}

/// What a replica asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Units.
    pub units: u64,
    /// Fewer are of no use.
    pub least: u64,
    /// What all replicas may hold.
    pub bound: u64,
    /// Blocks that this replica no longer holds.
    pub spent: SmallVec<[u64; 4]>,
}

/// Units taken ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// What the store calls it.
    pub id: u64,
    /// What is left of it.
    pub left: u64,
    /// When this replica stops spending it.
    pub dies: Timestamp,
    /// When the next one should be on its way, if there is one before this is spent.
    pub ages: Timestamp,
    /// When it was charged, and how long its bucket was to take to be empty: for giving back.
    pub born: u64,
    /// See `born`.
    pub lasts: Micros,
}

/// What the store said of a budget when it was last asked, less what this replica spent since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The state, with all that is held counted as spent.
    pub state: State,
    /// The store's time.
    pub at: Timestamp,
    /// Ours, when we heard of it.
    pub heard: Timestamp,
}

/// What one replica holds and knows of one budget.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The numbers all of it is about.
    numbers: Numbers,
    demand: Demand,
    blocks: SmallVec<[Block; 2]>,
    /// The block that is being taken.
    taking: Option<u64>,
    /// Blocks that were spent, or not taken, and of which the store is yet to hear.
    spent: SmallVec<[u64; 4]>,
    said: Option<Said>,
    /// What was there to spend when the store was last asked.
    remaining: Option<u64>,
    /// With more in hand than this, nothing is asked for.
    enough: u64,
    not_before: Timestamp,
    /// When a block was last taken, or spent from.
    used: Timestamp,
}

impl Lease {
    /// Nothing held.
    pub fn new(numbers: Numbers, now: Timestamp) -> Self {
        Self {
            numbers,
            demand: Demand::new(now),
            blocks: SmallVec::new(),
            taking: None,
            spent: SmallVec::new(),
            said: None,
            remaining: None,
            enough: 0,
            not_before: now,
            used: now,
        }
    }

    /// Counts a request. Whether what is held could pay it: under other numbers than those it was taken
    /// under nothing can.
    pub fn covers(&mut self, numbers: Numbers, cost: u64, now: Timestamp) -> bool {
        if numbers != self.numbers {
            if self.is_held() {
                return false;
            }
            *self = Self::new(numbers, now);
        }
        self.demand.add(cost, now);
        self.said.is_some() && cost <= self.in_hand(now)
    }

    /// Spends what [`Self::covers`] said could be spent, the oldest first.
    pub fn spend(&mut self, mut cost: u64, now: Timestamp) {
        self.used = now;
        for block in self.blocks.iter_mut().filter(|block| now < block.dies) {
            let part = cost.min(block.left);
            block.left -= part;
            cost -= part;
        }
        debug_assert_eq!(cost, 0, "covered");
        let spent = &mut self.spent;
        self.blocks.retain(|block| {
            if block.left == 0 {
                spent.push(block.id);
            }
            block.left > 0
        });
    }

    /// What the budget shows, and when by the store's clock: as it was then, less what was spent since.
    /// What came back to it meanwhile, and what others spent, is not in it.
    pub fn view(&self, terms: &Terms<'_>, now: Timestamp) -> Option<(View, Timestamp)> {
        let said = self.said?;
        let state = terms.refund(said.state, self.in_hand(now));
        let mut view = terms.view(state, said.at);
        let since = now.since(said.heard);
        view.reset = view.reset.saturating_sub(since);
        if view.next_unit > Micros::ZERO {
            // Not counted as back before the store says so.
            view.next_unit = view.next_unit.saturating_sub(since).max(Micros(1));
        }
        Some((view, said.at))
    }

    /// What to ask the store for now, if anything. It is being taken from then on, under a name from `id`.
    pub fn ask(
        &mut self,
        numbers: Numbers,
        terms: &Terms<'_>,
        replicas: u32,
        id: impl FnOnce() -> u64,
        now: Timestamp,
    ) -> Option<(u64, Ask)> {
        let in_hand = self.lasting(now);
        if self.taking.is_some() || now < self.not_before || (in_hand > self.enough && self.enough > 0) {
            return None;
        }
        if numbers != self.numbers {
            return None;
        }
        let bound = bound(terms, self.numbers.max_overshoot);
        let (requests, units) = self.demand.expected(now);
        let least = units.div_ceil(requests.max(1)).max(1).saturating_mul(LEAST);
        // Two blocks of each replica fit the bound: the one being spent and the next. Where that leaves
        // too little, the first to come have it.
        let replicas = 2 * u64::from(replicas.max(1));
        let most = (bound / replicas).max(least).min(bound / 2);
        // Of a budget that is nearly spent the others need some too.
        let there = self.remaining? / replicas;
        let units = units.min(most).min(there);
        if units < least || in_hand > units / 2 {
            return None;
        }
        let id = id();
        self.taking = Some(id);
        let ask = Ask {
            units,
            least,
            bound,
            spent: std::mem::take(&mut self.spent),
        };
        Some((id, ask))
    }

    /// What was asked for is there. `false` if the lease was forgotten meanwhile.
    pub fn take(&mut self, block: Block, said: Said, terms: &Terms<'_>, now: Timestamp) -> bool {
        if self.taking != Some(block.id) {
            return false;
        }
        self.taking = None;
        self.used = now;
        if now >= block.dies {
            // Its window is about to end.
            self.not_before = block.dies.plus(GUARD).plus(GUARD);
        }
        self.enough = block.left / 2;
        self.remaining = Some(terms.view(said.state, said.at).remaining);
        self.said = Some(said);
        self.blocks.push(block);
        true
    }

    /// What was asked for is not there. `answered` says whether the store said so; if not, the block's fate is
    /// unknown, and it is not spent.
    pub fn miss(&mut self, id: u64, answered: bool, now: Timestamp) {
        if self.taking == Some(id) {
            self.taking = None;
            self.spent.push(id);
            self.enough = 0;
            self.not_before = now.plus(if answered { REFUSED } else { UNANSWERED });
        }
    }

    /// The store decided a request itself, and charged that cost.
    pub fn hear(&mut self, numbers: Numbers, remaining: u64, charged: u64) {
        if numbers != self.numbers {
            return;
        }
        self.remaining = Some(remaining);
        if let Some(said) = &mut self.said {
            said.state.used = said.state.used.saturating_add(charged);
        }
    }

    /// Takes out what is to go back: what has died, and all if none of it is used. The caller has fallen
    /// silent then, or it meets another limit of which nothing is held.
    pub fn tend(&mut self, now: Timestamp) -> SmallVec<[Block; 2]> {
        let silent = !self.blocks.is_empty() && now.since(self.used) >= COOLS;
        if silent {
            self.not_before = now.plus(COOLS);
        }
        let mut back = SmallVec::new();
        self.blocks.retain(|block| {
            let goes = silent || now >= block.dies;
            if goes {
                back.push(*block);
            }
            !goes
        });
        back
    }

    /// Takes all out.
    pub fn end(&mut self) -> SmallVec<[Block; 2]> {
        std::mem::take(&mut self.blocks)
    }

    /// Whether units are held, or on their way.
    pub fn is_held(&self) -> bool {
        self.taking.is_some() || !self.blocks.is_empty()
    }

    /// Whether nothing is lost if it is forgotten: nothing held, and few requests.
    pub fn is_cold(&self, now: Timestamp) -> bool {
        let (requests, _) = self.demand.expected(now);
        !self.is_held() && requests < LEAST
    }

    /// What can be spent now.
    pub fn in_hand(&self, now: Timestamp) -> u64 {
        let live = self.blocks.iter().filter(|block| now < block.dies);
        live.map(|block| block.left).sum()
    }

    /// The same without what should be followed by another block now.
    fn lasting(&self, now: Timestamp) -> u64 {
        let live = self
            .blocks
            .iter()
            .filter(|block| now < block.dies.min(block.ages));
        live.map(|block| block.left).sum()
    }
}

impl Block {
    /// A block that was asked for at `asked` and charged at `said`, by a call that was made at `called`.
    pub fn new(
        id: u64,
        units: u64,
        said: &Said,
        (born, lasts): (u64, Micros),
        terms: &Terms<'_>,
        (asked, called): (Timestamp, Timestamp),
    ) -> Self {
        let dies = asked.plus(SPENT_FOR);
        let ages = dies;
        let dies = match terms.algorithm {
            Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => {
                // The store's clock may have gone on since `called` for as long as ours has.
                let left = windows.window(said.state.at).end.since(said.at);
                dies.min(called.plus(left.saturating_sub(GUARD)))
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => dies,
        };
        Self {
            id,
            left: units,
            dies,
            // A block that dies with its window is not followed by another in the same window.
            ages: if dies < ages {
                ages
            } else {
                Timestamp(ages.0.saturating_sub(SPAN.0))
            },
            born,
            lasts,
        }
    }
}

/// How much is asked of a budget here.
#[derive(Clone, Copy, Debug)]
struct Demand {
    began: Timestamp,
    /// In the current span.
    now: [u64; 2],
    /// In a span as they were lately: each weighs half of the next.
    lately: [u64; 2],
}

impl Demand {
    fn new(now: Timestamp) -> Self {
        Self {
            began: now,
            now: [0; 2],
            lately: [0; 2],
        }
    }

    fn add(&mut self, cost: u64, now: Timestamp) {
        *self = self.at(now);
        self.now[0] += 1;
        self.now[1] = self.now[1].saturating_add(cost);
    }

    /// Requests and units that a block is to last for.
    fn expected(&self, now: Timestamp) -> (u64, u64) {
        let at = self.at(now);
        let most = |i: usize| at.lately[i].max(at.now[i]).saturating_mul(SPANS);
        (most(0), most(1))
    }

    fn at(&self, now: Timestamp) -> Self {
        let spans = now.since(self.began).0 / SPAN.0;
        if spans == 0 {
            return *self;
        }
        let fade = u32::try_from(spans - 1).unwrap_or(u32::MAX);
        let half = |i: usize| (self.lately[i].saturating_add(self.now[i]) / 2).checked_shr(fade);
        Self {
            began: self.began.plus(Micros(spans * SPAN.0)),
            now: [0; 2],
            lately: [half(0).unwrap_or(0), half(1).unwrap_or(0)],
        }
    }
}

#[cfg(test)]
mod tests;
