//! Overrides: a limit's numbers replaced for the callers that match, until they expire.

use std::sync::Arc;

use hashbrown::HashMap;

use super::limit::{Limit, MAX_LIMIT, Numbers};
use super::time::Timestamp;

mod check;

pub use check::{BadChange, Misfit, Target, decimal, misfits};

/// One override.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// How it is called in metadata and lists.
    pub id: Box<str>,
    /// Entries of the budget that must have these values; the others are free.
    pub matches: Vec<(Box<str>, Box<str>)>,
    /// The name of the limit it changes.
    pub limit: Box<str>,
    /// What it changes.
    pub change: Change,
    /// When it stops.
    pub expires_at: Option<Timestamp>,
    /// Who set it.
    pub author: Option<Box<str>>,
    /// Why.
    pub reason: Option<Box<str>>,
}

/// What an override does to the numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Scales `requests_per_unit` and `burst`, in thousandths.
    Multiply {
        /// 10x is 10,000.
        thousandths: u64,
    },
    /// New numbers.
    Set {
        /// Units per period.
        requests_per_unit: u64,
        /// Capacity of a token bucket; `None`: the same as `requests_per_unit`.
        burst: Option<u64>,
    },
    /// No ceiling.
    Unlimited,
}

impl Change {
    /// The numbers after the change; a product saturates at the engine's largest limit.
    pub fn apply(self, numbers: Numbers) -> Numbers {
        match self {
            Self::Multiply { thousandths } => {
                let scale = |n: u64| {
                    let product = u128::from(n) * u128::from(thousandths) / 1_000;
                    u64::try_from(product).unwrap_or(u64::MAX).min(MAX_LIMIT)
                };
                Numbers {
                    requests_per_unit: scale(numbers.requests_per_unit),
                    burst: scale(numbers.burst),
                    ..numbers
                }
            }
            Self::Set {
                requests_per_unit,
                burst,
            } => Numbers {
                requests_per_unit,
                burst: burst.unwrap_or(requests_per_unit),
                unlimited: false,
                ..numbers
            },
            Self::Unlimited => Numbers {
                unlimited: true,
                ..numbers
            },
        }
    }
}

/// The overrides of one limit, found by the value of one matched entry: a thousand tenants with an
/// override each cost no more to look up than one.
#[derive(Clone, Debug, Default)]
pub struct OverrideIndex {
    all: Vec<Arc<Override>>,
    by_entry: HashMap<(Box<str>, Box<str>), Vec<usize>>,
    keys: Vec<Box<str>>,
}

impl OverrideIndex {
    /// An index of overrides in file order; a later one beats an earlier one.
    pub fn new(all: Vec<Arc<Override>>) -> Self {
        let mut index = Self {
            all,
            ..Self::default()
        };
        for (i, item) in index.all.iter().enumerate() {
            // `match` is never empty in a policy; an empty one would match nothing here.
            let Some(first) = item.matches.first() else {
                continue;
            };
            if !index.keys.contains(&first.0) {
                index.keys.push(first.0.clone());
            }
            index.by_entry.entry(first.clone()).or_default().push(i);
        }
        index
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The override in force for a budget with these keys and values.
    pub fn find<V: AsRef<str>>(
        &self,
        keys: &[Box<str>],
        values: &[V],
        now: Timestamp,
    ) -> Option<&Arc<Override>> {
        if self.all.is_empty() {
            return None;
        }
        let value = |key: &str| {
            let at = keys.iter().position(|k| **k == *key)?;
            values.get(at).map(AsRef::as_ref)
        };
        let mut best = None;
        for key in &self.keys {
            let Some(v) = value(key) else { continue };
            let Some(candidates) = self.by_entry.get(&Pair(key, v)) else {
                continue;
            };
            let hit = candidates.iter().rev().copied().find(|&i| {
                let item = &self.all[i];
                item.expires_at.is_none_or(|at| now < at)
                    && item
                        .matches
                        .iter()
                        .all(|(key, wanted)| value(key) == Some(&**wanted))
            });
            best = best.max(hit);
        }
        best.map(|i| &self.all[i])
    }
}

/// The overrides set at run time, of all domains: immutable, swapped whole, and apart from the policy, so
/// that a reload and a change of overrides do not wait for each other.
#[derive(Clone, Debug, Default)]
pub struct RunTime {
    domains: HashMap<Box<str>, ByLimit>,
}

/// The overrides of one domain, by the name of the limit.
pub type ByLimit = HashMap<Box<str>, OverrideIndex>;

impl RunTime {
    /// These overrides with their domains; a later one beats an earlier one.
    pub fn new(all: impl IntoIterator<Item = (Box<str>, Arc<Override>)>) -> Self {
        let mut sorted: HashMap<Box<str>, HashMap<Box<str>, Vec<_>>> = HashMap::new();
        for (domain, item) in all {
            let limits = sorted.entry(domain).or_default();
            limits.entry(item.limit.clone()).or_default().push(item);
        }
        let index = |limits: HashMap<Box<str>, Vec<_>>| {
            let limits = limits.into_iter();
            limits
                .map(|(name, all)| (name, OverrideIndex::new(all)))
                .collect()
        };
        let domains = sorted.into_iter();
        Self {
            domains: domains.map(|(name, limits)| (name, index(limits))).collect(),
        }
    }

    /// Those of a domain.
    pub fn of_domain(&self, domain: &str) -> Option<&ByLimit> {
        // An empty map is not hashed into.
        self.domains.get(domain)
    }
}

/// The override in force for a budget of that limit: one set at run time, else one of its file.
pub fn in_force<'o, V: AsRef<str>>(
    live: Option<&'o ByLimit>,
    limit: &'o Limit,
    values: &[V],
    now: Timestamp,
) -> Option<&'o Arc<Override>> {
    let keys = limit.identity.keys();
    let live = live.and_then(|live| live.get(limit.name.as_deref()?)?.find(keys, values, now));
    live.or_else(|| limit.overrides.find(keys, values, now))
}

/// Looks a pair of strings up without owning it.
#[derive(Hash)]
struct Pair<'a>(&'a str, &'a str);

impl hashbrown::Equivalent<(Box<str>, Box<str>)> for Pair<'_> {
    fn equivalent(&self, key: &(Box<str>, Box<str>)) -> bool {
        self.0 == &*key.0 && self.1 == &*key.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_set_at_run_time_beats_the_file_until_it_expires() {
        let mut limit = crate::support::policy::fixed("tenant", 10, crate::engine::limit::Unit::Minute);
        let path = crate::engine::key::Identity::new(
            "api",
            &["tenant"],
            Some("tenant"),
            &limit.algorithm,
            &limit.period,
        );
        limit.identity = path;
        limit.overrides = OverrideIndex::new(vec![item("file", &[("tenant", "acme")], None)]);
        let live = RunTime::new([
            ("api".into(), item("live", &[("tenant", "acme")], Some(100))),
            ("other".into(), item("elsewhere", &[("tenant", "beta")], None)),
        ]);
        let find = |value, now| {
            in_force(live.of_domain("api"), &limit, &[value], Timestamp(now)).map(|item| &*item.id)
        };
        assert_eq!(find("acme", 99), Some("live"));
        assert_eq!(find("acme", 100), Some("file"));
        assert_eq!(find("beta", 0), None);
        assert_eq!(live.of_domain("none").map(ByLimit::len), None);
    }

    fn item(id: &str, matches: &[(&str, &str)], expires: Option<u64>) -> Arc<Override> {
        Arc::new(Override {
            id: id.into(),
            matches: matches.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            limit: "tenant".into(),
            change: Change::Unlimited,
            expires_at: expires.map(Timestamp),
            author: None,
            reason: None,
        })
    }

    #[test]
    fn the_later_matching_and_unexpired_one_wins() {
        let index = OverrideIndex::new(vec![
            item("old", &[("tenant", "acme")], None),
            item("new", &[("tenant", "acme")], Some(100)),
            item("narrow", &[("route", "x"), ("tenant", "acme")], None),
        ]);
        let keys: [Box<str>; 2] = ["tenant".into(), "route".into()];
        let find = |values: &[&str], now| {
            index
                .find(&keys[..values.len()], values, Timestamp(now))
                .map(|item| &*item.id)
        };
        assert_eq!(find(&["acme"], 99), Some("new"));
        assert_eq!(find(&["acme"], 100), Some("old"));
        assert_eq!(find(&["acme", "x"], 0), Some("narrow"));
        assert_eq!(find(&["acme", "y"], 0), Some("new"));
        assert_eq!(find(&["other"], 0), None);
    }
}
