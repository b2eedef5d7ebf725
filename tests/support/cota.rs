//! The real binary on ports of its own: started, called, told by signals, stopped when dropped.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use cota::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use cota::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A running `cota serve`.
pub(crate) struct Cota {
    child: Child,
    log: PathBuf,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    agent: ureq::Agent,
    client: Client,
    _log_folder: TempDir,
}

/// A connection to its gRPC port.
pub(crate) struct Client {
    channel: Channel,
    runtime: Runtime,
}

/// What one descriptor of one entry got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// No limit was met.
    Free,
    /// The limit, and what is left of it.
    Allowed { limit: u32, left: u32 },
    /// The limit that refused.
    Refused { limit: u32 },
}

/// Polls until there is something; a machine that takes half a minute for it has failed.
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(found) = poll() {
            return found;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}")
}

/// A policy file that says this, and the folder that it is alone in.
pub(crate) fn policy_file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// The binary with these arguments, its own environment empty of settings.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cota"));
    command.args(arguments).stdin(Stdio::null());
    for name in [
        "CONFIG",
        "STORE",
        "SHADOW",
        "DRAIN",
        "MAX_KEYS",
        "LOG_FORMAT",
        "TLS_CERT",
        "TLS_KEY",
        "ADMIN_TOKEN_FILE",
    ] {
        command.env_remove(format!("COTA_{name}"));
    }
    command.env_remove("RUST_LOG");
    command
}

// === impl Cota ===

impl Cota {
    /// Serves these policy files and directories.
    pub(crate) fn serve(config: &Path) -> Self {
        Self::start(command(&["serve", "--drain", "0s", "--config"]).arg(config))
    }

    /// Starts the command on free ports and waits until it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_on(command, 0)
    }

    /// The same with that port for gRPC.
    pub(crate) fn start_on(command: &mut Command, port: u16) -> Self {
        let grpc = format!("127.0.0.1:{port}");
        command.args(["--grpc-listen", &grpc, "--http-listen", "127.0.0.1:0"]);
        Self::start_as_it_is(command)
    }

    /// Starts the command, which says itself where it listens.
    pub(crate) fn start_as_it_is(command: &mut Command) -> Self {
        let log_folder = tempfile::tempdir().unwrap();
        let log = log_folder.path().join("log");
        let mut child = command
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let (grpc, http) = eventually("cota listens", || {
            let text = fs::read_to_string(&log).unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                panic!("cota ended at the start, {status}:\n{text}");
            }
            listening(&text)
        });
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(Duration::from_secs(20)))
            .build()
            .new_agent();
        Self {
            child,
            log,
            grpc,
            http,
            agent,
            client: Client::new(grpc),
            _log_folder: log_folder,
        }
    }

    /// Another connection to it.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.grpc)
    }

    /// Spends one request of a descriptor of one entry.
    pub(crate) fn ask(&self, domain: &str, key: &str, value: &str) -> Result<Got, Status> {
        self.client.ask(domain, key, value)
    }

    /// What a new caller of the key `tenant` meets; nothing of the others' budgets is spent.
    pub(crate) fn limit(&self, domain: &str) -> Option<u32> {
        match self.ask(domain, "tenant", "somebody else").unwrap() {
            Got::Free => None,
            Got::Allowed { limit, .. } | Got::Refused { limit } => Some(limit),
        }
    }

    pub(crate) fn await_limit(&self, domain: &str, wanted: Option<u32>) {
        eventually(&format!("the limit of {domain} is {wanted:?}"), || {
            (self.limit(domain) == wanted).then_some(())
        });
    }

    /// Calls any method with any message.
    pub(crate) fn send(&self, message: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client.send(message)
    }

    /// What health says under that name.
    pub(crate) fn health(&self, service: &str) -> Result<i32, Status> {
        self.client.health(service)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.http);
        let mut response = self.agent.get(url).call().unwrap();
        let body = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), body)
    }

    /// What is wrong, as `/limits` tells it.
    pub(crate) fn faults(&self) -> Vec<String> {
        let limits: Value = serde_json::from_str(&self.get("/limits").1).unwrap();
        let faults = limits["faults"].as_array().unwrap();
        faults
            .iter()
            .map(|fault| fault.as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until a fault has all these parts.
    pub(crate) fn await_fault(&self, parts: &[&str]) {
        eventually(&format!("a fault with {parts:?}"), || {
            let faults = self.faults();
            let found = |fault: &String| parts.iter().all(|part| fault.contains(part));
            faults.iter().any(found).then_some(())
        });
    }

    pub(crate) fn await_no_fault(&self) {
        eventually("no fault", || self.faults().is_empty().then_some(()));
    }

    /// How many reloads had that result.
    pub(crate) fn reloads(&self, result: &str) -> u64 {
        let line = format!("cota_config_reloads_total{{result=\"{result}\"}} ");
        let metrics = self.get("/metrics").1;
        let value = metrics.lines().find_map(|l| l.strip_prefix(&line)).unwrap();
        value.parse().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// The memory it holds, in kilobytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    /// The names of its threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// The sum of a metric's series whose text has all these parts.
    pub(crate) fn metric(&self, name: &str, parts: &[&str]) -> u64 {
        let metrics = self.get("/metrics").1;
        let of_name = |line: &&str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        };
        let lines = metrics.lines().filter(of_name);
        let lines = lines.filter(|line| parts.iter().all(|part| line.contains(part)));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn await_end(&mut self) -> ExitStatus {
        eventually("cota ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Cota {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

fn listening(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    let (_, addresses) = log.split_once("listening grpc=")?;
    let (grpc, rest) = addresses.split_once(" http=")?;
    let end = rest.find(|c: char| c == '"' || c.is_whitespace())?;
    Some((grpc.parse().unwrap(), rest[..end].parse().unwrap()))
}

// === impl Client ===

impl Client {
    fn new(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let endpoint = endpoint.timeout(Duration::from_secs(20));
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Self { channel, runtime }
    }

    pub(crate) fn send(&self, message: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let call = client.should_rate_limit(message);
        self.runtime.block_on(call).map(tonic::Response::into_inner)
    }

    /// Sends it and does not wait for the answer; whoever aborts hangs up.
    pub(crate) fn begin(&self, message: RateLimitRequest) -> JoinHandle<Result<(), Status>> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let call = async move { client.should_rate_limit(message).await.map(drop) };
        self.runtime.spawn(call)
    }

    pub(crate) fn ask(&self, domain: &str, key: &str, value: &str) -> Result<Got, Status> {
        let response = self.send(request(domain, &[&[(key, value)]]))?;
        let status = &response.statuses[0];
        let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit);
        Ok(match (status.code(), limit) {
            (Code::OverLimit, Some(limit)) => Got::Refused { limit },
            (Code::Ok, Some(limit)) => Got::Allowed {
                limit,
                left: status.limit_remaining,
            },
            (Code::Ok, None) => Got::Free,
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn health(&self, service: &str) -> Result<i32, Status> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = self.runtime.block_on(client.check(request))?;
        Ok(answer.into_inner().status)
    }

    /// Calls a method that may not exist.
    pub(crate) fn call(&self, path: &'static str, message: RateLimitRequest) -> Result<(), Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
            let path = path.parse().unwrap();
            grpc.unary(tonic::Request::new(message), path, codec)
                .await
                .map(drop)
        })
    }
}

/// A request with these descriptors.
pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |&(key, value): &(&str, &str)| Entry {
        key: key.into(),
        value: value.into(),
    };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}
