//! From a decision to what Envoy is told: statuses, headers, body and metadata. Pure.
//!
//! Envoy does not check what a limiter puts into headers, so nothing of a request's own bytes gets
//! here: header names are constants, values are numbers and names from the policy, escaped.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use smallvec::SmallVec;

use crate::engine::budget::Outcome;
use crate::engine::decision::Decision;
use crate::engine::limit::{ExcessAction, Unit, Value};
use crate::engine::policy::Domain;
use crate::engine::resolve::{Charge, Met, Resolved};
use crate::engine::response::{HeaderFamily, Response};
use crate::engine::time::Micros;

mod body;

/// The longest wait that is spread further: a client told to come back in a day needs no extra hours.
const MAX_SPREAD: Micros = Micros::from_secs(1_500);

/// The largest integer that a structured field can hold (RFC 9651).
const MAX_FIELD_INTEGER: u64 = 999_999_999_999_999;

/// What a name must not hold that stands between quotes and cannot be escaped there.
const UNQUOTABLE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'\\');

/// What Envoy is told.
#[derive(Debug, Default, PartialEq)]
pub struct Answer<'a> {
    /// The request is refused.
    pub refused: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'a>; 4]>,
    /// Headers for the response to the client.
    pub headers: SmallVec<[(&'static str, String); 6]>,
    /// The body of a refusal; its content-type is among the headers.
    pub body: Option<String>,
    /// The header that marks a request over its limit for the upstream.
    pub excess: Option<ExcessAction>,
    /// For Envoy's access log and other filters.
    pub metadata: Option<Metadata<'a>>,
}

/// What one descriptor met.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status<'a> {
    /// It is over its limit.
    pub over_limit: bool,
    /// The limit that describes it best.
    pub limit: Option<CurrentLimit<'a>>,
    /// Units left.
    pub remaining: u32,
    /// Whole seconds until the budget is full, rounded up.
    pub reset_seconds: Option<u64>,
}

/// A limit as Envoy knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct CurrentLimit<'a> {
    /// Units per period.
    pub requests_per_unit: u32,
    /// Its unit; `None` where none of Envoy's fits.
    pub unit: Option<Unit>,
    /// How many units a period is, where it is not one.
    pub multiplier: Option<u32>,
    /// The limit's name, empty without one; visible ASCII without `"` and `\`, the rest percent-encoded.
    pub name: Cow<'a, str>,
}

/// The decision in machine-readable form.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata<'a> {
    /// The limit that speaks for the request: units per period.
    pub limit: Option<u64>,
    /// Its name.
    pub scope: Option<&'a str>,
    /// `OK` or `OVER_LIMIT`.
    pub code: &'static str,
    /// Units left of it.
    pub remaining: Option<u64>,
    /// What the request cost it.
    pub cost: Option<u64>,
    /// When to come back, in milliseconds, without the spread.
    pub retry_after_ms: Option<u64>,
    /// Limits in shadow mode, with what they would have said.
    pub shadow: SmallVec<[(&'a str, &'static str); 2]>,
    /// Part of it was decided without the store.
    pub degraded: bool,
    /// The override that decided.
    pub changed_by: Option<&'a str>,
    /// How the request was marked.
    pub excess: Option<&'static str>,
    /// The free-form metadata of the rules that let it pass.
    pub rules: SmallVec<[&'a BTreeMap<Box<str>, Value>; 1]>,
}

/// Builds the answer. `spread` is drawn anew for each answer, uniform in 0.1..0.2: clients refused
/// together are told to come back apart.
pub fn answer<'a>(
    domain: Option<&'a Domain>,
    resolved: &'a Resolved<'_>,
    decision: &'a Decision,
    spread: f64,
) -> Answer<'a> {
    let mut answer = Answer {
        refused: decision.refused,
        ..Answer::default()
    };
    answer.statuses.extend(
        resolved
            .met
            .iter()
            .map(|met| status(met, domain, resolved, decision)),
    );
    let Some(domain) = domain else { return answer };
    if resolved.charges.is_empty() && resolved.met.iter().all(|met| met.metadata.is_none()) {
        return answer;
    }
    if !decision.refused {
        answer.excess = excess(resolved, decision);
    }
    for family in &domain.response.headers {
        if let HeaderFamily::Named(names) = family {
            write_named(&mut answer, *names, resolved);
        }
    }
    let headline = decision.headline(resolved);
    if let Some(headline) = headline {
        let retry_after = wait_of(decision, headline)
            .filter(|_| decision.refused && domain.response.retry_after)
            .map(|wait| retry_after_seconds(wait, spread));
        write_headers(
            &mut answer,
            &domain.response,
            resolved,
            decision,
            headline,
            retry_after,
        );
        if decision.refused {
            write_refusal(
                &mut answer,
                &domain.response,
                resolved,
                decision,
                headline,
                retry_after,
            );
        }
    }
    answer.metadata = Some(metadata(resolved, decision, headline, answer.excess));
    answer
}

fn status<'a>(
    met: &Met<'_>,
    domain: Option<&Domain>,
    resolved: &'a Resolved<'_>,
    decision: &Decision,
) -> Status<'a> {
    let charges = met.charges.iter().copied();
    let speaks = if domain.is_some_and(|domain| domain.response.shown_in_shadow) {
        // What a rule keeps in shadow stays there.
        decision.tightest(charges.filter(|&i| !resolved.charges[usize::from(i)].limit.shadow))
    } else {
        decision.spokesman(resolved, charges)
    };
    let Some(speaks) = speaks else {
        // Without a ceiling the incumbent says the largest number; without a rule, nothing.
        return Status {
            remaining: if met.unlimited { u32::MAX } else { 0 },
            ..Status::default()
        };
    };
    let charge = &resolved.charges[usize::from(speaks)];
    let view = decision.verdicts[usize::from(speaks)].view;
    Status {
        over_limit: decision.denies(speaks),
        limit: Some(current_limit(charge)),
        remaining: saturate(view.remaining),
        reset_seconds: Some(view.reset.secs_ceil()),
    }
}

fn current_limit<'a>(charge: &'a Charge<'_>) -> CurrentLimit<'a> {
    let period = &charge.limit.period;
    let seconds = period.length.0 / Micros::SECOND.0;
    let (unit, multiplier) = match period.unit {
        Some(unit) => (Some(unit), None),
        None if period.length.0 == seconds * Micros::SECOND.0 => {
            (Some(Unit::Second), Some(saturate(seconds)))
        }
        None => (None, None),
    };
    CurrentLimit {
        requests_per_unit: saturate(charge.numbers.requests_per_unit),
        unit,
        multiplier,
        name: plain(charge.limit.name.as_deref().unwrap_or("")),
    }
}

/// A name that needs no quoting: Envoy writes it between quotes into headers of its own as it is.
fn plain(name: &str) -> Cow<'_, str> {
    utf8_percent_encode(name, UNQUOTABLE).into()
}

fn saturate(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// What the upstream is told: the later of the actions of all lanes that were used.
fn excess(resolved: &Resolved<'_>, decision: &Decision) -> Option<ExcessAction> {
    let marked = resolved
        .charges
        .iter()
        .zip(&decision.verdicts)
        .filter(|(charge, verdict)| !charge.shadow && verdict.charged && verdict.outcome == Outcome::Excess);
    marked
        .filter_map(|(charge, _)| charge.limit.excess)
        .map(|lane| lane.action)
        .max()
}

fn write_headers(
    answer: &mut Answer<'_>,
    response: &Response,
    resolved: &Resolved<'_>,
    decision: &Decision,
    headline: u16,
    retry_after: Option<u64>,
) {
    let charge = &resolved.charges[usize::from(headline)];
    let view = decision.verdicts[usize::from(headline)].view;
    let (limit, remaining) = (charge.numbers.requests_per_unit, view.remaining);
    for family in &response.headers {
        match family {
            HeaderFamily::Draft03 => {
                answer.headers.push(("RateLimit-Limit", limit.to_string()));
                answer
                    .headers
                    .push(("RateLimit-Remaining", remaining.to_string()));
                answer
                    .headers
                    .push(("RateLimit-Reset", view.reset.secs_ceil().to_string()));
                let mut policy = limit.to_string();
                write_window(&mut policy, charge);
                if bursts(charge) {
                    let _ = write!(policy, ";burst={}", charge.numbers.burst);
                }
                answer.headers.push(("RateLimit-Policy", policy));
            }
            HeaderFamily::Draft11 => {
                let (mut policies, mut limits) = (String::new(), String::new());
                for (charge, verdict) in resolved.charges.iter().zip(&decision.verdicts) {
                    if charge.shadow {
                        continue;
                    }
                    if !policies.is_empty() {
                        policies.push_str(", ");
                        limits.push_str(", ");
                    }
                    write_quoted(&mut policies, &charge.limit.label);
                    let quota = charge.numbers.requests_per_unit.min(MAX_FIELD_INTEGER);
                    let _ = write!(policies, ";q={quota}");
                    write_window(&mut policies, charge);
                    write_quoted(&mut limits, &charge.limit.label);
                    let left = verdict.view.remaining.min(MAX_FIELD_INTEGER);
                    // The draft forbids a Retry-After before any `t` of its answer. That of a limit
                    // which has units left says nothing to a refused client, so the `t` give way.
                    let next = verdict.view.next_unit.secs_ceil();
                    let next = retry_after.map_or(next, |seconds| next.min(seconds));
                    let _ = write!(limits, ";r={left};t={next}");
                }
                answer.headers.push(("RateLimit-Policy", policies));
                answer.headers.push(("RateLimit", limits));
            }
            HeaderFamily::XRateLimit => {
                answer.headers.push(("x-ratelimit-limit", limit.to_string()));
                answer
                    .headers
                    .push(("x-ratelimit-remaining", remaining.to_string()));
                answer
                    .headers
                    .push(("x-ratelimit-reset", view.reset.secs_ceil().to_string()));
            }
            // Written from the statuses.
            HeaderFamily::Named(_) => {}
        }
    }
}

/// The last descriptor that is over a limit other than a quota, else the one with the least left; nothing where
/// no descriptor has a limit.
fn write_named(answer: &mut Answer<'_>, names: [&'static str; 3], resolved: &Resolved<'_>) {
    let quota = |met: &Met<'_>| {
        let mut charges = met.charges.iter().map(|&i| &resolved.charges[usize::from(i)]);
        charges.any(|charge| charge.limit.quota)
    };
    let limited = || answer.statuses.iter().filter(|status| status.limit.is_some());
    let over = answer
        .statuses
        .iter()
        .zip(&resolved.met)
        .rev()
        .find(|(status, met)| status.over_limit && !quota(met))
        .map(|(status, _)| status);
    let Some(status) = over.or_else(|| limited().min_by_key(|status| status.remaining)) else {
        return;
    };
    let limit = status.limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let values = [
        u64::from(limit),
        u64::from(status.remaining),
        status.reset_seconds.unwrap_or(0),
    ];
    let headers = names.into_iter().zip(values.map(|value| value.to_string()));
    answer.headers.extend(headers);
}

/// A bucket whose burst is not its limit: two numbers, both part of the contract.
fn bursts(charge: &Charge<'_>) -> bool {
    use crate::engine::limit::Algorithm;
    charge.limit.algorithm == Algorithm::TokenBucket
        && charge.numbers.burst != charge.numbers.requests_per_unit
}

/// `;w=60`. A period below a second cannot be said and is left out.
fn write_window(out: &mut String, charge: &Charge<'_>) {
    let length = charge.limit.period.length;
    if length >= Micros::SECOND {
        let _ = write!(out, ";w={}", length.secs_ceil());
    }
}

/// A structured-field string (RFC 9651): printable ASCII, everything else percent-encoded.
fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in utf8_percent_encode(text, CONTROLS).flat_map(str::chars) {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

fn write_refusal(
    answer: &mut Answer<'_>,
    response: &Response,
    resolved: &Resolved<'_>,
    decision: &Decision,
    headline: u16,
    retry_after: Option<u64>,
) {
    if let Some(seconds) = retry_after {
        answer.headers.push(("Retry-After", seconds.to_string()));
    }
    let refusal = body::Refusal {
        response,
        resolved,
        decision,
        headline,
        retry_after,
    };
    if let Some((content_type, text)) = refusal.render() {
        answer.headers.push(("content-type", content_type.into()));
        answer.body = Some(text);
    }
}

/// How long the refusing budget needs; `None`: no waiting helps.
fn wait_of(decision: &Decision, headline: u16) -> Option<Micros> {
    match decision.verdicts[usize::from(headline)].outcome {
        Outcome::Deny { retry_after } => retry_after,
        _ => Some(Micros::ZERO),
    }
}

/// ceil(wait + spread x min(wait, 1500 s)), at least 1: never earlier than the budget allows.
fn retry_after_seconds(wait: Micros, spread: f64) -> u64 {
    let extra = spread.clamp(0.0, 1.0) * wait.min(MAX_SPREAD).0 as f64;
    Micros(wait.0.saturating_add(extra as u64)).secs_ceil().max(1)
}

fn metadata<'a>(
    resolved: &'a Resolved<'_>,
    decision: &'a Decision,
    headline: Option<u16>,
    excess: Option<ExcessAction>,
) -> Metadata<'a> {
    let speaks = headline.map(|i| {
        (
            &resolved.charges[usize::from(i)],
            &decision.verdicts[usize::from(i)],
        )
    });
    let shadow = resolved
        .charges
        .iter()
        .zip(&decision.verdicts)
        .filter(|(charge, _)| charge.shadow);
    let passing = resolved
        .met
        .iter()
        .filter(|met| !met.charges.iter().any(|&i| decision.denies(i)));
    Metadata {
        limit: speaks.map(|(charge, _)| charge.numbers.requests_per_unit),
        scope: speaks.map(|(charge, _)| &*charge.limit.label),
        code: if decision.refused { "OVER_LIMIT" } else { "OK" },
        remaining: speaks.map(|(_, verdict)| verdict.view.remaining),
        cost: speaks.and_then(|(charge, _)| charge.spend),
        retry_after_ms: headline
            .filter(|_| decision.refused)
            .and_then(|i| wait_of(decision, i))
            .map(|wait| wait.0.div_ceil(1_000)),
        shadow: shadow
            .map(|(charge, verdict)| (&*charge.limit.label, word(verdict.outcome)))
            .collect(),
        degraded: decision.degraded,
        changed_by: speaks
            .and_then(|(charge, _)| charge.changed_by.as_ref())
            .map(|item| &*item.id),
        excess: excess.map(ExcessAction::name),
        rules: if decision.refused {
            SmallVec::new()
        } else {
            passing.filter_map(|met| met.metadata).collect()
        },
    }
}

/// An outcome's word in metadata.
fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Wait(_) => "wait",
        Outcome::Excess => "excess",
        Outcome::Deny { .. } => "deny",
    }
}

#[cfg(test)]
mod tests;
