//! The templates of `deploy/`, each with the real Envoy and the real `cota`: what they promise is what a client gets.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::envoy::{Answer, Edge};

/// Replaces what must be there.
fn put(text: String, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the template has no {from}");
    text.replace(from, to)
}

fn deployed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn endpoint(address: SocketAddr) -> String {
    format!("address: 127.0.0.1, port_value: {}", address.port())
}

/// The chain of a shape, on free ports, with tokens of the tests' issuer and patience for a busy machine.
fn shape(name: &str) -> Edge {
    let template = fs::read_to_string(deployed(&format!("shapes/{name}/envoy.yaml"))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    fs::write(&keys, Edge::jwks()).unwrap();
    Edge::launch(
        folder,
        &deployed(&format!("shapes/{name}/policy.yaml")),
        "127.0.0.1",
        |cota, upstream| {
            let mut text = put(
                template,
                "address: 0.0.0.0, port_value: 10000",
                "address: 127.0.0.1, port_value: 0",
            );
            text = put(text, "address: cota, port_value: 8081", &endpoint(cota));
            text = put(text, "address: upstream, port_value: 8080", &endpoint(upstream));
            text = put(text, "timeout: 0.3s", "timeout: 10s");
            if text.contains("jwt_authn.v3") {
                text = put(text, "/etc/envoy/jwks.json", &keys.display().to_string());
                text = put(text, "https://issuer.example.com", "test");
            }
            text + "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n"
        },
    )
}

/// Sends until one is refused, by which limit; there is one in so many.
fn refused_by(most: u32, mut send: impl FnMut(u32) -> Answer) -> String {
    let scope = (1..=most).find_map(|n| send(n).scope());
    scope.unwrap_or_else(|| panic!("none of {most} was refused"))
}

fn limit(answer: &Answer) -> Option<u64> {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.number("ratelimit-limit")
}

#[test]
fn one_path_has_its_own_number_and_every_other_the_default() {
    let edge = shape("path-with-default");
    assert_eq!(limit(&edge.get("/login").send()), Some(5));
    assert_eq!(limit(&edge.get("/anything").send()), Some(100));

    assert_eq!(
        refused_by(15, |n| edge.get(format!("/login?try={n}")).send()),
        "login"
    );
    assert_eq!(limit(&edge.get("/anything").send()), Some(100));
}

#[test]
fn an_address_has_the_default_a_number_of_its_own_or_nothing() {
    let edge = shape("address-with-exceptions");
    let from = |address: &str| {
        edge.get("/")
            .forwarded_for(address)
            .header("cf-connecting-ip", address)
            .send()
    };
    assert_eq!(refused_by(1, |_| from("192.0.2.66")), "blocked");
    let scope = refused_by(300, |_| from("192.0.2.1"));
    assert!(["address", "cdn-address"].contains(&scope.as_str()), "{scope}");
    assert_eq!(from("192.0.2.2").status, 200);

    let office = |_| edge.get("/").forwarded_for("192.0.2.10").send();
    assert_eq!(refused_by(100, office), "past-cdn", "without the CDN's header");
}

#[test]
fn the_budget_of_an_account_has_the_size_of_its_plan() {
    let edge = shape("plan-then-account");
    let call = |claims: Value| edge.get("/").claims(claims).send();
    assert_eq!(limit(&call(json!({"account": "a", "plan": "BASIC"}))), Some(60));
    assert_eq!(limit(&call(json!({"account": "b", "plan": "PLUS"}))), Some(120));
    assert_eq!(
        limit(&call(json!({"account": "c"}))),
        Some(60),
        "no plan is the least"
    );
    assert_eq!(limit(&call(json!({}))), Some(60), "no account is one account");

    assert_eq!(
        refused_by(100, |_| call(json!({"account": "a", "plan": "BASIC"}))),
        "account"
    );
    assert_eq!(call(json!({"account": "d", "plan": "BASIC"})).status, 200);
    assert_eq!(edge.get("/").send().status, 401);
}

#[test]
fn a_partner_has_a_number_for_each_path_and_a_listed_one_for_its_other_paths_too() {
    let edge = shape("tenant-then-path");
    let call = |partner: &str, path: &str| edge.get(path).claims(json!({"partner": partner})).send();
    assert_eq!(limit(&call("313", "/orders?page=2")), Some(45_000));
    assert_eq!(limit(&call("313", "/stock")), Some(200));
    assert_eq!(limit(&call("7", "/orders")), Some(100));

    assert_eq!(refused_by(150, |_| call("7", "/orders")), "path");
    assert_eq!(limit(&call("7", "/stock")), Some(100));
    assert_eq!(limit(&call("8", "/orders")), Some(100));
}

#[test]
fn a_bucket_is_everybodys_and_each_address_has_its_part_of_it() {
    let edge = shape("fixed-bucket");
    let reports = |address: String| edge.get("/reports/daily").forwarded_for(address).send();
    // No proxy is trusted: whatever the header says, all come from one address.
    assert_eq!(refused_by(40, |n| reports(format!("192.0.2.{n}"))), "address");
    assert_eq!(edge.get("/").send().header("ratelimit-limit"), None);
}

/// The chain of `deploy/envoy`, with this policy.
fn bootstrap(policy: &Path) -> Edge {
    let template = fs::read_to_string(deployed("envoy/envoy.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    Edge::launch(folder, policy, "127.0.0.1", |cota, upstream| {
        let mut text = put(
            template,
            "address: 0.0.0.0, port_value: 10000",
            "address: 127.0.0.1, port_value: 0",
        );
        for port in ["0.0.0.0, port_value: 9902", "127.0.0.1, port_value: 9901"] {
            text = put(text, port, "127.0.0.1, port_value: 0");
        }
        text = put(
            text,
            "address: cota-replicas.cota.svc.cluster.local, port_value: 8081",
            &endpoint(cota),
        );
        text = put(text, "address: upstream, port_value: 8080", &endpoint(upstream));
        // The tests' issuer instead of one to fetch keys from, and patience.
        let (head, rest) = text.split_once("                  remote_jwks:\n").unwrap();
        let (_, rest) = rest.split_once("                    async_fetch: {}\n").unwrap();
        text = format!(
            "{head}                  local_jwks: {{inline_string: '{}'}}\n{rest}",
            Edge::jwks()
        );
        text = put(text, "issuer: https://issuer.example.com", "issuer: test");
        text = put(text, "                  audiences: [api]\n", "");
        let (head, rest) = text.split_once("  - name: issuer\n").unwrap();
        let (_, rest) = rest.split_once("  - name: admin\n").unwrap();
        text = format!("{head}  - name: admin\n{rest}");
        text = put(text, "timeout: 0.1s", "timeout: 10s");
        put(text, "timeout: 0.3s", "timeout: 10s")
    })
}

#[test]
fn the_bootstrap_for_kubernetes_limits_tenants_routes_and_addresses() {
    let edge = bootstrap(&deployed("base/policy"));
    let call = |path: &str, claims: Value| edge.get(path).claims(claims).send();
    let pro = json!({"tenant": "acme", "plan": "pro", "credential": "key-1"});

    assert_eq!(call("/v1/read", pro.clone()).number("ratelimit-limit"), Some(600));
    // Fifty of a hundred each, less what went before.
    assert_eq!(refused_by(10, |_| call("/v1/export", pro.clone())), "tenant");
    let free = json!({"tenant": "globex", "plan": "free", "credential": "key-1"});
    assert_eq!(refused_by(100, |_| call("/v1/search", free.clone())), "tenant");
    assert_eq!(refused_by(40, |_| edge.get("/login").send()), "anonymous");
}

#[test]
fn the_bootstrap_for_kubernetes_ends_a_flood_of_bad_tokens_at_the_door() {
    // Small numbers, so that a slow machine floods enough.
    let policy = fs::read_to_string(deployed("base/policy/api.yaml")).unwrap();
    let few = put(
        policy,
        "requests_per_unit: 1200, burst: 300",
        "requests_per_unit: 60, burst: 10",
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("api.yaml");
    fs::write(&file, few).unwrap();
    let edge = bootstrap(&file);
    let forged = || {
        edge.get("/v1/read")
            .forged_claims(json!({"tenant": "acme"}))
            .send()
    };

    let answers: Vec<u16> = (0..200).map(|_| forged().status).collect();
    assert_eq!(answers[..10], [401; 10], "{answers:?}");
    assert!(answers.contains(&429), "{answers:?}");
}
