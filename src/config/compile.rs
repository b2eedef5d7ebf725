//! Raw policy to the engine's: what the keys mean together.
//!
//! A value that could not be read was reported when it was read; what depends on it is passed over
//! here, so that one mistake is told once. A domain with an error is not built, but all of it is
//! looked at.

mod algorithm;
mod barrier;
mod ceiling;
mod limit;
mod overrides;
mod overshoot;
mod response;
mod rules;

pub(super) use rules::address_rule;

use std::sync::Arc;

use hashbrown::HashSet;

use super::fault::{Fault, Faults, Span, quoted};
use super::raw::{RawLimit, RawPolicy};
use crate::engine::limit::Limit;
use crate::engine::overrides::Override;
use crate::engine::policy::{Costs, Domain};
use crate::engine::response::Response;

/// A limit with where it was written: what lints look at.
pub(super) struct Placed<'r> {
    pub(super) raw: &'r RawLimit,
    pub(super) limit: Arc<Limit>,
    pub(super) path: Vec<Step<'r>>,
}

/// One entry on the way to a limit, and the value or pattern that is written for it.
#[derive(Clone, Copy)]
pub(super) struct Step<'r> {
    pub(super) key: &'r str,
    pub(super) value: Option<&'r str>,
}

/// What a document compiled to.
pub(super) struct Compiled<'r> {
    pub(super) domain: Domain,
    pub(super) placed: Vec<Placed<'r>>,
}

/// Compiles one document, noting every fault. `unsaid` is what answers look like where it does not say it.
pub(super) fn domain<'r>(
    policy: &'r RawPolicy,
    unsaid: &'r Response,
    faults: &mut Faults<'_>,
) -> Compiled<'r> {
    let name = policy.domain.as_ref().map_or("", |name| name.value.as_str());
    let mut compiler = Compiler {
        faults,
        policy,
        unsaid,
        name,
        overrides: Vec::new(),
        placed: Vec::new(),
        keys: HashSet::new(),
    };
    compiler.read_overrides();
    let rules = compiler.level(&policy.descriptors, &mut Vec::new());
    compiler.check_expected();
    let safety_ceiling = compiler.safety_ceiling();
    let response = compiler.response();
    let costs = policy.costs.as_ref().map(|costs| Costs {
        entry: costs
            .entry
            .as_ref()
            .map_or("", |entry| entry.value.as_str())
            .into(),
        default: costs.default.as_ref().map_or(1, |default| default.value.into()),
        values: costs
            .values
            .iter()
            .map(|(name, cost)| (name.value.as_str().into(), cost.value.into()))
            .collect(),
    });
    let has_replaces = compiler
        .placed
        .iter()
        .any(|placed| !placed.limit.replaces.is_empty());
    let domain = Domain {
        name: name.into(),
        revision: "".into(),
        rules,
        costs,
        response,
        overrides: compiler.overrides,
        keys: compiler.keys,
        has_replaces,
        safety_ceiling,
    };
    Compiled {
        domain,
        placed: compiler.placed,
    }
}

struct Compiler<'r, 'f, 't> {
    faults: &'f mut Faults<'t>,
    policy: &'r RawPolicy,
    unsaid: &'r Response,
    name: &'r str,
    overrides: Vec<Arc<Override>>,
    placed: Vec<Placed<'r>>,
    keys: HashSet<Box<str>>,
}

impl<'r> Compiler<'r, '_, '_> {
    fn error(&mut self, span: Span, message: impl Into<String>) -> &mut Fault {
        self.faults.error(span, message)
    }

    /// `expected` names limits and plans that exist.
    fn check_expected(&mut self) {
        use super::raw::Expected;
        for (name, expected) in &self.policy.expected {
            let limits: Vec<&RawLimit> = limits_called(self.policy, &name.value);
            if limits.is_empty() {
                self.no_limit_called(name.span, &name.value);
                continue;
            }
            let Expected::ByPlan(plans) = expected else {
                continue;
            };
            for (plan, _) in plans {
                let rows: Vec<&str> = limits
                    .iter()
                    .flat_map(|limit| &limit.plans)
                    .map(|(row, _)| row.value.as_str())
                    .collect();
                if !rows.contains(&plan.value.as_str()) && !limits.iter().any(|limit| limit.broken) {
                    let message = format!(
                        "the limit {} has no plan {}",
                        quoted(&name.value),
                        quoted(&plan.value)
                    );
                    let help = match rows.is_empty() {
                        true => "it has no plans; write one number of callers".to_owned(),
                        false => format!("its plans are {}", rows.join(", ")),
                    };
                    self.error(plan.span, message).help(help);
                }
            }
        }
    }

    /// Notes a reference to a limit that does not exist.
    fn no_limit_called(&mut self, span: Span, name: &str) {
        let names = names(self.policy);
        let help = match super::keys::nearest(name, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "no limit of this domain has a `name` yet".to_owned(),
            None => format!("limits with a `name` here: {}", names.join(", ")),
        };
        self.error(span, format!("no limit is called {}", quoted(name)))
            .help(help);
    }
}

/// Calls `visit` for every limit of the domain, broken ones included, with its path.
fn each_limit<'r>(policy: &'r RawPolicy, visit: &mut dyn FnMut(&[Step<'r>], &'r RawLimit)) {
    fn walk<'r>(
        descriptors: &'r [super::raw::RawDescriptor],
        path: &mut Vec<Step<'r>>,
        visit: &mut dyn FnMut(&[Step<'r>], &'r RawLimit),
    ) {
        for descriptor in descriptors {
            path.push(rules::step(descriptor));
            descriptor.limits.iter().for_each(|limit| visit(path, limit));
            walk(&descriptor.descriptors, path, visit);
            path.pop();
        }
    }
    walk(&policy.descriptors, &mut Vec::new(), visit);
}

fn limits_called<'r>(policy: &'r RawPolicy, name: &str) -> Vec<&'r RawLimit> {
    let mut limits = Vec::new();
    each_limit(policy, &mut |_, limit| {
        if limit.name.as_ref().is_some_and(|own| own.value == name) {
            limits.push(limit);
        }
    });
    limits
}

/// The names of a domain's limits, each once, in the order of the file.
pub(super) fn names(policy: &RawPolicy) -> Vec<&str> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    each_limit(policy, &mut |_, limit| {
        let name = limit.name.as_ref().map(|name| name.value.as_str());
        names.extend(name.filter(|name| seen.insert(*name)));
    });
    names
}

#[cfg(test)]
mod tests;
