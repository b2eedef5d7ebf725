//! How budgets are called in Redis: a key for the caller, a field for each of its budgets.
//!
//! Readable for ordinary values, injective for all, bounded. The hash tag is the caller, so all that is
//! decided together is in one slot: `c:{api|tenant=acme}`, with fields like `route=GET%20/v1/search|search/tb/m`.
//! Short, since a million callers keep them and each call sends them.

use sha2::{Digest as _, Sha256};

use crate::engine::key::{BudgetKey, escape};
use crate::engine::reset::Target;

/// What begins every key.
const PREFIX: &str = "c:{";

/// A longer value stands as `~` and a digest.
const LONGEST_VALUE: usize = 128;

/// A longer key, or field, stands as a digest whole.
const LONGEST: usize = 512;

/// The key of a budget's caller.
pub(super) fn key(budget: &BudgetKey<'_>) -> String {
    let mut out = String::with_capacity(64);
    out.push_str(PREFIX);
    let start = out.len();
    value(&mut out, budget.domain());
    for (key, text) in budget.tag() {
        out.push('|');
        entry(&mut out, key, text);
    }
    bound(&mut out, start, LONGEST - PREFIX.len() - 1);
    out.push('}');
    out
}

/// Appends the field of a budget among its caller's: the entries that the key does not hold, and the limit.
pub(super) fn field(out: &mut String, budget: &BudgetKey<'_>) {
    let start = out.len();
    // Without a caller, the key holds all entries.
    if let Some(caller) = budget.caller {
        for (at, (key, value)) in budget.entries().enumerate() {
            if at != caller {
                entry(out, key, value);
            } else if at > 0 {
                // The place of what is left out tells `tenant > route` from `route > tenant`.
                out.push('.');
            } else {
                continue;
            }
            out.push('|');
        }
    }
    out.push_str(budget.identity.code());
    bound(out, start, LONGEST);
}

/// Whether a field is that of a budget which a reset means. One that stands as a digest whole does not say, and
/// counts as meant.
pub(super) fn is_meant(name: &[u8], target: &Target) -> bool {
    if target.is_one() {
        let mut wanted = String::new();
        field(&mut wanted, &target.key(&target.values()));
        return name == wanted.as_bytes();
    }
    let Ok(name) = std::str::from_utf8(name) else {
        return false;
    };
    if name.starts_with('~') && !name.contains('|') {
        return true;
    }
    let mut parts = name.split('|');
    let entries = target.limit.identity.keys().iter().zip(&target.values);
    for (at, (key, wanted)) in entries.enumerate() {
        // What the key holds is not in the field, but for the place of what is not first.
        if target.caller.is_none_or(|caller| caller == at && at == 0) {
            continue;
        }
        let mut text = String::new();
        match wanted {
            _ if target.caller == Some(at) => text.push('.'),
            Some(wanted) => entry(&mut text, key, wanted),
            None => entry(&mut text, key, ""),
        }
        let part = parts.next().unwrap_or_default();
        if !(part == text || wanted.is_none() && part.starts_with(&text)) {
            return false;
        }
    }
    parts.eq([target.limit.identity.code()])
}

fn entry(out: &mut String, key: &str, text: &str) {
    value(out, key);
    out.push('=');
    value(out, text);
}

fn value(out: &mut String, text: &str) {
    if text.len() > LONGEST_VALUE {
        digest(out, text)
    } else {
        escape(out, text)
    }
}

/// Puts a digest in the place of what was appended, if that is too long.
fn bound(out: &mut String, start: usize, longest: usize) {
    if out.len() - start > longest {
        let text = out.split_off(start);
        digest(out, &text);
    }
}

/// `~` and 128 bits in hex. No other text begins with `~`: it is escaped everywhere.
fn digest(out: &mut String, text: &str) {
    use std::fmt::Write as _;
    out.push('~');
    for byte in &Sha256::digest(text)[..16] {
        let _ = write!(out, "{byte:02x}");
    }
}
