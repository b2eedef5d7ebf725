//! The real Envoy with a rate limit filter and a cluster for cota that the test writes.
//!
//! It sends `[tenant]` from the header `x-tenant` in the domain `api`. Failures are answered with 503, so that no
//! request passes because Envoy let it through by itself. Its upstream is a listener of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::redis::await_that;

const TEMPLATE: &str = include_str!("gateway.yaml");
const ENVOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/envoy");

/// A running Envoy.
pub(crate) struct Gateway {
    child: Child,
    log: PathBuf,
    pub(crate) address: SocketAddr,
    admin: String,
    agent: ureq::Agent,
    _folder: TempDir,
}

/// The status of an answer, and what it says is left of the budget.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) status: u16,
    pub(crate) remaining: Option<u64>,
}

impl Gateway {
    /// Starts Envoy with that item of `clusters`, which is called `cota`.
    pub(crate) fn start(cluster: &str) -> Self {
        assert!(
            Path::new(ENVOY).exists(),
            "no Envoy at .venv/bin/envoy: run `make setup`"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let cluster: String = cluster.lines().map(|line| format!("  {line}\n")).collect();
        let config = TEMPLATE
            .replace("@UPSTREAM@", &path("upstream").display().to_string())
            .replace("@CLUSTER@", &cluster);
        fs::write(path("envoy.yaml"), config).unwrap();
        let log = path("log");
        let output = File::create(&log).unwrap();
        let mut child = Command::new(ENVOY)
            .arg("--config-path")
            .arg(path("envoy.yaml"))
            .arg("--admin-address-path")
            .arg(path("admin"))
            .args([
                "--concurrency",
                "2",
                "--use-dynamic-base-id",
                "--disable-hot-restart",
            ])
            .args(["--log-level", "warning"])
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let agent = agent();
        let mut found = None;
        await_that("Envoy is ready", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!(
                    "Envoy ended with {status}:\n{}",
                    fs::read_to_string(&log).unwrap()
                );
            }
            found = listens(&agent, &path("admin"));
            found.is_some()
        });
        let (address, admin) = found.unwrap();
        Self {
            child,
            log,
            address,
            admin,
            agent,
            _folder: folder,
        }
    }

    /// A request of that tenant.
    pub(crate) fn get(&self, tenant: &str) -> Passed {
        get(&self.agent, self.address, tenant)
    }

    /// One of Envoy's counters or gauges; those that nothing has touched yet are not there.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let url = format!("http://{}/stats?filter=^{name}$", self.admin);
        let text = self
            .agent
            .get(url)
            .call()
            .unwrap()
            .body_mut()
            .read_to_string()
            .unwrap();
        let value = text.trim().rsplit(' ').next().unwrap();
        if value.is_empty() {
            0
        } else {
            value.parse().unwrap()
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// A request of that tenant to the Envoy at that address.
pub(crate) fn get(agent: &ureq::Agent, gateway: SocketAddr, tenant: &str) -> Passed {
    let answer = agent
        .get(format!("http://{gateway}/"))
        .header("x-tenant", tenant)
        .call();
    let mut answer = answer.expect("Envoy answers");
    let remaining = answer.headers().get("ratelimit-remaining");
    let remaining = remaining.map(|value| value.to_str().unwrap().parse().unwrap());
    answer.body_mut().read_to_string().unwrap();
    Passed {
        status: answer.status().as_u16(),
        remaining,
    }
}

pub(crate) fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None);
    config
        .timeout_global(Some(Duration::from_secs(30)))
        .build()
        .into()
}

/// Where it listens, and its admin port, once it is ready and knows who is healthy.
fn listens(agent: &ureq::Agent, admin: &Path) -> Option<(SocketAddr, String)> {
    let admin = fs::read_to_string(admin).ok()?;
    if agent.get(format!("http://{admin}/ready")).call().ok()?.status() != 200 {
        return None;
    }
    let mut listeners = agent
        .get(format!("http://{admin}/listeners?format=json"))
        .call()
        .ok()?;
    let listeners: Value = serde_json::from_str(&listeners.body_mut().read_to_string().ok()?).ok()?;
    let listeners = listeners["listener_statuses"].as_array()?;
    let edge = listeners.iter().find(|listener| listener["name"] == "edge")?;
    let port = edge["local_address"]["socket_address"]["port_value"].as_u64()?;
    Some((SocketAddr::from(([127, 0, 0, 1], port as u16)), admin))
}
