//! Which budgets a reset means: those of one caller, or of one limit of it.

use std::borrow::Cow;
use std::sync::Arc;

use super::key::{BudgetKey, Values};
use super::limit::Limit;
use super::policy::{Domain, Level, Match};

/// The budgets of one limit that are to start afresh. A value that is not known stands for all.
#[derive(Clone, Debug)]
pub struct Target {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The position of the entry that names the caller; see [`BudgetKey::caller`].
    pub caller: Option<usize>,
    /// The values of its entries as they count; those that place the budget are always known.
    pub values: Vec<Option<Box<str>>>,
}

/// Why there is nothing to reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoTarget {
    /// No limit of the domain, or none of that name, has these entries with these values.
    Nothing,
    /// The caller of a limit is not named: its label and the entry that is missing.
    Caller(Box<str>, Box<str>),
}

impl Target {
    /// Whether every value is known, and so the budget is one.
    pub fn is_one(&self) -> bool {
        self.values.iter().all(Option::is_some)
    }

    /// The values, with nothing in place of those that are not known.
    pub fn values(&self) -> Values<'_> {
        let values = self.values.iter();
        values
            .map(|value| Cow::Borrowed(value.as_deref().unwrap_or_default()))
            .collect()
    }

    /// The budget's key, with [`Self::values`]: exact if it is one, else good for its place alone.
    pub fn key<'t>(&'t self, values: &'t [Cow<'t, str>]) -> BudgetKey<'t> {
        BudgetKey {
            identity: &self.limit.identity,
            values,
            caller: self.caller,
        }
    }

    /// Whether that budget is meant.
    pub fn means(&self, budget: &BudgetKey<'_>) -> bool {
        let fits = |(wanted, value): (&Option<Box<str>>, &Cow<'_, str>)| {
            wanted.as_ref().is_none_or(|wanted| **wanted == **value)
        };
        self.limit.identity.digest() == budget.identity.digest()
            && self.values.len() == budget.values.len()
            && self.values.iter().zip(budget.values).all(fits)
    }
}

/// The budgets of those entries, of one limit or of all that have these entries.
///
/// # Errors
/// When there are none, or the entries do not say whose they are.
pub fn targets(
    domain: &Domain,
    matches: &[(&str, &str)],
    limit: Option<&str>,
) -> Result<Vec<Target>, NoTarget> {
    let found = led_to(domain, matches, limit);
    if found.is_empty() {
        return Err(NoTarget::Nothing);
    }
    for target in &found {
        let missing = target
            .caller
            .filter(|&at| target.values.get(at).is_none_or(Option::is_none));
        if let Some(entry) = missing.and_then(|at| target.limit.identity.keys().get(at)) {
            return Err(NoTarget::Caller(target.limit.label.clone(), entry.clone()));
        }
    }
    Ok(found)
}

/// The same, whether it is said whose they are or not.
pub fn led_to(domain: &Domain, matches: &[(&str, &str)], limit: Option<&str>) -> Vec<Target> {
    let mut walk = Walk {
        matches,
        limit,
        path: Vec::new(),
        found: Vec::new(),
    };
    walk.level(&domain.rules, None);
    walk.found
}

struct Walk<'w> {
    matches: &'w [(&'w str, &'w str)],
    limit: Option<&'w str>,
    path: Vec<(&'w str, Option<Box<str>>)>,
    found: Vec<Target>,
}

impl<'w> Walk<'w> {
    fn level(&mut self, level: &'w Level, caller: Option<usize>) {
        for (key, rules) in &level.keys {
            let wanted = self.matches.iter().find(|(wanted, _)| *wanted == &**key);
            if let Some((_, value)) = wanted {
                // As a request with this value would; of addresses, people also write the network.
                let sent = match (rules.address, value.split_once('/')) {
                    (Some(_), Some((address, _))) => address,
                    _ => value,
                };
                if let Some((counted, node)) = rules.lookup(sent) {
                    self.node(key, Some(counted.into()), node, caller);
                }
                continue;
            }
            for (text, node) in &rules.exact {
                if node.matches == Match::Exact {
                    self.node(key, Some(text.clone()), node, caller);
                }
            }
            let wildcards = rules.wildcards.iter().map(|(_, node)| node);
            for node in wildcards.chain(&rules.any) {
                let shared = match &node.matches {
                    Match::Shared(pattern) => Some(pattern.clone()),
                    _ => None,
                };
                self.node(key, shared, node, caller);
            }
        }
    }

    fn node(
        &mut self,
        key: &'w str,
        value: Option<Box<str>>,
        node: &'w super::policy::Node,
        caller: Option<usize>,
    ) {
        let depth = self.path.len();
        let caller = caller.or((node.matches != Match::Exact).then_some(depth));
        self.path.push((key, value));
        let all_named = self
            .matches
            .iter()
            .all(|(key, _)| self.path.iter().any(|(own, _)| own == key));
        if all_named {
            for limit in &node.limits {
                let without_ceiling = limit.numbers.unlimited && limit.plans.is_none();
                if !without_ceiling && self.limit.is_none_or(|name| limit.name.as_deref() == Some(name)) {
                    self.found.push(Target {
                        limit: Arc::clone(limit),
                        caller,
                        values: self.path.iter().map(|(_, value)| value.clone()).collect(),
                    });
                }
            }
        }
        self.level(&node.children, caller);
        self.path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::Unit;
    use crate::support::policy::{domain, fixed};

    /// The budgets that are meant, each as `limit@caller value,value`.
    fn meant(
        domain: &Domain,
        matches: &[(&str, &str)],
        limit: Option<&str>,
    ) -> Result<Vec<String>, NoTarget> {
        let mut shown: Vec<String> = targets(domain, matches, limit)?
            .iter()
            .map(|target| {
                let values: Vec<&str> = target
                    .values
                    .iter()
                    .map(|v| v.as_deref().unwrap_or("?"))
                    .collect();
                format!("{}@{:?} {}", target.limit.label, target.caller, values.join(","))
            })
            .collect();
        shown.sort();
        Ok(shown)
    }

    #[test]
    fn a_reset_means_what_the_entries_lead_to() {
        let limit = |name| vec![fixed(name, 10, Unit::Minute)];
        let api = domain([
            (&[("tenant", None)][..], limit("tenant")),
            (&[("tenant", Some("acme"))], limit("special")),
            (&[("tenant", None), ("credential", None)], limit("credential")),
            (&[("tenant", None), ("route", Some("export"))], limit("export")),
            (&[("route", Some("export")), ("tenant", None)], limit("of-route")),
            (&[("plan", None), ("user", None)], limit("user")),
            (&[("page", Some("login"))], limit("page")),
        ]);
        assert_eq!(
            meant(&api, &[("tenant", "beta")], None).unwrap(),
            [
                "credential@Some(0) beta,?",
                "export@Some(0) beta,export",
                "of-route@Some(1) export,beta",
                "tenant@Some(0) beta",
            ]
        );
        // As a request: the rule for one value takes it out of the rule for all.
        assert_eq!(
            meant(&api, &[("tenant", "acme")], None).unwrap(),
            ["of-route@Some(1) export,acme", "special@None acme"]
        );
        assert_eq!(
            meant(&api, &[("tenant", "beta"), ("credential", "k1")], None).unwrap(),
            ["credential@Some(0) beta,k1"]
        );
        assert_eq!(
            meant(&api, &[("tenant", "beta")], Some("export")).unwrap(),
            ["export@Some(0) beta,export"]
        );
        assert_eq!(
            meant(&api, &[("page", "login")], None).unwrap(),
            ["page@None login"]
        );
        assert_eq!(
            meant(&api, &[("user", "u1")], None),
            Err(NoTarget::Caller("user".into(), "plan".into()))
        );
        for (matches, limit) in [
            (&[("tenant", "beta")][..], Some("nobody")),
            (&[("tenat", "beta")], None),
            (&[("page", "other")], None),
            (&[("tenant", "beta"), ("route", "other")], None),
        ] {
            assert_eq!(meant(&api, matches, limit), Err(NoTarget::Nothing), "{matches:?}");
        }
    }
}
