//! Traces from Envoy through `cota` to Redis, as a collector sees them; and that there are none unless asked for.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::Value;
use tempfile::TempDir;
use tonic::Request;
use tonic::transport::Endpoint;

#[path = "traces/collector.rs"]
mod collector;
#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;
mod support;

use collector::{Collector, Kind};
use cota_process::{Cota, command, eventually, policy_file, request};
use support::redis::Server;

const POLICY: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 1}
";

/// Never by the clock: what is exported leaves when `cota` ends.
const AT_THE_END: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "600000");

#[test]
fn a_trace_leads_from_envoy_through_cota_to_redis() {
    let (collector, redis) = (Collector::start(), Server::start(&[]));
    let endpoint = format!("http://{}", collector.address);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let (_folder, cota) = serve(&["--store", &redis.url(), "--store-timeout", "5s"], &variables);
    let envoy = Envoy::start(&cota, collector.address);
    assert_eq!(envoy.get("first"), 200);
    assert_eq!(envoy.get("second \"id\""), 429);

    for (id, verdict, refused_by) in [
        ("first", "ok", None),
        // Escaped as in the log.
        ("second \\\"id\\\"", "over_limit", Some("tenant")),
    ] {
        let (decision, store, caller) = eventually("the whole trace is there", || {
            let spans = collector.spans();
            let of_cota = |span: &&Kind| span.service == "cota";
            let ours = spans.iter().filter(of_cota);
            let decision = ours
                .clone()
                .find(|span| span.attribute("cota.request_id").as_deref() == Some(id))?;
            let child = |span: &&Kind| span.span.parent_span_id == decision.span.span_id;
            let store = ours.clone().find(child)?;
            let of_envoy = spans.iter().filter(|span| span.service == "envoy");
            let mut above = of_envoy.filter(|span| span.span.span_id == decision.span.parent_span_id);
            Some((decision.clone(), store.clone(), above.next()?.clone()))
        });
        assert_eq!(decision.span.trace_id, caller.span.trace_id);
        assert_eq!(store.span.trace_id, decision.span.trace_id);
        assert_eq!(
            decision.span.name,
            "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        );
        assert_eq!(store.span.name, "store");
        assert_eq!(decision.attribute("cota.domain").as_deref(), Some("api"));
        assert_eq!(decision.attribute("cota.limits").as_deref(), Some("tenant"));
        assert_eq!(decision.attribute("cota.verdict").as_deref(), Some(verdict));
        assert_eq!(decision.attribute("cota.refused_by").as_deref(), refused_by);
        assert_eq!(decision.attribute("cota.degraded"), None);
        // The store's part lies inside.
        assert!(decision.span.start_time_unix_nano <= store.span.start_time_unix_nano);
        assert!(store.span.end_time_unix_nano <= decision.span.end_time_unix_nano);
        assert!(store.span.start_time_unix_nano < store.span.end_time_unix_nano);
    }
}

#[test]
fn what_envoy_does_not_trace_is_not_traced_and_the_last_spans_leave_before_the_end() {
    let collector = Collector::start();
    let endpoint = format!("http://{}", collector.address);
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str()),
        AT_THE_END,
    ];
    let (_folder, mut cota) = serve(&[], &variables);
    for parent in [
        None,
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
        Some("nonsense"),
        Some("00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203332-01"),
    ] {
        call(&cota, parent);
    }
    cota.signal("TERM");
    assert!(cota.await_end().success());
    let spans = collector.spans();
    assert_eq!(spans.len(), 2, "{spans:?}");
    for span in spans {
        assert_eq!(span.span.trace_id.last(), Some(&0x9d));
    }
}

#[test]
fn the_name_and_the_sampler_may_be_chosen() {
    let collector = Collector::start();
    let endpoint = format!("http://{}", collector.address);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_SERVICE_NAME", "limits of the edge"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_on"),
        AT_THE_END,
    ];
    let (_folder, mut cota) = serve(&[], &variables);
    call(&cota, None);
    cota.signal("TERM");
    assert!(cota.await_end().success());
    let spans = collector.spans();
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert!(
        spans.iter().all(|span| span.service == "limits of the edge"),
        "{spans:?}"
    );
}

#[test]
fn without_an_endpoint_nothing_of_it_runs() {
    let (_folder, cota) = serve(&[], &[("OTEL_TRACES_EXPORTER", "otlp")]);
    call(
        &cota,
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    );
    let threads = cota.threads();
    assert!(!threads.is_empty());
    assert!(
        !threads.iter().any(|name| name.starts_with("OpenTelemetry")),
        "{threads:?}"
    );
    assert!(!cota.log().contains("traces"), "{}", cota.log());

    let collector = Collector::start();
    let endpoint = format!("http://{}", collector.address);
    let (_folder, cota) = serve(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]);
    let threads = cota.threads();
    assert!(
        threads.iter().any(|name| name.starts_with("OpenTelemetry")),
        "{threads:?}"
    );
}

#[test]
fn where_it_is_switched_off_no_connection_is_made() {
    for off in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (_folder, mut cota) = serve(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), off]);
        call(
            &cota,
            Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        );
        cota.signal("TERM");
        assert!(cota.await_end().success());
        let accepted = listener.accept();
        assert!(
            accepted
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "{off:?}: {accepted:?}"
        );
    }
}

#[test]
fn a_collector_that_is_down_is_told_of_once_and_holds_up_nobody() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let endpoint = format!("http://{address}");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "100"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let (_folder, mut cota) = serve(&[], &variables);
    let parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let lines = |cota: &Cota, text: &str| cota.log().lines().filter(|line| line.contains(text)).count();
    eventually("the log tells of it", || {
        call(&cota, parent);
        (lines(&cota, "traces are not taken") == 1).then_some(())
    });
    let slow = cota.metric("cota_requests_total", &[])
        - cota.metric("cota_decision_duration_seconds_bucket", &["le=\"0.05\""]);
    let collector = Collector::start_on(address);
    eventually("the log tells that it is over", || {
        call(&cota, parent);
        (lines(&cota, "traces are exported again") == 1).then_some(())
    });
    assert!(!collector.spans().is_empty());
    assert_eq!(lines(&cota, "traces are not taken"), 1);
    // A machine that stalls may slow one or another.
    assert!(slow <= 2, "{slow} decisions took longer than 50 ms");
    cota.signal("TERM");
    assert!(cota.await_end().success());
}

#[test]
fn a_complaint_names_the_request_if_envoy_does() {
    let (_folder, cota) = serve(&[], &[]);
    let mut message = Request::new(request("", &[]));
    let id = format!("id\t\"{}", "x".repeat(1_000));
    message.metadata_mut().insert("x-request-id", id.parse().unwrap());
    send(&cota, message).unwrap_err();
    let log = eventually("the log complains", || {
        let log = cota.log();
        log.contains("requests without a domain").then_some(log)
    });
    let line = log
        .lines()
        .find(|line| line.contains("without a domain"))
        .unwrap();
    assert!(line.contains("id\\\\t") && line.contains("xxx~"), "{line}");
    assert!(line.len() < 400, "{line}");
}

/// A `cota` with these arguments, and no other `OTEL_*` variables than these.
fn serve(arguments: &[&str], variables: &[(&str, &str)]) -> (TempDir, Cota) {
    let (folder, policy) = policy_file(POLICY);
    let mut command = command(&["serve", "--drain", "0s", "--config"]);
    command.arg(&policy).args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().copied());
    let cota = Cota::start(&mut command);
    eventually("cota is ready", || (cota.get("/readyz").0 == 200).then_some(()));
    (folder, cota)
}

/// Asks once, as an Envoy that traces does.
fn call(cota: &Cota, traceparent: Option<&str>) {
    let mut message = Request::new(request("api", &[&[("tenant", "acme")]]));
    if let Some(parent) = traceparent {
        message
            .metadata_mut()
            .insert("traceparent", parent.parse().unwrap());
    }
    send(cota, message).unwrap();
}

fn send(
    cota: &Cota,
    message: Request<cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest>,
) -> Result<(), tonic::Status> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", cota.grpc)).unwrap();
        let mut client = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
        client.should_rate_limit(message).await.map(drop)
    })
}

/// A real Envoy that traces.
struct Envoy {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Envoy {
    fn start(cota: &Cota, collector: SocketAddr) -> Self {
        let binary = concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/envoy");
        assert!(
            Path::new(binary).exists(),
            "no Envoy at .venv/bin/envoy: run `make setup`"
        );
        let folder = tempfile::tempdir().unwrap();
        let (config, admin) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        let text = include_str!("traces/envoy.yaml")
            .replace("@COTA_PORT@", &cota.grpc.port().to_string())
            .replace("@UPSTREAM_PORT@", &cota.http.port().to_string())
            .replace("@COLLECTOR_PORT@", &collector.port().to_string());
        fs::write(&config, text).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(binary);
        command.arg("--config-path").arg(&config);
        command.arg("--admin-address-path").arg(&admin);
        command.args([
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "--disable-hot-restart",
        ]);
        command.args(["--log-level", "warning"]).stdin(Stdio::null());
        let mut child = command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let address = eventually("Envoy listens", || {
            let ended = child.try_wait().unwrap();
            let told = || fs::read_to_string(folder.path().join("log")).unwrap();
            assert!(ended.is_none(), "{}", told());
            let admin = fs::read_to_string(&admin).ok()?;
            let listeners = get(&format!("http://{admin}/listeners?format=json"), None)?.1;
            let listeners: Value = serde_json::from_str(&listeners).ok()?;
            let port = &listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"];
            Some(SocketAddr::from((
                [127, 0, 0, 1],
                u16::try_from(port.as_u64()?).ok()?,
            )))
        });
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    fn get(&self, request_id: &str) -> u16 {
        let url = format!("http://{}/livez", self.address);
        eventually("Envoy answers", || get(&url, Some(request_id))).0
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(url: &str, request_id: Option<&str>) -> Option<(u16, String)> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let mut request = agent.get(url).header("x-tenant", "acme");
    if let Some(id) = request_id {
        request = request.header("x-request-id", id);
    }
    let mut response = request.call().ok()?;
    let body = response.body_mut().read_to_string().ok()?;
    Some((response.status().as_u16(), body))
}
