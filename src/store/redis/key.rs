//! How budgets are called in Redis: a key for the caller, a field for each of its budgets.
//!
//! Readable for ordinary values, injective for all, bounded. The hash tag is the caller, so all that is
//! decided together is in one slot: `c:{api|tenant=acme}`, with fields like `route=GET%20/v1/search|search/tb/m`.
//! Short, since a million callers keep them and each call sends them.

use sha2::{Digest as _, Sha256};

use crate::engine::key::{BudgetKey, escape};

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
