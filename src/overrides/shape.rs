//! Overrides, resets and the record of both as JSON: over HTTP, in the store, and for the command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Number;
use sha2::{Digest as _, Sha256};

use crate::engine::overrides::{Change, Override};
use crate::engine::time::{Micros, Timestamp};
use crate::store::ledger::{Line, Note};

use super::to_json;

/// An override as it is written: one of the file has no `domain` of its own there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// `domain`
    pub domain: String,
    /// `match`
    #[serde(rename = "match")]
    pub matches: BTreeMap<String, String>,
    /// `limit`; always there, but in the record of a reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// `multiply`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiply: Option<Number>,
    /// `requests_per_unit`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_unit: Option<u32>,
    /// `burst`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// `unlimited`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<bool>,
    /// `expires_at`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// `author`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// `reason`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whose budgets are to start afresh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetSpec {
    /// `domain`
    pub domain: String,
    /// `match`
    #[serde(rename = "match")]
    pub matches: BTreeMap<String, String>,
    /// `limit`; without it, all limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// `author`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// `reason`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Who takes an override away, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// `author`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// `reason`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An override in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// As in metadata.
    pub id: String,
    /// Where it was set.
    pub origin: Origin,
    /// When, if at run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_at: Option<String>,
    /// What it is.
    #[serde(flatten)]
    pub spec: Spec,
}

/// Where an override was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// In a policy file.
    File,
    /// At run time.
    RunTime,
}

/// A line of the record. Author and reason are of what happened, not of the override.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditLine {
    /// When.
    pub at: String,
    /// `set`, `revoked`, `expired`, `restored`, `reset`, `reset_failed`.
    pub event: String,
    /// Of which override.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The override that it took the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
    /// What it was about.
    #[serde(flatten)]
    pub spec: Spec,
}

// === impl Spec ===

impl Spec {
    /// What it changes, in a few bytes: of two with the same target the later takes the place of the earlier.
    pub(super) fn target(&self) -> String {
        let text = to_json(&(&self.domain, &self.matches, &self.limit));
        Sha256::digest(text)[..16]
            .iter()
            .fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
    }

    fn of_file(domain: &str, item: &Override) -> Self {
        let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        let mut spec = Self {
            domain: domain.into(),
            matches: item
                .matches
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
            limit: Some(item.limit.to_string()),
            expires_at: item.expires_at.map(rfc3339),
            author: text(&item.author),
            reason: text(&item.reason),
            ..Self::default()
        };
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match item.change {
            Change::Multiply { thousandths } => {
                spec.multiply = Number::from_f64(thousandths as f64 / 1_000.0);
            }
            Change::Set {
                requests_per_unit,
                burst,
            } => {
                spec.requests_per_unit = Some(number(requests_per_unit));
                spec.burst = burst.map(number);
            }
            Change::Unlimited => spec.unlimited = Some(true),
        }
        spec
    }
}

// === impl Listed ===

impl Listed {
    pub(super) fn of_file(domain: &str, item: &Override) -> Self {
        Self {
            id: item.id.to_string(),
            origin: Origin::File,
            set_at: None,
            spec: Spec::of_file(domain, item),
        }
    }

    pub(super) fn of_run_time(id: &str, spec: &Spec, made: Option<Line>) -> Self {
        Self {
            id: id.into(),
            origin: Origin::RunTime,
            set_at: made.map(moment),
            spec: spec.clone(),
        }
    }
}

// === impl AuditLine ===

impl AuditLine {
    /// The line, with what can be read of it, and why that is not all.
    pub(super) fn read(note: Note) -> (Self, Option<serde_json::Error>) {
        let some = |text: String| (!text.is_empty()).then_some(text);
        let (spec, error) = match serde_json::from_str(&note.body) {
            Ok(spec) => (spec, None),
            Err(error) => (Spec::default(), Some(error)),
        };
        let line = Self {
            at: moment(note.line),
            event: note.event,
            id: some(note.id),
            replaced: some(note.replaced),
            spec,
        };
        (line, error)
    }
}

fn moment(line: Line) -> String {
    rfc3339(Timestamp(line.0.saturating_mul(Micros::from_millis(1).0)))
}

/// A moment as people and JSON write it.
pub fn rfc3339(at: Timestamp) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros)
        .unwrap_or(jiff::Timestamp::MAX)
        .to_string()
}
