//! What sections of the page are made of: tables, bars, times, and texts that cannot act on the page.

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::engine::time::{Micros, Timestamp};

/// A column, and how its cells are set.
pub(super) type Column = (&'static str, &'static str);

/// The class of a column of numbers.
pub(super) const NUMBER: &str = "number";

/// The class of a column of texts that stay on one line.
pub(super) const SHORT: &str = "short";

/// The class of a column of texts.
pub(super) const TEXT: &str = "text";

/// A table that falls apart into a card a row on a phone; the first cell heads its row. Roles are written out,
/// since some browsers forget them of a table that is not laid out as one.
pub(super) fn table(name: &str, columns: &[Column], rows: Vec<Vec<Markup>>) -> Markup {
    html! {
        table role="table" aria-label=(name) {
            thead role="rowgroup" { tr role="row" {
                @for (head, class) in columns { th role="columnheader" scope="col" class=(class) { (head) } }
            } }
            tbody role="rowgroup" {
                @for row in rows { tr role="row" {
                    @for ((at, (head, class)), cell) in columns.iter().enumerate().zip(row) {
                        @if at == 0 {
                            th role="rowheader" scope="row" class=(class) { (cell) }
                        } @else {
                            td role="cell" class=(class) data-head=(head) { div { (cell) } }
                        }
                    }
                } }
            }
        }
    }
}

/// A share as a bar with its number. Widths are attributes of SVG: the page allows no style in its text.
pub(super) fn bar(share: f64, tone: &str) -> Markup {
    let percent = percent(share);
    html! {
        span class="share" {
            svg class={ "bar " (tone) } aria-hidden="true" { rect width=(percent) height="100%" {} }
            span { (percent) }
        }
    }
}

/// `87%`; what is not nothing is not shown as such, nor what is not all as all.
pub(super) fn percent(share: f64) -> String {
    let whole = (share.clamp(0.0, 1.0) * 100.0).round();
    let whole = match share {
        share if share > 0.0 && whole == 0.0 => 1.0,
        share if share < 1.0 && whole == 100.0 => 99.0,
        _ => whole,
    };
    format!("{whole}%")
}

/// A text as people should see it: what does not print, or turns the direction of what follows, is shown
/// by its number.
pub(super) fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// A long number, in groups of three.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 limit`, `2 limits`.
pub(super) fn count(number: usize, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", grouped(number as u64))
}

/// `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
pub(super) fn span(length: Micros) -> String {
    let seconds = length.0 / Micros::SECOND.0;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let mut out = String::new();
    let (large, small) = match seconds {
        0..60 => ((seconds, "s"), None),
        60..600 => ((minutes, "min"), Some((seconds % 60, "s"))),
        600..3_600 => ((minutes, "min"), None),
        3_600..86_400 => ((hours, "h"), Some((minutes % 60, "min"))),
        _ => ((days, "d"), Some((hours % 24, "h"))),
    };
    let _ = write!(out, "{} {}", large.0, large.1);
    if let Some((number, unit)) = small.filter(|(number, _)| *number > 0) {
        let _ = write!(out, " {number} {unit}");
    }
    out
}

/// How long ago something was.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    match now.0.saturating_sub(then.0) {
        passed if passed < Micros::SECOND.0 * 2 => "just now".into(),
        passed => format!("{} ago", span(Micros(passed))),
    }
}

/// The time of the day, in UTC.
pub(super) fn time_of_day(at: Timestamp) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    at.strftime("%H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_two_units_at_most() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (95, "1 min 35 s"),
            (725, "12 min"),
            (3_600, "1 h"),
            (12_059, "3 h 20 min"),
            (187_200, "2 d 4 h"),
        ] {
            assert_eq!(span(Micros::from_secs(seconds)), text);
        }
    }

    #[test]
    fn shares_are_rounded_but_never_to_nothing_or_all() {
        for (share, text) in [
            (0.0, "0%"),
            (0.001, "1%"),
            (0.874, "87%"),
            (0.999, "99%"),
            (1.0, "100%"),
        ] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn what_does_not_print_is_shown_by_its_number() {
        assert_eq!(shown("é \"a\\'\u{202e}\u{1b}\0"), "é \"a\\'\\u{202e}\\u{1b}\\0");
        assert_eq!(
            table("<b>", &[], Vec::new()).into_string().matches("<b>").count(),
            0
        );
    }

    #[test]
    fn numbers_are_grouped_and_counted() {
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".into(), "1,234,567".into()));
        assert_eq!(
            (count(1, "limit"), count(1_000, "limit")),
            ("1 limit".into(), "1,000 limits".into())
        );
    }

    #[test]
    fn the_time_of_day_is_that_of_utc() {
        assert_eq!(time_of_day(Timestamp(1_800_000_000_000_000)), "08:00:00 UTC");
    }
}
