//! Serves from leases what may be served from them, and asks the shared store for the rest.
//!
//! A request is decided here when every limit it meets may be leased and what is held of each covers it.
//! Anything else goes to the store whole, as if there were no leases: refusals, looks, refunds, requests that
//! meet an exact limit as well, callers that come rarely. So a refusal is always the store's, and leases only
//! ever let pass what was charged before.
//!
//! A block is taken in two steps, in the background. It is reserved in the budget's *escrow*, which keeps the
//! sum of all replicas' blocks within the bound; then it is charged to the budget like a request. It goes back
//! in two steps as well: it is struck off the escrow, which succeeds once, and what is left of it is given back
//! to the budget, as much as is still spent. Whoever dies between two steps, and whatever answer gets lost,
//! units are lost to that caller until they would have come back anyway; none are made.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::redis::Return;
use super::{Reply, Store, StoreError};
use crate::clock::Clock;
use crate::engine::budget::Outcome;
use crate::engine::decision::{Decision, Verdict, evaluate};
use crate::engine::key::BudgetKey;
use crate::engine::lease::{self, Ask, Block, Said};
use crate::engine::limit::{Algorithm, Share};
use crate::engine::resolve::{Charge, LimitRef, Resolved};
use crate::engine::time::{Micros, Timestamp};

mod budget;
mod table;

use budget::Budget;
use table::{Place, Table};

/// How often what is held is gone through.
const TEND: Duration = Duration::from_millis(100);

/// How many callers' blocks go back at a time at the end.
const AT_ONCE: usize = 64;

/// A shared store that units can be taken from ahead.
pub trait Central: Store {
    /// Strikes blocks off the escrow of a budget and reserves one there: as much of it as the bound leaves
    /// room for, nothing if that is less than the least. Says how much. It stands in the escrow for
    /// [`lease::HELD_FOR`].
    fn reserve(
        &self,
        budget: &BudgetKey<'_>,
        id: u64,
        ask: &Ask,
    ) -> impl Future<Output = Result<u64, NoAnswer>> + Send;

    /// Strikes a block off the escrow. Whether it stood there.
    fn strike(&self, budget: &BudgetKey<'_>, id: u64) -> impl Future<Output = Result<bool, NoAnswer>> + Send;

    /// Decides the one charge of a request, whatever this replica remembers of the budget, at most once.
    fn charge(&self, asked: &Resolved<'_>) -> impl Future<Output = Result<Reply, NoAnswer>> + Send;

    /// Gives back a part of such a charge, as much as is still spent.
    fn refund(&self, asked: &Resolved<'_>, part: Return)
    -> impl Future<Output = Result<(), NoAnswer>> + Send;

    /// How many replicas share it.
    fn replicas(&self) -> u32;
}

impl<S: Central> Central for Arc<S> {
    fn reserve(
        &self,
        budget: &BudgetKey<'_>,
        id: u64,
        ask: &Ask,
    ) -> impl Future<Output = Result<u64, NoAnswer>> + Send {
        (**self).reserve(budget, id, ask)
    }

    fn strike(&self, budget: &BudgetKey<'_>, id: u64) -> impl Future<Output = Result<bool, NoAnswer>> + Send {
        (**self).strike(budget, id)
    }

    fn charge(&self, asked: &Resolved<'_>) -> impl Future<Output = Result<Reply, NoAnswer>> + Send {
        (**self).charge(asked)
    }

    fn refund(
        &self,
        asked: &Resolved<'_>,
        part: Return,
    ) -> impl Future<Output = Result<(), NoAnswer>> + Send {
        (**self).refund(asked, part)
    }

    fn replicas(&self) -> u32 {
        (**self).replicas()
    }
}

/// The shared store gave no answer, and said so where such things are said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

/// Starts a task.
pub type Spawn = Box<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

/// A shared store with leases before it.
pub struct Leased<S, C> {
    central: S,
    table: Table,
    clock: C,
    spawn: Spawn,
    ending: AtomicBool,
    /// Held by each job.
    under_way: Arc<()>,
    this: Weak<Self>,
}

/// What a replica holds of the budgets of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Of the policy.
    pub domain: Box<str>,
    /// The limit's label.
    pub limit: Box<str>,
    /// Units that can be spent.
    pub units: u64,
    /// What all replicas together may hold of the same budgets.
    pub bound: u64,
}

/// Something to do in the background.
enum Job {
    Take {
        place: Place,
        budget: Arc<Budget>,
        id: u64,
        ask: Ask,
    },
    Settle {
        budget: Arc<Budget>,
        blocks: SmallVec<[Block; 2]>,
    },
}

/// The jobs that a request gives rise to: rarely one.
type Jobs = SmallVec<[Job; 1]>;

impl<S: Central, C: Clock> Leased<S, C> {
    /// Leases before that store. Nothing is taken back without [`Self::tend`] or [`watch`].
    pub fn new(central: S, clock: C, spawn: Spawn) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            central,
            table: Table::new(),
            clock,
            spawn,
            ending: AtomicBool::new(false),
            under_way: Arc::default(),
            this: this.clone(),
        })
    }

    /// The time that blocks live by: it does not step.
    fn now(&self) -> Timestamp {
        Timestamp(self.clock.elapsed().0)
    }

    /// The store behind.
    pub fn central(&self) -> &S {
        &self.central
    }

    /// What is held, by limit.
    pub fn holdings(&self) -> Vec<Holding> {
        self.table.holdings(self.now())
    }

    /// Forgets what is held of budgets that match, and gives nothing back: for budgets that were reset, whose
    /// charges are gone.
    pub fn forget(&self, matches: impl FnMut(&BudgetKey<'_>) -> bool) {
        self.table.forget(matches);
    }

    /// Gives back what has died or lies unused, in the background, and forgets callers that come no more.
    pub fn tend(&self) {
        self.begin(self.table.tend(self.now()));
    }

    /// How many blocks are on their way, here or back.
    pub fn under_way(&self) -> usize {
        Arc::strong_count(&self.under_way) - 1
    }

    /// Gives back all that is held, and takes no more. What is on its way goes back when it is here.
    pub async fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let held = self.table.end();
        for part in held.chunks(AT_ONCE) {
            join_all(part.iter().map(|(budget, blocks)| self.settle(budget, blocks))).await;
        }
    }

    /// Decides a request from what is held, if that covers it.
    fn decide_here(&self, resolved: &Resolved<'_>, places: &[Place], jobs: &mut Jobs) -> Option<Decision> {
        let now = self.now();
        let mut locked = self.table.lock(places);
        let mut covered = true;
        for (charge, place) in resolved.charges.iter().zip(places) {
            let cost = charge.spend.unwrap_or_default();
            let entry = locked.entry(*place, charge.numbers, now);
            covered &= entry.is_some_and(|entry| entry.lease.covers(charge.numbers, cost, now));
        }
        let mut verdicts = SmallVec::new();
        for (charge, place) in resolved.charges.iter().zip(places) {
            let Some(entry) = locked.found(*place) else {
                continue;
            };
            let terms = charge.terms();
            if covered {
                entry.lease.spend(charge.spend.unwrap_or_default(), now);
                verdicts.extend(entry.lease.view(&terms, now).map(|(view, at)| Verdict {
                    at,
                    outcome: Outcome::Allow,
                    view,
                    capacity: terms.capacity(),
                    charged: true,
                    clamped: false,
                    degraded: None,
                }));
            }
            if self.ending.load(Ordering::Relaxed) {
                continue;
            }
            let replicas = self.central.replicas();
            let id = || fastrand::u64(..);
            if let Some((id, ask)) = entry.lease.ask(charge.numbers, &terms, replicas, id, now) {
                let (place, budget) = (*place, entry.budget(resolved, charge));
                jobs.push(Job::Take {
                    place,
                    budget,
                    id,
                    ask,
                });
            }
        }
        covered.then(|| Decision {
            verdicts,
            ..Decision::default()
        })
    }

    /// Notes what the store said of budgets that may be leased.
    fn hear(&self, resolved: &Resolved<'_>, places: &[Place], decision: &Decision) {
        let mut locked = self.table.lock(places);
        for ((charge, place), verdict) in resolved.charges.iter().zip(places).zip(&decision.verdicts) {
            if let (Some(entry), None) = (locked.found(*place), verdict.degraded) {
                let charged = charge.spend.filter(|_| verdict.charged).unwrap_or_default();
                entry.lease.hear(charge.numbers, verdict.view.remaining, charged);
            }
        }
    }

    fn begin(&self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            if let Some(this) = self.this.upgrade() {
                let under_way = Arc::clone(&self.under_way);
                (self.spawn)(Box::pin(async move {
                    this.run(job).await;
                    drop(under_way);
                }));
            }
        }
    }

    async fn run(&self, job: Job) {
        match job {
            Job::Take {
                place,
                budget,
                id,
                ask,
            } => self.take(place, &budget, id, &ask).await,
            Job::Settle { budget, blocks } => self.settle(&budget, &blocks).await,
        }
    }

    async fn take(&self, place: Place, budget: &Budget, id: u64, ask: &Ask) {
        let taken = self.try_take(budget, id, ask).await;
        let now = self.now();
        let Some((block, said)) = taken.as_ref().ok().and_then(Option::as_ref) else {
            if let Some(entry) = self.table.lock(&[place]).found(place) {
                entry.lease.miss(id, taken.is_ok(), now);
            }
            return;
        };
        let wanted = {
            let mut locked = self.table.lock(&[place]);
            let entry = locked.found(place);
            entry.is_some_and(|entry| entry.lease.take(*block, *said, &budget.terms(), now))
        };
        if !wanted {
            // Forgotten with what was held: its charge may be gone.
            let _ = self.central.strike(&budget.key(), id).await;
        } else if self.ending.load(Ordering::Relaxed) {
            let block = self
                .table
                .lock(&[place])
                .found(place)
                .map(|entry| entry.lease.end());
            self.settle(budget, &block.unwrap_or_default()).await;
        }
    }

    /// A block, or nothing if the store had none to give.
    async fn try_take(&self, budget: &Budget, id: u64, ask: &Ask) -> Result<Option<(Block, Said)>, NoAnswer> {
        let asked = self.now();
        let units = self.central.reserve(&budget.key(), id, ask).await?;
        if units == 0 {
            return Ok(None);
        }
        let called = self.now();
        let request = budget.asking(units);
        let reply = self.central.charge(&request).await?;
        let (Some(slot), true) = (reply.slots.first(), reply.charged) else {
            // Off the escrow with the next call.
            return Ok(None);
        };
        let charge = &request.charges[0];
        let evaluation = evaluate(charge, *slot, reply.now, Micros::ZERO);
        let said = Said {
            state: evaluation.charged.main,
            at: reply.now,
            heard: self.now(),
        };
        let part = Return::of_evaluated(0, charge, &evaluation);
        let returns = (part.born, part.lasts);
        let block = Block::new(id, units, &said, returns, &charge.terms(), (asked, called));
        Ok(Some((block, said)))
    }

    async fn settle(&self, budget: &Budget, blocks: &[Block]) {
        for block in blocks {
            if self.central.strike(&budget.key(), block.id).await == Ok(true) {
                let part = Return {
                    charge: 0,
                    units: block.left,
                    lane: false,
                    born: block.born,
                    lasts: block.lasts,
                };
                // What does not arrive is lost to the caller.
                let _ = self.central.refund(&budget.asking(block.left), part).await;
            }
        }
    }
}

impl<S: Central, C: Clock> Store for Leased<S, C> {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        if !resolved.charges.iter().all(may_be_leased) {
            return self.central.decide(resolved, wait_cap).await;
        }
        let places = self.table.places(resolved);
        let mut jobs = Jobs::new();
        let here = self.decide_here(resolved, &places, &mut jobs);
        self.begin(jobs);
        if let Some(decision) = here {
            return Ok(decision);
        }
        let decision = self.central.decide(resolved, wait_cap).await?;
        if !decision.unasked {
            self.hear(resolved, &places, &decision);
        }
        Ok(decision)
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        // Only answers that were held are given back, and none that was decided here is.
        self.central.give_back(resolved, decision);
    }
}

/// Whether a charge could be paid from a lease. `config` lets no limit have both `max_overshoot` and what is
/// excluded here; an override may.
fn may_be_leased(charge: &Charge<'_>) -> bool {
    let (limit, numbers) = (&charge.limit, &charge.numbers);
    numbers.max_overshoot != Share::ZERO
        && matches!(limit, LimitRef::Policy(_))
        && charge.refund == 0
        && charge.spend.is_some_and(|cost| cost > 0)
        && !limit.overdraft
        && limit.excess.is_none()
        && numbers.max_wait == Micros::ZERO
        && limit.algorithm != Algorithm::LeakyBucket
        && lease::bound(&charge.terms(), numbers.max_overshoot) >= lease::LEAST_BOUND
}

/// Tends the leases for as long as they exist.
pub async fn watch<S: Central, C: Clock>(leased: Weak<Leased<S, C>>) {
    let mut tick = tokio::time::interval(TEND);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Some(leased) = leased.upgrade() else { return };
        leased.tend();
    }
}
