//! Warnings about overrides.

use super::Lint;
use crate::config::compile::{Compiled, address_rule};
use crate::config::fault::quoted;
use crate::config::raw::RawDescriptor;
use crate::engine::time::Timestamp;

impl Lint<'_, '_, '_, '_> {
    pub(super) fn overrides(&mut self, compiled: &Compiled<'_>, now: Timestamp) {
        let policy = self.policy;
        for (raw, item) in policy.overrides.iter().zip(&compiled.domain.overrides) {
            match (&raw.expires_at, item.expires_at) {
                (Some(at), Some(end)) if end <= now => {
                    self.warn(at.span, "this override has expired and has no effect")
                        .help("take it out");
                }
                (None, _) => {
                    self.warn(
                        raw.span,
                        "an override that never expires is a limit that nobody sees",
                    )
                    .help("write `expires_at`, or change the limit itself");
                }
                _ => {}
            }
            if raw.author.is_none() {
                self.warn(raw.span, "this override has no `author`")
                    .help("write who set it, as in `author: ana`: somebody will want to ask");
            }
            if raw.reason.is_none() {
                self.warn(raw.span, "this override has no `reason`")
                    .help("write why, as in `reason: ticket 4411`");
            }
            for (key, value) in &raw.matches {
                let Some(rule) = address_of(&policy.descriptors, &key.value) else {
                    continue;
                };
                let network = rule.network(&value.value);
                if *network != value.value {
                    self.warn(
                        value.span,
                        format!(
                            "callers of `{}` are counted by network, and none is called {}",
                            key.value,
                            quoted(&value.value)
                        ),
                    )
                    .help(format!("write `{network}`"));
                }
            }
        }
    }
}

fn address_of(descriptors: &[RawDescriptor], key: &str) -> Option<crate::engine::descriptor::AddressRule> {
    descriptors.iter().find_map(|descriptor| {
        let own = descriptor
            .address
            .as_ref()
            .filter(|_| descriptor.key.as_ref().is_some_and(|k| k.value == key));
        own.map(address_rule)
            .or_else(|| address_of(&descriptor.descriptors, key))
    })
}
