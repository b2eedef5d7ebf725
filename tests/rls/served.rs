//! A server as `serve` starts one, on a port of its own.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use cota::clock::ManualClock;
use cota::engine::limit::Limit;
use cota::engine::policy::Policy;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use cota::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use cota::grpc::rate_limit::RateLimits;
use cota::grpc::server::{GrpcServer, Health};
use cota::limiter::Limiter;
use cota::store::memory::Memory;
use cota::telemetry::Metrics;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::policy::{NOON, domain, policy};

/// A server whose clock stands still.
pub struct Served {
    pub channel: Channel,
    pub health: Health,
    pub policy: Arc<ArcSwap<Policy>>,
    pub stop: oneshot::Sender<()>,
    pub ended: JoinHandle<bool>,
}

impl Served {
    /// The only place that knows how the server is put together.
    pub async fn new(in_force: Policy) -> Self {
        let clock = ManualClock::at(NOON);
        let policy = Arc::new(ArcSwap::from_pointee(in_force));
        let store = Memory::new(clock.clone(), 1_000);
        let limiter = Arc::new(Limiter::new(store, clock, Arc::clone(&policy), false));
        let metrics = Arc::new(Metrics::new(&mut Registry::default(), false));
        let server = GrpcServer::new(RateLimits::new(limiter, metrics));
        let health = server.health();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let serving = server.serve(listener, async {
            let _ = stopped.await;
        });
        Self {
            channel: Channel::from_shared(address).unwrap().connect_lazy(),
            health,
            policy,
            stop,
            ended: tokio::spawn(async { serving.await.is_ok() }),
        }
    }

    /// One limit for each tenant.
    pub async fn with(limit: Limit) -> Self {
        Self::new(policy([domain([(&[("tenant", None)], vec![limit])])])).await
    }

    pub async fn call(&self, request: Request<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let response = client.should_rate_limit(request).await?;
        Ok(response.into_inner())
    }

    pub async fn ask(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.call(Request::new(message(descriptors))).await.unwrap()
    }

    /// Looks at a budget until that much is left of it.
    pub async fn until_left(&self, remaining: u32, of: RateLimitDescriptor) {
        let look = RateLimitDescriptor {
            hits_addend: Some(0),
            ..of
        };
        for _ in 0..10_000 {
            if self.ask(vec![look.clone()]).await.statuses[0].limit_remaining == remaining {
                return;
            }
        }
        panic!("never {remaining}");
    }

    pub async fn health(&self, name: &str) -> Result<ServingStatus, Code> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: name.into() };
        let response = client.check(request).await.map_err(|status| status.code())?;
        Ok(response.into_inner().status())
    }
}

pub fn message(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "api".into(),
        descriptors,
        hits_addend: 0,
    }
}

pub fn tenant(value: &str) -> RateLimitDescriptor {
    facet("tenant", value)
}

pub fn facet(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.into(),
            value: value.into(),
        }],
        ..RateLimitDescriptor::default()
    }
}

pub fn within(timeout: Duration) -> Request<RateLimitRequest> {
    let mut request = Request::new(message(vec![tenant("acme")]));
    request.set_timeout(timeout);
    request
}
