//! `cota serve`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::ratelimit::Beyond;
use crate::app::{
    self, ClientName, Files, RedisSettings, Settings, Signals, StoreSettings, Target, TlsFiles,
};
use crate::telemetry::{LogFormat, init_logging};

#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Policy file or directory; may be given more than once
    #[arg(
        long,
        value_name = "PATH",
        env = "COTA_CONFIG",
        default_value = "config",
        value_delimiter = ','
    )]
    pub(super) config: Vec<PathBuf>,
    /// `memory`, or redis://, redis-cluster://, redis-sentinel:// (rediss… for TLS) [default: memory]
    #[arg(
        long,
        value_name = "URL",
        env = "COTA_STORE",
        hide_env_values = true,
        conflicts_with = "store_file"
    )]
    pub(super) store: Option<String>,
    /// File that holds the URL
    #[arg(long, value_name = "FILE", env = "COTA_STORE_FILE")]
    pub(super) store_file: Option<PathBuf>,
    /// How long a decision may take in the store; Envoy gives up after 20ms
    #[arg(long, value_name = "DURATION", env = "COTA_STORE_TIMEOUT", default_value = "10ms", value_parser = duration)]
    pub(super) store_timeout: Duration,
    /// Authority that vouches for the store's certificate
    #[arg(long, value_name = "FILE", env = "COTA_STORE_CA")]
    pub(super) store_ca: Option<PathBuf>,
    /// Our certificate for the store
    #[arg(long, value_name = "FILE", env = "COTA_STORE_CERT", requires = "store_key")]
    pub(super) store_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", env = "COTA_STORE_KEY", requires = "store_cert")]
    pub(super) store_key: Option<PathBuf>,
    /// Replicas that share the store, or `auto`: counted
    #[arg(long, value_name = "N", env = "COTA_REPLICAS", default_value = "auto", value_parser = replicas)]
    pub(super) replicas: Count,
    /// Replicas assumed until they were counted
    #[arg(long, value_name = "N", env = "COTA_EXPECTED_REPLICAS", default_value = "1")]
    pub(super) expected_replicas: u32,
    /// Address for Envoy's calls; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDR",
        env = "COTA_GRPC_LISTEN",
        default_value = "0.0.0.0:8081"
    )]
    pub(super) grpc_listen: String,
    /// Address for probes, metrics and people
    #[arg(
        long,
        value_name = "ADDR",
        env = "COTA_HTTP_LISTEN",
        default_value = "0.0.0.0:8080"
    )]
    pub(super) http_listen: String,
    /// Certificate for TLS on the gRPC port
    #[arg(long, value_name = "FILE", env = "COTA_TLS_CERT", requires = "tls_key")]
    pub(super) tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", env = "COTA_TLS_KEY", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    /// Authority of callers' certificates
    #[arg(long, value_name = "FILE", env = "COTA_TLS_CLIENT_CA", requires = "tls_cert")]
    pub(super) tls_client_ca: Option<PathBuf>,
    /// DNS or URI names that may call
    #[arg(
        long,
        value_name = "NAME",
        env = "COTA_TLS_CLIENT_NAMES",
        value_delimiter = ',',
        requires = "tls_client_ca"
    )]
    pub(super) tls_client_names: Vec<ClientName>,
    /// TLS on the HTTP port, too
    #[arg(long, env = "COTA_HTTP_TLS", value_parser = BoolishValueParser::new())]
    pub(super) http_tls: bool,
    /// When callers connect anew; 0s: never
    #[arg(long, value_name = "AGE", env = "COTA_MAX_CONNECTION_AGE", default_value = "10m", value_parser = duration)]
    pub(super) max_connection_age: Duration,
    /// Decide and record everything, refuse nothing
    #[arg(long, env = "COTA_SHADOW", value_parser = BoolishValueParser::new())]
    pub(super) shadow: bool,
    /// How many budgets the memory store keeps at most
    #[arg(long, value_name = "N", env = "COTA_MAX_KEYS", default_value = "1000000")]
    pub(super) max_keys: usize,
    /// Token for changing calls
    #[arg(long, value_name = "FILE", env = "COTA_ADMIN_TOKEN_FILE")]
    pub(super) admin_token_file: Option<PathBuf>,
    /// How long to serve on after SIGTERM
    #[arg(long, value_name = "DURATION", env = "COTA_DRAIN", default_value = "5s", value_parser = duration)]
    pub(super) drain: Duration,
    /// `text` or `json`, on stderr; RUST_LOG sets what is logged
    #[arg(long, value_name = "FORMAT", env = "COTA_LOG_FORMAT", default_value = "text")]
    pub(super) log_format: LogFormat,
}

impl Serve {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        self.run_with(Beyond::default())
    }

    /// Whether somebody said where budgets are kept.
    pub(super) fn has_store(&self) -> bool {
        self.store.is_some() || self.store_file.is_some()
    }

    pub(super) fn run_with(self, beyond: Beyond) -> anyhow::Result<ExitCode> {
        init_logging(self.log_format, beyond.level);
        for warning in &beyond.warnings {
            tracing::warn!("{warning}");
        }
        if !beyond.needless.is_empty() {
            tracing::info!(variables = ?beyond.needless, "there is nothing to tune here by these");
        }
        let settings = Settings {
            store: self.store()?,
            tls: self.tls()?,
            http_tls: self.http_tls,
            max_connection_age: Some(self.max_connection_age).filter(|age| !age.is_zero()),
            config: self.config,
            names: beyond.names,
            unsaid: beyond.unsaid,
            also_http: beyond.also_http,
            grpc_listen: self.grpc_listen,
            http_listen: self.http_listen,
            shadow: self.shadow,
            max_keys: self.max_keys,
            drain: self.drain,
            admin_token: self.admin_token_file,
            traces: beyond.traces,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let (reload, told) = mpsc::channel(1);
            let mut hangup = signal(SignalKind::hangup())?;
            tokio::spawn(async move {
                while hangup.recv().await.is_some() {
                    // A full channel already holds the message.
                    let _ = reload.try_send(());
                }
            });
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let (ended, end) = tokio::sync::oneshot::channel::<()>();
            tokio::spawn(async move {
                let mut told =
                    async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
                told().await;
                let _ = ended.send(());
                told().await;
                // Whoever asks twice does not want to wait for anybody.
                std::process::exit(1);
            });
            app::run(
                settings,
                Signals {
                    end: async { drop(end.await) },
                    reload: told,
                },
            )
            .await?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

impl Serve {
    /// The certificates of our own ports.
    fn tls(&self) -> anyhow::Result<Option<Files>> {
        let (Some(cert), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) else {
            anyhow::ensure!(!self.http_tls, "--http-tls needs --tls-cert and --tls-key");
            return Ok(None);
        };
        Ok(Some(Files {
            cert,
            key,
            client_ca: self.tls_client_ca.clone(),
            client_names: self.tls_client_names.clone(),
        }))
    }

    /// Where budgets are kept. A URL that cannot be read is never shown: it may hold a password.
    fn store(&self) -> anyhow::Result<StoreSettings> {
        let target = match (self.store.as_deref(), &self.store_file) {
            (None | Some("memory"), None) => return Ok(StoreSettings::Memory),
            (_, Some(file)) => Target::from_file(file)?,
            (Some(url), None) => url.parse()?,
        };
        Ok(StoreSettings::Redis(Box::new(RedisSettings {
            target,
            tls: TlsFiles {
                ca: self.store_ca.clone(),
                cert: self.store_cert.clone(),
                key: self.store_key.clone(),
            },
            timeout: self.store_timeout,
            replicas: self.replicas.0,
            expected_replicas: self.expected_replicas,
        })))
    }
}

/// The variables of OpenTelemetry are no flags: the SDK reads most of them by itself.
#[expect(clippy::disallowed_methods, reason = "settings enter here")]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// All of them that are text.
pub(super) fn variables_set() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// How many replicas; none: they are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(Option<u32>);

fn replicas(text: &str) -> Result<Count, String> {
    match text {
        "auto" => Ok(Count(None)),
        _ => match text.parse() {
            Ok(n) if n > 0 => Ok(Count(Some(n))),
            _ => Err("expected `auto` or a number from 1".into()),
        },
    }
}

/// `5s`, `500ms`, `1m30s`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "expected a duration like 5s or 500ms".to_owned())?;
    Duration::try_from(span).map_err(|_| "a duration cannot be negative".to_owned())
}
