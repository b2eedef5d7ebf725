//! The counters of one policy, found by the address of its domains and limits.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use hashbrown::{HashMap, HashSet};
use prometheus_client::metrics::counter::Counter;

use super::histogram::ShareHistogram;
use super::labels::{
    Code, ConfigLabels, DecisionLabels, LimitLabels, LimitVerdict, RequestLabels, UnmatchedLabels,
};
use super::{Families, UNKNOWN_DOMAIN, WIRE_OVERRIDE};
use crate::engine::limit::{FailureMode, Limit};
use crate::engine::policy::{Domain, Policy};
use crate::engine::resolve::Unmatched;
use crate::usage::{LimitUsage, Usage};

/// The counters of one policy.
#[derive(Debug)]
pub(super) struct Handles {
    /// By the address of the domain.
    domains: HashMap<usize, DomainHandles>,
    /// The same by name, for requests that began under the policy before this one.
    by_name: HashMap<Arc<str>, usize>,
    unknown: DomainHandles,
    series: Series,
    /// Held so that no other domain or limit can come to lie at one of the addresses.
    _policy: Arc<Policy>,
}

/// The counters of one domain.
#[derive(Debug)]
pub(super) struct DomainHandles {
    requests: [Counter; Code::ALL.len()],
    unmatched: [Option<Counter>; Unmatched::ALL.len()],
    /// By the address of the limit; limits of one label share their counters.
    limits: HashMap<usize, Arc<LimitHandles>>,
    by_label: HashMap<Arc<str>, Arc<LimitHandles>>,
    wire: LimitHandles,
}

/// What is counted of one limit.
#[derive(Debug)]
pub(super) struct LimitHandles {
    /// One for each verdict that it can give.
    verdicts: [Option<Counter>; LimitVerdict::ALL.len()],
    /// None for a limit that gives no verdict, and for the ceiling: it has one budget, and no callers.
    pub(super) used: Option<UseHandles>,
    /// Refusals for which the store was not asked; a series from the first on.
    unasked: OnceLock<Counter>,
    /// Verdicts without the store, in the order of [`FailureMode::ALL`]; series from the first on.
    degraded: [OnceLock<Counter>; FailureMode::ALL.len()],
    labels: LimitLabels,
}

/// How one limit is used.
#[derive(Debug)]
pub(super) struct UseHandles {
    /// How full its budgets were after requests that passed.
    pub(super) utilization: ShareHistogram,
    /// By whom.
    pub(super) usage: Arc<LimitUsage>,
}

/// Every series of a policy.
#[derive(Debug, Default)]
struct Series {
    requests: HashSet<RequestLabels>,
    decisions: HashSet<DecisionLabels>,
    limits: HashSet<LimitLabels>,
    unmatched: HashSet<UnmatchedLabels>,
    config: HashSet<ConfigLabels>,
}

// === impl Handles ===

impl Handles {
    pub(super) fn new(families: &Families, usage: &Usage, policy: Arc<Policy>, shadow: bool) -> Self {
        let mut maker = Maker {
            families,
            usage,
            shadow,
            series: Series::default(),
        };
        let unknown = maker.domain(&UNKNOWN_DOMAIN.into(), Known::No);
        let mut domains = HashMap::new();
        let mut by_name = HashMap::new();
        for domain in policy.domains.values() {
            let name: Arc<str> = (&*domain.name).into();
            maker.config(&name, &domain.revision);
            let mut handles = maker.domain(&name, Known::Yes);
            maker.limits(&name, domain, &mut handles);
            domains.insert(address(&**domain), handles);
            by_name.insert(name, address(&**domain));
        }
        Self {
            domains,
            by_name,
            unknown,
            series: maker.series,
            _policy: policy,
        }
    }

    /// The counters of a domain; those of `unknown` for none, and for one that is no longer in force.
    pub(super) fn domain(&self, domain: Option<&Domain>) -> &DomainHandles {
        let Some(domain) = domain else {
            return &self.unknown;
        };
        let found = self.domains.get(&address(domain)).or_else(|| {
            let at = self.by_name.get(&*domain.name)?;
            self.domains.get(at)
        });
        found.unwrap_or(&self.unknown)
    }

    /// Takes the series away that this policy had and the next one has not.
    pub(super) fn remove_what_is_gone(&self, next: &Self, families: &Families, usage: &Usage) {
        for labels in self.series.requests.difference(&next.series.requests) {
            families.requests.remove(labels);
        }
        for labels in self.series.decisions.difference(&next.series.decisions) {
            families.decisions.remove(labels);
        }
        for labels in self.series.limits.difference(&next.series.limits) {
            families.utilization.remove(labels);
            families.unasked.remove(labels);
            for mode in FailureMode::ALL {
                families.degraded.remove(&labels.degraded(mode));
            }
        }
        let in_force: HashSet<(&str, &str)> = next.series.limits.iter().map(LimitLabels::names).collect();
        usage.retain(|domain, limit| in_force.contains(&(domain, limit)));
        for labels in self.series.unmatched.difference(&next.series.unmatched) {
            families.unmatched.remove(labels);
        }
        for labels in self.series.config.difference(&next.series.config) {
            families.config.remove(labels);
        }
    }
}

// === impl DomainHandles ===

impl DomainHandles {
    pub(super) fn request(&self, code: Code) {
        self.requests[code as usize].inc();
    }

    pub(super) fn unmatched(&self, reason: Unmatched) {
        if let Some(counter) = &self.unmatched[reason as usize] {
            counter.inc();
        }
    }

    /// The counters of a limit; `None` when the policy in force has no limit of that label any more.
    pub(super) fn limit(&self, limit: &Limit) -> Option<&LimitHandles> {
        let found = self.limits.get(&address(limit));
        found
            .or_else(|| self.by_label.get(&*limit.label))
            .map(|handles| &**handles)
    }

    pub(super) fn wire(&self) -> &LimitHandles {
        &self.wire
    }
}

// === impl LimitHandles ===

impl LimitHandles {
    pub(super) fn count(&self, verdict: LimitVerdict) {
        if let Some(counter) = &self.verdicts[verdict as usize] {
            counter.inc();
        }
    }

    pub(super) fn unasked(&self, families: &Families) {
        let series = || families.unasked.get_or_create_owned(&self.labels);
        self.unasked.get_or_init(series).inc();
    }

    pub(super) fn degraded(&self, mode: FailureMode, families: &Families) {
        let series = || families.degraded.get_or_create_owned(&self.labels.degraded(mode));
        self.degraded[mode as usize].get_or_init(series).inc();
    }
}

/// Makes counters, and notes which.
struct Maker<'f> {
    families: &'f Families,
    usage: &'f Usage,
    shadow: bool,
    series: Series,
}

/// Whether a policy has the domain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Yes,
    No,
}

/// Whether the budgets of a limit are those of callers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Callers {
    Many,
    None,
}

/// Which verdicts a limit can give, in the order of [`LimitVerdict::ALL`].
type Possible = [bool; LimitVerdict::ALL.len()];

impl Maker<'_> {
    fn domain(&mut self, name: &Arc<str>, known: Known) -> DomainHandles {
        let requests = Code::ALL.map(|code| {
            let labels = RequestLabels {
                domain: Arc::clone(name),
                code,
            };
            let counter = self.families.requests.get_or_create_owned(&labels);
            self.series.requests.insert(labels);
            counter
        });
        let unmatched = Unmatched::ALL.map(|reason| {
            let labels = UnmatchedLabels {
                domain: Arc::clone(name),
                reason: reason.name(),
            };
            let possible = (reason == Unmatched::UnknownDomain) == (known == Known::No);
            possible.then(|| {
                let counter = self.families.unmatched.get_or_create_owned(&labels);
                self.series.unmatched.insert(labels);
                counter
            })
        });
        let possible = match known {
            Known::Yes => [true, !self.shadow, self.shadow, false, false],
            // Limits sent along are ignored there as well.
            Known::No => Possible::default(),
        };
        let wire = self.limit(name, &WIRE_OVERRIDE.into(), possible, Callers::Many);
        DomainHandles {
            requests,
            unmatched,
            limits: HashMap::new(),
            by_label: HashMap::new(),
            wire,
        }
    }

    fn limits(&mut self, name: &Arc<str>, domain: &Domain, handles: &mut DomainHandles) {
        let mut possible: BTreeMap<&str, Possible> = BTreeMap::new();
        domain.for_each_limit(&mut |_, limit| {
            let all = possible.entry(&limit.label).or_default();
            for (all, this) in all.iter_mut().zip(verdicts_of(limit, self.shadow)) {
                *all |= this;
            }
        });
        for (label, possible) in possible {
            let label: Arc<str> = label.into();
            let counters = Arc::new(self.limit(name, &label, possible, Callers::Many));
            handles.by_label.insert(label, counters);
        }
        // In shadow mode it is not charged.
        if let Some(ceiling) = domain.safety_ceiling.as_deref().filter(|_| !self.shadow) {
            let label: Arc<str> = (&*ceiling.label).into();
            let possible = verdicts_of(ceiling, self.shadow);
            let counters = Arc::new(self.limit(name, &label, possible, Callers::None));
            handles.by_label.insert(label, counters);
        }
        domain.for_each_limit(&mut |_, limit| {
            if let Some(counters) = handles.by_label.get(&*limit.label) {
                handles.limits.insert(address(&**limit), Arc::clone(counters));
            }
        });
    }

    fn limit(
        &mut self,
        domain: &Arc<str>,
        limit: &Arc<str>,
        possible: Possible,
        callers: Callers,
    ) -> LimitHandles {
        let verdicts = LimitVerdict::ALL.map(|verdict| {
            let labels = DecisionLabels {
                domain: Arc::clone(domain),
                limit: Arc::clone(limit),
                verdict,
            };
            possible[verdict as usize].then(|| {
                let counter = self.families.decisions.get_or_create_owned(&labels);
                self.series.decisions.insert(labels);
                counter
            })
        });
        let labels = LimitLabels {
            domain: Arc::clone(domain),
            limit: Arc::clone(limit),
        };
        let gives_verdicts = possible.contains(&true);
        if gives_verdicts {
            self.series.limits.insert(labels.clone());
        }
        let used = (gives_verdicts && callers == Callers::Many).then(|| UseHandles {
            utilization: self.families.utilization.get_or_create_owned(&labels),
            usage: self.usage.limit(domain, limit),
        });
        LimitHandles {
            verdicts,
            used,
            unasked: OnceLock::new(),
            degraded: Default::default(),
            labels,
        }
    }

    fn config(&mut self, domain: &Arc<str>, version: &str) {
        let labels = ConfigLabels {
            domain: Arc::clone(domain),
            version: version.into(),
        };
        self.families.config.get_or_create(&labels).set(1);
        self.series.config.insert(labels);
    }
}

/// A series that can only ever be zero is not made: a thousand limits are two thousand series, not five.
fn verdicts_of(limit: &Limit, shadow_all: bool) -> Possible {
    let shadow = shadow_all || limit.shadow;
    let mut numbers = limit
        .plans
        .iter()
        .flat_map(|plans| plans.rows.values())
        .chain([&limit.numbers]);
    // Overrides change neither.
    let waits = numbers.any(|numbers| numbers.max_wait.0 > 0);
    [true, !shadow, shadow, waits, limit.excess.is_some()]
}

fn address<T>(of: &T) -> usize {
    std::ptr::from_ref(of).addr()
}
