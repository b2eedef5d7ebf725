//! Whether what an operator asks for makes sense under the policy in force.

use std::collections::BTreeMap;

use crate::engine::overrides::{BadChange, Change, Override, Target, decimal, misfits};
use crate::engine::policy::{Domain, Policy};
use crate::engine::reset::{self, NoTarget};
use crate::engine::time::Timestamp;
use crate::store::ledger::Entry;

use super::{ResetSpec, Revocation, Spec};

/// Longest texts, in bytes: what is kept and told stays small.
const LONGEST_AUTHOR: usize = 200;
const LONGEST_REASON: usize = 2_000;
const LONGEST_VALUE: usize = 1_024;

/// Checks an override, and says when it ends. The error says all that is wrong with it.
pub(super) fn set(spec: &Spec, policy: &Policy, now: Timestamp) -> Result<Timestamp, String> {
    let mut faults = Faults::default();
    faults.author_and_reason(spec.author.as_deref(), spec.reason.as_deref());
    faults.entries(&spec.matches);
    let expires = match spec.expires_at.as_deref().map(moment) {
        None => Err("`expires_at` is missing: one set at run time has to end".into()),
        Some(Ok(at)) if at <= now => Err("`expires_at` is past".into()),
        Some(read) => read,
    };
    if let Err(fault) = &expires {
        faults.0.push(fault.clone());
    }
    if let Err(fault) = change(spec) {
        faults.0.push(fault);
    }
    let domain = faults.domain(&spec.domain, policy);
    match (&spec.limit, domain) {
        (None, _) => faults.0.push("`limit` is missing".into()),
        (Some(name), Some(domain)) => faults.target(spec, name, domain),
        _ => {}
    }
    faults.none()?;
    expires
}

/// Checks who revokes.
pub(super) fn revocation(by: &Revocation) -> Result<(), String> {
    let mut faults = Faults::default();
    faults.length("author", by.author.as_deref(), LONGEST_AUTHOR);
    faults.length("reason", by.reason.as_deref(), LONGEST_REASON);
    faults.none()
}

/// Checks a reset, and finds what it means.
pub(super) fn reset(spec: &ResetSpec, policy: &Policy) -> Result<Vec<reset::Target>, String> {
    let mut faults = Faults::default();
    faults.author_and_reason(spec.author.as_deref(), spec.reason.as_deref());
    faults.entries(&spec.matches);
    let domain = faults.domain(&spec.domain, policy);
    faults.none()?;
    let Some(domain) = domain else {
        return Ok(Vec::new());
    };
    let matches: Vec<(&str, &str)> = spec.matches.iter().map(|(k, v)| (&**k, &**v)).collect();
    let found = reset::targets(domain, &matches, spec.limit.as_deref());
    found.map_err(|error| match (error, &spec.limit) {
        (NoTarget::Nothing, Some(name)) => {
            format!("no budget of a limit called {name:?} has these entries; {}", names(domain))
        }
        (NoTarget::Nothing, None) => "no rule of the domain has these entries with these values".into(),
        (NoTarget::Caller(limit, entry), None) => format!(
            "`match` does not name the caller of the limit {limit:?}: name {entry:?} too, or the one limit that is meant"
        ),
        (NoTarget::Caller(limit, entry), Some(_)) => {
            format!("`match` does not name the caller of the limit {limit:?}: name {entry:?} too")
        }
    })
}

/// Reads an override that was set, maybe elsewhere under another policy.
pub(super) fn stored(entry: &Entry) -> Result<(Spec, Override), String> {
    let spec: Spec = serde_json::from_str(&entry.body).map_err(|error| error.to_string())?;
    let item = item(&entry.id, &spec, entry.expires)?;
    Ok((spec, item))
}

/// The override that is written in a spec.
pub(super) fn item(id: &str, spec: &Spec, expires: Timestamp) -> Result<Override, String> {
    Ok(Override {
        id: id.into(),
        matches: spec
            .matches
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect(),
        limit: spec.limit.as_deref().ok_or("without a limit")?.into(),
        change: change(spec)?,
        expires_at: Some(expires),
        author: spec.author.as_deref().map(Into::into),
        reason: spec.reason.as_deref().map(Into::into),
    })
}

fn change(spec: &Spec) -> Result<Change, String> {
    let thousandths = match &spec.multiply {
        Some(factor) => Some(
            decimal(&factor.to_string(), 3)
                .ok_or("`multiply` is no factor: write 10 or 1.5, with three decimals at most")?
                .into(),
        ),
        None => None,
    };
    let read = Change::read(
        thousandths,
        spec.requests_per_unit.map(Into::into),
        spec.burst.map(Into::into),
        spec.unlimited == Some(true),
    );
    read.map_err(|fault: BadChange| {
        let (message, help) = fault.text();
        format!("{message}: {help}")
    })
}

/// A moment as people and JSON write it.
///
/// # Errors
/// When it is none; the text is for whoever set `expires_at`.
pub fn moment(text: &str) -> Result<Timestamp, String> {
    let wrong = || "`expires_at` is no moment in time: write it as 2026-12-03T00:00:00Z".to_owned();
    let at: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    u64::try_from(at.as_microsecond())
        .map(Timestamp)
        .map_err(|_| wrong())
}

fn names(domain: &Domain) -> String {
    let mut names = Vec::new();
    domain.for_each_limit(&mut |_, limit| names.extend(limit.name.as_deref()));
    names.sort_unstable();
    names.dedup();
    match names.is_empty() {
        true => "no limit of the domain has a name".into(),
        false => format!("its limits are {}", names.join(", ")),
    }
}

#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn none(&self) -> Result<(), String> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(self.0.join("; ")),
        }
    }

    fn author_and_reason(&mut self, author: Option<&str>, reason: Option<&str>) {
        for (name, text, longest) in [
            ("author", author, LONGEST_AUTHOR),
            ("reason", reason, LONGEST_REASON),
        ] {
            if text.is_none_or(|text| text.trim().is_empty()) {
                self.0.push(format!("`{name}` is missing"));
            }
            self.length(name, text, longest);
        }
    }

    fn length(&mut self, name: &str, text: Option<&str>, longest: usize) {
        if text.is_some_and(|text| text.len() > longest) {
            self.0.push(format!("`{name}` is longer than {longest} bytes"));
        }
    }

    fn entries(&mut self, matches: &BTreeMap<String, String>) {
        if matches.is_empty() {
            self.0.push("`match` is empty".into());
        }
        for value in matches.values() {
            self.length("match", Some(value), LONGEST_VALUE);
        }
    }

    fn domain<'p>(&mut self, name: &str, policy: &'p Policy) -> Option<&'p Domain> {
        let found = policy.domains.get(name).map(|domain| &**domain);
        if found.is_none() {
            let mut known: Vec<&str> = policy.domains.keys().map(|name| &**name).collect();
            known.sort_unstable();
            let known = known.join(", ");
            let name: String = name.chars().take(64).collect();
            self.0
                .push(format!("no domain is called {name:?}; in force are {known}"));
        }
        found
    }

    fn target(&mut self, spec: &Spec, name: &str, domain: &Domain) {
        let mut targets = Vec::new();
        domain.for_each_limit(&mut |path, limit| {
            if limit.name.as_deref() == Some(name) {
                targets.push(Target::new(path, limit));
            }
        });
        let shown: String = name.chars().take(64).collect();
        if targets.is_empty() {
            self.0
                .push(format!("no limit is called {shown:?}; {}", names(domain)));
            return;
        }
        let entries: Vec<(&str, &str)> = spec.matches.iter().map(|(k, v)| (&**k, &**v)).collect();
        let misfits = misfits(&entries, spec.burst.is_some(), &targets);
        for misfit in &misfits {
            let (message, help) = misfit.text(&format!("{shown:?}"));
            self.0.push(format!("{message}: {help}"));
        }
        if misfits.is_empty() {
            self.literal(&entries, &reset::led_to(domain, &entries, Some(name)));
        }
    }

    /// Entries are compared as they count: an address as its network, a shared pattern for what fits it.
    fn literal(&mut self, entries: &[(&str, &str)], budgets: &[reset::Target]) {
        for (key, value) in entries {
            let mut counted = budgets.iter().filter_map(|budget| {
                let keys = budget.limit.identity.keys();
                let at = keys.iter().position(|own| **own == **key)?;
                budget.values.get(at)?.as_deref()
            });
            if let Some(first) = counted.next()
                && first != *value
                && counted.all(|counted| counted != *value)
            {
                let first: String = first.chars().take(64).collect();
                self.0.push(format!(
                    "matches nothing: this {key:?} counts as {first:?}, write that"
                ));
            }
        }
    }
}
