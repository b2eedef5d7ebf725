//! How budgets are called in Redis: a key for the caller, a field for each of its budgets.
//!
//! Readable for ordinary values, injective for all, bounded. The hash tag is the caller, so all that is
//! decided together is in one slot: `cota:{api|tenant=acme}`, with fields like
//! `route=GET%20/v1/search|search/token_bucket/minute`.

use sha2::{Digest as _, Sha256};

use crate::engine::key::{BudgetKey, escape};
use crate::engine::reset::Target;

/// What begins every key.
const PREFIX: &str = "cota:";

/// A longer value stands as `~` and a digest.
const LONGEST_VALUE: usize = 128;

/// A longer key, or field, stands as a digest whole.
const LONGEST: usize = 512;

/// The key of a budget's caller.
pub(super) fn key(budget: &BudgetKey<'_>) -> String {
    let mut tag = String::with_capacity(64);
    value(&mut tag, budget.domain());
    for (key, text) in budget.tag() {
        tag.push('|');
        entry(&mut tag, key, text);
    }
    let mut out = String::with_capacity(PREFIX.len() + tag.len() + 2);
    out.push_str(PREFIX);
    out.push('{');
    bounded(&mut out, &tag, LONGEST - PREFIX.len() - 2);
    out.push('}');
    out
}

/// The field of a budget among its caller's: all entries but the one that names the caller, and the limit.
pub(super) fn field(budget: &BudgetKey<'_>) -> String {
    let mut text = String::with_capacity(48);
    for (at, (key, value)) in budget.entries().enumerate() {
        // The place of what is left out tells `tenant > route` from `route > tenant`.
        if budget.caller.is_none_or(|caller| caller == at) {
            text.push('.');
        } else {
            entry(&mut text, key, value);
        }
        text.push('|');
    }
    text.push_str(budget.identity.limit());
    let mut out = String::with_capacity(text.len());
    bounded(&mut out, &text, LONGEST);
    out
}

/// Whether a field is that of a budget which a reset means. One that stands as a digest whole does not say, and
/// counts as meant.
pub(super) fn is_meant(name: &[u8], target: &Target) -> bool {
    if target.is_one() {
        return name == field(&target.key(&target.values())).as_bytes();
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
        let mut text = String::new();
        match wanted {
            _ if target.caller.is_none_or(|caller| caller == at) => text.push('.'),
            Some(wanted) => entry(&mut text, key, wanted),
            None => entry(&mut text, key, ""),
        }
        let part = parts.next().unwrap_or_default();
        if !(part == text || wanted.is_none() && part.starts_with(&text)) {
            return false;
        }
    }
    parts.eq([target.limit.identity.limit()])
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

fn bounded(out: &mut String, text: &str, longest: usize) {
    if text.len() > longest {
        digest(out, text)
    } else {
        out.push_str(text)
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
