//! `/overrides` and `/budgets/reset`: what operators change at run time.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State as Extract};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::admin::Wants;
use super::json::{body, failure};
use super::{State, typed};
use crate::overrides::{Refusal, ResetSpec, Revocation, Spec, to_json};

/// Those in force.
pub(super) async fn list(Extract(state): Extract<Arc<State>>, request: Request) -> Response {
    if let Some(refused) = state.admin.refusal(request.headers(), Wants::Read).await {
        return refused;
    }
    json(StatusCode::OK, &state.overrides.list())
}

/// What became of all.
pub(super) async fn audit(Extract(state): Extract<Arc<State>>, request: Request) -> Response {
    if let Some(refused) = state.admin.refusal(request.headers(), Wants::Read).await {
        return refused;
    }
    match state.overrides.audit().await {
        Ok(lines) => json(StatusCode::OK, &lines),
        Err(refusal) => answer(&refusal),
    }
}

/// Sets one: 201 with what was set.
pub(super) async fn set(Extract(state): Extract<Arc<State>>, request: Request) -> Response {
    let spec: Spec = match change(&state, request).await {
        Ok(spec) => spec,
        Err(refused) => return refused,
    };
    match state.overrides.set(spec).await {
        Ok(set) => json(StatusCode::CREATED, &set),
        Err(refusal) => answer(&refusal),
    }
}

/// Takes one away. Who and why may stand in the body.
pub(super) async fn revoke(
    Extract(state): Extract<Arc<State>>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let by: Revocation = match change(&state, request).await {
        Ok(by) => by,
        Err(refused) => return refused,
    };
    let Ok(Path(id)) = id else {
        return failure(StatusCode::BAD_REQUEST, "the id is not UTF-8");
    };
    match state.overrides.revoke(&id, &by).await {
        Ok(()) => json(StatusCode::OK, &Revoked { id: &id }),
        Err(refusal) => answer(&refusal),
    }
}

/// Makes a caller's budgets start afresh.
pub(super) async fn reset(Extract(state): Extract<Arc<State>>, request: Request) -> Response {
    let spec: ResetSpec = match change(&state, request).await {
        Ok(spec) => spec,
        Err(refused) => return refused,
    };
    match state.overrides.reset(&spec).await {
        Ok(()) => json(StatusCode::OK, &spec),
        Err(refusal) => answer(&refusal),
    }
}

#[derive(Serialize)]
struct Revoked<'r> {
    id: &'r str,
}

/// What a call that changes something asks for, if whoever makes it may. An empty body is an empty object.
async fn change<T: DeserializeOwned>(state: &State, request: Request) -> Result<T, Response> {
    if let Some(refused) = state.admin.refusal(request.headers(), Wants::Change).await {
        return Err(refused);
    }
    let body = body(request).await?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|error| failure(StatusCode::BAD_REQUEST, &error.to_string()))
}

/// The one place where a refusal becomes a status.
fn answer(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Senseless(_) => StatusCode::BAD_REQUEST,
        Refusal::Unknown(_) => StatusCode::NOT_FOUND,
        Refusal::InFile(_) | Refusal::Full(_) => StatusCode::CONFLICT,
        // The store may be back in a moment.
        Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    failure(status, &refusal.to_string())
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    typed(status, "application/json", to_json(value) + "\n")
}
