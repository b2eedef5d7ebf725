//! Leases before the shared store: their task, their metrics, their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry;

use crate::clock::SystemClock;
use crate::engine::limit::{Limit, Share};
use crate::engine::policy::Policy;
use crate::engine::reset::Target;
use crate::store::leased::{self, Holding, Leased};
use crate::store::shared::Shared;
use crate::telemetry::{LimitLeases, register_leases};

/// How long the end may be held up to give back what is held. What is left then is lost to its callers until
/// their budgets recover.
const LAST_RETURNS: Duration = Duration::from_secs(1);

/// The shared store with leases before it.
pub(super) type Leases = Leased<Arc<Shared<SystemClock>>, SystemClock>;

/// Starts them.
pub(super) fn start(
    store: Arc<Shared<SystemClock>>,
    policy: Arc<ArcSwap<Policy>>,
    registry: &mut Registry,
) -> Arc<Leases> {
    let spawn = Box::new(|task| drop(tokio::spawn(task)));
    let leases = Leased::new(store, SystemClock, spawn);
    tokio::spawn(leased::watch(Arc::downgrade(&leases)));
    let read = Arc::clone(&leases);
    register_leases(registry, move || of_policy(&policy.load(), read.holdings()));
    leases
}

/// Forgets all that is kept here of budgets that start afresh in the store.
pub(super) fn reset(leases: &Leases, targets: &[Target]) {
    leases.forget(|budget| targets.iter().any(|target| target.means(budget)));
    leases.central().reset(targets);
}

/// Gives all back.
pub(super) async fn end(leases: &Leases) {
    let all = async {
        leases.end().await;
        while leases.under_way() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(LAST_RETURNS, all).await.is_err() {
        tracing::warn!(
            "the store is slow to take back leased units: some are lost until their budgets recover"
        );
    }
}

/// Every limit of the policy that may be leased, with what is held of it.
fn of_policy(policy: &Policy, holdings: Vec<Holding>) -> Vec<LimitLeases> {
    let mut limits: BTreeMap<(Box<str>, Box<str>), (u64, u64)> = BTreeMap::new();
    for domain in policy.domains.values() {
        domain.for_each_limit(&mut |_, limit| {
            if may_be_leased(limit) {
                limits.insert((domain.name.clone(), limit.label.clone()), (0, 0));
            }
        });
    }
    for Holding {
        domain,
        limit,
        units,
        bound,
    } in holdings
    {
        if let Some(held) = limits.get_mut(&(domain, limit)) {
            *held = (units, bound);
        }
    }
    let limits = limits.into_iter();
    limits
        .map(|((domain, limit), (units, bound))| LimitLeases {
            domain,
            limit,
            units,
            bound,
        })
        .collect()
}

fn may_be_leased(limit: &Limit) -> bool {
    let rows = limit.plans.iter().flat_map(|plans| plans.rows.values());
    let mut numbers = rows.chain([&limit.numbers]);
    numbers.any(|numbers| numbers.max_overshoot != Share::ZERO)
}
