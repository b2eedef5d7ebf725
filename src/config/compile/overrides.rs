//! The overrides of a policy file: what they change, and that they change something.

use std::sync::Arc;

use super::limit::pick;
use super::{Compiler, Step, each_limit};
use crate::config::fault::quoted;
use crate::config::raw::{self, Algorithm, RawLimit, RawOverride};
use crate::engine::overrides::{Change, Override};
use crate::engine::policy::Pattern;
use crate::engine::time::Timestamp;

impl<'r> Compiler<'r, '_, '_> {
    /// Reads all overrides, before the limits that take them up.
    pub(super) fn read_overrides(&mut self) {
        for (at, raw) in self.policy.overrides.iter().enumerate() {
            if raw.broken {
                continue;
            }
            let change = self.change(raw);
            let Some(limit) = &raw.limit else {
                self.error(raw.span, "this override names no limit")
                    .help("write the `name` of the limit that it changes, as in `limit: tenant`");
                continue;
            };
            self.check_target(raw, &limit.value);
            let Some(change) = change else { continue };
            let text = |at: &Option<raw::At<String>>| at.as_ref().map(|at| at.value.as_str().into());
            let expires_at = raw.expires_at.as_ref();
            self.overrides.push(Arc::new(Override {
                id: format!("{}#{}", self.name, at + 1).into(),
                matches: raw
                    .matches
                    .iter()
                    .map(|(key, value)| (key.value.as_str().into(), value.value.as_str().into()))
                    .collect(),
                limit: limit.value.as_str().into(),
                change,
                expires_at: expires_at
                    .map(|at| Timestamp(u64::try_from(at.value.as_microsecond()).unwrap_or(0))),
                author: text(&raw.author),
                reason: text(&raw.reason),
            }));
        }
    }

    /// The overrides of a limit: those that name it and whose entries lead to it.
    pub(super) fn overrides_of(&self, name: Option<&str>, path: &[Step<'_>]) -> Vec<Arc<Override>> {
        let fitting = |item: &&Arc<Override>| {
            name == Some(&*item.limit)
                && item
                    .matches
                    .iter()
                    .all(|(key, _)| path.iter().any(|step| step.key == &**key))
        };
        self.overrides.iter().filter(fitting).cloned().collect()
    }

    fn change(&mut self, raw: &RawOverride) -> Option<Change> {
        let unlimited = raw.unlimited.as_ref().is_some_and(|at| at.value);
        let written = [raw.multiply.is_some(), raw.requests_per_unit.is_some(), unlimited];
        if written.iter().filter(|written| **written).count() > 1 {
            self.error(raw.span, "this override changes the limit in more than one way")
                .help("keep one of `multiply`, `requests_per_unit` (with `burst`) and `unlimited: true`");
            return None;
        }
        if let Some(burst) = raw.burst.as_ref().filter(|_| raw.requests_per_unit.is_none()) {
            self.error(burst.span, "`burst` without `requests_per_unit`")
                .help("write both numbers, or `multiply` to scale both");
            return None;
        }
        if let Some(factor) = &raw.multiply {
            return Some(Change::Multiply {
                thousandths: factor.value.0.into(),
            });
        }
        if let Some(requests) = &raw.requests_per_unit {
            if let Some(burst) = raw.burst.as_ref().filter(|burst| burst.value == 0) {
                self.error(burst.span, "`burst: 0` never lets a request through")
                    .help("write 1 or more; to refuse all, write `requests_per_unit: 0`");
            }
            let burst = raw.burst.as_ref().map(|burst| burst.value.into());
            return Some(Change::Set {
                requests_per_unit: requests.value.into(),
                burst,
            });
        }
        if !unlimited {
            self.error(raw.span, "this override changes nothing")
                .help("write `multiply: 2`, `requests_per_unit: 600` or `unlimited: true`");
            return None;
        }
        Some(Change::Unlimited)
    }

    /// Notes an override that no budget can ever match.
    fn check_target(&mut self, raw: &RawOverride, name: &str) {
        let mut targets: Vec<(Vec<Step<'r>>, &'r RawLimit)> = Vec::new();
        each_limit(self.policy, &mut |path, limit| {
            if limit.name.as_ref().is_some_and(|own| own.value == name) {
                targets.push((path.to_vec(), limit));
            }
        });
        let span = raw.limit.as_ref().map_or(raw.span, |limit| limit.span);
        if targets.is_empty() {
            return self.no_limit_called(span, name);
        }
        if !targets
            .iter()
            .any(|(path, _)| raw.matches.iter().all(|(key, _)| has_key(path, &key.value)))
        {
            let known: Vec<&str> = targets
                .iter()
                .flat_map(|(path, _)| path.iter().map(|step| step.key))
                .collect();
            let stranger = raw
                .matches
                .iter()
                .find(|(key, _)| !known.contains(&key.value.as_str()));
            let at = stranger
                .or(raw.matches.first())
                .map_or(raw.span, |(key, _)| key.span);
            let mut paths: Vec<String> = targets.iter().map(|(path, _)| shown(path)).collect();
            paths.dedup();
            self.error(
                at,
                format!(
                    "matches nothing: the budgets of {} have no such entries",
                    quoted(name)
                ),
            )
            .help(format!("its entries are {}", paths.join(" or ")));
            return;
        }
        let met = targets.iter().any(|(path, _)| {
            raw.matches.iter().all(|(key, value)| {
                path.iter()
                    .any(|step| step.key == key.value && meets(step, &value.value))
            })
        });
        if !met && let Some((_, value)) = raw.matches.first() {
            self.error(
                value.span,
                format!(
                    "matches nothing: no rule with the limit {} has this value",
                    quoted(name)
                ),
            )
            .help("write a value that one of its descriptors meets");
        }
        let default = &self.policy.defaults.algorithm;
        let bucket = |limit: &RawLimit| {
            pick(&limit.algorithm, default).is_some_and(|at| at.value == Algorithm::TokenBucket)
        };
        if let Some(burst) = raw
            .burst
            .as_ref()
            .filter(|_| !targets.iter().any(|(_, limit)| bucket(limit)))
        {
            self.error(
                burst.span,
                format!(
                    "`burst` has no meaning: the limit {} is no `token_bucket`",
                    quoted(name)
                ),
            )
            .help("take `burst` out");
        }
        let unlimited =
            |limit: &RawLimit| limit.unlimited.as_ref().is_some_and(|at| at.value) && limit.plans.is_empty();
        if targets.iter().all(|(_, limit)| unlimited(limit)) {
            self.error(
                span,
                format!(
                    "the limit {} is unlimited; nothing can be changed about it",
                    quoted(name)
                ),
            )
            .help("give the limit a `unit` and a number first");
        }
    }
}

fn has_key(path: &[Step<'_>], key: &str) -> bool {
    path.iter().any(|step| step.key == key)
}

fn meets(step: &Step<'_>, value: &str) -> bool {
    match step.value {
        None => true,
        Some(written) => written == value || Pattern::new(written).is_some_and(|pattern| pattern.fits(value)),
    }
}

fn shown(path: &[Step<'_>]) -> String {
    path.iter()
        .map(|step| format!("`{}`", step.key))
        .collect::<Vec<_>>()
        .join(", ")
}
