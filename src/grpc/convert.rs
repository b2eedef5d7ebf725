//! Between the wire and the engine: a request borrowed from its message, a message built from an answer.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::proto::envoy::config::core::v3::HeaderValue;
use super::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::proto::envoy::r#type::v3::RateLimitUnit;
use crate::answer::{Answer, CurrentLimit, Metadata, Status};
use crate::engine::descriptor::{Descriptor, Entry, Request, WireOverride};
use crate::engine::limit::{self, Unit};

/// The header that tells the upstream of marked excess.
pub const EXCESS_HEADER: &str = "x-ratelimit-excess";

impl<'a> From<&'a RateLimitRequest> for Request<'a> {
    fn from(message: &'a RateLimitRequest) -> Self {
        Self {
            domain: &message.domain,
            descriptors: message.descriptors.iter().map(Into::into).collect(),
            hits_addend: message.hits_addend,
        }
    }
}

impl<'a> From<&'a RateLimitDescriptor> for Descriptor<'a> {
    fn from(message: &'a RateLimitDescriptor) -> Self {
        Self {
            entries: message
                .entries
                .iter()
                .map(|e| Entry {
                    key: &e.key,
                    value: &e.value,
                })
                .collect(),
            limit: message.limit.as_ref().map(|limit| WireOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: unit(limit.unit),
                multiplier: limit.unit_multiplier.unwrap_or(0),
            }),
            hits_addend: message.hits_addend,
            is_negative_hits: message.is_negative_hits,
        }
    }
}

/// The unit of a limit sent along; UNKNOWN and numbers not in Envoy's table are none.
pub(super) fn unit(wire: i32) -> Option<Unit> {
    match RateLimitUnit::try_from(wire) {
        Ok(RateLimitUnit::Second) => Some(Unit::Second),
        Ok(RateLimitUnit::Minute) => Some(Unit::Minute),
        Ok(RateLimitUnit::Hour) => Some(Unit::Hour),
        Ok(RateLimitUnit::Day) => Some(Unit::Day),
        Ok(RateLimitUnit::Month) => Some(Unit::Month),
        Ok(RateLimitUnit::Year) => Some(Unit::Year),
        Ok(RateLimitUnit::Unknown) | Err(_) => None,
    }
}

impl From<Answer<'_>> for RateLimitResponse {
    fn from(answer: Answer<'_>) -> Self {
        let code = if answer.refused { Code::OverLimit } else { Code::Ok };
        Self {
            overall_code: code.into(),
            statuses: answer.statuses.iter().map(Into::into).collect(),
            response_headers_to_add: answer
                .headers
                .into_iter()
                .map(|(key, value)| header(key, value))
                .collect(),
            request_headers_to_add: answer
                .excess
                .map(|a| header(EXCESS_HEADER, a.name().into()))
                .into_iter()
                .collect(),
            raw_body: answer.body.map(String::into_bytes).unwrap_or_default(),
            dynamic_metadata: answer.metadata.as_ref().map(Into::into),
            ..Self::default()
        }
    }
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.into(),
        value,
        ..HeaderValue::default()
    }
}

impl From<&Status<'_>> for DescriptorStatus {
    fn from(status: &Status<'_>) -> Self {
        let code = if status.over_limit {
            Code::OverLimit
        } else {
            Code::Ok
        };
        Self {
            code: code.into(),
            current_limit: status.limit.as_ref().map(Into::into),
            limit_remaining: status.remaining,
            duration_until_reset: status.reset_seconds.map(|n| prost_types::Duration {
                seconds: seconds(n),
                nanos: 0,
            }),
            ..Self::default()
        }
    }
}

impl From<&CurrentLimit<'_>> for RateLimit {
    fn from(limit: &CurrentLimit<'_>) -> Self {
        Self {
            name: limit.name.clone().into_owned(),
            requests_per_unit: limit.requests_per_unit,
            unit: wire_unit(limit.unit).into(),
            unit_multiplier: limit.multiplier,
        }
    }
}

/// As many seconds as a duration can say.
pub(super) fn seconds(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(super) fn wire_unit(unit: Option<Unit>) -> WireUnit {
    match unit {
        None => WireUnit::Unknown,
        Some(Unit::Second) => WireUnit::Second,
        Some(Unit::Minute) => WireUnit::Minute,
        Some(Unit::Hour) => WireUnit::Hour,
        Some(Unit::Day) => WireUnit::Day,
        Some(Unit::Week) => WireUnit::Week,
        Some(Unit::Month) => WireUnit::Month,
        Some(Unit::Year) => WireUnit::Year,
    }
}

impl From<&Metadata<'_>> for Struct {
    fn from(metadata: &Metadata<'_>) -> Self {
        let mut fields = BTreeMap::new();
        let mut put = |key: &str, value: Option<Kind>| {
            if value.is_some() {
                fields.insert(key.to_owned(), Value { kind: value });
            }
        };
        let number = |n: u64| Kind::NumberValue(n as f64);
        put("limit", metadata.limit.map(number));
        put("scope", metadata.scope.map(text));
        put("code", Some(text(metadata.code)));
        put("remaining", metadata.remaining.map(number));
        put("cost", metadata.cost.map(number));
        put("retry_after_ms", metadata.retry_after_ms.map(number));
        put("degraded", metadata.degraded.then_some(Kind::BoolValue(true)));
        put("override", metadata.changed_by.map(text));
        put("excess", metadata.excess.map(text));
        put("shadow", shadow(metadata).map(Kind::StructValue));
        put("metadata", merged(metadata).map(Kind::StructValue));
        Self { fields }
    }
}

/// The verdicts of limits in shadow mode, if there are any.
pub(super) fn shadow(metadata: &Metadata<'_>) -> Option<Struct> {
    let mut verdicts = Struct::default();
    for (limit, word) in &metadata.shadow {
        // Of two budgets of one limit (a request of two callers) the one that refuses is told.
        if *word == "deny" || !verdicts.fields.contains_key(*limit) {
            verdicts.fields.insert((*limit).to_owned(), text(word).into());
        }
    }
    (!verdicts.fields.is_empty()).then_some(verdicts)
}

/// The metadata of all rules, if there is any.
pub(super) fn merged(metadata: &Metadata<'_>) -> Option<Struct> {
    let mut merged = Struct::default();
    for rule in &metadata.rules {
        merge(&mut merged, rule);
    }
    (!merged.fields.is_empty()).then_some(merged)
}

/// Merges a rule's metadata: the first to write a key wins, nested mappings merge.
fn merge(into: &mut Struct, from: &BTreeMap<Box<str>, limit::Value>) {
    for (key, value) in from {
        match (
            into.fields.get_mut(&**key).and_then(|value| value.kind.as_mut()),
            value,
        ) {
            (Some(Kind::StructValue(nested)), limit::Value::Map(map)) => merge(nested, map),
            (Some(_), _) => {}
            (None, value) => {
                into.fields.insert(key.to_string(), kind(value).into());
            }
        }
    }
}

fn kind(value: &limit::Value) -> Kind {
    match value {
        limit::Value::Null => Kind::NullValue(0),
        limit::Value::Bool(b) => Kind::BoolValue(*b),
        limit::Value::Number(n) => Kind::NumberValue(*n),
        limit::Value::String(s) => text(s),
        limit::Value::List(items) => Kind::ListValue(ListValue {
            values: items.iter().map(|item| kind(item).into()).collect(),
        }),
        limit::Value::Map(map) => {
            let mut fields = Struct::default();
            merge(&mut fields, map);
            Kind::StructValue(fields)
        }
    }
}

fn text(s: &str) -> Kind {
    Kind::StringValue(s.to_owned())
}

#[cfg(test)]
mod tests;
