//! How much one replica lets one caller ask of the store: a bucket of so many times the limit, before it.
//!
//! Whatever the store says, and when it is gone and a limit lets pass, no replica passes more than that for
//! one budget. The bound is loose on purpose: what does not fit the table is let through.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use parking_lot::Mutex;
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

use crate::engine::budget::{Outcome, State, Terms};
use crate::engine::key::BudgetKey;
use crate::engine::limit::Algorithm;
use crate::engine::reset::Target;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::{Micros, Timestamp};

/// Enough that two cores rarely meet.
const SHARDS: usize = 16;

/// How many buckets a shard keeps. With 49 bytes a place, of which a table of
/// this size has twice as many, 13 MB in all; a bucket that has drained makes room.
const BUCKETS: usize = 8_192;

/// How often a full shard looks for room: it is gone through from end to end.
const TIDY: Micros = Micros::from_millis(100);

/// The buckets of all budgets that are asked for.
pub(super) struct Barrier {
    shards: [Mutex<Shard>; SHARDS],
    keys: (u64, u64),
}

#[derive(Default)]
struct Shard {
    buckets: HashTable<Bucket>,
    tidied: Timestamp,
}

struct Bucket {
    budget: u128,
    state: State,
    /// When it will be empty.
    drained: Timestamp,
}

impl Default for Barrier {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            keys: (fastrand::u64(..), fastrand::u64(..)),
        }
    }
}

impl Barrier {
    /// The charge of a request that asks for more than its bucket holds, and after how long it would fit. Units that
    /// come back, and debts, have to reach the store whatever else is asked: such a request is never stopped.
    pub(super) fn stops(&self, resolved: &Resolved<'_>, now: Timestamp) -> Option<(usize, Micros)> {
        let must_be_asked = |charge: &Charge<'_>| {
            charge.refund > 0 || (charge.limit.overdraft && charge.spend.is_some_and(|cost| cost > 0))
        };
        if resolved.charges.iter().any(must_be_asked) {
            return None;
        }
        let mut charges = resolved.charges.iter().enumerate();
        charges.find_map(|(i, charge)| Some((i, self.takes(resolved, charge, now)?)))
    }

    /// Takes what a charge costs out of its bucket; when it does not fit, says when it would.
    fn takes<'r>(&self, resolved: &Resolved<'r>, charge: &Charge<'r>, now: Timestamp) -> Option<Micros> {
        let cost = charge.spend.filter(|cost| *cost > 0)?;
        let terms = terms(charge)?;
        let hash = self.hash(&resolved.key(charge));
        let budget = hash.as_u128();
        let mut shard = self.shards[hash.h2 as usize % SHARDS].lock();
        let room = shard.room(now);
        let same = |bucket: &Bucket| bucket.budget == budget;
        let found = shard.buckets.entry(hash.h1, same, |bucket| bucket.budget as u64);
        let before = match &found {
            TableEntry::Occupied(bucket) => bucket.get().state,
            TableEntry::Vacant(_) => State::default(),
        };
        let (state, _) = terms.advance(before, now);
        let (outcome, state) = terms.spend(state, cost, now, Micros::ZERO);
        if let Outcome::Deny { retry_after } = outcome {
            // What can never be paid is for the limit to say.
            return retry_after;
        }
        let bucket = Bucket {
            budget,
            state,
            drained: terms.forgotten_at(state, now),
        };
        match found {
            TableEntry::Occupied(mut found) => *found.get_mut() = bucket,
            TableEntry::Vacant(free) if room => drop(free.insert(bucket)),
            TableEntry::Vacant(_) => {}
        }
        None
    }

    /// Lets budgets that start afresh be asked for afresh. Those that are not known one by one take all others
    /// along: the bound is loose.
    pub(super) fn forget(&self, targets: &[Target]) {
        if !targets.iter().all(Target::is_one) {
            let shards = self.shards.iter();
            return shards.for_each(|shard| shard.lock().buckets.clear());
        }
        for target in targets {
            let hash = self.hash(&target.key(&target.values()));
            let budget = hash.as_u128();
            let mut shard = self.shards[hash.h2 as usize % SHARDS].lock();
            let found = shard
                .buckets
                .find_entry(hash.h1, |bucket| bucket.budget == budget);
            if let Ok(found) = found {
                found.remove();
            }
        }
    }

    fn hash(&self, key: &BudgetKey<'_>) -> Hash128 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        key.feed(&mut hasher);
        hasher.finish128()
    }
}

impl Shard {
    /// Whether one more bucket can be kept.
    fn room(&mut self, now: Timestamp) -> bool {
        if self.buckets.len() >= BUCKETS && (now < self.tidied || now.since(self.tidied) >= TIDY) {
            self.tidied = now;
            self.buckets.retain(|bucket| bucket.drained > now);
        }
        self.buckets.len() < BUCKETS
    }
}

/// The terms of a charge's bucket, where there is one.
fn terms<'c>(charge: &'c Charge<'_>) -> Option<Terms<'c>> {
    let factor = charge.limit.barrier?;
    if charge.shadow || charge.limit.quota {
        return None;
    }
    let terms = charge.terms();
    Some(Terms {
        algorithm: &Algorithm::TokenBucket,
        units: factor.times(terms.units),
        burst: factor.times(terms.capacity()),
        max_wait: Micros::ZERO,
        overdraft: false,
        excess: None,
        ..terms
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::resolve::resolve;
    use crate::engine::testing::{T0, domain, request};

    /// How many requests pass before one is stopped, and for how long that one is.
    fn passed(barrier: &Barrier, rule: &str, tenant: &str, now: Timestamp) -> (u32, Option<Micros>) {
        let domain = domain(&[rule]);
        let descriptor = [format!("(tenant={tenant})")];
        let request = request(&[&descriptor[0]]);
        let resolved = resolve(Some(&domain), &request, false, now);
        let mut passed = 0;
        while passed < 1_000 {
            if let Some((_, wait)) = barrier.stops(&resolved, now) {
                return (passed, Some(wait));
            }
            passed += 1;
        }
        (passed, None)
    }

    #[test]
    fn so_many_times_the_limit_pass_and_come_back_at_that_rate() {
        let barrier = Barrier::default();
        let ten = "tenant{6/minute}";
        assert_eq!(passed(&barrier, ten, "acme", T0), (60, Some(Micros::SECOND)));
        // Another caller has a bucket of its own.
        assert_eq!(passed(&barrier, ten, "other", T0).0, 60);
        assert_eq!(passed(&barrier, ten, "acme", T0.plus(Micros::from_secs(2))).0, 2);
        let written = "tenant{60/minute token burst:3 barrier:2.5}";
        assert_eq!(passed(&Barrier::default(), written, "acme", T0).0, 7);
    }

    #[test]
    fn what_is_not_enforced_or_must_be_charged_has_no_barrier() {
        for rule in ["shadow", "barrier:off", "overdraft", "quota"] {
            let rule = format!("tenant{{6/minute {rule}}}");
            assert_eq!(passed(&Barrier::default(), &rule, "acme", T0).1, None, "{rule}");
        }
    }

    #[test]
    fn a_request_that_must_reach_the_store_is_not_stopped() {
        let barrier = Barrier::default();
        let domain = domain(&["tenant{1/minute barrier:1}", "debtor{1/minute overdraft}"]);
        let stopped = |descriptors: &[&str], change: fn(&mut Charge<'_>)| {
            let request = request(descriptors);
            let mut resolved = resolve(Some(&domain), &request, false, T0);
            change(&mut resolved.charges[0]);
            barrier.stops(&resolved, T0).is_some()
        };
        let acme = "(tenant=acme)";
        assert!(!stopped(&[acme], |_| {}));
        assert!(stopped(&[acme], |_| {}));
        assert!(!stopped(&[acme], |charge| charge.refund = 1));
        assert!(!stopped(&["(debtor=acme)", acme], |_| {}));
        assert!(stopped(&["(debtor=acme)", acme], |charge| charge.spend = Some(0)));
    }

    #[test]
    fn what_can_never_be_paid_is_for_the_limit_to_say() {
        let barrier = Barrier::default();
        assert_eq!(passed(&barrier, "tenant{0/minute}", "acme", T0), (1_000, None));
    }

    #[test]
    fn a_full_table_lets_pass_and_has_room_again() {
        let barrier = Barrier::default();
        let domain = domain(&["tenant{1/minute}"]);
        let ask = |tenant: &str, now| {
            let descriptor = format!("(tenant={tenant})");
            let request = request(&[&descriptor]);
            let resolved = resolve(Some(&domain), &request, false, now);
            barrier.stops(&resolved, now)
        };
        for i in 0..SHARDS * BUCKETS * 2 {
            assert_eq!(ask(&format!("t{i}"), T0), None);
        }
        let kept = || {
            barrier
                .shards
                .iter()
                .map(|shard| shard.lock().buckets.len())
                .sum::<usize>()
        };
        assert!(kept() <= SHARDS * BUCKETS);
        let later = T0.plus(Micros::from_secs(60));
        for i in 0..1_000 {
            assert_eq!(ask(&format!("u{i}"), later), None);
        }
        assert!(kept() <= 1_000);
    }

    #[test]
    fn a_budget_that_starts_afresh_is_asked_for_afresh() {
        use crate::engine::reset::targets;
        let rules = ["tenant{2/hour barrier:2}", "tenant > route{2/hour barrier:2}"];
        let domain = domain(&rules);
        let barrier = Barrier::default();
        let stops = |descriptor: &str| {
            let request = request(&[descriptor]);
            let resolved = resolve(Some(&domain), &request, false, T0);
            let stops = || barrier.stops(&resolved, T0).is_some();
            (0..5).filter(|_| stops()).count()
        };
        let forget = |limit| {
            let meant = targets(&domain, &[("tenant", "acme")], limit).unwrap();
            barrier.forget(&meant);
        };
        for descriptor in ["(tenant=acme)", "(tenant=beta)", "(tenant=acme,route=a)"] {
            assert_eq!(stops(descriptor), 1, "{descriptor}");
            assert_eq!(stops(descriptor), 5, "{descriptor}");
        }
        let one = targets(&domain, &[("tenant", "acme")], None).unwrap();
        let one: Vec<_> = one.into_iter().filter(Target::is_one).collect();
        barrier.forget(&one);
        assert_eq!(stops("(tenant=acme)"), 1);
        assert_eq!(stops("(tenant=beta)"), 5);
        assert_eq!(stops("(tenant=acme,route=a)"), 5);
        forget(None);
        assert_eq!(stops("(tenant=acme,route=a)"), 1);
    }
}
