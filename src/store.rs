//! Keeps budgets.
//!
//! A store has one verb. It reads the state of every budget that a request meets, lets the engine
//! evaluate and settle them together at one instant of the *store's* clock, and writes what was
//! settled, all in one atomic step: no other request sees or changes these budgets in between. A state
//! that equals the initial one is not kept; how long it can matter is the engine's to say. A stored time
//! that was brought back from the future is written even when nothing was charged.

use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::decision::{Decision, Slot};
use crate::engine::resolve::Resolved;
use crate::engine::time::{Micros, Timestamp};

pub mod leased;
pub mod ledger;
pub mod memory;
pub mod redis;
pub mod shared;

/// A keeper of budgets.
pub trait Store: Send + Sync + 'static {
    /// Decides a request. No answer is held longer than `wait_cap`. A charge may be added to the request:
    /// the ceiling over what had to be decided without the store.
    ///
    /// # Errors
    /// When the store gave no answer; nothing is known of what was charged then.
    fn decide(
        &self,
        resolved: &mut Resolved<'_>,
        wait_cap: Micros,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Gives back what a decision charged, because its caller went away while the answer was held: as
    /// much as is still spent, see [`crate::engine::decision::give_back`]. It need not be done when this
    /// returns, and what is lost on the way is lost to the caller.
    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision);
}

impl<S: Store> Store for Arc<S> {
    fn decide(
        &self,
        resolved: &mut Resolved<'_>,
        wait_cap: Micros,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        (**self).decide(resolved, wait_cap)
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        (**self).give_back(resolved, decision);
    }
}

/// What a shared store says of one caller's part of a request: enough to run the same transition here
/// and know the rest.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The part was charged as asked.
    pub charged: bool,
    /// The store's time.
    pub now: Timestamp,
    /// What it held of each budget before.
    pub slots: SmallVec<[Slot; 4]>,
}

/// Why a store gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
