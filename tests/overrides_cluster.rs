//! The record and the budgets of callers on different shards of a real cluster.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use cota::clock::{Clock as _, Stopwatch, SystemClock};
use cota::engine::limit::Unit;
use cota::engine::policy::Domain;
use cota::engine::reset::Target;
use cota::engine::resolve::resolve;
use cota::engine::time::Micros;
use cota::overrides::{Overrides, ResetSpec, Spec, rfc3339};
use cota::store::Store as _;
use cota::store::ledger::Ledger;
use cota::store::redis::{Client, Redis, SCRIPT, TlsFiles};
use cota::store::shared::{Replicas, Shared};
use support::policy::{bucket, costing, domain, policy, request};
use support::redis::{Cluster, PATIENCE};

const TIMEOUT: Duration = Duration::from_secs(10);

struct Replica {
    shared: Arc<Shared<SystemClock>>,
    overrides: Arc<Overrides>,
}

impl Replica {
    async fn start(url: &str, domain: &Domain) -> Self {
        let client = Client::start(url.parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap();
        let watch = Stopwatch::start();
        while client.shards().len() < 3 || !client.shards().iter().all(|shard| shard.up) {
            assert!(watch.elapsed() < PATIENCE, "{client:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let redis = Redis::new(client, TIMEOUT);
        let shared = Shared::start(
            redis.clone(),
            Replicas::fixed(2),
            SystemClock,
            1_000,
            TIMEOUT,
            Box::new(|_| {}),
        );
        let forgets = Arc::clone(&shared);
        let policy = Arc::new(ArcSwap::from_pointee(policy([domain.clone()])));
        let listener = move |targets: &[Target]| {
            forgets.reset(targets);
        };
        let overrides = Overrides::new(Ledger::Redis(redis), policy, SystemClock, Box::new(listener));
        Self {
            shared,
            overrides: Arc::new(overrides),
        }
    }

    /// Spends that much of a tenant's five, and of the five of its route.
    async fn refuses(&self, domain: &Domain, tenant: &str, cost: u64) -> bool {
        let descriptors: [&[(&str, &str)]; 2] =
            [&[("tenant", tenant)], &[("tenant", tenant), ("route", "r")]];
        let request = costing(request(&descriptors), cost);
        let mut resolved = resolve(Some(domain), &request, false, SystemClock.now());
        let decision = self.shared.decide(&mut resolved, Micros::ZERO).await.unwrap();
        assert!(!decision.degraded);
        decision.refused
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_on_every_shard_are_reset_and_overrides_are_one_list() {
    let cluster = Cluster::start();
    let daily = |name| vec![bucket(name, 5, 5, Unit::Day)];
    let api = domain([
        (&[("tenant", None)][..], daily("tenant")),
        (&[("tenant", None), ("route", None)], daily("route")),
    ]);
    let first = Replica::start(&cluster.url(), &api).await;
    let second = Replica::start(&cluster.url(), &api).await;
    // A few callers for each shard.
    let tenants: Vec<String> = (0..12).map(|i| format!("tenant-{i}")).collect();
    for (i, tenant) in tenants.iter().enumerate() {
        assert!(!first.refuses(&api, tenant, 5).await);
        assert!(second.refuses(&api, tenant, 1).await);
        let limit = [None, Some("tenant"), Some("route")][i % 3];
        for limit in limit.map_or(vec![None], |_| vec![Some("tenant"), Some("route")]) {
            let spec = ResetSpec {
                domain: "api".into(),
                matches: [("tenant".into(), tenant.clone())].into(),
                limit: limit.map(Into::into),
                author: Some("ana".into()),
                reason: Some("r".into()),
            };
            first.overrides.reset(&spec).await.unwrap();
            second.overrides.refresh().await.unwrap();
            // Of two limits of a caller, one alone is not enough.
            if limit == Some("tenant") {
                assert!(second.refuses(&api, tenant, 1).await, "{tenant}");
            }
        }
        assert!(!second.refuses(&api, tenant, 5).await, "{tenant}");
    }
    let spec = Spec {
        domain: "api".into(),
        matches: [("tenant".into(), "tenant-1".into())].into(),
        limit: Some("tenant".into()),
        unlimited: Some(true),
        expires_at: Some(rfc3339(SystemClock.now().plus(Micros::from_secs(3_600)))),
        author: Some("ana".into()),
        reason: Some("r".into()),
        ..Spec::default()
    };
    let set = second.overrides.set(spec).await.unwrap();
    first.overrides.refresh().await.unwrap();
    assert_eq!(first.overrides.list(), [set]);
    let told = first.overrides.audit().await.unwrap();
    assert_eq!(told.len(), 4 + 2 * 8 + 1, "{told:?}");
    assert_eq!(told[0].event, "set");
    // Replicas send whoever asks for a key elsewhere.
    let primaries = cluster.servers.iter().filter(|server| {
        let replication = server.text(&["INFO", "replication"]);
        replication.contains("role:master")
    });
    for server in primaries {
        for (name, ttl) in server.ttls() {
            assert!(ttl > 0, "{name}: {ttl}");
        }
    }
}
