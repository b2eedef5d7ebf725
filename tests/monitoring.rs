//! The dashboard and the alerts: they name what a running service emits, and the alerts fire when they should.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;
mod support;

use cota_process::{Cota, command, eventually, request};
use support::redis::Server;

#[test]
fn the_alerts_pass_their_tests() {
    let folder = monitoring();
    promtool(&["check", "rules", "rules.yaml"], &folder);
    promtool(&["test", "rules", "rules_test.yaml"], &folder);
}

#[test]
fn every_alert_is_tested_quiet_and_firing() {
    let tests = read("rules_test.yaml");
    for alert in alerts() {
        let quiet = format!("alertname: {alert}, exp_alerts: []");
        let fires = format!("    alertname: {alert}\n    exp_alerts:\n    - exp_labels");
        assert!(tests.contains(&quiet) && tests.contains(&fires), "{alert}");
    }
}

#[test]
fn every_alert_leads_to_its_runbook_and_every_runbook_has_an_alert() {
    let rules = read("rules.yaml");
    let operations = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/OPERATIONS.md");
    let operations = fs::read_to_string(operations).unwrap();
    let headings: BTreeSet<&str> = operations
        .lines()
        .filter_map(|line| line.strip_prefix("### Cota"))
        .collect();
    let alerts = alerts();
    for alert in &alerts {
        let link = format!("runbook_url: docs/OPERATIONS.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&link), "{link}");
        assert!(headings.contains(alert.strip_prefix("Cota").unwrap()), "{alert}");
    }
    assert_eq!(headings.len(), alerts.len(), "{headings:?}");
}

#[test]
fn every_metric_that_is_named_is_emitted() {
    let emitted = emitted();
    for file in ["dashboard.json", "rules.yaml", "rules_test.yaml"] {
        let named = named(&read(file));
        assert!(named.len() > 10, "{file}: {named:?}");
        for metric in named {
            assert!(emitted.contains(&metric), "{file} names {metric}");
        }
    }
}

#[test]
fn every_query_of_the_dashboard_can_be_read() {
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut rules = String::from("groups:\n- name: dashboard\n  rules:\n");
    let mut queries = 0;
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(!panel["title"].as_str().unwrap().is_empty());
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "5m");
            rules += &format!("  - record: query:{queries}\n    expr: {}\n", Value::from(query));
            queries += 1;
        }
    }
    assert!(queries > 20, "{queries}");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("queries.yaml"), rules).unwrap();
    promtool(&["check", "rules", "queries.yaml"], folder.path());
}

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring")
}

fn read(file: &str) -> String {
    fs::read_to_string(monitoring().join(file)).unwrap()
}

fn alerts() -> Vec<String> {
    let rules = read("rules.yaml");
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<String> = alerts.map(str::to_owned).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    alerts
}

fn promtool(arguments: &[&str], folder: &Path) {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("promtool cannot be started: run `make setup`");
    assert!(
        output.status.success(),
        "promtool {arguments:?}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The words that begin with `cota_`.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("cota_"))
        .map(str::to_owned)
        .collect()
}

/// The names of all series of a service whose store was there and is gone.
fn emitted() -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("api.yaml");
    fs::write(
        &policy,
        "domain: api\ndescriptors:\n- {key: tenant, rate_limit: {name: tenant, unit: year, requests_per_unit: 1}}\n\
         - {key: job, rate_limit: {name: job, unit: day, requests_per_unit: 100000, max_overshoot: 5%}}\n\
         overrides: [{match: {tenant: big}, limit: tenant, multiply: 2, expires_at: 2099-01-01T00:00:00Z}]\n",
    )
    .unwrap();
    let redis = Server::start(&[]);
    let mut command = command(&["serve", "--drain", "0s", "--store", &redis.url(), "--config"]);
    let cota = Cota::start(command.arg(&policy));
    // Some show only once they count something.
    eventually("a refusal that the store is not asked for", || {
        cota.send(request("api", &[&[("tenant", "acme")]])).unwrap();
        let metrics = cota.get("/metrics").1;
        metrics.contains("cota_local_refusals_total{").then_some(())
    });
    drop(redis);
    let metrics = eventually("a decision without the store", || {
        cota.send(request("api", &[&[("tenant", "acme")]])).unwrap();
        let metrics = cota.get("/metrics").1;
        metrics
            .contains("cota_degraded_decisions_total{")
            .then_some(metrics)
    });
    let series = metrics.lines().filter(|line| !line.starts_with('#'));
    series
        .filter_map(|line| line.split(['{', ' ']).next())
        .map(str::to_owned)
        .collect()
}
