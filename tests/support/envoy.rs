//! The real Envoy before the real `cota`, with an upstream that answers with the request it got.
//!
//! An [`Edge`] is one such chain of its own, on free ports of 127.0.0.1, stopped when it is dropped. Envoy sends
//! for `/v1/read`, `/v1/search` and `/v1/export`, which need a token, the descriptors `[tenant]`, `[plan]`,
//! `[tenant, credential]` and `[tenant, route]` in the domain `edge`, and, without a token, for `/login`
//! `[remote_address]` and for `/by-key` `[api_key]`, a header. Before the token it sends `[remote_address]` in the domain `door`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tempfile::TempDir;

const TEMPLATE: &str = include_str!("envoy.yaml");
const ENVOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/envoy");
const SIGNING_KEY: &[u8] = b"only the tests sign with this key";

/// How a chain is set up, beside the policy.
pub(crate) struct Setup {
    /// Timeout of the filter of the domain `edge`; `None` is Envoy's default of 20 ms.
    pub(crate) timeout: Option<&'static str>,
    /// How many proxies before Envoy may write X-Forwarded-For.
    pub(crate) trusted_hops: u32,
}

/// A running chain: Envoy, `cota`, the upstream.
pub(crate) struct Edge {
    envoy: Process,
    cota: Process,
    http: SocketAddr,
    address: SocketAddr,
    agent: ureq::Agent,
    folder: TempDir,
}

/// A request on its way to Envoy.
pub(crate) struct Request<'a> {
    edge: &'a Edge,
    path: String,
    headers: Vec<(&'static str, Vec<u8>)>,
}

/// What the client got.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// Time as the client of a test sees it.
pub(crate) struct Stopwatch(Instant);

struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

// === impl Setup ===

impl Default for Setup {
    /// Patient, so that a busy machine fails no test, and behind one proxy: the test itself.
    fn default() -> Self {
        Self {
            timeout: Some("10s"),
            trusted_hops: 1,
        }
    }
}

// === impl Edge ===

impl Edge {
    /// Starts a chain with this policy file and the default set-up.
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_with(policy, Setup::default())
    }

    /// Starts a chain and waits until it answers.
    pub(crate) fn start_with(policy: &str, setup: Setup) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let policy_file = folder.path().join("policy.yaml");
        fs::write(&policy_file, policy).expect("the policy can be written");
        let access_log = folder.path().join("access.log");
        Self::launch(folder, &policy_file, "127.0.0.1", |cota, upstream| {
            TEMPLATE
                .replace("@TRUSTED_HOPS@", &setup.trusted_hops.to_string())
                .replace(
                    "@TIMEOUT@",
                    &setup.timeout.map(|t| format!("timeout: {t}")).unwrap_or_default(),
                )
                .replace("@ACCESS_LOG@", &access_log.display().to_string())
                .replace("@KEY@", &URL_SAFE_NO_PAD.encode(SIGNING_KEY))
                .replace("@COTA_PORT@", &cota.port().to_string())
                .replace("@UPSTREAM_PORT@", &upstream.port().to_string())
        })
    }

    /// Starts `cota` with the policy at a path, listening on an IP address, and the Envoy of the configuration that
    /// `configure` makes of their addresses; its listener `edge` is the one that is called.
    pub(crate) fn launch(
        folder: TempDir,
        policy: &Path,
        ip: &str,
        configure: impl FnOnce(SocketAddr, SocketAddr) -> String,
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cota"));
        command.arg("serve").arg("--config").arg(policy);
        let address = format!("{ip}:0");
        command.args(["--grpc-listen", &address, "--http-listen", &address]);
        Self::launch_as(folder, command, configure)
    }

    /// The same with that command for `cota`.
    pub(crate) fn launch_as(
        folder: TempDir,
        command: Command,
        configure: impl FnOnce(SocketAddr, SocketAddr) -> String,
    ) -> Self {
        assert!(
            Path::new(ENVOY).exists(),
            "no Envoy at .venv/bin/envoy: run `make setup`"
        );
        let agent = agent();

        let mut cota = Process::spawn("cota", folder.path(), command);
        let listening = cota.await_that(|cota| {
            let log = fs::read_to_string(&cota.log).ok()?;
            let line = log.lines().find(|line| line.contains("listening grpc="))?;
            Some((field(line, "grpc=")?, field(line, "http=")?))
        });
        let (grpc, http) = listening;
        cota.await_that(|_| {
            (agent.get(format!("http://{http}/readyz")).call().ok()?.status() == 200).then_some(())
        });

        let config_file = folder.path().join("envoy.yaml");
        fs::write(&config_file, configure(grpc, start_upstream()))
            .expect("Envoy's configuration can be written");
        let admin_file = folder.path().join("admin");
        let mut envoy = Process::spawn("envoy", folder.path(), {
            let mut command = Command::new(ENVOY);
            command
                .arg("--config-path")
                .arg(&config_file)
                .arg("--admin-address-path")
                .arg(&admin_file);
            command.args([
                "--concurrency",
                "1",
                "--use-dynamic-base-id",
                "--disable-hot-restart",
            ]);
            command.args(["--log-level", "warning", "--file-flush-interval-msec", "50"]);
            command
        });
        let address = envoy.await_that(|_| {
            let admin = fs::read_to_string(&admin_file).ok()?;
            if agent.get(format!("http://{admin}/ready")).call().ok()?.status() != 200 {
                return None;
            }
            let mut listeners = agent
                .get(format!("http://{admin}/listeners?format=json"))
                .call()
                .ok()?;
            let listeners: Value = serde_json::from_str(&listeners.body_mut().read_to_string().ok()?).ok()?;
            let edge = listeners["listener_statuses"]
                .as_array()?
                .iter()
                .find(|listener| listener["name"] == "edge")?;
            let port = edge["local_address"]["socket_address"]["port_value"].as_u64()?;
            Some(SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).ok()?)))
        });
        Self {
            envoy,
            cota,
            http,
            address,
            agent,
            folder,
        }
    }

    /// Where its `cota` answers over HTTP.
    pub(crate) fn cota_http(&self) -> SocketAddr {
        self.http
    }

    /// The keys of the issuer whose tokens [`Request::claims`] brings.
    pub(crate) fn jwks() -> String {
        json!({"keys": [{"kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(SIGNING_KEY)}]})
            .to_string()
    }

    /// A GET of this path; nothing is sent before [`Request::send`].
    pub(crate) fn get(&self, path: impl Into<String>) -> Request<'_> {
        Request {
            edge: self,
            path: path.into(),
            headers: Vec::new(),
        }
    }

    /// A GET of `/v1/read` by this credential of this tenant, which is on the plan `free`.
    pub(crate) fn read(&self, tenant: &str, credential: &str) -> Answer {
        self.get("/v1/read")
            .claims(json!({"tenant": tenant, "plan": "free", "credential": credential}))
            .send()
    }

    /// Envoy's access-log entry of the request for this path (with its query), once it is written.
    pub(crate) fn logged(&mut self, path: &str) -> Value {
        let log = self.folder.path().join("access.log");
        self.envoy.await_that(|_| {
            let text = fs::read_to_string(&log).ok()?;
            text.lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .find(|entry| entry["path"] == path)
        })
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}\n{}", self.envoy.story(), self.cota.story());
        }
    }
}

// === impl Request ===

impl Request<'_> {
    /// With a token that the issuer signed for these claims.
    pub(crate) fn claims(self, claims: Value) -> Self {
        let token = token(claims, SIGNING_KEY);
        self.header("authorization", format!("Bearer {token}"))
    }

    /// With a token for these claims that somebody else signed.
    pub(crate) fn forged_claims(self, claims: Value) -> Self {
        let token = token(claims, b"a key that the issuer does not know");
        self.header("authorization", format!("Bearer {token}"))
    }

    /// As the proxy before Envoy passes it on; the last address is the one the proxy saw.
    pub(crate) fn forwarded_for(self, addresses: impl Into<Vec<u8>>) -> Self {
        self.header("x-forwarded-for", addresses)
    }

    /// One more header line, beside those of the same name.
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sends it and waits for the answer.
    pub(crate) fn send(self) -> Answer {
        let mut request = self
            .edge
            .agent
            .get(format!("http://{}{}", self.edge.address, self.path));
        for (name, value) in &self.headers {
            request = request.header(*name, value.as_slice());
        }
        let mut response = request.call().expect("Envoy answers");
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| {
                (
                    name.to_string(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect();
        let status = response.status().as_u16();
        Answer {
            status,
            headers,
            body: response.body_mut().read_to_string().expect("the body is text"),
        }
    }
}

// === impl Answer ===

impl Answer {
    /// The values of all header lines of this name.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers
            .iter()
            .filter(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The value of the one header line of this name; `None` without it.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} came {} times in {self:?}", all.len());
        all.first().copied()
    }

    /// The header as a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.header(name).map(|value| {
            value
                .parse()
                .unwrap_or_else(|_| panic!("{name}: {value} is no number"))
        })
    }

    /// The body of a refusal.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The limit that refused; `None` when the request passed.
    pub(crate) fn scope(&self) -> Option<String> {
        match self.status {
            200 => None,
            429 => Some(
                self.json()["scope"]
                    .as_str()
                    .expect("a refusal names its scope")
                    .to_owned(),
            ),
            _ => panic!("neither passed nor refused: {self:?}"),
        }
    }

    /// The values of a request header as the upstream saw it.
    pub(crate) fn upstream_saw(&self, name: &str) -> Vec<&str> {
        assert_eq!(self.status, 200, "the upstream saw nothing of {self:?}");
        let lines = self.body.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(n, _)| *n == name)
            .map(|(_, value)| value)
            .collect()
    }
}

// === impl Stopwatch ===

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "what a client sees is measured from outside of cota"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

// === impl Process ===

impl Process {
    fn spawn(name: &'static str, folder: &Path, mut command: Command) -> Self {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log).expect("a log can be made");
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        Self { name, child, log }
    }

    /// Polls until there is something, for at most 30 seconds and while the process lives.
    fn await_that<T>(&mut self, mut probe: impl FnMut(&Self) -> Option<T>) -> T {
        let started = Stopwatch::start();
        loop {
            if let Some(found) = probe(self) {
                return found;
            }
            let ended = self.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "ended with {ended:?}: {}", self.story());
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "waited in vain: {}",
                self.story()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The end of its log.
    fn story(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "--- {}\n{}",
            self.name,
            lines[lines.len().saturating_sub(30)..].join("\n")
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killed, not asked: how `cota` ends by itself is the matter of other tests.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder();
    config
        .http_status_as_error(false)
        .proxy(None)
        .timeout_global(Some(Duration::from_secs(30)))
        .build()
        .into()
}

fn field(line: &str, name: &str) -> Option<SocketAddr> {
    line.split_once(name)?.1.split_whitespace().next()?.parse().ok()
}

fn token(mut claims: Value, key: &[u8]) -> String {
    claims["iss"] = json!("test");
    claims["exp"] = json!(4_102_444_800_u64); // the year 2100
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "HS256", "typ": "JWT"})),
        part(&claims)
    );
    let signature = hmac_sha256::HMAC::mac(&signed, key);
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// An HTTP/1.1 server whose body is the head of the request; it ends with the test process.
fn start_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Envoy closing a connection is the ordinary end of one.
            thread::spawn(move || echo(stream).ok());
        }
    });
    address
}

fn echo(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if reader.read_until(b'\n', &mut head)? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&head);
        let length = head.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{head}");
        writer.write_all(answer.as_bytes())?;
    }
}
