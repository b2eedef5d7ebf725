//! Which algorithm a limit has, and which keys that leaves without meaning.
//!
//! A key written on the limit itself must mean something to its algorithm; a default that does not is
//! passed over, since defaults are written for all limits at once.

use jiff::tz::TimeZone;

use super::Compiler;
use super::limit::{pick, with_rows};
use crate::config::fault::{Span, quoted};
use crate::config::raw::{self, At, RawLimit};
use crate::engine::limit::{Algorithm, Period, Unit, windows_of};
use crate::engine::time::{Micros, Windows};

impl Compiler<'_, '_, '_> {
    /// The algorithm, and that every key written for it is one that it knows.
    pub(super) fn algorithm(&mut self, raw: &RawLimit, period: Option<&Period>) -> Algorithm {
        let default = &self.policy.defaults.algorithm;
        let kind = pick(&raw.algorithm, default).map_or(raw::Algorithm::FixedWindow, |at| at.value);
        let own_zone = raw.time_zone.as_ref();
        match kind {
            raw::Algorithm::FixedWindow => {
                self.window_keys(raw, "fixed_window");
                let zone = self.zone(own_zone.or(self.policy.defaults.time_zone.as_ref()));
                match period {
                    None => Algorithm::FixedWindow(Windows::even(Micros::SECOND)),
                    Some(Period { unit: Some(unit), .. }) if unit.length() >= Micros::DAY => {
                        Algorithm::FixedWindow(windows_of(*unit, zone))
                    }
                    Some(period) => {
                        self.unknown_to(
                            own_zone.map(|at| at.span),
                            "time_zone",
                            "a period shorter than a day by the calendar",
                        );
                        Algorithm::FixedWindow(Windows::even(period.length))
                    }
                }
            }
            raw::Algorithm::SlidingWindow => {
                self.window_keys(raw, "sliding_window");
                self.unknown_to(own_zone.map(|at| at.span), "time_zone", "`sliding_window`");
                let Some(period) = period else {
                    return Algorithm::SlidingWindow(Windows::even(Micros::SECOND));
                };
                if matches!(period.unit, Some(Unit::Month | Unit::Year)) {
                    self.error(
                        raw.span,
                        "`sliding_window` needs a period of one length; months and years differ",
                    )
                    .help("write `period: 30d`, or `algorithm: fixed_window` for calendar months");
                }
                let windows = period.unit.map(|unit| windows_of(unit, TimeZone::UTC));
                Algorithm::SlidingWindow(windows.unwrap_or_else(|| Windows::even(period.length)))
            }
            raw::Algorithm::TokenBucket => {
                self.unknown_to(own_zone.map(|at| at.span), "time_zone", "`token_bucket`");
                Algorithm::TokenBucket
            }
            raw::Algorithm::LeakyBucket => {
                self.unknown_to(own_zone.map(|at| at.span), "time_zone", "`leaky_bucket`");
                for limit in with_rows(raw) {
                    self.unknown_to(limit.burst.as_ref().map(|at| at.span), "burst", "`leaky_bucket`");
                }
                self.leaky_wait(raw);
                Algorithm::LeakyBucket
            }
        }
    }

    fn window_keys(&mut self, raw: &RawLimit, algorithm: &str) {
        let windows = format!("`{algorithm}`");
        for limit in with_rows(raw) {
            self.unknown_to(limit.burst.as_ref().map(|at| at.span), "burst", &windows);
            self.unknown_to(limit.max_wait.as_ref().map(|at| at.span), "max_wait", &windows);
        }
    }

    /// Notes a key that the algorithm does not know.
    fn unknown_to(&mut self, span: Option<Span>, key: &str, to: &str) {
        let Some(span) = span else { return };
        let help = match key {
            "burst" => "write `algorithm: token_bucket`, or take `burst` out",
            "max_wait" => "write `algorithm: token_bucket` or `leaky_bucket`, or take `max_wait` out",
            _ => "a zone moves the edges of `fixed_window` for day, week, month and year; take it out here",
        };
        self.error(span, format!("`{key}` has no meaning with {to}"))
            .help(help);
    }

    fn leaky_wait(&mut self, raw: &RawLimit) {
        let outer = pick(&raw.max_wait, &self.policy.defaults.max_wait).is_some();
        let rows = !raw.plans.is_empty() && raw.plans.iter().all(|(_, row)| row.max_wait.is_some());
        if !outer && !rows {
            let span = raw.algorithm.as_ref().map_or(raw.span, |at| at.span);
            self.error(span, "`leaky_bucket` has no `max_wait`")
                .help("write how long a request may be held, as in `max_wait: 500ms`");
        }
    }

    fn zone(&mut self, zone: Option<&At<String>>) -> TimeZone {
        let Some(at) = zone else { return TimeZone::UTC };
        match TimeZone::get(&at.value) {
            Ok(zone) => zone,
            Err(_) => {
                let message = format!("no time zone is called {}", quoted(&at.value));
                self.error(at.span, message)
                    .help("write an IANA name such as `America/Sao_Paulo` or `UTC`");
                TimeZone::UTC
            }
        }
    }
}
