//! The service as tonic's router takes it. As generated, but that answers come as bytes.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::encode::{AnswerCodec, Encoded};
use super::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use super::rate_limit::RateLimits;
use crate::clock::{Clock, Stopwatch};
use crate::store::Store;

/// Larger than any request of Envoy's by far: descriptors are bounded by its header limits.
const MAX_MESSAGE: usize = 1 << 20;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The service behind its path.
pub(super) struct Served<S, C>(Arc<RateLimits<S, C>>);

impl<S, C> Served<S, C> {
    pub(super) fn new(service: RateLimits<S, C>) -> Self {
        Self(Arc::new(service))
    }
}

impl<S, C> Clone for Served<S, C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, C> NamedService for Served<S, C> {
    const NAME: &'static str = SERVICE_NAME;
}

impl<S: Store, C: Clock> Service<http::Request<Body>> for Served<S, C> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(async { Ok(Status::unimplemented("").into_http()) });
        }
        let method = Call {
            service: Arc::clone(&self.0),
            watch: Stopwatch::start(),
        };
        Box::pin(async move {
            let grpc = Grpc::new(AnswerCodec);
            let mut grpc = grpc.apply_max_message_size_config(Some(MAX_MESSAGE), None);
            Ok(grpc.unary(method, request).await)
        })
    }
}

/// One call, and since when it waits for its turn.
struct Call<S, C> {
    service: Arc<RateLimits<S, C>>,
    watch: Stopwatch,
}

impl<S: Store, C: Clock> UnaryService<RateLimitRequest> for Call<S, C> {
    type Response = Encoded;
    type Future = BoxFuture<Response<Encoded>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let (service, watch) = (Arc::clone(&self.service), self.watch);
        Box::pin(async move { service.call(request, watch).await })
    }
}
