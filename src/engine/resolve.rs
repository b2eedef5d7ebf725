//! From a request to the budgets it meets, and what it asks of each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::budget::Terms;
use super::descriptor::{
    Addend, Descriptor, Entry, NO_ADDRESS, Request, WireOverride, normalize_path, spelled,
};
use super::key::{BudgetKey, Identity, Values};
use super::limit::{Algorithm, Counts, Limit, MAX_UNITS, Numbers, Period, Share, Value};
use super::overrides::{Override, RunTime, in_force};
use super::policy::{Domain, KeyRules, Level, Match, Node};
use super::time::{Micros, Timestamp, Windows};

pub use super::found::{Found, Malformed, Unmatched};

/// What a request meets.
#[derive(Debug, Default)]
pub struct Resolved<'r> {
    /// One for each budget, however many descriptors meet it.
    pub charges: SmallVec<[Charge<'r>; 4]>,
    /// One for each descriptor, in order.
    pub met: SmallVec<[Met<'r>; 4]>,
    /// The domain's ceiling over what is decided without the store.
    pub ceiling: Option<&'r Limit>,
}

/// What one descriptor meets.
#[derive(Debug, Default)]
pub struct Met<'r> {
    /// How the search ended.
    pub found: Found,
    /// The positions of its budgets in [`Resolved::charges`].
    pub charges: SmallVec<[u16; 4]>,
    /// The values of its entries as matched.
    pub values: Values<'r>,
    /// The position of the entry that names the caller.
    pub caller: Option<usize>,
    /// It met a limit without a ceiling.
    pub unlimited: bool,
    /// The rule's `metadata`.
    pub metadata: Option<&'r BTreeMap<Box<str>, Value>>,
}

/// What a request asks of one budget.
#[derive(Debug)]
pub struct Charge<'r> {
    /// Its limit.
    pub limit: LimitRef<'r>,
    /// The limit's numbers for this caller at this time.
    pub numbers: Numbers,
    /// The row that gave them.
    pub plan: Option<&'r str>,
    /// The override that changed them.
    pub changed_by: Option<Arc<Override>>,
    /// The first descriptor that met it.
    pub met: u16,
    /// Units given back first.
    pub refund: u64,
    /// Units to spend then; `Some(0)` looks, `None` is not decided at all.
    pub spend: Option<u64>,
    /// Decided and recorded, never enforced.
    pub shadow: bool,
}

/// A limit of the policy, or one that came with the request.
#[derive(Debug)]
pub enum LimitRef<'r> {
    /// The policy's.
    Policy(&'r Limit),
    /// The request's.
    Wire(Box<Limit>),
}

impl Deref for LimitRef<'_> {
    type Target = Limit;

    fn deref(&self) -> &Limit {
        match self {
            Self::Policy(limit) => limit,
            Self::Wire(limit) => limit,
        }
    }
}

impl Charge<'_> {
    /// The terms of its budget.
    pub fn terms(&self) -> Terms<'_> {
        Terms::new(&self.limit, self.numbers)
    }
}

impl<'r> Resolved<'r> {
    /// The key of a charge's budget.
    pub fn key<'s>(&'s self, charge: &'s Charge<'r>) -> BudgetKey<'s> {
        let met = &self.met[usize::from(charge.met)];
        BudgetKey {
            identity: &charge.limit.identity,
            values: &met.values,
            caller: met.caller,
        }
    }
}

/// Finds what a request meets by the policy alone. `shadow_all` puts every limit in shadow mode; `now`
/// decides which overrides have expired.
pub fn resolve<'r>(
    domain: Option<&'r Domain>,
    request: &Request<'r>,
    shadow_all: bool,
    now: Timestamp,
) -> Resolved<'r> {
    resolve_with(domain, request, shadow_all, now, None)
}

/// The same with the overrides set at run time.
pub fn resolve_with<'r>(
    domain: Option<&'r Domain>,
    request: &Request<'r>,
    shadow_all: bool,
    now: Timestamp,
    live: Option<&RunTime>,
) -> Resolved<'r> {
    let mut resolved = Resolved::default();
    resolve_into(&mut resolved, domain, request, shadow_all, now, live);
    resolved
}

/// The same, written where it stays: it is large.
pub fn resolve_into<'r>(
    resolved: &mut Resolved<'r>,
    domain: Option<&'r Domain>,
    request: &Request<'r>,
    shadow_all: bool,
    now: Timestamp,
    live: Option<&RunTime>,
) {
    let Some(domain) = domain else {
        let met = request.descriptors.iter().map(|_| Met {
            found: Found::Unmatched(Unmatched::UnknownDomain),
            ..Met::default()
        });
        resolved.met.extend(met);
        return;
    };
    let live = live.and_then(|live| live.of_domain(&domain.name));
    let mut found: SmallVec<[&'r [Arc<Limit>]; 4]> = SmallVec::new();
    resolved.ceiling = domain.safety_ceiling.as_deref();
    for descriptor in &request.descriptors {
        let (met, limits) = find(domain, descriptor);
        resolved.met.push(met);
        found.push(limits);
    }
    let replaced = if domain.has_replaces {
        replaced_names(&found)
    } else {
        SmallVec::new()
    };
    let weight = domain.costs.as_ref().map_or(1, |costs| {
        let value = request.attribute(&costs.entry);
        value
            .and_then(|value| costs.values.get(value))
            .copied()
            .unwrap_or(costs.default)
    });
    for (at, descriptor) in request.descriptors.iter().enumerate() {
        let Ok(met) = u16::try_from(at) else { break };
        let addend = request.addend(descriptor);
        let charge = |limit: LimitRef<'r>, numbers| {
            let (refund, spend) = asked(limit.counts, addend, weight);
            let shadow = shadow_all || limit.shadow;
            Charge {
                limit,
                numbers,
                plan: None,
                changed_by: None,
                met,
                refund,
                spend,
                shadow,
            }
        };
        if let (Some(wire), Found::Limits) = (descriptor.limit, resolved.met[at].found)
            && let Some(limit) = wire_limit(domain, descriptor, wire)
        {
            let numbers = limit.numbers;
            add(resolved, charge(LimitRef::Wire(Box::new(limit)), numbers));
            continue;
        }
        for limit in found[at] {
            let limit: &'r Limit = limit;
            let dropped = limit
                .name
                .as_ref()
                .is_some_and(|name| replaced.contains(&&**name));
            if dropped && !limit.numbers.unlimited {
                continue;
            }
            let (plan, numbers) = planned(limit, request);
            let values = &resolved.met[at].values;
            let changed_by = in_force(live, limit, values, now);
            let numbers = changed_by.map_or(numbers, |item| item.change.apply(numbers));
            let changed_by = changed_by.cloned();
            if numbers.unlimited {
                resolved.met[at].unlimited = true;
                continue;
            }
            let charge = charge(LimitRef::Policy(limit), numbers);
            add(
                resolved,
                Charge {
                    plan,
                    changed_by,
                    ..charge
                },
            );
        }
    }
}

fn find<'r>(domain: &'r Domain, descriptor: &Descriptor<'r>) -> (Met<'r>, &'r [Arc<Limit>]) {
    let mut met = Met::default();
    if let Some(fault) = malformed(descriptor) {
        met.found = Found::Malformed(fault);
        return (met, &[]);
    }
    if descriptor.limit.is_some_and(|wire| wire.unit.is_some()) {
        met.values = descriptor
            .entries
            .iter()
            .map(|entry| Cow::Borrowed(entry.value))
            .collect();
        met.caller = Some(0);
        met.found = Found::Limits;
        return (met, &[]);
    }
    match walk(&domain.rules, &descriptor.entries, &mut met) {
        Ok(node) => {
            met.metadata = node.metadata.as_deref();
            met.found = match (node.limits.is_empty(), node.children.keys.is_empty()) {
                (false, _) => Found::Limits,
                (true, true) => Found::NoLimit,
                (true, false) => Found::Unmatched(Unmatched::TooShort),
            };
            (met, &node.limits)
        }
        Err(reason) => {
            let known = |entry: &Entry<'_>| domain.keys.contains(entry.key);
            let shuffled = reason == Unmatched::UnknownKey
                && descriptor.entries.len() > 1
                && descriptor.entries.iter().all(known);
            met.found = Found::Unmatched(if shuffled { Unmatched::Order } else { reason });
            (met, &[])
        }
    }
}

/// What is broken about a descriptor. A limit sent along without a unit is not: it is ignored.
fn malformed(descriptor: &Descriptor<'_>) -> Option<Malformed> {
    if descriptor.entries.is_empty() {
        return Some(Malformed::NoEntries);
    }
    descriptor
        .entries
        .iter()
        .any(|entry| entry.key.is_empty())
        .then_some(Malformed::EmptyKey)
}

/// Follows the entries down the rules: depth must be equal, and a branch once taken is not left.
fn walk<'r>(rules: &'r Level, entries: &[Entry<'r>], met: &mut Met<'r>) -> Result<&'r Node, Unmatched> {
    let mut level = rules;
    let mut node: Option<&'r Arc<Node>> = None;
    for (depth, entry) in entries.iter().enumerate() {
        if depth > 0 && level.keys.is_empty() {
            return Err(Unmatched::TooLong);
        }
        let rules = level.keys.get(entry.key).ok_or(Unmatched::UnknownKey)?;
        let (value, next) = rules.lookup(entry.value).ok_or(Unmatched::UnknownValue)?;
        if met.caller.is_none() && next.matches != Match::Exact {
            met.caller = Some(depth);
        }
        met.values.push(value);
        level = &next.children;
        node = Some(next);
    }
    node.map(|node| &**node).ok_or(Unmatched::TooShort)
}

/// How far a descriptor's entries lead: how many match, and the rules for the entry after them.
pub fn reached<'d>(domain: &'d Domain, descriptor: &Descriptor<'d>) -> (usize, &'d Level) {
    let mut level = &domain.rules;
    for (depth, entry) in descriptor.entries.iter().enumerate() {
        let next = level
            .keys
            .get(entry.key)
            .and_then(|rules| rules.lookup(entry.value));
        let Some((_, node)) = next else {
            return (depth, level);
        };
        level = &node.children;
    }
    (descriptor.entries.len(), level)
}

impl KeyRules {
    /// The rule for a value, and the value as it counts: an address as its network, a path normalised,
    /// a shared pattern instead of what fits it.
    pub fn lookup<'r>(&'r self, value: &'r str) -> Option<(Cow<'r, str>, &'r Arc<Node>)> {
        let mut counted = Cow::Borrowed(value);
        let node = if let Some(rule) = self.address {
            let address = rule.parse(value);
            // As a rule for one address is written; nearly always as it came.
            let text = address.map_or(Cow::Borrowed(value), |address| spelled(address, value));
            let node = self.find(&text)?;
            counted = match (&node.matches, address) {
                (Match::Exact, _) => text,
                (_, Some(address)) => rule.counted(address, value),
                (_, None) => Cow::Borrowed(NO_ADDRESS),
            };
            node
        } else if self.normalize_path {
            counted = normalize_path(value);
            self.find(&counted)?
        } else {
            self.find(value)?
        };
        if let Match::Shared(pattern) = &node.matches {
            counted = Cow::Borrowed(pattern);
        }
        Some((counted, node))
    }
}

fn replaced_names<'r>(found: &[&'r [Arc<Limit>]]) -> SmallVec<[&'r str; 4]> {
    found
        .iter()
        .flat_map(|limits| limits.iter())
        .flat_map(|limit| limit.replaces.iter().map(|name| &**name))
        .collect()
}

/// The numbers of a limit for this request, and the row they come from.
fn planned<'r>(limit: &'r Limit, request: &Request<'r>) -> (Option<&'r str>, Numbers) {
    let Some(plans) = &limit.plans else {
        return (None, limit.numbers);
    };
    let row = request
        .attribute(&plans.entry)
        .and_then(|name| plans.rows.get_key_value(name))
        .or_else(|| plans.rows.get_key_value(&*plans.default_plan));
    row.map_or((None, limit.numbers), |(name, numbers)| (Some(&**name), *numbers))
}

/// A limit sent along: one fixed window per entries and unit.
fn wire_limit(domain: &Domain, descriptor: &Descriptor<'_>, wire: WireOverride) -> Option<Limit> {
    let unit = wire.unit?;
    let length = Micros(
        unit.length()
            .0
            .saturating_mul(u64::from(wire.multiplier.max(1)))
            .min(MAX_UNITS),
    );
    let keys: SmallVec<[&str; 4]> = descriptor.entries.iter().map(|entry| entry.key).collect();
    let (period, windows) = if wire.multiplier <= 1 {
        (
            unit.period(),
            super::limit::windows_of(unit, jiff::tz::TimeZone::UTC),
        )
    } else {
        let text = format!("{}{}", wire.multiplier, unit.name()).into();
        (
            Period {
                length,
                unit: None,
                text,
            },
            Windows::even(length),
        )
    };
    let algorithm = Algorithm::FixedWindow(windows);
    let identity = Identity::of_wire(&domain.name, &keys, &period);
    let units = u64::from(wire.requests_per_unit);
    let numbers = Numbers {
        requests_per_unit: units,
        burst: units,
        max_wait: Micros::ZERO,
        max_overshoot: Share::ZERO,
        unlimited: false,
    };
    Some(Limit {
        // The keys of a limit sent along are the caller's bytes: they do not become a label.
        label: "override".into(),
        ..Limit::plain(None, identity, algorithm, period, numbers)
    })
}

/// Adds what a descriptor asks of a limit, joined with what others of the request asked of the same budget.
fn add<'r>(resolved: &mut Resolved<'r>, charge: Charge<'r>) {
    let at = usize::from(charge.met);
    let values = &resolved.met[at].values;
    let same = resolved.charges.iter().position(|other| {
        let other_values = &resolved.met[usize::from(other.met)].values;
        (std::ptr::eq(&*other.limit, &*charge.limit) || other.limit.identity == charge.limit.identity)
            && other_values == values
    });
    if let Some(same) = same {
        let joined = &mut resolved.charges[same];
        joined.refund = joined.refund.max(charge.refund);
        joined.spend = joined.spend.max(charge.spend);
        resolved.met[at].charges.push(same as u16);
    } else if let Ok(position) = u16::try_from(resolved.charges.len()) {
        resolved.met[at].charges.push(position);
        resolved.charges.push(charge);
    }
}

/// What an addend means to a limit: units to give back, and units to spend.
fn asked(counts: Counts, addend: Addend, weight: u64) -> (u64, Option<u64>) {
    let one = if counts == Counts::Cost {
        weight.min(MAX_UNITS)
    } else {
        1
    };
    match addend {
        Addend::Look => (0, Some(0)),
        // A weight of 0 frees the route: it neither charges nor is refused.
        Addend::One if one == 0 => (0, None),
        Addend::One => (0, Some(one)),
        Addend::Units(_) if counts == Counts::Requests => (0, Some(1)),
        Addend::Units(units) => (0, Some(units)),
        Addend::RefundOne => (one, None),
        Addend::Refund(_) if counts == Counts::Requests => (1, None),
        Addend::Refund(units) => (units, None),
    }
}

#[cfg(test)]
mod tests;
