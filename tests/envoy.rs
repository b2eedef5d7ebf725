//! A policy, the real Envoy and HTTP requests: what the integrator on the other side of the API sees.
//!
//! Periods are days or hours and limits are small, so that nothing refills while a test runs.

mod support;

use std::time::Duration;

use serde_json::json;
use support::envoy::{Answer, Edge, Setup, Stopwatch};

const PASSED: &str = "-";

const TENANT_OF_TWO: &str = "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 24, burst: 2, algorithm: token_bucket}
";

const ADDRESS_OF_TWO: &str = "
domain: edge
descriptors:
  - key: remote_address
    address: {ipv4_prefix: 32, ipv6_prefix: 64}
    rate_limit: {name: anonymous, unit: day, requests_per_unit: 24, burst: 2, algorithm: token_bucket}
";

#[test]
fn an_allowed_request_reaches_the_upstream_and_says_what_is_left() {
    let edge = Edge::start(TENANT_OF_TWO);

    let answer = edge.read("acme", "key-1");

    assert_eq!(answer.status, 200);
    assert_eq!(answer.upstream_saw("host").len(), 1);
    assert_eq!(answer.header("ratelimit-limit"), Some("24"));
    assert_eq!(answer.header("ratelimit-remaining"), Some("1"));
    assert_eq!(answer.header("ratelimit-reset"), Some("3600"));
    assert_eq!(answer.header("ratelimit-policy"), Some("24;w=86400;burst=2"));
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain"),
        "the upstream's own, untouched"
    );
}

#[test]
fn a_refusal_says_which_limit_and_when_to_come_back() {
    let edge = Edge::start(TENANT_OF_TWO);
    edge.read("acme", "key-1");
    edge.read("acme", "key-1");

    let answer = edge.read("acme", "key-1");

    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("ratelimit-limit"), Some("24"));
    assert_eq!(answer.header("ratelimit-remaining"), Some("0"));
    assert_eq!(answer.header("ratelimit-policy"), Some("24;w=86400;burst=2"));
    assert_eq!(answer.all("content-type"), ["application/json"]);
    // An hour less what the test has taken, spread by 10 to 20 % of at most 1500 s.
    let retry_after = answer
        .number("retry-after")
        .expect("a refusal says when to come back");
    assert!(
        (3600 - 60 + 150..=3600 + 300).contains(&retry_after),
        "{retry_after}"
    );
    let body = answer.json();
    assert_eq!(body["error"], "rate_limit_exceeded");
    assert_eq!(body["scope"], "tenant");
    assert_eq!(body["limit"], 24);
    assert_eq!(body["window_seconds"], 86400);
    assert_eq!(body["retry_after_seconds"], retry_after);
    assert!(
        body["message"].as_str().is_some_and(|text| !text.is_empty()),
        "{body}"
    );
}

#[test]
fn tenants_do_not_share_a_budget() {
    let edge = Edge::start(TENANT_OF_TWO);

    assert_eq!(
        scopes(3, |_| edge.read("acme", "key-1")),
        [PASSED, PASSED, "tenant"]
    );
    assert_eq!(
        scopes(3, |_| edge.read("globex", "key-1")),
        [PASSED, PASSED, "tenant"]
    );
}

#[test]
fn a_route_costs_what_the_policy_says() {
    let edge = Edge::start(
        "
domain: edge
costs:
  entry: route
  default: 1
  values: {search: 5, export: 50}
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 500, burst: 100, algorithm: token_bucket}
",
    );
    let remaining = |path: &str| {
        let answer = edge.get(path).claims(json!({"tenant": "acme"})).send();
        (answer.status, answer.number("ratelimit-remaining"))
    };

    assert_eq!(remaining("/v1/read"), (200, Some(99)));
    assert_eq!(remaining("/v1/search"), (200, Some(94)));
    assert_eq!(remaining("/v1/export"), (200, Some(44)));
    assert_eq!(
        remaining("/v1/export"),
        (429, Some(44)),
        "what does not fit takes nothing"
    );
    assert_eq!(remaining("/v1/read"), (200, Some(43)));
}

#[test]
fn the_plan_in_the_token_picks_the_numbers() {
    let edge = Edge::start(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit:
      name: tenant
      algorithm: token_bucket
      plan_entry: plan
      plans:
        free: {unit: day, requests_per_unit: 24, burst: 1}
        pro: {unit: day, requests_per_unit: 240, burst: 3}
      default_plan: free
",
    );
    let passed = |claims: serde_json::Value| {
        let send = |_| edge.get("/v1/read").claims(claims.clone()).send();
        scopes(5, send).iter().filter(|scope| *scope == PASSED).count()
    };

    assert_eq!(passed(json!({"tenant": "small", "plan": "free"})), 1);
    assert_eq!(passed(json!({"tenant": "large", "plan": "pro"})), 3);
    assert_eq!(
        passed(json!({"tenant": "odd", "plan": "nobody wrote this down"})),
        1
    );
    assert_eq!(passed(json!({"tenant": "silent"})), 1);
}

#[test]
fn a_token_without_a_tenant_is_limited_all_the_same() {
    let edge = Edge::start(TENANT_OF_TWO);
    let send = |claims: serde_json::Value| edge.get("/v1/read").claims(claims).send();

    assert_eq!(send(json!({})).scope(), None);
    assert_eq!(send(json!({"tenant": ""})).scope(), None);
    assert_eq!(send(json!({"tenant": 5})).scope().as_deref(), Some("tenant"));
}

#[test]
fn a_rotated_credential_gets_no_new_budget() {
    let edge = Edge::start(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 24, burst: 3, algorithm: token_bucket}
    descriptors:
      - key: credential
        rate_limit: {name: credential, unit: day, requests_per_unit: 24, burst: 2, algorithm: token_bucket}
",
    );

    let each_with_a_new_one = |n| edge.read("acme", &format!("key-{n}"));
    assert_eq!(
        scopes(5, each_with_a_new_one),
        [PASSED, PASSED, PASSED, "tenant", "tenant"]
    );
}

#[test]
fn a_credential_in_a_loop_starves_and_its_siblings_run() {
    let edge = Edge::start(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 90, burst: 9, algorithm: token_bucket}
    descriptors:
      - key: credential
        rate_limit: {name: credential, unit: day, requests_per_unit: 30, burst: 3, algorithm: token_bucket}
",
    );

    let looping = scopes(20, |_| edge.read("acme", "batch"));
    assert!(looping[..3].iter().all(|scope| scope == PASSED), "{looping:?}");
    assert!(
        looping[3..].iter().all(|scope| scope == "credential"),
        "{looping:?}"
    );

    // The tenant's nine, of which the 17 refusals took nothing.
    assert_eq!(scopes(3, |_| edge.read("acme", "web")), [PASSED, PASSED, PASSED]);
    assert_eq!(
        scopes(3, |_| edge.read("acme", "mobile")),
        [PASSED, PASSED, PASSED]
    );
    assert_eq!(scopes(1, |_| edge.read("acme", "fourth")), ["tenant"]);
}

#[test]
fn anonymous_callers_are_limited_by_address() {
    let edge = Edge::start(ADDRESS_OF_TWO);
    let login = |address: &str| edge.get("/login").forwarded_for(address).send();

    assert_eq!(scopes(3, |_| login("192.0.2.1")), [PASSED, PASSED, "anonymous"]);
    assert_eq!(scopes(1, |_| login("192.0.2.2")), [PASSED]);
    assert_eq!(
        scopes(1, |_| login("::ffff:192.0.2.1")),
        ["anonymous"],
        "the same address, written as IPv6"
    );
}

#[test]
fn an_ipv6_prefix_is_one_caller() {
    let edge = Edge::start(ADDRESS_OF_TWO);
    let login = |address: String| edge.get("/login").forwarded_for(address).send();

    assert_eq!(
        scopes(3, |n| login(format!("2001:db8:0:1:{n:x}::{n}"))),
        [PASSED, PASSED, "anonymous"]
    );
    assert_eq!(
        scopes(1, |n| login(format!("2001:db8:0:2::{n}"))),
        [PASSED],
        "the next /64"
    );
}

#[test]
fn a_spoofed_forwarding_header_changes_nothing_behind_a_proxy() {
    let edge = Edge::start(ADDRESS_OF_TWO);
    let login = |n| {
        edge.get("/login")
            .forwarded_for(format!("203.0.113.{n}"))
            .forwarded_for("192.0.2.1")
            .send()
    };

    assert_eq!(scopes(3, login), [PASSED, PASSED, "anonymous"]);
    let one_line = |n| {
        edge.get("/login")
            .forwarded_for(format!("10.0.0.{n}, 203.0.113.{n}, 192.0.2.1"))
            .send()
    };
    assert_eq!(scopes(2, one_line), ["anonymous", "anonymous"]);
}

#[test]
fn a_spoofed_forwarding_header_changes_nothing_without_a_proxy() {
    let edge = Edge::start_with(
        ADDRESS_OF_TWO,
        Setup {
            trusted_hops: 0,
            ..Setup::default()
        },
    );
    let login = |n| edge.get("/login").forwarded_for(format!("203.0.113.{n}")).send();

    assert_eq!(scopes(3, login), [PASSED, PASSED, "anonymous"]);
}

#[test]
fn a_flood_of_forged_tokens_is_refused_before_they_are_looked_at() {
    let edge = Edge::start(
        "
domain: door
descriptors:
  - key: remote_address
    rate_limit: {name: address, unit: day, requests_per_unit: 24, burst: 3, algorithm: token_bucket}
",
    );
    let claims = json!({"tenant": "acme"});

    let flood: Vec<u16> = (0..6)
        .map(|_| {
            edge.get("/v1/read")
                .forwarded_for("192.0.2.66")
                .forged_claims(claims.clone())
                .send()
                .status
        })
        .collect();
    assert_eq!(flood, [401, 401, 401, 429, 429, 429]);

    let honest = edge
        .get("/v1/read")
        .forwarded_for("192.0.2.1")
        .claims(claims)
        .send();
    assert_eq!(honest.status, 200);
}

/// Envoy passes the bytes of a header on as they are. An error for them would be a way past every limit, since
/// Envoy is mostly set to let a request pass that it got no answer for.
#[test]
fn a_header_that_is_no_text_is_limited_like_any_other() {
    let edge = Edge::start(
        "
domain: edge
descriptors:
  - key: api_key
    rate_limit: {name: key, unit: day, requests_per_unit: 24, burst: 1, algorithm: token_bucket}
",
    );
    let status = |key: &[u8]| edge.get("/by-key").header("x-api-key", key).send().status;

    assert_eq!(status(b"caf\xe9"), 200);
    assert_eq!(status(b"caf\xe9"), 429);
    assert_eq!(status(b"caf\xe9\xff"), 200, "a budget of its own");
    assert_eq!(status("caf\u{e9}".as_bytes()), 200, "text has its own, too");
    assert_eq!(status(b"caf"), 200);
}

#[test]
fn excess_reaches_the_upstream_with_a_mark() {
    let edge = Edge::start(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit:
      name: tenant
      unit: day
      requests_per_unit: 24
      burst: 2
      algorithm: token_bucket
      excess: {action: degrade, up_to: 150%}
",
    );
    let spoofed = |_| {
        let request = edge.get("/v1/read").claims(json!({"tenant": "acme"}));
        request.header("x-ratelimit-excess", "accept_async").send()
    };

    for within in [spoofed(1), spoofed(2)] {
        assert!(within.upstream_saw("x-ratelimit-excess").is_empty(), "{within:?}");
    }
    let excess = spoofed(3);
    assert_eq!(excess.upstream_saw("x-ratelimit-excess"), ["degrade"]);
    assert_eq!(excess.number("ratelimit-remaining"), Some(0));
    assert_eq!(excess.header("retry-after"), None);
    assert_eq!(spoofed(4).scope().as_deref(), Some("tenant"));
}

#[test]
fn a_short_wait_is_kept_within_the_filters_timeout() {
    // 20 in three seconds: one each 150 ms.
    let edge = Edge::start_with(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {name: tenant, period: 3s, requests_per_unit: 20, burst: 1, algorithm: token_bucket, max_wait: 200ms}
",
        Setup { timeout: Some("0.3s"), ..Setup::default() },
    );
    answered(&edge, "warm-up");

    let clock = Stopwatch::start();
    let answers = [edge.read("acme", "key-1"), edge.read("acme", "key-1")];
    let elapsed = clock.elapsed();

    // Measured from before the first, so that a slow machine can only make it longer.
    assert_eq!(answers.map(|answer| answer.status), [200, 200]);
    assert!(
        elapsed >= Duration::from_millis(150),
        "the second came after {elapsed:?}"
    );
}

#[test]
fn a_wait_that_the_filters_timeout_cannot_hold_is_refused_at_once() {
    // One a minute, and a wait of two would be allowed; Envoy's default timeout of 20 ms is not enough for it.
    let edge = Edge::start_with(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: hour, requests_per_unit: 60, burst: 1, algorithm: token_bucket, max_wait: 2m}
",
        Setup { timeout: None, ..Setup::default() },
    );
    answered(&edge, "warm-up");
    edge.read("acme", "key-1");

    // 503 is Envoy giving up after 20 ms. A busy machine may cause some; a wait would cause all of them.
    let statuses: Vec<u16> = (0..50).map(|_| edge.read("acme", "key-1").status).collect();
    assert!(
        statuses.iter().all(|status| [429, 503].contains(status)),
        "{statuses:?}"
    );
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[test]
fn a_limit_in_shadow_is_seen_in_the_access_log_and_by_no_client() {
    let mut edge = Edge::start(
        "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {name: next-year, unit: day, requests_per_unit: 24, burst: 1, algorithm: token_bucket, shadow_mode: true}
",
    );

    for n in 1..=2 {
        let answer = edge
            .get(format!("/v1/read?n={n}"))
            .claims(json!({"tenant": "acme"}))
            .send();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-limit"), None);
        assert_eq!(answer.header("retry-after"), None);
    }

    let within = edge.logged("/v1/read?n=1");
    assert_eq!(within["limit"]["shadow"]["next-year"], "allow");
    let over = edge.logged("/v1/read?n=2");
    assert_eq!(over["status"], 200);
    assert_eq!(over["limit"]["shadow"]["next-year"], "deny");
}

#[test]
fn a_refusal_is_in_the_access_log_with_its_limit() {
    let mut edge = Edge::start(TENANT_OF_TWO);
    for n in 1..=3 {
        edge.get(format!("/v1/read?n={n}"))
            .claims(json!({"tenant": "acme"}))
            .send();
    }

    let refused = edge.logged("/v1/read?n=3");
    assert_eq!(refused["status"], 429);
    assert_eq!(refused["limit"]["code"], "OVER_LIMIT");
    assert_eq!(refused["limit"]["scope"], "tenant");
}

/// For each of so many requests, numbered from 1, the limit that refused it, or `-`.
fn scopes(count: u32, send: impl Fn(u32) -> Answer) -> Vec<String> {
    (1..=count)
        .map(|n| send(n).scope().unwrap_or_else(|| PASSED.to_owned()))
        .collect()
}

/// Sends as another tenant until an answer came in time, so that the connections stand.
fn answered(edge: &Edge, tenant: &str) {
    let tries = (0..50).map(|n| edge.read(&format!("{tenant}-{n}"), "key-1").status);
    assert!(
        tries.into_iter().any(|status| status == 200),
        "no answer within the filter's timeout"
    );
}
