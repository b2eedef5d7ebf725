//! A limit out of its keys, the defaults and its plan rows. Precedence: defaults < limit < row.

use std::sync::Arc;
use std::time::Duration;

use super::{Compiler, Placed, Step};
use crate::config::fault::{Span, quoted};
use crate::config::keys::nearest;
use crate::config::raw::{At, ExcessAction, RawDescriptor, RawExcess, RawLimit};
use crate::engine::key::Identity;
use crate::engine::limit::{self, Algorithm, Excess, Limit, Numbers, Period, Plans, Unit};
use crate::engine::overrides::OverrideIndex;
use crate::engine::policy::SAFETY_CEILING;
use crate::engine::time::Micros;

impl<'r> Compiler<'r, '_, '_> {
    /// The limits of one descriptor, in the order of the file.
    pub(super) fn limits(&mut self, descriptor: &'r RawDescriptor, path: &[Step<'r>]) -> Vec<Arc<Limit>> {
        let mut limits = Vec::new();
        let mut seen: Vec<(&RawLimit, Arc<Limit>)> = Vec::new();
        for raw in &descriptor.limits {
            let Some(limit) = self.limit(raw, descriptor, path) else {
                continue;
            };
            let limit = Arc::new(limit);
            let twin = seen.iter().find(|(_, other)| match (&other.name, &limit.name) {
                (None, None) => other.period.length == limit.period.length,
                (a, b) => a == b,
            });
            if let Some((before, _)) = twin {
                let (line, span) = (
                    before.span.line,
                    raw.name.as_ref().map_or(raw.span, |name| name.span),
                );
                let (message, help) = match &limit.name {
                    Some(name) => (
                        format!("two limits called {} on one descriptor", quoted(name)),
                        "give each its own `name`",
                    ),
                    None => (
                        "two limits of one period on one descriptor, both without `name`".to_owned(),
                        "their budgets could not be told apart: give each a `name`, or keep the smaller",
                    ),
                };
                self.error(span, format!("{message}; the first is on line {line}"))
                    .help(help);
            }
            seen.push((raw, Arc::clone(&limit)));
            self.placed.push(Placed {
                raw,
                limit: Arc::clone(&limit),
                path: path.to_vec(),
            });
            limits.push(limit);
        }
        limits
    }

    /// One limit; `None` when it was not readable or has an error that leaves nothing to build.
    fn limit(&mut self, raw: &'r RawLimit, descriptor: &RawDescriptor, path: &[Step<'r>]) -> Option<Limit> {
        let defaults = &self.policy.defaults;
        if raw.broken || defaults.broken {
            return None;
        }
        let flag = |own: &Option<At<bool>>, default: &Option<At<bool>>, outer: &Option<At<bool>>| {
            let inner = own.as_ref().or(default.as_ref());
            inner.is_some_and(|at| at.value) || outer.as_ref().is_some_and(|at| at.value)
        };
        let shadow = flag(
            &raw.flags.shadow_mode,
            &defaults.flags.shadow_mode,
            &descriptor.flags.shadow_mode,
        );
        let quota = flag(
            &raw.flags.quota_mode,
            &defaults.flags.quota_mode,
            &descriptor.flags.quota_mode,
        );
        let period = self.period(raw);
        let algorithm = self.algorithm(raw, period.as_ref());
        self.overshoot_keys(raw, &algorithm);
        let plans = self.plans(raw, &algorithm);
        let numbers = match &plans {
            Some(plans) => plans.rows.get(&plans.default_plan).copied(),
            None if raw.plans.is_empty() => Some(self.numbers(raw, None, &algorithm)),
            None => None,
        };
        let excess = self.excess(raw);
        let overdraft = self.overdraft(raw, &algorithm, quota, excess.is_some());
        let barrier = self.barrier(raw, overdraft, shadow);
        let name = raw.name.as_ref().map(|name| name.value.as_str());
        if let Some(at) = raw.name.as_ref().filter(|name| name.value == SAFETY_CEILING) {
            self.error(at.span, format!("the name `{SAFETY_CEILING}` is reserved"))
                .help("choose another name");
        }
        if let Some(at) = raw
            .replaces
            .iter()
            .find(|replaced| name == Some(replaced.value.as_str()))
        {
            self.error(at.span, "this limit replaces itself")
                .help("name another limit, or take the item out");
        }
        let period = period?;
        let keys: Vec<&str> = path.iter().map(|step| step.key).collect();
        let text = |own: &Option<At<String>>, default: &Option<At<String>>| {
            own.as_ref()
                .or(default.as_ref())
                .map(|at| at.value.as_str().into())
        };
        let replaces = if raw.replaces.is_empty() {
            &defaults.replaces
        } else {
            &raw.replaces
        };
        Some(Limit {
            label: name.map_or_else(
                || format!("{}/{}", keys.join("."), period.text).into(),
                Into::into,
            ),
            name: name.map(Into::into),
            identity: Identity::new(self.name, &keys, name, &algorithm, &period),
            overrides: OverrideIndex::new(self.overrides_of(name, path)),
            numbers: numbers?,
            plans,
            attribute_to: text(&raw.attribute_to, &defaults.attribute_to),
            counts: pick(&raw.counts, &defaults.counts).map_or_else(Default::default, |at| at.value),
            overdraft,
            excess,
            failure_mode: pick(&raw.failure_mode, &defaults.failure_mode)
                .map_or_else(Default::default, |at| at.value),
            barrier,
            shadow,
            quota,
            replaces: replaces.iter().map(|name| name.value.as_str().into()).collect(),
            algorithm,
            period,
        })
    }

    fn period(&mut self, raw: &RawLimit) -> Option<Period> {
        let unlimited = pick(&raw.unlimited, &self.policy.defaults.unlimited).is_some_and(|at| at.value);
        let rows = raw.plans.iter().map(|(_, row)| row);
        let mut found: Option<(Span, Period)> = None;
        for limit in std::iter::once(raw).chain(rows) {
            if let (Some(_), Some(period)) = (&limit.unit, &limit.period) {
                self.error(period.span, "`unit` and `period` say the same twice")
                    .help("keep one of the two");
                return None;
            }
            let unit = limit.unit.as_ref().map(|at| (at.span, at.value.period()));
            let period = limit.period.as_ref().map(|at| (at.span, period_of(at.value)));
            let Some((span, period)) = unit.or(period) else {
                continue;
            };
            if !in_range(&period) {
                self.error(span, "`period` is between 1ms and ten years")
                    .help("write another period");
                return None;
            }
            match &found {
                Some((_, before)) if *before != period => {
                    let message = format!("this row counts per {}, others per {}", period.text, before.text);
                    self.error(span, message)
                        .help("all plans of a limit share one budget, and so one period");
                    return None;
                }
                Some(_) => {}
                None => found = Some((span, period)),
            }
        }
        match (found, unlimited) {
            (Some((span, _)), true) if raw.plans.is_empty() => {
                self.error(span, "`unlimited` has no period")
                    .help("take `unit` out, or `unlimited`");
                None
            }
            (Some((_, period)), _) => Some(period),
            // Never counted; the period only has to be something.
            (None, _) if unlimited || all_unlimited(raw) => Some(Unit::Second.period()),
            (None, _) => {
                self.error(raw.span, "this limit has no `unit`")
                    .help("write `unit: minute`, or `period: 30s`");
                None
            }
        }
    }

    fn plans(&mut self, raw: &RawLimit, algorithm: &Algorithm) -> Option<Plans> {
        let defaults = &self.policy.defaults;
        let entry = pick(&raw.plan_entry, &defaults.plan_entry);
        let default_plan = pick(&raw.default_plan, &defaults.default_plan);
        if raw.plans.is_empty() {
            for at in [&raw.plan_entry, &raw.default_plan].into_iter().flatten() {
                self.error(at.span, "this limit has no `plans`")
                    .help("write a row for each plan under `plans:`");
            }
            return None;
        }
        let span = raw.plans.first().map_or(raw.span, |(name, _)| name.span);
        if entry.is_none() {
            self.error(span, "`plans` without `plan_entry`")
                .help("name the descriptor entry whose value picks the row, as in `plan_entry: plan`");
        }
        let rows: Vec<&str> = raw.plans.iter().map(|(name, _)| name.value.as_str()).collect();
        match &default_plan {
            None => {
                self.error(span, "`plans` without `default_plan`").help(format!(
                    "name the row of callers without a plan: one of {}",
                    rows.join(", ")
                ));
            }
            Some(at) if !rows.contains(&at.value.as_str()) => {
                let help = match nearest(&at.value, &rows) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("one of {}", rows.join(", ")),
                };
                self.error(at.span, format!("`plans` has no row {}", quoted(&at.value)))
                    .help(help);
            }
            Some(_) => {}
        }
        let rows = raw.plans.iter();
        let rows = rows.map(|(name, row)| {
            (
                name.value.as_str().into(),
                self.numbers(raw, Some(row), algorithm),
            )
        });
        let rows = rows.collect();
        let (entry, default_plan) = (entry?, default_plan?);
        Some(Plans {
            entry: entry.value.into(),
            rows,
            default_plan: default_plan.value.into(),
        })
    }

    fn numbers(&mut self, raw: &RawLimit, row: Option<&RawLimit>, algorithm: &Algorithm) -> Numbers {
        let defaults = &self.policy.defaults;
        let own = row.unwrap_or(raw);
        let unlimited = pick(&own.unlimited, &raw.unlimited);
        let unlimited = pick(&unlimited, &defaults.unlimited).is_some_and(|at| at.value);
        let requests = pick(&own.requests_per_unit, &raw.requests_per_unit).map(|at| at.value);
        if requests.is_none() && !unlimited {
            self.faults
                .warning(own.span, "no `requests_per_unit`: this refuses every request")
                .help("write a number; to mean it, write `requests_per_unit: 0`");
        }
        let requests = u64::from(requests.unwrap_or(0));
        let burst = pick(&pick(&own.burst, &raw.burst), &defaults.burst);
        if let Some(at) = own
            .burst
            .as_ref()
            .filter(|at| at.value == 0 && *algorithm == Algorithm::TokenBucket)
        {
            self.error(at.span, "`burst: 0` never lets a request through")
                .help("write 1 or more; to refuse all, write `requests_per_unit: 0`");
        }
        let bucket = *algorithm == Algorithm::TokenBucket;
        let waits = bucket || *algorithm == Algorithm::LeakyBucket;
        let wait = pick(&pick(&own.max_wait, &raw.max_wait), &defaults.max_wait);
        Numbers {
            requests_per_unit: requests,
            burst: burst.filter(|_| bucket).map_or(requests, |at| at.value.into()),
            max_wait: wait.filter(|_| waits).map_or(Micros::ZERO, |at| at.value.into()),
            max_overshoot: self.overshoot(raw, row, algorithm),
            unlimited,
        }
    }

    fn excess(&mut self, raw: &RawLimit) -> Option<Excess> {
        let RawExcess { span, action, up_to } =
            raw.excess.as_ref().or(self.policy.defaults.excess.as_ref())?;
        let Some(action) = action else {
            self.error(*span, "`excess` has no `action`")
                .help("one of reject, degrade, serve_stale, accept_async");
            return None;
        };
        let action = match action.value {
            ExcessAction::Reject => {
                if let Some(up_to) = up_to {
                    self.error(up_to.span, "`reject` has no `up_to`")
                        .help("take `up_to` out, or name another action");
                }
                return None;
            }
            ExcessAction::Degrade => limit::ExcessAction::Degrade,
            ExcessAction::ServeStale => limit::ExcessAction::ServeStale,
            ExcessAction::AcceptAsync => limit::ExcessAction::AcceptAsync,
        };
        let help = "write the share of the limit up to which requests pass marked, as in `up_to: 150%`";
        let Some(up_to) = up_to else {
            self.error(*span, "`excess` has no `up_to`").help(help);
            return None;
        };
        let percent = up_to.value.0 / 100;
        if up_to.value.0 % 100 != 0 || percent <= 100 || percent > 10_000 {
            self.error(
                up_to.span,
                "`up_to` is a whole percentage above 100%, and at most 10000%",
            )
            .help(help);
            return None;
        }
        Some(Excess {
            action,
            up_to_percent: percent,
        })
    }

    fn overdraft(&mut self, raw: &RawLimit, algorithm: &Algorithm, quota: bool, excess: bool) -> bool {
        let Some(at) = pick(&raw.overdraft, &self.policy.defaults.overdraft).filter(|at| at.value) else {
            return false;
        };
        let unknown = matches!(algorithm, Algorithm::SlidingWindow(_) | Algorithm::LeakyBucket);
        let written = raw.overdraft.is_some();
        if unknown && !written {
            return false;
        }
        let clash = match (unknown, quota, excess) {
            (true, ..) => format!("`{}`", algorithm.name()),
            (_, true, _) => "`quota_mode`".to_owned(),
            (.., true) => "`excess`".to_owned(),
            _ => return true,
        };
        let span = if written { at.span } else { raw.span };
        self.error(span, format!("`overdraft` does not go with {clash}"))
            .help("a debt needs `fixed_window` or `token_bucket`, without `quota_mode` and `excess`");
        true
    }
}

/// A duration as policy files write it, always in one way.
pub(super) fn duration_text(duration: Duration) -> String {
    const UNITS: [(&str, u128); 7] = [
        ("w", 604_800_000_000),
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
        ("us", 1),
    ];
    let mut rest = duration.as_micros();
    let mut text = String::new();
    for (unit, micros) in UNITS {
        if rest >= micros {
            text += &format!("{}{unit}", rest / micros);
            rest %= micros;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Whether a period is one that budgets can be counted over.
pub(super) fn in_range(period: &Period) -> bool {
    (Micros::from_millis(1)..=Micros::from_secs(3_660 * 86_400)).contains(&period.length)
}

pub(super) fn period_of(duration: Duration) -> Period {
    Period {
        length: duration.into(),
        unit: None,
        text: duration_text(duration).into(),
    }
}

/// A limit and the rows of its plans.
pub(super) fn with_rows(raw: &RawLimit) -> impl Iterator<Item = &RawLimit> {
    std::iter::once(raw).chain(raw.plans.iter().map(|(_, row)| row))
}

fn all_unlimited(raw: &RawLimit) -> bool {
    let mut rows = raw.plans.iter();
    !raw.plans.is_empty() && rows.all(|(_, row)| row.unlimited.as_ref().is_some_and(|at| at.value))
}

/// What is written, or else the default.
pub(super) fn pick<T: Clone>(own: &Option<At<T>>, default: &Option<At<T>>) -> Option<At<T>> {
    own.as_ref().or(default.as_ref()).cloned()
}
