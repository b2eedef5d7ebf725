//! The HTTP port, over real connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use cota::clock::ManualClock;
use cota::engine::descriptor::Request;
use cota::engine::key::Identity;
use cota::engine::limit::{Algorithm, Counts, Limit, Numbers, Plans, Unit, windows_of};
use cota::engine::overrides::{Change, Override, OverrideIndex};
use cota::engine::policy::{Domain, KeyRules, Level, Match, Node, Policy};
use cota::engine::time::{Micros, Timestamp};
use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use cota::grpc::rate_limit::RateLimits;
use cota::http::{Readiness, State, serve};
use cota::limiter::Limiter;
use cota::store::memory::{Eviction, Memory};
use cota::telemetry::{Metrics, register_evictions};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

#[tokio::test]
async fn probes_follow_the_policy_and_the_drain() {
    let port = Port::open(Policy::default()).await;
    assert_eq!(port.get("/livez").await, (200, "ok\n".into()));
    assert_eq!(
        port.get("/readyz").await,
        (503, "no policy is in force yet\n".into())
    );
    assert_eq!(port.get("/healthcheck").await.0, 503);

    port.install(Policy {
        version: 1,
        ..Policy::default()
    });
    assert_eq!(
        port.get("/readyz").await,
        (503, "the policy in force has no domain\n".into())
    );

    port.install(policy(2));
    assert_eq!(port.get("/readyz").await, (200, "ok\n".into()));
    assert_eq!(port.get("/healthcheck").await, (200, "OK".into()));

    port.readiness.drain();
    assert_eq!(port.get("/readyz").await, (503, "draining\n".into()));
    assert_eq!(port.get("/healthcheck").await, (503, "draining\n".into()));
    assert_eq!(port.get("/livez").await.0, 200);
}

#[tokio::test]
async fn a_json_request_is_decided_like_one_from_envoy() {
    let port = Port::open(policy(1)).await;
    let body = json!({
        "domain": "api",
        "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}],
        "hitsAddend": 2,
    });
    let (status, answer) = port.post_json(&body).await;
    assert_eq!(status, 200);
    assert_eq!(answer["overallCode"], "OK");
    let descriptor = &answer["statuses"][0];
    assert_eq!(descriptor["code"], "OK");
    assert_eq!(descriptor["limitRemaining"], 1);
    assert_eq!(descriptor["currentLimit"]["requestsPerUnit"], 3);
    assert_eq!(descriptor["currentLimit"]["unit"], "MINUTE");
    assert!(
        answer["responseHeadersToAdd"]
            .as_array()
            .is_some_and(|h| !h.is_empty())
    );

    // The names of the proto file do as well.
    let mut body = body;
    body["hits_addend"] = body["hitsAddend"].take();
    body.as_object_mut().unwrap().remove("hitsAddend");
    let (status, answer) = port.post_json(&body).await;
    assert_eq!(status, 429);
    assert_eq!(answer["overallCode"], "OVER_LIMIT");
}

#[tokio::test]
async fn a_bad_body_is_400_and_no_answer_is_503() {
    let port = Port::open(policy(1)).await;
    for body in [
        "",
        "not json",
        "[]",
        "{\"domain\": 1}",
        "{\"domain\": \"api\"} x",
        "{\"unknown\": 1}",
        "{}",
        "{\"domain\": \"api\"}",
        "{\"descriptors\": [{}]}",
    ] {
        let (status, _, text) = port.send("POST", "/json", &[], body.as_bytes()).await;
        assert_eq!(status, 400, "{body}: {text}");
    }
    let empty = Port::open(Policy::default()).await;
    let body = json!({"domain": "api", "descriptors": [{"entries": [{"key": "tenant", "value": "x"}]}]});
    let (status, _, text) = empty
        .send("POST", "/json", &[], body.to_string().as_bytes())
        .await;
    assert_eq!((status, text.as_str()), (503, "no policy is in force\n"));
}

#[tokio::test]
async fn what_a_caller_sent_comes_back_escaped_or_not_at_all() {
    let port = Port::open(policy(1)).await;
    let evil = "<script>\u{1b}[31m\r\nSet-Cookie: x=1\u{202e}\u{0}é";
    let bodies = [
        json!({"domain": evil}),
        json!({ evil: 1 }),
        json!({"domain": "api", "descriptors": [{"entries": [{"key": evil, "value": evil}]}]}),
        json!({"domain": "api", "descriptors": [{"entries": [{"key": "tenant", "value": evil}]}]}),
        json!({"domain": evil, "descriptors": [{"entries": [{"key": "tenant", "value": "x"}]}]}),
    ];
    for body in bodies {
        let (_, head, text) = port.send("POST", "/json", &[], body.to_string().as_bytes()).await;
        let printable = |c: char| (c.is_ascii() && !c.is_ascii_control()) || c == '\n';
        assert!(text.chars().all(printable), "{text:?}");
        assert!(!head.to_lowercase().contains("set-cookie"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    }
    let (status, _, _) = port
        .send("POST", "/json", &[], b"{\"domain\": \"\xff\xfe\"}")
        .await;
    assert_eq!(status, 400);
    let (status, _, text) = port.send("GET", "/%3Cscript%3E?x=%3Cscript%3E", &[], b"").await;
    assert_eq!((status, text.as_str()), (404, "not found\n"));
    for page in ["/metrics", "/limits", "/rlconfig"] {
        assert!(!port.get(page).await.1.contains("script"), "{page}");
    }
}

#[tokio::test]
async fn other_paths_are_404_and_other_methods_405() {
    let port = Port::open(policy(1)).await;
    for path in ["/", "/json/", "/debug/pprof", "/..%2f", "/livez/x"] {
        assert_eq!(port.get(path).await.0, 404, "{path}");
    }
    assert_eq!(port.get("/json").await.0, 405);
    assert_eq!(port.send("POST", "/limits", &[], b"").await.0, 405);
}

#[tokio::test]
async fn long_bodies_and_heads_are_refused() {
    let port = Port::open(policy(1)).await;
    let long = vec![b' '; 64 * 1_024 + 1];
    assert_eq!(port.send("POST", "/json", &[], &long).await.0, 413);
    let fits = [&[b' '; 60_000][..], b"{}"].concat();
    assert_eq!(port.send("POST", "/json", &[], &fits).await.0, 400);
    let header = format!("x-long: {}", "x".repeat(64 * 1_024));
    assert_eq!(port.send("GET", "/livez", &[&header], b"").await.0, 431);
    let many: Vec<String> = (0..100).map(|i| format!("x-{i}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(port.send("GET", "/livez", &many, b"").await.0, 431);
}

#[tokio::test]
async fn limits_shows_what_is_enforced_and_what_is_wrong() {
    let port = Port::open(policy(7)).await;
    port.faults
        .store(Arc::new(vec!["config/b.yaml:3:1: error: no domain".into()]));
    let (status, text) = port.get("/limits").await;
    assert_eq!(status, 200);
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        shown,
        json!({
            "version": 7,
            "faults": ["config/b.yaml:3:1: error: no domain"],
            "domains": [{
                "name": "api",
                "version": 7,
                "limits": [
                    {
                        "label": "route.tenant/minute",
                        "path": [{"key": "route", "value": "GET /x*"}, {"key": "tenant"}],
                        "algorithm": "fixed_window",
                        "period": "minute",
                        "requests_per_unit": 10,
                        "counts": "cost",
                        "shadow": true,
                    },
                    {
                        "label": "tenant",
                        "name": "tenant",
                        "path": [{"key": "tenant"}],
                        "algorithm": "token_bucket",
                        "period": "minute",
                        "requests_per_unit": 3,
                        "burst": 3,
                        "plans": {
                            "entry": "plan",
                            "default": "free",
                            "rows": {
                                "free": {"requests_per_unit": 3, "burst": 3},
                                "pro": {"requests_per_unit": 30, "burst": 30},
                            },
                        },
                        "counts": "cost",
                        "shadow": false,
                        "overrides": [{
                            "id": "api/0",
                            "match": {"tenant": "big"},
                            "multiply": 2.5,
                            "expires_at": "2026-12-03T00:00:00Z",
                            "author": "ana",
                        }],
                    },
                ],
            }],
        })
    );
}

#[tokio::test]
async fn rlconfig_speaks_as_the_original_does() {
    let port = Port::open(policy(1)).await;
    let lines = [
        "api.route_GET /x*.tenant: unit=MINUTE requests_per_unit=10, shadow_mode: true, quota_mode: false\n",
        "api.tenant: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false, name: tenant\n",
    ];
    assert_eq!(port.get("/rlconfig").await, (200, lines.concat()));
}

#[tokio::test]
async fn metrics_come_in_both_formats() {
    let port = Port::open(policy(1)).await;
    let (status, head, text) = port.send("GET", "/metrics", &[], b"").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(text.contains("# TYPE cota_requests_total counter\n"), "{text}");
    let accept = "accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3";
    let (_, head, text) = port.send("GET", "/metrics", &[accept], b"").await;
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[tokio::test]
async fn made_up_names_make_no_series() {
    let port = Port::open(policy(1)).await;
    let before = port.get("/metrics").await.1.lines().count();
    for i in 0..10_000 {
        port.decide(&format!("domain-{i}"), "tenant", "x").await;
        port.decide("api", &format!("key-{i}"), "x").await;
        port.decide("api", "tenant", &format!("value-{i}\"\n{{}}")).await;
    }
    let text = port.get("/metrics").await.1;
    assert_eq!(text.lines().count(), before, "{text}");
    for line in [
        r#"cota_requests_total{domain="unknown",code="ok"} 10000"#,
        r#"cota_unmatched_descriptors_total{domain="api",reason="unknown_key"} 10000"#,
        r#"cota_limit_decisions_total{domain="api",limit="tenant",verdict="allow"} 10000"#,
        r#"cota_evictions_total{kind="exhausted"} 0"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
}

#[tokio::test]
async fn a_shutdown_ends_idle_connections_and_the_server() {
    let mut port = Port::open(policy(1)).await;
    let mut idle = TcpStream::connect(port.address).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    drop(port.shutdown.take());
    let ended = tokio::time::timeout(Duration::from_secs(5), port.server).await;
    ended.expect("the server ends").unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
}

/// A server on a port of its own.
struct Port {
    address: SocketAddr,
    policy: Arc<ArcSwap<Policy>>,
    faults: Arc<ArcSwap<Vec<String>>>,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    limiter: Arc<Limiter<Memory<ManualClock>, ManualClock>>,
    shutdown: Option<oneshot::Sender<()>>,
    server: tokio::task::JoinHandle<()>,
}

impl Port {
    async fn open(policy: Policy) -> Self {
        let clock = ManualClock::at(Timestamp(1_800_000_000_000_000));
        let in_force = Arc::new(ArcSwap::from_pointee(Policy::default()));
        let store = Memory::new(clock.clone(), 100_000);
        let limiter = Arc::new(Limiter::new(store, clock, Arc::clone(&in_force), false));
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry, false));
        let evicted = Arc::clone(&limiter);
        register_evictions(
            &mut registry,
            Eviction::ALL.map(|kind| (kind.name(), kind)),
            move |kind| evicted.store().evicted(kind),
        );
        let faults = Arc::default();
        let readiness = Arc::<Readiness>::default();
        let service = RateLimits::new(Arc::clone(&limiter));
        let state = State {
            policy: Arc::clone(&in_force),
            faults: Arc::clone(&faults),
            readiness: Arc::clone(&readiness),
            registry,
            decide: Box::new(move |request: RateLimitRequest| {
                let service = service.clone();
                Box::pin(async move { service.decide(&request, None).await })
            }),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, state, async {
            let _ = stopped.await;
        }));
        let port = Self {
            address,
            policy: in_force,
            faults,
            readiness,
            metrics,
            limiter,
            shutdown: Some(shutdown),
            server,
        };
        port.install(policy);
        port
    }

    fn install(&self, policy: Policy) {
        let policy = Arc::new(policy);
        self.metrics.install(Arc::clone(&policy));
        self.policy.store(policy);
    }

    /// Decides without a connection, and counts it.
    async fn decide(&self, domain: &str, key: &str, value: &str) {
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
        let policy = self.limiter.policy();
        let request = Request::from(&message);
        let decided = self.limiter.decide(&policy, &request, None).await.unwrap();
        self.metrics.record(
            &request,
            decided.domain,
            &decided.resolved,
            &decided.decision,
            Duration::from_micros(10),
        );
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.send("GET", path, &[], b"").await;
        (status, body)
    }

    async fn post_json(&self, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let (status, head, text) = self.send("POST", "/json", &[], body.as_bytes()).await;
        assert!(head.contains("content-type: application/json"), "{head}");
        (status, serde_json::from_str(&text).unwrap())
    }

    /// One request on a connection of its own: status, head and body of the answer.
    async fn send(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> (u16, String, String) {
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

/// One domain: a bucket of three a minute for each tenant, with plans and an override, and a window in
/// shadow mode for each tenant on some routes.
fn policy(version: u64) -> Policy {
    let item = Arc::new(Override {
        id: "api/0".into(),
        matches: vec![("tenant".into(), "big".into())],
        limit: "tenant".into(),
        change: Change::Multiply { thousandths: 2_500 },
        expires_at: Some(Timestamp(1_796_256_000_000_000)),
        author: Some("ana".into()),
        reason: None,
    });
    let rows = [("free", 3), ("pro", 30)];
    let tenant = Limit {
        plans: Some(Plans {
            entry: "plan".into(),
            rows: rows.map(|(name, n)| (name.into(), numbers(n))).into(),
            default_plan: "free".into(),
        }),
        overrides: OverrideIndex::new(vec![Arc::clone(&item)]),
        ..limit(&["tenant"], Some("tenant"), Algorithm::TokenBucket, 3)
    };
    let window = Algorithm::FixedWindow(windows_of(Unit::Minute, jiff::tz::TimeZone::UTC));
    let route = Limit {
        label: "route.tenant/minute".into(),
        shadow: true,
        ..limit(&["route", "tenant"], None, window, 10)
    };
    let pattern = cota::engine::policy::Pattern::new("GET /x*").unwrap();
    let route = Node {
        matches: Match::Wildcard,
        children: level([("tenant", any(route))]),
        ..Node::default()
    };
    let routes = KeyRules {
        wildcards: vec![(pattern, Arc::new(route))],
        ..KeyRules::default()
    };
    let domain = Domain {
        name: "api".into(),
        rules: level([("tenant", any(tenant)), ("route", routes)]),
        overrides: vec![item],
        ..Domain::default()
    };
    Policy {
        domains: [("api".into(), Arc::new(domain))].into(),
        version,
    }
}

fn level<const N: usize>(keys: [(&str, KeyRules); N]) -> Level {
    Level {
        keys: keys.map(|(key, rules)| (key.into(), rules)).into(),
    }
}

fn any(limit: Limit) -> KeyRules {
    let node = Node {
        matches: Match::Any,
        limits: vec![Arc::new(limit)],
        ..Node::default()
    };
    KeyRules {
        any: Some(Arc::new(node)),
        ..KeyRules::default()
    }
}

fn numbers(requests_per_unit: u64) -> Numbers {
    Numbers {
        requests_per_unit,
        burst: requests_per_unit,
        max_wait: Micros::ZERO,
        unlimited: false,
    }
}

fn limit(keys: &[&str], name: Option<&str>, algorithm: Algorithm, units: u64) -> Limit {
    let period = Unit::Minute.period();
    Limit {
        label: name.unwrap_or_default().into(),
        name: name.map(Into::into),
        identity: Identity::new("api", keys, name, &algorithm, &period),
        algorithm,
        period,
        numbers: numbers(units),
        plans: None,
        attribute_to: None,
        counts: Counts::Cost,
        overdraft: false,
        excess: None,
        shadow: false,
        quota: false,
        replaces: Vec::new(),
        overrides: OverrideIndex::default(),
    }
}
