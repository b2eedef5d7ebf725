//! Overrides and resets over the HTTP port: who may, what is understood, what comes back.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cota::config::watch::Severity;
use cota::engine::time::Micros;
use cota::http::Admin;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[path = "support/port.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod port;

use port::{Port, policy, policy_of};

const BEARER: &str = "authorization: Bearer swordfish";

/// A port whose token is in a file of that folder.
async fn guarded() -> (Port, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "swordfish\n").unwrap();
    let admin = Admin::new(Some(file)).unwrap();
    (Port::open_for(policy(1), false, admin).await, folder)
}

/// Ten times as much for a tenant; the port's clock stands at 2027-01-15T08:00:00Z.
fn tenfold(tenant: &str) -> Value {
    json!({
        "domain": "api", "match": {"tenant": tenant}, "limit": "tenant", "multiply": 10,
        "expires_at": "2027-01-15T09:00:00Z", "author": "ana", "reason": "ticket 4411",
    })
}

async fn call(port: &Port, method: &str, path: &str, headers: &[&str], body: &Value) -> (u16, String) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, _, text) = port.send(method, path, headers, body.as_bytes()).await;
    (status, text)
}

async fn set(port: &Port, spec: &Value) -> Value {
    let (status, text) = call(port, "POST", "/overrides", &[BEARER], spec).await;
    assert_eq!(status, 201, "{text}");
    serde_json::from_str(&text).unwrap()
}

async fn list(port: &Port) -> Value {
    let (status, text) = call(port, "GET", "/overrides", &[BEARER], &Value::Null).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Spends one of a tenant's three: the status, what is left, and which override gave it.
async fn ask(port: &Port, tenant: &str) -> (u16, Value, Value) {
    let body = json!({"domain": "api", "descriptors": [{"entries": [{"key": "tenant", "value": tenant}]}]});
    let (status, answer) = port.post_json(&body).await;
    let left = answer["statuses"][0]["limitRemaining"].clone();
    (status, left, answer["dynamicMetadata"]["override"].clone())
}

#[tokio::test]
async fn reading_and_changing_ask_for_what_they_should() {
    let (guarded, _folder) = guarded().await;
    let open = Port::open(policy(1)).await;
    let wrong = "authorization: Bearer sword";
    for (method, path, changes) in [
        ("GET", "/overrides", false),
        ("GET", "/overrides/audit", false),
        ("POST", "/overrides", true),
        ("DELETE", "/overrides/r1", true),
        ("POST", "/budgets/reset", true),
    ] {
        for headers in [&[][..], &[wrong]] {
            let (status, head, text) = guarded.send(method, path, headers, b"").await;
            assert_eq!(status, 401, "{method} {path} {headers:?}: {text}");
            assert!(head.contains("www-authenticate: Bearer"), "{head}");
            assert!(!text.contains("swordfish"), "{text}");
        }
        let (status, _, text) = guarded.send(method, path, &[BEARER], b"").await;
        assert!(![401, 403].contains(&status), "{method} {path}: {status} {text}");
        let (status, _, text) = open.send(method, path, &[BEARER], b"").await;
        assert_eq!(status == 403, changes, "{method} {path}: {status} {text}");
        assert_eq!(text.contains("--admin-token-file"), changes, "{text}");
    }
    for path in ["/livez", "/readyz", "/metrics", "/limits"] {
        assert_eq!(guarded.get(path).await.0, 200, "{path}");
    }
}

#[tokio::test]
async fn lines_of_faulty_files_are_for_those_who_know_the_token() {
    let (guarded, _folder) = guarded().await;
    let fault = "api.yaml:3:1: error: bad\n  | tenant: acme".to_owned();
    guarded
        .faults
        .store(Arc::new(vec![(Severity::Error, fault.clone())]));
    let faults = |text: String| serde_json::from_str::<Value>(&text).unwrap()["faults"].clone();
    let (status, text) = guarded.get("/limits").await;
    assert_eq!((status, faults(text)), (200, json!(["api.yaml:3:1: error: bad"])));
    let (status, text) = call(&guarded, "GET", "/limits", &[BEARER], &Value::Null).await;
    assert_eq!((status, faults(text)), (200, json!([fault])));
    let wrong = "authorization: Bearer herring";
    assert_eq!(
        call(&guarded, "GET", "/limits", &[wrong], &Value::Null).await.0,
        401
    );
    let open = Port::open(policy(3)).await;
    open.faults
        .store(Arc::new(vec![(Severity::Error, fault.clone())]));
    assert_eq!(faults(open.get("/limits").await.1), json!([fault]));
}

#[tokio::test]
async fn a_refused_tenant_passes_with_an_override_and_is_refused_again_without() {
    let (port, _folder) = guarded().await;
    for left in [2, 1, 0] {
        // proto-JSON leaves a zero out.
        let left = if left == 0 { Value::Null } else { json!(left) };
        assert_eq!(ask(&port, "acme").await, (200, left, Value::Null));
    }
    assert_eq!(ask(&port, "acme").await.0, 429);
    let made = set(&port, &tenfold("acme")).await;
    assert_eq!(made["origin"], "run_time");
    assert_eq!(made["set_at"], "2027-01-15T08:00:00Z");
    let id = &made["id"];
    assert_eq!(ask(&port, "acme").await, (200, json!(26), id.clone()));
    assert_eq!(list(&port).await[1], made);
    let limits: Value = serde_json::from_str(&port.get("/limits").await.1).unwrap();
    assert_eq!(
        limits["domains"][0]["limits"][1]["run_time_overrides"],
        json!([{"id": id, "expires_at": "2027-01-15T09:00:00Z"}])
    );
    let path = format!("/overrides/{}", id.as_str().unwrap());
    let by = json!({"author": "bo"});
    let (status, text) = call(&port, "DELETE", &path, &[BEARER], &by).await;
    assert_eq!(
        (status, text),
        (200, format!("{{\"id\":\"{}\"}}\n", id.as_str().unwrap()))
    );
    assert_eq!(ask(&port, "acme").await.0, 429);
    let (status, _) = call(&port, "DELETE", &path, &[BEARER], &Value::Null).await;
    assert_eq!(status, 404);
    let (_, text) = call(&port, "GET", "/overrides/audit", &[BEARER], &Value::Null).await;
    let audit: Value = serde_json::from_str(&text).unwrap();
    let told = |i: usize| {
        (
            audit[i]["event"].clone(),
            audit[i]["author"].clone(),
            audit[i]["id"].clone(),
        )
    };
    assert_eq!(told(0), (json!("revoked"), json!("bo"), id.clone()));
    assert_eq!(told(1), (json!("set"), json!("ana"), id.clone()));
    assert_eq!(audit[1]["expires_at"], "2027-01-15T09:00:00Z");
}

#[tokio::test]
async fn an_override_ends_on_time() {
    let (port, _folder) = guarded().await;
    set(&port, &tenfold("acme")).await;
    assert_eq!(ask(&port, "acme").await.1, json!(29));
    port.clock.advance(Micros::from_secs(3_600));
    assert_eq!(ask(&port, "acme").await.2, Value::Null);
    assert_eq!(list(&port).await.as_array().unwrap().len(), 1);
    port.overrides.refresh().await.unwrap();
    let (_, text) = call(&port, "GET", "/overrides/audit", &[BEARER], &Value::Null).await;
    let audit: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(audit[0]["event"], "expired");
    assert_eq!(audit[0]["at"], "2027-01-15T09:00:00Z");
}

#[tokio::test]
async fn a_reset_gives_a_caller_a_fresh_budget() {
    let (port, _folder) = guarded().await;
    for tenant in ["acme", "beta"] {
        for _ in 0..3 {
            ask(&port, tenant).await;
        }
        assert_eq!(ask(&port, tenant).await.0, 429);
    }
    let spec =
        json!({"domain": "api", "match": {"tenant": "acme"}, "author": "ana", "reason": "login succeeded"});
    let (status, text) = call(&port, "POST", "/budgets/reset", &[BEARER], &spec).await;
    // `route > tenant` is placed by the route's pattern.
    assert_eq!(status, 400, "{text}");
    assert!(
        text.contains("name \\\"route\\\" too, or the one limit that is meant"),
        "{text}"
    );
    let mut one = spec;
    one["limit"] = json!("tenant");
    let (status, text) = call(&port, "POST", "/budgets/reset", &[BEARER], &one).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(ask(&port, "acme").await.1, json!(2));
    assert_eq!(ask(&port, "beta").await.0, 429);
}

#[tokio::test]
async fn those_of_files_are_listed_and_not_revoked() {
    let (port, _folder) = guarded().await;
    let listed = list(&port).await;
    assert_eq!(
        listed,
        json!([{
            "id": "api#1", "origin": "file", "domain": "api", "match": {"tenant": "big"}, "limit": "tenant",
            "multiply": 2.5, "expires_at": "2030-12-03T00:00:00Z", "author": "ana",
        }])
    );
    let (status, text) = call(&port, "DELETE", "/overrides/api%231", &[BEARER], &Value::Null).await;
    assert_eq!(
        (status, text.as_str()),
        (409, "api#1 stands in a policy file: take it out there\n")
    );
}

#[tokio::test]
async fn what_is_not_understood_is_400_with_the_reason() {
    let (port, _folder) = guarded().await;
    let with = |key: &str, value: Value| {
        let mut spec = tenfold("acme");
        spec[key] = value;
        spec.to_string()
    };
    for (body, part) in [
        ("".to_owned(), "missing field `domain`"),
        ("[".to_owned(), "EOF"),
        (with("multply", json!(2)), "unknown field `multply`"),
        (with("multiply", json!("2")), "expected a JSON number"),
        (with("multiply", json!(1e300)), "is no factor"),
        (with("requests_per_unit", json!(-1)), "invalid value"),
        (with("requests_per_unit", json!(4294967296_u64)), "invalid value"),
        (with("match", json!({"tenant": 1})), "invalid type"),
        (
            with("match", json!({"tenant": "acme", "x": "y"})),
            "no such entries",
        ),
        (with("expires_at", json!("2027-01-15T08:00:00Z")), "is past"),
        (with("expires_at", json!("2027-01-16")), "is no moment"),
        (format!("{} x", tenfold("acme")), "trailing"),
    ] {
        let (status, _, text) = port.send("POST", "/overrides", &[BEARER], body.as_bytes()).await;
        assert_eq!(status, 400, "{body}: {text}");
        assert!(text.contains(part), "{body}: {text}");
    }
    assert_eq!(list(&port).await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_value_that_counts_as_another_is_refused_with_what_it_counts_as() {
    let text = "domain: api
descriptors:
  - {key: remote_address, address: {}, rate_limit: {name: anonymous, unit: minute, requests_per_unit: 20}}
  - {key: route, value: 'GET /x*', share_threshold: true, rate_limit: {name: x, unit: minute, requests_per_unit: 9}}
";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "swordfish").unwrap();
    let admin = Admin::new(Some(file)).unwrap();
    let port = Port::open_for(policy_of(text, 1), false, admin).await;
    for (limit, entry, value, counted) in [
        (
            "anonymous",
            "remote_address",
            "2001:db8::1",
            Some("2001:db8::/64"),
        ),
        ("anonymous", "remote_address", "2001:db8::/64", None),
        ("anonymous", "remote_address", "192.0.2.1", None),
        ("x", "route", "GET /xyz", Some("GET /x*")),
        ("x", "route", "GET /x*", None),
    ] {
        let mut spec = tenfold("");
        spec["match"] = json!({entry: value});
        spec["limit"] = json!(limit);
        let (status, answer) = call(&port, "POST", "/overrides", &[BEARER], &spec).await;
        match counted {
            None => assert_eq!(status, 201, "{value}: {answer}"),
            Some(counted) => {
                assert_eq!(status, 400, "{value}: {answer}");
                assert!(
                    answer.contains(&format!("counts as \\\"{counted}\\\"")),
                    "{answer}"
                );
            }
        }
    }
}

#[tokio::test]
async fn hostile_bytes_come_back_escaped() {
    let (port, _folder) = guarded().await;
    let evil = "<script>\u{1b}[31m\r\nSet-Cookie: x=1\u{202e}\u{9b}\u{0}é\u{7f}";
    let mut spec = tenfold(evil);
    spec["author"] = json!(evil);
    spec["reason"] = json!(evil);
    let made = set(&port, &spec).await;
    assert_eq!(
        (&made["author"], &made["match"]["tenant"]),
        (&json!(evil), &json!(evil))
    );
    let reset = json!({"domain": "api", "match": {"tenant": evil}, "limit": "tenant", "author": evil, "reason": evil});
    let mut asked = vec![
        ("GET", "/overrides", Value::Null),
        ("POST", "/budgets/reset", reset),
        ("GET", "/overrides/audit", Value::Null),
        ("GET", "/limits", Value::Null),
        ("GET", "/metrics", Value::Null),
        ("DELETE", "/overrides/%1b%0d%0a%3Cscript%3E", Value::Null),
        ("DELETE", "/overrides/%ff", Value::Null),
    ];
    for key in ["domain", "limit", "expires_at", evil] {
        let mut wrong = spec.clone();
        wrong[key] = json!(evil);
        asked.push(("POST", "/overrides", wrong));
    }
    for (method, path, body) in asked {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (_, head, text) = port.send(method, path, &[BEARER], body.as_bytes()).await;
        let printable = |c: char| (c.is_ascii() && !c.is_ascii_control()) || c == '\n';
        assert!(text.chars().all(printable), "{method} {path}: {text:?}");
        assert!(!head.to_lowercase().contains("set-cookie"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(!head.contains("content-type: text/html"), "{head}");
    }
    assert_eq!(ask(&port, evil).await.2, made["id"]);
}

#[tokio::test]
async fn a_long_body_and_a_thousand_and_one_are_refused() {
    let (port, _folder) = guarded().await;
    let long = vec![b' '; 64 * 1_024 + 1];
    assert_eq!(port.send("POST", "/overrides", &[BEARER], &long).await.0, 413);
    // Who may not is not read.
    assert_eq!(port.send("POST", "/overrides", &[], &long).await.0, 401);
    for i in 0..1_000 {
        let mut spec: cota::overrides::Spec = serde_json::from_value(tenfold("acme")).unwrap();
        spec.matches.insert("tenant".into(), format!("t{i}"));
        port.overrides.set(spec).await.unwrap();
    }
    let (status, text) = call(&port, "POST", "/overrides", &[BEARER], &tenfold("more")).await;
    assert_eq!(
        (status, text.as_str()),
        (409, "there are 1000 already: revoke some first\n")
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let (port, _folder) = guarded().await;
    let mut slow = TcpStream::connect(port.address).await.unwrap();
    let head = format!("POST /overrides HTTP/1.1\r\nhost: x\r\n{BEARER}\r\ncontent-length: 9\r\n\r\n{{");
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(3_600), slow.read_to_end(&mut answer)).await;
    read.unwrap().unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{answer:?}");
}
