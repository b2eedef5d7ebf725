//! Instants, durations and calendar windows, in whole microseconds.
//!
//! Microseconds since 1970 stay exact in an IEEE double until the year 2255, which is what lets a
//! script on the store and this module agree to the last bit. Nothing here reads a clock.

use jiff::civil::{self, Date};
use jiff::tz::TimeZone;

/// A duration in whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// One second.
    pub const SECOND: Self = Self(1_000_000);
    /// Twenty-four hours.
    pub const DAY: Self = Self(86_400 * 1_000_000);

    /// A duration of whole seconds; saturates.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// A duration of whole milliseconds; saturates.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// The duration in seconds, rounded up: what a `Retry-After` or a reset may say without lying.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Both durations together; saturates.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The duration less `other`, not below zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<std::time::Duration> for Micros {
    fn from(d: std::time::Duration) -> Self {
        Self(u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for std::time::Duration {
    fn from(m: Micros) -> Self {
        Self::from_micros(m.0)
    }
}

/// An instant: microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// The instant `d` later; saturates.
    pub const fn plus(self, d: Micros) -> Self {
        Self(self.0.saturating_add(d.0))
    }

    /// Seconds since 1970, rounded down.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// A calendar unit whose windows have no fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// Midnight to midnight.
    Day,
    /// Monday to Monday.
    Week,
    /// First to first.
    Month,
    /// January to January.
    Year,
}

/// How time is cut into windows.
#[derive(Clone, Debug, PartialEq)]
pub enum Windows {
    /// Windows of one length, the first of which began `lead` before 1970 UTC.
    Even {
        /// Length of each window; never zero.
        length: Micros,
        /// How long before 1970 window 0 began (three days make weeks start on Monday).
        lead: Micros,
    },
    /// Calendar windows in a time zone.
    Calendar {
        /// What a window spans.
        unit: CalendarUnit,
        /// Whose midnight counts.
        zone: TimeZone,
    },
}

/// One window: `start` is in it, `end` is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its number; consecutive windows have consecutive numbers.
    pub index: u64,
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant of the next window.
    pub end: Timestamp,
}

/// Days from Monday 1969-12-29 to 1970-01-01: with this lead, day numbers are positive in every time zone.
const LEAD_DAYS: i64 = 3;

impl Windows {
    /// Windows of one length, aligned to 1970 UTC. A zero length is taken as one microsecond.
    pub fn even(length: Micros) -> Self {
        Self::Even {
            length: Micros(length.0.max(1)),
            lead: Micros::ZERO,
        }
    }

    /// Calendar windows. UTC days and weeks are of one length and need no calendar.
    pub fn calendar(unit: CalendarUnit, zone: TimeZone) -> Self {
        match unit {
            CalendarUnit::Day if zone == TimeZone::UTC => Self::even(Micros::DAY),
            CalendarUnit::Week if zone == TimeZone::UTC => Self::Even {
                length: Micros(7 * Micros::DAY.0),
                lead: Micros(LEAD_DAYS as u64 * Micros::DAY.0),
            },
            _ => Self::Calendar { unit, zone },
        }
    }

    /// The window that holds `now`.
    pub fn at(&self, now: Timestamp) -> Window {
        let index = match self {
            Self::Even { length, lead } => now.0.saturating_add(lead.0) / length.0,
            Self::Calendar { unit, zone } => {
                let micros = i64::try_from(now.0).unwrap_or(i64::MAX);
                let instant = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
                let date = zone.to_datetime(instant).date();
                let days = i64::from(days_since_1970(date)) + LEAD_DAYS;
                let index = match unit {
                    CalendarUnit::Day => days,
                    CalendarUnit::Week => days / 7,
                    CalendarUnit::Month => i64::from(date.year()) * 12 + i64::from(date.month()) - 1,
                    CalendarUnit::Year => i64::from(date.year()),
                };
                u64::try_from(index).unwrap_or(0)
            }
        };
        self.window(index)
    }

    /// The window of that number.
    pub fn window(&self, index: u64) -> Window {
        Window {
            index,
            start: self.start(index),
            end: self.start(index.saturating_add(1)),
        }
    }

    /// The first instant of the window of that number.
    pub fn start(&self, index: u64) -> Timestamp {
        match self {
            Self::Even { length, lead } => Timestamp(index.saturating_mul(length.0).saturating_sub(lead.0)),
            Self::Calendar { unit, zone } => {
                let index = i64::try_from(index).unwrap_or(i64::MAX);
                let date = match unit {
                    CalendarUnit::Day => date_from_days(index - LEAD_DAYS),
                    CalendarUnit::Week => date_from_days(index.saturating_mul(7) - LEAD_DAYS),
                    CalendarUnit::Month => first_of(index / 12, index % 12 + 1),
                    CalendarUnit::Year => first_of(index, 1),
                };
                // A midnight that daylight saving skips begins at the first instant after the gap.
                let midnight = zone.to_ambiguous_zoned_datetime(date.to_datetime(civil::Time::midnight()));
                let micros = midnight
                    .compatible()
                    .map_or(i64::MAX, |z| z.timestamp().as_microsecond());
                Timestamp(u64::try_from(micros).unwrap_or(0))
            }
        }
    }
}

fn days_since_1970(date: Date) -> i32 {
    date.since(Date::constant(1970, 1, 1))
        .map_or(0, |span| span.get_days())
}

fn date_from_days(days: i64) -> Date {
    use jiff::ToSpan;
    let span = days.clamp(-4, 2_900_000).days();
    Date::constant(1970, 1, 1).checked_add(span).unwrap_or(Date::MAX)
}

fn first_of(year: i64, month: i64) -> Date {
    let year = i16::try_from(year).unwrap_or(i16::MAX);
    let month = i8::try_from(month).unwrap_or(1);
    Date::new(year, month, 1).unwrap_or(Date::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let t: jiff::Timestamp = text.parse().unwrap();
        Timestamp(u64::try_from(t.as_microsecond()).unwrap())
    }

    #[test]
    fn weeks_start_on_monday() {
        let weeks = Windows::calendar(CalendarUnit::Week, TimeZone::UTC);
        let w = weeks.at(at("2026-11-30T00:00:00Z"));
        assert_eq!(
            (w.start, w.end),
            (at("2026-11-30T00:00:00Z"), at("2026-12-07T00:00:00Z"))
        );
        assert_eq!(weeks.at(at("2026-11-29T23:59:59.999999Z")).index + 1, w.index);
    }

    #[test]
    fn calendar_windows_follow_the_zone() {
        let sao_paulo = TimeZone::get("America/Sao_Paulo").unwrap();
        for (unit, now, start, end) in [
            (
                CalendarUnit::Day,
                "2026-12-01T02:59:59Z",
                "2026-11-30T03:00:00Z",
                "2026-12-01T03:00:00Z",
            ),
            (
                CalendarUnit::Week,
                "2026-12-01T00:00:00Z",
                "2026-11-30T03:00:00Z",
                "2026-12-07T03:00:00Z",
            ),
            (
                CalendarUnit::Month,
                "2026-12-01T02:59:59Z",
                "2026-11-01T03:00:00Z",
                "2026-12-01T03:00:00Z",
            ),
            (
                CalendarUnit::Year,
                "2027-01-01T02:00:00Z",
                "2026-01-01T03:00:00Z",
                "2027-01-01T03:00:00Z",
            ),
            // 2018-11-04 had no midnight in São Paulo.
            (
                CalendarUnit::Day,
                "2018-11-04T12:00:00Z",
                "2018-11-04T03:00:00Z",
                "2018-11-05T02:00:00Z",
            ),
        ] {
            let w = Windows::calendar(unit, sao_paulo.clone()).at(at(now));
            assert_eq!((w.start, w.end), (at(start), at(end)), "{unit:?} at {now}");
        }
    }

    #[test]
    fn every_instant_is_inside_its_window() {
        for zone in ["UTC", "Pacific/Apia", "America/New_York", "Asia/Kolkata"] {
            for unit in [
                CalendarUnit::Day,
                CalendarUnit::Week,
                CalendarUnit::Month,
                CalendarUnit::Year,
            ] {
                let windows = Windows::calendar(unit, TimeZone::get(zone).unwrap());
                for step in 0..5_000_u64 {
                    let now = Timestamp(step * 7_654_321_987 + 1_000_000_000_000);
                    let w = windows.at(now);
                    assert!(w.start <= now && now < w.end, "{zone} {unit:?} {now:?} {w:?}");
                    assert_eq!(windows.at(w.start).index, w.index);
                }
            }
        }
    }

    #[test]
    fn extreme_instants_do_not_panic() {
        for unit in [
            CalendarUnit::Day,
            CalendarUnit::Week,
            CalendarUnit::Month,
            CalendarUnit::Year,
        ] {
            let windows = Windows::calendar(unit, TimeZone::get("America/Sao_Paulo").unwrap());
            for now in [0, 1, 1 << 53, u64::MAX] {
                windows.at(Timestamp(now));
            }
            windows.start(u64::MAX);
        }
    }
}
