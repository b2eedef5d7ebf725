//! `cota explain`: which limits a request meets, and why; or what is missing when it meets none.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use super::overrides::of_service;
use super::service::Service;
use crate::clock::{Clock as _, SystemClock};
use crate::config::fault::Severity;
use crate::config::{load, watch};
use crate::engine::descriptor::{Descriptor, Entry, Request};
use crate::engine::lease;
use crate::engine::limit::{Algorithm, Numbers, Share};
use crate::engine::overrides::{Change, RunTime};
use crate::engine::policy::{Domain, Level};
use crate::engine::resolve::{Charge, Found, Malformed, Met, Resolved, Unmatched, reached, resolve_with};
use crate::engine::time::Timestamp;

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Policy file or directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The domain, as in Envoy's filter
    #[arg(long, value_name = "D")]
    domain: String,
    /// A descriptor: entries in order, `tenant=acme,route=GET /v1/search`; `\,` is a comma
    #[arg(value_name = "DESCRIPTOR", required = true)]
    descriptors: Vec<String>,
    /// HTTP port of a service whose run-time overrides count too
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// File with the token that the service was started with
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
}

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let sources = watch::sources(std::slice::from_ref(&self.path))?;
        let loaded = load(&sources, SystemClock.now());
        for fault in loaded
            .faults
            .iter()
            .filter(|fault| fault.severity == Severity::Error)
        {
            eprintln!("{fault}");
        }
        let Some(found) = loaded.domains.iter().find(|item| *item.name == *self.domain) else {
            let known: Vec<&str> = loaded.domains.iter().map(|item| &*item.name).collect();
            bail!(
                "no domain `{}` in {}; there is: {}",
                self.domain,
                self.path.display(),
                known.join(", ")
            );
        };
        let Some(domain) = &found.domain else {
            bail!("domain `{}` has errors", self.domain);
        };
        let entries = self
            .descriptors
            .iter()
            .map(|text| parse(text))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let descriptors = entries.iter().map(|entries| Descriptor {
            entries: entries.iter().map(|(key, value)| Entry { key, value }).collect(),
            ..Descriptor::default()
        });
        let request = Request {
            domain: &self.domain,
            descriptors: descriptors.collect(),
            hits_addend: 0,
        };
        let live = match self.url {
            Some(url) => of_service(&Service::at(url, self.token_file))?,
            None => RunTime::default(),
        };
        print!("{}", explain(domain, &request, &live, SystemClock.now()));
        Ok(ExitCode::SUCCESS)
    }
}

/// The entries of a descriptor as written on the command line.
fn parse(text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => parts
                .last_mut()
                .context("never empty")?
                .push(chars.next().unwrap_or('\\')),
            ',' => parts.push(String::new()),
            c => parts.last_mut().context("never empty")?.push(c),
        }
    }
    let entry = |part: String| {
        let (key, value) = part
            .split_once('=')
            .with_context(|| format!("`{part}` is not KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    parts.into_iter().map(entry).collect()
}

/// The whole explanation.
fn explain<'d>(domain: &'d Domain, request: &Request<'d>, live: &RunTime, now: Timestamp) -> String {
    let resolved = resolve_with(Some(domain), request, false, now, Some(live));
    let mut out = Vec::new();
    if let Some(costs) = &domain.costs {
        let value = request.attribute(&costs.entry);
        let weight = value.and_then(|value| costs.values.get(value)).copied();
        out.push(match (value, weight) {
            (Some(value), Some(weight)) => format!("weight {weight}, by {}={value:?}", costs.entry),
            (Some(value), None) => format!(
                "weight {}, the default: no cost for {}={value:?}",
                costs.default, costs.entry
            ),
            (None, _) => format!("weight {}, the default: no entry {}", costs.default, costs.entry),
        });
    }
    for (at, (descriptor, met)) in request.descriptors.iter().zip(&resolved.met).enumerate() {
        let entries: Vec<String> = descriptor
            .entries
            .iter()
            .map(|e| format!("{}={:?}", e.key, e.value))
            .collect();
        out.push(format!("{}: {}", at + 1, entries.join(", ")));
        for &charge in &met.charges {
            let charge = &resolved.charges[usize::from(charge)];
            out.extend(
                explain_charge(&resolved, charge, at)
                    .into_iter()
                    .map(|line| format!("   {line}")),
            );
        }
        if met.unlimited {
            out.push("   a limit without a ceiling: always allowed".into());
        }
        if met.charges.is_empty() && !met.unlimited {
            out.push(format!("   no limit: {}", missing(domain, descriptor, met)));
        }
    }
    out.push(String::new());
    out.join("\n")
}

fn explain_charge<'r>(resolved: &Resolved<'r>, charge: &Charge<'r>, at: usize) -> Vec<String> {
    let limit = &charge.limit;
    let mut lines = vec![format!("limit {}: {}", limit.label, terms(charge))];
    if let (Some(plan), Some(plans)) = (charge.plan, &limit.plans) {
        lines.push(format!("  plan {plan}, by the entry {}", plans.entry));
    }
    if let Some(item) = &charge.changed_by {
        let change = match item.change {
            Change::Multiply { thousandths } => format!("multiplied by {}", thousandths as f64 / 1_000.0),
            Change::Set { .. } => "new numbers".into(),
            Change::Unlimited => "unlimited".into(),
        };
        let by = item.author.as_deref().unwrap_or("nobody named");
        let why = item.reason.as_deref().unwrap_or("no reason given");
        lines.push(format!("  override {}: {change}, by {by}: {why}", item.id));
    }
    if charge.shadow {
        lines.push("  in shadow mode: decided and recorded, never enforced".into());
    }
    match charge.spend {
        Some(cost) if usize::from(charge.met) == at => lines.push(format!("  cost {cost}")),
        Some(cost) => lines.push(format!(
            "  cost {cost}, the same budget as descriptor {}",
            charge.met + 1
        )),
        None => lines.push("  free: a weight of 0 neither charges nor refuses".into()),
    }
    lines.push(format!("  budget {}", resolved.key(charge).text()));
    lines
}

fn terms(charge: &Charge<'_>) -> String {
    let Numbers {
        requests_per_unit,
        burst,
        max_wait,
        max_overshoot,
        ..
    } = charge.numbers;
    let limit = &charge.limit;
    let mut text = format!(
        "{requests_per_unit} per {}, {}",
        limit.period.text,
        limit.algorithm.name()
    );
    if limit.algorithm == Algorithm::TokenBucket {
        text.push_str(&format!(", burst {burst}"));
    }
    if max_wait.0 > 0 {
        text.push_str(&format!(", waits up to {} ms", max_wait.0 / 1_000));
    }
    if max_overshoot != Share::ZERO {
        let bound = lease::bound(&charge.terms(), max_overshoot);
        text.push_str(&format!(
            ", replicas may hold {max_overshoot} ({bound} units) taken ahead"
        ));
    }
    text
}

/// Why a descriptor meets nothing: the nearest rule, and what would lead to it.
fn missing<'d>(domain: &'d Domain, descriptor: &Descriptor<'d>, met: &Met<'_>) -> String {
    let reason = match met.found {
        Found::NoLimit => return "the rule sets none, on purpose".into(),
        Found::Limits => return "another limit of the request replaces it".into(),
        Found::Malformed(Malformed::EmptyKey) => return "malformed: an entry has an empty key".into(),
        Found::Malformed(kind) => return format!("malformed: {}", kind.name()),
        Found::Unmatched(reason) => reason,
    };
    let (depth, level) = reached(domain, descriptor);
    let entry = descriptor.entries.get(depth);
    let place = match depth {
        0 => "at the top level".to_owned(),
        _ => {
            let path: Vec<&str> = descriptor.entries[..depth]
                .iter()
                .map(|entry| entry.key)
                .collect();
            format!("under {}", path.join(" > "))
        }
    };
    let hint = match (reason, entry) {
        (Unmatched::UnknownKey | Unmatched::Order, Some(entry)) => {
            let known = keys(level);
            match nearest(entry.key, &known) {
                Some(near) => format!(
                    "no rule {place} has the key `{}`; did you mean `{near}`?",
                    entry.key
                ),
                None => format!(
                    "no rule {place} has the key `{}`; rules there have: {}",
                    entry.key,
                    known.join(", ")
                ),
            }
        }
        (Unmatched::UnknownValue, Some(entry)) => {
            let rules = &level.keys[entry.key];
            let mut known: Vec<&str> = rules.exact.keys().map(|value| &**value).collect();
            known.sort_unstable();
            let near = nearest(entry.value, &known)
                .map(|near| format!("; the nearest is {near:?}"))
                .unwrap_or_default();
            format!(
                "no rule {place} has {}={:?}, and none stands for every other value{near}",
                entry.key, entry.value
            )
        }
        (Unmatched::TooShort, _) => format!("the rules {place} go on with: {}", keys(level).join(", ")),
        (Unmatched::TooLong, Some(entry)) => {
            format!("the rule ends {place}; the entry `{}` is one too many", entry.key)
        }
        _ => "no rule".into(),
    };
    match reason {
        Unmatched::Order => format!("{}: {hint} (the keys are known, in another order)", reason.name()),
        _ => format!("{}: {hint}", reason.name()),
    }
}

fn keys(level: &Level) -> Vec<&str> {
    let mut keys: Vec<&str> = level.keys.keys().map(|key| &**key).collect();
    keys.sort_unstable();
    keys
}

/// The likeliest of the known words, when one is near.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let scored = known
        .iter()
        .map(|known| (strsim::osa_distance(word, known), *known));
    let (distance, near) = scored.min()?;
    (distance <= word.chars().count().div_ceil(3).max(2)).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_parsed_with_escapes() {
        let pairs = |text: &str| parse(text).unwrap();
        assert_eq!(
            pairs("tenant=acme,route=GET /v1/search"),
            [
                ("tenant".into(), "acme".into()),
                ("route".into(), "GET /v1/search".into())
            ]
        );
        assert_eq!(
            pairs(r"path=/a\,b=c,x=\\"),
            [("path".into(), "/a,b=c".into()), ("x".into(), "\\".into())]
        );
        assert!(parse("tenant").is_err());
    }
}
