//! The gRPC listener: the service, health and reflection.

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::proto::FILE_DESCRIPTOR_SET;
use super::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use super::rate_limit::RateLimits;
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::store::Store;

/// The names under which health is asked: the server, the full service name, and the incumbent's word.
const HEALTH_NAMES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// Larger than any request of Envoy's by far: descriptors are bounded by its header limits.
const MAX_MESSAGE: usize = 1 << 20;

/// Says over gRPC health whether this replica takes requests.
#[derive(Clone)]
pub struct Health(HealthReporter);

impl Health {
    /// Changes what health answers, under every name.
    pub async fn set(&self, serving: bool) {
        let status = if serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in HEALTH_NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

/// A server not yet serving, and its health.
pub struct GrpcServer<S, C> {
    limiter: Arc<Limiter<S, C>>,
    health: Health,
}

impl<S: Store, C: Clock> GrpcServer<S, C> {
    /// A server over a limiter, not serving until its health is set.
    pub async fn new(limiter: Arc<Limiter<S, C>>) -> Self {
        let health = Health(HealthReporter::new());
        // The reporter itself begins with a server that serves and knows no other name.
        health.set(false).await;
        Self { limiter, health }
    }

    /// A handle to its health.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Serves on a bound listener until `shutdown`, then ends calls in flight and returns.
    ///
    /// # Errors
    /// When the transport fails, or the descriptors of reflection cannot be read.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let reflection = |builder: tonic_reflection::server::Builder<'static>| {
            builder
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let service =
            RateLimitServiceServer::new(RateLimits::new(self.limiter)).max_decoding_message_size(MAX_MESSAGE);
        // Answers are small: Nagle's algorithm would hold them for an acknowledgement, 40 ms late.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Server::builder()
            .add_service(service)
            .add_service(HealthServer::new(HealthService::from_health_reporter(
                self.health.0,
            )))
            .add_service(reflection(tonic_reflection::server::Builder::configure()).build_v1()?)
            .add_service(reflection(tonic_reflection::server::Builder::configure()).build_v1alpha()?)
            .serve_with_incoming_shutdown(incoming, shutdown)
            .await?;
        Ok(())
    }
}
