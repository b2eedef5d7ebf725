//! `cota serve`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{Args, Error};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::app::{self, Settings, Signals};
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
    config: Vec<PathBuf>,
    /// Where budgets are kept: `memory`
    #[arg(long, value_name = "URL", env = "COTA_STORE", default_value = "memory")]
    store: String,
    /// Address for Envoy's calls; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDR",
        env = "COTA_GRPC_LISTEN",
        default_value = "0.0.0.0:8081"
    )]
    grpc_listen: String,
    /// Address for probes, metrics and people
    #[arg(
        long,
        value_name = "ADDR",
        env = "COTA_HTTP_LISTEN",
        default_value = "0.0.0.0:8080"
    )]
    http_listen: String,
    /// Decide and record everything, refuse nothing
    #[arg(long, env = "COTA_SHADOW", value_parser = BoolishValueParser::new())]
    shadow: bool,
    /// How many budgets the memory store keeps at most
    #[arg(long, value_name = "N", env = "COTA_MAX_KEYS", default_value = "1000000")]
    max_keys: usize,
    /// How long to serve on after SIGTERM, not ready
    #[arg(long, value_name = "DURATION", env = "COTA_DRAIN", default_value = "5s", value_parser = duration)]
    drain: Duration,
    /// `text` or `json`, on stderr; RUST_LOG sets what is logged
    #[arg(long, value_name = "FORMAT", env = "COTA_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

impl Serve {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.store != "memory" {
            unbuilt(&self.store).exit();
        }
        init_logging(self.log_format);
        let settings = Settings {
            config: self.config,
            grpc_listen: self.grpc_listen,
            http_listen: self.http_listen,
            shadow: self.shadow,
            max_keys: self.max_keys,
            drain: self.drain,
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

/// Refuses a store that there is not. Only its scheme is shown: the rest may hold a password.
fn unbuilt(store: &str) -> Error {
    let odd = |c: char| !c.is_ascii_alphanumeric() && c != '-';
    let scheme = store.split(odd).next().unwrap_or_default();
    let what = match scheme.trim_start_matches("rediss").trim_start_matches("redis") {
        "" | "-cluster" | "-sentinel" => "is not built into this version",
        _ => "is none that cota knows",
    };
    let text = format!("the store `{scheme}` {what}: use `--store memory`, for one replica\n");
    Error::raw(ErrorKind::InvalidValue, text)
}

/// `5s`, `500ms`, `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "expected a duration like 5s or 500ms".to_owned())?;
    Duration::try_from(span).map_err(|_| "a duration cannot be negative".to_owned())
}
