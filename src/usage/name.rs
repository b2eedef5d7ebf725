//! What a caller is called where people read it.

use std::fmt::Write as _;
use std::sync::Arc;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::engine::key::{BudgetKey, escape};

/// A longer name is cut, and ends in a digest of the whole.
const LONGEST: usize = 96;

/// How much of it is left then.
const KEPT: usize = 64;

/// The entries of a budget, `tenant=acme,route=/v1/search`, as in the store's keys: everything but letters,
/// digits and `-._/:@+*` is percent-encoded, so nothing of it can break a label, a log line or a page.
pub(super) fn name(budget: &BudgetKey<'_>) -> Arc<str> {
    let mut out = String::with_capacity(48);
    for (at, (key, value)) in budget.entries().enumerate() {
        if at > 0 {
            out.push(',');
        }
        escape(&mut out, key);
        out.push('=');
        escape(&mut out, value);
    }
    bounded(out)
}

/// A value, in the same notation.
pub(super) fn value(text: &str) -> Arc<str> {
    let mut out = String::with_capacity(text.len().min(LONGEST));
    escape(&mut out, text);
    bounded(out)
}

/// Two names that differ still do when they are cut; the digest is the same on every replica.
fn bounded(mut text: String) -> Arc<str> {
    if text.len() > LONGEST {
        let mut hasher = SipHasher13::new();
        std::hash::Hasher::write(&mut hasher, text.as_bytes());
        let digest = hasher.finish128().as_u128();
        // What was escaped is ASCII.
        text.truncate(KEPT);
        let _ = write!(text, "~{digest:032x}");
    }
    text.into()
}
