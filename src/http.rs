//! The HTTP port: for probes, scrapers, people, and callers without gRPC.
//!
//! Every answer is built from the policy, from the process, or from a decision. What a caller sent comes back
//! in error texts, cut and with everything but printable ASCII escaped, as `text/plain`; as the name of a
//! caller that was refused or is near the ceiling, percent-encoded, on the page and in a label of `/metrics`.
//! What an operator wrote of an override comes back as JSON with the same escaped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{delete, get, post};
use prometheus_client::registry::Registry;

use crate::clock::Clock;
use crate::config::watch::Severity;
use crate::engine::policy::Policy;
use crate::overrides::Overrides;
use crate::usage::Usage;

mod admin;
mod health;
mod json;
mod limits;
mod metrics;
mod overrides;
mod page;
mod rlconfig;
mod server;

pub use admin::{Admin, BadToken};
pub use json::{Decide, DecideFuture};
pub use server::serve;

/// What the port shows and asks.
pub struct State {
    /// The policy in force.
    pub policy: Arc<ArcSwap<Policy>>,
    /// What is wrong with the policy files now, rendered, and how wrong it is.
    pub faults: Arc<ArcSwap<Vec<(Severity, String)>>>,
    /// Every limit is in shadow mode, whatever the policy says.
    pub shadow: bool,
    /// Whether the service goes away.
    pub readiness: Arc<Readiness>,
    /// Every metric.
    pub registry: Registry,
    /// Decides the requests of `POST /json`.
    pub decide: Decide,
    /// Says what is degraded now, a line each.
    pub degraded: Degraded,
    /// What operators change at run time.
    pub overrides: Arc<Overrides>,
    /// Who may.
    pub admin: Admin,
    /// How limits are used, by whom.
    pub usage: Arc<Usage>,
    /// Says where budgets are now.
    pub budgets: Budgets,
    /// For how long ago, and how much longer.
    pub clock: Arc<dyn Clock>,
}

/// Where budgets are.
#[derive(Clone, Debug)]
pub struct Budgeted {
    /// The kind of store.
    pub store: &'static str,
    /// How many replicas share it, this one included; `None`: it is this one's own.
    pub replicas: Option<u32>,
    /// Its servers.
    pub shards: Vec<Shard>,
}

/// A server of the store.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Where it is.
    pub address: String,
    /// Whether it answers.
    pub answers: bool,
    /// For how long it has been so.
    pub since: Duration,
}

/// See [`State::budgets`].
pub type Budgets = Box<dyn Fn() -> Budgeted + Send + Sync>;

/// See [`State::degraded`].
pub type Degraded = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// Whether the service still wants requests; shared by all that probes can ask.
#[derive(Debug, Default)]
pub struct Readiness {
    draining: AtomicBool,
}

impl Readiness {
    /// From now on probes are told to send nobody here. There is no way back.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether that was said.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}

/// The routes. Everything else is 404, another method 405.
pub fn router(state: Arc<State>) -> Router {
    let transcoder = Arc::new(json::Transcoder::new());
    Router::new()
        .route("/", get(page::page))
        .route("/assets/page.css", get(page::style))
        .route("/assets/page.js", get(page::script))
        .route("/assets/icon.svg", get(page::icon))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/healthcheck", get(health::healthcheck))
        .route("/metrics", get(metrics::metrics))
        .route("/limits", get(limits::limits))
        .route("/rlconfig", get(rlconfig::rlconfig))
        .route(
            "/json",
            post(move |state, request| json::json(state, Arc::clone(&transcoder), request)),
        )
        .route("/overrides", get(overrides::list).post(overrides::set))
        .route("/overrides/audit", get(overrides::audit))
        .route("/overrides/{id}", delete(overrides::revoke))
        .route("/budgets/reset", post(overrides::reset))
        .fallback(|| async { text(StatusCode::NOT_FOUND, "not found\n") })
        .with_state(state)
}

/// A plain text answer.
fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    typed(status, "text/plain; charset=utf-8", body)
}

/// An answer of that content type, which no browser is to guess better.
fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
