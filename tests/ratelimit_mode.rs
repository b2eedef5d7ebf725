//! Run as `ratelimit`, set by the variables of envoyproxy/ratelimit. With a real Envoy: tests/istio_sample.rs.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod cota_process;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use cota_process::{Cota, eventually, request};
use tempfile::TempDir;

const POLICY: &str = "
domain: d
descriptors:
- key: ten
  rate_limit: {unit: year, requests_per_unit: 10}
- key: two
  rate_limit: {unit: year, requests_per_unit: 2}
";

const WITH_RESPONSE: &str = "
domain: own
response: {headers: [x-ratelimit], body: json}
descriptors:
- key: one
  rate_limit: {unit: year, requests_per_unit: 1}
";

/// The service with a policy in a file of no known extension, its budgets in memory.
fn service(folder: &TempDir, variables: &[(&str, &str)]) -> Command {
    let program = folder.path().join("ratelimit");
    let config = folder.path().join("root/config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("policy"), POLICY).unwrap();
    fs::write(config.join("own.conf"), WITH_RESPONSE).unwrap();
    symlink(env!("CARGO_BIN_EXE_cota"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).envs([
        ("COTA_STORE", "memory"),
        ("LOG_LEVEL", "info"),
        ("HOST", "127.0.0.1"),
        ("GRPC_HOST", "127.0.0.1"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_PORT", "0"),
        ("DEBUG_PORT", "0"),
    ]);
    command.env("RUNTIME_ROOT", folder.path());
    command.env("RUNTIME_SUBDIRECTORY", "root");
    command.envs(variables.iter().copied());
    command
}

fn started(variables: &[(&str, &str)]) -> Cota {
    let folder = tempfile::tempdir().unwrap();
    // The files were read before it listens, and what is gone stays in force.
    Cota::start_as_it_is(&mut service(&folder, variables))
}

/// What it says when it does not start.
fn refusal(variables: &[(&str, &str)], but: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = service(&folder, variables).env_remove(but).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

fn headers(response: &RateLimitResponse) -> Vec<(&str, &str)> {
    let headers = response.response_headers_to_add.iter();
    headers.map(|header| (&*header.key, &*header.value)).collect()
}

fn ask(cota: &Cota, domain: &str, keys: &[&str]) -> RateLimitResponse {
    let entries: Vec<[(&str, &str); 1]> = keys.iter().map(|key| [(*key, "v")]).collect();
    let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entry| &entry[..]).collect();
    cota.send(request(domain, &descriptors)).unwrap()
}

#[test]
fn answers_have_no_header_and_no_body_unless_a_domain_has_a_response_of_its_own() {
    let cota = started(&[]);
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        let response = ask(&cota, "d", &["two"]);
        assert_eq!(response.overall_code(), code);
        assert_eq!(headers(&response), []);
        assert_eq!(response.raw_body, b"");
    }
    assert_eq!(ask(&cota, "own", &["one"]).overall_code(), Code::Ok);
    let refused = ask(&cota, "own", &["one"]);
    let names: Vec<&str> = headers(&refused).iter().map(|(name, _)| *name).collect();
    assert!(
        names.contains(&"x-ratelimit-limit") && names.contains(&"Retry-After"),
        "{names:?}"
    );
    assert!(!refused.raw_body.is_empty());
}

#[test]
fn the_three_headers_are_those_of_the_least_left_and_of_the_last_that_is_over() {
    let cota = started(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
    ]);
    let values = |keys: &[&str]| {
        let response = ask(&cota, "d", keys);
        let headers = headers(&response);
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["X-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
        let reset = response.statuses[0]
            .duration_until_reset
            .as_ref()
            .unwrap()
            .seconds;
        // Both end with the year; the second may turn between the two.
        assert!(headers[2].1.parse::<i64>().unwrap().abs_diff(reset) <= 1);
        [headers[0].1, headers[1].1].map(str::to_owned)
    };
    assert_eq!(values(&["ten"]), ["10", "9"]);
    assert_eq!(values(&["ten", "two"]), ["2", "1"]);
    assert_eq!(values(&["two"]), ["2", "0"]);
    assert_eq!(values(&["two", "ten"]), ["2", "0"]);
    assert_eq!(headers(&ask(&cota, "d", &["other"])), []);
}

#[test]
fn in_shadow_mode_statuses_are_over_their_limit_and_the_request_is_not() {
    let cota = started(&[("SHADOW_MODE", "true"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "1")]);
    for (code, left) in [
        (Code::Ok, 1),
        (Code::Ok, 0),
        (Code::OverLimit, 0),
        (Code::OverLimit, 0),
    ] {
        let response = ask(&cota, "d", &["two", "ten"]);
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(response.statuses[0].code(), code);
        assert_eq!(response.statuses[0].limit_remaining, left);
        assert_eq!(
            response.statuses[0]
                .current_limit
                .as_ref()
                .unwrap()
                .requests_per_unit,
            2
        );
        assert_eq!(response.statuses[1].code(), Code::Ok);
        assert_eq!(headers(&response)[0], ("RateLimit-Limit", "2"));
        assert_eq!(response.raw_body, b"");
    }
}

#[test]
fn a_swapped_link_above_the_directory_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let version = |name: &str, limit: u32| {
        let config = folder.path().join(name).join("root/config");
        fs::create_dir_all(&config).unwrap();
        fs::write(
            config.join("d"),
            POLICY.replace("unit: 10", &format!("unit: {limit}")),
        )
        .unwrap();
        symlink(name, folder.path().join("next")).unwrap();
        fs::rename(folder.path().join("next"), folder.path().join("current")).unwrap();
    };
    let mut command = service(&folder, &[]);
    version("v1", 10);
    let cota = Cota::start_as_it_is(command.env("RUNTIME_ROOT", folder.path().join("current")));
    let limit = || {
        let response = ask(&cota, "d", &["ten"]);
        response.statuses[0]
            .current_limit
            .as_ref()
            .unwrap()
            .requests_per_unit
    };
    assert_eq!(limit(), 10);
    version("v2", 20);
    eventually("the other version is in force", || (limit() == 20).then_some(()));
}

#[test]
fn the_debug_port_and_prometheus_have_what_people_look_for() {
    let cota = started(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0")]);
    let log = cota.log();
    let also = log
        .lines()
        .filter_map(|line| line.split_once("listening also http="));
    let also: Vec<SocketAddr> = also.map(|(_, address)| address.trim().parse().unwrap()).collect();
    assert_eq!(also.len(), 2, "{log}");
    let get = |address: SocketAddr, path: &str| {
        let mut response = ureq::get(format!("http://{address}{path}")).call().unwrap();
        response.body_mut().read_to_string().unwrap()
    };
    assert!(get(also[0], "/rlconfig").contains("requests_per_unit=2,"));
    assert!(get(also[1], "/metrics").contains("cota_config_info"));
    assert_eq!(cota.get("/healthcheck").0, 200);
}

#[test]
fn what_cannot_be_honoured_is_an_error_or_a_warning_that_names_it() {
    let error = refusal(
        &[("BACKEND_TYPE", "memcache"), ("CONFIG_TYPE", "GRPC_XDS_SOTW")],
        "",
    );
    assert!(
        error.contains("BACKEND_TYPE: ") && error.contains("CONFIG_TYPE: "),
        "{error}"
    );
    let error = refusal(&[], "COTA_STORE");
    assert!(error.contains("REDIS_URL is not set"), "{error}");
    let error = refusal(&[("REDIS_URL", "rediss://:hunter2@r:1")], "");
    assert!(
        error.contains("REDIS_URL: ") && !error.contains("hunter2"),
        "{error}"
    );

    let log = started(&[("USE_STATSD", "true"), ("REDIS_POOL_SIZE", "5")]).log();
    let warning = |line: &str| line.contains("WARN") && line.contains("USE_STATSD: ");
    assert!(log.lines().any(warning), "{log}");
    assert!(
        !log.lines()
            .any(|line| line.contains("WARN") && line.contains("REDIS_POOL_SIZE")),
        "{log}"
    );
}

#[test]
fn a_watched_root_gives_the_files_whose_path_begins_with_the_applications_name_and_no_other() {
    let policy = |domain: &str| POLICY.replace("domain: d", &format!("domain: {domain}"));
    let limited = |watched: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = service(&folder, &[]);
        let root = folder.path().join("root");
        for (file, domain) in [
            ("config.yaml", "beside"),
            ("config.d/rules", "another-directory"),
            ("config/deep/er", "deeper"),
            ("configuration.yaml", "longer-name"),
            ("other/config.yaml", "elsewhere"),
        ] {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), policy(domain)).unwrap();
        }
        // Were it read, there would be no start without a fault.
        fs::write(root.join("README"), "not a policy").unwrap();
        command.envs(watched.map(|watched| ("RUNTIME_WATCH_ROOT", watched)));
        let cota = Cota::start_as_it_is(&mut command);
        assert_eq!(cota.faults(), [""; 0]);
        let domains = [
            "d",
            "beside",
            "another-directory",
            "deeper",
            "longer-name",
            "elsewhere",
        ];
        domains.map(|domain| ask(&cota, domain, &["ten"]).statuses[0].current_limit.is_some())
    };
    assert_eq!(limited(None), [true, true, true, true, false, false]);
    assert_eq!(limited(Some("true")), limited(None));
    assert_eq!(limited(Some("false")), [true, false, false, true, false, false]);
}

#[test]
fn arguments_that_are_no_words_of_ours_are_ignored_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = service(&folder, &[("REDIS_PASSWORD", "hunter2")]);
    let cota = Cota::start_as_it_is(command.args(["-config", "/data/ratelimit/config/hunter3.yaml"]));
    assert_eq!(ask(&cota, "d", &["ten"]).overall_code(), Code::Ok);
    let log = cota.log();
    let warned = |part: &str| {
        log.lines()
            .any(|line| line.contains("WARN") && line.contains(part))
    };
    assert!(warned("the arguments are ignored"), "{log}");
    assert!(warned("did you mean REDIS_AUTH?"), "{log}");
    assert!(!log.contains("hunter"), "{log}");
}

#[test]
fn with_a_word_of_ours_it_is_cota_by_another_name() {
    let folder = tempfile::tempdir().unwrap();
    let output = service(&folder, &[]).arg("--version").output().unwrap();
    assert!(output.stdout.starts_with(b"cota "), "{output:?}");
    let config = folder.path().join("root/config/policy");
    let output = Command::new(folder.path().join("ratelimit"))
        .arg("check")
        .arg(config)
        .output();
    assert!(output.unwrap().status.success());
    let mut by_command = Command::new(env!("CARGO_BIN_EXE_cota"));
    let output = by_command.arg("ratelimit").env_clear().output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("REDIS_URL is not set"),
        "{output:?}"
    );
}
