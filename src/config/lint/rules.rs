//! Warnings about descriptors: rules that nothing reaches, and callers that nothing limits.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Lint;
use crate::config::fault::{Span, quoted};
use crate::config::raw::RawDescriptor;
use crate::engine::limit::Unit;
use crate::engine::policy::Pattern;

/// Keys whose value is a caller's address.
const ADDRESSES: &[&str] = &[
    "remote_address",
    "client_ip",
    "ip",
    "x-forwarded-for",
    "x-real-ip",
    "cf-connecting-ip",
];

/// What several descriptors have in common and is said once.
#[derive(Default)]
struct Common {
    paths: Vec<Span>,
    addresses: Vec<Span>,
    stars: Vec<Span>,
}

impl Lint<'_, '_, '_, '_> {
    pub(super) fn rules(&mut self) {
        let mut common = Common::default();
        let policy = self.policy;
        self.level(&policy.descriptors, &mut common);
        self.warn_once(
            &common.paths,
            "a limit on a raw path: every query string is another value, and has another budget or none",
            "write `normalize: path` beside `key:`, which cuts at `?` and collapses `//`",
        );
        self.warn_once(
            &common.addresses,
            "one budget an IPv6 address: whoever has a network has 2^64 of them",
            "write `address: {ipv6_prefix: 64}` beside `key:`, which counts by network",
        );
        self.warn_once(
            &common.stars,
            "`value: \"*\"` means any value",
            "drop `value` for the same effect",
        );
    }

    fn level(&mut self, descriptors: &[RawDescriptor], common: &mut Common) {
        for descriptor in descriptors {
            self.descriptor(descriptor, common);
            self.level(&descriptor.descriptors, common);
        }
        self.covered(descriptors);
        self.lost_defaults(descriptors);
        self.fake_entries(descriptors);
        self.odd_key_out(descriptors);
    }

    fn descriptor(&mut self, descriptor: &RawDescriptor, common: &mut Common) {
        let (Some(key), value) = (&descriptor.key, &descriptor.value) else {
            return;
        };
        let text = value.as_ref().map(|value| value.value.as_str());
        let path = key.value.trim_start_matches(':').eq_ignore_ascii_case("path");
        let limited = descriptor.limits();
        if path && limited > 0 && descriptor.normalize.is_none() {
            common.paths.push(key.span);
        }
        let open = text.is_none_or(|text| text.contains('*'));
        let address = ADDRESSES.contains(&key.value.to_lowercase().as_str());
        match &descriptor.address {
            None if address && open && limited > 0 => common.addresses.push(key.span),
            Some(rule) if rule.ipv6_prefix.as_ref().is_some_and(|at| at.value > 64) => {
                common.addresses.push(rule.span)
            }
            _ => {}
        }
        let Some(value) = value else { return };
        if value.value == "*"
            && descriptor
                .flags
                .share_threshold
                .as_ref()
                .is_none_or(|at| !at.value)
        {
            common.stars.push(value.span);
        }
        if descriptor.address.is_some() && !open && value.value.parse::<IpAddr>().is_err() {
            self.warn(
                value.span,
                format!(
                    "nothing reaches this rule: {} is no single address",
                    quoted(&value.value)
                ),
            )
            .help("values are compared with the caller's address; a network cannot be a value here");
        }
        let header = value.value.starts_with(['/', ':']) || value.value.to_lowercase().starts_with("x-");
        if key.value == "header_match" && header {
            self.warn(
                value.span,
                "Envoy sends the fixed `descriptor_value` here, not what the header holds",
            )
            .help("all callers that match share one counter; write the `descriptor_value` of Envoy's action");
        }
    }

    /// Rules that an earlier or wider sibling takes everything from.
    fn covered(&mut self, descriptors: &[RawDescriptor]) {
        let mut patterns: Vec<(&str, Pattern, u32)> = Vec::new();
        for descriptor in descriptors {
            let (Some(key), Some(value)) = (&descriptor.key, &descriptor.value) else {
                continue;
            };
            let Some(pattern) = Pattern::new(&value.value) else {
                continue;
            };
            // A NUL stands in no pattern, so what fits it fits whatever the star stands for.
            let any = value.value.replace('*', "\0");
            if let Some((_, before, line)) = patterns
                .iter()
                .find(|(other, before, _)| *other == key.value && before.fits(&any))
            {
                let message = format!(
                    "nothing reaches this rule: {} on line {line} takes all its values first",
                    quoted(before.text())
                );
                self.warn(value.span, message)
                    .help("the first pattern that fits wins: move the narrower one up");
            }
            patterns.push((&key.value, pattern, value.span.line));
        }
        for descriptor in descriptors.iter().filter(|descriptor| descriptor.value.is_none()) {
            let Some(key) = &descriptor.key else { continue };
            if let Some((.., line)) = patterns
                .iter()
                .find(|(other, before, _)| *other == key.value && before.fits("\0"))
            {
                let message =
                    format!("nothing reaches this rule: `*` on line {line} takes every value first");
                self.warn(key.span, message).help("keep one of the two");
            }
        }
    }

    /// A branch once taken is not left: a listed value does not fall back to the rules of the others.
    fn lost_defaults(&mut self, descriptors: &[RawDescriptor]) {
        for default in descriptors.iter().filter(|descriptor| descriptor.value.is_none()) {
            let Some(key) = &default.key else { continue };
            let fallback = |below: &&RawDescriptor| below.value.is_none() && !below.limits.is_empty();
            for inner in default.descriptors.iter().filter(fallback) {
                let Some(inner_key) = &inner.key else { continue };
                let same_key =
                    |other: &RawDescriptor| other.key.as_ref().is_some_and(|k| k.value == inner_key.value);
                for listed in descriptors {
                    let Some(value) = listed
                        .value
                        .as_ref()
                        .filter(|_| listed.key.as_ref().is_some_and(|k| k.value == key.value))
                    else {
                        continue;
                    };
                    let mut below = listed
                        .descriptors
                        .iter()
                        .filter(|below| same_key(below))
                        .peekable();
                    let some = below.peek().is_some();
                    let all = below.any(|below| below.value.as_ref().is_none_or(|value| value.value == "*"));
                    if some && !all {
                        let message = format!(
                            "{} {} with another {} than those below meets no limit",
                            quoted(&key.value),
                            quoted(&value.value),
                            quoted(&inner_key.value)
                        );
                        self.warn(value.span, message).help(format!(
                            "the default on line {} is for other values of {}: repeat `- key: {}` with a limit under this one",
                            inner.span.line,
                            quoted(&key.value),
                            inner_key.value
                        ));
                    }
                }
            }
        }
    }

    /// Siblings that exist only to give one caller two periods.
    fn fake_entries(&mut self, descriptors: &[RawDescriptor]) {
        let fake = |descriptor: &&RawDescriptor| {
            let value = descriptor.value.as_ref().map(|value| value.value.to_lowercase());
            let word = value
                .as_deref()
                .map(|value| value.trim_start_matches("per").trim_start_matches(['_', '-']));
            let word = word.map(|word| word.trim_end_matches('s'));
            descriptor.descriptors.is_empty()
                && descriptor.limits.len() == 1
                && word.is_some_and(|word| Unit::ALL.iter().any(|unit| unit.name() == word))
        };
        let fakes: Vec<&RawDescriptor> = descriptors.iter().filter(fake).collect();
        let Some(first) = fakes.first().and_then(|descriptor| descriptor.key.as_ref()) else {
            return;
        };
        let same = fakes
            .iter()
            .filter(|other| other.key.as_ref().is_some_and(|key| key.value == first.value))
            .count();
        if same > 1 {
            self.warn(
                first.span,
                format!("{same} siblings that seem to differ only by the period they stand for"),
            )
            .help("`rate_limits:` takes several limits on one descriptor, and Envoy then sends only one");
        }
    }

    /// A key used once, nearly that of its siblings; or a value in the place of the key.
    fn odd_key_out(&mut self, descriptors: &[RawDescriptor]) {
        let key = |descriptor: &RawDescriptor| descriptor.key.as_ref().map(|key| key.value.clone());
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for key in descriptors.iter().filter_map(key) {
            *counts.entry(key).or_default() += 1;
        }
        let common = |key: &str| counts.get(key).is_some_and(|count| *count > 1);
        for descriptor in descriptors {
            let Some(own) = descriptor.key.as_ref().filter(|own| !common(&own.value)) else {
                continue;
            };
            let near = counts.keys().find(|key| common(key) && slip_of(&own.value, key));
            let Some(near) = near else { continue };
            self.warn(
                own.span,
                format!(
                    "the key {} stands once here, beside several {}",
                    quoted(&own.value),
                    quoted(near)
                ),
            )
            .help("keys are compared byte for byte: is it a slip, or are key and value swapped?");
        }
    }
}

/// Whether one word is the other but for case, or for one letter more or less. `client_id` is not
/// taken for a slip of `client_ip`.
fn slip_of(a: &str, b: &str) -> bool {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    a == b || (a.len() != b.len() && a.len() > 2 && strsim::osa_distance(&a, &b) == 1)
}
