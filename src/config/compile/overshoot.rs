//! `max_overshoot`: what of a limit replicas may take ahead, and which limits that is not for.

use super::Compiler;
use super::limit::{pick, with_rows};
use crate::config::fault::Span;
use crate::config::raw::{At, ExcessAction, Percent, RawLimit};
use crate::engine::limit::{Algorithm, Share};
use crate::engine::time::Micros;

impl Compiler<'_, '_, '_> {
    /// The share in force for a row of a limit, or for the limit. A default is passed over where it could
    /// not be written.
    pub(super) fn overshoot(&self, raw: &RawLimit, row: Option<&RawLimit>, algorithm: &Algorithm) -> Share {
        let own = row.unwrap_or(raw);
        let defaults = &self.policy.defaults;
        let written = pick(
            &pick(&own.max_overshoot, &raw.max_overshoot),
            &defaults.max_overshoot,
        );
        match written {
            Some(At {
                value: Percent(n), ..
            }) if self.not_leased(raw, own, algorithm).is_none() => Share(n),
            _ => Share::ZERO,
        }
    }

    /// That `max_overshoot` is written only where it means something.
    pub(super) fn overshoot_keys(&mut self, raw: &RawLimit, algorithm: &Algorithm) {
        let default = self.policy.defaults.max_overshoot.as_ref();
        let written = with_rows(raw).filter_map(|own| own.max_overshoot.as_ref());
        let too_much: Vec<Span> = written
            .chain(default)
            .filter(|at| at.value > Percent(10_000))
            .map(|at| at.span)
            .collect();
        for span in too_much {
            self.error(span, "`max_overshoot` is above 100%")
                .help("it is the share of the limit that replicas may hold taken ahead, such as `5%`");
        }
        let mut clashes: Vec<(Span, &'static str)> = Vec::new();
        for own in with_rows(raw) {
            let at = own.max_overshoot.as_ref().or(raw.max_overshoot.as_ref());
            if let Some(at) = at.filter(|at| at.value > Percent(0))
                && let Some(clash) = self.not_leased(raw, own, algorithm)
                && !clashes.contains(&(at.span, clash))
            {
                clashes.push((at.span, clash));
            }
        }
        for (span, clash) in clashes {
            self.error(span, format!("`max_overshoot` does not go with {clash}"))
                .help("units taken ahead can be neither owed nor waited for: take one of the two out");
        }
    }

    /// What keeps these numbers from being taken ahead.
    fn not_leased(&self, raw: &RawLimit, own: &RawLimit, algorithm: &Algorithm) -> Option<&'static str> {
        let defaults = &self.policy.defaults;
        let excess = raw.excess.as_ref().or(defaults.excess.as_ref());
        let excess = excess.and_then(|excess| excess.action.as_ref());
        let wait = pick(&pick(&own.max_wait, &raw.max_wait), &defaults.max_wait);
        let debts = !matches!(algorithm, Algorithm::SlidingWindow(_) | Algorithm::LeakyBucket);
        match () {
            () if *algorithm == Algorithm::LeakyBucket => Some("`leaky_bucket`"),
            () if debts && pick(&raw.overdraft, &defaults.overdraft).is_some_and(|at| at.value) => {
                Some("`overdraft`")
            }
            () if excess.is_some_and(|action| action.value != ExcessAction::Reject) => Some("`excess`"),
            () if *algorithm == Algorithm::TokenBucket
                && wait.is_some_and(|at| Micros::from(at.value) > Micros::ZERO) =>
            {
                Some("`max_wait`")
            }
            () => None,
        }
    }
}
