//! `local_barrier`: how much of what replicas are asked may reach the store.

use super::Compiler;
use super::limit::pick;
use crate::config::raw::RawLimit;
use crate::engine::limit::Factor;

impl Compiler<'_, '_, '_> {
    /// How many times the limit one replica asks the store for. Debts must be charged whatever happens, and
    /// what is observed must not be spared anything.
    pub(super) fn barrier(&mut self, raw: &RawLimit, overdraft: bool, shadow: bool) -> Option<Factor> {
        let written = raw.local_barrier.as_ref();
        if let Some(at) = written.filter(|at| overdraft && at.value.is_some()) {
            self.error(at.span, "`local_barrier` does not go with `overdraft`")
                .help("a debt is charged with every attempt: take `local_barrier` out");
        }
        if overdraft || shadow {
            return None;
        }
        let factor = pick(&raw.local_barrier, &self.policy.defaults.local_barrier);
        factor.map_or(Some(Factor::BARRIER), |at| {
            at.value.map(|factor| Factor {
                thousandths: factor.0.into(),
            })
        })
    }
}
