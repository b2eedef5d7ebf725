//! Traces over OTLP: one span a decision, a child of it for the store.
//!
//! Envoy says which requests are traced: the parent comes with its call, and a decision without one is not
//! traced unless `OTEL_TRACES_SAMPLER` asks for it. Spans go to a bounded queue and are exported by a thread
//! of its own; when the collector does not take them they are lost, and nobody waits.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{FutureExt as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::trace::{SpanBuilder, TracerProvider as _};
use opentelemetry::{Array, Context, Key, KeyValue, StringValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter};

use super::UNKNOWN_DOMAIN;
use crate::engine::decision::Decision;
use crate::engine::policy::Domain;
use crate::engine::resolve::Resolved;
use crate::engine::time::Micros;

mod settings;
mod store;

pub use settings::TraceSettings;
pub use store::Traced;

/// How long the last spans may take to leave at the end.
const FLUSH: Duration = Duration::from_secs(2);

/// A longer `tracestate` is left out; the standard asks for as much.
const LONGEST_STATE: usize = 512;

/// Makes spans, if traces are on.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Live>>);

#[derive(Debug)]
struct Live {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

/// What a call says of where it comes from.
#[derive(Clone, Debug, Default)]
pub struct Origin<'m> {
    /// The parent, in the W3C's form.
    pub traceparent: Option<&'m str>,
    /// What travels with it.
    pub tracestate: Option<&'m str>,
    /// The request's id, bounded and escaped.
    pub request_id: Option<String>,
}

/// The span of one decision; it ends when dropped.
#[derive(Debug)]
pub struct DecisionSpan(Context);

// === impl Traces ===

impl Traces {
    /// Starts to export, if the settings say so. To be called on the runtime.
    pub fn start(settings: &TraceSettings) -> Self {
        let sampled_by_parent = match settings {
            TraceSettings::Off => return Self::default(),
            TraceSettings::Refused(why) => {
                tracing::warn!("no traces: {why}");
                return Self::default();
            }
            TraceSettings::On { sampled_by_parent } => *sampled_by_parent,
        };
        let exporter = match opentelemetry_otlp::SpanExporter::builder().with_tonic().build() {
            Ok(exporter) => exporter,
            Err(error) => {
                tracing::warn!("no traces: {error}");
                return Self::default();
            }
        };
        let exporter = Watched {
            exporter,
            lost: AtomicUsize::new(0),
        };
        let mut builder = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource());
        if sampled_by_parent {
            builder = builder.with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)));
        }
        let provider = builder.build();
        tracing::info!("traces are exported");
        Self(Some(Arc::new(Live {
            tracer: provider.tracer("cota"),
            provider,
            propagator: TraceContextPropagator::new(),
        })))
    }

    /// Begins the span of a decision; `None` when it is not traced.
    pub fn decision<'m>(&self, origin: impl FnOnce() -> Origin<'m>) -> Option<DecisionSpan> {
        let live = self.0.as_deref()?;
        let origin = origin();
        let parent = live.propagator.extract_with_context(&Context::new(), &origin);
        let builder = SpanBuilder::from_name("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
                KeyValue::new("rpc.method", "ShouldRateLimit"),
            ]);
        let span = live.tracer.build_with_context(builder, &parent);
        let context = parent.with_span(span);
        if !context.span().is_recording() {
            return None;
        }
        if let Some(id) = origin.request_id {
            context.span().set_attribute(KeyValue::new("cota.request_id", id));
        }
        Some(DecisionSpan(context))
    }

    /// Sends what is left, for two seconds at most, and ends.
    pub async fn end(self) {
        let Some(live) = self.0 else { return };
        let provider = live.provider.clone();
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH)).await;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the last traces are lost: {error}"),
            Err(error) => tracing::warn!("the last traces are lost: {error}"),
        }
    }
}

// === impl Origin ===

impl Extractor for Origin<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.traceparent,
            "tracestate" => self.tracestate.filter(|state| state.len() <= LONGEST_STATE),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

// === impl DecisionSpan ===

impl DecisionSpan {
    /// Decides inside the span, so that the store's becomes its child.
    pub fn around<F: Future>(&self, decide: F) -> impl Future<Output = F::Output> + use<F> {
        decide.with_context(self.0.clone())
    }

    /// Says how it was decided.
    pub fn decided(&self, domain: Option<&Domain>, resolved: &Resolved<'_>, decision: &Decision) {
        let limits = |which: &dyn Fn(u16) -> bool| {
            let all = resolved.charges.iter().enumerate();
            let labels = all.filter(|(i, _)| which(*i as u16));
            let labels = labels.map(|(_, charge)| StringValue::from(charge.limit.label.to_string()));
            Value::Array(Array::String(labels.collect()))
        };
        let verdict = if decision.refused { "over_limit" } else { "ok" };
        let span = self.0.span();
        span.set_attributes([
            domain_attribute(domain),
            KeyValue::new("cota.verdict", verdict),
            KeyValue::new("cota.limits", limits(&|_| true)),
        ]);
        if decision.refused {
            span.set_attribute(KeyValue::new("cota.refused_by", limits(&|i| decision.denies(i))));
        }
        if decision.wait > Micros::ZERO {
            let held = i64::try_from(decision.wait.0 / 1_000).unwrap_or(i64::MAX);
            span.set_attribute(KeyValue::new("cota.held_ms", held));
        }
        if decision.degraded {
            span.set_attribute(KeyValue::new("cota.degraded", true));
        }
    }

    /// Says that there was no decision.
    pub fn failed(&self, domain: Option<&Domain>, why: &str) {
        let span = self.0.span();
        span.set_attributes([domain_attribute(domain), KeyValue::new("cota.verdict", "error")]);
        span.set_status(Status::error(why.to_owned()));
    }
}

/// What a caller calls its domain is not taken over unless a policy has it.
fn domain_attribute(domain: Option<&Domain>) -> KeyValue {
    let name = domain.map_or(UNKNOWN_DOMAIN, |domain| &domain.name);
    KeyValue::new("cota.domain", name.to_owned())
}

/// What is exported with all spans: the standard variables, and a name where they give none.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = || Resource::builder().with_attribute(version.clone());
    let resource = builder().build();
    let named = resource.get(&Key::from_static_str("service.name"));
    if named.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        resource
    } else {
        builder().with_service_name("cota").build()
    }
}

/// The exporter, and one line in the log when it begins to fail, one when that is over.
#[derive(Debug)]
struct Watched {
    exporter: opentelemetry_otlp::SpanExporter,
    /// How many spans were lost since it fails.
    lost: AtomicUsize,
}

impl SpanExporter for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => {
                let lost = self.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    tracing::info!(lost, "traces are exported again");
                }
            }
            Err(error) => {
                if self.lost.fetch_add(spans, Ordering::Relaxed) == 0 {
                    let error = error.to_string();
                    tracing::warn!(?error, "traces are not taken by the collector, spans are lost");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests;
