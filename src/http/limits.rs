//! `/limits`: what is enforced now.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract;
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderMap};
use axum::response::Response;
use serde::Serialize;

use super::admin::Wants;
use super::{State, text, typed};
use crate::engine::limit::{Algorithm, Limit, Numbers, Plans, Share};
use crate::engine::overrides::Override;
use crate::engine::policy::{Domain, Policy};
use crate::engine::time::Windows;
use crate::overrides::{Listed, Origin, rfc3339};

/// The policy in force and the faults of its files, as JSON. As on the page, a token that is given has to be
/// right; without one, the lines of the files are left out if one is configured.
pub(super) async fn limits(
    extract::State(state): extract::State<Arc<State>>,
    headers: HeaderMap,
) -> Response {
    let policy = state.policy.load_full();
    let faults = state.faults.load_full();
    let mut faults: Vec<&str> = faults.iter().map(|(_, fault)| &**fault).collect();
    if let Some(refused) = state.admin.refusal(&headers, Wants::Read).await {
        if headers.contains_key(AUTHORIZATION) {
            return refused;
        }
        for fault in &mut faults {
            *fault = fault.lines().next().unwrap_or_default();
        }
    }
    let mut live = state.overrides.list();
    live.retain(|item| item.origin == Origin::RunTime);
    let view = View::new(&policy, faults, state.shadow, (state.degraded)(), &live);
    match serde_json::to_vec_pretty(&view) {
        Ok(body) => typed(StatusCode::OK, "application/json", body),
        Err(error) => {
            tracing::error!(%error, "the limits could not be written");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the limits could not be written\n",
            )
        }
    }
}

/// What is shown. A key that has nothing to say is left out.
#[derive(Serialize)]
pub(super) struct View<'p> {
    /// The whole service is in shadow mode, whatever the limits say.
    pub(super) shadow: bool,
    pub(super) version: u64,
    pub(super) faults: Vec<&'p str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) degraded: Vec<String>,
    pub(super) domains: Vec<DomainView<'p>>,
}

#[derive(Serialize)]
pub(super) struct DomainView<'p> {
    pub(super) name: &'p str,
    pub(super) version: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) costs: Option<CostsView<'p>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) safety_ceiling: Option<CeilingView<'p>>,
    pub(super) limits: Vec<LimitView<'p>>,
}

#[derive(Serialize)]
pub(super) struct CostsView<'p> {
    pub(super) entry: &'p str,
    pub(super) default: u64,
    pub(super) values: BTreeMap<&'p str, u64>,
}

#[derive(Serialize)]
pub(super) struct CeilingView<'p> {
    pub(super) period: &'p str,
    #[serde(flatten)]
    pub(super) numbers: NumbersView,
}

#[derive(Serialize)]
pub(super) struct LimitView<'p> {
    pub(super) label: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'p str>,
    /// The entries that lead to it.
    pub(super) path: Vec<EntryView<'p>>,
    pub(super) algorithm: &'static str,
    pub(super) period: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time_zone: Option<&'p str>,
    #[serde(flatten)]
    pub(super) numbers: NumbersView,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plans: Option<PlansView<'p>>,
    pub(super) counts: &'static str,
    pub(super) failure_mode: &'static str,
    /// How many times the limit one replica asks a shared store for; absent without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    local_barrier: Option<f64>,
    pub(super) shadow: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) quota_mode: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) overdraft: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) excess: Option<ExcessView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attribute_to: Option<&'p str>,
    #[serde(skip_serializing_if = "is_empty")]
    pub(super) replaces: &'p [Box<str>],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    /// Those of the file. For whom, by whom and why is told by `/overrides`, which asks for a token.
    pub(super) overrides: Vec<LiveView<'p>>,
    /// Those set at run time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) run_time_overrides: Vec<LiveView<'p>>,
}

#[derive(Serialize)]
pub(super) struct LiveView<'p> {
    pub(super) id: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<Cow<'p, str>>,
}

/// An entry with the value or pattern that a rule has for it; without one, it is any value.
#[derive(Serialize)]
pub(super) struct EntryView<'p> {
    pub(super) key: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<&'p str>,
}

#[derive(Serialize)]
pub(super) struct NumbersView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) requests_per_unit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_overshoot: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) unlimited: bool,
}

#[derive(Serialize)]
pub(super) struct PlansView<'p> {
    pub(super) entry: &'p str,
    pub(super) default: &'p str,
    pub(super) rows: BTreeMap<&'p str, NumbersView>,
}

#[derive(Serialize)]
pub(super) struct ExcessView {
    pub(super) action: &'static str,
    pub(super) up_to_percent: u32,
}

// === impl View ===

impl<'p> View<'p> {
    pub(super) fn new(
        policy: &'p Policy,
        faults: Vec<&'p str>,
        shadow: bool,
        degraded: Vec<String>,
        live: &'p [Listed],
    ) -> Self {
        let mut domains: Vec<_> = policy
            .domains
            .values()
            .map(|domain| DomainView::new(domain, live))
            .collect();
        domains.sort_by_key(|domain| domain.name);
        Self {
            shadow,
            version: policy.version,
            faults,
            degraded,
            domains,
        }
    }
}

// === impl DomainView ===

impl<'p> DomainView<'p> {
    fn new(domain: &'p Domain, live: &'p [Listed]) -> Self {
        let mut limits = Vec::new();
        domain.for_each_limit(&mut |path, limit| {
            let live = live.iter().filter(|item| item.spec.domain == *domain.name);
            let of_limit =
                live.filter(|item| item.spec.limit.as_deref() == limit.name.as_deref() && fits(item, path));
            limits.push(LimitView {
                run_time_overrides: of_limit.map(LiveView::new).collect(),
                ..LimitView::new(path, limit, &domain.overrides)
            });
        });
        let costs = domain.costs.as_ref().map(|costs| CostsView {
            entry: &costs.entry,
            default: costs.default,
            values: costs.values.iter().map(|(k, v)| (&**k, *v)).collect(),
        });
        Self {
            name: &domain.name,
            version: &domain.revision,
            costs,
            safety_ceiling: domain.safety_ceiling.as_ref().map(|ceiling| CeilingView {
                period: &ceiling.period.text,
                numbers: NumbersView::new(ceiling.numbers, &ceiling.algorithm),
            }),
            limits,
        }
    }
}

// === impl LimitView ===

impl<'p> LimitView<'p> {
    fn new(
        path: &[(&'p str, Option<&'p str>)],
        limit: &'p Arc<Limit>,
        overrides: &'p [Arc<Override>],
    ) -> Self {
        let algorithm = &limit.algorithm;
        let overrides = overrides
            .iter()
            .filter(|item| limit.name.as_ref() == Some(&item.limit))
            .map(|item| LiveView::of_file(item))
            .collect();
        Self {
            label: &limit.label,
            name: limit.name.as_deref(),
            path: path
                .iter()
                .map(|&(key, value)| EntryView { key, value })
                .collect(),
            algorithm: algorithm.name(),
            period: &limit.period.text,
            time_zone: time_zone(algorithm),
            numbers: NumbersView::new(limit.numbers, algorithm),
            plans: limit.plans.as_ref().map(|plans| PlansView::new(plans, algorithm)),
            counts: limit.counts.name(),
            failure_mode: limit.failure_mode.name(),
            local_barrier: limit.barrier.map(|factor| factor.thousandths as f64 / 1_000.0),
            shadow: limit.shadow,
            quota_mode: limit.quota,
            overdraft: limit.overdraft,
            excess: limit.excess.map(|excess| ExcessView {
                action: excess.action.name(),
                up_to_percent: excess.up_to_percent,
            }),
            attribute_to: limit.attribute_to.as_deref(),
            replaces: &limit.replaces,
            overrides,
            run_time_overrides: Vec::new(),
        }
    }
}

fn time_zone(algorithm: &Algorithm) -> Option<&str> {
    match algorithm {
        Algorithm::FixedWindow(Windows::Calendar { zone, .. })
        | Algorithm::SlidingWindow(Windows::Calendar { zone, .. }) => zone.iana_name(),
        _ => None,
    }
}

// === impl NumbersView ===

impl NumbersView {
    /// The numbers that mean something to the algorithm.
    fn new(numbers: Numbers, algorithm: &Algorithm) -> Self {
        let waits = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let wait_ms = numbers.max_wait.0.div_ceil(1_000);
        let limited = !numbers.unlimited;
        Self {
            requests_per_unit: limited.then_some(numbers.requests_per_unit),
            burst: (limited && *algorithm == Algorithm::TokenBucket).then_some(numbers.burst),
            max_wait_ms: (limited && waits && wait_ms > 0).then_some(wait_ms),
            max_overshoot: (limited && numbers.max_overshoot != Share::ZERO)
                .then(|| numbers.max_overshoot.to_string()),
            unlimited: numbers.unlimited,
        }
    }
}

// === impl PlansView ===

impl<'p> PlansView<'p> {
    fn new(plans: &'p Plans, algorithm: &Algorithm) -> Self {
        Self {
            entry: &plans.entry,
            default: &plans.default_plan,
            rows: plans
                .rows
                .iter()
                .map(|(name, numbers)| (&**name, NumbersView::new(*numbers, algorithm)))
                .collect(),
        }
    }
}

// === impl LiveView ===

impl<'p> LiveView<'p> {
    fn new(item: &'p Listed) -> Self {
        Self {
            id: &item.id,
            expires_at: item.spec.expires_at.as_deref().map(Cow::Borrowed),
        }
    }

    fn of_file(item: &'p Override) -> Self {
        Self {
            id: &item.id,
            expires_at: item.expires_at.map(|at| rfc3339(at).into()),
        }
    }
}

fn fits(item: &Listed, path: &[(&str, Option<&str>)]) -> bool {
    let mut keys = item.spec.matches.keys();
    keys.all(|key| path.iter().any(|(own, _)| *own == key.as_str()))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

fn is_empty(values: &&[Box<str>]) -> bool {
    values.is_empty()
}
