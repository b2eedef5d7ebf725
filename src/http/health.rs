//! What probes ask: `/livez`, `/readyz`, `/healthcheck`.

use std::sync::Arc;

use axum::extract;
use axum::http::StatusCode;
use axum::response::Response;

use super::{State, text};

/// The process answers, so it lives.
pub(super) async fn live() -> Response {
    text(StatusCode::OK, "ok\n")
}

/// Whether requests are welcome here, and if not, why.
pub(super) async fn ready(extract::State(state): extract::State<Arc<State>>) -> Response {
    match obstacle(&state) {
        // A degraded store takes no replica out: it is the same for all of them.
        None => {
            let degraded: String = (state.degraded)()
                .iter()
                .map(|line| format!("degraded: {line}\n"))
                .collect();
            text(StatusCode::OK, format!("ok\n{degraded}"))
        }
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// The same in the words of `envoyproxy/ratelimit`, whose probes compare them.
pub(super) async fn healthcheck(extract::State(state): extract::State<Arc<State>>) -> Response {
    match obstacle(&state) {
        None => text(StatusCode::OK, "OK"),
        Some(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn obstacle(state: &State) -> Option<&'static str> {
    if state.readiness.is_draining() {
        return Some("draining");
    }
    let policy = state.policy.load();
    if policy.version == 0 {
        return Some("no policy is in force yet");
    }
    // Faulty files do not show here: every replica reads the same, and all would go at once.
    policy
        .domains
        .is_empty()
        .then_some("the policy in force has no domain")
}
