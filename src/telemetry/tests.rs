use hashbrown::HashMap;
use prometheus_client::encoding::prometheus_text;
use smallvec::smallvec;

use super::*;
use crate::engine::decision::{Slot, evaluate, settle};
use crate::engine::descriptor::{Descriptor, Entry, WireOverride};
use crate::engine::key::Identity;
use crate::engine::limit::{Algorithm, Limit, Numbers, Share, Unit};
use crate::engine::policy::{KeyRules, Level, Match, Node, SAFETY_CEILING};
use crate::engine::resolve::resolve;
use crate::engine::time::{Micros, Timestamp};

#[test]
fn a_refusal_counts_for_the_limit_that_refused_only() {
    let service = Service::new(&[("api", &[("tenant", 1, false), ("route", 0, false)])]);
    service.ask("api", &["tenant"]);
    service.ask("api", &["tenant", "route"]);
    service.shows(&[
        r#"cota_requests_total{domain="api",code="ok"} 1"#,
        r#"cota_requests_total{domain="api",code="over_limit"} 1"#,
        r#"cota_requests_total{domain="api",code="error"} 0"#,
        r#"cota_limit_decisions_total{domain="api",limit="tenant",verdict="allow"} 1"#,
        r#"cota_limit_decisions_total{domain="api",limit="tenant",verdict="deny"} 0"#,
        r#"cota_limit_decisions_total{domain="api",limit="route",verdict="allow"} 0"#,
        r#"cota_limit_decisions_total{domain="api",limit="route",verdict="deny"} 1"#,
        "cota_decision_duration_seconds_count 2",
    ]);
}

#[test]
fn refusals_that_cost_the_store_nothing_are_counted() {
    let service = Service::new(&[("api", &[("tenant", 1, false), ("route", 0, false)])]);
    let in_force = service.policy();
    let both = request("api", &["tenant", "route"], None);
    service.decide(&in_force, &both);
    assert!(!service.text().contains("cota_local_refusals_total{"));
    for _ in 0..3 {
        service.decide_and(&in_force, &both, |decision| decision.unasked = true);
    }
    service.shows(&[r#"cota_local_refusals_total{domain="api",limit="route"} 3"#]);
    assert!(
        !service
            .text()
            .contains(r#"cota_local_refusals_total{domain="api",limit="tenant"}"#)
    );
    service.install(policy(2, &[("api", &[("tenant", 5, false)])]));
    assert!(!service.text().contains("cota_local_refusals_total{"));
}

#[test]
fn decisions_without_the_store_are_counted_as_long_as_the_policy_has_the_limit() {
    let service = Service::new(&[("api", &[("tenant", 9, false), ("route", 0, false)])]);
    let before = service.policy();
    let both = request("api", &["tenant", "route"], None);
    let by_failure_mode = |decision: &mut Decision| {
        for verdict in &mut decision.verdicts {
            verdict.degraded = Some(FailureMode::Deny);
        }
    };
    service.decide_and(&before, &both, by_failure_mode);
    // That one would have let it pass, but it was decided without the store as well.
    service.shows(&[
        r#"cota_degraded_decisions_total{domain="api",limit="tenant",failure_mode="deny"} 1"#,
        r#"cota_degraded_decisions_total{domain="api",limit="route",failure_mode="deny"} 1"#,
    ]);
    service.install(policy(2, &[("api", &[("tenant", 5, false)])]));
    for _ in 0..2 {
        service.decide_and(&before, &both, by_failure_mode);
    }
    service.shows(&[r#"cota_degraded_decisions_total{domain="api",limit="tenant",failure_mode="deny"} 3"#]);
    let text = service.text();
    assert!(!text.contains(r#"limit="route""#), "{text}");
}

#[test]
fn what_the_ceiling_over_local_decisions_refuses_is_counted_as_its_own() {
    let mut with_ceiling = policy(1, &[("api", &[("tenant", 9, false)])]);
    let api = with_ceiling
        .domains
        .get_mut("api")
        .and_then(Arc::get_mut)
        .unwrap();
    api.safety_ceiling = Some(Arc::new(limit("api", SAFETY_CEILING, 0, false)));
    let service = Service::new(&[]);
    service.install(with_ceiling);
    let in_force = service.policy();
    let domain = in_force.domains.get("api").map(|domain| &**domain);
    let request = request("api", &["tenant"], None);
    let mut resolved = resolve(domain, &request, false, NOW);
    // As the shared store adds it.
    let ceiling = resolved.ceiling.unwrap();
    resolved.charges.push(Charge {
        limit: LimitRef::Policy(ceiling),
        numbers: ceiling.numbers,
        plan: None,
        changed_by: None,
        met: 0,
        refund: 0,
        spend: Some(1),
        shadow: false,
    });
    resolved.met[0].charges.push(1);
    service.record(&request, domain, &resolved, |decision| {
        decision.verdicts[1].degraded = Some(FailureMode::Local);
    });
    service.shows(&[
        r#"cota_limit_decisions_total{domain="api",limit="safety_ceiling",verdict="deny"} 1"#,
        r#"cota_degraded_decisions_total{domain="api",limit="safety_ceiling",failure_mode="local"} 1"#,
    ]);
    // It has one budget, which is nobody's.
    let text = service.text();
    assert!(!text.contains(r#"limit="safety_ceiling",caller"#), "{text}");
    service.install(policy(2, &[("api", &[("tenant", 9, false)])]));
    assert!(!service.text().contains(SAFETY_CEILING));
}

#[test]
fn how_full_budgets_are_shows_what_is_known_of_them() {
    let service = Service::new(&[("api", &[("tenant", 4, false), ("route", 0, false)])]);
    let in_force = service.policy();
    service.ask("api", &["tenant"]);
    // Refused by another one, or let pass unseen.
    service.ask("api", &["tenant", "route"]);
    service.decide_and(&in_force, &request("api", &["tenant"], None), |decision| {
        decision.verdicts[0].degraded = Some(FailureMode::Allow);
    });
    service.shows(&[
        r#"cota_limit_utilization_ratio_bucket{domain="api",limit="tenant",le="0.1"} 0"#,
        r#"cota_limit_utilization_ratio_bucket{domain="api",limit="tenant",le="0.25"} 1"#,
        r#"cota_limit_utilization_ratio_bucket{domain="api",limit="tenant",le="+Inf"} 1"#,
        r#"cota_limit_utilization_ratio_sum{domain="api",limit="tenant"} 0.25"#,
        r#"cota_limit_utilization_ratio_count{domain="api",limit="route"} 0"#,
    ]);
}

#[test]
fn a_limit_in_shadow_mode_says_what_it_would_refuse() {
    let service = Service::new(&[("api", &[("tenant", 0, true)])]);
    service.ask("api", &["tenant"]);
    service.shows(&[
        r#"cota_requests_total{domain="api",code="ok"} 1"#,
        r#"cota_limit_decisions_total{domain="api",limit="tenant",verdict="shadow_deny"} 1"#,
    ]);
    let text = service.text();
    assert!(!text.contains(r#"limit="tenant",verdict="deny""#), "{text}");
}

#[test]
fn what_meets_nothing_is_counted_by_reason_and_never_by_its_own_name() {
    let service = Service::new(&[("api", &[("tenant", 1, false)])]);
    let before = service.text().lines().count();
    for i in 0..1_000 {
        service.ask(&format!("made-up-{i}"), &["x"]);
        service.ask("api", &[&format!("key-{i}")]);
    }
    service.shows(&[
        r#"cota_requests_total{domain="unknown",code="ok"} 1000"#,
        r#"cota_unmatched_descriptors_total{domain="unknown",reason="unknown_domain"} 1000"#,
        r#"cota_unmatched_descriptors_total{domain="api",reason="unknown_key"} 1000"#,
    ]);
    assert_eq!(service.text().lines().count(), before);
}

#[test]
fn broken_requests_are_counted_by_what_is_broken() {
    let service = Service::new(&[("api", &[("tenant", 1, false)])]);
    service.ask("api", &[""]);
    let unitless = WireOverride {
        requests_per_unit: 1,
        unit: None,
        multiplier: 0,
    };
    service.ask_with("api", &["tenant"], unitless);
    let elapsed = Duration::from_micros(7);
    service
        .metrics
        .record_failure(None, Some(Malformed::NoDomain), elapsed);
    service.shows(&[
        r#"cota_malformed_requests_total{reason="empty_key"} 1"#,
        r#"cota_malformed_requests_total{reason="override_unit"} 1"#,
        r#"cota_malformed_requests_total{reason="no_domain"} 1"#,
        r#"cota_malformed_requests_total{reason="no_descriptors"} 0"#,
        r#"cota_requests_total{domain="unknown",code="error"} 1"#,
    ]);
}

#[test]
fn a_limit_that_came_along_counts_as_override() {
    let service = Service::new(&[("api", &[("tenant", 1, false)])]);
    let sent = WireOverride {
        requests_per_unit: 1,
        unit: Some(Unit::Minute),
        multiplier: 0,
    };
    service.ask_with("api", &["any\"thing\n"], sent);
    service.shows(&[r#"cota_limit_decisions_total{domain="api",limit="override",verdict="allow"} 1"#]);
}

#[test]
fn series_go_with_the_policy_and_what_stays_keeps_its_count() {
    let service = Service::new(&[
        ("api", &[("tenant", 9, false), ("route", 9, false)]),
        ("old", &[("x", 9, false)]),
    ]);
    service.ask("api", &["tenant"]);
    let before = service.policy();
    service.install(policy(2, &[("api", &[("tenant", 5, false)])]));
    service.shows(&[
        r#"cota_limit_decisions_total{domain="api",limit="tenant",verdict="allow"} 1"#,
        r#"cota_config_info{domain="api",version="2"} 1"#,
    ]);
    let text = service.text();
    for gone in [r#"domain="old""#, r#"limit="route""#, r#"version="1""#] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    // Requests that began under the policy before count where they still belong, and make no series.
    for (domain, key) in [("api", "tenant"), ("api", "route"), ("old", "x")] {
        service.decide(&before, &request(domain, &[key], None));
    }
    service.shows(&[
        r#"cota_limit_decisions_total{domain="api",limit="tenant",verdict="allow"} 2"#,
        r#"cota_requests_total{domain="api",code="ok"} 3"#,
        r#"cota_requests_total{domain="unknown",code="ok"} 1"#,
    ]);
    assert_eq!(service.text().lines().count(), text.lines().count());
}

#[test]
fn time_held_on_purpose_is_no_decision_time() {
    let service = Service::new(&[]);
    let decision = Decision {
        wait: Micros::from_millis(150),
        ..Decision::default()
    };
    let elapsed = Duration::from_micros(150_010);
    let (request, resolved) = (Request::default(), Resolved::default());
    service
        .metrics
        .record(&request, None, &resolved, &decision, elapsed);
    service.shows(&[
        r#"cota_decision_duration_seconds_bucket{le="5e-06"} 0"#,
        r#"cota_decision_duration_seconds_bucket{le="1e-05"} 1"#,
        r#"cota_decision_duration_seconds_bucket{le="+Inf"} 1"#,
        "cota_decision_duration_seconds_sum 0.00001",
    ]);
}

#[test]
fn evictions_are_read_from_the_store_when_asked_for() {
    let mut registry = Registry::default();
    register_counts(
        &mut registry,
        EVICTIONS,
        [("active", 3_u64), ("exhausted", 4)],
        |n| n * n,
    );
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains("\ncota_evictions_total{kind=\"active\"} 9\n"),
        "{text}"
    );
    assert!(
        text.contains("\ncota_evictions_total{kind=\"exhausted\"} 16\n"),
        "{text}"
    );
}

const NOW: Timestamp = Timestamp(1_000_000_000);

struct Service {
    registry: Registry,
    metrics: Metrics,
    policy: ArcSwap<Policy>,
}

impl Service {
    fn new(domains: &[Rules<'_>]) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry, false);
        let service = Self {
            registry,
            metrics,
            policy: ArcSwap::default(),
        };
        service.install(policy(1, domains));
        service
    }

    fn install(&self, policy: Policy) {
        let policy = Arc::new(policy);
        self.metrics.install(Arc::clone(&policy));
        self.policy.store(policy);
    }

    fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    fn ask(&self, domain: &str, keys: &[&str]) {
        self.decide(&self.policy(), &request(domain, keys, None));
    }

    fn ask_with(&self, domain: &str, keys: &[&str], limit: WireOverride) {
        self.decide(&self.policy(), &request(domain, keys, Some(limit)));
    }

    fn decide<'a>(&self, policy: &'a Policy, request: &Request<'a>) {
        self.decide_and(policy, request, |_| {});
    }

    fn decide_and<'a>(&self, policy: &'a Policy, request: &Request<'a>, change: fn(&mut Decision)) {
        let domain = policy.domains.get(request.domain).map(|domain| &**domain);
        self.record(request, domain, &resolve(domain, request, false, NOW), change);
    }

    fn record<'a>(
        &self,
        request: &Request<'a>,
        domain: Option<&'a Domain>,
        resolved: &Resolved<'a>,
        change: fn(&mut Decision),
    ) {
        let evaluate = |charge| evaluate(charge, Slot::default(), NOW, Micros::ZERO);
        let evaluations: Vec<_> = resolved.charges.iter().map(evaluate).collect();
        let mut decision = settle(resolved, &evaluations);
        change(&mut decision);
        let elapsed = Duration::from_micros(20);
        self.metrics.record(request, domain, resolved, &decision, elapsed);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).unwrap();
        text
    }

    fn shows(&self, lines: &[&str]) {
        let text = self.text();
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line} in\n{text}");
        }
    }
}

fn request<'a>(domain: &'a str, keys: &[&'a str], limit: Option<WireOverride>) -> Request<'a> {
    let descriptor = |key: &&'a str| Descriptor {
        entries: smallvec![Entry { key, value: "v" }],
        limit,
        ..Descriptor::default()
    };
    Request {
        domain,
        descriptors: keys.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// A domain's name and its limits: the key, which is the label as well, requests a minute, shadow.
type Rules<'a> = (&'a str, &'a [(&'a str, u64, bool)]);

fn policy(version: u64, domains: &[Rules<'_>]) -> Policy {
    let domains = domains.iter().map(|(name, limits)| {
        let keys: HashMap<Box<str>, KeyRules> = limits
            .iter()
            .map(|&(key, units, shadow)| {
                let node = Node {
                    matches: Match::Any,
                    limits: vec![Arc::new(limit(name, key, units, shadow))],
                    ..Node::default()
                };
                let rules = KeyRules {
                    any: Some(Arc::new(node)),
                    ..KeyRules::default()
                };
                (key.into(), rules)
            })
            .collect();
        let domain = Domain {
            name: (*name).into(),
            revision: version.to_string().into(),
            rules: Level { keys },
            ..Domain::default()
        };
        ((*name).into(), Arc::new(domain))
    });
    Policy {
        domains: domains.collect(),
        version,
    }
}

fn limit(domain: &str, key: &str, units: u64, shadow: bool) -> Limit {
    let period = Unit::Minute.period();
    let identity = Identity::new(domain, &[key], Some(key), &Algorithm::TokenBucket, &period);
    let numbers = Numbers {
        requests_per_unit: units,
        burst: units,
        max_wait: Micros::ZERO,
        max_overshoot: Share::ZERO,
        unlimited: false,
    };
    Limit {
        shadow,
        ..Limit::plain(Some(key), identity, Algorithm::TokenBucket, period, numbers)
    }
}
