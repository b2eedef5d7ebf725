//! Leases on a real server: the escrow's script, and replicas that share a hot caller.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cota::clock::{Clock as _, Stopwatch, SystemClock};
use cota::engine::lease::{Ask, HELD_FOR};
use cota::engine::limit::{Limit, Unit};
use cota::engine::policy::Domain;
use cota::engine::reset;
use cota::engine::resolve::{Resolved, resolve};
use cota::engine::time::Micros;
use cota::store::Store as _;
use cota::store::leased::{Leased, watch};
use cota::store::redis::{Client, Redis, SCRIPT, TlsFiles};
use cota::store::shared::{Replicas, Shared};
use tokio::task::JoinSet;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "it does not use all of it")]
mod cota_process;
mod support;

use cota_process::{Cota, Got, command, eventually};
use support::policy::{bucket, costing, domain, fixed, leased, request};
use support::redis::{PATIENCE, Server};

/// So long that a busy machine degrades nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

type Leases = Leased<Arc<Shared<SystemClock>>, SystemClock>;

async fn redis(url: &str) -> Redis {
    let client = Client::start(url.parse().unwrap(), TlsFiles::default(), SCRIPT).unwrap();
    let began = Stopwatch::start();
    while !client.shards().iter().all(|shard| shard.up) {
        assert!(began.elapsed() < PATIENCE, "{client:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Redis::new(client, TIMEOUT)
}

async fn replica(url: &str) -> Arc<Leases> {
    let shared = Shared::start(
        redis(url).await,
        Replicas::fixed(2),
        SystemClock,
        1_000,
        TIMEOUT,
        Box::new(|_| {}),
    );
    let spawn = Box::new(|task| drop(tokio::spawn(task)));
    let leases = Leased::new(shared, SystemClock, spawn);
    tokio::spawn(watch(Arc::downgrade(&leases)));
    leases
}

fn of_tenants(limit: Limit) -> Arc<Domain> {
    Arc::new(domain([(&[("tenant", None)], vec![limit])]))
}

/// A request of that cost, as it meets the domain.
fn asked(domain: &Domain, cost: u64) -> Resolved<'_> {
    let request = costing(request(&[&[("tenant", "acme")]]), cost);
    resolve(Some(domain), &request, false, SystemClock.now())
}

fn ask(units: u64, least: u64, spent: &[u64]) -> Ask {
    Ask {
        units,
        least,
        bound: 100,
        spent: spent.iter().copied().collect(),
    }
}

#[tokio::test]
async fn the_escrow_holds_no_more_than_its_bound_and_forgets_in_two_seconds() {
    let server = Server::start(&[]);
    let redis = redis(&server.url()).await;
    let domain = of_tenants(bucket("tenant", 1_000, 1_000, Unit::Year));
    let resolved = asked(&domain, 1);
    let budget = resolved.key(&resolved.charges[0]);
    let reserve = async |id, ask: Ask| redis.reserve(&budget, id, &ask).await.unwrap();

    assert_eq!(reserve(1, ask(60, 10, &[])).await, 60);
    // What is left, unless that is less than is of use.
    assert_eq!(reserve(2, ask(60, 41, &[])).await, 0);
    assert_eq!(reserve(2, ask(60, 40, &[])).await, 40);
    assert_eq!(reserve(3, ask(1, 1, &[])).await, 0);
    // Struck off once.
    assert!(redis.strike(&budget, 2).await.unwrap());
    assert!(!redis.strike(&budget, 2).await.unwrap());
    assert!(!redis.strike(&budget, 9).await.unwrap());
    assert_eq!(reserve(4, ask(100, 1, &[1, 7])).await, 100);
    let full = Stopwatch::start();

    // Beside the caller's budgets, where the script of decisions finds nothing odd, and never without an end.
    let ttls = server.ttls();
    assert_eq!(ttls.len(), 1);
    assert!(ttls[0].0.starts_with("c:{api|tenant=acme}~"), "{ttls:?}");
    assert!((1..=2_000).contains(&ttls[0].1), "{ttls:?}");

    while reserve(5, ask(100, 1, &[])).await == 0 {
        assert!(full.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let held = full.elapsed() + Duration::from_millis(200);
    assert!(held >= Duration::from(HELD_FOR), "free after {held:?}");
}

#[tokio::test]
async fn a_reset_takes_the_escrow_with_it() {
    let server = Server::start(&[]);
    let redis = redis(&server.url()).await;
    let domain = of_tenants(bucket("tenant", 1_000, 1_000, Unit::Year));
    let resolved = asked(&domain, 1);
    let budget = resolved.key(&resolved.charges[0]);
    assert_eq!(redis.reserve(&budget, 1, &ask(100, 1, &[])).await.unwrap(), 100);
    let targets = reset::targets(&domain, &[("tenant", "acme")], None).unwrap();
    redis.reset(&targets, true).await.unwrap();
    // So the block is not given back to the budget that has started afresh.
    assert!(!redis.strike(&budget, 1).await.unwrap());
}

#[tokio::test]
async fn the_escrows_of_two_budgets_of_a_caller_are_two() {
    let server = Server::start(&[]);
    let redis = redis(&server.url()).await;
    let limits = vec![
        bucket("one", 1_000, 1_000, Unit::Year),
        bucket("two", 1_000, 1_000, Unit::Year),
    ];
    let domain = domain([(&[("tenant", None)], limits)]);
    let resolved = asked(&domain, 1);
    for charge in &resolved.charges {
        let budget = resolved.key(charge);
        assert_eq!(redis.reserve(&budget, 1, &ask(100, 1, &[])).await.unwrap(), 100);
    }
}

/// Asks through both replicas from many tasks at once until `requests` were asked; says how many passed.
async fn flood(replicas: &[Arc<Leases>; 2], domain: &Arc<Domain>, requests: u64) -> u64 {
    let left = Arc::new(AtomicU64::new(requests));
    let mut load = JoinSet::new();
    for i in 0..20 {
        let (leases, domain, left) = (
            Arc::clone(&replicas[i % 2]),
            Arc::clone(domain),
            Arc::clone(&left),
        );
        load.spawn(async move {
            let mut passed = 0;
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
            {
                passed += u64::from(put(&leases, &domain, 1).await);
                tokio::task::yield_now().await;
            }
            passed
        });
    }
    load.join_all().await.into_iter().sum()
}

async fn put(leases: &Leases, domain: &Domain, cost: u64) -> bool {
    let mut resolved = asked(domain, cost);
    let decision = leases.decide(&mut resolved, Micros::ZERO).await.unwrap();
    assert!(!decision.degraded, "the store gave no answer");
    !decision.refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_let_pass_just_what_there_is_and_hold_no_more_than_their_share() {
    for limit in [
        fixed("tenant", 20_000, Unit::Year),
        bucket("tenant", 20_000, 20_000, Unit::Year),
    ] {
        let server = Server::start(&[]);
        let replicas = [replica(&server.url()).await, replica(&server.url()).await];
        let domain = of_tenants(leased(limit, 500));
        let done = Arc::new(AtomicBool::new(false));
        let watched = (replicas.clone(), Arc::clone(&done));
        let watcher = tokio::spawn(async move {
            let (mut most, mut seen) = (0, 0_u64);
            while !watched.1.load(Ordering::Relaxed) {
                let held =
                    |leases: &Arc<Leases>| leases.holdings().iter().map(|held| held.units).sum::<u64>();
                most = watched.0.iter().map(held).sum::<u64>().max(most);
                seen += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (most, seen)
        });
        let mut passed = flood(&replicas, &domain, 15_000).await;
        assert_eq!(passed, 15_000);
        passed += flood(&replicas, &domain, 7_000).await;
        // What is held is spent or back, and then the last unit is there for anybody.
        for leases in &replicas {
            leases.end().await;
        }
        while put(&replicas[0], &domain, 1).await {
            passed += 1;
        }
        done.store(true, Ordering::Relaxed);
        let (most, seen) = watcher.await.unwrap();
        // A year's twenty thousand bring back one unit every half an hour.
        assert!((20_000..=20_001).contains(&passed), "{passed} passed");
        assert!(
            (1..=1_000).contains(&most) && seen > 10,
            "{most} units held, seen {seen} times"
        );
        let calls = scripts(&server);
        assert!(calls < 15_000, "{calls} calls");
        assert!(server.ttls().iter().all(|(_, ttl)| *ttl > 0));
    }
}

#[test]
fn a_service_that_is_told_to_end_gives_back_what_it_holds() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(
        &policy,
        "domain: api
descriptors: [{key: tenant, rate_limit: {name: tenant, unit: year, requests_per_unit: 100000, max_overshoot: 5%}}]
",
    )
    .unwrap();
    let serve = || {
        let url = server.url();
        let arguments = [
            "serve",
            "--drain",
            "0s",
            "--store-timeout",
            "10s",
            "--store",
            &url,
            "--config",
        ];
        Cota::start(command(&arguments).arg(&policy))
    };
    let mut cota = serve();
    let labels = ["domain=\"api\"", "limit=\"tenant\""];
    assert_eq!(cota.metric("cota_lease_units", &labels), 0);
    let mut passed = 0;
    eventually("units are held", || {
        for _ in 0..50 {
            assert!(matches!(
                cota.ask("api", "tenant", "acme"),
                Ok(Got::Allowed { .. })
            ));
            passed += 1;
        }
        (cota.metric("cota_lease_units", &labels) > 0).then_some(())
    });
    assert_eq!(cota.metric("cota_lease_bound_units", &labels), 5_000);
    cota.signal("TERM");
    assert!(cota.await_end().success(), "{}", cota.log());
    let left = 100_000 - passed - 1;
    assert_eq!(
        serve().ask("api", "tenant", "acme").unwrap(),
        Got::Allowed { limit: 100_000, left }
    );
}

/// How many scripts the server ran.
fn scripts(server: &Server) -> u64 {
    let stats = server.text(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        line.split_once("calls=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    };
    let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    scripts.filter_map(calls).sum()
}
