//! The body of a refusal: which scope was hit, what its limit is, when to come back.

use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::decision::Decision;
use crate::engine::limit::Algorithm;
use crate::engine::resolve::Resolved;
use crate::engine::response::{Body, Placeholder, Response};

/// The problem type of draft-ietf-httpapi-ratelimit-headers-11, requested but not yet registered.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// A refusal and the charge that speaks for it.
pub(super) struct Refusal<'a, 'r> {
    pub(super) response: &'a Response,
    pub(super) resolved: &'a Resolved<'r>,
    pub(super) decision: &'a Decision,
    pub(super) headline: u16,
    pub(super) retry_after: Option<u64>,
}

#[derive(Serialize)]
struct Plain<'a> {
    error: &'static str,
    scope: &'a str,
    limit: u64,
    window_seconds: u64,
    retry_after_seconds: Option<u64>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    documentation_url: Option<&'a str>,
}

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'a str>,
    #[serde(flatten)]
    plain: Plain<'a>,
}

impl Refusal<'_, '_> {
    /// The content type and the text; `None` where the policy wants no body.
    pub(super) fn render(&self) -> Option<(&'static str, String)> {
        if self.response.body == Body::None {
            return None;
        }
        let charge = &self.resolved.charges[usize::from(self.headline)];
        let message = self.message();
        let plain = Plain {
            error: "rate_limit_exceeded",
            scope: &charge.limit.label,
            limit: charge.numbers.requests_per_unit,
            window_seconds: charge.limit.period.length.secs_ceil(),
            retry_after_seconds: self.retry_after,
            message: &message,
            documentation_url: self.response.documentation_url.as_deref(),
        };
        let (content_type, text) = match self.response.body {
            Body::Problem => {
                let problem = Problem {
                    r#type: QUOTA_EXCEEDED,
                    title: "Quota exceeded",
                    status: 429,
                    detail: &message,
                    violated_policies: self.violated(),
                    plain,
                };
                ("application/problem+json", serde_json::to_string(&problem))
            }
            _ => ("application/json", serde_json::to_string(&plain)),
        };
        Some((content_type, text.ok()?))
    }

    /// The names of all enforced limits that refused.
    fn violated(&self) -> Vec<&str> {
        let charges = self.resolved.charges.iter().enumerate();
        let refusing = charges.filter(|(i, charge)| !charge.shadow && self.decision.denies(*i as u16));
        refusing.map(|(_, charge)| &*charge.limit.label).collect()
    }

    fn message(&self) -> String {
        let charge = &self.resolved.charges[usize::from(self.headline)];
        let cost = charge.spend.unwrap_or(0);
        let limit = charge.numbers.requests_per_unit;
        let window = &charge.limit.period.text;
        if self.retry_after.is_none() {
            return match charge.limit.algorithm {
                _ if limit == 0 => "Nothing is admitted here.".into(),
                Algorithm::TokenBucket => format!(
                    "A cost of {cost} never fits a burst of {}. Waiting does not help.",
                    charge.numbers.burst
                ),
                _ => format!(
                    "A cost of {cost} never fits a budget of {limit} per {window}. Waiting does not help."
                ),
            };
        }
        let view = self.decision.verdicts[usize::from(self.headline)].view;
        self.response.message.render(|placeholder, out| {
            let _ = match placeholder {
                Placeholder::Limit => write!(out, "{limit}"),
                Placeholder::Remaining => write!(out, "{}", view.remaining),
                Placeholder::Window => write!(out, "{window}"),
                Placeholder::WindowSeconds => write!(out, "{}", charge.limit.period.length.secs_ceil()),
                Placeholder::RetryAfter => write!(out, "{}", self.retry_after.unwrap_or(0)),
                Placeholder::Scope => write!(out, "{}", charge.limit.label),
                Placeholder::Cost => write!(out, "{cost}"),
            };
        })
    }
}
