//! The composition root: settings to store, limiter and listeners; readiness, drain and end.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::SystemClock;
use crate::config::watch::{Outcome, ReadError, Reloader};
use crate::engine::policy::Policy;
use crate::grpc::rate_limit::RateLimits;
use crate::grpc::server::{GrpcServer, Health};
use crate::http::{self, Readiness};
use crate::limiter::Limiter;
use crate::store::memory::{Eviction, Memory};
use crate::telemetry::{self, Metrics, Reload};

/// How long calls may take to end once draining is over. A client that does not hear that it should go,
/// one that is stopped or has connected and sent nothing, takes all of it.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// How often a part of the memory store is swept.
const SWEEP: Duration = Duration::from_millis(500);

/// What the service is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Policy files and directories.
    pub config: Vec<PathBuf>,
    /// Where Envoy calls.
    pub grpc_listen: String,
    /// Where people and probes look.
    pub http_listen: String,
    /// Every limit in shadow mode.
    pub shadow: bool,
    /// Bound of the memory store.
    pub max_keys: usize,
    /// How long to serve after being told to end.
    pub drain: Duration,
}

/// Why the service could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The policy cannot be read.
    #[error(transparent)]
    Policy(#[from] ReadError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {what}")]
    Bind {
        /// `gRPC` or `HTTP`.
        what: &'static str,
        /// As it was given.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A listener failed.
    #[error("the {what} server failed")]
    Serve {
        /// `gRPC` or `HTTP`.
        what: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What the outside tells a running service.
pub struct Signals<F> {
    /// Resolves when the service should end.
    pub end: F,
    /// Each message reads the policy files again.
    pub reload: mpsc::Receiver<()>,
}

/// Runs the service until it is told to end and has drained.
///
/// # Errors
/// When it cannot start, or a listener fails.
pub async fn run(settings: Settings, signals: Signals<impl Future<Output = ()>>) -> Result<(), AppError> {
    let policy = Arc::new(ArcSwap::from_pointee(Policy::default()));
    let faults = Arc::new(ArcSwap::from_pointee(Vec::new()));
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry, settings.shadow));
    let (serving, in_force) = watch::channel(false);
    let on_reload = {
        let metrics = Arc::clone(&metrics);
        Box::new(move |outcome, policy: &Arc<Policy>| {
            metrics.install(Arc::clone(policy));
            serving.send_replace(!policy.domains.is_empty());
            metrics.record_reload(match outcome {
                Outcome::Ok => Reload::Ok,
                Outcome::Partial => Reload::Partial,
                Outcome::Rejected => Reload::Rejected,
            });
        })
    };
    let clock = Arc::new(SystemClock);
    let mut reloader = Reloader::new(
        settings.config,
        Arc::clone(&policy),
        Arc::clone(&faults),
        clock,
        on_reload,
    );
    reloader.start()?;

    let grpc = bind("gRPC", &settings.grpc_listen).await?;
    let http = bind("HTTP", &settings.http_listen).await?;
    let address = |listener: &TcpListener| {
        listener
            .local_addr()
            .map_or_else(|e| e.to_string(), |a| a.to_string())
    };

    let store = Memory::new(SystemClock, settings.max_keys);
    let limiter = Arc::new(Limiter::new(
        store,
        SystemClock,
        Arc::clone(&policy),
        settings.shadow,
    ));
    let counted = Arc::clone(&limiter);
    let kinds = Eviction::ALL.map(|kind| (kind.name(), kind));
    telemetry::register_evictions(&mut registry, kinds, move |kind| counted.store().evicted(kind));
    let readiness = Arc::new(Readiness::default());
    let service = RateLimits::new(Arc::clone(&limiter), metrics);
    let server = GrpcServer::new(service.clone());
    let health = server.health();
    health.set(*in_force.borrow()).await;
    tracing::info!("listening grpc={} http={}", address(&grpc), address(&http));
    if settings.shadow {
        tracing::warn!("in shadow mode: everything is decided and recorded, nothing is refused");
    }
    tracing::info!("store memory: budgets start full and are lost at the end");

    let sweeper = tokio::spawn(sweep(limiter));
    let reloader = tokio::spawn(reloader.follow(signals.reload));
    let (end_grpc, grpc_ends) = oneshot::channel::<()>();
    let (end_http, http_ends) = oneshot::channel::<()>();
    let decide: http::Decide = Box::new(move |message| {
        let service = service.clone();
        Box::pin(async move { service.decide(&message, None).await })
    });
    let state = http::State {
        policy,
        faults,
        shadow: settings.shadow,
        readiness: Arc::clone(&readiness),
        registry,
        decide,
    };
    let mut http = tokio::spawn(http::serve(http, state, async move { drop(http_ends.await) }));
    let mut grpc = tokio::spawn(server.serve(grpc, async move { drop(grpc_ends.await) }));

    tokio::select! {
        () = signals.end => {}
        () = follow_health(&health, in_force) => {}
        ended = &mut grpc => return served("gRPC", ended),
        ended = &mut http => return served("HTTP", ended.map(Ok)),
    }
    tracing::info!(drain = ?settings.drain, "draining");
    readiness.drain();
    health.set(false).await;
    tokio::time::sleep(settings.drain).await;
    // Both sends fail only if the server has ended already.
    let _ = end_grpc.send(());
    match tokio::time::timeout(LAST_CALLS, &mut grpc).await {
        Ok(ended) => served("gRPC", ended)?,
        Err(_) => tracing::warn!("connections still open after {LAST_CALLS:?}, ending"),
    }
    let _ = end_http.send(());
    reloader.abort();
    sweeper.abort();
    tracing::info!("ended");
    Ok(())
}

/// Health says what `/readyz` says: without a domain in force, nobody should be sent here.
async fn follow_health(health: &Health, mut in_force: watch::Receiver<bool>) {
    loop {
        let serving = *in_force.borrow_and_update();
        health.set(serving).await;
        if in_force.changed().await.is_err() {
            // Reloading has ended; what it left behind stays.
            std::future::pending().await
        }
    }
}

async fn bind(what: &'static str, address: &str) -> Result<TcpListener, AppError> {
    TcpListener::bind(address).await.map_err(|source| AppError::Bind {
        what,
        address: address.into(),
        source,
    })
}

type Served = Result<Result<(), Box<dyn std::error::Error + Send + Sync>>, tokio::task::JoinError>;

fn served(what: &'static str, ended: Served) -> Result<(), AppError> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(AppError::Serve { what, source }),
        Err(panic) => Err(AppError::Serve {
            what,
            source: panic.into(),
        }),
    }
}

/// Goes round the memory store, forgetting what has run out.
async fn sweep(limiter: Arc<Limiter<Memory<SystemClock>, SystemClock>>) {
    let mut tick = tokio::time::interval(SWEEP);
    for part in (0..limiter.store().sweeps()).cycle() {
        tick.tick().await;
        limiter.store().sweep(part);
    }
}
