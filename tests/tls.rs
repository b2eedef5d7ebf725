//! TLS on both ports: who may call, what a wrong caller is told, and certificates that change under load.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use cota::tls::{ClientName, Files};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio_rustls::rustls::HandshakeKind;
use tokio_rustls::rustls::version::{TLS12, TLS13};

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;
mod support;

use cota_process::{Cota, command, eventually, policy_file, request};
use support::caller::{Caller, call};
use support::certificates::Authority;

const POLICY: &str = "
domain: api
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 1000000}
";

const GATEWAY: &str = "spiffe://cluster.local/ns/edge/sa/gateway";

/// A service with certificates, and the authority that they and its callers' come from.
struct Secured {
    cota: Cota,
    ours: Authority,
    _folder: TempDir,
}

impl Secured {
    /// Over TLS, with these arguments beside the certificate.
    fn start(arguments: &[&str]) -> Self {
        let ours = Authority::new();
        let (cert, key) = ours.issue("server", "localhost");
        Self::with(ours, &cert, &key, arguments)
    }

    /// Callers need a certificate of the authority, and one of these names.
    fn mutual(names: &[&str]) -> Self {
        let ours = Authority::new();
        let ca = ours.path("ca.pem").display().to_string();
        let (cert, key) = ours.issue("server", "localhost");
        let names: Vec<String> = names
            .iter()
            .map(|name| format!("--tls-client-names={name}"))
            .collect();
        let mut arguments = vec!["--tls-client-ca", &ca];
        arguments.extend(names.iter().map(String::as_str));
        Self::with(ours, &cert, &key, &arguments)
    }

    fn with(ours: Authority, cert: &Path, key: &Path, arguments: &[&str]) -> Self {
        let (folder, policy) = policy_file(POLICY);
        let mut serve = command(&["serve", "--drain", "0s", "--config"]);
        serve
            .arg(&policy)
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        let cota = Cota::start(serve.args(arguments));
        Self {
            cota,
            ours,
            _folder: folder,
        }
    }

    fn caller(&self, shows: Option<&(PathBuf, PathBuf)>) -> Caller {
        Caller::new(self.cota.grpc, &self.ours.path("ca.pem"), shows)
    }

    /// The warnings with that text, of which there must be one in the end.
    fn told(&self, text: &str) -> String {
        told(&self.cota, text)
    }
}

/// The warning with that text: it comes, and comes once.
fn told(cota: &Cota, text: &str) -> String {
    let lines = eventually(&format!("a line about {text}"), || {
        let log = cota.log();
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains(text))
            .map(str::to_owned)
            .collect();
        (!lines.is_empty()).then_some(lines)
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN"), "{lines:?}");
    assert!(lines[0].contains("peer=\"127.0.0.1:"), "{lines:?}");
    lines.into_iter().next().unwrap()
}

/// Runs what is asynchronous of a test.
fn wait<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    RUNTIME.block_on(future)
}

/// What a caller hears who says that on a connection.
async fn says(caller: &Caller, text: &[u8]) -> std::io::Result<String> {
    let mut stream = caller.connect().await?;
    stream.write_all(text).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn ask() -> cota::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest {
    request("api", &[&[("tenant", "acme")]])
}

#[test]
fn calls_are_answered_over_tls_of_both_versions() {
    let secured = Secured::start(&[]);
    for version in [&TLS12, &TLS13] {
        let ca = secured.ours.path("ca.pem");
        let caller = Caller::speaking(secured.cota.grpc, &ca, None, &[b"h2"], &[version]);
        let stream = wait(caller.connect()).unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        assert!(wait(caller.call(ask())).is_ok());
    }
    // Some clients name no protocol.
    let mute = Caller::speaking(
        secured.cota.grpc,
        &secured.ours.path("ca.pem"),
        None,
        &[],
        &[&TLS13],
    );
    assert!(wait(mute.call(ask())).is_ok());
    // The HTTP port is as it was.
    assert_eq!(secured.cota.get("/livez").0, 200);
    assert!(!secured.cota.log().contains("WARN"), "{}", secured.cota.log());
}

#[test]
fn a_caller_whose_name_is_on_the_list_is_answered() {
    let secured = Secured::mutual(&["*.edge.example", GATEWAY, "localhost"]);
    for (file, (cert, key)) in [
        ("below", secured.ours.sign("a.edge.example", &[])),
        (
            "uri",
            secured
                .ours
                .sign("elsewhere.example", &["spiffe://other/x", GATEWAY]),
        ),
        ("exact", secured.ours.sign("localhost", &[])),
    ] {
        let files = (secured.ours.path(file), secured.ours.path(&format!("{file}.key")));
        fs::write(&files.0, cert).unwrap();
        fs::write(&files.1, key).unwrap();
        let answer = wait(secured.caller(Some(&files)).call(ask()));
        assert!(answer.is_ok(), "{file}: {answer:?}");
    }
}

#[test]
fn a_caller_without_a_certificate_is_refused_and_told_of_once() {
    let secured = Secured::mutual(&[]);
    for version in [&TLS12, &TLS13] {
        let ca = secured.ours.path("ca.pem");
        let caller = Caller::speaking(secured.cota.grpc, &ca, None, &[b"h2"], &[version]);
        assert!(wait(caller.call(ask())).is_err());
    }
    let line = secured.told("without a client certificate");
    assert!(line.contains("tls_certificates"), "{line}");
    let mine = secured.ours.issue("client", "any.example");
    assert!(
        wait(secured.caller(Some(&mine)).call(ask())).is_ok(),
        "any name will do"
    );
}

/// A resumed session would not show a certificate again: one that was taken off the list, or whose authority was, would
/// go on.
#[test]
fn a_caller_that_comes_again_shows_its_certificate_again() {
    let secured = Secured::mutual(&["localhost"]);
    let mine = secured.ours.issue("client", "localhost");
    for version in [&TLS12, &TLS13] {
        let ca = secured.ours.path("ca.pem");
        let caller = Caller::speaking(secured.cota.grpc, &ca, Some(&mine), &[b"h2"], &[version]);
        for _ in 0..2 {
            // With the answer comes what a session could be resumed with.
            wait(caller.call(ask())).unwrap();
            let stream = wait(caller.connect()).unwrap();
            assert_eq!(
                stream.get_ref().1.handshake_kind(),
                Some(HandshakeKind::Full),
                "{version:?}"
            );
        }
    }
}

#[test]
fn a_caller_of_another_authority_is_refused_and_told_of_once() {
    let secured = Secured::mutual(&[]);
    let theirs = Authority::new();
    let certificate = theirs.issue("client", "localhost");
    for _ in 0..2 {
        assert!(wait(secured.caller(Some(&certificate)).call(ask())).is_err());
    }
    let line = secured.told("an authority that --tls-client-ca does not have");
    assert!(line.contains("UnknownIssuer"), "{line}");
}

#[test]
fn a_caller_whose_name_is_not_on_the_list_is_refused_and_named() {
    let secured = Secured::mutual(&[GATEWAY]);
    let other = secured
        .ours
        .issue_to("other", &["spiffe://cluster.local/ns/jobs/sa/batch"]);
    for _ in 0..2 {
        assert!(wait(secured.caller(Some(&other)).call(ask())).is_err());
    }
    let line = secured.told("no name that --tls-client-names has");
    assert!(
        line.contains("names=\"localhost spiffe://cluster.local/ns/jobs/sa/batch\""),
        "{line}"
    );
}

#[test]
fn a_name_of_a_certificate_is_shown_escaped_and_cut() {
    let secured = Secured::mutual(&[GATEWAY]);
    let evil = format!("spiffe://x/\n\u{1b}[31mERROR forged {}", "x".repeat(5_000));
    let evil = secured.ours.issue_to("evil", &[&evil]);
    assert!(wait(secured.caller(Some(&evil)).call(ask())).is_err());
    let line = secured.told("no name that --tls-client-names has");
    assert!(line.len() < 600, "{line}");
    assert!(line.contains("xxx~"), "{line}");
    assert!(!secured.cota.log().contains('\u{1b}'));
    assert!(!secured.cota.log().lines().any(|line| line.starts_with("ERROR")));
}

#[test]
fn plain_text_on_a_port_for_tls_is_told_of() {
    let secured = Secured::start(&[]);
    for _ in 0..2 {
        assert!(secured.cota.send(ask()).is_err());
    }
    let line = secured.told("plain text on the gRPC port, which is for TLS");
    assert!(line.contains("transport_socket"), "{line}");
}

#[test]
fn a_caller_who_does_not_trust_us_is_told_of() {
    let secured = Secured::start(&[]);
    let other = Authority::new();
    let caller = Caller::new(secured.cota.grpc, &other.path("ca.pem"), None);
    assert!(wait(caller.call(ask())).is_err());
    let line = secured.told("does not accept our certificate");
    assert!(line.contains("UnknownCA"), "{line}");
}

#[test]
fn http1_over_tls_is_told_of() {
    for protocols in [&[&b"http/1.1"[..]][..], &[]] {
        let secured = Secured::start(&[]);
        let ca = secured.ours.path("ca.pem");
        let caller = Caller::speaking(secured.cota.grpc, &ca, None, protocols, &[&TLS13]);
        // With the protocol named the handshake fails; without, the connection ends.
        let _ = wait(says(&caller, b"POST /x HTTP/1.1\r\nhost: x\r\n\r\n"));
        let line = secured.told("HTTP/1.1 on the gRPC port");
        assert!(line.contains("http2_protocol_options"), "{line}");
    }
}

#[test]
fn http1_and_tls_on_a_plain_port_are_ended_at_once_and_told_of() {
    let (_folder, policy) = policy_file(POLICY);
    let cota = Cota::serve(&policy);
    let hello = [0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    for (sent, text, remedy) in [
        (
            &b"POST /x HTTP/1.1\r\nhost: x\r\n\r\n"[..],
            "HTTP/1.1 on the gRPC port",
            "http2_protocol_options",
        ),
        (
            &hello[..],
            "TLS on the gRPC port, which is plain text",
            "transport_socket",
        ),
        (&b"\0\0\0"[..], "for gRPC only", "neither HTTP/2"),
    ] {
        for _ in 0..2 {
            ends(cota.grpc, sent);
        }
        let line = told(&cota, text);
        assert!(line.contains(remedy), "{line}");
    }
    // The rest is as it was.
    assert!(cota.ask("api", "tenant", "acme").is_ok());
}

/// Sends that, and waits for the end of the connection.
fn ends(address: SocketAddr, sent: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(sent).unwrap();
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn the_http_port_takes_tls_without_asking_for_a_certificate() {
    let ours = Authority::new();
    let ca = ours.path("ca.pem").display().to_string();
    let (cert, key) = ours.issue("server", "localhost");
    let secured = Secured::with(ours, &cert, &key, &["--http-tls", "--tls-client-ca", &ca]);
    let ca = secured.ours.path("ca.pem");
    let probe = Caller::speaking(secured.cota.http, &ca, None, &[b"http/1.1"], &[&TLS13]);
    let get = b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = wait(says(&probe, get)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    ends(secured.cota.http, b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n");
}

/// Files as Kubernetes mounts a secret: links through a link to a folder, which a change replaces.
struct Mount(TempDir);

impl Mount {
    fn new(pair: &(String, String)) -> Self {
        let mount = Self(tempfile::tempdir().unwrap());
        mount.swap("first", pair);
        for name in ["tls.crt", "tls.key"] {
            symlink(format!("..data/{name}"), mount.path(name)).unwrap();
        }
        mount
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn swap(&self, version: &str, (certificate, key): &(String, String)) {
        let folder = self.path(&format!("..{version}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("tls.crt"), certificate).unwrap();
        fs::write(folder.join("tls.key"), key).unwrap();
        symlink(&folder, self.path("..data_tmp")).unwrap();
        fs::rename(self.path("..data_tmp"), self.path("..data")).unwrap();
    }
}

#[test]
fn certificates_change_under_load_without_a_failed_call() {
    let ours = Authority::new();
    let mount = Mount::new(&ours.sign("localhost", &[]));
    let client = ours.issue("client", "edge.example");
    let ca = ours.path("ca.pem").display().to_string();
    let (cert, key) = (mount.path("tls.crt"), mount.path("tls.key"));
    let secured = Secured::with(ours, &cert, &key, &["--tls-client-ca", &ca]);
    let caller = secured.caller(Some(&client));
    let before = wait(caller.is_shown());

    let steady = secured.caller(Some(&client));
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicUsize::new(0));
    wait(async {
        let load = |channel: Option<tonic::transport::Channel>| {
            let (caller, stop, calls) = (caller.clone(), Arc::clone(&stop), Arc::clone(&calls));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let channel = channel.clone().unwrap_or_else(|| caller.channel());
                    call(channel, ask()).await.unwrap();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let channel = steady.channel();
        call(channel.clone(), ask()).await.unwrap();
        let load = [
            load(Some(channel.clone())),
            load(Some(channel)),
            load(None),
            load(None),
        ];

        for version in ["second", "third"] {
            let old = caller.is_shown().await;
            mount.swap(version, &secured.ours.sign("localhost", &[]));
            while caller.is_shown().await == old {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        assert_ne!(caller.is_shown().await, before);
        let so_far = calls.load(Ordering::Relaxed);
        while calls.load(Ordering::Relaxed) < so_far + 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for task in load {
            task.await.unwrap();
        }
    });
    assert_eq!(steady.connections(), 1, "no connection was dropped");
    assert_eq!(secured.cota.log().matches("certificates read again").count(), 2);
}

/// Envoy gives up after 20 ms, and a machine may stall for ten times that. h2 takes more than twenty calls that were
/// given up before it saw them for an attack, unless it is told otherwise, and ends the connection with all that is on it.
#[test]
fn calls_given_up_while_the_service_stalls_do_not_cost_the_connection() {
    let secured = Secured::start(&[]);
    let caller = secured.caller(None);
    wait(async {
        let channel = caller.channel();
        call(channel.clone(), ask()).await.unwrap();
        secured.cota.signal("STOP");
        let calls = (0..300).map(|_| {
            let call = call(channel.clone(), ask());
            tokio::spawn(tokio::time::timeout(Duration::from_millis(20), call))
        });
        for given_up in calls.collect::<Vec<_>>() {
            assert!(given_up.await.unwrap().is_err());
        }
        secured.cota.signal("CONT");
        call(channel, ask()).await.unwrap();
    });
    assert_eq!(caller.connections(), 1);
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_used_is_told_of_once_and_changes_nothing() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false);
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    let errors = || {
        String::from_utf8(log.0.lock().unwrap().clone())
            .unwrap()
            .matches("ERROR")
            .count()
    };

    let ours = Authority::new();
    let (cert, key) = ours.issue("server", "localhost");
    let files = Files {
        cert: cert.clone(),
        key: key.clone(),
        client_ca: Some(ours.path("ca.pem")),
        client_names: vec!["*.edge.example".parse::<ClientName>().unwrap()],
    };
    let (tls, watch) = files.read().await.unwrap();
    tokio::spawn(watch.follow());
    let in_force = || Arc::clone(tls.grpc().config());
    let first = in_force();
    let good = fs::read(&key).unwrap();
    let ca = fs::read(ours.path("ca.pem")).unwrap();

    let other = ours.sign("localhost", &[]).1;
    let broken: [(&Path, Option<&str>); 4] = [
        (&key, Some(&other)),
        (&cert, Some("")),
        (&key, None),
        (
            &ours.path("ca.pem"),
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ),
    ];
    let mut wanted = 0;
    for (path, text) in broken {
        let before = fs::read(path).unwrap();
        match text {
            Some(text) => fs::write(path, text).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        wanted += 1;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(
            errors(),
            wanted,
            "{path:?} {text:?}: {:?}",
            String::from_utf8(log.0.lock().unwrap().clone())
        );
        fs::write(path, before).unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(
        (fs::read(&key).unwrap(), fs::read(ours.path("ca.pem")).unwrap()),
        (good, ca)
    );

    let settled = in_force();
    assert!(
        !Arc::ptr_eq(&first, &settled),
        "what was mended is in force again"
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(Arc::ptr_eq(&settled, &in_force()), "nothing changed");
    ours.issue("server", "localhost");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!Arc::ptr_eq(&settled, &in_force()), "seen within ten seconds");
    assert_eq!(errors(), wanted);
}

#[test]
fn a_start_with_certificates_that_cannot_be_used_fails_with_one_line() {
    let ours = Authority::new();
    let (_folder, policy) = policy_file(POLICY);
    let (cert, key) = ours.issue("server", "localhost");
    let (_, other) = ours.issue("other", "localhost");
    let text = |path: &Path| path.display().to_string();
    let (cert, key, other, absent) = (text(&cert), text(&key), text(&other), text(&ours.path("absent")));
    for (arguments, code, says) in [
        (
            vec!["--tls-cert", &cert, "--tls-key", &other],
            1,
            "the certificates cannot be used",
        ),
        (
            vec!["--tls-cert", &absent, "--tls-key", &key],
            1,
            "absent: No such file",
        ),
        (
            vec!["--tls-cert", &key, "--tls-key", &key],
            1,
            "no certificate in it",
        ),
        (vec!["--tls-cert", &cert], 2, "--tls-key"),
        (vec!["--http-tls"], 1, "--http-tls needs --tls-cert"),
        (
            vec!["--tls-cert", &cert, "--tls-key", &key, "--tls-client-names", "x"],
            2,
            "--tls-client-ca",
        ),
        (
            vec![
                "--tls-cert",
                &cert,
                "--tls-key",
                &key,
                "--tls-client-ca",
                &cert,
                "--tls-client-names",
                "a.*",
            ],
            2,
            "expected a DNS name",
        ),
    ] {
        let mut serve = command(&[
            "serve",
            "--grpc-listen=127.0.0.1:0",
            "--http-listen=127.0.0.1:0",
            "--config",
        ]);
        let ended = serve.arg(&policy).args(&arguments).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}
