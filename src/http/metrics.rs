//! `/metrics`.

use std::sync::Arc;

use axum::extract;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use prometheus_client::encoding::{prometheus_text, text as open_metrics};

use super::{State, text, typed};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics: in the OpenMetrics format for scrapers that ask for it, as Prometheus does, and in the
/// plain Prometheus format for all others.
pub(super) async fn metrics(
    extract::State(state): extract::State<Arc<State>>,
    headers: HeaderMap,
) -> Response {
    let asked = headers.get_all(header::ACCEPT);
    let open = asked
        .iter()
        .any(|accept| contains(accept.as_bytes(), b"application/openmetrics-text"));
    let mut body = String::new();
    let (encoded, content_type) = if open {
        (open_metrics::encode(&mut body, &state.registry), OPEN_METRICS)
    } else {
        let encoded = prometheus_text::encode(&mut body, &state.registry);
        (encoded, prometheus_text::CONTENT_TYPE)
    };
    match encoded {
        Ok(()) => typed(StatusCode::OK, content_type, body),
        Err(error) => {
            tracing::error!(%error, "metrics could not be written");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics could not be written\n",
            )
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes
        .windows(part.len())
        .any(|window| window.eq_ignore_ascii_case(part))
}
