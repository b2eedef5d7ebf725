//! `cota override` and `cota reset`: what operators change at run time, through a running service.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Span, SpanRelativeTo};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::service::Service;
use crate::clock::{Clock as _, SystemClock};
use crate::config::fault::escape;
use crate::engine::time::{Micros, Timestamp};
use crate::overrides::{AuditLine, Listed, Origin, ResetSpec, Revocation, Spec, rfc3339, to_json};

#[derive(Debug, Args)]
pub(super) struct Override {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Change a limit for one caller, until a moment
    Set(Set),
    /// Show the overrides in force
    List(#[command(flatten)] Service),
    /// Take an override away
    Revoke(Revoke),
    /// Show who did what, the newest first
    Audit(#[command(flatten)] Service),
}

#[derive(Debug, Args)]
struct Set {
    /// The domain, as in Envoy's filter
    #[arg(long, value_name = "D")]
    domain: String,
    /// An entry of the budget, `tenant=acme`; may be given more than once
    #[arg(long = "match", value_name = "KEY=VALUE", required = true, value_parser = entry)]
    matches: Vec<(String, String)>,
    /// The name of the limit
    #[arg(long, value_name = "NAME")]
    limit: String,
    #[command(flatten)]
    change: Change,
    /// Capacity of a token bucket; without it, the requests per unit
    #[arg(long, value_name = "N", requires = "requests_per_unit")]
    burst: Option<u32>,
    /// When it ends: `3d`, `2h30m`
    #[arg(long, value_name = "SPAN", value_parser = span)]
    expires_in: Micros,
    /// Who you are
    #[arg(long, value_name = "A")]
    author: String,
    /// Why, with the ticket
    #[arg(long, value_name = "R")]
    reason: String,
    #[command(flatten)]
    service: Service,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Change {
    /// Scale units and burst, after the plan
    #[arg(long, value_name = "N")]
    multiply: Option<serde_json::Number>,
    /// New units per period
    #[arg(long, value_name = "N")]
    requests_per_unit: Option<u32>,
    /// No ceiling
    #[arg(long)]
    unlimited: bool,
}

#[derive(Debug, Args)]
struct Revoke {
    /// As `list` and the metadata say
    #[arg(value_name = "ID")]
    id: String,
    /// Who you are
    #[arg(long, value_name = "A")]
    author: String,
    /// Why
    #[arg(long, value_name = "R")]
    reason: Option<String>,
    #[command(flatten)]
    service: Service,
}

#[derive(Debug, Args)]
pub(super) struct Reset {
    /// The domain, as in Envoy's filter
    #[arg(long, value_name = "D")]
    domain: String,
    /// An entry of the budget, `tenant=acme`; may be given more than once
    #[arg(long = "match", value_name = "KEY=VALUE", required = true, value_parser = entry)]
    matches: Vec<(String, String)>,
    /// One limit alone
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Who you are
    #[arg(long, value_name = "A")]
    author: String,
    /// Why
    #[arg(long, value_name = "R")]
    reason: String,
    #[command(flatten)]
    service: Service,
}

impl Override {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Set(set) => set.run()?,
            Command::Revoke(revoke) => revoke.run()?,
            Command::List(service) => {
                let listed: Vec<Listed> = service.call("GET", "/overrides", "")?;
                print_table(
                    ["ID", "TARGET", "CHANGE", "EXPIRES", "BY", "REASON"],
                    listed.iter().map(list_row),
                );
            }
            Command::Audit(service) => {
                let lines: Vec<AuditLine> = service.call("GET", "/overrides/audit", "")?;
                print_table(
                    ["AT", "EVENT", "ID", "TARGET", "CHANGE", "EXPIRES", "BY", "REASON"],
                    lines.iter().map(audit_row),
                );
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Set {
    fn run(self) -> anyhow::Result<()> {
        let expires = SystemClock.now().plus(self.expires_in);
        // Whole seconds read better.
        let expires = Timestamp(expires.0.next_multiple_of(Micros::SECOND.0));
        let spec = Spec {
            domain: self.domain,
            matches: self.matches.into_iter().collect(),
            limit: Some(self.limit),
            multiply: self.change.multiply,
            requests_per_unit: self.change.requests_per_unit,
            burst: self.burst,
            unlimited: self.change.unlimited.then_some(true),
            expires_at: Some(rfc3339(expires)),
            author: Some(self.author),
            reason: Some(self.reason),
        };
        let set: Listed = self.service.call("POST", "/overrides", &to_json(&spec))?;
        println!(
            "{}: {} {} until {}",
            escape(&set.id),
            target(&set.spec),
            change(&set.spec),
            text(set.spec.expires_at.as_deref())
        );
        Ok(())
    }
}

impl Revoke {
    fn run(self) -> anyhow::Result<()> {
        let by = Revocation {
            author: Some(self.author),
            reason: self.reason,
        };
        let path = path_of(&self.id);
        let _: serde_json::Value = self.service.call("DELETE", &path, &to_json(&by))?;
        println!("{} is revoked", escape(&self.id));
        Ok(())
    }
}

impl Reset {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let spec = ResetSpec {
            domain: self.domain,
            matches: self.matches.into_iter().collect(),
            limit: self.limit,
            author: Some(self.author),
            reason: Some(self.reason),
        };
        let _: serde_json::Value = self.service.call("POST", "/budgets/reset", &to_json(&spec))?;
        let entries = entries(&spec.matches);
        match &spec.limit {
            Some(limit) => println!("{entries}: {} starts afresh", escape(limit)),
            None => println!("{entries}: all budgets start afresh"),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list_row(item: &Listed) -> [String; 6] {
    let id = match item.origin {
        Origin::File => format!("{} (file)", escape(&item.id)),
        Origin::RunTime => escape(&item.id),
    };
    let spec = &item.spec;
    [
        id,
        target(spec),
        change(spec),
        text(spec.expires_at.as_deref()),
        text(spec.author.as_deref()),
        text(spec.reason.as_deref()),
    ]
}

fn audit_row(line: &AuditLine) -> [String; 8] {
    let spec = &line.spec;
    let event = match &line.replaced {
        Some(old) => format!("{}, replacing {}", escape(&line.event), escape(old)),
        None => escape(&line.event),
    };
    [
        escape(&line.at),
        event,
        text(line.id.as_deref()),
        target(spec),
        change(spec),
        text(spec.expires_at.as_deref()),
        text(spec.author.as_deref()),
        text(spec.reason.as_deref()),
    ]
}

fn target(spec: &Spec) -> String {
    let limit = spec.limit.as_deref().map_or("all limits".into(), escape);
    format!("{}: {limit} of {}", escape(&spec.domain), entries(&spec.matches))
}

fn entries(matches: &BTreeMap<String, String>) -> String {
    let entries = matches
        .iter()
        .map(|(key, value)| format!("{}={}", escape(key), escape(value)));
    entries.collect::<Vec<_>>().join(",")
}

fn change(spec: &Spec) -> String {
    match (&spec.multiply, spec.requests_per_unit, spec.burst) {
        (Some(factor), ..) => format!("x{factor}"),
        (None, Some(units), None) => format!("{units} per unit"),
        (None, Some(units), Some(burst)) => format!("{units} per unit, burst {burst}"),
        (None, None, _) if spec.unlimited == Some(true) => "unlimited".into(),
        _ => "-".into(),
    }
}

fn text(text: Option<&str>) -> String {
    text.map_or_else(|| "-".into(), escape)
}

/// Rows under a head, each column as wide as its widest cell.
fn print_table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let mut table = vec![head.map(str::to_owned)];
    table.extend(rows);
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or_default()).collect();
    for row in &table {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

/// `3d`, `2h30m`: a day is 24 hours.
fn span(text: &str) -> Result<Micros, String> {
    let wrong = || "expected a span like 3d or 2h30m".to_owned();
    let span: Span = text.parse().map_err(|_| wrong())?;
    let length: SignedDuration = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| wrong())?;
    let micros = u64::try_from(length.as_micros()).map_err(|_| wrong())?;
    if micros == 0 {
        Err(wrong())
    } else {
        Ok(Micros(micros))
    }
}

/// Where an override is, whatever it is called.
fn path_of(id: &str) -> String {
    format!("/overrides/{}", utf8_percent_encode(id, NON_ALPHANUMERIC))
}

/// The overrides of a running service, for `explain`.
pub(super) fn of_service(service: &Service) -> anyhow::Result<crate::engine::overrides::RunTime> {
    let listed: Vec<Listed> = service.call("GET", "/overrides", "")?;
    crate::overrides::run_time(&listed)
        .map_err(anyhow::Error::msg)
        .context("an override of the service cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_may_have_days() {
        for (text, seconds) in [
            ("3d", 259_200),
            ("2h30m", 9_000),
            ("1w", 604_800),
            ("90s", 90),
            ("1 day 2 hours", 93_600),
        ] {
            assert_eq!(span(text), Ok(Micros::from_secs(seconds)), "{text}");
        }
        for text in ["", "3", "0s", "-1h", "2mo", "tomorrow"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_id_is_one_part_of_a_path() {
        assert_eq!(path_of("api#1"), "/overrides/api%231");
        assert_eq!(path_of("../x?y"), "/overrides/%2E%2E%2Fx%3Fy");
    }
}
