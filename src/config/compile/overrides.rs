//! The overrides of a policy file: what they change, and that they change something.

use std::sync::Arc;

use super::limit::pick;
use super::{Compiler, Step, each_limit};
use crate::config::fault::quoted;
use crate::config::raw::{self, Algorithm, RawOverride};
use crate::engine::overrides::{BadChange, Change, Misfit, Override, Target, misfits};
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
        let number = |at: &Option<raw::At<u32>>| at.as_ref().map(|at| u64::from(at.value));
        let read = Change::read(
            raw.multiply.as_ref().map(|factor| factor.value.0.into()),
            number(&raw.requests_per_unit),
            number(&raw.burst),
            raw.unlimited.as_ref().is_some_and(|at| at.value),
        );
        let fault = match read {
            Ok(change) => return Some(change),
            Err(fault) => fault,
        };
        let span = match (fault, &raw.burst) {
            (BadChange::BurstAlone | BadChange::NoBurst, Some(burst)) => burst.span,
            _ => raw.span,
        };
        let (message, help) = fault.text();
        self.error(span, message).help(help);
        None
    }

    /// Notes an override that no budget can ever match.
    fn check_target(&mut self, raw: &RawOverride, name: &str) {
        let default = &self.policy.defaults.algorithm;
        let mut targets: Vec<Target<'r>> = Vec::new();
        each_limit(self.policy, &mut |path, limit| {
            if limit.name.as_ref().is_some_and(|own| own.value == name) {
                let algorithm = pick(&limit.algorithm, default);
                let unlimited = limit.unlimited.as_ref().is_some_and(|at| at.value);
                targets.push(Target {
                    path: path.iter().map(|step| (step.key, step.value)).collect(),
                    bucket: algorithm.is_some_and(|at| at.value == Algorithm::TokenBucket),
                    unlimited: unlimited && limit.plans.is_empty(),
                });
            }
        });
        let named = raw.limit.as_ref().map_or(raw.span, |limit| limit.span);
        let entries: Vec<(&str, &str)> = raw
            .matches
            .iter()
            .map(|(key, value)| (key.value.as_str(), value.value.as_str()))
            .collect();
        for misfit in misfits(&entries, raw.burst.is_some(), &targets) {
            let span = match &misfit {
                Misfit::NoLimit => {
                    self.no_limit_called(named, name);
                    continue;
                }
                Misfit::NoEntries(at, _) => raw.matches.get(*at).map_or(raw.span, |(key, _)| key.span),
                Misfit::NoValue => raw.matches.first().map_or(raw.span, |(_, value)| value.span),
                Misfit::NoBucket => raw.burst.as_ref().map_or(raw.span, |burst| burst.span),
                Misfit::Unlimited => named,
            };
            let (message, help) = misfit.text(&quoted(name));
            self.error(span, message).help(help);
        }
    }
}
