//! A domain with a store small enough to read.

use std::collections::HashMap;

use super::{T0, domain, request};
use crate::engine::decision::{Decision, Slot, Verdict, evaluate, settle};
use crate::engine::descriptor::{Descriptor, Entry, Request};
use crate::engine::policy::Domain;
use crate::engine::resolve::{Resolved, resolve};
use crate::engine::time::{Micros, Timestamp};

/// A domain, what was spent of its budgets, and the time.
pub(crate) struct World {
    pub(crate) domain: Domain,
    pub(crate) now: Timestamp,
    pub(crate) shadow_all: bool,
    pub(crate) wait_cap: Micros,
    slots: HashMap<String, Slot>,
}

/// What a request got, as far as Envoy sees it, and what became of each budget.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) refused: bool,
    /// One for each descriptor.
    pub(crate) statuses: Vec<Status>,
    /// The limit that fills headers and body.
    pub(crate) headline: Option<String>,
    pub(crate) wait: Micros,
    /// Label, whether it was charged, and what remains, for each budget.
    pub(crate) budgets: Vec<(String, bool, u64)>,
    pub(crate) decision: Decision,
}

/// A descriptor's status; `None` is OK without `current_limit`.
pub(crate) type Status = Option<Shown>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) over: bool,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
}

pub(crate) const fn ok(limit: u64, remaining: u64) -> Status {
    Some(Shown {
        over: false,
        limit,
        remaining,
    })
}

pub(crate) const fn over_limit(limit: u64, remaining: u64) -> Status {
    Some(Shown {
        over: true,
        limit,
        remaining,
    })
}

/// The status of a descriptor that meets no limit.
pub(crate) const NO_LIMIT: Status = None;

impl World {
    pub(crate) fn new(rules: &[&str]) -> Self {
        Self {
            domain: domain(rules),
            now: T0,
            shadow_all: false,
            wait_cap: Micros(u64::MAX),
            slots: HashMap::new(),
        }
    }

    pub(crate) fn ask(&mut self, descriptors: &[&str]) -> Answer {
        self.decide(&request(descriptors))
    }

    /// The same request several times; the last answer.
    pub(crate) fn repeat(&mut self, times: usize, descriptors: &[&str]) -> Answer {
        (0..times).map(|_| self.ask(descriptors)).last().unwrap()
    }

    /// How many of `times` requests were not refused.
    pub(crate) fn passed(&mut self, times: usize, descriptors: &[&str]) -> usize {
        (0..times).filter(|_| !self.ask(descriptors).refused).count()
    }

    pub(crate) fn later(&mut self, by: Micros) -> &mut Self {
        self.now = self.now.plus(by);
        self
    }

    pub(crate) fn decide(&mut self, request: &Request<'_>) -> Answer {
        let request = &borrowed(request);
        let resolved = resolve(Some(&self.domain), request, self.shadow_all, self.now);
        let key = |i: usize| resolved.key(&resolved.charges[i]).text();
        let slot = |i: usize| self.slots.get(&key(i)).copied().unwrap_or_default();
        let all = 0..resolved.charges.len();
        let evaluations: Vec<_> = all
            .clone()
            .map(|i| evaluate(&resolved.charges[i], slot(i), self.now, self.wait_cap))
            .collect();
        let decision = settle(&resolved, &evaluations);
        let slots: Vec<_> = all
            .map(|i| match decision.verdicts[i].charged {
                true => (key(i), evaluations[i].charged),
                false => (key(i), evaluations[i].base),
            })
            .collect();
        let answer = answer(&resolved, decision);
        self.slots.extend(slots);
        answer
    }
}

/// The same request, living as short as the domain it is resolved with.
fn borrowed<'s>(request: &'s Request<'_>) -> Request<'s> {
    let descriptors = request.descriptors.iter().map(|descriptor| Descriptor {
        entries: descriptor
            .entries
            .iter()
            .map(|&Entry { key, value }| Entry { key, value })
            .collect(),
        ..*descriptor
    });
    Request {
        domain: request.domain,
        descriptors: descriptors.collect(),
        hits_addend: request.hits_addend,
    }
}

fn answer(resolved: &Resolved<'_>, decision: Decision) -> Answer {
    let label = |i: u16| resolved.charges[usize::from(i)].limit.label.to_string();
    let shown = |i: u16| Shown {
        over: decision.denies(i),
        limit: resolved.charges[usize::from(i)].numbers.requests_per_unit,
        remaining: decision.verdicts[usize::from(i)].view.remaining,
    };
    let status = |charges: &[u16]| decision.spokesman(resolved, charges.iter().copied()).map(shown);
    let budget = |(i, verdict): (usize, &Verdict)| (label(i as u16), verdict.charged, verdict.view.remaining);
    Answer {
        refused: decision.refused,
        statuses: resolved.met.iter().map(|met| status(&met.charges)).collect(),
        headline: decision.headline(resolved).map(label),
        wait: decision.wait,
        budgets: decision.verdicts.iter().enumerate().map(budget).collect(),
        decision,
    }
}
