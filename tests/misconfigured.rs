//! What a misconfigured Envoy sends: answered, counted, and told of once.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use tempfile::TempDir;
use tonic::Code;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;

use cota_process::{Cota, eventually, policy_file, request};

const POLICY: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 10}
";

fn start() -> (TempDir, Cota) {
    let (folder, file) = policy_file(POLICY);
    let cota = Cota::serve(&file);
    (folder, cota)
}

fn malformed(cota: &Cota, reason: &str) -> u64 {
    let line = format!("cota_malformed_requests_total{{reason=\"{reason}\"}} ");
    let metrics = cota.get("/metrics").1;
    let value = metrics.lines().find_map(|l| l.strip_prefix(&line)).unwrap();
    value.parse().unwrap()
}

fn warnings(cota: &Cota, text: &str) -> Vec<String> {
    let log = cota.log();
    let warnings = log.lines().filter(|l| l.contains("WARN") && l.contains(text));
    warnings.map(str::to_owned).collect()
}

#[test]
fn a_request_without_a_domain_is_refused_counted_and_told_of_once() {
    let (_folder, cota) = start();
    for _ in 0..3 {
        let error = cota.send(request("", &[&[("tenant", "acme")]])).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.message(), "the request has no domain");
    }
    assert_eq!(malformed(&cota, "no_domain"), 3);
    let lines = warnings(&cota, "without a domain");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("peer=\"127.0.0.1:"), "{lines:?}");
}

#[test]
fn a_request_without_descriptors_is_refused_with_the_name_of_its_domain() {
    let (_folder, cota) = start();
    let error = cota.send(request("api", &[])).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        error.message(),
        "the request for domain \"api\" has no descriptors"
    );
    let evil = format!("\u{1b}[31m\n{}", "x".repeat(10_000));
    for _ in 0..2 {
        let error = cota.send(request(&evil, &[])).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().len() < 200, "{}", error.message());
        assert!(!error.message().contains('\u{1b}'));
    }
    assert_eq!(malformed(&cota, "no_descriptors"), 3);
    let lines = warnings(&cota, "without descriptors");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("domain=\"api\" peer=\"127.0.0.1:"), "{lines:?}");
}

#[test]
fn the_first_line_shows_what_a_caller_chose_escaped_and_cut() {
    let (_folder, cota) = start();
    let evil = format!("\u{1b}[31m\nERROR forged {}", "x".repeat(10_000));
    cota.send(request(&evil, &[])).unwrap_err();
    let lines = warnings(&cota, "without descriptors");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].len() < 400, "{lines:?}");
    assert!(!cota.log().contains('\u{1b}'));
    assert!(!cota.log().lines().any(|line| line.starts_with("ERROR")));
}

#[test]
fn an_empty_descriptor_among_good_ones_is_only_counted() {
    let (_folder, cota) = start();
    let answer = cota.send(request("api", &[&[], &[("tenant", "acme")]])).unwrap();
    assert_eq!(answer.statuses.len(), 2);
    assert_eq!(answer.statuses[1].limit_remaining, 9);
    assert_eq!(malformed(&cota, "no_entries"), 1);
    assert_eq!(warnings(&cota, ""), [""; 0]);
}

#[test]
fn calls_of_the_old_protocol_are_told_what_to_set() {
    let (_folder, cota) = start();
    let client = cota.client();
    for path in [
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit",
        "/somebody.Else/Calls",
    ] {
        for _ in 0..2 {
            let error = client
                .call(path, request("api", &[&[("tenant", "acme")]]))
                .unwrap_err();
            assert_eq!(error.code(), Code::Unimplemented, "{path}");
        }
    }
    let lines = eventually("a line in the log", || {
        let lines = warnings(&cota, "set transport_api_version: V3");
        (!lines.is_empty()).then_some(lines)
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("ratelimit.v2"), "{lines:?}");
    assert!(lines[0].contains("peer=\"127.0.0.1:"), "{lines:?}");
    // The rest is as it was.
    assert!(cota.ask("api", "tenant", "acme").is_ok());
    assert_eq!(cota.health("").unwrap(), 1);
}
