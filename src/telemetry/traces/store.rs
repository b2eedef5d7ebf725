//! A store whose part of a traced decision has a span of its own.

use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;

use super::Traces;
use crate::engine::decision::Decision;
use crate::engine::resolve::Resolved;
use crate::engine::time::Micros;
use crate::store::{Store, StoreError};

/// A store, observed. Without traces it costs a branch.
#[derive(Debug)]
pub struct Traced<S> {
    store: S,
    traces: Traces,
}

impl<S> Traced<S> {
    /// The store, observed by these traces.
    pub fn new(store: S, traces: Traces) -> Self {
        Self { store, traces }
    }

    /// The span of a decision that is traced. Boxed: every decision has room for it.
    fn span(&self, resolved: &Resolved<'_>) -> Option<Box<Span>> {
        let live = self.traces.0.as_deref()?;
        let context = Context::current();
        if !context.span().is_recording() {
            return None;
        }
        let budgets = i64::try_from(resolved.charges.len()).unwrap_or(i64::MAX);
        let builder = SpanBuilder::from_name("store")
            .with_kind(SpanKind::Client)
            .with_attributes([KeyValue::new("cota.budgets", budgets)]);
        Some(Box::new(live.tracer.build_with_context(builder, &context)))
    }
}

impl<S: Store> Store for Traced<S> {
    async fn decide(&self, resolved: &mut Resolved<'_>, wait_cap: Micros) -> Result<Decision, StoreError> {
        let span = self.span(resolved);
        let decided = self.store.decide(resolved, wait_cap).await;
        if let Some(mut span) = span {
            match &decided {
                Ok(decision) if decision.degraded => span.set_attribute(KeyValue::new("cota.degraded", true)),
                Ok(_) => {}
                Err(error) => span.set_status(Status::error(error.to_string())),
            }
            span.end();
        }
        decided
    }

    fn give_back(&self, resolved: &Resolved<'_>, decision: &Decision) {
        self.store.give_back(resolved, decision);
    }
}
