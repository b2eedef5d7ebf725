//! Calls of a running service's HTTP port.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::de::DeserializeOwned;
use ureq::http::{Request, StatusCode};

/// Longer than the service takes to find out that its store gives no answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which service, and who asks.
#[derive(Debug, Args)]
pub(super) struct Service {
    /// HTTP port of the service
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// File with the token that the service was started with
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Service {
    pub(super) fn at(url: String, token_file: Option<PathBuf>) -> Self {
        Self { url, token_file }
    }

    /// Calls the service, and reads its answer.
    pub(super) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<T> {
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(&url);
        if let Some(file) = &self.token_file {
            let token = std::fs::read_to_string(file)
                .with_context(|| format!("the token cannot be read from {}", file.display()))?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .proxy(None)
            .timeout_global(Some(TIMEOUT))
            .build()
            .new_agent();
        let answer = if body.is_empty() {
            agent.run(request.body(())?)
        } else {
            agent.run(request.body(body.to_owned())?)
        };
        let mut answer = answer.with_context(|| format!("no answer from {url}"))?;
        let text = answer
            .body_mut()
            .read_to_string()
            .with_context(|| format!("no whole answer from {url}"))?;
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED && self.token_file.is_none() {
            bail!("{url} wants a token: give its file with --token-file");
        }
        if !status.is_success() {
            bail!("{}", crate::config::fault::escape(text.trim()));
        }
        serde_json::from_str(&text).with_context(|| format!("{url} does not answer as cota does"))
    }
}
