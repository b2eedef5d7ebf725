//! Overrides and resets on replicas that share a real Redis.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use cota::clock::Stopwatch;
use serde_json::Value;
use tempfile::TempDir;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;
mod support;

use cota_process::{Cota, Got, command, eventually};
use support::redis::Server;

/// A restart between two requests, and these tests count, would refill what is by the minute.
const POLICY: &str = "
domain: api
defaults: {algorithm: token_bucket}
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 3}
    descriptors:
      - {key: route, rate_limit: {name: route, unit: day, requests_per_unit: 3}}
";

/// What two replicas are started with.
struct World {
    redis: Server,
    folder: TempDir,
    replicas: Vec<Cota>,
}

impl World {
    /// Two replicas on one Redis.
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("api.yaml"), POLICY).unwrap();
        fs::write(folder.path().join("token"), "swordfish\n").unwrap();
        let mut world = Self {
            redis: Server::start(options),
            folder,
            replicas: Vec::new(),
        };
        world.add();
        world.add();
        world
    }

    fn token(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// One more replica.
    fn add(&mut self) {
        self.add_at(&self.redis.url());
    }

    /// The same, with another way to the store.
    fn add_at(&mut self, url: &str) {
        let config = self.folder.path().join("api.yaml");
        let mut cota = command(&[
            "serve",
            "--drain",
            "0s",
            "--store-timeout",
            "200ms",
            "--store",
            url,
        ]);
        cota.arg("--config").arg(config);
        cota.arg("--admin-token-file").arg(self.token());
        self.replicas.push(Cota::start(&mut cota));
    }

    /// The command line on one of the replicas.
    fn run(&self, replica: usize, arguments: &[&str]) -> Output {
        let url = format!("http://{}", self.replicas[replica].http);
        let mut cota = command(arguments);
        cota.args(["--url", &url, "--token-file"]).arg(self.token());
        cota.output().unwrap()
    }

    fn ran(&self, replica: usize, arguments: &[&str]) -> String {
        let output = self.run(replica, arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments:?}: {text}{error}");
        text
    }

    /// Gives a tenant ten times as much; the id.
    fn tenfold(&self, replica: usize, tenant: &str, author: &str) -> String {
        let entry = format!("tenant={tenant}");
        let text = self.ran(
            replica,
            &[
                "override",
                "set",
                "--domain",
                "api",
                "--match",
                &entry,
                "--limit",
                "tenant",
                "--multiply",
                "10",
                "--expires-in",
                "3d",
                "--author",
                author,
                "--reason",
                "ticket 4411",
            ],
        );
        text.split_once(':').unwrap().0.to_owned()
    }

    fn reset(&self, replica: usize, tenant: &str) -> Output {
        let entry = format!("tenant={tenant}");
        let arguments = [
            "reset",
            "--domain",
            "api",
            "--match",
            &entry,
            "--author",
            "ana",
            "--reason",
            "support call",
        ];
        self.run(replica, &arguments)
    }

    fn spend(&self, replica: usize, tenant: &str) -> Got {
        self.replicas[replica].ask("api", "tenant", tenant).unwrap()
    }

    /// Spends all that a tenant has.
    fn exhaust(&self, replica: usize, tenant: &str) {
        while self.spend(replica, tenant) != (Got::Refused { limit: 3 }) {}
    }

    /// The record through a replica, oldest first: `event author`.
    fn told(&self, replica: usize) -> Vec<String> {
        let text = self.ran(replica, &["override", "audit"]);
        let mut lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
        lines.reverse();
        lines
    }
}

#[test]
fn an_override_through_one_replica_frees_a_tenant_on_the_other_within_a_second() {
    let world = World::start(&[]);
    world.exhaust(0, "acme");
    assert_eq!(world.spend(1, "acme"), Got::Refused { limit: 3 });
    let id = world.tenfold(0, "acme", "ana");
    let watch = Stopwatch::start();
    eventually("the tenant passes on the other replica", || {
        matches!(world.spend(1, "acme"), Got::Allowed { limit: 30, .. }).then_some(())
    });
    // A poll every 300 ms, and a machine that stalls.
    assert!(watch.elapsed() < Duration::from_secs(1), "{:?}", watch.elapsed());
    assert!(matches!(world.spend(0, "acme"), Got::Allowed { limit: 30, .. }));
    assert_eq!(world.spend(1, "beta"), Got::Allowed { limit: 3, left: 2 });
    assert_eq!(world.replicas[1].metric("cota_overrides_active", &[]), 1);

    let listed = world.ran(1, &["override", "list"]);
    assert!(
        listed.contains(&id) && listed.contains("api: tenant of tenant=acme"),
        "{listed}"
    );
    let second = world.tenfold(1, "acme", "bo");
    assert_ne!(id, second);
    world.ran(0, &["override", "revoke", &second, "--author", "cy"]);
    eventually("the tenant is refused again on the other replica", || {
        (world.spend(1, "acme") == (Got::Refused { limit: 3 })).then_some(())
    });
    let told = world.told(0);
    let parts = [
        format!("set  {id} ana"),
        format!("set, replacing {id}  {second} bo"),
        format!("revoked  {second} cy"),
    ];
    for (line, parts) in told.iter().zip(&parts) {
        for part in parts.split(' ') {
            assert!(line.contains(part), "{line}: {part}");
        }
    }
    assert_eq!(told.len(), 3, "{told:?}");
}

#[test]
fn a_replica_knows_the_overrides_before_it_listens() {
    let mut world = World::start(&[]);
    world.tenfold(0, "acme", "ana");
    world.add();
    assert!(matches!(world.spend(2, "acme"), Got::Allowed { limit: 30, .. }));
}

#[test]
fn a_reset_frees_a_caller_on_every_replica() {
    let world = World::start(&[]);
    for tenant in ["acme", "beta"] {
        world.exhaust(0, tenant);
    }
    let output = world.reset(1, "acme");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "tenant=acme: all budgets start afresh\n"
    );
    // The other one remembers its refusal until it hears of the reset.
    eventually("the caller passes on the other replica", || {
        (world.spend(0, "acme") == (Got::Allowed { limit: 3, left: 2 })).then_some(())
    });
    assert_eq!(world.spend(1, "acme"), Got::Allowed { limit: 3, left: 1 });
    assert_eq!(world.spend(1, "beta"), Got::Refused { limit: 3 });
    assert!(world.told(0)[0].contains("support call"));
}

#[test]
fn a_reset_is_heard_by_the_budgets_that_replicas_keep_for_outages() {
    let mut world = World::start(&["--save", ""]);
    world.redis.kill();
    // Half of three each, rounded up: what remains counts until the day is over.
    for replica in 0..2 {
        eventually("the replica decides alone", || {
            matches!(world.spend(replica, "acme"), Got::Refused { .. }).then_some(())
        });
        assert!(matches!(world.spend(replica, "beta"), Got::Allowed { .. }));
    }
    let refused = world.reset(0, "acme");
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(
        why.contains("nothing was changed") || why.contains("gives no answer"),
        "{why}"
    );

    world.redis.restart();
    for replica in &world.replicas {
        eventually("the store answers again", || {
            (replica.metric("cota_store_degraded", &[]) == 0).then_some(())
        });
    }
    let reset = world.reset(0, "acme");
    assert!(reset.status.success(), "{reset:?}");
    // The other one hears of it within a poll.
    let heard = || world.replicas[1].log().contains("budgets start afresh here");
    eventually("the other replica hears of the reset", || heard().then_some(()));
    world.redis.kill();
    for replica in 0..2 {
        assert!(
            matches!(world.spend(replica, "acme"), Got::Allowed { .. }),
            "replica {replica}"
        );
    }
}

#[test]
fn without_the_store_the_last_known_overrides_stay_and_none_is_changed() {
    let mut world = World::start(&[]);
    let id = world.tenfold(0, "acme", "ana");
    eventually("the other replica knows it", || {
        (world.replicas[1].metric("cota_overrides_active", &[]) == 1).then_some(())
    });
    world.redis.kill();
    for replica in 0..2 {
        // 30 on two replicas: 15 each.
        assert!(matches!(world.spend(replica, "acme"), Got::Allowed { .. }));
        assert_eq!(world.replicas[replica].metric("cota_overrides_active", &[]), 1);
    }
    let tries: [&[&str]; 3] = [
        &["override", "revoke", &id, "--author", "ana"],
        &["override", "audit"],
        &[
            "override",
            "set",
            "--domain",
            "api",
            "--match",
            "tenant=beta",
            "--limit",
            "tenant",
            "--unlimited",
            "--expires-in",
            "1h",
            "--author",
            "ana",
            "--reason",
            "r",
        ],
    ];
    for arguments in tries {
        let output = world.run(1, arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(why.contains("store"), "{why}");
    }
    assert!(world.ran(1, &["override", "list"]).contains(&id));

    // The store comes back with nothing. Whatever comes first, what is in force is set again, once.
    world.redis.restart();
    eventually("another can be set", || {
        world.run(1, tries[2]).status.success().then_some(())
    });
    world.add();
    assert!(matches!(world.spend(2, "acme"), Got::Allowed { limit: 30, .. }));
    let told = world.told(2);
    assert!(
        told[0].contains("restored") && told[0].contains("acme"),
        "{told:?}"
    );
    let set = |line: &String| line.contains("set") && line.contains("beta");
    assert!(told.len() > 1 && told[1..].iter().all(set), "{told:?}");
}

#[test]
fn an_override_that_ends_is_swept_and_told_once_for_all_replicas() {
    let world = World::start(&[]);
    let set = [
        "override",
        "set",
        "--domain",
        "api",
        "--match",
        "tenant=acme",
        "--limit",
        "tenant",
        "--unlimited",
        "--expires-in",
        "1s",
        "--author",
        "ana",
        "--reason",
        "r",
    ];
    world.ran(0, &set);
    let told = |what: &str| {
        let lines = world.told(1);
        lines.iter().filter(|line| line.contains(what)).count()
    };
    eventually("it is swept", || (told("expired") > 0).then_some(()));
    for replica in &world.replicas {
        eventually("no override is in force", || {
            (replica.metric("cota_overrides_active", &[]) == 0).then_some(())
        });
    }
    // Another change is seen by both: whoever would tell the end again has had the chance to.
    world.tenfold(0, "beta", "bo");
    for replica in &world.replicas {
        eventually("the replica has asked again", || {
            (replica.metric("cota_overrides_active", &[]) == 1).then_some(())
        });
    }
    assert_eq!((told("set"), told("expired")), (2, 1));
}

#[test]
fn every_key_ends() {
    let world = World::start(&[]);
    world.tenfold(0, "acme", "ana");
    world.exhaust(0, "beta");
    assert!(world.reset(0, "beta").status.success());
    let ttls = world.redis.ttls();
    let names: Vec<&str> = ttls.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["c:{overrides}", "c:{overrides}:audit"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for (name, ttl) in &ttls {
        assert!(*ttl > 0, "{name}: {ttl}");
    }
}

#[test]
fn what_the_command_line_is_told_is_shown_escaped_and_never_raw_in_the_log() {
    let world = World::start(&[]);
    let evil = "\u{1b}[31m\r\nERROR forged\u{202e}";
    world.tenfold(0, evil, evil);
    let listed = world.ran(0, &["override", "list"]);
    let log = world.replicas[0].log();
    for text in [&listed, &log] {
        assert!(
            !text.contains('\u{1b}') && !text.contains('\r') && !text.contains('\u{202e}'),
            "{text:?}"
        );
        assert!(
            !text.lines().any(|line| line.starts_with("ERROR forged")),
            "{text}"
        );
    }
    assert!(log.contains("override set"), "{log}");
}

#[test]
fn explain_knows_the_overrides_of_a_running_service() {
    let world = World::start(&[]);
    let id = world.tenfold(0, "acme", "ana");
    let config = world.folder.path().join("api.yaml");
    let config = config.to_str().unwrap();
    let text = world.ran(0, &["explain", config, "--domain", "api", "tenant=acme"]);
    let lines = [
        "limit tenant: 30 per day",
        &format!("override {id}: multiplied by 10, by ana: ticket 4411"),
    ];
    for line in lines {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_token_file_that_is_bad_is_told_of_once_and_the_last_token_counts() {
    let world = World::start(&[]);
    let cota = &world.replicas[0];
    let kept = world.folder.path().join("kept");
    fs::copy(world.token(), &kept).unwrap();
    let listed = || {
        let mut list = command(&["override", "list", "--url", &format!("http://{}", cota.http)]);
        let output = list.arg("--token-file").arg(&kept).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let told = |text: &str| cota.log().matches(text).count();
    for (times, cause) in [(1, "there is no admin token in"), (2, "cause=\"No such file")] {
        match times {
            1 => fs::write(world.token(), "\n").unwrap(),
            _ => fs::remove_file(world.token()).unwrap(),
        }
        // Whoever gives no token does not make it look.
        for _ in 0..3 {
            assert_eq!(cota.get("/overrides").0, 401);
        }
        assert_eq!(told("the last admin token counts"), times - 1);
        for _ in 0..3 {
            listed();
        }
        assert_eq!(told("the last admin token counts"), times);
        assert_eq!(told(cause), 1, "{}", cota.log());
        fs::copy(&kept, world.token()).unwrap();
        listed();
        listed();
        assert_eq!(told("the admin token can be read again"), times);
    }
}

#[test]
fn lines_of_the_record_that_cannot_be_read_are_told_of_once_a_call_and_escaped() {
    let world = World::start(&[]);
    let odd = "{\"a\\n\\u001b[31mforged\":1}";
    for (event, id) in [("reset", ""), ("set", "r1"), ("set", "r2")] {
        let line = ["event", event, "id", id, "replaced", "", "body", odd];
        world
            .redis
            .ask(&[&["XADD", "c:{overrides}:audit", "*"][..], &line].concat());
    }
    let cota = &world.replicas[0];
    let warnings = |text: &str| {
        let log = cota.log();
        let lines = log.lines().filter(|l| l.contains("WARN") && l.contains(text));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the reset is told of", || {
        (!warnings("a reset on the record cannot be read").is_empty()).then_some(())
    });
    assert_eq!(world.told(0).len(), 3);
    let told = warnings("of the record cannot be read");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("lines=3"), "{told:?}");
    let log = cota.log();
    assert!(!log.contains('\u{1b}'), "{log}");
    assert!(
        !log.lines()
            .any(|line| line.contains("forged") && !line.contains("WARN")),
        "{log}"
    );
}

#[test]
fn a_user_with_few_rights_may_do_all_of_it() {
    let mut world = World::start(&[]);
    let rights = "ACL SETUSER cota on >secret ~c:* -@all +eval +evalsha +time +hmget +hget +hset +hdel +hlen \
                  +hgetall +hkeys +del +ttl +pttl +expire +expireat +hrandfield +xadd +xrange +xrevrange \
                  +zadd +zremrangebyscore +zcard";
    world
        .redis
        .ask(&rights.split_ascii_whitespace().collect::<Vec<_>>());
    world.add_at(&format!("redis://cota:secret@{}", world.redis.address()));
    let id = world.tenfold(2, "acme", "ana");
    assert!(matches!(world.spend(2, "acme"), Got::Allowed { limit: 30, .. }));
    world.ran(2, &["override", "revoke", &id, "--author", "ana"]);
    world.exhaust(2, "acme");
    assert!(world.reset(2, "acme").status.success());
    assert_eq!(world.spend(2, "acme"), Got::Allowed { limit: 3, left: 2 });
    assert_eq!(world.told(2).len(), 3);
    let readable: Value = serde_json::from_str(&world.replicas[2].get("/limits").1).unwrap();
    assert_eq!(readable["faults"], serde_json::json!([]));
}
