//! What tells one budget from another, and which budgets belong together.
//!
//! A budget is identified by its domain, the entries that led to it and the limit's own identity; the
//! *partition* is the caller: all its budgets are decided under one lock, or in one slot.

use std::borrow::Cow;
use std::hash::Hasher as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use super::limit::{Algorithm, Period};

/// All that could be mistaken for structure, somewhere.
const ODD: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'/')
    .remove(b':')
    .remove(b'@')
    .remove(b'+')
    .remove(b'*');

/// The values of the entries that led to a limit, in order; a shared pattern stands for its values.
pub type Values<'a> = SmallVec<[Cow<'a, str>; 4]>;

/// The part of a budget's identity that the policy decides. Changing period, algorithm, name or time
/// zone of a limit changes it, and so starts a fresh budget; changing numbers does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    domain: Box<str>,
    keys: Box<[Box<str>]>,
    limit: Box<str>,
    code: Box<str>,
    digest: u128,
    /// Digests of the domain and each of the keys: all of a caller but its value.
    places: Box<[u128]>,
}

impl Identity {
    /// The identity of a limit found under these descriptor keys. `name` is `None` for a limit without
    /// one, whose period then tells it from its siblings.
    pub fn new(
        domain: &str,
        keys: &[&str],
        name: Option<&str>,
        algorithm: &Algorithm,
        period: &Period,
    ) -> Self {
        let zone = match algorithm {
            Algorithm::FixedWindow(super::time::Windows::Calendar { zone, .. }) => zone.iana_name(),
            _ => None,
        };
        let called = |algorithm: &str, period: &str| {
            let mut out = String::new();
            if let Some(name) = name {
                escape(&mut out, name);
                out.push('/');
            }
            out.push_str(algorithm);
            out.push('/');
            escape(&mut out, period);
            if let Some(zone) = zone {
                out.push('/');
                escape(&mut out, zone);
            }
            out
        };
        let limit = called(algorithm.name(), &period.text);
        // A period without a unit begins with a digit: it is none of the codes.
        let code = called(
            algorithm.code(),
            period.unit.map_or(&period.text, |unit| unit.code()),
        );
        Self::of(domain, keys, &limit, &code)
    }

    /// The identity of a limit that came with a request: of its own, whatever the policy's are called.
    pub fn of_wire(domain: &str, keys: &[&str], period: &Period) -> Self {
        // No name can hold the mark: it would be escaped.
        let limit = format!("!override/{}", period.text);
        Self::of(domain, keys, &limit, &limit)
    }

    fn of(domain: &str, keys: &[&str], limit: &str, code: &str) -> Self {
        Self {
            domain: domain.into(),
            keys: keys.iter().map(|&key| key.into()).collect(),
            limit: limit.into(),
            code: code.into(),
            digest: digest([domain].iter().chain(keys).chain(&[limit])),
            places: keys.iter().map(|key| digest(&[domain, key])).collect(),
        }
    }

    /// A 128-bit digest of the identity, for stores that do not keep text.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// What tells the limit from others under the same keys: its name, algorithm, period and time zone.
    pub fn limit(&self) -> &str {
        &self.limit
    }

    /// The same in few bytes, for stores that keep text: `contract/fw/mo`.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The descriptor keys that lead to the limit.
    pub fn keys(&self) -> &[Box<str>] {
        &self.keys
    }
}

/// Only the policy's author chooses what is hashed here, so a fixed key will do.
fn digest<'a>(parts: impl IntoIterator<Item = &'a &'a str>) -> u128 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write_u64(part.len() as u64);
        hasher.write(part.as_bytes());
    }
    hasher.finish128().as_u128()
}

/// One budget of one request.
#[derive(Clone, Copy, Debug)]
pub struct BudgetKey<'a> {
    /// The limit's part.
    pub identity: &'a Identity,
    /// The caller's part: one value for each of the identity's keys.
    pub values: &'a [Cow<'a, str>],
    /// The position of the entry that names the caller: the first one matched by wildcard or by key
    /// alone. `None` where the whole path is literal: the rule is its own partition.
    pub caller: Option<usize>,
}

impl BudgetKey<'_> {
    /// Feeds what identifies the budget to a hasher, injectively.
    pub fn feed(&self, hasher: &mut SipHasher13) {
        hasher.write_u128(self.identity.digest);
        for value in self.values {
            hasher.write_u64(value.len() as u64);
            hasher.write(value.as_bytes());
        }
    }

    /// Feeds what identifies the caller to a hasher: the same for all budgets of one caller.
    pub fn feed_partition(&self, hasher: &mut SipHasher13) {
        let placing = self.identity.places.iter().zip(self.values).enumerate();
        for (i, (place, value)) in placing {
            if self.caller.is_none_or(|caller| caller == i) {
                hasher.write_u128(*place);
                hasher.write_u64(value.len() as u64);
                hasher.write(value.as_bytes());
            }
        }
    }

    /// Whether this budget is known to be of the same caller as another one. Where it is not known, the partition
    /// may still be the same.
    pub fn shares_caller(&self, other: &Self) -> bool {
        let caller = |key: &Self| key.caller.map(|i| (key.identity.places[i], &key.values[i]));
        match (caller(self), caller(other)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => false,
        }
    }

    /// Feeds what tells the budget from others of its caller, to a hasher that was fed the partition: injectively,
    /// and in less than [`Self::feed`] needs.
    pub fn feed_within(&self, hasher: &mut SipHasher13) {
        hasher.write_u128(self.identity.digest);
        let Some(caller) = self.caller else {
            // All are part of the partition.
            return;
        };
        for (i, value) in self.values.iter().enumerate() {
            if i != caller {
                hasher.write_u64(value.len() as u64);
                hasher.write(value.as_bytes());
            }
        }
    }

    /// The budget as a person reads it: `{api|tenant=acme}|tenant=acme|contract/fixed_window/month`.
    /// Bytes that could be mistaken for structure are percent-encoded.
    pub fn text(&self) -> String {
        let mut out = String::from("{");
        escape(&mut out, &self.identity.domain);
        out.push('|');
        write_entries(&mut out, self.tag());
        out.push_str("}|");
        write_entries(&mut out, self.entries());
        out.push('|');
        out.push_str(&self.identity.limit);
        out
    }

    /// The entries that lead to the limit, as they count.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        let keys = self.identity.keys.iter().map(|key| &**key);
        keys.zip(self.values.iter().map(|value| &**value))
    }

    /// The domain.
    pub fn domain(&self) -> &str {
        &self.identity.domain
    }

    /// The entries that place the budget: the caller's, or all of a path that is literal throughout. A
    /// rule for one value thus shares its place with the rule for every value that it was taken out of.
    pub fn tag(&self) -> impl Iterator<Item = (&str, &str)> {
        let caller = self.caller;
        let entries = self.entries().enumerate();
        let placing = entries.filter(move |(i, _)| caller.is_none_or(|caller| caller == *i));
        placing.map(|(_, entry)| entry)
    }
}

fn write_entries<'a>(out: &mut String, entries: impl Iterator<Item = (&'a str, &'a str)>) {
    for (i, (key, value)) in entries.enumerate() {
        if i > 0 {
            out.push(',');
        }
        escape(out, key);
        out.push('=');
        escape(out, value);
    }
}

/// Appends `text` with everything but letters, digits and `-._/:@+*` percent-encoded.
pub fn escape(out: &mut String, text: &str) {
    out.extend(utf8_percent_encode(text, ODD));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::Unit;

    fn text(domain: &str, entries: &[(&str, &str)], name: Option<&str>) -> String {
        let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
        let values: Values<'_> = entries.iter().map(|(_, value)| Cow::Borrowed(*value)).collect();
        let identity = Identity::new(
            domain,
            &keys,
            name,
            &Algorithm::TokenBucket,
            &Unit::Minute.period(),
        );
        BudgetKey {
            identity: &identity,
            values: &values,
            caller: Some(0),
        }
        .text()
    }

    #[test]
    fn ordinary_values_are_readable() {
        assert_eq!(
            text(
                "api",
                &[("tenant", "acme"), ("route", "/v1/search")],
                Some("search")
            ),
            "{api|tenant=acme}|tenant=acme,route=/v1/search|search/token_bucket/minute"
        );
    }

    #[test]
    fn every_other_character_is_escaped() {
        for byte in 0..=0x7F_u8 {
            let mut out = String::new();
            escape(&mut out, &char::from(byte).to_string());
            let ordinary = byte.is_ascii_alphanumeric() || b"-._/:@+*".contains(&byte);
            let wanted = match ordinary {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            };
            assert_eq!(out, wanted);
        }
        let mut out = String::from("x");
        escape(&mut out, "a\u{e9}~b");
        assert_eq!(out, "xa%C3%A9%7Eb");
    }

    #[test]
    fn a_literal_path_is_its_own_place() {
        let place = |entries: &[(&str, &str)], name, caller| {
            let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
            let values: Values<'_> = entries.iter().map(|(_, value)| Cow::Borrowed(*value)).collect();
            let (algorithm, period) = (Algorithm::TokenBucket, Unit::Minute.period());
            let identity = Identity::new("api", &keys, name, &algorithm, &period);
            let key = BudgetKey {
                identity: &identity,
                values: &values,
                caller,
            };
            let mut hasher = SipHasher13::new();
            key.feed_partition(&mut hasher);
            let text = key.text();
            (
                hasher.finish128().as_u128(),
                text[..=text.find('}').unwrap()].to_owned(),
            )
        };
        let literal = place(&[("route", "a"), ("method", "GET")], None, None);
        assert_eq!(literal.1, "{api|route=a,method=GET}");
        // The limits of one rule are decided together, those of another rule elsewhere.
        assert_eq!(
            literal,
            place(&[("route", "a"), ("method", "GET")], Some("x"), None)
        );
        assert_ne!(
            literal.0,
            place(&[("route", "b"), ("method", "GET")], None, None).0
        );
        // A rule for one value and the rule for every value.
        assert_eq!(
            place(&[("tenant", "acme")], None, None),
            place(&[("tenant", "acme")], None, Some(0))
        );
    }

    #[test]
    fn hostile_values_stay_apart() {
        let cases: [&[(&str, &str)]; 8] = [
            &[("a", "b"), ("c", "d")],
            &[("a", "b,c=d")],
            &[("a=b,c", "d")],
            &[("a", "b|c")],
            &[("a", "b}{c")],
            &[("a", "b%2Cc=d")],
            &[("a", "b\0")],
            &[("a", "")],
        ];
        let mut seen: Vec<String> = cases.iter().map(|entries| text("x", entries, None)).collect();
        seen.push(text("x|a=b}", &[("a", "b")], None));
        seen.push(text("x", &[("a", "b")], Some("token_bucket/minute")));
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all);
        assert!(
            seen.iter()
                .all(|key| key.matches('{').count() == 1 && key.matches('}').count() == 1)
        );
    }
}
