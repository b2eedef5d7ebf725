//! What budgets are called: injective, in one slot a caller, bounded.

use proptest::prelude::*;

use super::super::key;
use super::field;
use crate::engine::limit::Unit;
use crate::engine::resolve::resolve;
use crate::engine::time::{Micros, Timestamp};
use crate::support::policy::{bucket, domain, every, fixed, leaky, request, sliding};

fn names(tenant: &str, route: &str) -> [(String, String); 2] {
    let limit = || vec![bucket("l", 1, 1, Unit::Minute)];
    let domain = domain([
        (&[("tenant", None)], limit()),
        (&[("tenant", None), ("route", None)], limit()),
    ]);
    let request = request(&[&[("tenant", tenant)], &[("tenant", tenant), ("route", route)]]);
    let resolved = resolve(Some(&domain), &request, false, Timestamp(0));
    [0, 1].map(|i| {
        let budget = resolved.key(&resolved.charges[i]);
        (key::key(&budget), field(&budget))
    })
}

#[test]
fn ordinary_names_are_readable() {
    let [(key, tenant), (same, route)] = names("acme", "GET /v1/search");
    assert_eq!(key, "c:{api|tenant=acme}");
    assert_eq!(same, key);
    assert_eq!(tenant, "l/tb/m");
    assert_eq!(route, "route=GET%20/v1/search|l/tb/m");
}

#[test]
fn the_limits_of_one_caller_have_a_field_each() {
    let l = || vec![bucket("l", 1, 1, Unit::Minute)];
    let of_a_tenant = vec![
        bucket("l", 1, 1, Unit::Minute),
        bucket("l", 1, 1, Unit::Month),
        every(bucket("l", 1, 1, Unit::Minute), 60_000),
        leaky("l", 1, Unit::Minute, Micros::SECOND),
        fixed("l", 1, Unit::Minute),
        sliding("l", 1, Unit::Minute),
        bucket("l/tb", 1, 1, Unit::Minute),
        bucket("", 1, 1, Unit::Minute),
    ];
    let domain = domain([
        (&[("tenant", None)], of_a_tenant),
        (&[("tenant", None), ("route", None)], l()),
        (&[("route", Some("r")), ("tenant", None)], l()),
        (&[("route", Some("r"))], l()),
        (&[("route", Some("r")), ("method", Some("m"))], l()),
    ]);
    let request = request(&[
        &[("tenant", "a")],
        &[("tenant", "a"), ("route", "r")],
        &[("route", "r"), ("tenant", "a")],
        &[("route", "r")],
        &[("route", "r"), ("method", "m")],
    ]);
    let resolved = resolve(Some(&domain), &request, false, Timestamp(0));
    let budgets = resolved.charges.iter().map(|charge| resolved.key(charge));
    let named = budgets.map(|budget| format!("{} {}", key::key(&budget), field(&budget)));
    let mut names: Vec<String> = named.collect();
    assert_eq!(
        names[8..],
        [
            "c:{api|tenant=a} route=r|l/tb/m",
            "c:{api|tenant=a} route=r|.|l/tb/m",
            "c:{api|route=r} l/tb/m",
            "c:{api|route=r|method=m} l/tb/m",
        ]
    );
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 12, "{names:?}");
}

#[test]
fn a_long_value_stands_as_a_digest_that_nobody_can_write() {
    let long = "x".repeat(129);
    let [(key, _), _] = names(&long, "r");
    let [(forged, _), _] = names(
        key.trim_start_matches("c:{api|tenant=").trim_end_matches('}'),
        "r",
    );
    assert_ne!(key, forged);
    assert!(key.len() < 64, "{key}");
}

fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{"),
        Just("}"),
        Just("|"),
        Just("="),
        Just("%"),
        Just(","),
        Just("."),
        Just("~"),
        Just("\0"),
        Just("\r\n"),
        Just("a"),
        Just("ü"),
        Just("%7D"),
        Just("tenant"),
        Just("route="),
        Just(":"),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn different_callers_have_different_names_and_one_slot_each(a in hostile(), b in hostile(), r in hostile(), s in hostile()) {
        let [(key_a, field_a), (key_b, field_b)] = [names(&a, &r)[1].clone(), names(&b, &s)[1].clone()];
        prop_assert_eq!(a == b, key_a == key_b);
        prop_assert_eq!(r == s, field_a == field_b);
        prop_assert!(key_a.len() <= 512 && field_a.len() <= 512);
        // The first braces are ours and hold the whole caller, so that Redis takes the tag from there.
        let braced = key_a.starts_with("c:{") && key_a.ends_with('}');
        prop_assert!(braced);
        prop_assert_eq!((key_a.matches('{').count(), key_a.matches('}').count()), (1, 1));
        prop_assert!(key_a.is_ascii() && field_a.is_ascii());
    }
}

#[test]
fn the_fields_of_budgets_that_are_meant_are_known() {
    use crate::engine::reset::targets;
    let limit = |name| vec![bucket(name, 1, 1, Unit::Minute)];
    let domain = domain([
        (&[("tenant", None)][..], limit("tenant")),
        (&[("tenant", None), ("route", None)], limit("route")),
        (
            &[("tenant", None), ("route", None), ("verb", None)],
            limit("verb"),
        ),
        (&[("route", Some("export")), ("tenant", None)], limit("export")),
    ]);
    let long = "x".repeat(200);
    // Fields that stand as digests whole: four values of 128 bytes, escaped.
    let longer = "é".repeat(64);
    let all: [&[(&str, &str)]; 8] = [
        &[("tenant", "acme")],
        &[("tenant", "acme"), ("route", "a")],
        &[("tenant", "acme"), ("route", "a|b")],
        &[("tenant", "acme"), ("route", &long)],
        &[("tenant", "acme"), ("route", "a"), ("verb", "GET")],
        &[("tenant", "acme"), ("route", "b"), ("verb", "GET")],
        &[("route", "export"), ("tenant", "acme")],
        &[("tenant", "acme"), ("route", &longer), ("verb", &longer)],
    ];
    let request = request(&all);
    let resolved = resolve(Some(&domain), &request, false, Timestamp(0));
    let fields: Vec<String> = resolved
        .charges
        .iter()
        .map(|charge| {
            let mut name = String::new();
            key::field(&mut name, &resolved.key(charge));
            name
        })
        .collect();
    assert_eq!(fields.len(), 8);
    let meant = |matches: &[(&str, &str)], limit| -> Vec<usize> {
        let targets = targets(&domain, matches, limit).unwrap();
        let is_meant = |i: &usize| {
            targets
                .iter()
                .any(|target| key::is_meant(fields[*i].as_bytes(), target))
        };
        (0..fields.len()).filter(is_meant).collect()
    };
    let acme = ("tenant", "acme");
    let whole = usize::from(fields[7].starts_with('~')) * 7;
    assert_eq!(whole, 7, "{fields:?}");
    assert_eq!(meant(&[acme], None), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(meant(&[acme], Some("tenant")), [0]);
    // Where a digest does not say, it goes too.
    assert_eq!(meant(&[acme], Some("route")), [1, 2, 3, 7]);
    assert_eq!(meant(&[acme], Some("verb")), [4, 5, 7]);
    assert_eq!(meant(&[acme], Some("export")), [6]);
    assert_eq!(meant(&[acme, ("route", "a")], None), [1, 4, 7]);
    assert_eq!(meant(&[acme, ("route", "a|b")], Some("route")), [2]);
    assert_eq!(meant(&[acme, ("route", &long)], Some("route")), [3]);
    assert_eq!(meant(&[acme, ("verb", "GET")], None), [4, 5, 7]);
    let [other, stranger] = ["|route=a|tenant/token_bucket/minute", "\u{fffd}"];
    let targets = targets(&domain, &[acme], Some("route")).unwrap();
    for field in [other, stranger, "", "."] {
        assert!(!key::is_meant(field.as_bytes(), &targets[0]), "{field}");
    }
}
