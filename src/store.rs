//! Keeps budgets.
//!
//! A store has one verb. It reads the state of every budget that a request meets, lets the engine
//! evaluate and settle them together at one instant of the *store's* clock, and writes what was
//! settled, all in one atomic step: no other request sees or changes these budgets in between. A state
//! that equals the initial one is not kept; how long it can matter is the engine's to say.

use std::future::Future;

use crate::engine::decision::Decision;
use crate::engine::resolve::Resolved;
use crate::engine::time::Micros;

pub mod memory;
pub mod redis;

/// A keeper of budgets.
pub trait Store: Send + Sync + 'static {
    /// Decides a request. No answer is held longer than `wait_cap`.
    ///
    /// # Errors
    /// When the store gave no answer; nothing is known of what was charged then.
    fn decide(
        &self,
        resolved: &Resolved<'_>,
        wait_cap: Micros,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Gives back what a decision charged, because its caller went away while the answer was held. It
    /// need not be done when this returns, and what is lost on the way is lost to the caller.
    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision);
}

/// Why a store gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}
