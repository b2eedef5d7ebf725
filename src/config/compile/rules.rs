//! Descriptors to the tree that requests are matched against.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{Compiler, Step};
use crate::config::fault::quoted;
use crate::config::raw::{At, RawAddress, RawDescriptor, RawLimit};
use crate::engine::descriptor::{AddressRule, normalize_path};
use crate::engine::limit::Value;
use crate::engine::policy::{KeyRules, Level, Match, Node, Pattern};

impl<'r> Compiler<'r, '_, '_> {
    /// The rules of one level.
    pub(super) fn level(&mut self, descriptors: &'r [RawDescriptor], path: &mut Vec<Step<'r>>) -> Level {
        let mut level = Level::default();
        let mut first: HashMap<(&str, Option<String>), &'r RawDescriptor> = HashMap::new();
        self.readings(descriptors, &mut level);
        for descriptor in descriptors {
            let step = step(descriptor);
            self.keys.insert(step.key.into());
            let rules = level.keys.entry(step.key.into()).or_default();
            let value = step.value.map(|value| canonical(value, rules));
            path.push(step);
            let node = Arc::new(self.node(descriptor, path));
            path.pop();
            if descriptor.broken {
                continue;
            }
            if let Some(before) = first.get(&(step.key, value.clone())) {
                self.duplicate(descriptor, before);
                continue;
            }
            first.insert((step.key, value.clone()), descriptor);
            let rules = level.keys.entry(step.key.into()).or_default();
            match value {
                None => rules.any = Some(node),
                Some(value) => {
                    if let Some(pattern) = Pattern::new(&value) {
                        rules.wildcards.push((pattern, Arc::clone(&node)));
                    }
                    rules.exact.insert(value.into(), node);
                }
            }
        }
        level
    }

    fn node(&mut self, descriptor: &'r RawDescriptor, path: &mut Vec<Step<'r>>) -> Node {
        let limits = self.limits(descriptor, path);
        let children = self.level(&descriptor.descriptors, path);
        let metadata = descriptor.flags.metadata.as_ref();
        let metadata = metadata.or_else(|| {
            descriptor
                .limits
                .iter()
                .find_map(|limit| limit.flags.metadata.as_ref())
        });
        let metadata = metadata.and_then(|metadata| match &metadata.value {
            Value::Map(map) => Some(Arc::new(map.clone())),
            _ => None,
        });
        Node {
            matches: self.matches(descriptor),
            limits,
            children,
            metadata,
        }
    }

    fn matches(&mut self, descriptor: &RawDescriptor) -> Match {
        let value = descriptor.value.as_ref().map(|value| value.value.as_str());
        let pattern = value.filter(|value| value.contains('*'));
        let flags =
            std::iter::once(&descriptor.flags).chain(descriptor.limits.iter().map(|limit| &limit.flags));
        let shared: Option<&At<bool>> = flags
            .filter_map(|flags| flags.share_threshold.as_ref())
            .find(|shared| shared.value);
        match (pattern, shared, value) {
            (Some(pattern), Some(_), _) => Match::Shared(pattern.into()),
            (Some(_), None, _) => Match::Wildcard,
            (None, Some(shared), _) if !descriptor.broken => {
                let message = "`share_threshold` needs a `value` with `*`";
                let help = match value {
                    Some(_) => "one value has one budget anyway; take `share_threshold` out",
                    None => "write `value: \"*\"` to put all values on one budget",
                };
                self.error(shared.span, message).help(help);
                Match::Any
            }
            (None, _, Some(_)) => Match::Exact,
            (None, _, None) => Match::Any,
        }
    }

    /// How the values of a key are read is a matter of the key at its level, not of one descriptor.
    fn readings(&mut self, descriptors: &[RawDescriptor], level: &mut Level) {
        let help = "all descriptors of one key on one level read its values in one way";
        for descriptor in descriptors {
            let rules = level.keys.entry(step(descriptor).key.into()).or_default();
            if let Some(own) = &descriptor.address
                && *rules.address.get_or_insert(address_rule(own)) != address_rule(own)
            {
                self.error(own.span, "another `address` for the same key above")
                    .help(help);
            }
            rules.normalize_path |= descriptor.normalize.is_some();
        }
        for descriptor in descriptors {
            let clash = level
                .keys
                .get(step(descriptor).key)
                .is_some_and(|rules| rules.address.is_some());
            if let Some(normalize) = descriptor.normalize.as_ref().filter(|_| clash) {
                self.error(normalize.span, "`address` and `normalize` for one key")
                    .help(help);
            }
        }
    }

    fn duplicate(&mut self, descriptor: &RawDescriptor, before: &RawDescriptor) {
        let (Some(key), Some(first)) = (&descriptor.key, &before.key) else {
            return;
        };
        let line = first.span.line;
        let called = match &descriptor.value {
            Some(value) => format!("{} with value {}", quoted(&key.value), quoted(&value.value)),
            None => quoted(&key.value),
        };
        let help = if !descriptor.descriptors.is_empty() && descriptor.limits.is_empty() {
            format!("move these children under line {line}")
        } else if before.limits.is_empty() && descriptor.limits.is_empty() {
            "take one of the two out".to_owned()
        } else if before.limits.is_empty() || descriptor.limits.is_empty() {
            format!("merge the two under line {line}")
        } else {
            let both = before.limits.iter().chain(&descriptor.limits);
            let mut help = format!("for two periods write `rate_limits:` with two items, on line {line}:\n");
            help += &format!("- key: {}\n", first.value);
            if let Some(value) = &descriptor.value {
                help += &format!("  value: {}\n", plain_or_quoted(&value.value));
            }
            help += "  rate_limits:\n";
            for limit in both {
                help += &format!("    - {}\n", inline(limit));
            }
            help
        };
        let message = format!("same descriptor as on line {line}: {called}");
        self.error(key.span, message).help(help);
    }
}

/// The step of a descriptor; a key that could not be read stands as nothing.
pub(super) fn step(descriptor: &RawDescriptor) -> Step<'_> {
    Step {
        key: descriptor.key.as_ref().map_or("", |key| key.value.as_str()),
        value: descriptor.value.as_ref().map(|value| value.value.as_str()),
    }
}

pub(in crate::config) fn address_rule(raw: &RawAddress) -> AddressRule {
    let default = AddressRule::default();
    let prefix = |at: &Option<At<u32>>, default: u8| {
        at.as_ref()
            .map_or(default, |at| u8::try_from(at.value).unwrap_or(u8::MAX))
    };
    AddressRule {
        ipv4_prefix: prefix(&raw.ipv4_prefix, default.ipv4_prefix),
        ipv6_prefix: prefix(&raw.ipv6_prefix, default.ipv6_prefix),
        trusted_hops: raw.trusted_hops.as_ref().map(|hops| hops.value as usize),
    }
}

/// A value as the engine will see it: one spelling of an address, a normalised path.
fn canonical(value: &str, rules: &KeyRules) -> String {
    if rules.address.is_some()
        && let Ok(address) = value.parse::<IpAddr>()
    {
        return address.to_canonical().to_string();
    }
    if rules.normalize_path && !value.contains('*') {
        return normalize_path(value).into_owned();
    }
    value.to_owned()
}

/// A limit in one line, to be shown in a suggestion.
fn inline(limit: &RawLimit) -> String {
    let mut parts = Vec::new();
    if let Some(name) = &limit.name {
        parts.push(format!("name: {}", plain_or_quoted(&name.value)));
    }
    if let Some(unit) = &limit.unit {
        parts.push(format!("unit: {}", unit.value.name()));
    }
    if let Some(period) = &limit.period {
        parts.push(format!("period: {}", super::limit::duration_text(period.value)));
    }
    if let Some(number) = &limit.requests_per_unit {
        parts.push(format!("requests_per_unit: {}", number.value));
    }
    if limit.unlimited.as_ref().is_some_and(|unlimited| unlimited.value) {
        parts.push("unlimited: true".to_owned());
    }
    format!("{{{}}}", parts.join(", "))
}

fn plain_or_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    if !text.is_empty() && text.chars().all(plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    format!("\"{}\"", crate::config::fault::escape(text).replace('"', "\\\""))
}
