//! What the service behind sustains, and how much of it may pass while the store is gone.

use std::sync::Arc;

use super::Compiler;
use super::limit::{in_range, period_of};
use crate::config::raw::RawRate;
use crate::engine::key::Identity;
use crate::engine::limit::{Algorithm, Limit, Numbers, Period, Share};
use crate::engine::policy::SAFETY_CEILING;
use crate::engine::time::Micros;

impl Compiler<'_, '_, '_> {
    /// The ceiling over what is decided locally: `safety_ceiling`, or else `capacity`.
    pub(super) fn safety_ceiling(&mut self) -> Option<Arc<Limit>> {
        let policy = self.policy;
        if policy.broken {
            return None;
        }
        let capacity = policy.capacity.as_ref().map(|raw| {
            let help = "write what the service behind sustains: `{unit: second, requests_per_unit: 2000}`";
            self.rate("capacity", raw, help)
        });
        let own = policy.safety_ceiling.as_ref().map(|raw| {
            let help =
                "write what may pass while the store is gone: `{unit: second, requests_per_unit: 1500}`";
            self.rate(SAFETY_CEILING, raw, help)
        });
        let (period, numbers) = own.or(capacity)??;
        let algorithm = Algorithm::TokenBucket;
        // Rules have a key at least, so no limit of theirs is taken for this one.
        let identity = Identity::new(self.name, &[], Some(SAFETY_CEILING), &algorithm, &period);
        let limit = Limit::plain(Some(SAFETY_CEILING), identity, algorithm, period, numbers);
        Some(Arc::new(limit))
    }

    /// A number for a period; `None` when a fault was noted.
    fn rate(&mut self, key: &str, raw: &RawRate, help: &str) -> Option<(Period, Numbers)> {
        let (span, period) = match (&raw.unit, &raw.period) {
            (Some(_), Some(period)) => {
                self.error(period.span, "`unit` and `period` say the same twice")
                    .help("keep one of the two");
                return None;
            }
            (Some(unit), None) => (unit.span, unit.value.period()),
            (None, Some(period)) => (period.span, period_of(period.value)),
            (None, None) => {
                self.error(raw.span, format!("`{key}` has no `unit`")).help(help);
                return None;
            }
        };
        if !in_range(&period) {
            self.error(span, "`period` is between 1ms and ten years")
                .help("write another period");
            return None;
        }
        if let Some(zero) = raw.requests_per_unit.as_ref().filter(|at| at.value == 0) {
            self.error(
                zero.span,
                format!("the `requests_per_unit` of `{key}` is 1 or more"),
            )
            .help(help);
            return None;
        }
        let Some(number) = &raw.requests_per_unit else {
            self.error(raw.span, format!("`{key}` has no `requests_per_unit`"))
                .help(help);
            return None;
        };
        if let Some(burst) = raw.burst.as_ref().filter(|at| at.value == 0) {
            self.error(burst.span, "`burst: 0` never lets a request through")
                .help("write 1 or more, or `failure_mode: deny` on the limits that are meant");
            return None;
        }
        let burst = raw.burst.as_ref().unwrap_or(number);
        Some((
            period,
            Numbers {
                requests_per_unit: number.value.into(),
                burst: burst.value.into(),
                max_wait: Micros::ZERO,
                max_overshoot: Share::ZERO,
                unlimited: false,
            },
        ))
    }
}
