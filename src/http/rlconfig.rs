//! `/rlconfig`: the limits in force, as `envoyproxy/ratelimit` prints them.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract;
use axum::http::StatusCode;
use axum::response::Response;

use super::{State, text};
use crate::engine::limit::{Limit, Numbers};
use crate::engine::policy::{Domain, Policy};
use crate::engine::time::Micros;

/// One line for each limit.
pub(super) async fn rlconfig(extract::State(state): extract::State<Arc<State>>) -> Response {
    let policy: Arc<Policy> = state.policy.load_full();
    let mut domains: Vec<&Domain> = policy.domains.values().map(|domain| &**domain).collect();
    domains.sort_by_key(|domain| &*domain.name);
    let mut out = String::new();
    for domain in domains {
        domain.for_each_limit(&mut |path, limit| line(&mut out, &domain.name, path, limit));
    }
    text(StatusCode::OK, out)
}

/// `domain.key_value.key2: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false`; what
/// the original cannot say stands at the end of the line.
fn line(out: &mut String, domain: &str, path: &[(&str, Option<&str>)], limit: &Limit) {
    one_line(out, domain);
    for (key, value) in path {
        out.push('.');
        one_line(out, key);
        if let Some(value) = value {
            out.push('_');
            one_line(out, value);
        }
    }
    let numbers = shown(limit);
    let (unit, multiplier) = unit(limit);
    // The original has neither for a limit without a ceiling.
    let (unit, requests) = if numbers.unlimited {
        ("UNKNOWN".into(), 0)
    } else {
        (unit, numbers.requests_per_unit)
    };
    let (shadow, quota) = (limit.shadow, limit.quota);
    let _ = write!(
        out,
        ": unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}"
    );
    if let Some(multiplier) = multiplier {
        let _ = write!(out, ", unit_multiplier: {multiplier}");
    }
    if numbers.unlimited {
        out.push_str(", unlimited: true");
    }
    if let Some(name) = &limit.name {
        out.push_str(", name: ");
        one_line(out, name);
    }
    out.push('\n');
}

/// The numbers of most callers: those of the default plan where there are plans.
fn shown(limit: &Limit) -> Numbers {
    let row = limit
        .plans
        .as_ref()
        .and_then(|plans| plans.rows.get(&plans.default_plan));
    *row.unwrap_or(&limit.numbers)
}

/// The unit, and how many of it; a period that is no unit counts in seconds, like the answers to Envoy.
fn unit(limit: &Limit) -> (String, Option<u64>) {
    match limit.period.unit {
        Some(unit) => (unit.name().to_uppercase(), None),
        None if limit.period.length.0.is_multiple_of(Micros::SECOND.0) => {
            ("SECOND".into(), Some(limit.period.length.0 / Micros::SECOND.0))
        }
        None => ("UNKNOWN".into(), None),
    }
}

/// Appends a text of the policy without anything that would end the line.
fn one_line(out: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
}
