//! Policy files change under a running service.
//!
//! Limits are a year's, so that nothing comes back while a test runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;
use tonic::Code;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;

use cota_process::{Cota, Got, command, eventually};

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

fn policy(domain: &str, limit: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: tenant\n    \
         rate_limit: {{name: tenant, unit: year, requests_per_unit: {limit}}}\n"
    )
}

/// A directory of policy files.
struct Config(TempDir);

impl Config {
    fn new(files: &[(&str, &str)]) -> Self {
        let config = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            config.write(name, text);
        }
        config
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(name)).unwrap();
    }
}

fn spend(cota: &Cota, domain: &str, n: u32) -> Vec<Got> {
    (0..n)
        .map(|_| cota.ask(domain, "tenant", "acme").unwrap())
        .collect()
}

#[test]
fn a_write_is_taken() {
    let config = Config::new(&[("a.yaml", &policy("a", 10))]);
    let cota = Cota::serve(&config.path());
    assert_eq!(cota.limit("a"), Some(10));
    config.write("a.yaml", policy("a", 20));
    cota.await_limit("a", Some(20));
    assert_eq!((cota.reloads("ok"), cota.reloads("partial")), (2, 0));
}

#[test]
fn a_rename_over_a_file_is_taken() {
    let config = Config::new(&[("a.yaml", &policy("a", 10))]);
    let file = config.path().join("a.yaml");
    let cota = Cota::serve(&file);
    config.write("a.yaml.new", policy("a", 20));
    fs::rename(config.path().join("a.yaml.new"), &file).unwrap();
    cota.await_limit("a", Some(20));
}

#[test]
fn the_link_swap_of_a_config_map_is_taken() {
    for name in ["", "policy.yaml"] {
        let config = Config::new(&[]);
        let at = |name: &str| config.path().join(name);
        let version = |name: &str, limit| {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("policy.yaml"), policy("a", limit)).unwrap();
        };
        version("..2026_01", 10);
        symlink("..2026_01", at("..data")).unwrap();
        symlink("..data/policy.yaml", at("policy.yaml")).unwrap();
        let cota = Cota::serve(&at(name));
        assert_eq!(cota.limit("a"), Some(10));

        version("..2026_02", 20);
        symlink("..2026_02", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at("..2026_01")).unwrap();
        cota.await_limit("a", Some(20));
        assert_eq!(cota.faults(), [""; 0]);
    }
}

#[test]
fn sighup_reloads_even_when_nothing_has_changed() {
    let config = Config::new(&[("a.yaml", &policy("a", 10))]);
    let cota = Cota::serve(&config.path());
    assert_eq!(cota.reloads("ok"), 1);
    cota.signal("HUP");
    eventually("a second reload", || (cota.reloads("ok") == 2).then_some(()));
}

#[test]
fn a_reload_keeps_what_was_spent() {
    let config = Config::new(&[("a.yaml", &policy("a", 10)), ("b.yaml", &policy("b", 5))]);
    let cota = Cota::serve(&config.path());
    assert_eq!(spend(&cota, "a", 11).pop(), Some(Got::Refused { limit: 10 }));
    assert_eq!(
        spend(&cota, "b", 3).pop(),
        Some(Got::Allowed { limit: 5, left: 2 })
    );

    config.write("a.yaml", policy("a", 20));
    cota.await_limit("a", Some(20));

    let got = spend(&cota, "a", 11);
    assert_eq!(got[0], Got::Allowed { limit: 20, left: 9 });
    assert_eq!(got[9], Got::Allowed { limit: 20, left: 0 });
    assert_eq!(got[10], Got::Refused { limit: 20 });
    assert_eq!(spend(&cota, "b", 1), [Got::Allowed { limit: 5, left: 1 }]);

    config.write("a.yaml", policy("a", 15));
    cota.await_limit("a", Some(15));
    assert_eq!(spend(&cota, "a", 1), [Got::Refused { limit: 15 }]);
}

#[test]
fn no_request_meets_a_policy_in_between() {
    let config = Config::new(&[("a.yaml", &policy("a", 1_000_000))]);
    let cota = Cota::serve(&config.path());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let client = cota.client();
            while !done.load(Ordering::SeqCst) {
                let got = client.ask("a", "tenant", "acme").unwrap();
                assert!(matches!(got, Got::Allowed { .. }), "{got:?}");
            }
        });
        for limit in [1_000_001, 1_000_002, 1_000_003] {
            config.write("a.yaml.new", policy("a", limit));
            fs::rename(config.path().join("a.yaml.new"), config.path().join("a.yaml")).unwrap();
            cota.await_limit("a", Some(limit));
        }
        done.store(true, Ordering::SeqCst);
        caller.join().unwrap();
    });
}

#[test]
fn an_empty_or_broken_file_keeps_its_domain_and_the_others_go_live() {
    let cases = [
        ("", "domain a stays as it was"),
        ("# nothing\n", "domain a stays as it was"),
        ("domain: a\n  descriptors: [\n", "domain a stays as it was"),
        ("{{ .Values.policy }}\n", "domain a stays as it was"),
        // A key of a later version.
        (
            "domain: a\ndescriptors:\n  - {key: tenant, invented_later: 1}\n",
            "`invented_later`",
        ),
        ("domian: a\ndescriptors: []\n", "domain a stays as it was"),
    ];
    let config = Config::new(&[("a.yaml", &policy("a", 10)), ("b.yaml", &policy("b", 1))]);
    let cota = Cota::serve(&config.path());
    spend(&cota, "a", 4);
    let mut left = 6;
    for (limit, (text, fault)) in (2..).zip(cases) {
        let partial = cota.reloads("partial");
        config.write("a.yaml", text);
        config.write("b.yaml", policy("b", limit));
        cota.await_limit("b", Some(limit));
        cota.await_fault(&["a.yaml", fault]);
        assert!(cota.reloads("partial") > partial);
        left -= 1;
        assert_eq!(
            spend(&cota, "a", 1),
            [Got::Allowed { limit: 10, left }],
            "{text:?}"
        );
        assert_eq!(cota.get("/readyz").0, 200);
    }
    config.write("a.yaml", policy("a", 11));
    cota.await_limit("a", Some(11));
    assert_eq!(cota.faults(), [""; 0]);
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_domain() {
    let config = Config::new(&[("a.yaml", &policy("a", 10)), ("b.yaml", &policy("b", 1))]);
    let cota = Cota::serve(&config.path());

    config.write("a.yaml", b"domain: a # \xff\n");
    cota.await_fault(&["a.yaml", "not UTF-8"]);
    assert_eq!(cota.limit("a"), Some(10));

    config.remove("a.yaml");
    symlink("nowhere", config.path().join("a.yaml")).unwrap();
    cota.await_fault(&["a.yaml", "No such file"]);
    assert_eq!(cota.limit("a"), Some(10));

    // One file that is gone for good does not hold up the others.
    config.write("b.yaml", policy("b", 2));
    cota.await_limit("b", Some(2));
}

#[test]
fn one_bad_domain_of_a_file_keeps_its_last_good_version() {
    let both = |a: &str, limit| format!("{a}---\n{}", policy("b", limit));
    let config = Config::new(&[("ab.yaml", &both(&policy("a", 10), 1))]);
    let cota = Cota::serve(&config.path());
    config.write("ab.yaml", both("domain: a\ndescriptors: [{kye: tenant}]\n", 2));
    cota.await_limit("b", Some(2));
    assert_eq!(cota.limit("a"), Some(10));

    // The second document is gone, as far as can be seen; but the first is not YAML.
    config.write("ab.yaml", "domain: [a\n");
    cota.await_fault(&["domain b stays as it was"]);
    assert_eq!((cota.limit("a"), cota.limit("b")), (Some(10), Some(2)));
}

#[test]
fn what_is_deleted_renamed_or_taken_out_is_gone() {
    let config = Config::new(&[
        ("a.yaml", &policy("a", 1)),
        ("b.yaml", &policy("b", 1)),
        ("cd.yaml", &format!("{}---\n{}", policy("c", 1), policy("d", 1))),
    ]);
    let cota = Cota::serve(&config.path());

    config.remove("a.yaml");
    cota.await_limit("a", None);
    assert_eq!(cota.limit("b"), Some(1));

    config.write("b.yaml", policy("b2", 1));
    cota.await_limit("b", None);
    assert_eq!(cota.limit("b2"), Some(1));

    config.write("cd.yaml", policy("d", 1));
    cota.await_limit("c", None);
    assert_eq!(cota.limit("d"), Some(1));
    assert_eq!(cota.reloads("partial") + cota.reloads("rejected"), 0);
}

#[test]
fn a_deletion_holds_when_all_else_is_broken() {
    let config = Config::new(&[("a.yaml", &policy("a", 1)), ("b.yaml", &policy("b", 1))]);
    let cota = Cota::serve(&config.path());

    config.write("a.yaml", "");
    config.remove("b.yaml");
    cota.await_limit("b", None);
    assert_eq!(cota.limit("a"), Some(1));

    // Each rejected: the domain is followed to where it went, though it is never good there.
    config.write("a2.yaml", "domain: a\nbroken: 1\n");
    config.remove("a.yaml");
    cota.await_fault(&["a2.yaml", "domain a stays as it was"]);
    config.write("a2.yaml", "");
    eventually("the fault of `broken` is gone", || {
        (!cota.faults().iter().any(|fault| fault.contains("broken"))).then_some(())
    });
    assert_eq!(cota.limit("a"), Some(1));
    assert!(cota.reloads("rejected") >= 2);

    config.write("a2.yaml", policy("a", 2));
    cota.await_limit("a", Some(2));
    cota.await_no_fault();
}

#[test]
fn a_domain_in_two_files_keeps_its_last_good_version() {
    let config = Config::new(&[("a.yaml", &policy("a", 10)), ("b.yaml", &policy("b", 1))]);
    let cota = Cota::serve(&config.path());
    config.write("b.yaml", policy("a", 20));
    cota.await_fault(&["b.yaml:1", "already defined", "a.yaml, line 1"]);
    assert_eq!((cota.limit("a"), cota.limit("b")), (Some(10), None));

    config.remove("a.yaml");
    cota.await_limit("a", Some(20));
    cota.await_no_fault();
}

#[test]
fn a_domain_that_loses_its_last_limit_is_told_of_while_it_has_none() {
    let config = Config::new(&[("a.yaml", &policy("a", 10)), ("b.yaml", &policy("b", 1))]);
    let cota = Cota::serve(&config.path());
    config.write("a.yaml", "domain: a\ndescriptors: []\n");
    cota.await_limit("a", None);
    cota.await_fault(&["a.yaml", "domain a has lost its last limit"]);
    assert!(cota.log().contains("domain a has lost its last limit"));

    config.write("b.yaml", policy("b", 2));
    cota.await_limit("b", Some(2));
    cota.await_fault(&["domain a has lost its last limit"]);

    config.write("a.yaml", policy("a", 10));
    cota.await_limit("a", Some(10));
    cota.await_no_fault();
}

#[test]
fn a_broken_first_policy_waits_for_being_mended() {
    let config = Config::new(&[("a.yaml", "domain: a\ndescriptors: [{kye: tenant}]\n")]);
    let cota = Cota::serve(&config.path());
    assert_eq!(
        cota.get("/readyz"),
        (503, "no policy is in force yet\n".to_owned())
    );
    assert_eq!(cota.get("/healthcheck").0, 503);
    assert_eq!(cota.get("/livez").0, 200);
    assert_eq!(cota.health("").unwrap(), NOT_SERVING);
    assert_eq!(cota.health("ratelimit").unwrap(), NOT_SERVING);
    assert_eq!(
        cota.ask("a", "tenant", "acme").unwrap_err().code(),
        Code::Unavailable
    );
    cota.await_fault(&["a.yaml:2", "`kye`"]);
    assert_eq!(cota.reloads("rejected"), 1);

    config.write("a.yaml", policy("a", 10));
    eventually("ready", || (cota.get("/readyz").0 == 200).then_some(()));
    assert_eq!(cota.limit("a"), Some(10));
    assert_eq!(cota.get("/healthcheck"), (200, "OK".to_owned()));
    eventually("healthy", || {
        (cota.health("ratelimit").unwrap() == SERVING).then_some(())
    });
}

#[test]
fn a_directory_that_is_replaced_is_followed() {
    let parent = Config::new(&[]);
    let at = |name: &str| parent.path().join(name);
    let directory = |name: &str, limit| {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("a.yaml"), policy("a", limit)).unwrap();
    };
    directory("config", 10);
    directory("new", 20);
    let cota = Cota::serve(&at("config"));

    fs::rename(at("config"), at("old")).unwrap();
    cota.await_fault(&["config: cannot be read", "No such file"]);
    cota.await_fault(&["domain a stays as it was"]);
    assert_eq!((cota.limit("a"), cota.get("/readyz").0), (Some(10), 200));

    // Nothing notifies of what happens here: the watch went away with the old directory.
    fs::rename(at("new"), at("config")).unwrap();
    cota.await_limit("a", Some(20));
    cota.await_no_fault();
    fs::write(at("config/a.yaml"), policy("a", 30)).unwrap();
    cota.await_limit("a", Some(30));
    assert_eq!(
        cota.log().matches("cannot be read").count(),
        1,
        "told once, not every time it is looked for"
    );
}

#[test]
fn one_path_that_is_gone_does_not_hold_up_the_others() {
    let config = Config::new(&[("a.yaml", &policy("a", 1)), ("b.yaml", &policy("b", 1))]);
    let at = |name: &str| config.path().join(name);
    let cota = Cota::start(
        command(&["serve", "--config"])
            .arg(at("a.yaml"))
            .arg("--config")
            .arg(at("b.yaml")),
    );
    config.remove("a.yaml");
    config.write("b.yaml", policy("b", 2));
    cota.await_limit("b", Some(2));
    cota.await_fault(&["a.yaml: cannot be read"]);
    assert_eq!(cota.limit("a"), Some(1));
}

#[test]
fn only_policy_files_are_read() {
    let config = Config::new(&[("a.yaml", &policy("a", 1))]);
    fs::create_dir_all(config.path().join("deeper/still")).unwrap();
    fs::create_dir_all(config.path().join(".git")).unwrap();
    config.write("deeper/still/b.yml", policy("b", 1));
    symlink("..", config.path().join("deeper/circle")).unwrap();
    let broken = "domain: [";
    for name in [
        ".hidden.yaml",
        ".git/c.yaml",
        "a.yaml~",
        "#a.yaml#",
        "a.yaml.swp",
        "README.md",
    ] {
        config.write(name, broken);
    }
    let pipe = config.path().join("pipe.yaml");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let cota = Cota::serve(&config.path());
    assert_eq!((cota.limit("a"), cota.limit("b")), (Some(1), Some(1)));
    assert_eq!(cota.faults(), [""; 0]);
    let log = cota.log();
    for (name, reason) in [
        ("README.md", "not called"),
        ("pipe.yaml", "no file"),
        ("deeper/circle", "above it"),
    ] {
        let line = log
            .lines()
            .find(|line| line.contains("skipped") && line.contains(name));
        assert!(line.is_some_and(|line| line.contains(reason)), "{name}: {log}");
    }

    // An editor at work beside a file that does change.
    config.write(".a.yaml.swp", "x");
    config.write("4913", "x");
    config.write("deeper/still/b.yml", policy("b", 2));
    cota.await_limit("b", Some(2));
    assert_eq!(cota.faults(), [""; 0]);
}

#[test]
fn a_bare_file_name_is_followed() {
    let config = Config::new(&[("a.yaml", &policy("a", 1))]);
    let cota = Cota::start(command(&["serve", "--config", "a.yaml"]).current_dir(config.path()));
    config.write("b", policy("a", 2));
    fs::rename(config.path().join("b"), config.path().join("a.yaml")).unwrap();
    cota.await_limit("a", Some(2));
}

#[test]
fn the_same_file_given_twice_is_one_file() {
    let config = Config::new(&[("a.yaml", &policy("a", 1))]);
    let file = config.path().join("a.yaml");
    let cota = Cota::start(
        command(&["serve", "--config"])
            .arg(config.path())
            .arg("--config")
            .arg(Path::new(&file)),
    );
    assert_eq!(cota.limit("a"), Some(1));
}
