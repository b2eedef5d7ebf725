//! To the byte what the generated messages write.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use super::super::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use super::*;
use crate::engine::limit::{ExcessAction, Unit, Value};

const NAMES: [&str; 4] = [
    "tenant",
    "",
    "a-name-that-is-a-good-deal-longer",
    "tenant.route/minute",
];
const WORDS: [&str; 4] = ["allow", "wait", "excess", "deny"];
const ACTIONS: [ExcessAction; 3] = [
    ExcessAction::ServeStale,
    ExcessAction::Degrade,
    ExcessAction::AcceptAsync,
];

/// Numbers of every length that a varint can have.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(n, shift)| n >> shift)
}

fn name() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(&NAMES[..])
}

fn statuses() -> impl Strategy<Value = Vec<answer::Status<'static>>> {
    let units = proptest::sample::select(&Unit::ALL[..]);
    let limit = (any::<u32>(), option::of(units), option::of(0_u32..500), name());
    let limit = limit.prop_map(|(requests_per_unit, unit, multiplier, name)| CurrentLimit {
        requests_per_unit,
        unit,
        multiplier,
        name: name.into(),
    });
    let status = (any::<bool>(), option::of(limit), 0_u32..300, option::of(number()));
    let status = status.prop_map(|(over_limit, limit, remaining, reset_seconds)| answer::Status {
        over_limit,
        limit,
        remaining,
        reset_seconds,
    });
    vec(status, 0..5)
}

fn rule() -> impl Strategy<Value = &'static std::collections::BTreeMap<Box<str>, Value>> {
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        ".{0,200}".prop_map(|text| Value::String(text.into())),
        vec(Just(Value::Number(0.5)), 0..3).prop_map(Value::List),
    ];
    let key = "[a-z]{0,3}".prop_map(Box::from);
    // Leaked, since metadata borrows from the policy: a few kilobytes a run.
    btree_map(key, value, 0..4).prop_map(|map| &*Box::leak(Box::new(map)))
}

fn metadata() -> impl Strategy<Value = Metadata<'static>> {
    let numbers = [(); 4].map(|()| option::of(number()));
    let words = (option::of(name()), option::of(name()));
    let shadow = vec((name(), proptest::sample::select(&WORDS[..])), 0..3);
    let all = (numbers, words, shadow, any::<bool>(), vec(rule(), 0..3));
    all.prop_map(|(numbers, (scope, changed_by), shadow, degraded, rules)| {
        let [limit, remaining, cost, retry_after_ms] = numbers;
        Metadata {
            limit,
            scope,
            code: if degraded { "OVER_LIMIT" } else { "OK" },
            remaining,
            cost,
            retry_after_ms,
            shadow: shadow.into(),
            degraded,
            changed_by,
            excess: degraded.then_some("degrade"),
            rules: rules.into(),
        }
    })
}

proptest! {
    #[test]
    fn an_answer_is_written_as_the_generated_message_is(
        refused: bool,
        statuses in statuses(),
        headers in vec((name(), ".{0,150}"), 0..8),
        body in option::of(".{0,300}"),
        excess in option::of(proptest::sample::select(&ACTIONS[..])),
        metadata in option::of(metadata()),
    ) {
        let answer = || Answer {
            refused,
            statuses: statuses.clone().into(),
            headers: headers.clone().into(),
            body: body.clone(),
            excess,
            metadata: metadata.clone(),
        };
        let message = RateLimitResponse::from(answer());
        let encoded = Encoded::from(answer());
        prop_assert_eq!(encoded.bytes(), message.encode_to_vec());
    }
}
