//! The HTTP port, over real connections.

use std::sync::Arc;
use std::time::Duration;

use cota::config::watch::Severity;
use cota::engine::policy::Policy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[path = "support/port.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod port;

use port::{Port, policy, policy_of};

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
        assert!(!port.get(page).await.1.contains("<script"), "{page}");
    }
}

#[tokio::test]
async fn other_paths_are_404_and_other_methods_405() {
    let port = Port::open(policy(1)).await;
    for path in [
        "/json/",
        "/assets/",
        "/assets/page.rs",
        "/debug/pprof",
        "/..%2f",
        "/livez/x",
    ] {
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
    port.faults.store(Arc::new(vec![(
        Severity::Error,
        "config/b.yaml:3:1: error: no domain".into(),
    )]));
    let (status, text) = port.get("/limits").await;
    assert_eq!(status, 200);
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        shown,
        json!({
            "shadow": false,
            "version": 7,
            "faults": ["config/b.yaml:3:1: error: no domain"],
            "domains": [{
                "name": "api",
                "version": port.revision("api"),
                "limits": [
                    {
                        "label": "route.tenant/minute",
                        "path": [{"key": "route", "value": "GET /x*"}, {"key": "tenant"}],
                        "algorithm": "fixed_window",
                        "period": "minute",
                        "requests_per_unit": 10,
                        "counts": "cost",
                        "failure_mode": "local",
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
                                "pro": {"requests_per_unit": 30, "burst": 10},
                            },
                        },
                        "counts": "cost",
                        "failure_mode": "local",
                        "local_barrier": 10.0,
                        "shadow": false,
                        "overrides": [{
                            "id": "api#1",
                            "expires_at": "2030-12-03T00:00:00Z",
                        }],
                    },
                ],
            }],
        })
    );
}

#[tokio::test]
async fn the_page_sorts_faults_by_what_they_are_and_not_by_their_text() {
    let port = Port::open(policy(1)).await;
    port.faults.store(Arc::new(vec![
        (Severity::Error, "a: warning: b.yaml:1:1: error: no domain".into()),
        (
            Severity::Warning,
            "a.yaml: domain api has lost its last limit".into(),
        ),
    ]));
    let page = port.get("/").await.1;
    let (_, alerts) = page.split_once("1 fault").expect("a fault is shown");
    let (faults, warnings) = alerts.split_once("1 warning").expect("a warning is shown");
    assert!(faults.contains("b.yaml:1:1"), "{faults}");
    assert!(warnings.contains("lost its last limit"), "{warnings}");
}

#[tokio::test]
async fn limits_begins_with_whether_the_service_is_in_shadow_mode() {
    let port = Port::open_with(policy(1), true).await;
    let (_, text) = port.get("/limits").await;
    assert!(text.starts_with("{\n  \"shadow\": true,\n"), "{text}");
}

#[tokio::test]
async fn limits_shows_what_may_be_taken_ahead() {
    let text = "domain: api
descriptors: [{key: tenant, rate_limit: {unit: day, requests_per_unit: 900, max_overshoot: 2.5%}}]
";
    let port = Port::open(policy_of(text, 1)).await;
    let shown: Value = serde_json::from_str(&port.get("/limits").await.1).unwrap();
    assert_eq!(shown["domains"][0]["limits"][0]["max_overshoot"], "2.5%");
}

#[tokio::test]
async fn limits_shows_what_holds_while_the_store_is_gone() {
    let text = "domain: api
safety_ceiling: {unit: second, requests_per_unit: 1500, burst: 300}
descriptors: [{key: login, rate_limit: {unit: day, requests_per_unit: 5, failure_mode: deny}}]
";
    let port = Port::open(policy_of(text, 1)).await;
    let shown: Value = serde_json::from_str(&port.get("/limits").await.1).unwrap();
    let domain = &shown["domains"][0];
    assert_eq!(
        domain["safety_ceiling"],
        json!({"period": "second", "requests_per_unit": 1500, "burst": 300})
    );
    assert_eq!(domain["limits"].as_array().unwrap().len(), 1);
    assert_eq!(domain["limits"][0]["failure_mode"], "deny");
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

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_slowly_is_let_go() {
    let port = Port::open(policy(1)).await;
    for (start, end) in [
        ("GET /livez HTTP/1.1\r\nhost:", ""),
        (
            "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
            "HTTP/1.1 408",
        ),
    ] {
        let mut slow = TcpStream::connect(port.address).await.unwrap();
        slow.write_all(start.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(end), "{answer}");
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
