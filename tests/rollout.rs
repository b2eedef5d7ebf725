//! Replicas that come and go behind the real Envoy: no request fails, and none passes that a limit forbids.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;
mod support;

use cota_process::{Cota, command, request};
use support::certificates::Authority;
use support::gateway::{Gateway, agent, get};
use support::redis::{Server, await_that, free_port};

/// What nobody spends here.
const LARGE: u64 = 1_000_000_000;

const POLICY: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 1000000000}
  - key: tenant
    value: small
    rate_limit: {name: small, unit: year, requests_per_unit: 20}
";

/// The cluster that docs/ENVOY.md recommends.
fn recommended() -> String {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ENVOY.md")).unwrap();
    let (_, section) = text.split_once("\n## The cluster\n").unwrap();
    let block = section.split("```").nth(1).unwrap();
    block.strip_prefix("yaml\n").unwrap().to_owned()
}

/// The same for replicas on these ports, which are found in less time.
fn cluster_of(ports: &[u16]) -> String {
    let endpoint = |port| {
        format!(
            "      - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}\n"
        )
    };
    let text = recommended();
    let asked = "      - endpoint: {address: {socket_address: {address: cota.limits.svc.cluster.local, port_value: 8081}}}\n";
    assert!(text.contains(asked));
    let text = text.replace(
        asked,
        &ports.iter().map(|&port| endpoint(port)).collect::<String>(),
    );
    text.replace("interval: 1s", "interval: 0.1s")
}

/// The cluster without TLS.
fn plain(cluster: &str) -> String {
    let (before, _) = cluster.split_once("  transport_socket:\n").unwrap();
    before.to_owned()
}

/// The cluster with the certificates of a test.
fn secured(cluster: &str, ours: &Authority) -> String {
    let path = |name: &str| ours.path(name).display().to_string();
    cluster
        .replace("/etc/envoy/tls/tls.crt", &path("envoy.pem"))
        .replace("/etc/envoy/tls/tls.key", &path("envoy.key"))
        .replace("/etc/envoy/tls/ca.crt", &path("ca.pem"))
}

/// What a load saw.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    large: AtomicU64,
    small: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Seen {
    /// Requests of two tenants on four connections until `during` has ended.
    fn load(&self, gateway: &Gateway, during: impl FnOnce(&Self)) {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| self.send(gateway));
            }
            // Whatever `during` does, the load must end.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| during(self)));
            self.stop.store(true, Ordering::Relaxed);
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    fn send(&self, gateway: &Gateway) {
        let agent = agent();
        while !self.stop.load(Ordering::Relaxed) {
            for (tenant, passed) in [("large", &self.large), ("small", &self.small)] {
                let counted = match get(&agent, gateway.address, tenant).status {
                    200 => passed,
                    429 => &self.refused,
                    _ => &self.failed,
                };
                counted.fetch_add(1, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until so many more requests have passed.
    fn await_more(&self, requests: u64) {
        let wanted = self.large.load(Ordering::Relaxed) + requests;
        await_that("requests pass", || self.large.load(Ordering::Relaxed) >= wanted);
    }
}

/// A replica on that port whose store is that server. Its timeout is patient, so that a machine that stalls does not
/// make it decide alone. The drain is longer than Envoy's health check needs and the second for which it gathers
/// what has changed before it balances anew.
fn replica(policy: &Path, store: &Server, port: u16, arguments: &[&str]) -> Cota {
    let mut serve = command(&["serve", "--drain", "3s", "--store-timeout", "5s", "--config"]);
    serve.arg(policy).args(["--store", &store.url()]).args(arguments);
    Cota::start_on(&mut serve, port)
}

#[test]
fn replicas_are_replaced_under_load_without_a_failed_or_an_unlimited_request() {
    let store = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("api.yaml");
    fs::write(&policy, POLICY).unwrap();
    let ports = [free_port(), free_port()];
    let start = |port| Some(replica(&policy, &store, port, &[]));
    let mut replicas = ports.map(start);
    let gateway = Gateway::start(&plain(&cluster_of(&ports)));
    let healthy = |count| {
        await_that("Envoy knows who is healthy", || {
            gateway.stat("cluster.cota.membership_healthy") == count
        });
    };
    healthy(2);

    let seen = Seen::default();
    seen.load(&gateway, |seen| {
        seen.await_more(100);
        for (replica, port) in replicas.iter_mut().zip(ports) {
            let old = replica.as_mut().unwrap();
            old.signal("TERM");
            healthy(1);
            assert!(old.await_end().success());
            seen.await_more(50);
            *replica = None;
            *replica = start(port);
            healthy(2);
            await_that("the new replica is asked", || {
                replica
                    .as_ref()
                    .unwrap()
                    .metric("cota_requests_total", &["domain=\"api\""])
                    > 20
            });
        }
    });

    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!(
        count(&seen.failed),
        0,
        "{}",
        gateway.stat("cluster.upstream.ratelimit.error")
    );
    assert_eq!(count(&seen.small), 20, "a new replica grants no fresh budget");
    assert!(count(&seen.refused) > 0);
    // Each request that passed was charged, to one budget.
    let passed = count(&seen.large);
    assert_eq!(gateway.get("large").remaining, Some(LARGE - passed - 1));
    assert_eq!(gateway.stat("cluster.upstream.ratelimit.failure_mode_allowed"), 0);
}

#[test]
fn envoy_calls_over_mutual_tls_and_is_made_to_connect_anew_without_a_failed_request() {
    let store = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("api.yaml");
    fs::write(&policy, POLICY).unwrap();
    let ours = Authority::new();
    let (cert, key) = ours.issue("server", "cota.limits.svc.cluster.local");
    ours.issue_to("envoy", &["spiffe://cluster.local/ns/edge/sa/gateway"]);
    let text = |path: &Path| path.display().to_string();
    let ports = [free_port(), free_port()];
    let arguments = [
        "--tls-cert",
        &text(&cert),
        "--tls-key",
        &text(&key),
        "--tls-client-ca",
        &text(&ours.path("ca.pem")),
        "--tls-client-names",
        "spiffe://cluster.local/ns/edge/sa/gateway",
        "--max-connection-age",
        "200ms",
    ];
    let replicas = ports.map(|port| replica(&policy, &store, port, &arguments));
    let gateway = Gateway::start(&secured(&cluster_of(&ports), &ours));
    await_that("Envoy knows who is healthy", || {
        gateway.stat("cluster.cota.membership_healthy") == 2
    });

    let seen = Seen::default();
    seen.load(&gateway, |seen| {
        seen.await_more(100);
        let so_far = gateway.stat("cluster.cota.upstream_cx_total");
        await_that("Envoy connects anew", || {
            gateway.stat("cluster.cota.upstream_cx_total") >= so_far + 20
        });
        seen.await_more(100);
    });

    assert_eq!(seen.failed.load(Ordering::Relaxed), 0);
    assert_eq!(seen.small.load(Ordering::Relaxed), 20);
    assert!(gateway.stat("cluster.cota.ssl.handshake") > 20);
    let passed = seen.large.load(Ordering::Relaxed);
    assert_eq!(gateway.get("large").remaining, Some(LARGE - passed - 1));
    for replica in replicas {
        assert!(!replica.log().contains("WARN"), "{}", replica.log());
    }
}

#[test]
fn a_replica_gives_back_what_callers_who_left_were_charged_before_it_ends() {
    let store = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("api.yaml");
    // The first goes at once; the second is held for an hour, and has been charged to both.
    fs::write(
        &policy,
        "
domain: api
descriptors:
  - key: tenant
    rate_limits:
      - {name: holds, unit: hour, requests_per_unit: 1, algorithm: leaky_bucket, max_wait: 2h}
      - {name: counts, unit: year, requests_per_unit: 9}
",
    )
    .unwrap();
    let arguments = ["--drain", "0s", "--store-timeout", "20s", "--store", &store.url()];
    let start = || Cota::start(command(&["serve", "--config"]).arg(&policy).args(arguments));
    let mut leaving = start();
    let look = |cota: &Cota| {
        let mut look = request("api", &[&[("tenant", "acme")]]);
        look.descriptors[0].hits_addend = Some(0);
        let answer = cota.send(look).unwrap();
        let header = answer
            .response_headers_to_add
            .iter()
            .find(|header| header.key == "RateLimit-Policy");
        (
            header.map(|header| header.value.clone()),
            answer.statuses[0].limit_remaining,
        )
    };
    leaving.send(request("api", &[&[("tenant", "acme")]])).unwrap();
    let free = look(&leaving);
    let client = leaving.client();
    let held = client.begin(request("api", &[&[("tenant", "acme")]]));
    await_that("the second is charged", || look(&leaving) != free);

    store.freeze();
    held.abort();
    leaving.signal("TERM");
    await_that("it waits", || {
        leaving.log().contains("giving back charges before the end")
    });
    assert!(leaving.has_ended().is_none());
    store.thaw();
    assert!(leaving.await_end().success());

    assert_eq!(look(&start()), free);
}
