//! Policies and requests built in code, for tests that are not about policy files.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "several tests include it, each uses a part"
)]

use std::sync::Arc;

use cota::engine::budget::State;
use cota::engine::descriptor::{Descriptor, Entry, Request};
use cota::engine::key::Identity;
use cota::engine::limit::{Algorithm, Limit, Numbers, Period, Unit, windows_of};
use cota::engine::policy::{Domain, KeyRules, Level, Match, Node, Policy};
use cota::engine::time::{Micros, Timestamp, Windows};

/// A Monday noon, 2026-11-30T12:00:00Z: every window up to the hour begins here.
pub const NOON: Timestamp = Timestamp(1_796_040_000_000_000);

/// Keys, each with the value it must have, or `None` for any.
pub type Path<'a> = &'a [(&'a str, Option<&'a str>)];

pub fn fixed(name: &str, units: u64, unit: Unit) -> Limit {
    let windows = windows_of(unit, jiff::tz::TimeZone::UTC);
    limit(name, Algorithm::FixedWindow(windows), unit.period(), units)
}

pub fn sliding(name: &str, units: u64, unit: Unit) -> Limit {
    let windows = windows_of(unit, jiff::tz::TimeZone::UTC);
    limit(name, Algorithm::SlidingWindow(windows), unit.period(), units)
}

pub fn bucket(name: &str, units: u64, burst: u64, unit: Unit) -> Limit {
    let mut limit = limit(name, Algorithm::TokenBucket, unit.period(), units);
    limit.numbers.burst = burst;
    limit
}

pub fn leaky(name: &str, units: u64, unit: Unit, max_wait: Micros) -> Limit {
    waiting(
        limit(name, Algorithm::LeakyBucket, unit.period(), units),
        max_wait,
    )
}

/// The same limit, holding answers that long.
pub fn waiting(mut limit: Limit, max_wait: Micros) -> Limit {
    limit.numbers.max_wait = max_wait;
    limit
}

/// The same limit counted over `period: Nms`.
pub fn every(mut limit: Limit, millis: u64) -> Limit {
    let length = Micros::from_millis(millis);
    limit.period = Period {
        length,
        unit: None,
        text: format!("{millis}ms").into(),
    };
    limit.algorithm = match limit.algorithm {
        Algorithm::FixedWindow(_) => Algorithm::FixedWindow(Windows::even(length)),
        Algorithm::SlidingWindow(_) => Algorithm::SlidingWindow(Windows::even(length)),
        other => other,
    };
    limit
}

fn limit(name: &str, algorithm: Algorithm, period: Period, units: u64) -> Limit {
    let identity = Identity::new("", &[], None, &algorithm, &period);
    let numbers = Numbers {
        requests_per_unit: units,
        burst: units,
        max_wait: Micros::ZERO,
        unlimited: false,
    };
    Limit {
        // It has a test of its own; here many requests come at one instant.
        barrier: None,
        ..Limit::plain(Some(name), identity, algorithm, period, numbers)
    }
}

/// The domain `api` with these rules.
pub fn domain<const N: usize>(rules: [(Path<'_>, Vec<Limit>); N]) -> Domain {
    let mut domain = Domain {
        name: "api".into(),
        ..Domain::default()
    };
    for (path, limits) in rules {
        let keys: Vec<&str> = path.iter().map(|(key, _)| *key).collect();
        domain.keys.extend(keys.iter().map(|&key| key.into()));
        domain.has_replaces |= limits.iter().any(|limit| !limit.replaces.is_empty());
        node(&mut domain.rules, path).limits = limits
            .into_iter()
            .map(|limit| Arc::new(named(limit, &keys)))
            .collect();
    }
    domain
}

fn named(mut limit: Limit, keys: &[&str]) -> Limit {
    let name = limit.name.as_deref();
    limit.identity = Identity::new("api", keys, name, &limit.algorithm, &limit.period);
    limit.label = name.map_or_else(
        || format!("{}/{}", keys.join("."), limit.period.text).into(),
        Into::into,
    );
    limit
}

/// The rule at that path, made where it is missing.
pub fn node<'n>(level: &'n mut Level, path: Path<'_>) -> &'n mut Node {
    let ((key, value), rest) = path.split_first().expect("a path has a step");
    let rules: &mut KeyRules = level.keys.entry((*key).into()).or_default();
    let found = match value {
        Some(value) => rules.exact.entry((*value).into()).or_default(),
        None => rules.any.get_or_insert_with(|| {
            Arc::new(Node {
                matches: Match::Any,
                ..Node::default()
            })
        }),
    };
    let found = Arc::make_mut(found);
    if rest.is_empty() {
        found
    } else {
        node(&mut found.children, rest)
    }
}

/// A policy in force, of these domains.
pub fn policy<const N: usize>(domains: [Domain; N]) -> Policy {
    Policy {
        domains: domains
            .into_iter()
            .map(|domain| (domain.name.clone(), Arc::new(domain)))
            .collect(),
        version: 1,
    }
}

/// A request for the domain `api`, each descriptor given by its entries.
pub fn request<'a>(descriptors: &[&[(&'a str, &'a str)]]) -> Request<'a> {
    Request {
        domain: "api",
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

/// The same request with another addend for all its descriptors.
pub fn costing(mut request: Request<'_>, units: u64) -> Request<'_> {
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(units);
    }
    request
}

/// The same request, giving that many units back.
pub fn refunding(request: Request<'_>, units: u64) -> Request<'_> {
    let mut request = costing(request, units);
    for descriptor in &mut request.descriptors {
        descriptor.is_negative_hits = true;
    }
    request
}

pub fn descriptor<'a>(entries: &[(&'a str, &'a str)]) -> Descriptor<'a> {
    Descriptor {
        entries: entries.iter().map(|&(key, value)| Entry { key, value }).collect(),
        ..Descriptor::default()
    }
}

/// Whether a state is what a budget begins with.
pub fn initial(state: State) -> bool {
    state.used == 0 && state.part == 0
}
