//! The incumbent's mode: the environment variables of envoyproxy/ratelimit, turned into our settings.
//!
//! What has no counterpart here is refused where leaving it out would change what is decided or where budgets
//! and policies come from; elsewhere a warning names it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::app::{ClientName, HeaderFamily, Names, Response, ResponseBody};
use crate::telemetry::{LevelFilter, LogFormat, TraceSettings};

mod unread;
mod variables;

use unread::unread;
use variables::Fate::{Lost, Needless, Refused, Taken};
use variables::VARIABLES;

use super::serve::{Serve, duration, variable, variables_set};

/// What the variables ask for.
#[derive(Debug, PartialEq)]
struct Asked {
    config: PathBuf,
    names: Names,
    grpc_listen: String,
    http_listen: String,
    also_http: Vec<String>,
    max_connection_age: Duration,
    tls: Option<Certificates>,
    /// None: nothing was said.
    store: Option<String>,
    /// Authority, certificate, key.
    store_tls: [Option<PathBuf>; 3],
    shadow: bool,
    headers: Option<[String; 3]>,
    log_level: LevelFilter,
    log_format: LogFormat,
    traces: Tracing,
    warnings: Vec<String>,
    /// Variables that are set and have nothing to tune here.
    needless: Vec<&'static str>,
}

#[derive(Debug, PartialEq)]
struct Certificates {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_name: Option<ClientName>,
}

#[derive(Debug, PartialEq, Eq)]
enum Tracing {
    Off,
    Grpc,
    OtherProtocol,
}

/// What `cota serve` has no flags for.
pub(super) struct Beyond {
    pub(super) names: Names,
    pub(super) unsaid: Response,
    pub(super) also_http: Vec<String>,
    pub(super) level: LevelFilter,
    pub(super) traces: TraceSettings,
    pub(super) warnings: Vec<String>,
    pub(super) needless: Vec<&'static str>,
}

impl Default for Beyond {
    fn default() -> Self {
        Self {
            names: Names::Yaml,
            unsaid: Response::default(),
            also_http: Vec::new(),
            level: LevelFilter::INFO,
            traces: TraceSettings::from_variables(variable),
            warnings: Vec::new(),
            needless: Vec::new(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Ratelimit {
    /// Nothing: the incumbent reads no argument, and some manifests give it one
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    ignored: Vec<OsString>,
}

/// Serves as the variables say. `serve` holds what only our own variables can say.
pub(super) fn run(arguments: &Ratelimit, serve: Serve) -> anyhow::Result<ExitCode> {
    let mut asked = Asked::read(variable)?;
    if !arguments.ignored.is_empty() {
        // They are not shown: one may be a password.
        let warning = "the arguments are ignored, as by envoyproxy/ratelimit: it is set by its variables";
        asked.warnings.push(warning.into());
    }
    asked.warnings.extend(unread(variables_set()));
    anyhow::ensure!(
        asked.store.is_some() || serve.has_store(),
        "REDIS_URL is not set, so there is no place for budgets; COTA_STORE=memory keeps them in this process"
    );
    asked.serve(serve)
}

impl Asked {
    fn read(read: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let variable = |name: &str| {
            debug_assert!(VARIABLES.iter().any(|(known, _)| *known == name), "{name}");
            let value = read(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let or = |name: &str, default: &str| variable(name).unwrap_or_else(|| default.into());
        let flag = |name: &str| match variable(name).map(|value| value.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("0" | "f" | "false") => Ok(Some(false)),
            Some("1" | "t" | "true") => Ok(Some(true)),
            Some(_) => Err(anyhow::anyhow!("{name}: expected true or false")),
        };
        let is_on = |name: &str| flag(name).map(|on| on.unwrap_or(false));
        let (mut warnings, mut refused, mut needless) = (Vec::new(), Vec::new(), Vec::new());
        for &(name, fate) in VARIABLES {
            let Some(value) = variable(name).map(|value| value.to_ascii_lowercase()) else {
                continue;
            };
            match fate {
                Taken => {}
                Needless => needless.push(name),
                Lost(fine, why) if !fine.contains(&&*value) => warnings.push(format!("{name}: {why}")),
                Refused(fine, why) if !fine.contains(&&*value) => refused.push(format!("{name}: {why}")),
                Lost(..) | Refused(..) => {}
            }
        }
        anyhow::ensure!(refused.is_empty(), "{}", refused.join("; "));

        let address = |host: &str, port: &str, default: &str| {
            let (host, port) = (or(host, "0.0.0.0"), or(port, default));
            match host.contains(':') && !host.starts_with('[') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            }
        };
        let mut also_http = vec![address("DEBUG_HOST", "DEBUG_PORT", "6070")];
        if is_on("USE_PROMETHEUS")? {
            let address = or("PROMETHEUS_ADDR", ":9090");
            also_http.push(match address.starts_with(':') {
                true => format!("0.0.0.0{address}"),
                false => address,
            });
        }
        let age = match &*or("GRPC_MAX_CONNECTION_AGE", "24h") {
            // The only number that the incumbent takes without a unit.
            "0" => Ok(Duration::ZERO),
            age => duration(age),
        };
        let path = |name: &str| variable(name).map(PathBuf::from);
        let tls = match is_on("GRPC_SERVER_USE_TLS")? {
            false => None,
            true => {
                let needed = |name: &str| {
                    path(name).ok_or_else(|| anyhow::anyhow!("GRPC_SERVER_USE_TLS needs {name}"))
                };
                let client_ca = path("GRPC_CLIENT_TLS_CACERT");
                let name = variable("GRPC_CLIENT_TLS_SAN").map(|name| name.parse());
                let client_name = name.transpose();
                let client_name =
                    client_name.map_err(|why: String| anyhow::anyhow!("GRPC_CLIENT_TLS_SAN: {why}"))?;
                anyhow::ensure!(
                    client_ca.is_some() || client_name.is_none(),
                    "GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT: no certificate is asked for without it"
                );
                Some(Certificates {
                    cert: needed("GRPC_SERVER_TLS_CERT")?,
                    key: needed("GRPC_SERVER_TLS_KEY")?,
                    client_ca,
                    client_name,
                })
            }
        };
        let headers = [
            ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
            ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
            ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
        ];
        let headers = headers.map(|(name, default)| (name, or(name, default)));
        for (name, header) in &headers {
            anyhow::ensure!(is_token(header), "{name}: not the name of a header");
        }
        let headers = is_on("LIMIT_RESPONSE_HEADERS_ENABLED")?.then(|| headers.map(|(_, header)| header));
        let store = store(
            variable("REDIS_URL"),
            &or("REDIS_TYPE", "single").to_ascii_lowercase(),
            variable("REDIS_AUTH"),
            is_on("REDIS_TLS")?,
        )?;
        let mut config = PathBuf::from(or("RUNTIME_ROOT", "/srv/runtime_data/current"));
        let below = variable("RUNTIME_SUBDIRECTORY");
        let application = or("RUNTIME_APPDIRECTORY", "config");
        let watches_root = flag("RUNTIME_WATCH_ROOT")?.unwrap_or(true);
        if watches_root && below.is_none() {
            let warning = "RUNTIME_SUBDIRECTORY: without it and with RUNTIME_WATCH_ROOT, envoyproxy/ratelimit \
                           reads no policy; here they are read below RUNTIME_ROOT";
            warnings.push(warning.into());
        }
        config.extend(below);
        let names = if watches_root {
            Names::Beginning(format!("{application}.").into())
        } else {
            config.push(application);
            Names::All
        };
        Ok(Self {
            config,
            names,
            grpc_listen: address("GRPC_HOST", "GRPC_PORT", "8081"),
            http_listen: address("HOST", "PORT", "8080"),
            also_http,
            max_connection_age: age.map_err(|why| anyhow::anyhow!("GRPC_MAX_CONNECTION_AGE: {why}"))?,
            tls,
            store,
            store_tls: [
                "REDIS_TLS_CACERT",
                "REDIS_TLS_CLIENT_CERT",
                "REDIS_TLS_CLIENT_KEY",
            ]
            .map(path),
            shadow: is_on("SHADOW_MODE")?,
            headers,
            log_level: level(&or("LOG_LEVEL", "warn").to_ascii_lowercase())?,
            log_format: (or("LOG_FORMAT", "text").to_ascii_lowercase())
                .parse()
                .map_err(|why| anyhow::anyhow!("LOG_FORMAT: {why}"))?,
            traces: match (
                is_on("TRACING_ENABLED")?,
                &*or("TRACING_EXPORTER_PROTOCOL", "http"),
            ) {
                (false, _) => Tracing::Off,
                (true, "grpc") => Tracing::Grpc,
                (true, _) => Tracing::OtherProtocol,
            },
            warnings,
            needless,
        })
    }

    fn serve(self, mut serve: Serve) -> anyhow::Result<ExitCode> {
        serve.config = vec![self.config];
        serve.grpc_listen = self.grpc_listen;
        serve.http_listen = self.http_listen;
        serve.http_tls = false;
        serve.max_connection_age = self.max_connection_age;
        serve.shadow = self.shadow;
        serve.log_format = self.log_format;
        let tls = self.tls;
        serve.tls_client_ca = tls.as_ref().and_then(|tls| tls.client_ca.clone());
        serve.tls_client_names = tls.iter().filter_map(|tls| tls.client_name.clone()).collect();
        (serve.tls_cert, serve.tls_key) = tls.map(|tls| (tls.cert, tls.key)).unzip();
        if let Some(store) = self.store {
            (serve.store, serve.store_file) = (Some(store), None);
            [serve.store_ca, serve.store_cert, serve.store_key] = self.store_tls;
        }
        let mut warnings = self.warnings;
        let traces = match self.traces {
            Tracing::Off => TraceSettings::Off,
            Tracing::Grpc => TraceSettings::from_variables(variable),
            Tracing::OtherProtocol => {
                TraceSettings::Refused("TRACING_EXPORTER_PROTOCOL: only grpc is spoken".into())
            }
        };
        if self.shadow {
            warnings.push("SHADOW_MODE: statuses say OVER_LIMIT, no request is refused".into());
        }
        let named = |names: [String; 3]| names.map(|name| &*Box::leak(name.into_boxed_str()));
        let beyond = Beyond {
            names: self.names,
            unsaid: Response {
                headers: self
                    .headers
                    .map(named)
                    .map(HeaderFamily::Named)
                    .into_iter()
                    .collect(),
                body: ResponseBody::None,
                retry_after: false,
                shown_in_shadow: self.shadow,
                ..Response::default()
            },
            also_http: self.also_http,
            level: self.log_level,
            traces,
            warnings,
            needless: self.needless,
        };
        serve.run_with(beyond)
    }
}

/// The URL of our own form. What stands in it may be a password and is never shown.
fn store(url: Option<String>, kind: &str, auth: Option<String>, tls: bool) -> anyhow::Result<Option<String>> {
    let Some(url) = url else { return Ok(None) };
    anyhow::ensure!(
        !url.starts_with(['/', '.']),
        "REDIS_URL: Redis is reached by TCP only"
    );
    let rest = url.strip_prefix("redis://");
    anyhow::ensure!(
        rest.is_some() || !url.contains("://"),
        "REDIS_URL: expected host:port or redis://…; for TLS set REDIS_TLS=true"
    );
    let rest = rest.unwrap_or(&url);
    let (own, hosts) = match rest.rsplit_once('@') {
        Some((own, hosts)) => (Some(own.to_owned()), hosts),
        None => (None, rest),
    };
    let auth = auth.map(|auth| match auth.split_once(':') {
        Some((user, password)) => format!("{}:{}", encoded(user), encoded(password)),
        None => format!(":{}", encoded(&auth)),
    });
    let credentials = auth.or(own).map(|own| own + "@").unwrap_or_default();
    let s = if tls { "s" } else { "" };
    Ok(Some(match kind {
        "single" => format!("redis{s}://{credentials}{hosts}"),
        "cluster" => format!("redis{s}-cluster://{credentials}{hosts}"),
        "sentinel" => match hosts.split_once(',') {
            Some((master, hosts)) => {
                format!(
                    "redis{s}-sentinel://{credentials}{hosts}/{}",
                    encoded(master.trim())
                )
            }
            None => {
                anyhow::bail!("REDIS_URL: expected the master's name and the sentinels, with commas between")
            }
        },
        _ => anyhow::bail!("REDIS_TYPE: expected single, cluster or sentinel"),
    }))
}

/// A text that stands for itself in a URL.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

fn is_token(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(fits)
}

fn level(text: &str) -> anyhow::Result<LevelFilter> {
    Ok(match text {
        "panic" | "fatal" | "error" => LevelFilter::ERROR,
        "warn" | "warning" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => anyhow::bail!("LOG_LEVEL: expected error, warn, info, debug or trace"),
    })
}

#[cfg(test)]
mod tests;
