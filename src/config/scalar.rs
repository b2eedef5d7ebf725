//! What a scalar means, where its key says what is wanted.
//!
//! The incumbent's rules are kept for its keys: a number is what Go reads as a number (octal with a
//! leading zero, `0x`, `0b`, `0o`, underscores), a truth value is any of YAML 1.1's words, and a
//! text is whatever was written, so that `1.10`, `NO` and `0x1F` stay what they look like. Each
//! refusal says why, since the incumbent's own words ("cannot unmarshal") do not.

use std::time::Duration;

use jiff::Timestamp;

use super::keys::nearest;
use super::raw::{Factor, Percent};
use crate::engine::limit::Unit;
use crate::engine::overrides::decimal;

/// Why a scalar is refused, and what to write.
#[derive(Debug, PartialEq)]
pub(super) struct Refused {
    pub(super) why: String,
    pub(super) help: Option<String>,
}

fn refused<T>(why: impl Into<String>, help: impl Into<String>) -> Result<T, Refused> {
    Err(Refused {
        why: why.into(),
        help: Some(help.into()),
    })
}

const UNLIMITED: &str = "for no limit, write `unlimited: true`";

/// A whole number, as the incumbent reads it into 32 bits.
pub(super) fn integer(text: &str, plain: bool) -> Result<u32, Refused> {
    let Some(number) = go_integer(text) else {
        return Err(not_integer(text));
    };
    if !plain {
        return refused(
            "is text, since it is quoted; a number is needed",
            format!("write {text} without quotes"),
        );
    }
    if number < 0 {
        return refused("is negative", UNLIMITED);
    }
    match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) => refused(
            "is above 4294967295, the most that the protocol carries",
            UNLIMITED,
        ),
    }
}

/// Whether a number is octal only by a leading zero: worth a warning.
pub(super) fn is_octal(text: &str) -> bool {
    let digits = text.trim_start_matches('+');
    digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// Any number of YAML 1.1: only `metadata` has such.
pub(super) fn number(text: &str) -> Option<f64> {
    if let Some(whole) = go_integer(text) {
        return Some(whole as f64);
    }
    // Rust also reads `inf`, `nan` and `infinity`, which are words to YAML.
    let digits = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    text.parse()
        .ok()
        .filter(|number: &f64| digits && number.is_finite())
}

/// `strconv.ParseInt(text, 0, …)` after removing underscores; saturated.
fn go_integer(text: &str) -> Option<i128> {
    let text: String = text.chars().filter(|c| *c != '_').collect();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).unwrap_or(i128::MAX);
    Some(if negative { -number } else { number })
}

fn not_integer(text: &str) -> Refused {
    let with = |why: &str, help: Option<String>| Refused {
        why: why.to_owned(),
        help,
    };
    if text.contains("{{") {
        return with("looks like a template; render it first", None);
    }
    if is_octal(text) {
        let digits = text.trim_start_matches(['+', '0']);
        return with(
            "starts with 0, which means octal, and holds 8 or 9",
            Some(format!("write {digits}")),
        );
    }
    if let Some(whole) = text
        .contains(',')
        .then(|| text.replace(',', ""))
        .filter(|t| go_integer(t).is_some())
    {
        return with(
            "has a comma; a plain number is needed",
            Some(format!("write {whole}")),
        );
    }
    if let Ok(float) = text.parse::<f64>() {
        let whole = float.is_finite() && float.fract() == 0.0 && float.abs() < 1e15;
        return with(
            "is no whole number to YAML",
            whole.then(|| format!("write {float:.0}")),
        );
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[digits.len()..];
    let factor = match suffix {
        "k" | "K" => 1000,
        "m" | "M" => 1_000_000,
        _ => 0,
    };
    if let Ok(number) = digits.parse::<u32>()
        && factor > 0
    {
        return with(
            "is no number to YAML",
            Some(format!("write {}", u64::from(number) * factor)),
        );
    }
    if let Some((number, unit)) = text
        .split_once('/')
        .filter(|(n, _)| n.trim().parse::<u32>().is_ok())
    {
        let unit = unit_meant(&unit.trim().to_lowercase()).unwrap_or("…");
        return with(
            "is a rate; a number is needed",
            Some(format!("write {} and `unit: {unit}`", number.trim())),
        );
    }
    with("is no whole number", None)
}

/// A truth value: the words of YAML 1.1, unquoted.
pub(super) fn boolean(text: &str, plain: bool) -> Result<bool, Refused> {
    let value = match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => true,
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => false,
        _ => return refused("is neither true nor false", "write `true` or `false`"),
    };
    if plain {
        return Ok(value);
    }
    refused(
        "is text, since it is quoted; true or false is needed",
        format!("write {value} without quotes"),
    )
}

/// `unit`, in any case.
pub(super) fn unit(text: &str) -> Result<Unit, Refused> {
    let lower = text.to_lowercase();
    if let Some(unit) = Unit::ALL.iter().find(|unit| unit.name() == lower) {
        return Ok(*unit);
    }
    let why = "is no unit of time";
    if duration(text).is_ok() {
        return refused(why, format!("write `period: {text}`"));
    }
    match unit_meant(&lower) {
        Some(word) => refused(why, format!("did you mean `{word}`?")),
        None => refused(
            why,
            "one of second, minute, hour, day, week, month, year; or `period: 30s`",
        ),
    }
}

fn unit_meant(lower: &str) -> Option<&'static str> {
    match lower {
        "s" | "sec" => Some("second"),
        "m" | "min" => Some("minute"),
        "h" | "hr" => Some("hour"),
        "d" => Some("day"),
        "daily" => Some("day"),
        _ => nearest(
            lower.trim_end_matches("ly").trim_end_matches('s'),
            &Unit::ALL.map(Unit::name),
        ),
    }
}

/// A duration such as `1h30m` or `500ms`: whole numbers, each with a unit, the larger first.
pub(super) fn duration(text: &str) -> Result<Duration, Refused> {
    const UNITS: [(&str, u64); 7] = [
        ("w", 604_800_000_000),
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
        ("us", 1),
    ];
    let why = "is no duration";
    let usual = "write it as `30s`, `5m`, `1h30m` or `500ms`";
    if text.parse::<f64>().is_ok() {
        return refused(
            "has no unit of time",
            format!("write `{text}s` for seconds, `{text}ms` for milliseconds"),
        );
    }
    let (mut rest, mut total, mut allowed) = (text, 0u64, &UNITS[..]);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let letters = rest[digits..]
            .chars()
            .take_while(char::is_ascii_alphabetic)
            .count();
        let (number, unit) = (&rest[..digits], &rest[digits..digits + letters]);
        rest = &rest[digits + letters..];
        let Some(at) = allowed.iter().position(|(word, _)| *word == unit) else {
            return match number.parse::<u64>() {
                Ok(_) if UNITS.iter().any(|(word, _)| *word == unit) => {
                    refused(why, "write each unit once, the larger first: `1h30m`")
                }
                _ => refused(why, usual),
            };
        };
        let Some(sum) = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(allowed[at].1))
            .and_then(|micros| total.checked_add(micros))
        else {
            return refused(why, usual);
        };
        total = sum;
        allowed = &allowed[at + 1..];
    }
    if text.is_empty() {
        refused(why, usual)
    } else {
        Ok(Duration::from_micros(total))
    }
}

/// A share such as `5%` or `0.25%`.
pub(super) fn percent(text: &str) -> Result<Percent, Refused> {
    let Some(number) = text.strip_suffix('%') else {
        return refused(
            "has no percent sign",
            format!("write it as a share of the limit, such as `{}%`", text.trim()),
        );
    };
    match decimal(number, 2) {
        Some(hundredths) => Ok(Percent(hundredths)),
        None => refused("is no percentage", "write it as `5%` or `0.25%`"),
    }
}

/// A factor such as `10` or `2.5`.
pub(super) fn factor(text: &str, plain: bool) -> Result<Factor, Refused> {
    match decimal(text, 3) {
        Some(_) if !plain => refused(
            "is text, since it is quoted; a number is needed",
            format!("write {text} without quotes"),
        ),
        Some(thousandths) => Ok(Factor(thousandths)),
        None => refused(
            "is no factor",
            "write it as `10` or `1.5`, with three decimals at most",
        ),
    }
}

/// A moment, RFC 3339.
pub(super) fn timestamp(text: &str) -> Result<Timestamp, Refused> {
    match text.parse::<Timestamp>() {
        Ok(moment) => Ok(moment),
        Err(_) if text.parse::<jiff::civil::DateTime>().is_ok() => {
            let example = text
                .parse::<jiff::civil::DateTime>()
                .map_or_else(|_| String::new(), |d| format!("{d}Z"));
            refused(
                "has no time zone",
                format!("write it as `{example}`, or with an offset such as `-03:00`"),
            )
        }
        Err(_) => refused("is no moment in time", "write it as `2026-12-03T00:00:00Z`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_go_reads_them() {
        let cases: [(&str, u32); 10] = [
            ("100", 100),
            ("0", 0),
            ("-0", 0),
            ("+7", 7),
            ("0100", 64),
            ("0x10", 16),
            ("0b11", 3),
            ("0o17", 15),
            ("1_000", 1000),
            ("4294967295", u32::MAX),
        ];
        for (text, number) in cases {
            assert_eq!(integer(text, true), Ok(number), "{text}");
        }
        assert!(is_octal("0100") && !is_octal("0") && !is_octal("0x10") && !is_octal("100"));
    }

    #[test]
    fn what_is_no_integer_is_refused_with_the_reason() {
        let cases = [
            ("100.0", "no whole number", Some("write 100")),
            ("1e3", "no whole number", Some("write 1000")),
            ("100k", "no number", Some("write 100000")),
            ("1,000", "comma", Some("write 1000")),
            ("-1", "negative", Some(UNLIMITED)),
            ("4294967296", "above 4294967295", Some(UNLIMITED)),
            (
                "99999999999999999999999999999999999999999999",
                "above 4294967295",
                Some(UNLIMITED),
            ),
            ("true", "no whole number", None),
            ("089", "octal", Some("write 89")),
            ("0x", "no whole number", None),
            ("", "no whole number", None),
            ("30/m", "a rate", Some("write 30 and `unit: minute`")),
            ("{{ .n }}", "template", None),
        ];
        for (text, why, help) in cases {
            let refused = integer(text, true).expect_err(text);
            assert!(refused.why.contains(why), "{text}: {refused:?}");
            if let Some(help) = help {
                let given = refused.help.unwrap_or_default();
                assert!(given == help, "{text}: {given}");
            }
        }
        let quoted = integer("100", false).expect_err("quoted");
        assert_eq!(quoted.help.as_deref(), Some("write 100 without quotes"));
    }

    #[test]
    fn truth_values_are_the_words_of_yaml_1_1() {
        assert_eq!(boolean("true", true), Ok(true));
        assert_eq!(boolean("NO", true), Ok(false));
        assert_eq!(boolean("on", true), Ok(true));
        assert!(boolean("1", true).is_err());
        assert!(boolean("true", false).expect_err("quoted").why.contains("quoted"));
    }

    #[test]
    fn units_are_read_in_any_case_and_near_misses_named() {
        assert_eq!(unit("MINUTE"), Ok(Unit::Minute));
        assert_eq!(unit("Week"), Ok(Unit::Week));
        let help = |text| unit(text).expect_err("no unit").help.unwrap_or_default();
        assert_eq!(help("minutes"), "did you mean `minute`?");
        assert_eq!(help("sec"), "did you mean `second`?");
        assert_eq!(help("hourly"), "did you mean `hour`?");
        assert_eq!(help("30s"), "write `period: 30s`");
        assert!(help("fortnight").starts_with("one of second"));
    }

    #[test]
    fn durations_need_units() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for text in [
            "",
            "30",
            "0",
            "1.5s",
            "-1s",
            "1s ",
            "s",
            "1m1h",
            "1s1s",
            "5x",
            "99999999999999w",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
        let help = duration("30").expect_err("bare").help.unwrap_or_default();
        assert_eq!(help, "write `30s` for seconds, `30ms` for milliseconds");
    }

    #[test]
    fn shares_and_factors_are_exact() {
        assert_eq!(percent("5%"), Ok(Percent(500)));
        assert_eq!(percent("0.25%"), Ok(Percent(25)));
        assert_eq!(percent("150%"), Ok(Percent(15_000)));
        for text in ["5", "%", "-5%", "0.125%", "5.%", "5 %", "99999999999%"] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(factor("10", true), Ok(Factor(10_000)));
        assert_eq!(factor("1.5", true), Ok(Factor(1_500)));
        for text in ["", "-1", "1e3", "x2", "1.0001"] {
            assert!(factor(text, true).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_need_an_offset() {
        let utc = timestamp("2026-12-03T00:00:00Z").unwrap();
        assert_eq!(timestamp("2026-12-02T21:00:00-03:00"), Ok(utc));
        let help = timestamp("2026-12-03")
            .expect_err("date")
            .help
            .unwrap_or_default();
        assert!(help.starts_with("write it as `2026-12-03T00:00:00Z`"), "{help}");
        assert!(timestamp("tomorrow").is_err());
    }
}
