//! The compiled policy: rules as a tree of descriptor entries, immutable and swapped whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::descriptor::AddressRule;
use super::limit::{Limit, Value};
use super::overrides::Override;
use super::response::Response;

/// The name of the ceiling over all that is decided locally; no limit of a policy may have it.
pub const SAFETY_CEILING: &str = "safety_ceiling";

/// All domains in force.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// By name.
    pub domains: HashMap<Box<str>, Arc<Domain>>,
    /// Counts the policies that were in force before this one.
    pub version: u64,
}

/// The rules of one domain.
#[derive(Clone, Debug, Default)]
pub struct Domain {
    /// Its name, as in Envoy's filter.
    pub name: Box<str>,
    /// Tells one text of its file from another, on every replica alike.
    pub revision: Box<str>,
    /// The top level of its rules.
    pub rules: Level,
    /// What a request costs.
    pub costs: Option<Costs>,
    /// What answers look like.
    pub response: Response,
    /// What the limits of failure mode `local` may let pass together while the store is down, over all
    /// replicas: a token bucket called [`SAFETY_CEILING`].
    pub safety_ceiling: Option<Arc<Limit>>,
    /// The overrides of its file, in order; each limit has its own index of them.
    pub overrides: Vec<Arc<Override>>,
    /// Every key that any rule uses, to tell a wrong order from a wrong name.
    pub keys: HashSet<Box<str>>,
    /// Whether any limit replaces others.
    pub has_replaces: bool,
}

/// The weight of a request, by the value of one entry of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The entry, anywhere in the request.
    pub entry: Box<str>,
    /// The weight of values that are not listed.
    pub default: u64,
    /// The weights of listed values.
    pub values: HashMap<Box<str>, u64>,
}

/// The rules for one entry of a descriptor.
#[derive(Clone, Debug, Default)]
pub struct Level {
    /// By key.
    pub keys: HashMap<Box<str>, KeyRules>,
}

/// The rules for one key at one level. A value is looked for among `exact`, then `wildcards` in file
/// order, then `any`.
#[derive(Clone, Debug, Default)]
pub struct KeyRules {
    /// The value is read as a network address before it is matched.
    pub address: Option<AddressRule>,
    /// The value is read as a path before it is matched.
    pub normalize_path: bool,
    /// Rules for one value; the text of a pattern is found here as well.
    pub exact: HashMap<Box<str>, Arc<Node>>,
    /// Rules for values that fit a pattern.
    pub wildcards: Vec<(Pattern, Arc<Node>)>,
    /// The rule for every other value.
    pub any: Option<Arc<Node>>,
}

/// One rule: what a descriptor that ends here meets, and what may follow.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// How the rule's own entry matches.
    pub matches: Match,
    /// The limits of a descriptor that ends here.
    pub limits: Vec<Arc<Limit>>,
    /// Rules for the next entry.
    pub children: Level,
    /// Free-form, answered in the metadata of requests that pass.
    pub metadata: Option<Arc<BTreeMap<Box<str>, Value>>>,
}

/// How a rule's own entry matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// One value.
    #[default]
    Exact,
    /// Values that fit a pattern, each with budgets of its own.
    Wildcard,
    /// Values that fit this pattern, all on one budget.
    Shared(Box<str>),
    /// Any value.
    Any,
}

/// A value with `*`, each standing for zero or more bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    prefix: Box<str>,
    middle: Vec<Box<str>>,
    suffix: Box<str>,
}

impl Pattern {
    /// A pattern; `None` when the text has no `*`.
    pub fn new(text: &str) -> Option<Self> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        Some(Self {
            text: text.into(),
            prefix: prefix.into(),
            middle: middle
                .split('*')
                .filter(|part| !part.is_empty())
                .map(Into::into)
                .collect(),
            suffix: suffix.into(),
        })
    }

    /// The pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a value fits. Prefix and suffix may not overlap.
    pub fn fits(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(&*self.prefix) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(&*self.suffix) else {
            return false;
        };
        for part in &self.middle {
            let Some(at) = rest.find(&**part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

impl KeyRules {
    /// The rule for a value.
    pub fn find(&self, value: &str) -> Option<&Arc<Node>> {
        self.exact
            .get(value)
            .or_else(|| {
                self.wildcards
                    .iter()
                    .find(|(pattern, _)| pattern.fits(value))
                    .map(|(_, node)| node)
            })
            .or(self.any.as_ref())
    }
}

impl Domain {
    /// Calls `visit` for every limit, with the keys and values (or patterns, or nothing) that lead to it.
    pub fn for_each_limit<'d>(&'d self, visit: &mut Visit<'_, 'd>) {
        walk(&self.rules, &mut Vec::new(), visit);
    }

    /// How many limits it has.
    pub fn limit_count(&self) -> usize {
        let mut count = 0;
        self.for_each_limit(&mut |_, _| count += 1);
        count
    }
}

/// Called with the path of a limit (keys, with a value or pattern where one is written) and the limit.
pub type Visit<'v, 'd> = dyn FnMut(&[(&'d str, Option<&'d str>)], &'d Arc<Limit>) + 'v;

fn walk<'d>(level: &'d Level, path: &mut Vec<(&'d str, Option<&'d str>)>, visit: &mut Visit<'_, 'd>) {
    let mut keys: Vec<_> = level.keys.iter().collect();
    keys.sort_by_key(|(key, _)| &***key);
    for (key, rules) in keys {
        let mut exact: Vec<_> = rules
            .exact
            .iter()
            .filter(|(_, n)| n.matches == Match::Exact)
            .collect();
        exact.sort_by_key(|(value, _)| &***value);
        let exact = exact.into_iter().map(|(value, node)| (Some(&**value), node));
        let wildcards = rules
            .wildcards
            .iter()
            .map(|(pattern, node)| (Some(pattern.text()), node));
        for (value, node) in exact
            .chain(wildcards)
            .chain(rules.any.iter().map(|node| (None, node)))
        {
            path.push((key, value));
            for limit in &node.limits {
                visit(path, limit);
            }
            walk(&node.children, path, visit);
            path.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_zero_or_more_bytes() {
        for (pattern, fitting, others) in [
            ("foo*", &["foo", "foobar"][..], &["fo", "barfoo"][..]),
            (
                "foo*bar*baz",
                &["foo1bar2baz", "foobarbaz"],
                &["foobaz", "foobarbazX", "foo1baz2bar"],
            ),
            ("ab*ba", &["abba", "ab1ba"], &["aba"]),
            ("*", &["", "x"], &[]),
            ("**", &["", "x"], &[]),
            ("*/admin", &["/admin", "/x/admin"], &["/admin/"]),
            ("a*b*b", &["abb", "axbxb"], &["ab"]),
        ] {
            let pattern = Pattern::new(pattern).unwrap();
            for value in fitting {
                assert!(pattern.fits(value), "{} fits {value}", pattern.text());
            }
            for value in others {
                assert!(!pattern.fits(value), "{} does not fit {value}", pattern.text());
            }
        }
        assert_eq!(Pattern::new("plain"), None);
    }
}
