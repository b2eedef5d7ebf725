//! The async shell around a decision: take the policy in force, resolve, ask the store, hold the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::clock::Clock;
use crate::engine::decision::Decision;
use crate::engine::descriptor::Request;
use crate::engine::overrides::RunTime;
use crate::engine::policy::{Domain, Policy};
use crate::engine::resolve::{Charge, Resolved, resolve_into};
use crate::engine::time::Micros;
use crate::store::{Store, StoreError};

/// How long before the caller's own deadline a held answer must be out.
const DEADLINE_MARGIN: Micros = Micros::from_millis(5);

/// How many answers may be held at once; beyond it nothing waits.
pub const MAX_HELD: usize = 10_000;

/// Decides requests.
pub struct Limiter<S, C> {
    store: S,
    clock: C,
    policy: Arc<ArcSwap<Policy>>,
    overrides: Arc<ArcSwap<RunTime>>,
    shadow: bool,
    held: AtomicUsize,
}

/// How a request was decided.
pub struct Decided<'r> {
    /// The domain's rules, if it has any.
    pub domain: Option<&'r Domain>,
    /// How it was decided.
    pub decision: Decision,
}

/// Why a request was not decided.
#[derive(Debug, thiserror::Error)]
pub enum LimiterError {
    /// The request names no domain.
    #[error("the request has no domain")]
    NoDomain,
    /// The request has no descriptors.
    #[error("the request for domain {0:?} has no descriptors")]
    NoDescriptors(String),
    /// No policy has been in force yet.
    #[error("no policy is in force")]
    NoPolicy,
    /// The request waited too long for its turn to be answered within the caller's deadline.
    #[error("the request waited too long to be answered within the caller's deadline")]
    Late,
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// A limiter over a store. `shadow` puts every limit in shadow mode.
    pub fn new(store: S, clock: C, policy: Arc<ArcSwap<Policy>>, shadow: bool) -> Self {
        Self {
            store,
            clock,
            policy,
            overrides: Arc::default(),
            shadow,
            held: AtomicUsize::new(0),
        }
    }

    /// The same limiter, which consults these overrides set at run time.
    pub fn overridden_by(self, overrides: Arc<ArcSwap<RunTime>>) -> Self {
        Self { overrides, ..self }
    }

    /// The policy in force: one request holds one from start to end.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Decides a request under a policy, within `deadline` from now if there is one, writes to `resolved`, which is
    /// empty before, what the request meets, and returns when
    /// the answer is due: at once, or after the wait that a limit's `max_wait` allows. If the future is
    /// dropped while it waits, what was charged is given back.
    ///
    /// # Errors
    /// When the request is malformed, nobody waits for the answer any more, no policy is in force, or the
    /// store gave no answer.
    pub async fn decide<'r>(
        &self,
        policy: &'r Policy,
        request: &Request<'r>,
        deadline: Option<Duration>,
        resolved: &mut Resolved<'r>,
    ) -> Result<Decided<'r>, LimiterError> {
        if request.domain.is_empty() {
            return Err(LimiterError::NoDomain);
        }
        if request.descriptors.is_empty() {
            // What a caller may choose is quoted and cut: it goes to a log.
            return Err(LimiterError::NoDescriptors(
                request.domain.chars().take(64).collect(),
            ));
        }
        if policy.version == 0 {
            return Err(LimiterError::NoPolicy);
        }
        // A service that gets more than it can do would otherwise do all of it too late, and charge for it.
        if deadline == Some(Duration::ZERO) {
            return Err(LimiterError::Late);
        }
        let domain = policy.domains.get(request.domain).map(|domain| &**domain);
        let now = self.clock.now();
        resolve_into(
            resolved,
            domain,
            request,
            self.shadow,
            now,
            Some(&self.overrides.load()),
        );
        if resolved.charges.is_empty() {
            return Ok(Decided {
                domain,
                decision: Decision::default(),
            });
        }
        // Taken before the store is asked, so that a slow store does not let more of them in, and kept
        // until the answer is out.
        let may_wait = |charge: &Charge<'_>| charge.numbers.max_wait > Micros::ZERO;
        let place = if resolved.charges.iter().any(may_wait) {
            Place::take(&self.held)
        } else {
            None
        };
        let patience = match deadline {
            _ if place.is_none() => Micros::ZERO,
            Some(deadline) => Micros::from(deadline).saturating_sub(DEADLINE_MARGIN),
            None => Micros(u64::MAX),
        };
        let decision = self.store.decide(resolved, patience).await?;
        let decision = match decision.wait {
            Micros::ZERO => decision,
            wait => self.hold(resolved, decision, wait).await,
        };
        Ok(Decided { domain, decision })
    }

    async fn hold(&self, resolved: &Resolved<'_>, decision: Decision, wait: Micros) -> Decision {
        let held = Held {
            store: &self.store,
            resolved,
            decision: Some(decision),
        };
        tokio::time::sleep(wait.into()).await;
        held.release()
    }
}

/// A place among the answers that may be held.
struct Place<'h>(&'h AtomicUsize);

impl<'h> Place<'h> {
    fn take(held: &'h AtomicUsize) -> Option<Self> {
        let one_more = |n: usize| (n < MAX_HELD).then_some(n + 1);
        let taken = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(held))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer being held. Dropped before its time, it gives back what was charged.
struct Held<'h, 'r, S: Store> {
    store: &'h S,
    resolved: &'h Resolved<'r>,
    decision: Option<Decision>,
}

impl<S: Store> Held<'_, '_, S> {
    fn release(mut self) -> Decision {
        self.decision
            .take()
            .expect("the answer is there until it is released")
    }
}

impl<S: Store> Drop for Held<'_, '_, S> {
    fn drop(&mut self) {
        if let Some(decision) = &self.decision {
            self.store.give_back(self.resolved, decision);
        }
    }
}

#[cfg(test)]
mod tests;
