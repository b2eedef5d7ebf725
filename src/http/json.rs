//! `POST /json`: the question Envoy asks over gRPC, as proto-JSON.
//!
//! The answer comes from the same code that answers Envoy, handed in as [`Decide`]: this module knows
//! the messages, and nothing of how they become decisions.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{self, FromRequest as _, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use tonic::{Code, Status};

use super::{State, text, typed};
use crate::grpc::proto::FILE_DESCRIPTOR_SET;
use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use crate::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// Answers one request as the gRPC service would. No deadline comes with a JSON request.
pub type Decide = Box<dyn Fn(RateLimitRequest) -> DecideFuture + Send + Sync>;

/// What [`Decide`] returns.
pub type DecideFuture = Pin<Box<dyn Future<Output = Result<RateLimitResponse, Status>> + Send>>;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of an error text.
const LONGEST_REASON: usize = 1_000;

/// Decides one request: 200, or 429 when it is over a limit; 400 when it cannot be read or is malformed,
/// 503 when there is no answer.
pub(super) async fn json(
    extract::State(state): extract::State<Arc<State>>,
    transcoder: Arc<Transcoder>,
    request: Request,
) -> Response {
    let body = match body(request).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let message = match transcoder.request(&body) {
        Ok(message) => message,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match (state.decide)(message).await {
        Ok(response) => {
            let over = response.overall_code == i32::from(Verdict::OverLimit);
            let status = if over {
                StatusCode::TOO_MANY_REQUESTS
            } else {
                StatusCode::OK
            };
            match transcoder.response(&response) {
                Ok(body) => typed(status, "application/json", body),
                Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        Err(error) if error.code() == Code::InvalidArgument => {
            failure(StatusCode::BAD_REQUEST, error.message())
        }
        Err(error) => failure(StatusCode::SERVICE_UNAVAILABLE, error.message()),
    }
}

/// The body of a request, or what to answer whoever sends too much or too slowly.
pub(super) async fn body(request: Request) -> Result<Bytes, Response> {
    match tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(rejection)) => Err(text(
            rejection.into_response().status(),
            "the body could not be read\n",
        )),
        Err(_) => Err(text(StatusCode::REQUEST_TIMEOUT, "the body took too long\n")),
    }
}

/// An error in one line, in which a caller's bytes do no harm.
pub(super) fn failure(status: StatusCode, reason: &str) -> Response {
    let mut line: String = reason.escape_default().take(LONGEST_REASON).collect();
    line.push('\n');
    text(status, line)
}

/// Reads and writes the messages as proto-JSON.
pub(super) struct Transcoder {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TranscodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Proto(#[from] prost::DecodeError),
}

impl Transcoder {
    pub(super) fn new() -> Self {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the build encoded the descriptors");
        let message = |name: &str| {
            let name = format!("envoy.service.ratelimit.v3.{name}");
            pool.get_message_by_name(&name)
                .expect("the build compiled the service's messages")
        };
        Self {
            request: message("RateLimitRequest"),
            response: message("RateLimitResponse"),
        }
    }

    fn request(&self, json: &[u8]) -> Result<RateLimitRequest, TranscodeError> {
        let mut json = serde_json::Deserializer::from_slice(json);
        let message = DynamicMessage::deserialize(self.request.clone(), &mut json)?;
        json.end()?;
        Ok(message.transcode_to()?)
    }

    fn response(&self, message: &RateLimitResponse) -> Result<Vec<u8>, TranscodeError> {
        let message = DynamicMessage::decode(self.response.clone(), &*message.encode_to_vec())?;
        Ok(serde_json::to_vec(&message)?)
    }
}
