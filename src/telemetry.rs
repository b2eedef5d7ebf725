//! What an operator sees of the service: metric families, traces, and the log.
//!
//! Families register on a registry that is handed in; nothing is global. Every label value is a word of
//! a closed set, or a name that the policy's author wrote. What callers send never becomes one: a
//! domain that no policy has is `unknown`, a limit that came with a request is `override`. So the
//! number of series follows from the policy alone, whatever the traffic. The one exception is bounded:
//! the callers that are refused most, escaped and cut (see [`crate::usage`]).
//!
//! The counters of a policy are looked up once, when it comes into force ([`Metrics::install`]); a
//! decision finds them by the address of its domain and limits, without formatting or hashing text.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::engine::decision::{Decision, Verdict};
use crate::engine::descriptor::Request;
use crate::engine::limit::FailureMode;
use crate::engine::policy::{Domain, Policy};
use crate::engine::resolve::{Charge, Found, LimitRef, Malformed, Resolved};
use crate::usage::Usage;

mod counts;
mod handles;
mod histogram;
mod labels;
mod leases;
mod logging;
mod top;
mod traces;

use handles::{Handles, UseHandles};
use histogram::{DurationHistogram, ShareHistogram};
use labels::{
    Code, ConfigLabels, DecisionLabels, DegradedLabels, LimitLabels, LimitVerdict, MalformedLabels,
    ReloadLabels, RequestLabels, UnmatchedLabels,
};

pub use counts::{
    EVICTIONS, STORE_ERRORS, register_counts, register_degraded, register_overrides, register_store_duration,
};
pub use labels::Reload;
pub use leases::{LimitLeases, register_leases};
pub use logging::{LogFormat, init_logging};
pub use traces::{DecisionSpan, Origin, TraceSettings, Traced, Traces};
pub use tracing::level_filters::LevelFilter;

/// The `domain` of requests whose domain no policy has.
pub const UNKNOWN_DOMAIN: &str = "unknown";

/// The `limit` of limits that came with a request.
pub const WIRE_OVERRIDE: &str = "override";

/// The service's metric families.
#[derive(Debug)]
pub struct Metrics {
    families: Families,
    malformed: [Counter; Malformed::ALL.len()],
    handles: ArcSwap<Handles>,
    usage: Arc<Usage>,
    shadow: bool,
}

/// The families as registered. The doc comment of each says what question it answers.
#[derive(Debug)]
struct Families {
    /// `cota_requests_total`: how many requests does Envoy ask about, how many are over a limit, and how
    /// many got no answer? The last is what an alert belongs on: those are the requests that Envoy lets
    /// pass or refuses by its own setting.
    requests: Family<RequestLabels, Counter>,
    /// `cota_limit_decisions_total`: which limit refuses, holds or marks requests, and what would a limit
    /// in shadow mode refuse if it were enforced? A refused request counts for the limits that refused
    /// it, not for those that would have let it pass.
    decisions: Family<DecisionLabels, Counter>,
    /// `cota_limit_utilization_ratio`: how full are the budgets of a limit after requests that passed? All
    /// low: nobody needs so much. Much above 0.9 without refusals: those that were never refused are close.
    utilization: Family<LimitLabels, ShareHistogram>,
    /// `cota_decision_duration_seconds`: how much time does the service add to a request? A wait that a
    /// limit imposes on purpose is not part of it.
    duration: DurationHistogram,
    /// `cota_config_reloads_total`: did the last change of the policy files come into force, in whole or
    /// in part, or was it refused?
    reloads: Family<ReloadLabels, Counter>,
    /// `cota_config_info`: which domains are in force, and is it the same text of them on every replica?
    config: Family<ConfigLabels, Gauge>,
    /// `cota_unmatched_descriptors_total`: what does Envoy send that no rule is there for, and why not? A
    /// descriptor that meets nothing is not limited, and a typing error looks just like that.
    unmatched: Family<UnmatchedLabels, Counter>,
    /// `cota_malformed_requests_total`: what does Envoy send that cannot be right whatever the policy?
    malformed: Family<MalformedLabels, Counter>,
    /// `cota_degraded_decisions_total`: which limits are decided without the store, and how?
    degraded: Family<DegradedLabels, Counter>,
    /// `cota_local_refusals_total`: how many refusals did the shared store not have to be asked for, because they
    /// were remembered or met the local barrier?
    unasked: Family<LimitLabels, Counter>,
    /// `cota_clock_clamps_total`: does the store's clock step back? Each is a budget that was brought
    /// back from a time too far in the future.
    clamps: Counter,
}

impl Metrics {
    /// The families, registered. `shadow` says that every limit is in shadow mode.
    pub fn new(registry: &mut Registry, shadow: bool) -> Self {
        let families = Families::register(registry);
        let usage = Arc::<Usage>::default();
        top::register(registry, Arc::clone(&usage));
        let handles = Handles::new(&families, &usage, Arc::new(Policy::default()), shadow);
        for result in Reload::ALL {
            families.reloads.get_or_create_owned(&ReloadLabels { result });
        }
        Self {
            malformed: Malformed::ALL.map(|fault| {
                let reason = fault.name();
                families
                    .malformed
                    .get_or_create_owned(&MalformedLabels { reason })
            }),
            handles: ArcSwap::from_pointee(handles),
            families,
            usage,
            shadow,
        }
    }

    /// How limits are used, by whom. It is to be told the time: [`Usage::tick`].
    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Makes the counters of a policy that comes into force, at zero, and takes away those of domains and
    /// limits that it no longer has. To be called before the policy decides requests, one call at a time.
    pub fn install(&self, policy: Arc<Policy>) {
        let handles = Arc::new(Handles::new(&self.families, &self.usage, policy, self.shadow));
        let before = self.handles.swap(Arc::clone(&handles));
        before.remove_what_is_gone(&handles, &self.families, &self.usage);
    }

    /// Counts a decision that took `elapsed`, the time its answer was held included.
    pub fn record(
        &self,
        request: &Request<'_>,
        domain: Option<&Domain>,
        resolved: &Resolved<'_>,
        decision: &Decision,
        elapsed: Duration,
    ) {
        self.families
            .duration
            .observe(elapsed.saturating_sub(decision.wait.into()));
        let handles = self.handles.load();
        let domain = handles.domain(domain);
        domain.request(if decision.refused {
            Code::OverLimit
        } else {
            Code::Ok
        });
        for (charge, verdict) in resolved.charges.iter().zip(&decision.verdicts) {
            let limit = match &charge.limit {
                LimitRef::Policy(limit) => domain.limit(limit),
                LimitRef::Wire(_) => Some(domain.wire()),
            };
            if let Some(limit) = limit {
                if let Some(mode) = verdict.degraded {
                    limit.degraded(mode, &self.families);
                }
                if let Some(counted) = LimitVerdict::of(charge, verdict, decision.refused) {
                    limit.count(counted);
                    if decision.unasked && counted == LimitVerdict::Deny {
                        limit.unasked(&self.families);
                    }
                    if let Some(used) = &limit.used {
                        used.note(counted, request, resolved, charge, verdict);
                    }
                }
            }
            if verdict.clamped {
                self.families.clamps.inc();
            }
        }
        for met in &resolved.met {
            match met.found {
                Found::Unmatched(reason) => domain.unmatched(reason),
                Found::Malformed(fault) => self.malformed(fault),
                Found::Limits | Found::NoLimit => {}
            }
        }
        // These are ignored, so the resolved request does not know of them.
        for descriptor in &request.descriptors {
            if descriptor.limit.is_some_and(|limit| limit.unit.is_none()) {
                self.malformed(Malformed::OverrideUnit);
            }
        }
    }

    /// Counts a request that got no answer; `fault` says what was wrong with it, unless the fault was ours.
    pub fn record_failure(&self, domain: Option<&Domain>, fault: Option<Malformed>, elapsed: Duration) {
        self.families.duration.observe(elapsed);
        self.handles.load().domain(domain).request(Code::Error);
        if let Some(fault) = fault {
            self.malformed(fault);
        }
    }

    /// Counts a change of the policy files.
    pub fn record_reload(&self, result: Reload) {
        self.families
            .reloads
            .get_or_create(&ReloadLabels { result })
            .inc();
    }

    fn malformed(&self, fault: Malformed) {
        self.malformed[fault as usize].inc();
    }
}

impl Families {
    fn register(registry: &mut Registry) -> Self {
        let families = Self {
            requests: Family::default(),
            decisions: Family::default(),
            utilization: Family::default(),
            duration: DurationHistogram::default(),
            reloads: Family::default(),
            config: Family::default(),
            unmatched: Family::default(),
            malformed: Family::default(),
            degraded: Family::default(),
            unasked: Family::default(),
            clamps: Counter::default(),
        };
        // The encoder adds `_total` to counters and a full stop to every text.
        registry.register(
            "cota_requests",
            "Requests decided, by the answer given",
            families.requests.clone(),
        );
        registry.register(
            "cota_limit_decisions",
            "What each limit said of the requests that met it",
            families.decisions.clone(),
        );
        registry.register(
            "cota_limit_utilization_ratio",
            "How much of its budget a request that passed left in use",
            families.utilization.clone(),
        );
        registry.register(
            "cota_decision_duration_seconds",
            "Time to decide a request, without the time an answer was held on purpose",
            families.duration.clone(),
        );
        registry.register(
            "cota_config_reloads",
            "Changes of the policy files, by what became of them",
            families.reloads.clone(),
        );
        registry.register(
            "cota_config_info",
            "Domains in force, with a digest of their file",
            families.config.clone(),
        );
        registry.register(
            "cota_unmatched_descriptors",
            "Descriptors that met no rule, by reason",
            families.unmatched.clone(),
        );
        registry.register(
            "cota_malformed_requests",
            "Requests, or parts of them, that no policy could make sense of",
            families.malformed.clone(),
        );
        registry.register(
            "cota_degraded_decisions",
            "Verdicts found without the store, by the failure mode that gave them",
            families.degraded.clone(),
        );
        registry.register(
            "cota_local_refusals",
            "Refusals for which the shared store was not asked",
            families.unasked.clone(),
        );
        registry.register(
            "cota_clock_clamps",
            "Budgets whose stored time lay too far in the future and was brought back",
            families.clamps.clone(),
        );
        families
    }
}

impl UseHandles {
    /// Notes how a limit is used: how much of a budget after a request that passed, by whom after a refusal. Of a
    /// budget that let it pass because nothing was known of it there is nothing to note.
    fn note<'r>(
        &self,
        counted: LimitVerdict,
        request: &Request<'_>,
        resolved: &Resolved<'r>,
        charge: &Charge<'r>,
        verdict: &Verdict,
    ) {
        let budget = resolved.key(charge);
        match counted {
            LimitVerdict::Deny | LimitVerdict::ShadowDeny => {
                let entry = charge.limit.attribute_to.as_deref();
                self.usage
                    .refused(&budget, entry.and_then(|entry| request.attribute(entry)));
            }
            _ if verdict.degraded == Some(FailureMode::Allow) => {}
            LimitVerdict::Allow | LimitVerdict::Wait | LimitVerdict::Excess => {
                if let Some(used) = thousandths_used(verdict) {
                    self.utilization.observe(used);
                    self.usage.passed(&budget, used);
                }
            }
        }
    }
}

/// `None` for a budget that holds nothing.
fn thousandths_used(verdict: &Verdict) -> Option<u32> {
    let used = verdict.capacity.saturating_sub(verdict.view.remaining);
    let share = used.saturating_mul(1_000).checked_div(verdict.capacity)?;
    Some(share.min(1_000) as u32)
}

#[cfg(test)]
mod tests;
