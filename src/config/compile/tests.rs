//! That the compiled tree decides as the file says.

use std::sync::Arc;

use crate::config::{Source, load};
use crate::engine::descriptor::{Descriptor, Entry, Request};
use crate::engine::limit::{Algorithm, Counts, FailureMode, Limit, Unit};
use crate::engine::policy::Domain;
use crate::engine::resolve::resolve;
use crate::engine::time::{Micros, Timestamp};

fn compiled(text: &str) -> Arc<Domain> {
    let source = Source {
        name: "t".into(),
        text: text.to_owned(),
    };
    let loaded = load(&[source], Timestamp(0));
    assert!(!loaded.has_errors(), "{:?}", loaded.faults);
    loaded.domains[0].domain.clone().expect("no error")
}

/// What one descriptor meets: each budget as `label units/burst value,value`.
fn met(domain: &Domain, entries: &[(&str, &str)]) -> Vec<String> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptor = Descriptor {
        entries,
        ..Descriptor::default()
    };
    let request = Request {
        domain: "d",
        descriptors: [descriptor].into_iter().collect(),
        hits_addend: 0,
    };
    let resolved = resolve(Some(domain), &request, false, Timestamp(0));
    let values = resolved.met[0].values.join(",");
    let charges = resolved.charges.iter();
    charges
        .map(|c| {
            let n = c.numbers;
            format!("{} {}/{} {values}", c.limit.label, n.requests_per_unit, n.burst)
        })
        .collect()
}

fn limits(domain: &Domain) -> Vec<Arc<Limit>> {
    let mut limits = Vec::new();
    domain.for_each_limit(&mut |_, limit| limits.push(Arc::clone(limit)));
    limits
}

#[test]
fn exact_then_wildcards_in_file_order_then_any() {
    let domain = compiled(
        "domain: d
descriptors:
  - {key: p, value: '/a*', rate_limit: {name: first, unit: minute, requests_per_unit: 5}}
  - {key: p, value: '*z', rate_limit: {name: second, unit: minute, requests_per_unit: 4}}
  - {key: p, rate_limit: {name: any, unit: minute, requests_per_unit: 3}}
  - {key: p, value: /a/x, rate_limit: {name: exact, unit: minute, requests_per_unit: 2}}
",
    );
    assert_eq!(met(&domain, &[("p", "/a/x")]), ["exact 2/2 /a/x"]);
    assert_eq!(met(&domain, &[("p", "/a/z")]), ["first 5/5 /a/z"]);
    assert_eq!(met(&domain, &[("p", "/z")]), ["second 4/4 /z"]);
    assert_eq!(met(&domain, &[("p", "/y")]), ["any 3/3 /y"]);
    // The text of a pattern is an ordinary value too.
    assert_eq!(met(&domain, &[("p", "*z")]), ["second 4/4 *z"]);
}

#[test]
fn nested_rules_meet_only_at_their_depth() {
    let domain = compiled(
        "domain: d
descriptors:
  - key: tenant
    value: acme
    rate_limit: {unit: day, requests_per_unit: 15}
    descriptors:
      - {key: route, value: x, rate_limit: {unit: day, requests_per_unit: 25}}
",
    );
    assert_eq!(met(&domain, &[("tenant", "acme")]), ["tenant/day 15/15 acme"]);
    assert_eq!(
        met(&domain, &[("tenant", "acme"), ("route", "x")]),
        ["tenant.route/day 25/25 acme,x"]
    );
    assert!(met(&domain, &[("tenant", "acme"), ("route", "y")]).is_empty());
    assert!(domain.keys.contains("route") && domain.keys.len() == 2);
}

#[test]
fn a_shared_threshold_puts_all_values_on_one_budget() {
    let domain = compiled(
        "domain: d
descriptors:
  - {key: f, value: 'files/*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}
",
    );
    assert_eq!(met(&domain, &[("f", "files/a")]), ["f/hour 10/10 files/*"]);
}

#[test]
fn addresses_and_paths_are_compared_in_one_spelling() {
    let domain = compiled(
        "domain: d
descriptors:
  - {key: ip, value: '2001:DB8::0:1', rate_limit: {name: one, unit: hour, requests_per_unit: 1}}
  - {key: ip, address: {ipv4_prefix: 24, ipv6_prefix: 56}, rate_limit: {name: all, unit: hour, requests_per_unit: 2}}
  - {key: path, value: '/a//b', normalize: path, rate_limit: {name: path, unit: hour, requests_per_unit: 3}}
",
    );
    assert_eq!(met(&domain, &[("ip", "2001:db8::1")]), ["one 1/1 2001:db8::1"]);
    assert_eq!(met(&domain, &[("ip", "192.0.2.77")]), ["all 2/2 192.0.2.0/24"]);
    assert_eq!(met(&domain, &[("path", "/a/b?x=1")]), ["path 3/3 /a/b"]);
}

#[test]
fn rows_beat_the_limit_and_the_limit_beats_the_defaults() {
    let domain = compiled(
        "domain: d
defaults: {algorithm: token_bucket, burst: 7, max_wait: 100ms, counts: requests}
descriptors:
  - key: t
    rate_limit:
      name: t
      burst: 8
      requests_per_unit: 50
      plan_entry: t
      default_plan: free
      plans:
        free: {unit: minute}
        pro: {requests_per_unit: 500, burst: 90, max_wait: 2s}
        staff: {unlimited: true}
  - {key: w, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_window, counts: cost}}
",
    );
    assert_eq!(met(&domain, &[("t", "anybody")]), ["t 50/8 anybody"]);
    assert_eq!(met(&domain, &[("t", "pro")]), ["t 500/90 pro"]);
    assert!(met(&domain, &[("t", "staff")]).is_empty());
    let limits = limits(&domain);
    let pro = limits[0].plans.as_ref().expect("plans").rows["pro"];
    assert_eq!(
        (pro.max_wait, limits[0].numbers.max_wait),
        (Micros::from_secs(2), Micros::from_millis(100))
    );
    assert_eq!(
        (limits[0].counts, limits[1].counts),
        (Counts::Requests, Counts::Cost)
    );
    // What the window does not know is passed over.
    assert_eq!(
        (limits[1].numbers.burst, limits[1].numbers.max_wait),
        (5, Micros::ZERO)
    );
}

#[test]
fn an_overshoot_is_the_rows_or_the_limits_or_the_defaults_and_none_where_it_means_nothing() {
    let limit = |defaults: &str, own: &str, row: &str| {
        let domain = compiled(&format!(
            "domain: d
defaults: {{algorithm: token_bucket{defaults}}}
descriptors:
  - key: t
    rate_limit: {{name: t, plan_entry: p, default_plan: a, plans: {{a: {{unit: day, requests_per_unit: 100{row}}}}}{own}}}
"
        ));
        limits(&domain)[0].numbers.max_overshoot.to_string()
    };
    let (defaults, own, row) = (
        ", max_overshoot: 10%",
        ", max_overshoot: 2.5%",
        ", max_overshoot: 50%",
    );
    assert_eq!(limit("", "", ""), "0%");
    assert_eq!(limit(defaults, "", ""), "10%");
    assert_eq!(limit(defaults, own, ""), "2.5%");
    assert_eq!(limit(defaults, own, row), "50%");
    for passed_over in [
        ", overdraft: true",
        ", max_wait: 1s",
        ", algorithm: leaky_bucket, max_wait: 1s",
        ", excess: {action: degrade, up_to: 150%}",
    ] {
        assert_eq!(limit(defaults, passed_over, ""), "0%", "{passed_over}");
    }
    for kept in [
        ", excess: {action: reject}",
        ", max_wait: 0s",
        ", overdraft: false",
        ", algorithm: sliding_window",
    ] {
        assert_eq!(limit(defaults, kept, ""), "10%", "{kept}");
    }
    // Defaults that mean nothing to the algorithm do not stand in its way.
    assert_eq!(
        limit(
            ", max_wait: 1s, overdraft: true",
            ", algorithm: sliding_window, max_overshoot: 5%",
            ""
        ),
        "5%"
    );
}

#[test]
fn a_failure_mode_is_the_limits_own_or_the_defaults_or_local() {
    let limit = |own: &str| format!("  - {{key: k, rate_limit: {{unit: day, requests_per_unit: 1{own}}}}}\n");
    for (defaults, own, wanted) in [
        ("", "", FailureMode::Local),
        ("defaults: {failure_mode: allow}\n", "", FailureMode::Allow),
        ("", ", failure_mode: deny", FailureMode::Deny),
        (
            "defaults: {failure_mode: allow}\n",
            ", failure_mode: local",
            FailureMode::Local,
        ),
    ] {
        let domain = compiled(&format!("domain: d\n{defaults}descriptors:\n{}", limit(own)));
        assert_eq!(limits(&domain)[0].failure_mode, wanted, "{defaults}{own}");
    }
}

#[test]
fn the_safety_ceiling_is_a_bucket_and_by_default_the_capacity() {
    let ceiling = |text: &str| {
        let domain = compiled(&format!("domain: d\n{text}"));
        domain.safety_ceiling.as_ref().map(|ceiling| {
            let numbers = ceiling.numbers;
            let of_a_rule = ceiling.identity.keys().len() + usize::from(ceiling.shadow || ceiling.overdraft);
            assert_eq!((&*ceiling.label, of_a_rule), ("safety_ceiling", 0));
            assert_eq!(ceiling.name.as_deref(), Some("safety_ceiling"));
            assert_eq!(
                (&ceiling.algorithm, ceiling.counts),
                (&Algorithm::TokenBucket, Counts::Cost)
            );
            assert_eq!(
                ceiling.identity.limit(),
                format!("safety_ceiling/token_bucket/{}", ceiling.period.text)
            );
            (numbers.requests_per_unit, numbers.burst, ceiling.period.length.0)
        })
    };
    assert_eq!(ceiling(""), None);
    let capacity = "capacity: {unit: second, requests_per_unit: 2000}\n";
    assert_eq!(ceiling(capacity), Some((2_000, 2_000, 1_000_000)));
    let own = "safety_ceiling: {period: 500ms, requests_per_unit: 750, burst: 90}\n";
    assert_eq!(ceiling(own), Some((750, 90, 500_000)));
    assert_eq!(ceiling(&format!("{capacity}{own}")), Some((750, 90, 500_000)));
    let unit = "safety_ceiling: {unit: minute, requests_per_unit: 60}\n";
    assert_eq!(ceiling(unit), Some((60, 60, 60_000_000)));
}

#[test]
fn overrides_reach_the_budgets_whose_entries_they_name() {
    let domain = compiled(
        "domain: d
descriptors:
  - key: tenant
    rate_limit: {name: n, unit: minute, requests_per_unit: 10}
    descriptors:
      - {key: route, rate_limit: {name: n, unit: minute, requests_per_unit: 4}}
overrides:
  - {match: {tenant: acme}, limit: n, multiply: 2.5}
  - {match: {tenant: acme, route: x}, limit: n, requests_per_unit: 99}
  - {match: {tenant: gone}, limit: n, multiply: 9, expires_at: 1970-01-01T00:00:00Z}
",
    );
    assert_eq!(met(&domain, &[("tenant", "acme")]), ["n 25/25 acme"]);
    assert_eq!(
        met(&domain, &[("tenant", "acme"), ("route", "x")]),
        ["n 99/99 acme,x"]
    );
    assert_eq!(
        met(&domain, &[("tenant", "acme"), ("route", "y")]),
        ["n 10/10 acme,y"]
    );
    assert_eq!(met(&domain, &[("tenant", "gone")]), ["n 10/10 gone"]);
    assert_eq!(domain.overrides.len(), 3);
    assert_eq!(&*domain.overrides[1].id, "d#2");
}

#[test]
fn periods_are_units_or_durations_in_one_spelling() {
    let domain = compiled(
        "domain: d
descriptors:
  - {key: a, rate_limit: {period: 90m, requests_per_unit: 1}}
  - {key: b, rate_limit: {unit: MONTH, requests_per_unit: 1}}
  - {key: c, rate_limit: {unlimited: true}}
",
    );
    let limits = limits(&domain);
    assert_eq!((&*limits[0].label, limits[0].period.unit), ("a/1h30m", None));
    assert_eq!(limits[0].period.length, Micros::from_secs(5400));
    assert_eq!(
        (&*limits[1].label, limits[1].period.unit),
        ("b/month", Some(Unit::Month))
    );
    assert!(limits[2].numbers.unlimited);
}

#[test]
fn a_time_zone_moves_calendar_windows_only() {
    let text = |zone: &str, unit: &str| {
        format!(
            "domain: d\ndefaults: {{time_zone: {zone}}}\ndescriptors:\n  - {{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}\n"
        )
    };
    let start = |zone: &str, unit: &str| match &limits(&compiled(&text(zone, unit)))[0].algorithm {
        Algorithm::FixedWindow(windows) => windows.at(Timestamp(1_796_083_200_000_000)).start,
        other => panic!("{other:?}"),
    };
    assert_ne!(start("America/Sao_Paulo", "day"), start("UTC", "day"));
    assert_eq!(start("America/Sao_Paulo", "hour"), start("UTC", "hour"));
}

#[test]
fn flags_of_a_descriptor_hold_for_all_its_limits() {
    let domain = compiled(
        "domain: d
descriptors:
  - key: a
    shadow_mode: true
    metadata: {team: pay, level: 0x10, on: yes, list: [1.5, null, '1']}
    rate_limits:
      - {unit: minute, requests_per_unit: 1, shadow_mode: false}
      - {unit: hour, requests_per_unit: 1, quota_mode: true}
  - {key: b, rate_limit: {name: b, unit: minute, requests_per_unit: 1, replaces: [{name: x}, {name: y}]}}
  - {key: c, rate_limit: {name: x, unit: minute, requests_per_unit: 1, excess: {action: degrade, up_to: 150%}}}
",
    );
    let limits = limits(&domain);
    assert!(limits[0].shadow && limits[1].shadow && !limits[2].shadow);
    assert!(!limits[0].quota && limits[1].quota);
    assert_eq!(limits[2].replaces.len(), 2);
    assert!(domain.has_replaces);
    assert_eq!(limits[3].excess.map(|excess| excess.up_to_percent), Some(150));
    let node = domain.rules.keys["a"].any.as_ref().expect("the rule");
    let metadata = format!("{:?}", node.metadata);
    for part in [
        "String(\"pay\")",
        "Number(16.0)",
        "Bool(true)",
        "Number(1.5)",
        "Null",
        "String(\"1\")",
    ] {
        assert!(metadata.contains(part), "{part} in {metadata}");
    }
}

#[test]
fn costs_have_a_default_of_one() {
    let domain = compiled("domain: d\ncosts: {entry: route, values: {/a: 5, /b: 0}}\n");
    let costs = domain.costs.as_ref().expect("costs");
    assert_eq!((costs.default, costs.values["/a"], costs.values["/b"]), (1, 5, 0));
}

#[test]
fn large_policies_compile_in_linear_time() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for n in 0..20_000 {
        text += &format!(
            "  - {{key: tenant, value: t{n}, rate_limit: {{unit: minute, requests_per_unit: {n}}}}}\n"
        );
    }
    assert_eq!(compiled(&text).limit_count(), 20_000);
}
