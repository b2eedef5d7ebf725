//! What budgets are called: injective, in one slot a caller, bounded.

use proptest::prelude::*;

use super::super::key;
use super::field;
use crate::engine::limit::Unit;
use crate::engine::resolve::resolve;
use crate::engine::time::Timestamp;
use crate::support::policy::{bucket, domain, request};

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
