//! What makes an override senseless, wherever it is written: in a policy file or at run time.

use crate::engine::limit::{Algorithm, Limit};
use crate::engine::policy::Pattern;

use super::Change;

/// Why a change is none, or not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadChange {
    /// It changes the limit in more than one way.
    Several,
    /// `burst` without `requests_per_unit`.
    BurstAlone,
    /// A burst of nothing.
    NoBurst,
    /// It changes nothing.
    Nothing,
}

impl BadChange {
    /// What is wrong, and what to write instead.
    pub fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Several => (
                "this override changes the limit in more than one way",
                "keep one of `multiply`, `requests_per_unit` (with `burst`) and `unlimited: true`",
            ),
            Self::BurstAlone => (
                "`burst` without `requests_per_unit`",
                "write both numbers, or `multiply` to scale both",
            ),
            Self::NoBurst => (
                "`burst: 0` never lets a request through",
                "write 1 or more; to refuse all, write `requests_per_unit: 0`",
            ),
            Self::Nothing => (
                "this override changes nothing",
                "write `multiply: 2`, `requests_per_unit: 600` or `unlimited: true`",
            ),
        }
    }
}

impl Change {
    /// The change that is written in these fields.
    ///
    /// # Errors
    /// When they are none, or contradict each other.
    pub fn read(
        thousandths: Option<u64>,
        requests_per_unit: Option<u64>,
        burst: Option<u64>,
        unlimited: bool,
    ) -> Result<Self, BadChange> {
        match (thousandths, requests_per_unit, unlimited) {
            (Some(_), Some(_), _) | (Some(_), _, true) | (_, Some(_), true) => Err(BadChange::Several),
            (_, None, _) if burst.is_some() => Err(BadChange::BurstAlone),
            (Some(thousandths), ..) => Ok(Self::Multiply { thousandths }),
            (_, Some(_), _) if burst == Some(0) => Err(BadChange::NoBurst),
            (_, Some(requests_per_unit), _) => Ok(Self::Set {
                requests_per_unit,
                burst,
            }),
            (None, None, true) => Ok(Self::Unlimited),
            (None, None, false) => Err(BadChange::Nothing),
        }
    }
}

/// A limit that an override names, as far as it matters whether they fit.
#[derive(Clone, Debug)]
pub struct Target<'t> {
    /// The entries that lead to it, with the value or pattern that a rule has for each.
    pub path: Vec<(&'t str, Option<&'t str>)>,
    /// It is a token bucket.
    pub bucket: bool,
    /// It has no ceiling for anybody.
    pub unlimited: bool,
}

impl<'t> Target<'t> {
    /// A limit of the policy in force.
    pub fn new(path: &[(&'t str, Option<&'t str>)], limit: &Limit) -> Self {
        Self {
            path: path.to_vec(),
            bucket: limit.algorithm == Algorithm::TokenBucket,
            unlimited: limit.numbers.unlimited && limit.plans.is_none(),
        }
    }
}

/// Why an override can never decide anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// No limit has that name.
    NoLimit,
    /// No budget of the limit has such entries. The position of an entry that none of them has, and the
    /// entries that they have.
    NoEntries(usize, String),
    /// No rule that leads to it has such values.
    NoValue,
    /// A burst for what is no token bucket.
    NoBucket,
    /// The limit has no ceiling anyway.
    Unlimited,
}

impl Misfit {
    /// What is wrong, and what to write instead; `name` is that of the limit, fit to be shown.
    pub fn text(&self, name: &str) -> (String, String) {
        match self {
            Self::NoLimit => (format!("no limit is called {name}"), String::new()),
            Self::NoEntries(_, paths) => (
                format!("matches nothing: the budgets of {name} have no such entries"),
                format!("its entries are {paths}"),
            ),
            Self::NoValue => (
                format!("matches nothing: no rule with the limit {name} has this value"),
                "write a value that one of its descriptors meets".into(),
            ),
            Self::NoBucket => (
                format!("`burst` has no meaning: the limit {name} is no `token_bucket`"),
                "take `burst` out".into(),
            ),
            Self::Unlimited => (
                format!("the limit {name} is unlimited; nothing can be changed about it"),
                "give the limit a `unit` and a number first".into(),
            ),
        }
    }
}

/// Why an override of these entries can never decide anything about the limits that have its name.
pub fn misfits(matches: &[(&str, &str)], has_burst: bool, targets: &[Target<'_>]) -> Vec<Misfit> {
    if targets.is_empty() {
        return vec![Misfit::NoLimit];
    }
    let has = |target: &Target<'_>, key: &str| target.path.iter().any(|(own, _)| *own == key);
    if !targets
        .iter()
        .any(|target| matches.iter().all(|(key, _)| has(target, key)))
    {
        let known = |(key, _): &(&str, &str)| targets.iter().any(|target| has(target, key));
        let stranger = matches.iter().position(|entry| !known(entry));
        let mut paths: Vec<String> = targets.iter().map(shown).collect();
        paths.dedup();
        return vec![Misfit::NoEntries(
            stranger.unwrap_or_default(),
            paths.join(" or "),
        )];
    }
    let mut faults = Vec::new();
    let meets = |target: &Target<'_>| {
        matches.iter().all(|(key, value)| {
            let mut steps = target.path.iter().filter(|(own, _)| own == key);
            steps.any(|(_, written)| written.is_none_or(|written| fits(written, value)))
        })
    };
    if !matches.is_empty() && !targets.iter().any(meets) {
        faults.push(Misfit::NoValue);
    }
    if has_burst && !targets.iter().any(|target| target.bucket) {
        faults.push(Misfit::NoBucket);
    }
    if targets.iter().all(|target| target.unlimited) {
        faults.push(Misfit::Unlimited);
    }
    faults
}

fn fits(written: &str, value: &str) -> bool {
    written == value || Pattern::new(written).is_some_and(|pattern| pattern.fits(value))
}

fn shown(target: &Target<'_>) -> String {
    let keys = target.path.iter().map(|(key, _)| format!("`{key}`"));
    keys.collect::<Vec<_>>().join(", ")
}

/// A decimal number in units of 10⁻ᵖˡᵃᶜᵉˢ: exact, since limits are computed from it.
pub fn decimal(text: &str, places: usize) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > places {
        return None;
    }
    if text.ends_with('.') {
        return None;
    }
    format!("{whole}{fraction:0<places$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_one_thing() {
        let read = Change::read;
        assert_eq!(
            read(Some(2_500), None, None, false),
            Ok(Change::Multiply { thousandths: 2_500 })
        );
        let set = Change::Set {
            requests_per_unit: 0,
            burst: None,
        };
        assert_eq!(read(None, Some(0), None, false), Ok(set));
        assert_eq!(read(None, None, None, true), Ok(Change::Unlimited));
        for (fields, fault) in [
            ((Some(1), Some(1), None, false), BadChange::Several),
            ((Some(1), None, None, true), BadChange::Several),
            ((None, Some(1), Some(1), true), BadChange::Several),
            ((None, None, Some(1), false), BadChange::BurstAlone),
            ((Some(1), None, Some(1), false), BadChange::BurstAlone),
            ((None, Some(1), Some(0), false), BadChange::NoBurst),
            ((None, None, None, false), BadChange::Nothing),
        ] {
            let (thousandths, units, burst, unlimited) = fields;
            assert_eq!(
                read(thousandths, units, burst, unlimited),
                Err(fault),
                "{fields:?}"
            );
        }
    }

    #[test]
    fn an_override_that_can_decide_nothing_is_known() {
        let target = |path: &[(&'static str, Option<&'static str>)], bucket, unlimited| Target {
            path: path.to_vec(),
            bucket,
            unlimited,
        };
        let tenant = target(&[("tenant", None)], true, false);
        let route = target(&[("route", Some("GET /x*"))], false, false);
        let vip = target(&[("vip", None)], false, true);
        let acme = [("tenant", "acme")];
        let one = std::slice::from_ref;
        assert_eq!(misfits(&acme, true, one(&tenant)), []);
        assert_eq!(misfits(&acme, false, &[]), [Misfit::NoLimit]);
        assert_eq!(misfits(&[("route", "GET /xyz")], false, one(&route)), []);
        assert_eq!(
            misfits(&[("route", "GET /y")], false, one(&route)),
            [Misfit::NoValue]
        );
        assert_eq!(
            misfits(&[("route", "GET /x*")], true, one(&route)),
            [Misfit::NoBucket]
        );
        assert_eq!(misfits(&[("vip", "a")], false, one(&vip)), [Misfit::Unlimited]);
        assert_eq!(
            misfits(
                &[("tenant", "acme"), ("rout", "x")],
                false,
                &[tenant, route.clone(), route]
            ),
            [Misfit::NoEntries(1, "`tenant` or `route`".into())]
        );
    }
}
