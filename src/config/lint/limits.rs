//! Warnings about numbers and algorithms.

use hashbrown::HashSet;

use super::Lint;
use crate::config::compile::{self, Placed};
use crate::config::fault::{Span, quoted};
use crate::config::keys::nearest;
use crate::config::raw::{Expected, RawLimit};
use crate::engine::budget::Terms;
use crate::engine::lease;
use crate::engine::limit::{Algorithm, Counts, Limit, Numbers, Share};
use crate::engine::time::Micros;

const MINUTE: Micros = Micros::from_secs(60);
const HOUR: Micros = Micros::from_secs(3600);

impl Lint<'_, '_, '_, '_> {
    pub(super) fn limits(&mut self) {
        self.double_burst();
        self.flags_of_descriptors();
        self.replaces_nothing();
        let placed = self.placed;
        for placed in placed {
            self.no_limit_by_number(placed);
            self.unpayable_costs(placed);
            self.odd_burst(placed);
            self.odd_name(placed);
            self.nothing_to_lease(placed);
        }
        self.oversold();
    }

    /// A fixed window lets its limit through at the end of one window and again at the start of the next.
    fn double_burst(&mut self) {
        let guards = |placed: &&Placed<'_>| {
            matches!(placed.limit.algorithm, Algorithm::FixedWindow(_))
                && placed.limit.period.length <= Micros::DAY
                && rows(placed).any(|(_, numbers)| !numbers.unlimited && numbers.requests_per_unit > 0)
        };
        let places: Vec<Span> = self
            .placed
            .iter()
            .filter(guards)
            .map(|placed| placed.raw.span)
            .collect();
        self.warn_once(
            &places,
            "a fixed window lets twice its limit through within moments, at the edge of two windows",
            "`algorithm: token_bucket` or `sliding_window` does not; `defaults: {algorithm: …}` at the root sets all",
        );
    }

    /// The incumbent ignores these keys inside a limit; here they act, so its file decides differently.
    fn flags_of_descriptors(&mut self) {
        if self.policy.uses_new_keys {
            return;
        }
        let placed = self.placed;
        for raw in placed.iter().map(|placed| placed.raw) {
            let flags = &raw.flags;
            let written = [
                ("shadow_mode", &flags.shadow_mode),
                ("quota_mode", &flags.quota_mode),
                ("share_threshold", &flags.share_threshold),
            ];
            for (name, at) in written {
                let Some(at) = at.as_ref().filter(|at| at.value) else {
                    continue;
                };
                self.warn(
                    at.span,
                    format!("`{name}` acts here; envoyproxy/ratelimit ignores it inside `rate_limit`"),
                )
                .help("write it beside `key:` to have the same from both");
            }
        }
    }

    /// A share that comes to a few units is no saving, so such a limit is asked for exactly.
    fn nothing_to_lease(&mut self, placed: &Placed<'_>) {
        for own in with_rows(placed.raw) {
            let Some(at) = &own.max_overshoot else { continue };
            let of_it = rows(placed).filter(|(row, numbers)| {
                let written = placed
                    .raw
                    .plans
                    .iter()
                    .any(|(name, raw)| *row == Some(name.value.as_str()) && raw.max_overshoot.is_some());
                numbers.max_overshoot == Share(at.value.0)
                    && (std::ptr::eq(own, placed.raw) != written)
                    && !numbers.unlimited
            });
            let largest = of_it
                .map(|(_, numbers)| lease::bound(&Terms::new(&placed.limit, numbers), numbers.max_overshoot))
                .max();
            if let Some(bound) = largest.filter(|bound| *bound < lease::LEAST_BOUND && at.value.0 > 0) {
                self.warn(
                    at.span,
                    format!("this share is {bound} units of the budget: too few to take ahead, so the limit stays exact"),
                )
                .help(format!("below {} units it has no effect; take it out", lease::LEAST_BOUND));
            }
        }
    }

    fn no_limit_by_number(&mut self, placed: &Placed<'_>) {
        let places: Vec<Span> = with_rows(placed.raw)
            .filter_map(|raw| raw.requests_per_unit.as_ref())
            .filter(|at| at.value >= 999_999 && at.value.to_string().bytes().all(|b| b == b'9'))
            .map(|at| at.span)
            .collect();
        for span in places {
            self.warn(
                span,
                "a number that stands for no limit is still counted, for every caller",
            )
            .help("use `unlimited: true`");
        }
    }

    /// A cost above what the budget can ever hold is refused for ever.
    fn unpayable_costs(&mut self, placed: &Placed<'_>) {
        let limit = &placed.limit;
        let Some(costs) = &self.policy.costs else { return };
        let bounded = limit.counts == Counts::Cost
            && !limit.overdraft
            && limit.excess.is_none()
            && limit.algorithm != Algorithm::LeakyBucket;
        if !bounded {
            return;
        }
        let entry = costs.entry.as_ref().map_or("", |entry| entry.value.as_str());
        let bound = placed
            .path
            .iter()
            .find(|step| step.key == entry)
            .and_then(|step| step.value);
        let default = costs.default.as_ref().map_or(1, |at| at.value);
        let listed = costs
            .values
            .iter()
            .map(|(name, cost)| (name.value.as_str(), cost.value));
        let met = listed.filter(|(name, _)| bound.is_none_or(|value| value == *name || value.contains('*')));
        let dearest = met
            .chain([("", default)].into_iter().filter(|_| bound.is_none()))
            .max_by_key(|(_, cost)| *cost);
        let Some((name, cost)) = dearest else { return };
        let short = rows(placed)
            .map(|(row, numbers)| (row, capacity(limit, &numbers), numbers))
            .filter(|(_, most, numbers)| *most < u64::from(cost) && *most > 0 && !numbers.unlimited)
            .min_by_key(|(_, most, _)| *most);
        let Some((row, most, _)) = short else { return };
        let what = if name.is_empty() {
            "the default cost".to_owned()
        } else {
            format!("the cost of {}", quoted(name))
        };
        let plan = row.map_or_else(String::new, |row| format!(" of plan {}", quoted(row)));
        let burst = limit.algorithm == Algorithm::TokenBucket;
        self.warn(
            placed.raw.span,
            format!(
                "{what} is {cost}, and this limit{plan} never holds more than {most}: it can never be paid"
            ),
        )
        .help(if burst {
            "raise `burst` to the cost or more, or write `counts: requests`"
        } else {
            "raise `requests_per_unit`, or write `counts: requests`"
        });
    }

    /// A burst is what may come at once; the usual is 10 to 20 % of what may come in a minute.
    fn odd_burst(&mut self, placed: &Placed<'_>) {
        let limit = &placed.limit;
        if limit.algorithm != Algorithm::TokenBucket || limit.period.length > HOUR {
            return;
        }
        let odd = rows(placed).find_map(|(row, numbers)| {
            let minute = u128::from(numbers.requests_per_unit) * u128::from(MINUTE.0)
                / u128::from(limit.period.length.0);
            let burst = u128::from(numbers.burst);
            let second = minute / 60;
            // Bursts of a handful are a matter of taste, not of a share.
            let (high, low) = (
                burst * 2 > minute && burst >= 20,
                burst * 50 < minute && burst < second,
            );
            (!numbers.unlimited && minute > 0 && (high || low)).then_some((row, burst, minute, high))
        });
        let Some((row, burst, minute, high)) = odd else {
            return;
        };
        let plan = row.map_or_else(String::new, |row| format!(" of plan {}", quoted(row)));
        let written = with_rows(placed.raw)
            .filter_map(|raw| raw.burst.as_ref())
            .find(|at| u128::from(at.value) == burst);
        let span = written.map_or(placed.raw.span, |at| at.span);
        let share = burst * 100 / minute;
        let why = if high {
            "may come within one moment"
        } else {
            "is less than one second's share"
        };
        self.warn(
            span,
            format!("the burst{plan} is {burst}, {share}% of what a minute allows, and {why}"),
        )
        .help(format!(
            "usual is 10 to 20%: `burst: {}` to `burst: {}`",
            (minute / 10).max(1),
            (minute / 5).max(1)
        ));
    }

    fn odd_name(&mut self, placed: &Placed<'_>) {
        let Some(name) = &placed.raw.name else { return };
        if !name
            .value
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b';' | b','))
        {
            self.warn(
                name.span,
                format!("the name {} has to be escaped in headers", quoted(&name.value)),
            )
            .help("keep names to letters, digits, `_`, `-`, `.` and `/`");
        }
    }

    fn replaces_nothing(&mut self) {
        let names = compile::names(self.policy);
        let known: HashSet<&str> = names.iter().copied().collect();
        let placed = self.placed;
        for at in placed.iter().flat_map(|placed| &placed.raw.replaces) {
            if !known.contains(at.value.as_str()) {
                let help = match nearest(&at.value, &names) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "give the limit that is meant this `name`, or take the item out".to_owned(),
                };
                self.warn(
                    at.span,
                    format!("replaces nothing: no limit is called {}", quoted(&at.value)),
                )
                .help(help);
            }
        }
    }

    /// What the expected callers may send together is more than the service behind sustains.
    fn oversold(&mut self) {
        let policy = self.policy;
        let Some(capacity) = &policy.capacity else { return };
        let period = capacity.unit.as_ref().map(|at| at.value.length());
        let period = period.or(capacity.period.as_ref().map(|at| at.value.into()));
        let (Some(period), Some(number)) = (period, &capacity.requests_per_unit) else {
            return;
        };
        let sustained = per_second(number.value.into(), period);
        for (name, expected) in &policy.expected {
            let called = |placed: &&Placed<'_>| placed.limit.name.as_deref() == Some(name.value.as_str());
            let Some(placed) = self.placed.iter().find(called) else {
                continue;
            };
            let sold: f64 = match expected {
                Expected::Callers(callers) => {
                    rate(&placed.limit, &placed.limit.numbers) * f64::from(callers.value)
                }
                Expected::ByPlan(plans) => plans
                    .iter()
                    .filter_map(|(plan, callers)| {
                        let row = placed.limit.plans.as_ref()?.rows.get(plan.value.as_str())?;
                        Some(rate(&placed.limit, row) * f64::from(callers.value))
                    })
                    .sum(),
            };
            if sold > sustained {
                self.warn(
                    name.span,
                    format!(
                        "the expected callers of {} may send {sold:.0} a second together, {:.1} times the capacity of {sustained:.0}",
                        quoted(&name.value),
                        sold / sustained
                    ),
                )
                .help("not all use their limit at once, but nothing keeps them from it: lower limits, or more capacity");
            }
        }
    }
}

/// The numbers of a limit, row by row, with the name of the row.
fn rows<'p>(placed: &'p Placed<'_>) -> impl Iterator<Item = (Option<&'p str>, Numbers)> {
    let plans = placed.limit.plans.as_ref();
    let own = [(None, placed.limit.numbers)]
        .into_iter()
        .filter(move |_| plans.is_none());
    let order = placed.raw.plans.iter().map(|(name, _)| name.value.as_str());
    own.chain(order.filter_map(move |name| Some((Some(name), *plans?.rows.get(name)?))))
}

fn with_rows(raw: &RawLimit) -> impl Iterator<Item = &RawLimit> {
    std::iter::once(raw).chain(raw.plans.iter().map(|(_, row)| row))
}

fn capacity(limit: &Limit, numbers: &Numbers) -> u64 {
    if limit.algorithm == Algorithm::TokenBucket {
        numbers.burst
    } else {
        numbers.requests_per_unit
    }
}

fn rate(limit: &Limit, numbers: &Numbers) -> f64 {
    if numbers.unlimited {
        0.0
    } else {
        per_second(numbers.requests_per_unit, limit.period.length)
    }
}

fn per_second(units: u64, period: Micros) -> f64 {
    units as f64 * 1e6 / period.0 as f64
}
