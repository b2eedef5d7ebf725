//! The command line: what it prints and where, how it ends, and what signals do.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use cota::config::{Source, load};
use cota::engine::time::Timestamp;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;

use cota_process::{Cota, Got, command, eventually, policy_file, request};

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

const POLICY: &str = "
domain: api
costs: {entry: route, default: 2, values: {search: 5, status: 0}}
defaults: {algorithm: token_bucket}
descriptors:
  - key: tenant
    rate_limits:
      - name: tenant
        plan_entry: plan
        plans:
          free: {unit: minute, requests_per_unit: 60, burst: 10}
          pro: {unit: minute, requests_per_unit: 600, burst: 90}
        default_plan: free
    descriptors:
      - key: route
        value: export
        rate_limit: {name: export, unit: hour, requests_per_unit: 1200, burst: 2, counts: requests, shadow_mode: true}
      - key: route
        value: quiet
  - key: account
    descriptors:
      - key: user
        rate_limit: {name: user, unit: hour, requests_per_unit: 60, burst: 6, max_wait: 200ms}
  - key: vip
    rate_limit: {unlimited: true}
  - key: plan
overrides:
  - {match: {tenant: acme}, limit: tenant, multiply: 2.5, expires_at: 2126-12-03T00:00:00Z, author: ana, reason: migration}
";

const ONE_A_YEAR: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 1}
";

const WARNED: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: minute, requests_per_unit: 10}
";

const BROKEN: &str = "
domain: api
descriptors:
  - kye: tenant
    rate_limit: {unit: fortnight, requests_per_unit: 10}
";

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn cota(arguments: &[&str]) -> (Option<i32>, String, String) {
    run(&mut command(arguments))
}

/// Log lines, then one line that begins with `cota:`, and nothing on stdout.
fn assert_one_line(output: (Option<i32>, String, String), parts: &[&str]) {
    let (code, stdout, stderr) = output;
    assert_eq!((code, &*stdout), (Some(1), ""), "{stderr}");
    let mut lines: Vec<&str> = stderr.lines().collect();
    let last = lines.pop().unwrap();
    assert!(last.starts_with("cota: "), "{stderr}");
    for part in parts {
        assert!(last.contains(part), "{part} in {stderr}");
    }
    for line in lines {
        let is_log = |line: &str| line.starts_with("20") && line.contains(" cota::");
        assert!(is_log(line), "{stderr}");
    }
}

// === how it ends ===

#[test]
fn a_port_that_is_taken_is_one_line() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, other, what) in [
        ("--grpc-listen", "--http-listen", "for gRPC"),
        ("--http-listen", "--grpc-listen", "for HTTP"),
    ] {
        let mut serve = command(&["serve", flag, &address, other, "127.0.0.1:0", "--config"]);
        assert_one_line(
            run(serve.arg(&policy)),
            &["cannot listen on", &address, what, "in use"],
        );
    }
    let mut serve = command(&["serve", "--grpc-listen", "nonsense", "--config"]);
    assert_one_line(run(serve.arg(&policy)), &["cannot listen on nonsense"]);
}

#[test]
fn a_path_that_cannot_be_read_is_one_line() {
    let (folder, path) = policy_file("");
    fs::write(&path, b"domain: \xff").unwrap();
    let gone = folder.path().join("gone").display().to_string();
    let garbled = path.display().to_string();
    for (path, reason) in [(&gone, "No such file or directory"), (&garbled, "not UTF-8")] {
        let parts = ["cannot read", path, reason];
        assert_one_line(cota(&["serve", "--config", path]), &parts);
        assert_one_line(cota(&["check", path]), &parts);
        assert_one_line(cota(&["explain", path, "--domain", "api", "a=b"]), &parts);
    }
}

#[test]
fn no_domain_at_all_is_one_line() {
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().display().to_string();
    assert_one_line(cota(&["serve", "--config", &path]), &["no domain in", &path]);
    assert_one_line(cota(&["check", &path]), &["no domain in", &path]);
    fs::write(empty.path().join("a.yaml"), "# to be written\n").unwrap();
    assert_one_line(cota(&["serve", "--config", &path]), &["no domain in", &path]);
}

#[test]
fn usage_errors_end_with_2() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["check"],
        &["explain", "x.yaml"],
        &["serve", "--nonsense"],
        &["serve", "--drain", "soon"],
        &["serve", "--drain", "-1s"],
        &["serve", "--max-keys", "many"],
        &["serve", "--log-format", "xml"],
    ] {
        let (code, stdout, stderr) = cota(arguments);
        assert_eq!((code, &*stdout), (Some(2), ""), "{arguments:?}");
        assert!(!stderr.is_empty());
    }
    let (code, _, stderr) = run(command(&["serve"]).env("COTA_SHADOW", "maybe"));
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn a_store_that_cannot_be_read_is_refused_without_its_password() {
    for store in [
        "redis://ana:secret@cache:port/0",
        "rediss-sentinel://ana:secret@a:1,b:2",
        "ana:secret@cache",
        "memroy",
    ] {
        for (code, stdout, stderr) in [
            cota(&["serve", "--store", store]),
            run(command(&["serve"]).env("COTA_STORE", store)),
        ] {
            assert_eq!((code, &*stdout), (Some(1), ""), "{store}: {stderr}");
            assert!(!stderr.contains("secret"), "{stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
    }
    let (code, _, stderr) = run(command(&["serve", "--store", "memory"]).env("COTA_STORE_FILE", "url"));
    assert_eq!(code, Some(2), "{stderr}");
}

// === help and settings ===

#[test]
fn help_fits_a_screen() {
    for subcommand in [
        "",
        "serve",
        "check",
        "explain",
        "override",
        "reset",
        "schema",
        "completions",
    ] {
        let arguments = [subcommand, "--help"];
        let (code, help, stderr) = cota(&arguments[usize::from(subcommand.is_empty())..]);
        assert_eq!((code, &*stderr), (Some(0), ""));
        assert!(help.lines().count() <= 40, "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
    let (code, version, _) = cota(&["--version"]);
    assert_eq!(code, Some(0));
    assert!(version.starts_with("cota "), "{version}");
}

#[test]
fn every_flag_of_serve_has_its_variable() {
    let (_, help, _) = cota(&["serve", "--help"]);
    let words: Vec<&str> = help.split_whitespace().collect();
    let help = words.join(" ");
    let mut seen = 0;
    for flag in help.split(" --").skip(1) {
        let name: String = flag
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '-')
            .collect();
        if name == "help" {
            continue;
        }
        let variable = format!("[env: COTA_{}", name.to_uppercase().replace('-', "_"));
        assert!(flag.contains(&variable), "{variable} in {flag}");
        seen += 1;
    }
    assert!(seen >= 8, "{help}");
}

#[test]
fn settings_are_read_from_the_environment() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    let mut command = command(&["serve"]);
    command
        .env("COTA_CONFIG", &policy)
        .env("COTA_GRPC_LISTEN", "nonsense, but a flag wins")
        .env("COTA_STORE", "memory")
        .env("COTA_SHADOW", "1")
        .env("COTA_MAX_KEYS", "1000")
        .env("COTA_DRAIN", "1ms")
        .env("COTA_LOG_FORMAT", "json");
    let mut cota = Cota::start(&mut command);
    for _ in 0..3 {
        assert_eq!(
            cota.ask("api", "tenant", "acme").unwrap(),
            Got::Free,
            "in shadow mode"
        );
    }
    assert!(cota.get("/limits").1.contains("\"shadow\": true,"));
    cota.signal("TERM");
    assert!(cota.await_end().success());
    let log = cota.log();
    assert!(log.contains("1ms"), "{log}");
    assert_eq!(log.matches("in shadow mode").count(), 1, "{log}");
}

#[test]
fn shadow_is_on_or_off_in_any_usual_word() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    for (word, shadow) in [("true", true), ("0", false), ("false", false)] {
        let mut command = command(&["serve", "--drain", "0s", "--config"]);
        let cota = Cota::start(command.arg(&policy).env("COTA_SHADOW", word));
        let shown = format!("\"shadow\": {shadow},\n  \"version\"");
        assert!(cota.get("/limits").1.contains(&shown), "{word}");
        assert_eq!(cota.log().contains("in shadow mode"), shadow, "{word}");
    }
}

#[test]
fn the_addresses_are_told_on_one_line() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    let cota = Cota::serve(&policy);
    let wanted = format!("listening grpc={} http={}", cota.grpc, cota.http);
    let log = cota.log();
    assert!(log.lines().any(|line| line.ends_with(&wanted)), "{log}");
    assert!(cota.grpc.port() > 0 && cota.http.port() > 0);
}

#[test]
fn json_log_lines_are_json() {
    let (_folder, policy) = policy_file(BROKEN);
    let mut cota =
        Cota::start(command(&["serve", "--log-format", "json", "--drain", "0s", "--config"]).arg(&policy));
    cota.signal("TERM");
    assert!(cota.await_end().success());
    let log = cota.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let wanted = format!("listening grpc={} http={}", cota.grpc, cota.http);
    assert!(lines.iter().any(|line| line["message"] == wanted), "{log}");
    let fault = lines.iter().find(|line| line["level"] == "ERROR").unwrap();
    assert_eq!(fault["line"], 4, "{fault}");
    assert_eq!(fault["file"], policy.display().to_string());
}

// === check ===

#[test]
fn check_ends_as_the_file_is() {
    for (text, flag, code, parts) in [
        (
            POLICY,
            None,
            0,
            &["1 files, 1 domains, 4 limits: 0 errors, 0 warnings"][..],
        ),
        (POLICY, Some("--deny-warnings"), 0, &["0 warnings"]),
        (
            WARNED,
            None,
            0,
            &["api.yaml:5:", ": warning: ", "0 errors, 1 warnings"],
        ),
        (WARNED, Some("--deny-warnings"), 1, &[": warning: "]),
        (
            BROKEN,
            None,
            1,
            &[
                "api.yaml:4:",
                "did you mean `key`",
                "  | ",
                "fortnight",
                "0 domains",
                "errors",
            ],
        ),
    ] {
        let (_folder, policy) = policy_file(text);
        let (got, stdout, stderr) = run(command(&["check"]).arg(&policy).args(flag));
        assert_eq!((got, &*stderr), (Some(code), ""), "{stdout}");
        for part in parts {
            assert!(stdout.contains(part), "{part} in {stdout}");
        }
    }
}

#[test]
fn check_takes_several_paths() {
    let (folder, first) = policy_file(POLICY);
    let second = folder.path().join("second.yaml");
    fs::write(&second, "domain: second\ndescriptors: []\nfaulty: 1\n").unwrap();
    let (code, stdout, _) = run(command(&["check"]).args([&first, &second]));
    assert_eq!(code, Some(1));
    assert!(stdout.contains("second.yaml:3:1: error"), "{stdout}");
    assert!(stdout.contains("2 files, 1 domains, 4 limits"), "{stdout}");
}

#[test]
fn the_samples_are_clean() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut checked = 0;
    for sample in fs::read_dir(samples).unwrap() {
        let path = sample.unwrap().path();
        // What the warnings of this one ask for are keys that `envoyproxy/ratelimit` does not know.
        let plain = path.ends_with("plain.yaml");
        let flag = (!plain).then_some("--deny-warnings");
        let (code, stdout, stderr) = run(command(&["check"]).arg(&path).args(flag));
        assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
        checked += 1;
    }
    assert!(checked >= 3);
}

/// Blocks marked `yaml` that begin with `domain:`, in the README and in `docs/`.
#[test]
fn every_policy_in_the_documentation_loads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("README.md")];
    pages.extend(
        fs::read_dir(root.join("docs"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path()),
    );
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|e| e == "md"))
    {
        let Ok(text) = fs::read_to_string(page) else {
            continue;
        };
        for (line, block) in yaml_blocks(&text) {
            if !block.starts_with("domain:") {
                continue;
            }
            let name = format!("{}, the block after line {line}", page.display());
            let source = Source {
                name: name.into(),
                text: block,
            };
            // Faults that come with time, such as an override that expired, are no concern of a page.
            let loaded = load(&[source], Timestamp(0));
            let faults: Vec<String> = loaded.faults.iter().map(ToString::to_string).collect();
            assert!(!loaded.has_errors(), "{}", faults.concat());
        }
    }
}

/// The fenced blocks of a Markdown page, without their indentation, and the lines where they begin.
fn yaml_blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String, usize)> = None;
    for (number, line) in page.lines().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match &mut open {
            None if trimmed == "```yaml" => open = Some((number + 1, String::new(), indent)),
            Some((start, block, _)) if trimmed == "```" => {
                blocks.push((*start, std::mem::take(block)));
                open = None;
            }
            Some((_, block, outer)) => {
                block.push_str(line.get(*outer..).unwrap_or_default());
                block.push('\n');
            }
            None => {}
        }
    }
    blocks
}

#[test]
fn blocks_are_found_in_a_page() {
    let page = "x\n```yaml\ndomain: a\n```\n```sh\ndomain: b\n```\n- item\n  ```yaml\n  domain: c\n  x:\n    - y\n  ```\n";
    assert_eq!(
        yaml_blocks(page),
        [
            (2, "domain: a\n".to_owned()),
            (9, "domain: c\nx:\n  - y\n".to_owned())
        ]
    );
}

// === explain ===

#[test]
fn explain_tells_limits_and_why() {
    let (_folder, policy) = policy_file(POLICY);
    let cases: [(&[&str], &[&str]); 14] = [
        (
            &["tenant=acme", "tenant=acme,route=export"],
            &[
                "weight 2, the default: no cost for route=\"export\"",
                "1: tenant=\"acme\"",
                "limit tenant: 150 per minute, token_bucket, burst 25",
                "plan free, by the entry plan",
                "multiplied by 2.5, by ana: migration",
                "cost 2",
                "budget {api|tenant=acme}|tenant=acme|tenant/token_bucket/minute",
                "2: tenant=\"acme\", route=\"export\"",
                "limit export: 1200 per hour",
                "in shadow mode",
                "cost 1",
            ],
        ),
        (
            &["tenant=b", "plan=pro", "route=search"],
            &[
                "weight 5, by route=\"search\"",
                "600 per minute, token_bucket, burst 90",
                "plan pro",
                "cost 5",
                "the rule sets none, on purpose",
            ],
        ),
        (
            &["tenant=b", "tenant=b"],
            &["cost 2, the same budget as descriptor 1"],
        ),
        (&["tenant=b", "route=status"], &["free: a weight of 0"]),
        (
            &["account=a,user=u"],
            &["limit user: 60 per hour", "waits up to 200 ms"],
        ),
        (&["vip=1"], &["always allowed"]),
        (&["tenant=b,route=quiet"], &["the rule sets none, on purpose"]),
        (
            &["tenent=b"],
            &["unknown_key", "at the top level", "did you mean `tenant`?"],
        ),
        (
            &["zzz=b"],
            &["unknown_key", "rules there have: account, plan, tenant, vip"],
        ),
        (
            &["tenant=b,route=exprot"],
            &["unknown_value", "under tenant", "nearest is \"export\""],
        ),
        (
            &["account=a"],
            &["too_short", "the rules under account go on with: user"],
        ),
        (
            &["tenant=b,route=export,x=1"],
            &[
                "too_long",
                "ends under tenant > route",
                "entry `x` is one too many",
            ],
        ),
        (
            &["user=u,account=a"],
            &["order", "no rule at the top level has the key `user`"],
        ),
        (&["=b"], &["malformed: an entry has an empty key"]),
    ];
    for (descriptors, parts) in cases {
        let mut explain = command(&["explain", "--domain", "api"]);
        let (code, stdout, stderr) = run(explain.arg(&policy).args(descriptors));
        assert_eq!((code, &*stderr), (Some(0), ""), "{stdout}");
        for part in parts {
            assert!(stdout.contains(part), "{descriptors:?}: {part} in\n{stdout}");
        }
    }
}

#[test]
fn explain_tells_what_may_be_taken_ahead() {
    let (_folder, policy) = policy_file(
        "
domain: api
defaults: {algorithm: token_bucket, max_overshoot: 5%}
descriptors: [{key: tenant, rate_limit: {name: tenant, unit: minute, requests_per_unit: 6000, burst: 900}}]
",
    );
    let (code, stdout, _) = run(command(&["explain", "--domain", "api"])
        .arg(&policy)
        .arg("tenant=a"));
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains(
            "6000 per minute, token_bucket, burst 900, replicas may hold 5% (45 units) taken ahead"
        ),
        "{stdout}"
    );
}

#[test]
fn explain_says_what_it_cannot_explain() {
    let (_folder, policy) = policy_file(POLICY);
    let policy = policy.display().to_string();
    assert_one_line(
        cota(&["explain", &policy, "--domain", "apo", "a=b"]),
        &["no domain `apo`", "there is: api"],
    );
    assert_one_line(
        cota(&["explain", &policy, "--domain", "api", "tenant"]),
        &["`tenant` is not KEY=VALUE"],
    );
    let (_folder, broken) = policy_file(BROKEN);
    let (code, stdout, stderr) = run(command(&["explain", "--domain", "api"])
        .arg(&broken)
        .arg("tenant=a"));
    assert_eq!((code, &*stdout), (Some(1), ""));
    assert!(stderr.contains("did you mean `key`"), "{stderr}");
    assert!(stderr.ends_with("cota: domain `api` has errors\n"), "{stderr}");
}

// === signals ===

#[test]
fn the_first_signal_drains_and_the_second_ends_at_once() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    for signals in [["TERM", "INT"], ["INT", "TERM"]] {
        let mut cota = Cota::start(command(&["serve", "--drain", "1h", "--config"]).arg(&policy));
        assert_eq!(cota.get("/readyz"), (200, "ok\n".to_owned()));
        assert_eq!(cota.health("ratelimit").unwrap(), SERVING);

        cota.signal(signals[0]);

        eventually("not ready", || {
            (cota.get("/readyz") == (503, "draining\n".to_owned())).then_some(())
        });
        eventually("not healthy", || {
            (cota.health("ratelimit").unwrap() == NOT_SERVING).then_some(())
        });
        for name in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
            assert_eq!(cota.health(name).unwrap(), NOT_SERVING);
        }
        assert_eq!(cota.get("/healthcheck").0, 503);
        assert_eq!(cota.get("/livez").0, 200);
        assert_eq!(
            cota.ask("api", "tenant", "acme").unwrap(),
            Got::Allowed { limit: 1, left: 0 }
        );
        assert_eq!(
            cota.client().ask("api", "tenant", "acme").unwrap(),
            Got::Refused { limit: 1 }
        );
        assert_eq!(cota.has_ended(), None);

        cota.signal(signals[1]);
        assert_eq!(cota.await_end().code(), Some(1));
    }
}

#[test]
fn a_held_call_is_answered_before_the_end() {
    // The second request is held for two seconds; `mark` shows that it has arrived.
    let (_folder, policy) = policy_file("
domain: api
descriptors:
  - key: slow
    rate_limit: {name: slow, period: 2s, requests_per_unit: 1, burst: 1, algorithm: token_bucket, max_wait: 10s}
  - key: mark
    rate_limit: {name: mark, unit: year, requests_per_unit: 10}
");
    let mut cota = Cota::serve(&policy);
    cota.ask("api", "slow", "x").unwrap();
    let client = cota.client();
    let held = thread::spawn(move || client.send(request("api", &[&[("slow", "x")], &[("mark", "x")]])));
    eventually("the call is held", || {
        let mut look = request("api", &[&[("mark", "x")]]);
        look.descriptors[0].hits_addend = Some(0);
        (cota.send(look).unwrap().statuses[0].limit_remaining == 9).then_some(())
    });

    cota.signal("TERM");

    let answer = held.join().unwrap().unwrap();
    assert_eq!(
        answer.overall_code(),
        cota::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::Ok
    );
    assert_eq!(cota.await_end().code(), Some(0));
    assert!(!cota.log().contains("still open"), "{}", cota.log());
}

#[test]
fn open_connections_do_not_hold_up_the_end() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    let mut cota = Cota::serve(&policy);
    // An HTTP/2 connection between calls, an HTTP one between requests, and one that has sent nothing.
    cota.ask("api", "tenant", "acme").unwrap();
    cota.get("/livez");
    let _silent = TcpStream::connect(cota.http).unwrap();

    cota.signal("TERM");

    assert_eq!(cota.await_end().code(), Some(0));
    let log = cota.log();
    assert!(!log.contains("still open"), "{log}");
    assert!(log.contains("draining") && log.contains("ended"), "{log}");
    assert!(TcpStream::connect(cota.grpc).is_err());
}

#[test]
fn a_client_is_told_to_go_away() {
    let (_folder, policy) = policy_file(ONE_A_YEAR);
    let cota = Cota::serve(&policy);
    let mut stream = TcpStream::connect(cota.grpc).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut next = || {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        std::io::copy(&mut (&mut stream).take(length.into()), &mut std::io::sink()).unwrap();
        head[3]
    };
    assert_eq!(next(), 4, "the connection begins with its settings");

    cota.signal("TERM");

    while next() != 7 {}
}
