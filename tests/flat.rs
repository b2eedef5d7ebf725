//! A million made-up tenants, keys, values, overrides and domains: neither series nor memory grow.
//!
//! A test of its own, since it looks at the memory of its process.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cota::config::{Source, load};
use cota::engine::decision::{Slot, evaluate, settle};
use cota::engine::descriptor::{Descriptor, Entry, Request, WireOverride};
use cota::engine::limit::Unit;
use cota::engine::policy::Policy;
use cota::engine::resolve::resolve;
use cota::engine::time::{Micros, Timestamp};
use cota::telemetry::Metrics;
use cota::usage::{LABELS_OF_A_LIMIT, WINDOW};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;

/// Tenants are refused, routes pass. Budgets are fresh each time: how a store bounds them is its own matter.
const POLICY: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 0, attribute_to: credential}
    descriptors:
      - key: route
        rate_limit: {name: route, unit: year, requests_per_unit: 1}
";

const START: Timestamp = Timestamp(1_800_000_000_000_000);

#[test]
fn a_million_made_up_callers_make_no_more_series_and_no_more_memory_than_a_few() {
    let service = Service::new();
    let at_rest = service.series();
    service.send(0..100_000);
    let (series, memory) = (service.series(), resident());
    assert!(series <= at_rest + 3 * LABELS_OF_A_LIMIT, "{at_rest} {series}");
    // Nobody scrapes meanwhile.
    service.send(100_000..1_000_000);
    let grown = resident().saturating_sub(memory);
    let text = service.text();
    let series = service.series();
    assert!(series <= at_rest + 3 * LABELS_OF_A_LIMIT, "{at_rest} {series}");
    assert!(grown < 8_000, "{grown} kB more");
    // The two that were refused all the time are found among all the others.
    for known in ["tenant=acme", "tenant=globex"] {
        assert!(
            text.contains(&format!("limit=\"tenant\",caller=\"{known}\"}}")),
            "{known} in\n{text}"
        );
    }
    let decided: u64 = counted(&text, "cota_limit_decisions_total", "verdict=\"deny\"");
    assert_eq!(counted(&text, "cota_top_denied_total", ""), decided);
    println!("{at_rest} series at rest, {series} after a million; {grown} kB more after the first 100,000");
}

struct Service {
    registry: Registry,
    metrics: Metrics,
    policy: Arc<Policy>,
}

impl Service {
    fn new() -> Self {
        let source = Source {
            name: "api.yaml".into(),
            text: POLICY.into(),
        };
        let domains = load(&[source], START).domains.into_iter();
        let policy = Arc::new(Policy {
            version: 1,
            domains: domains.map(|item| (item.name, item.domain.unwrap())).collect(),
        });
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry, false);
        metrics.install(Arc::clone(&policy));
        Self {
            registry,
            metrics,
            policy,
        }
    }

    fn send(&self, made_up: std::ops::Range<u32>) {
        for i in made_up {
            if i % 100_000 == 0 {
                let windows = u64::from(i / 100_000) * WINDOW.0 / 2;
                self.metrics.usage().tick(Timestamp(START.0 + windows));
            }
            let name = format!("made-up-\"{i}\n");
            let known = if i % 4 == 0 { "acme" } else { "globex" };
            let override_key = format!("key-{i}");
            let entry = |key, value| Entry { key, value };
            let limit = WireOverride {
                requests_per_unit: i % 3,
                unit: Some(Unit::Year),
                multiplier: 0,
            };
            let (domain, entries, limit) = match i % 6 {
                0 => ("api", vec![entry("tenant", &name), entry("route", &name)], None),
                1 => ("api", vec![entry("tenant", &name)], None),
                2 => ("api", vec![entry("tenant", known)], None),
                3 => ("api", vec![entry("credential", &name)], None),
                4 => ("api", vec![entry(&override_key, &name)], Some(limit)),
                _ => (&*name, vec![entry("tenant", &name)], None),
            };
            let descriptor = Descriptor {
                entries: entries.into_iter().collect(),
                limit,
                ..Descriptor::default()
            };
            self.decide(&Request {
                domain,
                descriptors: [descriptor].into_iter().collect(),
                hits_addend: 0,
            });
        }
    }

    fn decide<'a>(&'a self, request: &Request<'a>) {
        let domain = self.policy.domains.get(request.domain).map(|domain| &**domain);
        let resolved = resolve(domain, request, false, START);
        let evaluate = |charge| evaluate(charge, Slot::default(), START, Micros::ZERO);
        let evaluations: Vec<_> = resolved.charges.iter().map(evaluate).collect();
        let decision = settle(&resolved, &evaluations);
        self.metrics
            .record(request, domain, &resolved, &decision, Duration::from_micros(20));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).unwrap();
        text
    }

    fn series(&self) -> usize {
        self.text().lines().filter(|line| !line.starts_with('#')).count()
    }
}

/// The sum of a family's series with that label.
fn counted(text: &str, family: &str, label: &str) -> u64 {
    let lines = text
        .lines()
        .filter(|line| line.starts_with(family) && line.contains(label));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// The memory of this process, in kilobytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}
