//! Policies and requests in the notation of the incumbent's rules.
//!
//! A rule is `key=value{limits} > key{limits}`; `key` alone is any value, `key!address`, `key!path` and
//! `key!share` set the descriptor's own switches. A limit is `10/minute` and words: see [`limit`].
//! A request is a list of descriptors `(key=value)(key=value) addend 3`: see [`descriptor`].

use std::sync::Arc;

use super::descriptor::{AddressRule, Descriptor, Entry, Request, WireOverride};
use super::key::Identity;
use super::limit::{
    Algorithm, Counts, Excess, ExcessAction, Factor, Limit, Numbers, Period, Plans, Unit, windows_of,
};
use super::overrides::{Change, Override, OverrideIndex};
use super::policy::{Domain, KeyRules, Level, Match, Node, Pattern};
use super::time::{Micros, Timestamp};

mod world;

pub(crate) use world::{NO_LIMIT, Status, World, ok, over_limit};

/// 2023-11-14 22:13:20 UTC: 20 seconds into a minute.
pub(crate) const T0: Timestamp = Timestamp(1_700_000_000_000_000);

/// A domain `d` with those rules, in file order.
pub(crate) fn domain(rules: &[&str]) -> Domain {
    domain_named("d", rules)
}

pub(crate) fn domain_named(name: &str, rules: &[&str]) -> Domain {
    let mut root = Draft::default();
    let mut domain = Domain {
        name: name.into(),
        ..Domain::default()
    };
    for rule in rules {
        let mut draft = &mut root;
        let mut keys = Vec::new();
        for step in rule.split(" > ") {
            let (path, limits) = match step.strip_suffix('}').and_then(|s| s.rsplit_once('{')) {
                Some((path, limits)) => (path, limits),
                None => (step, ""),
            };
            let (head, value) = path.split_once('=').map_or((path, None), |(k, v)| (k, Some(v)));
            let (key, switch) = head.split_once('!').unwrap_or((head, ""));
            keys.push(key.to_owned());
            domain.keys.insert(key.into());
            draft = draft.child(key, value, switch);
            let names: Vec<&str> = keys.iter().map(String::as_str).collect();
            for text in limits.split(';').filter(|text| !text.is_empty()) {
                let limit = limit(name, &names, text.trim());
                domain.has_replaces |= !limit.replaces.is_empty();
                draft.limits.push(Arc::new(limit));
            }
        }
    }
    domain.rules = root.level();
    domain
}

/// The rules below one entry, while they are put together.
#[derive(Default)]
struct Draft {
    limits: Vec<Arc<Limit>>,
    children: Vec<(String, Option<String>, String, Draft)>,
}

impl Draft {
    fn child(&mut self, key: &str, value: Option<&str>, switch: &str) -> &mut Draft {
        let same = |(k, v, ..): &(String, Option<String>, String, Draft)| k == key && v.as_deref() == value;
        let at = self.children.iter().position(same).unwrap_or_else(|| {
            let value = value.map(str::to_owned);
            self.children
                .push((key.into(), value, switch.into(), Draft::default()));
            self.children.len() - 1
        });
        &mut self.children[at].3
    }

    fn level(self) -> Level {
        let mut level = Level::default();
        for (key, value, switch, draft) in self.children {
            let rules: &mut KeyRules = level.keys.entry(key.as_str().into()).or_default();
            rules.normalize_path |= switch == "path";
            if let Some(prefixes) = switch.strip_prefix("address") {
                rules.address = Some(address_rule(prefixes));
            }
            let pattern = value.as_deref().and_then(Pattern::new);
            let matches = match (&value, &pattern) {
                (None, _) => Match::Any,
                (Some(text), Some(_)) if switch == "share" => Match::Shared(text.as_str().into()),
                (_, Some(_)) => Match::Wildcard,
                _ => Match::Exact,
            };
            let node = Arc::new(Node {
                matches,
                limits: draft.limits.clone(),
                children: draft.level(),
                metadata: None,
            });
            match value {
                None => rules.any = Some(node),
                Some(value) => {
                    if let Some(pattern) = pattern {
                        rules.wildcards.push((pattern, node.clone()));
                    }
                    rules.exact.insert(value.into(), node);
                }
            }
        }
        level
    }
}

/// `address`, `address/24/48`, `address/32/64/2`: prefixes and trusted hops.
fn address_rule(text: &str) -> AddressRule {
    let mut rule = AddressRule::default();
    let mut parts = text.split('/').skip(1);
    if let (Some(v4), Some(v6)) = (parts.next(), parts.next()) {
        rule.ipv4_prefix = v4.parse().unwrap();
        rule.ipv6_prefix = v6.parse().unwrap();
    }
    rule.trusted_hops = parts.next().map(|hops| hops.parse().unwrap());
    rule
}

/// A limit: `10/minute` or `unlimited`, then words. `sliding`, `token`, `leaky`, `burst:5`, `wait:500`
/// (ms), `zone:UTC`; `name:a`, `replaces:a`, `shadow`, `quota`, `overdraft`, `counts:hits`,
/// `excess:150`, `barrier:2.5`; `plans:entry,free=10,pro=100,gold=unlimited` (the first row is the default);
/// `override:key=value,x3` (or `=5`, `unlimited`; `@20` seconds after the start it expires).
fn limit(domain: &str, keys: &[&str], text: &str) -> Limit {
    let mut words = text.split(' ');
    let rate = words.next().unwrap();
    let words: Vec<(&str, &str)> = words.map(|w| w.split_once(':').unwrap_or((w, ""))).collect();
    let has = |name: &str| words.iter().any(|(word, _)| *word == name);
    let value = |name: &str| {
        words
            .iter()
            .find(|(word, _)| *word == name)
            .map(|(_, value)| *value)
    };
    let number = |name: &str| value(name).map(|value| value.parse::<u64>().unwrap());
    let (units, unit) = match rate.split_once('/') {
        Some((units, unit)) => (units.parse().unwrap(), unit_named(unit)),
        None => (0, Unit::Second),
    };
    let zone = value("zone").unwrap_or("UTC");
    let windows = windows_of(unit, jiff::tz::TimeZone::get(zone).unwrap());
    let algorithm = match () {
        () if has("sliding") => Algorithm::SlidingWindow(windows),
        () if has("token") => Algorithm::TokenBucket,
        () if has("leaky") => Algorithm::LeakyBucket,
        () => Algorithm::FixedWindow(windows),
    };
    let numbers = Numbers {
        requests_per_unit: units,
        burst: number("burst").unwrap_or(units),
        max_wait: Micros::from_millis(number("wait").unwrap_or(0)),
        unlimited: rate == "unlimited",
    };
    let name = value("name");
    let period: Period = unit.period();
    let identity = Identity::new(domain, keys, name, &algorithm, &period);
    let listed = |name| words.iter().filter(move |(word, _)| *word == name);
    Limit {
        label: name
            .map_or_else(|| format!("{}/{}", keys.join("."), period.text), Into::into)
            .into(),
        plans: value("plans").map(|rows| plans(rows, numbers)),
        counts: match value("counts") {
            Some("requests") => Counts::Requests,
            Some("hits") => Counts::Hits,
            _ => Counts::Cost,
        },
        overdraft: has("overdraft"),
        excess: number("excess").map(|percent| Excess {
            action: ExcessAction::Degrade,
            up_to_percent: u32::try_from(percent).unwrap(),
        }),
        barrier: match value("barrier") {
            Some("off") => None,
            Some(factor) => Some(Factor {
                thousandths: (factor.parse::<f64>().unwrap() * 1_000.0) as u64,
            }),
            None => (!has("overdraft")).then_some(Factor::BARRIER),
        },
        shadow: has("shadow"),
        quota: has("quota"),
        replaces: listed("replaces").map(|(_, name)| (*name).into()).collect(),
        overrides: OverrideIndex::new(listed("override").map(|(_, text)| Arc::new(over(text))).collect()),
        ..Limit::plain(name, identity, algorithm, period, numbers)
    }
}

fn unit_named(name: &str) -> Unit {
    Unit::ALL.into_iter().find(|unit| unit.name() == name).unwrap()
}

fn plans(text: &str, numbers: Numbers) -> Plans {
    let (entry, rows) = text.split_once(',').unwrap();
    let rows = || rows.split(',').map(|row| row.split_once('=').unwrap());
    let row = |units: &str| match units.parse() {
        Ok(units) => Numbers {
            requests_per_unit: units,
            burst: units,
            ..numbers
        },
        Err(_) => Numbers {
            unlimited: true,
            ..numbers
        },
    };
    Plans {
        entry: entry.into(),
        rows: rows().map(|(name, units)| (name.into(), row(units))).collect(),
        default_plan: rows().next().unwrap().0.into(),
    }
}

fn over(text: &str) -> Override {
    let (text, expires_at) = match text.split_once('@') {
        Some((text, secs)) => (text, Some(T0.plus(Micros::from_secs(secs.parse().unwrap())))),
        None => (text, None),
    };
    let (matches, change) = text.rsplit_once(',').unwrap();
    let change = match (change.strip_prefix('x'), change.strip_prefix('=')) {
        (Some(times), _) => Change::Multiply {
            thousandths: times.parse::<u64>().unwrap() * 1_000,
        },
        (_, Some(units)) => Change::Set {
            requests_per_unit: units.parse().unwrap(),
            burst: None,
        },
        _ => Change::Unlimited,
    };
    let pair = |pair: &str| pair.split_once('=').map(|(k, v)| (k.into(), v.into())).unwrap();
    Override {
        id: text.into(),
        matches: matches.split(',').map(pair).collect(),
        limit: "".into(),
        change,
        expires_at,
        author: None,
        reason: None,
    }
}

/// A request of those descriptors to domain `d`.
pub(crate) fn request<'a>(descriptors: &[&'a str]) -> Request<'a> {
    Request {
        domain: "d",
        descriptors: descriptors.iter().map(|text| descriptor(text)).collect(),
        hits_addend: 0,
    }
}

/// `(a=1)(b=2)`, then `addend 3`, `refund 3`, or `limit 7/minute` (`limit 7/UNKNOWN`, `limit 7/5/minute`).
fn descriptor(text: &str) -> Descriptor<'_> {
    let (entries, words) = text.rsplit_once(')').map_or(("", text), |(e, w)| (e, w));
    let entries = entries.split(')').filter(|part| !part.is_empty());
    let mut descriptor = Descriptor {
        entries: entries
            .map(|part| part.trim_start_matches('(').split_once('=').unwrap())
            .map(|(key, value)| Entry { key, value })
            .collect(),
        ..Descriptor::default()
    };
    let mut words = words.split_whitespace();
    while let (Some(word), Some(value)) = (words.next(), words.next()) {
        match word {
            "limit" => descriptor.limit = Some(wire_override(value)),
            _ => descriptor.hits_addend = Some(value.parse().unwrap()),
        }
        descriptor.is_negative_hits |= word == "refund";
    }
    descriptor
}

fn wire_override(text: &str) -> WireOverride {
    let (units, unit) = text.split_once('/').unwrap();
    let (multiplier, unit) = unit.split_once('/').unwrap_or(("0", unit));
    WireOverride {
        requests_per_unit: units.parse().unwrap(),
        unit: Unit::ALL.into_iter().find(|u| u.name() == unit),
        multiplier: multiplier.parse().unwrap(),
    }
}
