//! Warnings: what is legal and probably not meant.
//!
//! Each says why, since a reader who disagrees must be able to. What would be said of every second
//! file is said once a domain, at its first place.

mod limits;
mod overrides;
mod rules;

use super::compile::{Compiled, Placed};
use super::fault::{Fault, Faults, Span};
use super::raw::RawPolicy;
use crate::engine::time::Timestamp;

/// Looks at a domain that compiled without an error.
pub(super) fn domain(policy: &RawPolicy, compiled: &Compiled<'_>, now: Timestamp, faults: &mut Faults<'_>) {
    let mut lint = Lint {
        policy,
        placed: &compiled.placed,
        faults,
    };
    lint.limits();
    lint.rules();
    lint.overrides(compiled, now);
}

struct Lint<'r, 'c, 'f, 't> {
    policy: &'r RawPolicy,
    placed: &'c [Placed<'r>],
    faults: &'f mut Faults<'t>,
}

impl Lint<'_, '_, '_, '_> {
    fn warn(&mut self, span: Span, message: impl Into<String>) -> &mut Fault {
        self.faults.warning(span, message)
    }

    /// Warns once of something found in several places.
    fn warn_once(&mut self, places: &[Span], message: &str, help: &str) {
        let Some(first) = places.first() else { return };
        let message = match places.len() {
            1 => message.to_owned(),
            n => format!("{message} ({n} in this domain; this is the first)"),
        };
        self.warn(*first, message).help(help);
    }
}
