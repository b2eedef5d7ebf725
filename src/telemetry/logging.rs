//! The log.

use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("expected text or json"),
        }
    }
}

/// Starts logging to stderr, at that level unless `RUST_LOG` says otherwise; what is below `info` is ours
/// alone. A process that logs already keeps what it has.
pub fn init_logging(format: LogFormat, level: LevelFilter) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        let others = level.min(LevelFilter::INFO);
        EnvFilter::new(format!("{others},cota={level}"))
    });
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // Only a second call in one process can fail, and then lines are written already.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}
