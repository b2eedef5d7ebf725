//! Istio's sample of a rate-limit service, imitated: a ConfigMap mounted as a directory, both address families, an
//! EnvoyFilter that sends the path and fails closed. Five calls, and what happens when the ConfigMap changes.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::fs;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use support::envoy::{Answer, Edge};
use support::redis::Server;

/// As the sample has it: one call a minute of the product page, a hundred of anything else.
const SAMPLE: &str = "
domain: productpage-ratelimit
descriptors:
  - key: PATH
    value: \"/productpage\"
    rate_limit:
      unit: minute
      requests_per_unit: 1
  - key: PATH
    rate_limit:
      unit: minute
      requests_per_unit: 100
";

const CHANGED: &str = "
domain: productpage-ratelimit
descriptors:
  - key: PATH
    value: \"/productpage\"
    rate_limit: {unit: year, requests_per_unit: 3}
";

const ENVOY: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: edge
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: productpage-ratelimit
              failure_mode_deny: true
              timeout: 10s
              rate_limit_service:
                grpc_service: {envoy_grpc: {cluster_name: "outbound|8081||ratelimit.default.svc.cluster.local", authority: ratelimit.default.svc.cluster.local}}
                transport_api_version: V3
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: inbound
              domains: ["*"]
              routes: [{match: {prefix: /}, route: {cluster: upstream}}]
              rate_limits: [{actions: [{request_headers: {header_name: ":path", descriptor_key: PATH}}]}]
  clusters:
  - name: outbound|8081||ratelimit.default.svc.cluster.local
    type: STRICT_DNS
    load_assignment:
      cluster_name: ratelimit
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: @COTA@}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: @UPSTREAM@}}}}]}]
"#;

/// A ConfigMap as the kubelet mounts it: the files are links to `..data`, and that is a link to what is in force.
struct ConfigMap(PathBuf);

impl ConfigMap {
    fn mount(folder: &Path, text: &str) -> Self {
        let mount = folder.join("data/ratelimit/config");
        fs::create_dir_all(&mount).unwrap();
        let this = Self(mount);
        this.update("..2026_11_30_1", text);
        symlink("..data/config.yaml", this.0.join("config.yaml")).unwrap();
        this
    }

    /// A new directory, and one rename that makes it the one in force.
    fn update(&self, name: &str, text: &str) {
        let old = fs::read_link(self.0.join("..data")).ok();
        fs::create_dir(self.0.join(name)).unwrap();
        fs::write(self.0.join(name).join("config.yaml"), text).unwrap();
        symlink(name, self.0.join("..data_tmp")).unwrap();
        fs::rename(self.0.join("..data_tmp"), self.0.join("..data")).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(self.0.join(old)).unwrap();
        }
    }
}

#[test]
fn five_calls_meet_the_limit_and_a_changed_configmap_takes_effect_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = ConfigMap::mount(folder.path(), SAMPLE);
    let mounted = config.0.clone();
    // `[::]` is where the sample's `HOST=::` listens; Envoy comes by IPv4.
    let edge = Edge::launch(folder, &mounted, "[::]", |cota, upstream| {
        assert!(cota.is_ipv6(), "{cota}");
        let text = ENVOY.replace("@COTA@", &cota.port().to_string());
        text.replace("@UPSTREAM@", &upstream.port().to_string())
    });
    let statuses = |path: &str| -> Vec<u16> { (0..5).map(|_| edge.get(path).send().status).collect() };

    // The minute may turn between two calls, and a new one allows one more.
    let page = statuses("/productpage");
    assert_eq!(page[0], 200, "{page:?}");
    let refused = page.iter().filter(|status| **status == 429).count();
    assert!(refused >= 3, "{page:?}");
    assert_eq!(statuses("/static/jquery.js"), [200; 5]);

    let by_ipv6 = SocketAddr::from((Ipv6Addr::LOCALHOST, edge.cota_http().port()));
    TcpStream::connect(by_ipv6).expect("the same port by IPv6");

    config.update("..2026_11_30_2", CHANGED);
    let in_force = |answer: &Answer| answer.number("ratelimit-limit") == Some(3);
    let first = (0..1_500).find_map(|_| {
        let answer = edge.get("/productpage").send();
        if in_force(&answer) {
            return Some(answer);
        }
        thread::sleep(Duration::from_millis(20));
        None
    });
    assert_eq!(first.expect("the change is seen").status, 200);
    assert_eq!(statuses("/productpage"), [200, 200, 429, 429, 429]);
}

/// The container of the sample: its command and its variables, but for the ports.
fn container(folder: &Path, redis: &Server, more: &[(&str, &str)]) -> Command {
    let program = folder.join("ratelimit");
    symlink(env!("CARGO_BIN_EXE_cota"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_clear().envs([
        ("LOG_LEVEL", "debug"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("USE_STATSD", "false"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("HOST", "::"),
        ("GRPC_HOST", "::"),
        ("PORT", "0"),
        ("GRPC_PORT", "0"),
        ("DEBUG_PORT", "0"),
    ]);
    command.env("RUNTIME_ROOT", folder.join("data"));
    command.env("REDIS_URL", redis.address().to_string());
    // A busy machine may be slower than the 10 ms that a store has.
    command.env("COTA_STORE_TIMEOUT", "5s");
    command.envs(more.iter().copied());
    command
}

fn configure(cota: SocketAddr, upstream: SocketAddr) -> String {
    let text = ENVOY.replace("@COTA@", &cota.port().to_string());
    text.replace("@UPSTREAM@", &upstream.port().to_string())
}

#[test]
fn the_samples_own_command_and_variables_work_and_add_no_header_and_no_body() {
    let folder = tempfile::tempdir().unwrap();
    let config = ConfigMap::mount(folder.path(), SAMPLE);
    let redis = Server::start(&[]);
    let command = container(folder.path(), &redis, &[]);
    let edge = Edge::launch_as(folder, command, configure);
    let calls = |path: &str| -> Vec<Answer> { (0..5).map(|_| edge.get(path).send()).collect() };
    let statuses = |answers: &[Answer]| -> Vec<u16> { answers.iter().map(|answer| answer.status).collect() };

    let page = calls("/productpage");
    assert_eq!(page[0].status, 200);
    let refused: Vec<&Answer> = page.iter().filter(|answer| answer.status == 429).collect();
    // The minute may turn between two calls, and a new one allows one more.
    assert!(refused.len() >= 3, "{page:?}");
    for answer in refused {
        for name in [
            "ratelimit-limit",
            "ratelimit-policy",
            "retry-after",
            "content-type",
        ] {
            assert_eq!(answer.header(name), None, "{answer:?}");
        }
        assert_eq!(answer.body, "");
    }
    assert_eq!(page[0].header("ratelimit-limit"), None);
    assert_eq!(statuses(&calls("/static/jquery.js")), [200; 5]);

    config.update("..2026_11_30_2", CHANGED);
    let changed = (0..1_500).any(|_| {
        thread::sleep(Duration::from_millis(20));
        rlconfig(edge.cota_http()).contains("requests_per_unit=3,")
    });
    assert!(changed, "{}", rlconfig(edge.cota_http()));
    assert_eq!(statuses(&calls("/productpage")), [200, 200, 200, 429, 429]);
}

#[test]
fn the_samples_service_sends_three_headers_when_its_variables_ask_for_them() {
    let folder = tempfile::tempdir().unwrap();
    ConfigMap::mount(folder.path(), CHANGED);
    let redis = Server::start(&[]);
    let asked = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_REMAINING_HEADER", "x-left"),
    ];
    let command = container(folder.path(), &redis, &asked);
    let edge = Edge::launch_as(folder, command, configure);
    for left in [2, 1, 0, 0] {
        let answer = edge.get("/productpage").send();
        assert_eq!(answer.number("ratelimit-limit"), Some(3), "{answer:?}");
        assert_eq!(answer.number("x-left"), Some(left), "{answer:?}");
        assert!(answer.number("ratelimit-reset").is_some(), "{answer:?}");
        assert_eq!(answer.header("retry-after"), None, "{answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), None, "{answer:?}");
    }
    assert_eq!(edge.get("/productpage").send().status, 429);
}

fn rlconfig(http: SocketAddr) -> String {
    let by_ipv4 = SocketAddr::from(([127, 0, 0, 1], http.port()));
    let mut response = ureq::get(format!("http://{by_ipv4}/rlconfig")).call().unwrap();
    response.body_mut().read_to_string().unwrap()
}
