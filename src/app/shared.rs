//! The shared store: reached, waited for, shown, left.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::{AppError, LAST_CALLS, RedisSettings};
use crate::clock::SystemClock;
use crate::http;
use crate::store::redis::{Client, Kind, Redis, SCRIPT};
use crate::store::shared::{Replicas, Shared};
use crate::telemetry;

/// Connects to the shared store, in the background.
pub(super) fn connect(
    settings: RedisSettings,
    max_keys: usize,
    registry: &mut Registry,
) -> Result<Arc<Shared<SystemClock>>, AppError> {
    let client = Client::start(settings.target, settings.tls, SCRIPT)?;
    let replicas = match settings.replicas {
        Some(replicas) => Replicas::fixed(replicas),
        None => Replicas::counted(settings.expected_replicas),
    };
    let duration = telemetry::register_store_duration(registry, "redis");
    let redis = Redis::new(client, settings.timeout);
    let store = Shared::start(
        redis,
        replicas,
        SystemClock,
        max_keys,
        settings.timeout,
        Box::new(duration),
    );
    let counted = Arc::clone(&store);
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
    telemetry::register_counts(registry, telemetry::STORE_ERRORS, kinds, move |kind| {
        counted.outages().errors(kind)
    });
    let gauged = Arc::clone(&store);
    telemetry::register_degraded(registry, move || gauged.outages().degraded());
    Ok(store)
}

/// Where the shared store's budgets are, and who answers for them.
pub(super) fn budgets(store: &Shared<SystemClock>) -> http::Budgeted {
    let out = store.outages().list();
    let shards = store.redis().client().shards().into_iter().map(|shard| {
        // An outage lasts until the shard is known to decide again, which is later than it takes calls.
        let outage = out.iter().find(|out| out.address == shard.address);
        http::Shard {
            answers: shard.up && outage.is_none(),
            since: outage.map_or(shard.since, |outage| outage.lasts),
            address: shard.address,
        }
    });
    http::Budgeted {
        store: "Redis",
        replicas: Some(store.replicas().live()),
        shards: shards.collect(),
    }
}

/// Waits until the store was reached or is known not to be, a second at most: nobody is told that this
/// replica is ready before.
pub(super) async fn known(store: &Shared<SystemClock>) {
    for _ in 0..100 {
        if store.replicas().counted_once() || store.outages().degraded() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until what callers were charged in vain has been given back, as long as calls may take to end.
pub(super) async fn given_back(store: &Shared<SystemClock>) {
    if store.giving_back() == 0 {
        return;
    }
    tracing::info!(
        requests = store.giving_back(),
        "giving back charges before the end"
    );
    let arrived = async {
        while store.giving_back() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(LAST_CALLS, arrived).await.is_err() {
        tracing::warn!(requests = store.giving_back(), "charges were not given back");
    }
}
