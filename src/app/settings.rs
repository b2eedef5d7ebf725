//! What the service is started with, and why it may not start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::config::watch::{Names, ReadError};
use crate::engine::response::Response;
use crate::http::BadToken;
use crate::store::redis::{BadTls, Target, TlsFiles};
use crate::telemetry::TraceSettings;
use crate::tls::{BadCertificates, Files};

/// What the service is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Policy files and directories.
    pub config: Vec<PathBuf>,
    /// Which files of a directory are policy files.
    pub names: Names,
    /// What answers look like in a domain without a `response`.
    pub unsaid: Response,
    /// Where Envoy calls.
    pub grpc_listen: String,
    /// Where people and probes look.
    pub http_listen: String,
    /// The certificates of the gRPC port; none: plain text.
    pub tls: Option<Files>,
    /// More addresses on which the HTTP port is served, in plain text.
    pub also_http: Vec<String>,
    /// Whether the HTTP port uses them, too.
    pub http_tls: bool,
    /// After about this a caller is asked to connect anew; `None`: never.
    pub max_connection_age: Option<Duration>,
    /// Every limit in shadow mode.
    pub shadow: bool,
    /// Where budgets are kept.
    pub store: StoreSettings,
    /// Bound of what is kept in memory.
    pub max_keys: usize,
    /// How long to serve after being told to end.
    pub drain: Duration,
    /// Holds the token of those who may change something; without it nobody may.
    pub admin_token: Option<PathBuf>,
    /// Whether traces are exported.
    pub traces: TraceSettings,
}

/// Where budgets are kept.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// In this process.
    Memory,
    /// In Redis or Valkey.
    Redis(Box<RedisSettings>),
}

/// How the shared store is reached.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Where it is.
    pub target: Target,
    /// Certificates for it.
    pub tls: TlsFiles,
    /// How long a decision may take in it.
    pub timeout: Duration,
    /// How many replicas share it; `None`: they are counted.
    pub replicas: Option<u32>,
    /// How many are assumed until they were counted.
    pub expected_replicas: u32,
}

/// Why the service could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The policy cannot be read.
    #[error(transparent)]
    Policy(#[from] ReadError),
    /// The certificates for the store cannot be used.
    #[error(transparent)]
    Tls(#[from] BadTls),
    /// The certificates of our own ports cannot be used.
    #[error(transparent)]
    Certificates(#[from] BadCertificates),
    /// The admin token cannot be had.
    #[error(transparent)]
    AdminToken(#[from] BadToken),
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
