//! A store under test and the requests put to it.

use std::cell::Cell;

use cota::engine::budget::{Outcome, View};
use cota::engine::decision::Decision;
use cota::engine::descriptor::Request;
use cota::engine::limit::Limit;
use cota::engine::policy::Domain;
use cota::engine::resolve::{Resolved, resolve};
use cota::engine::time::{Micros, Timestamp};
use cota::store::Store;

use crate::support::policy::{NOON, costing, domain, request};

/// A fresh store whose clock the test moves.
pub trait Harness {
    type Store: Store;

    /// A budget that is charged and given it back, because the request was refused elsewhere, is as it
    /// was to the bit. Otherwise it is as good as it was: it was advanced, which shows when the clock goes
    /// back or the numbers change.
    const ATOMIC: bool = true;

    async fn begin(now: Timestamp) -> Self;

    /// The same, with a store that forgets nothing by itself, for a clock that goes far back.
    async fn begin_unforgetting(now: Timestamp) -> Self
    where
        Self: Sized,
    {
        Self::begin(now).await
    }

    fn store(&self) -> &Self::Store;

    /// Moves the store's clock, backward too.
    fn set_clock(&self, now: Timestamp);

    /// What to tell the store so that it holds no answer longer than this.
    fn cap(&self, cap: Micros) -> Micros {
        cap
    }

    /// Waits until what is on its way back has arrived.
    async fn settled(&self) {}

    /// Makes the store drop what its clock says has expired, where that does not happen by itself.
    async fn forget_expired(&self);

    /// How many states are kept.
    async fn kept(&self) -> usize;
}

pub const ACME: &[(&str, &str)] = &[("tenant", "acme")];
pub const KEY: &[(&str, &str)] = &[("credential", "key-1")];

/// A store, a policy and the time.
pub struct Desk<H> {
    pub harness: H,
    pub domain: Domain,
    pub now: Cell<Timestamp>,
}

impl<H: Harness> Desk<H> {
    pub async fn new(domain: Domain) -> Self {
        Self {
            harness: H::begin(NOON).await,
            domain,
            now: Cell::new(NOON),
        }
    }

    /// One limit, met by every tenant.
    pub async fn of(limit: Limit) -> Self {
        Self::new(domain([(&[("tenant", None)], vec![limit])])).await
    }

    pub fn later(&self, by: Micros) {
        self.at(self.now.get().plus(by));
    }

    pub fn at(&self, now: Timestamp) {
        self.now.set(now);
        self.harness.set_clock(now);
    }

    pub async fn ask<'a>(&'a self, request: &Request<'a>) -> Decision {
        self.ask_within(request, Micros(u64::MAX)).await
    }

    pub async fn ask_within<'a>(&'a self, request: &Request<'a>, cap: Micros) -> Decision {
        let mut resolved = resolve(Some(&self.domain), request, false, self.now.get());
        decide(&self.harness, &mut resolved, cap).await
    }

    pub async fn give_back<'a>(&'a self, request: &Request<'a>, decision: &Decision) {
        let resolved = resolve(Some(&self.domain), request, false, self.now.get());
        self.harness.store().give_back(&resolved, decision);
        self.harness.settled().await;
    }

    /// What the first budget says to acme for that cost.
    pub async fn spend(&self, cost: u64) -> Outcome {
        let decision = self.ask(&costing(request(&[ACME]), cost)).await;
        decision.verdicts[0].outcome
    }

    /// How many of cost 1 acme gets until it is refused or held.
    pub async fn admitted(&self) -> u64 {
        for n in 0..1_000 {
            if self.spend(1).await != Outcome::Allow {
                return n;
            }
        }
        panic!("never refused");
    }

    /// What acme's budgets show.
    pub async fn views(&self) -> Vec<View> {
        views(&self.ask(&costing(request(&[ACME]), 0)).await)
    }

    pub async fn remaining(&self) -> u64 {
        self.views().await[0].remaining
    }
}

/// A decision, once all it does is done.
pub async fn decide<H: Harness>(harness: &H, resolved: &mut Resolved<'_>, cap: Micros) -> Decision {
    let decision = harness.store().decide(resolved, harness.cap(cap)).await.unwrap();
    assert!(!decision.degraded, "the store gave no answer");
    harness.settled().await;
    decision
}

pub fn views(decision: &Decision) -> Vec<View> {
    decision.verdicts.iter().map(|verdict| verdict.view).collect()
}

pub fn remaining(decision: &Decision) -> Vec<u64> {
    let verdicts = decision.verdicts.iter();
    verdicts.map(|verdict| verdict.view.remaining).collect()
}

pub fn deny(after: Micros) -> Outcome {
    Outcome::Deny {
        retry_after: Some(after),
    }
}

pub const NEVER: Outcome = Outcome::Deny { retry_after: None };

pub const fn secs(n: u64) -> Micros {
    Micros::from_secs(n)
}
