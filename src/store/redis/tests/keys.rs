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
