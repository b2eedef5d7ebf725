//! Field by field, from the wire and to it.

use super::super::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor;
use super::*;
use crate::engine::limit::ExcessAction;
use smallvec::{SmallVec, smallvec};

fn metadata<'a>() -> Metadata<'a> {
    Metadata {
        limit: None,
        scope: None,
        code: "OK",
        remaining: None,
        cost: None,
        retry_after_ms: None,
        shadow: SmallVec::new(),
        degraded: false,
        changed_by: None,
        excess: None,
        rules: SmallVec::new(),
    }
}

fn json(metadata: &Metadata<'_>) -> serde_json::Value {
    fn value(kind: &Kind) -> serde_json::Value {
        match kind {
            Kind::NullValue(_) => serde_json::Value::Null,
            Kind::BoolValue(b) => (*b).into(),
            Kind::NumberValue(n) => (*n).into(),
            Kind::StringValue(s) => s.as_str().into(),
            Kind::ListValue(list) => list.values.iter().map(of).collect(),
            Kind::StructValue(fields) => fields.fields.iter().map(|(k, v)| (k.clone(), of(v))).collect(),
        }
    }
    fn of(v: &Value) -> serde_json::Value {
        value(v.kind.as_ref().unwrap())
    }
    value(&Kind::StructValue(metadata.into()))
}

#[test]
fn a_request_is_read_with_everything_it_carries() {
    let descriptor = RateLimitDescriptor {
        entries: vec![rate_limit_descriptor::Entry {
            key: "tenant".into(),
            value: "gr\u{fc}\u{df}\n\0|:".into(),
        }],
        limit: Some(rate_limit_descriptor::RateLimitOverride {
            requests_per_unit: 77,
            unit: RateLimitUnit::Day.into(),
            unit_multiplier: Some(3),
        }),
        hits_addend: Some(0),
        is_negative_hits: true,
    };
    let message = RateLimitRequest {
        domain: "api".into(),
        descriptors: vec![descriptor, RateLimitDescriptor::default()],
        hits_addend: 5,
    };
    let request = Request::from(&message);
    assert_eq!((request.domain, request.hits_addend), ("api", 5));
    let first = &request.descriptors[0];
    let entry = Entry {
        key: "tenant",
        value: "gr\u{fc}\u{df}\n\0|:",
    };
    assert_eq!(first.entries.as_slice(), [entry]);
    let along = WireOverride {
        requests_per_unit: 77,
        unit: Some(Unit::Day),
        multiplier: 3,
    };
    assert_eq!((first.limit, first.hits_addend), (Some(along), Some(0)));
    assert!(first.is_negative_hits);
    let second = &request.descriptors[1];
    assert_eq!((second.limit, second.hits_addend), (None, None));
}

#[test]
fn units_that_are_not_in_envoys_table_are_none() {
    let known = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Month,
        Unit::Year,
    ];
    for (wire, wanted) in (1..).zip(known) {
        assert_eq!(unit(wire), Some(wanted));
    }
    for wire in [0, 7, -1, i32::MAX] {
        assert_eq!(unit(wire), None);
    }
}

#[test]
fn the_overall_code_is_never_unknown() {
    for refused in [false, true] {
        let answer = Answer {
            refused,
            ..Answer::default()
        };
        let message = RateLimitResponse::from(answer);
        let wanted = if refused { Code::OverLimit } else { Code::Ok };
        assert_eq!(message.overall_code(), wanted);
    }
}

#[test]
fn an_answer_is_written_field_by_field() {
    let answer = Answer {
        refused: true,
        statuses: smallvec![
            Status {
                over_limit: true,
                limit: Some(CurrentLimit {
                    requests_per_unit: 5,
                    unit: Some(Unit::Second),
                    multiplier: Some(30),
                    name: "tenant".into(),
                }),
                remaining: 2,
                reset_seconds: Some(13),
            },
            Status::default(),
        ],
        headers: smallvec![("Retry-After", "7".into())],
        body: Some("{}".into()),
        excess: Some(ExcessAction::ServeStale),
        metadata: None,
    };
    let message = RateLimitResponse::from(answer);
    let first = &message.statuses[0];
    assert_eq!((first.code(), first.limit_remaining), (Code::OverLimit, 2));
    let reset = prost_types::Duration {
        seconds: 13,
        nanos: 0,
    };
    assert_eq!(first.duration_until_reset, Some(reset));
    let limit = first.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (5, WireUnit::Second));
    assert_eq!((limit.unit_multiplier, &*limit.name), (Some(30), "tenant"));
    let second = &message.statuses[1];
    assert_eq!((second.code(), second.current_limit.as_ref()), (Code::Ok, None));
    assert_eq!(second.duration_until_reset, None);
    let pairs = |headers: &[HeaderValue]| -> Vec<(String, String)> {
        let pairs = headers.iter().map(|h| (h.key.clone(), h.value.clone()));
        pairs.collect()
    };
    assert_eq!(
        pairs(&message.response_headers_to_add),
        [("Retry-After".into(), "7".into())]
    );
    assert_eq!(
        pairs(&message.request_headers_to_add),
        [("x-ratelimit-excess".into(), "serve_stale".into())]
    );
    assert_eq!(message.raw_body, b"{}");
    assert_eq!(message.dynamic_metadata, None);
}

#[test]
fn every_unit_has_its_number_on_the_wire() {
    let units = Unit::ALL.map(|unit| {
        let limit = CurrentLimit {
            requests_per_unit: 1,
            unit: Some(unit),
            multiplier: None,
            name: "".into(),
        };
        RateLimit::from(&limit).unit
    });
    assert_eq!(units, [1, 2, 3, 4, 7, 5, 6]);
    let none = CurrentLimit {
        requests_per_unit: 1,
        unit: None,
        multiplier: None,
        name: "".into(),
    };
    assert_eq!(RateLimit::from(&none).unit, 0);
}

#[test]
fn metadata_has_its_keys_at_the_top_and_leaves_out_what_is_not_known() {
    assert_eq!(json(&metadata()), serde_json::json!({"code": "OK"}));
    let full = Metadata {
        limit: Some(600),
        scope: Some("tenant"),
        code: "OVER_LIMIT",
        remaining: Some(3),
        cost: Some(5),
        retry_after_ms: Some(1_200),
        shadow: smallvec![("observed", "deny")],
        degraded: false,
        changed_by: Some("ticket"),
        excess: Some("degrade"),
        rules: SmallVec::new(),
    };
    assert_eq!(
        json(&full),
        serde_json::json!({
            "limit": 600.0, "scope": "tenant", "code": "OVER_LIMIT", "remaining": 3.0, "cost": 5.0,
            "retry_after_ms": 1_200.0, "shadow": {"observed": "deny"}, "override": "ticket", "excess": "degrade",
        })
    );
}

#[test]
fn of_two_shadow_verdicts_of_one_limit_the_refusal_is_told() {
    for verdicts in [[("t", "deny"), ("t", "allow")], [("t", "wait"), ("t", "deny")]] {
        let shadow = Metadata {
            shadow: verdicts.into_iter().collect(),
            ..metadata()
        };
        assert_eq!(json(&shadow)["shadow"], serde_json::json!({"t": "deny"}));
    }
}

#[test]
fn the_first_rule_to_write_a_key_wins_and_mappings_merge() {
    let map = |pairs: &[(&str, limit::Value)]| -> BTreeMap<Box<str>, limit::Value> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).into(), value.clone()));
        pairs.collect()
    };
    let (n, s) = (limit::Value::Number, |s: &str| limit::Value::String(s.into()));
    let first = map(&[
        ("a", n(1.0)),
        ("m", limit::Value::Map(map(&[("x", s("one"))]))),
        (
            "l",
            limit::Value::List(vec![limit::Value::Null, limit::Value::Bool(true)]),
        ),
    ]);
    let second = map(&[
        ("a", n(2.0)),
        ("b", n(3.0)),
        ("m", limit::Value::Map(map(&[("x", s("two")), ("y", s("two"))]))),
    ]);
    let merged = Metadata {
        rules: smallvec![&first, &second],
        ..metadata()
    };
    assert_eq!(
        json(&merged)["metadata"],
        serde_json::json!({"a": 1.0, "b": 3.0, "m": {"x": "one", "y": "two"}, "l": [null, true]})
    );
}
