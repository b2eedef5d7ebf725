//! Real Redis servers on free ports of 127.0.0.1, each with a folder of its own, gone with the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use cota::clock::Stopwatch;
use redis::Value;
use tempfile::TempDir;

/// How long anything may take that should happen at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server. It keeps its port when it is stopped and started again, but no data.
pub(crate) struct Server {
    pub(crate) port: u16,
    options: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
    admin: Option<(String, String)>,
    skewed: bool,
}

impl Server {
    /// A server of its own, with these options beside the usual ones.
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut server = Self::absent(options);
        server.restart();
        server
    }

    /// A server whose clock can be set.
    pub(crate) fn skewed(options: &[&str]) -> Self {
        let mut server = Self::absent(options);
        let (library, clock) = (
            server.folder.path().join("skew.so"),
            server.folder.path().join("skew"),
        );
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/skew.c");
        // Whoever links Rust has it.
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([library.as_os_str(), source.as_ref()])
            .output()
            .expect("cc cannot be started: it comes with what Rust needs to link");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::fs::write(clock, [0; 8]).unwrap();
        server.skewed = true;
        server.restart();
        server
    }

    /// Sets its clock that many seconds off ours.
    pub(crate) fn skew(&self, seconds: i64) {
        assert!(self.skewed, "its clock is the machine's");
        // In place: the server looks at this very file.
        let clock = self.folder.path().join("skew");
        let mut clock = std::fs::File::options().write(true).open(clock).unwrap();
        clock.write_all(&seconds.to_ne_bytes()).unwrap();
    }

    /// A server that is yet to be started.
    pub(crate) fn absent(options: &[&str]) -> Self {
        // A cluster's nodes write all they learn to the disk and wait for it; in memory nobody has to.
        let folder = match Path::new("/dev/shm") {
            memory if memory.is_dir() => tempfile::tempdir_in(memory).unwrap(),
            _ => tempfile::tempdir().unwrap(),
        };
        Self {
            port: free_port(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            folder,
            child: None,
            admin: None,
            skewed: false,
        }
    }

    /// A sentinel that watches `master` under the name `budgets` and calls it gone after half a second.
    pub(crate) fn sentinel(master: &Self, quorum: usize) -> Self {
        let mut server = Self::absent(&[]);
        let text = format!(
            "port {}\ndir {}\nsentinel monitor budgets 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds budgets 500\nsentinel failover-timeout budgets 2000\n",
            server.port,
            server.folder.path().display(),
            master.port
        );
        let file = server.folder.path().join("sentinel.conf");
        std::fs::write(&file, text).unwrap();
        server.options = vec![file.display().to_string(), "--sentinel".to_owned()];
        server.restart();
        server
    }

    /// What the test's own commands say who they are.
    pub(crate) fn with_admin(mut self, user: &str, password: &str) -> Self {
        self.admin = Some((user.to_owned(), password.to_owned()));
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Starts it, on the port it had.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let mut command = Command::new("redis-server");
        if self.skewed {
            command.env("LD_PRELOAD", self.folder.path().join("skew.so"));
            command.env("SKEW", self.folder.path().join("skew"));
        }
        if !self.options.contains(&"--sentinel".to_owned()) {
            let port = self.port.to_string();
            command
                .args([
                    "--port",
                    &port,
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .args(["--dir", &self.folder.path().display().to_string()]);
        }
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let child = command
            .args(&self.options)
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn();
        self.child = Some(child.expect("redis-server cannot be started: run `make setup`"));
        let mut problem = String::new();
        await_that("the server answers", || {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                panic!("redis-server ended with {status}:\n{log}");
            }
            match self.try_ask(&["PING"]) {
                // Whatever it says, it is there.
                Ok(_) => true,
                Err(error) if error.is_io_error() => {
                    problem = error.to_string();
                    false
                }
                Err(_) => true,
            }
        });
    }

    /// Kills it without notice.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Stops it in its tracks: connections stay open, nothing is answered.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.child.as_ref().expect("it was started").id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// The answer to a command, which must not be an error.
    pub(crate) fn ask(&self, command: &[&str]) -> Value {
        self.try_ask(command)
            .unwrap_or_else(|error| panic!("{command:?} at {}: {error}", self.port))
    }

    /// The answer to a command that only reads: asked again when the connection is lost, since a server whose role
    /// changes may close every connection that it has.
    pub(crate) fn query(&self, command: &[&str]) -> Value {
        let watch = Stopwatch::start();
        loop {
            match self.try_ask(command) {
                Err(error) if error.is_io_error() && watch.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(5));
                }
                answer => {
                    return answer.unwrap_or_else(|error| panic!("{command:?} at {}: {error}", self.port));
                }
            }
        }
    }

    /// The same as text, for answers that are one.
    pub(crate) fn text(&self, command: &[&str]) -> String {
        redis::from_redis_value(self.query(command)).unwrap()
    }

    /// All keys with the milliseconds they have left; -1: no end.
    pub(crate) fn ttls(&self) -> Vec<(String, i64)> {
        let keys: Vec<String> = redis::from_redis_value(self.query(&["KEYS", "*"])).unwrap();
        let ttl = |key: &String| redis::from_redis_value(self.query(&["PTTL", key])).unwrap();
        let ttls = keys.iter().map(ttl);
        // -2: it ended meanwhile.
        let both = keys.iter().cloned().zip(ttls);
        both.filter(|(_, ttl)| *ttl != -2).collect()
    }

    pub(crate) fn try_ask(&self, command: &[&str]) -> redis::RedisResult<Value> {
        let login = match &self.admin {
            Some((user, password)) => format!("{user}:{password}@"),
            None => String::new(),
        };
        let client = redis::Client::open(format!("redis://{login}{}", self.address()))?;
        let mut connection = client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let mut cmd = redis::Cmd::new();
        for arg in command {
            cmd.arg(*arg);
        }
        cmd.query(&mut connection)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Six servers, three of them primaries with a replica each, that hold a failed primary for gone after a second.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let servers: Vec<_> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                Server::start(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-port",
                    &bus,
                    "--cluster-node-timeout",
                    "1000",
                    "--cluster-require-full-coverage",
                    "no",
                    "--repl-diskless-sync-delay",
                    "0",
                ])
            })
            .collect();
        let cluster = Self { servers };
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]);
        command.args(cluster.servers.iter().map(|server| server.address().to_string()));
        command.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let made = command
            .output()
            .expect("redis-cli cannot be started: run `make setup`");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        cluster.settle();
        cluster
    }

    /// Waits until every node that runs agrees that all slots are served, and each has a replica in step.
    pub(crate) fn settle(&self) {
        let replicated = |row: &Value| matches!(row, Value::Array(row) if row.len() == 4);
        await_that("the cluster is whole", || {
            self.servers.iter().all(|server| {
                let Value::Array(rows) = server.query(&["CLUSTER", "SLOTS"]) else {
                    return false;
                };
                let info = server.text(&["CLUSTER", "INFO"]);
                let replication = server.text(&["INFO", "replication"]);
                info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains("cluster_size:3")
                    && rows.iter().all(replicated)
                    && (replication.contains("master_link_status:up") || replication.contains("state=online"))
            })
        });
    }

    pub(crate) fn url(&self) -> String {
        format!(
            "redis-cluster://{},{}",
            self.servers[0].address(),
            self.servers[1].address()
        )
    }

    /// The server that serves a slot now and its first replica, in the eyes of `asked`.
    pub(crate) fn serving(&self, slot: u16, asked: usize) -> (usize, usize) {
        let nodes = self.row(slot, asked);
        (nodes[0], nodes[1])
    }

    /// The same without the replica, which may be missing.
    pub(crate) fn serving_of(&self, slot: u16, asked: usize) -> usize {
        self.row(slot, asked)[0]
    }

    /// A slot may be nobody's for a moment while another takes over.
    fn row(&self, slot: u16, asked: usize) -> Vec<usize> {
        let mut row = None;
        await_that("somebody serves the slot", || {
            row = self.row_now(slot, asked);
            row.is_some()
        });
        row.unwrap()
    }

    fn row_now(&self, slot: u16, asked: usize) -> Option<Vec<usize>> {
        let Value::Array(rows) = self.servers[asked].query(&["CLUSTER", "SLOTS"]) else {
            panic!("CLUSTER SLOTS answers with rows");
        };
        let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).unwrap();
        for row in rows {
            let Value::Array(row) = row else { continue };
            if (number(&row[0])..=number(&row[1])).contains(&slot) {
                let port = |node: &Value| match node {
                    Value::Array(node) => number(&node[1]),
                    other => panic!("{other:?}"),
                };
                let index = |port| {
                    self.servers
                        .iter()
                        .position(|server| server.port == port)
                        .unwrap()
                };
                return Some(row[2..].iter().map(port).map(index).collect());
            }
        }
        None
    }

    pub(crate) fn id(&self, server: usize) -> String {
        self.servers[server].text(&["CLUSTER", "MYID"])
    }
}

/// The slot of a key without braces, or of what stands in a key's braces.
pub(crate) fn slot(tag: &str) -> u16 {
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    });
    crc % 16_384
}

/// Polls until something holds; fails the test when it does not for too long.
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !holds() {
        assert!(watch.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A port that nobody else gets: below those that the system gives to whoever asks for any or connects
/// somewhere, since one of those may be somebody's by the time that it is bound, and never twice in this process.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    for _ in 0..1_000 {
        let port = fastrand::u16(10_000..32_000);
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
    panic!("no port is free");
}
