//! The composition root: settings to store, limiter and listeners; readiness, drain and end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use crate::clock::{Clock as _, SystemClock};
pub use crate::config::watch::Names;
use crate::config::watch::{Outcome, Reloader, Severity};
use crate::engine::policy::Policy;
use crate::engine::reset;
pub use crate::engine::response::{Body as ResponseBody, HeaderFamily, Response};
use crate::grpc::rate_limit::RateLimits;
use crate::grpc::server::{GrpcServer, Health};
use crate::http::{self, Admin, Readiness};
use crate::limiter::Limiter;
use crate::overrides::Overrides;
use crate::store::Store;
use crate::store::ledger::Ledger;
use crate::store::memory::{Eviction, Memory};
pub use crate::store::redis::{Target, TlsFiles};
use crate::telemetry::{self, Metrics, Reload, Traced, Traces};
use crate::tls::Tls;
pub use crate::tls::{ClientName, Files};
use crate::usage::Usage;

mod leases;
mod settings;
mod shared;

pub use settings::{AppError, RedisSettings, Settings, Signals, StoreSettings};

/// How long calls may take to end once draining is over. A client that does not hear that it should go,
/// one that is stopped or has connected and sent nothing, takes all of it.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// How often a part of the memory store is swept.
const SWEEP: Duration = Duration::from_millis(500);

/// How often those who note how limits are used are told the time.
const TICK: Duration = Duration::from_secs(1);

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
    let admin = Admin::new(settings.admin_token)?;
    let clock = Arc::new(SystemClock);
    let mut reloader = Reloader::new(
        settings.config,
        Arc::clone(&policy),
        Arc::clone(&faults),
        clock,
        on_reload,
    )
    .named(settings.names)
    .unsaid(settings.unsaid);
    reloader.start()?;

    let (tls, rotation) = match settings.tls {
        Some(files) => {
            let (tls, rotation) = files.read().await?;
            (Some(tls), Some(tokio::spawn(rotation.follow())))
        }
        None => (None, None),
    };
    let grpc = bind("gRPC", &settings.grpc_listen).await?;
    let http = bind("HTTP", &settings.http_listen).await?;
    let mut also_http = Vec::new();
    for address in &settings.also_http {
        also_http.push(bind("HTTP", address).await?);
    }
    let service = Service {
        grpc,
        http,
        also_http,
        policy,
        faults,
        metrics,
        http_tls: tls.clone().filter(|_| settings.http_tls),
        tls,
        max_connection_age: settings.max_connection_age,
        in_force,
        reloader,
        admin,
        shadow: settings.shadow,
        drain: settings.drain,
        traces: Traces::start(&settings.traces),
    };
    let served = match settings.store {
        StoreSettings::Memory => {
            let store = Arc::new(Memory::new(SystemClock, settings.max_keys));
            tracing::info!("store memory: budgets start full and are lost at the end");
            evictions(&mut registry, Arc::clone(&store), |store| store);
            let sweeper = tokio::spawn(sweep(Arc::clone(&store), |store| store));
            let overrides = overrides(
                Ledger::in_memory(),
                &service,
                &mut registry,
                &store,
                Memory::reset,
            );
            tracing::info!("overrides set at run time are lost at the end");
            let degraded = Box::new(Vec::new);
            let budgets = Box::new(|| http::Budgeted {
                store: "memory",
                replicas: None,
                shards: Vec::new(),
            });
            let served = service
                .run(store, overrides, registry, (degraded, budgets), signals)
                .await;
            sweeper.abort();
            served
        }
        StoreSettings::Redis(redis) => {
            let store = shared::connect(*redis, settings.max_keys, &mut registry)?;
            evictions(&mut registry, Arc::clone(&store), |store| store.local());
            let sweeper = tokio::spawn(sweep(Arc::clone(&store), |store| store.local()));
            shared::known(&store).await;
            let ledger = Ledger::Redis(store.redis().clone());
            let leases = leases::start(Arc::clone(&store), Arc::clone(&service.policy), &mut registry);
            let overrides = overrides(ledger, &service, &mut registry, &leases, leases::reset);
            // Nobody is told that this replica is ready before it decides as the others do.
            if let Err(error) = overrides.refresh().await {
                tracing::warn!(%error, "no overrides are known yet: they are read when the store answers");
            }
            let outages = Arc::clone(&store);
            let degraded = Box::new(move || outages.degraded());
            let shown = Arc::clone(&store);
            let budgets = Box::new(move || shared::budgets(&shown));
            let served = service
                .run(
                    Arc::clone(&leases),
                    overrides,
                    registry,
                    (degraded, budgets),
                    signals,
                )
                .await;
            leases::end(&leases).await;
            shared::given_back(&store).await;
            sweeper.abort();
            served
        }
    };
    if let Some(rotation) = rotation {
        rotation.abort();
    }
    served
}

/// The overrides of that ledger. What is kept here hears of resets.
fn overrides<S: Send + Sync + 'static>(
    ledger: Ledger,
    service: &Service,
    registry: &mut Registry,
    store: &Arc<S>,
    reset: fn(&S, &[reset::Target]),
) -> Arc<Overrides> {
    let store = Arc::clone(store);
    let forget = move |targets: &[reset::Target]| reset(&store, targets);
    let policy = Arc::clone(&service.policy);
    let overrides = Overrides::new(ledger, policy, SystemClock, Box::new(forget));
    let overrides = Arc::new(overrides);
    let counted = Arc::clone(&overrides);
    telemetry::register_overrides(registry, move || counted.active());
    overrides
}

fn evictions<S: Send + Sync + 'static>(
    registry: &mut Registry,
    store: Arc<S>,
    memory: fn(&S) -> &Memory<SystemClock>,
) {
    let kinds = Eviction::ALL.map(|kind| (kind.name(), kind));
    telemetry::register_counts(registry, telemetry::EVICTIONS, kinds, move |kind| {
        memory(&store).evicted(kind)
    });
}

/// What is ready to be served, but for the store.
struct Service {
    grpc: TcpListener,
    http: TcpListener,
    also_http: Vec<TcpListener>,
    policy: Arc<ArcSwap<Policy>>,
    faults: Arc<ArcSwap<Vec<(Severity, String)>>>,
    metrics: Arc<Metrics>,
    tls: Option<Tls>,
    http_tls: Option<Tls>,
    max_connection_age: Option<Duration>,
    in_force: watch::Receiver<bool>,
    reloader: Reloader,
    admin: Admin,
    shadow: bool,
    drain: Duration,
    traces: Traces,
}

impl Service {
    /// Serves until told to end, then drains.
    async fn run(
        self,
        store: impl Store,
        overrides: Arc<Overrides>,
        registry: Registry,
        (degraded, budgets): (http::Degraded, http::Budgets),
        signals: Signals<impl Future<Output = ()>>,
    ) -> Result<(), AppError> {
        let Self {
            grpc,
            http,
            also_http,
            policy,
            faults,
            metrics,
            tls,
            http_tls,
            max_connection_age,
            in_force,
            reloader,
            admin,
            shadow,
            drain,
            traces,
        } = self;
        let address = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_or_else(|e| e.to_string(), |a| a.to_string())
        };
        let store = Traced::new(store, traces.clone());
        let limiter = Limiter::new(store, SystemClock, Arc::clone(&policy), shadow);
        let limiter = Arc::new(limiter.overridden_by(overrides.live()));
        let following = tokio::spawn(Arc::clone(&overrides).follow());
        let ticker = tokio::spawn(tick(Arc::clone(metrics.usage())));
        let readiness = Arc::new(Readiness::default());
        let usage = Arc::clone(metrics.usage());
        let service = RateLimits::new(limiter, metrics).traced(traces.clone());
        let server = GrpcServer::new(service.clone())
            .tls(tls)
            .max_connection_age(max_connection_age);
        let health = server.health();
        health.set(*in_force.borrow()).await;
        tracing::info!("listening grpc={} http={}", address(&grpc), address(&http));
        if shadow {
            tracing::warn!("in shadow mode: everything is decided and recorded, nothing is refused");
        }
        let reloader = tokio::spawn(reloader.follow(signals.reload));
        let (end_grpc, grpc_ends) = oneshot::channel::<()>();
        let (end_http, http_ends) = watch::channel(());
        let http_ends = move || {
            let mut ends = http_ends.clone();
            async move { drop(ends.changed().await) }
        };
        let decide: http::Decide = Box::new(move |message| {
            let service = service.clone();
            Box::pin(async move { service.decide(&message, None).await })
        });
        let state = http::State {
            policy,
            faults,
            shadow,
            readiness: Arc::clone(&readiness),
            registry,
            decide,
            degraded,
            overrides,
            admin,
            usage,
            budgets,
            clock: Arc::new(SystemClock),
        };
        let state = Arc::new(state);
        let mut others = tokio::task::JoinSet::new();
        for listener in also_http {
            tracing::info!("listening also http={}", address(&listener));
            others.spawn(http::serve(listener, Arc::clone(&state), None, http_ends()));
        }
        let mut http = tokio::spawn(http::serve(http, state, http_tls, http_ends()));
        let mut grpc = tokio::spawn(server.serve(grpc, async move { drop(grpc_ends.await) }));

        tokio::select! {
            () = signals.end => {}
            () = follow_health(&health, in_force) => {}
            ended = &mut grpc => return served("gRPC", ended),
            ended = &mut http => return served("HTTP", ended.map(Ok)),
        }
        tracing::info!(?drain, "draining");
        readiness.drain();
        health.set(false).await;
        tokio::time::sleep(drain).await;
        // Both sends fail only if the server has ended already.
        let _ = end_grpc.send(());
        let _ = end_http.send(());
        let last_calls = async {
            served("gRPC", (&mut grpc).await)?;
            served("HTTP", (&mut http).await.map(Ok))?;
            while let Some(ended) = others.join_next().await {
                served("HTTP", ended.map(Ok))?;
            }
            Ok::<(), AppError>(())
        };
        match tokio::time::timeout(LAST_CALLS, last_calls).await {
            Ok(ended) => ended?,
            Err(_) => tracing::warn!("connections still open after {LAST_CALLS:?}, ending"),
        }
        traces.end().await;
        reloader.abort();
        following.abort();
        ticker.abort();
        tracing::info!("ended");
        Ok(())
    }
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

/// Tells the time to those who note how limits are used.
async fn tick(usage: Arc<Usage>) {
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        usage.tick(SystemClock.now());
    }
}

/// Goes round what is kept in memory, forgetting what has run out.
async fn sweep<S>(store: Arc<S>, memory: fn(&S) -> &Memory<SystemClock>) {
    let mut tick = tokio::time::interval(SWEEP);
    for part in (0..memory(&store).sweeps()).cycle() {
        tick.tick().await;
        memory(&store).sweep(part);
    }
}
