//! The gRPC listener: the service, health and reflection.

use std::future::Future;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::complaints::Complaints;
use super::connection::Connections;
use super::proto::FILE_DESCRIPTOR_SET;
use super::rate_limit::RateLimits;
use crate::clock::Clock;
use crate::store::Store;
use crate::tls::Tls;

/// The names under which health is asked: the server, the full service name, and the incumbent's word.
const HEALTH_NAMES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// What Envoy called before `transport_api_version: V3`.
const OLD_PATHS: [&str; 2] = [
    "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
    "/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit",
];

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
    service: RateLimits<S, C>,
    health: Health,
    tls: Option<Tls>,
    age: Option<Duration>,
}

impl<S: Store, C: Clock> GrpcServer<S, C> {
    /// A server of that service.
    pub fn new(service: RateLimits<S, C>) -> Self {
        Self {
            service,
            health: Health(HealthReporter::new()),
            tls: None,
            age: None,
        }
    }

    /// Takes TLS only, with these certificates.
    #[must_use]
    pub fn tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// Asks callers to connect anew after about that time, without cutting a call.
    #[must_use]
    pub fn max_connection_age(mut self, age: Option<Duration>) -> Self {
        self.age = age;
        self
    }

    /// A handle to its health.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Serves on a bound listener until `shutdown`, then ends calls in flight and returns.
    ///
    /// # Errors
    /// When the descriptors of reflection cannot be read.
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
        let complaints = Arc::clone(self.service.complaints());
        let health = HealthServer::new(HealthService::from_health_reporter(self.health.0));
        let mut routes = Routes::new(health)
            .add_service(reflection(tonic_reflection::server::Builder::configure()).build_v1()?)
            .add_service(reflection(tonic_reflection::server::Builder::configure()).build_v1alpha()?);
        let router = routes.axum_router_mut();
        let asked = Arc::clone(&complaints);
        *router = mem::take(router).fallback(async move |uri: http::Uri, info: http::Extensions| {
            unimplemented(&asked, uri.path(), &info)
        });
        let connections = Connections {
            service: Arc::new(self.service),
            routes: routes.prepare(),
            tls: self.tls,
            age: self.age,
            complaints: Arc::clone(&complaints),
        };
        connections.serve(listener, shutdown).await;
        Ok(())
    }
}

/// Answers calls of methods that there are not. Some were there once.
fn unimplemented<C: Clock>(
    complaints: &Complaints<C>,
    path: &str,
    info: &http::Extensions,
) -> http::Response<Body> {
    if OLD_PATHS.contains(&path) {
        let peer = info.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        complaints.old_protocol(path, peer);
    }
    Status::unimplemented("").into_http()
}
