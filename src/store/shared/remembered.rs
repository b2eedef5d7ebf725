//! What the store held of callers that it refused, for a second: while that still refuses them, it need
//! not be asked.
//!
//! States are remembered, not refusals. A request whose every budget is known is evaluated against them at
//! the present time, and only if that refuses it, and charges nothing, is it answered from here. What was
//! spent since can only make the true answer a refusal all the more, a cheaper cost is judged by itself, and
//! a changed limit holds at once. Only units that come back could make a memory wrong: what comes back
//! through this replica is forgotten before its caller is answered, what comes back through another is seen
//! after a second at most.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use super::Group;
use crate::engine::decision::{Decision, Evaluation, Slot, evaluate, settle};
use crate::engine::resolve::Resolved;
use crate::engine::time::{Micros, Timestamp};

/// How long a state is remembered.
const HOLDS: Micros = Micros::SECOND;

/// Enough that two cores rarely meet.
const SHARDS: usize = 16;

/// How many callers a shard knows. One that is full knows no more until a second has passed: with some 400
/// bytes a caller, 13 MB in all.
const CALLERS: usize = 2_048;

/// How many budgets of one caller are known; with more, the eldest is forgotten.
const BUDGETS: usize = 16;

/// What is remembered of refused callers.
pub(super) struct Remembered {
    shards: [Mutex<Shard>; SHARDS],
    /// How many callers are known: none, mostly, and then nothing is looked up.
    known: AtomicUsize,
    keys: (u64, u64),
}

#[derive(Default)]
struct Shard {
    callers: HashMap<u128, SmallVec<[Known; 4]>>,
    /// When a caller of this shard was last forgotten: what was asked for before may be older than that.
    forgot: Option<Micros>,
}

/// What the store holds of one caller's budgets, by charge.
pub(super) struct States {
    pub(super) slots: SmallVec<[(u16, Slot); 4]>,
    pub(super) held: Timestamp,
}

/// One budget as the store held it.
#[derive(Clone, Copy)]
struct Known {
    budget: u128,
    slot: Slot,
    /// The store's time.
    held: Timestamp,
    /// Ours, before it was asked.
    asked: Micros,
}

impl Known {
    /// How long ago it was asked for, unless that is too long.
    fn age(&self, now: Micros) -> Option<Micros> {
        let age = now.0.checked_sub(self.asked.0).map(Micros)?;
        (age < HOLDS).then_some(age)
    }
}

impl Default for Remembered {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            known: AtomicUsize::new(0),
            keys: (fastrand::u64(..), fastrand::u64(..)),
        }
    }
}

impl Remembered {
    /// Whether nobody is known.
    pub(super) fn is_empty(&self) -> bool {
        self.known.load(Ordering::Relaxed) == 0
    }

    /// The answer to a request that is refused for certain, whatever the store would say. Every time here is
    /// [`crate::clock::Clock::elapsed`].
    pub(super) fn refuse(
        &self,
        resolved: &Resolved<'_>,
        groups: &[Group],
        wait_cap: Micros,
        now: Micros,
    ) -> Option<Decision> {
        if self.is_empty() || resolved.charges.iter().any(|charge| charge.refund > 0) {
            return None;
        }
        let mut evaluated: SmallVec<[Option<Evaluation>; 4]> =
            SmallVec::from_elem(None, resolved.charges.len());
        for group in groups {
            let caller = self.caller(resolved, group);
            let shard = self.shard(caller).lock();
            let known = shard.callers.get(&caller)?;
            for &i in group {
                let charge = &resolved.charges[usize::from(i)];
                let budget = self.budget(resolved, i);
                let known = known.iter().find(|known| known.budget == budget)?;
                let age = known.age(now)?;
                // Asked before it was held: the store's time now is this or less.
                let evaluation = evaluate(charge, known.slot, known.held.plus(age), wait_cap);
                evaluated[usize::from(i)] = Some(Evaluation {
                    // Counted when the store brought it back.
                    clamped: false,
                    ..evaluation
                });
            }
        }
        let evaluated: SmallVec<[Evaluation; 4]> = evaluated.into_iter().flatten().collect();
        let decision = settle(resolved, &evaluated);
        let charges = decision.verdicts.iter().any(|verdict| verdict.charged);
        (decision.refused && !charges).then_some(Decision {
            unasked: true,
            ..decision
        })
    }

    /// Keeps what the store now holds of a caller's budgets, said by an answer that was asked for at `asked`:
    /// of one that it refused, and of one that is known from before, so that what is shown of it is true.
    pub(super) fn keep(
        &self,
        resolved: &Resolved<'_>,
        states: &States,
        refused: bool,
        asked: Micros,
        now: Micros,
    ) {
        let Some(&(first, _)) = states.slots.first() else {
            return;
        };
        let caller = self.caller(resolved, &[first]);
        let mut shard = self.shard(caller).lock();
        if shard.forgot.is_some_and(|forgot| asked <= forgot) {
            // This may be older than what came back meanwhile, to whomever of this shard; and what is known
            // from before it is older still.
            if shard.callers.remove(&caller).is_some() {
                self.known.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
        let new = !shard.callers.contains_key(&caller);
        if new && !refused {
            return;
        }
        if new && shard.callers.len() >= CALLERS {
            self.tidy(&mut shard, now);
            if shard.callers.len() >= CALLERS {
                return;
            }
        }
        let known = shard.callers.entry(caller).or_default();
        known.retain(|known| known.age(now).is_some());
        for &(i, slot) in &states.slots {
            let fresh = Known {
                budget: self.budget(resolved, i),
                slot,
                held: states.held,
                asked,
            };
            match known.iter_mut().find(|known| known.budget == fresh.budget) {
                Some(known) if known.held > fresh.held => {}
                Some(known) => *known = fresh,
                None => {
                    if known.len() >= BUDGETS {
                        known.remove(0);
                    }
                    known.push(fresh);
                }
            }
        }
        self.known.fetch_add(usize::from(new), Ordering::Relaxed);
    }

    /// Forgets the callers of a request: units come back to them.
    pub(super) fn forget(&self, callers: impl Iterator<Item = u128>, now: Micros) {
        for caller in callers {
            let mut shard = self.shard(caller).lock();
            shard.forgot = Some(now);
            if shard.callers.remove(&caller).is_some() {
                self.known.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Forgets everybody: budgets started afresh elsewhere.
    pub(super) fn forget_all(&self, now: Micros) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.forgot = Some(now);
            self.known.fetch_sub(shard.callers.len(), Ordering::Relaxed);
            shard.callers.clear();
        }
    }

    /// Forgets what is too old to matter, so that after a flood the way to the store is clear again.
    pub(super) fn sweep(&self, now: Micros) {
        if !self.is_empty() {
            for shard in &self.shards {
                self.tidy(&mut shard.lock(), now);
            }
        }
    }

    fn tidy(&self, shard: &mut Shard, now: Micros) {
        let before = shard.callers.len();
        shard
            .callers
            .retain(|_, known| known.iter().any(|known| known.age(now).is_some()));
        self.known
            .fetch_sub(before - shard.callers.len(), Ordering::Relaxed);
        if shard.callers.is_empty() {
            shard.callers = HashMap::new();
        }
    }

    fn shard(&self, caller: u128) -> &Mutex<Shard> {
        &self.shards[caller as usize % SHARDS]
    }

    /// The caller that a group's charges share, hashed with a key that nobody outside knows.
    pub(super) fn caller(&self, resolved: &Resolved<'_>, group: &[u16]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        if let Some(&first) = group.first() {
            resolved
                .key(&resolved.charges[usize::from(first)])
                .feed_partition(&mut hasher);
        }
        hasher.finish128().as_u128()
    }

    fn budget(&self, resolved: &Resolved<'_>, charge: u16) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.1, self.keys.0);
        resolved
            .key(&resolved.charges[usize::from(charge)])
            .feed(&mut hasher);
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::budget::State;
    use crate::engine::policy::Domain;
    use crate::engine::resolve::resolve;
    use crate::engine::testing::{T0, domain, request};

    fn met<'r>(domain: &'r Domain, asked: &'r str) -> Resolved<'r> {
        resolve(Some(domain), &request(&[asked]), false, T0)
    }

    fn held(used: u64) -> States {
        let main = State {
            used,
            ..State::default()
        };
        let slot = Slot {
            main,
            ..Slot::default()
        };
        States {
            slots: SmallVec::from_elem((0, slot), 1),
            held: T0,
        }
    }

    #[test]
    fn a_state_is_not_kept_when_a_newer_one_may_not_be() {
        let domain = domain(&["tenant{5/hour}"]);
        let (remembered, all) = (Remembered::default(), [Group::from_elem(0, 1)]);
        let acme = met(&domain, "(tenant=acme) addend 9");
        let (asked, now) = (Micros(10), Micros(20));
        remembered.keep(&acme, &held(1), true, asked, now);
        assert!(remembered.refuse(&acme, &all, Micros::ZERO, now).is_some());

        // Another caller of the shard gets units back while acme is charged.
        let caller = |asked: &str| remembered.caller(&met(&domain, asked), &all[0]);
        let shard = caller("(tenant=acme)") as usize % SHARDS;
        let mut others = (0..).map(|n| caller(&format!("(tenant=t{n})")));
        let neighbour = others.find(|caller| *caller as usize % SHARDS == shard).unwrap();
        remembered.forget([neighbour].into_iter(), now);
        remembered.keep(&acme, &held(2), false, asked, now);
        assert!(remembered.refuse(&acme, &all, Micros::ZERO, now).is_none());
        assert!(remembered.is_empty());
    }
}
