//! Budgets that replicas share through Redis: exact under load, kept across restarts and reloads, gone in time.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use cota::clock::{Clock as _, Stopwatch, SystemClock};
use cota::config::{Source, load};
use cota::engine::budget::Outcome;
use cota::engine::decision::Decision;
use cota::engine::descriptor::Request;
use cota::engine::limit::{Excess, ExcessAction, Factor, FailureMode, Limit, Unit};
use cota::engine::policy::{Domain, Policy};
use cota::engine::resolve::resolve;
use cota::engine::time::Micros;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use cota::grpc::rate_limit::RateLimits;
use cota::limiter::Limiter;
use cota::store::Store as _;
use cota::store::redis::{Client, Redis, SCRIPT, TlsFiles};
use cota::store::shared::{Replicas, Shared};
use cota::telemetry::Metrics;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

mod support;

use support::policy::{bucket, costing, domain, fixed, leaky, refunding, request, sliding, waiting};
use support::redis::{Cluster, PATIENCE, Server, await_that};

/// So long that a busy machine degrades nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many requests are in flight on one caller.
const LOAD: usize = 2_000;

type Descriptors = &'static [&'static [(&'static str, &'static str)]];

/// A replica of the service, as far as the store is concerned: no answer is held.
#[derive(Clone)]
struct Replica {
    shared: Arc<Shared<SystemClock>>,
}

impl Replica {
    async fn start(url: &str) -> Self {
        let client = Client::start(url.parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap();
        let watch = Stopwatch::start();
        while !client.shards().iter().all(|shard| shard.up) {
            assert!(watch.elapsed() < PATIENCE, "{client:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let shared = Shared::start(
            Redis::new(client, TIMEOUT),
            Replicas::counted(1),
            SystemClock,
            1_000,
            TIMEOUT,
            Box::new(|_| {}),
        );
        Self { shared }
    }

    /// Asks for one request of that cost.
    async fn ask(&self, domain: &Domain, descriptors: Descriptors, cost: u64) -> Decision {
        self.put(domain, &costing(request(descriptors), cost)).await
    }

    async fn put<'a>(&self, domain: &'a Domain, request: &Request<'a>) -> Decision {
        let mut resolved = resolve(Some(domain), request, false, SystemClock.now());
        let decision = self.shared.decide(&mut resolved, Micros(u64::MAX)).await.unwrap();
        assert!(!decision.degraded, "the store gave no answer");
        decision
    }

    /// What the budgets show, once all is back that is on its way.
    async fn remaining(&self, domain: &Domain, descriptors: Descriptors) -> Vec<u64> {
        remaining_of(&self.ask(domain, descriptors, 0).await)
    }

    async fn settled(&self) {
        let watch = Stopwatch::start();
        while self.shared.giving_back() > 0 {
            assert!(watch.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn remaining_of(decision: &Decision) -> Vec<u64> {
    let verdicts = decision.verdicts.iter();
    verdicts.map(|verdict| verdict.view.remaining).collect()
}

/// What was let pass of requests that were all in flight at once, in requests and in units.
async fn flood(
    replicas: &[Replica],
    domain: &Arc<Domain>,
    descriptors: Descriptors,
    costs: &[u64],
) -> (usize, u64) {
    let mut load = JoinSet::new();
    for i in 0..LOAD {
        let (replica, domain) = (replicas[i % replicas.len()].clone(), Arc::clone(domain));
        let cost = costs[i % costs.len()];
        load.spawn(async move {
            let refused = replica.ask(&domain, descriptors, cost).await.refused;
            if refused { 0 } else { cost }
        });
    }
    let passed = load.join_all().await;
    for replica in replicas {
        replica.settled().await;
    }
    (
        passed.iter().filter(|cost| **cost > 0).count(),
        passed.iter().sum(),
    )
}

const TENANT: Descriptors = &[&[("tenant", "acme")]];
/// Three limits of one caller.
const NESTED: Descriptors = &[
    &[("tenant", "acme")],
    &[("tenant", "acme"), ("key", "k1")],
    &[("tenant", "acme"), ("route", "r1")],
];
/// Two callers.
const TWO: Descriptors = &[&[("tenant", "acme")], &[("key", "k1")]];

fn of_tenants(limit: Limit) -> Arc<Domain> {
    Arc::new(domain([(&[("tenant", None)], vec![limit])]))
}

/// Nothing comes back of it while the test runs, whatever the day.
fn lasting() -> [(&'static str, Limit); 5] {
    let tenth_of_a_day = 8_640;
    let queue = Micros::from_secs(136 * tenth_of_a_day);
    let some = Micros::from_secs(37 * tenth_of_a_day);
    [
        ("fixed", fixed("l", 137, Unit::Year)),
        ("sliding", sliding("l", 137, Unit::Week)),
        ("bucket", bucket("l", 1, 137, Unit::Day)),
        ("wait", waiting(bucket("l", 10, 100, Unit::Day), some)),
        ("leaky", leaky("l", 10, Unit::Day, queue)),
    ]
}

/// Two replicas on one store admit what a limit says and not one more.
async fn is_exact(url: &str, servers: &[&Server]) {
    let replicas = [Replica::start(url).await, Replica::start(url).await];
    let afresh = async |domain: &Arc<Domain>, descriptors, costs: &[u64]| {
        servers.iter().for_each(|server| drop(server.ask(&["FLUSHALL"])));
        replicas
            .iter()
            .for_each(|replica| replica.shared.forget_refusals());
        let passed = flood(&replicas, domain, descriptors, costs).await;
        expire(servers);
        passed
    };
    for (name, limit) in lasting() {
        let limited = of_tenants(limit);
        assert_eq!(afresh(&limited, TENANT, &[1]).await.0, 137, "{name}");
        let left = replicas[0].ask(&limited, TENANT, 0).await.verdicts[0].view;
        assert_eq!(left.remaining, 0, "{name}");
        live(servers, left.reset);
        let units = afresh(&limited, TENANT, &[1, 5, 2, 3]).await.1;
        // A queue is full when the last one waits too long, whatever that one costs.
        let most = if name == "leaky" { 141 } else { 137 };
        assert!((137..=most).contains(&units), "{name}: {units}");
    }

    let lane = of_tenants(Limit {
        excess: Some(Excess {
            action: ExcessAction::Degrade,
            up_to_percent: 137,
        }),
        ..fixed("l", 100, Unit::Year)
    });
    assert_eq!(afresh(&lane, TENANT, &[1]).await.0, 137);

    let nested = Arc::new(domain([
        (&[("tenant", None)], vec![bucket("tenant", 1, 1_000, Unit::Day)]),
        (
            &[("tenant", None), ("key", None)],
            vec![fixed("key", 137, Unit::Year)],
        ),
        (
            &[("tenant", None), ("route", None)],
            vec![sliding("route", 500, Unit::Week)],
        ),
    ]));
    assert_eq!(afresh(&nested, NESTED, &[1]).await.0, 137);
    assert_eq!(replicas[1].remaining(&nested, NESTED).await, [863, 0, 363]);

    // Two callers, of which one refuses: the other has lost nothing, and won nothing.
    let seen = Limit {
        shadow: true,
        ..fixed("seen", 100, Unit::Year)
    };
    let two = Arc::new(domain([
        (&[("tenant", None)], vec![fixed("tenant", 137, Unit::Year)]),
        (&[("key", None)], vec![bucket("key", 1, 5_000, Unit::Day), seen]),
    ]));
    assert_eq!(afresh(&two, TWO, &[1]).await.0, 137);
    // Of a charge on a bucket that was full, a millisecond's part has drained when it is given back: what is
    // left of it is no whole unit, and that one is lost.
    let left = replicas[1].remaining(&two, TWO).await;
    assert!(left[0] == 0 && (4_862..=4_863).contains(&left[1]), "{left:?}");
}

/// That no key is without an end.
fn expire(servers: &[&Server]) {
    for server in servers {
        for (key, ttl) in server.ttls() {
            assert!(ttl > 0, "{key} has no expiry");
        }
    }
}

/// That the one caller's key lives as long as what it holds, and a second longer at most.
fn live(servers: &[&Server], reset: Micros) {
    let keys = servers.iter().flat_map(|server| server.ttls());
    let callers: Vec<_> = keys.filter(|(key, _)| key.starts_with("cota:{api|")).collect();
    assert_eq!(callers.len(), 1, "{callers:?}");
    let (millis, most) = (callers[0].1, reset.0 as i64 / 1_000 + 1_000);
    // The reset was told a moment ago.
    assert!((most - 6_000..=most).contains(&millis), "{millis} of {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_on_one_redis_admit_the_limit_and_not_one_more() {
    let server = Server::start(&[]);
    is_exact(&server.url(), &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_on_a_cluster_admit_the_limit_and_not_one_more() {
    let cluster = tokio::task::block_in_place(Cluster::start);
    let primaries: Vec<_> = cluster
        .servers
        .iter()
        .filter(|server| server.text(&["INFO", "replication"]).contains("role:master"))
        .collect();
    assert_eq!(primaries.len(), 3);
    is_exact(&cluster.url(), &primaries).await;
}

#[tokio::test]
async fn a_call_is_one_key_and_it_ends_with_its_budget() {
    let server = Server::start(&[]);
    let replica = Replica::start(&server.url()).await;
    for limit in [
        fixed("l", 10, Unit::Minute),
        sliding("l", 10, Unit::Minute),
        bucket("l", 60, 10, Unit::Minute),
        leaky("l", 10, Unit::Minute, Micros::from_secs(60)),
    ] {
        server.ask(&["FLUSHALL"]);
        let limited = of_tenants(limit);
        let decision = replica.ask(&limited, TENANT, 4).await;
        live(&[&server], decision.verdicts[0].view.reset);
    }
    // What is full is not kept.
    server.ask(&["FLUSHALL"]);
    let limited = of_tenants(bucket("l", 60, 10, Unit::Minute));
    replica.put(&limited, &refunding(request(TENANT), 4)).await;
    assert!(
        server
            .ttls()
            .iter()
            .all(|(key, _)| !key.starts_with("cota:{api|"))
    );
}

#[tokio::test]
async fn replicas_that_are_replaced_find_what_was_spent() {
    let server = Server::start(&[]);
    let domain = of_tenants(bucket("l", 10, 10, Unit::Week));
    let mut replicas = [
        Replica::start(&server.url()).await,
        Replica::start(&server.url()).await,
    ];
    for i in 0..4 {
        assert!(!replicas[i % 2].ask(&domain, TENANT, 1).await.refused);
    }
    let mut admitted = 0;
    for i in 0..11 {
        if i < 2 {
            replicas[i] = Replica::start(&server.url()).await;
        }
        admitted += u64::from(!replicas[i % 2].ask(&domain, TENANT, 1).await.refused);
    }
    assert_eq!(admitted, 6);
}

#[tokio::test]
async fn changed_numbers_hold_at_once_for_what_was_spent() {
    let server = Server::start(&[]);
    let (old, new) = (
        Replica::start(&server.url()).await,
        Replica::start(&server.url()).await,
    );
    let admitted = async |domain: &Arc<Domain>| {
        let mut n = 0;
        while n < 5_000 && !new.ask(domain, TENANT, 1).await.refused {
            n += 1;
        }
        n
    };
    let kinds: [fn(u64) -> Limit; 3] = [
        |units| fixed("l", units, Unit::Year),
        |units| sliding("l", units, Unit::Week),
        |units| bucket("l", units, units, Unit::Week),
    ];
    for limit in kinds {
        let at = |units| of_tenants(limit(units));
        for _ in 0..60 {
            old.ask(&at(10), TENANT, 1).await;
        }
        assert_eq!(admitted(&at(20)).await, 10);
        let lowered = new.ask(&at(5), TENANT, 1).await;
        assert!(lowered.refused);
        assert_eq!(lowered.verdicts[0].view.remaining, 0);
        assert!(
            matches!(lowered.verdicts[0].outcome, Outcome::Deny { retry_after: Some(wait) } if wait > Micros::ZERO)
        );
        assert_eq!(admitted(&at(21)).await, 1);
        // A replica that has not read the file yet decides by its own numbers on the same budget.
        assert!(old.ask(&at(10), TENANT, 1).await.refused);
        assert_eq!(admitted(&at(100)).await, 79);
    }
    let keys = server.ttls();
    let callers = keys.iter().filter(|(key, _)| key.starts_with("cota:{api|"));
    assert_eq!(callers.count(), 1, "{keys:?}");
    expire(&[&server]);
}

/// The keys of a service that answers with these headers, and how many headers that are.
async fn keys_with(headers: &str, server: &Server, replica: &Replica) -> (Vec<String>, usize) {
    server.ask(&["FLUSHALL"]);
    replica.shared.forget_refusals();
    let text = format!(
        "domain: api\nresponse: {{headers: [{headers}]}}\ndescriptors:\n  - key: tenant\n    rate_limits:\n      \
         - {{name: a, unit: year, requests_per_unit: 9}}\n      - {{name: b, unit: week, requests_per_unit: 3}}\n"
    );
    let source = Source {
        name: "api.yaml".into(),
        text,
    };
    let loaded = load(&[source], SystemClock.now());
    assert!(!loaded.has_errors(), "{:?}", loaded.faults);
    let domains = loaded.domains.into_iter();
    let policy = Policy {
        domains: domains
            .map(|domain| (domain.name, domain.domain.unwrap()))
            .collect(),
        version: 1,
    };
    let in_force = Arc::new(ArcSwap::from_pointee(policy));
    let limiter = Limiter::new(Arc::clone(&replica.shared), SystemClock, in_force, false);
    let metrics = Arc::new(Metrics::new(&mut Registry::default(), false));
    let service = RateLimits::new(Arc::new(limiter), metrics);
    let mut sent = 0;
    for tenant in ["acme", "other"] {
        for _ in 0..5 {
            let entries = vec![Entry {
                key: "tenant".into(),
                value: tenant.into(),
            }];
            let descriptor = RateLimitDescriptor {
                entries,
                ..RateLimitDescriptor::default()
            };
            let message = RateLimitRequest {
                domain: "api".into(),
                descriptors: vec![descriptor],
                hits_addend: 0,
            };
            sent += service
                .decide(&message, None)
                .await
                .unwrap()
                .response_headers_to_add
                .len();
        }
    }
    let keys = server.ttls().into_iter().map(|(key, _)| key);
    let mut keys: Vec<_> = keys.filter(|key| key.starts_with("cota:{api|")).collect();
    keys.sort_unstable();
    (keys, sent)
}

#[tokio::test]
async fn headers_cost_no_keys() {
    let server = Server::start(&[]);
    let replica = Replica::start(&server.url()).await;
    let (bare, none) = keys_with("none", &server, &replica).await;
    let (rich, many) = keys_with("draft-03, x-ratelimit", &server, &replica).await;
    assert!(many > none + 10, "{many} and {none}");
    assert_eq!(bare, ["cota:{api|tenant=acme}", "cota:{api|tenant=other}"]);
    assert_eq!(rich, bare);
}

/// A budget with much room beside one that refuses: each request takes and gives back.
fn refusing() -> Arc<Domain> {
    Arc::new(domain([
        (
            &[("tenant", None)],
            vec![
                fixed("fixed", 10_000, Unit::Year),
                bucket("bucket", 1, 10_000, Unit::Day),
                Limit {
                    shadow: true,
                    ..sliding("seen", 500, Unit::Week)
                },
            ],
        ),
        (&[("key", None)], vec![fixed("none", 0, Unit::Year)]),
    ]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_abandoned_half_way_is_lost_and_never_minted() {
    let server = Server::start(&[]);
    let replica = Replica::start(&server.url()).await;
    let domain = refusing();
    assert!(!replica.ask(&domain, TENANT, 500).await.refused);
    // Nobody hurries: all comes back.
    assert_eq!(
        flood(std::slice::from_ref(&replica), &domain, TWO, &[1]).await.0,
        0
    );
    assert_eq!(replica.remaining(&domain, TENANT).await, [9_500, 9_500, 0]);
    // Callers that leave while they are asked for, some before, some after the first answer.
    for i in 0..400 {
        let asking = replica.ask(&domain, TWO, 1);
        let _ = tokio::time::timeout(Duration::from_micros(i * 3), asking).await;
    }
    replica.settled().await;
    let left = replica.remaining(&domain, TENANT).await;
    assert!(left[0] <= 9_500 && left[1] <= 9_500 && left[2] == 0, "{left:?}");
    assert!(left[0] > 9_000, "{left:?}");
}

#[test]
fn a_replica_that_dies_half_way_loses_units_and_mints_none() {
    let server = Server::start(&[]);
    let domain = refusing();
    let limited = of_tenants(fixed("l", 1_000_000, Unit::Year));
    let admitted = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let replica = runtime();
        let store = replica.block_on(Replica::start(&server.url()));
        for _ in 0..1_000 {
            let (store, domain, limited) = (store.clone(), Arc::clone(&domain), Arc::clone(&limited));
            let admitted = Arc::clone(&admitted);
            replica.spawn(async move {
                loop {
                    if !store.ask(&limited, TENANT, 1).await.refused {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                    store.ask(&domain, TWO, 1).await;
                }
            });
        }
        let before = admitted.load(Ordering::SeqCst);
        await_that("some pass", || admitted.load(Ordering::SeqCst) >= before + 300);
        // All its tasks end where they are, those that give back too.
        replica.shutdown_background();
        drop(store);
    }
    runtime().block_on(async {
        let store = Replica::start(&server.url()).await;
        // The dead are gone from Redis' view too.
        await_that("the connections are closed", || {
            server.text(&["CLIENT", "LIST"]).lines().count() <= 2
        });
        let passed = admitted.load(Ordering::SeqCst);
        let left = store.remaining(&limited, TENANT).await[0];
        assert!(passed + left <= 1_000_000, "{passed} and {left}");
        assert!(passed >= 900, "{passed}");
        let left = store.remaining(&domain, TENANT).await;
        assert!(
            left[0] <= 10_000 && left[1] <= 10_000 && left[2] <= 500,
            "{left:?}"
        );
    });
    expire(&[&server]);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// How often the server ran the script.
fn script_runs(server: &Server) -> u64 {
    let stats = server.text(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        let (command, rest) = line.split_once(":calls=")?;
        let calls: u64 = rest.split(',').next()?.parse().unwrap();
        (command.starts_with("cmdstat_eval")).then_some(calls)
    };
    stats.lines().filter_map(calls).sum()
}

#[tokio::test]
async fn a_refused_caller_costs_the_store_nothing() {
    let server = Server::start(&[]);
    let replica = Replica::start(&server.url()).await;
    let domain = Arc::new(domain([
        (&[("tenant", None)], vec![fixed("tenant", 10, Unit::Year)]),
        (
            &[("tenant", None), ("key", None)],
            vec![fixed("key", 100, Unit::Year)],
        ),
    ]));
    let both: Descriptors = &[&[("tenant", "acme")], &[("tenant", "acme"), ("key", "k1")]];
    assert!(!replica.ask(&domain, both, 8).await.refused);
    let told = replica.ask(&domain, both, 5).await;
    assert!(told.refused && !told.unasked);

    // Memory holds a second at most: how often the store was asked follows from how long this took.
    let (watch, before) = (Stopwatch::start(), script_runs(&server));
    let mut unasked = 0;
    for _ in 0..500 {
        let decision = replica.ask(&domain, both, 5).await;
        assert!(decision.refused);
        assert_eq!(remaining_of(&decision), [2, 92]);
        unasked += u64::from(decision.unasked);
    }
    let asked = script_runs(&server) - before;
    // Heartbeats are scripts as well.
    let most = 2 * (watch.elapsed().as_secs() + 1);
    assert!(asked <= most && unasked >= 500 - most, "{asked} {unasked}");

    // A cheaper request, another budget and another caller are judged by themselves.
    assert!(!replica.ask(&domain, both, 1).await.refused);
    assert!(
        !replica
            .ask(&domain, &[&[("tenant", "acme"), ("key", "k2")]], 5)
            .await
            .refused
    );
    assert!(!replica.ask(&domain, &[&[("tenant", "other")]], 5).await.refused);
    // A limit that was raised meanwhile holds at once.
    assert!(replica.ask(&domain, both, 5).await.refused);
    let raised = of_tenants(fixed("tenant", 20, Unit::Year));
    assert!(!replica.ask(&raised, TENANT, 5).await.refused);
}

#[tokio::test]
async fn a_refusal_is_forgotten_when_units_come_back() {
    let server = Server::start(&[]);
    let (here, elsewhere) = (
        Replica::start(&server.url()).await,
        Replica::start(&server.url()).await,
    );
    let domain = of_tenants(fixed("tenant", 10, Unit::Year));
    assert!(!here.ask(&domain, TENANT, 10).await.refused);
    assert!(here.ask(&domain, TENANT, 1).await.refused);
    // Here: at once.
    here.put(&domain, &refunding(request(TENANT), 3)).await;
    assert!(!here.ask(&domain, TENANT, 3).await.refused);
    // Elsewhere: after a second at most.
    assert!(here.ask(&domain, TENANT, 1).await.refused);
    elsewhere.put(&domain, &refunding(request(TENANT), 3)).await;
    let watch = Stopwatch::start();
    while here.ask(&domain, TENANT, 1).await.refused {
        assert!(watch.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // And so is data that the store lost.
    assert!(here.ask(&domain, TENANT, 9).await.refused);
    server.ask(&["FLUSHALL"]);
    here.shared.forget_refusals();
    assert!(!here.ask(&domain, TENANT, 9).await.refused);
}

#[tokio::test]
async fn debts_are_charged_however_often_they_refuse() {
    let server = Server::start(&[]);
    let replica = Replica::start(&server.url()).await;
    let domain = of_tenants(Limit {
        overdraft: true,
        ..fixed("tenant", 100, Unit::Year)
    });
    for spent in [100, 120, 140, 160] {
        let decision = replica
            .ask(&domain, TENANT, if spent == 100 { 100 } else { 20 })
            .await;
        assert_eq!((decision.refused, decision.unasked), (spent > 100, false));
    }
    // Which of a look may be remembered.
    assert!(replica.ask(&domain, TENANT, 0).await.unasked);
    let refunded = replica.put(&domain, &refunding(request(TENANT), 65)).await;
    assert_eq!(remaining_of(&refunded), [5]);
}

#[tokio::test]
async fn one_replica_lets_pass_ten_times_a_limit_at_most_whatever_the_store_says() {
    let nobody = Server::absent(&[]);
    let client = Client::start(nobody.url().parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap();
    let replica = Replica {
        shared: Shared::start(
            Redis::new(client, Duration::from_millis(10)),
            Replicas::fixed(1),
            SystemClock,
            1_000,
            Duration::from_millis(10),
            Box::new(|_| {}),
        ),
    };
    let allowing = Limit {
        failure_mode: FailureMode::Allow,
        barrier: Some(Factor::BARRIER),
        ..fixed("l", 20, Unit::Year)
    };
    let domain = of_tenants(allowing);
    let mut passed = 0;
    for _ in 0..300 {
        let asked = request(TENANT);
        let mut resolved = resolve(Some(&domain), &asked, false, SystemClock.now());
        let decision = replica.shared.decide(&mut resolved, Micros::ZERO).await.unwrap();
        assert_eq!(decision.unasked, decision.refused);
        passed += u64::from(!decision.refused);
    }
    assert_eq!(passed, 200);
}
