//! The HTTP port as the service opens it, with a policy of its own and a clock that stands.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use cota::clock::ManualClock;
use cota::config::watch::Severity;
use cota::config::{Source, load};
use cota::engine::policy::Policy;
use cota::engine::reset::Target;
use cota::engine::time::Timestamp;
use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use cota::grpc::rate_limit::RateLimits;
use cota::http::{Admin, Budgeted, Readiness, State, serve};
use cota::limiter::Limiter;
use cota::overrides::Overrides;
use cota::store::ledger::Ledger;
use cota::store::memory::{Eviction, Memory};
use cota::telemetry::{EVICTIONS, Metrics, register_counts};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

/// A server on a port of its own.
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    policy: Arc<ArcSwap<Policy>>,
    pub(crate) faults: Arc<ArcSwap<Vec<(Severity, String)>>>,
    pub(crate) readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    service: RateLimits<Arc<Memory<ManualClock>>, ManualClock>,
    pub(crate) overrides: Arc<Overrides>,
    pub(crate) clock: ManualClock,
    pub(crate) shutdown: Option<oneshot::Sender<()>>,
    pub(crate) server: tokio::task::JoinHandle<()>,
}

impl Port {
    pub(crate) async fn open(policy: Policy) -> Self {
        Self::open_with(policy, false).await
    }

    /// The port of a service with or without `--shadow`.
    pub(crate) async fn open_with(policy: Policy, shadow: bool) -> Self {
        Self::open_for(policy, shadow, Admin::default()).await
    }

    /// The same for whoever knows a token.
    pub(crate) async fn open_for(policy: Policy, shadow: bool, admin: Admin) -> Self {
        let clock = ManualClock::at(NOW);
        let in_force = Arc::new(ArcSwap::from_pointee(Policy::default()));
        let store = Arc::new(Memory::new(clock.clone(), 100_000));
        let forgets = Arc::clone(&store);
        let overrides = Arc::new(Overrides::new(
            Ledger::in_memory(),
            Arc::clone(&in_force),
            clock.clone(),
            Box::new(move |targets: &[Target]| {
                forgets.reset(targets);
            }),
        ));
        let limiter = Limiter::new(store, clock.clone(), Arc::clone(&in_force), shadow);
        let limiter = Arc::new(limiter.overridden_by(overrides.live()));
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry, shadow));
        let evicted = Arc::clone(&limiter);
        register_counts(
            &mut registry,
            EVICTIONS,
            Eviction::ALL.map(|kind| (kind.name(), kind)),
            move |kind| evicted.store().evicted(kind),
        );
        let faults = Arc::default();
        let readiness = Arc::<Readiness>::default();
        let service = RateLimits::new(limiter, Arc::clone(&metrics));
        let decider = service.clone();
        let state = State {
            policy: Arc::clone(&in_force),
            faults: Arc::clone(&faults),
            shadow,
            readiness: Arc::clone(&readiness),
            registry,
            decide: Box::new(move |request: RateLimitRequest| {
                let service = decider.clone();
                Box::pin(async move { service.decide(&request, None).await })
            }),
            degraded: Box::new(Vec::new),
            overrides: Arc::clone(&overrides),
            admin,
            usage: Arc::clone(metrics.usage()),
            budgets: Box::new(|| Budgeted {
                store: "memory",
                replicas: None,
                shards: Vec::new(),
            }),
            clock: Arc::new(clock.clone()),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, Arc::new(state), None, async {
            let _ = stopped.await;
        }));
        let port = Self {
            address,
            policy: in_force,
            faults,
            readiness,
            metrics,
            service,
            overrides,
            clock,
            shutdown: Some(shutdown),
            server,
        };
        port.install(policy);
        port
    }

    /// The digest of the file that a domain came from.
    pub(crate) fn revision(&self, domain: &str) -> String {
        let revision = self.policy.load().domains[domain].revision.to_string();
        assert_eq!(revision.len(), 16, "{revision}");
        revision
    }

    pub(crate) fn install(&self, policy: Policy) {
        let policy = Arc::new(policy);
        self.metrics.install(Arc::clone(&policy));
        self.policy.store(policy);
    }

    /// Decides without a connection, and counts it.
    pub(crate) async fn decide(&self, domain: &str, key: &str, value: &str) {
        use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::{
            RateLimitDescriptor, rate_limit_descriptor::Entry,
        };
        let message = RateLimitRequest {
            domain: domain.into(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry {
                    key: key.into(),
                    value: value.into(),
                }],
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        };
        self.service.decide(&message, None).await.unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.send("GET", path, &[], b"").await;
        (status, body)
    }

    pub(crate) async fn post_json(&self, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let (status, head, text) = self.send("POST", "/json", &[], body.as_bytes()).await;
        assert!(head.contains("content-type: application/json"), "{head}");
        (status, serde_json::from_str(&text).unwrap())
    }

    /// One request on a connection of its own: status, head and body of the answer.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n"
        );
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        // A refused request may find its connection closed before it is sent in full.
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.into(), body.into())
    }
}

/// A bucket of three a minute for each tenant, with plans and an override, and a window in shadow mode
/// for each tenant on some routes.
const POLICY: &str = r#"
domain: api
descriptors:
  - key: tenant
    rate_limits:
      - name: tenant
        algorithm: token_bucket
        plan_entry: plan
        plans:
          free: {unit: minute, requests_per_unit: 3}
          pro: {unit: minute, requests_per_unit: 30, burst: 10}
        default_plan: free
  - key: route
    value: "GET /x*"
    descriptors:
      - key: tenant
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 10}
overrides:
  - match: {tenant: big}
    limit: tenant
    multiply: 2.5
    expires_at: 2030-12-03T00:00:00Z
    author: ana
"#;

pub(crate) fn policy(version: u64) -> Policy {
    policy_of(POLICY, version)
}

/// The policy of a file of that text.
pub(crate) fn policy_of(text: &str, version: u64) -> Policy {
    let source = Source {
        name: "api.yaml".into(),
        text: text.into(),
    };
    let loaded = load(&[source], NOW);
    assert!(!loaded.has_errors(), "{:?}", loaded.faults);
    let domains = loaded.domains.into_iter();
    Policy {
        domains: domains
            .map(|domain| (domain.name, domain.domain.unwrap()))
            .collect(),
        version,
    }
}
