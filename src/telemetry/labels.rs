//! The labels of each family, and the closed sets that their values come from.

use std::fmt::Write as _;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

use crate::engine::budget::Outcome;
use crate::engine::decision::Verdict;
use crate::engine::limit::FailureMode;
use crate::engine::resolve::Charge;

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Code {
    /// It may pass.
    Ok,
    /// It is over a limit.
    OverLimit,
    /// There was no answer.
    Error,
}

/// What one limit said of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LimitVerdict {
    /// It fits.
    Allow,
    /// It does not fit. A limit in quota mode says so too when it refuses alone, and so not at all.
    Deny,
    /// It does not fit, and passes because the limit is only observed.
    ShadowDeny,
    /// It fits after a wait.
    Wait,
    /// It passes marked.
    Excess,
}

/// What became of a changed policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reload {
    /// All of it is in force.
    Ok,
    /// The faulty domains kept their last good version, the others are in force.
    Partial,
    /// None of it is in force.
    Rejected,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DegradedLabels {
    pub(super) domain: Arc<str>,
    pub(super) limit: Arc<str>,
    pub(super) failure_mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) domain: Arc<str>,
    pub(super) code: Code,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DecisionLabels {
    pub(super) domain: Arc<str>,
    pub(super) limit: Arc<str>,
    pub(super) verdict: LimitVerdict,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) domain: Arc<str>,
    pub(super) limit: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReloadLabels {
    pub(super) result: Reload,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ConfigLabels {
    pub(super) domain: Arc<str>,
    pub(super) version: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UnmatchedLabels {
    pub(super) domain: Arc<str>,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct MalformedLabels {
    pub(super) reason: &'static str,
}

// === impl Code ===

impl Code {
    pub(super) const ALL: [Self; 3] = [Self::Ok, Self::OverLimit, Self::Error];
}

impl EncodeLabelValue for Code {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        encoder.write_str(match self {
            Self::Ok => "ok",
            Self::OverLimit => "over_limit",
            Self::Error => "error",
        })
    }
}

// === impl LimitVerdict ===

impl LimitVerdict {
    pub(super) const ALL: [Self; 5] = [
        Self::Allow,
        Self::Deny,
        Self::ShadowDeny,
        Self::Wait,
        Self::Excess,
    ];

    /// What a charge counts as; `None` when it does not count: it asked for no decision, or its limit
    /// would have allowed a request that another one refused.
    pub(super) fn of(charge: &Charge<'_>, verdict: &Verdict, refused: bool) -> Option<Self> {
        charge.spend?;
        match verdict.outcome {
            Outcome::Deny { .. } if charge.shadow => Some(Self::ShadowDeny),
            Outcome::Deny { .. } => Some(Self::Deny),
            _ if refused => None,
            Outcome::Allow => Some(Self::Allow),
            Outcome::Wait(_) => Some(Self::Wait),
            Outcome::Excess => Some(Self::Excess),
        }
    }
}

impl EncodeLabelValue for LimitVerdict {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        encoder.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::Wait => "wait",
            Self::Excess => "excess",
        })
    }
}

// === impl LimitLabels ===

impl LimitLabels {
    pub(super) fn names(&self) -> (&str, &str) {
        (&self.domain, &self.limit)
    }

    pub(super) fn degraded(&self, mode: FailureMode) -> DegradedLabels {
        DegradedLabels {
            domain: Arc::clone(&self.domain),
            limit: Arc::clone(&self.limit),
            failure_mode: mode.name(),
        }
    }
}

// === impl Reload ===

impl Reload {
    pub(super) const ALL: [Self; 3] = [Self::Ok, Self::Partial, Self::Rejected];
}

impl EncodeLabelValue for Reload {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        encoder.write_str(match self {
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::Rejected => "rejected",
        })
    }
}
