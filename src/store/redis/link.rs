//! One connection to a server, from dialing to its end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, Value, cmd};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::breaker::Breaker;
use super::error::{Kind, Reply, shown};
use super::target::{Address, Credentials, Target};
use super::tls::{BadTls, TlsFiles};
use crate::gather::Gathering;

/// For a connection to be made, and for a made one to say its first word. Together with the pause between
/// attempts they stay below the second in which a server that is back must be served by.
const CONNECT: Duration = Duration::from_millis(250);
const GREET: Duration = Duration::from_millis(500);

/// How many calls may be under way on a node.
pub(super) const IN_FLIGHT: usize = 4_096;

/// Makes connections.
pub(super) struct Dialer {
    target: Target,
    tls: TlsFiles,
}

/// Why no connection came about.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) text: Box<str>,
    /// The server is there, but does not let us; asking it often helps nobody.
    pub(super) denied: bool,
}

/// A connection.
pub(super) struct Link {
    connection: MultiplexedConnection,
    state: Arc<State>,
    driver: AbortHandle,
    pub(super) breaker: Breaker,
}

#[derive(Default)]
struct State {
    ended: AtomicBool,
    end: Notify,
}

// === impl Dialer ===

impl Dialer {
    pub(super) fn new(target: Target, tls: TlsFiles) -> Result<Self, BadTls> {
        if target.tls {
            tls.read()?;
        }
        Ok(Self { target, tls })
    }

    /// A connection to a node that keeps budgets, known by its answer to be alive.
    pub(super) async fn node(&self, address: &Address) -> Result<Link, Trouble> {
        let link = self.open(address).await?;
        let greeting = async {
            if let Some(credentials) = self.target.credentials() {
                link.authenticate(&credentials).await?;
            }
            if self.target.db() != 0 {
                link.expect(cmd("SELECT").arg(self.target.db())).await?;
            }
            // Any answer but that it is not ready, or does not know us, is one: PING may be forbidden.
            match link.send(&cmd("PING")).await {
                Ok(Reply::Error(Kind::Loading, text)) => Err(Trouble::new(text)),
                Ok(Reply::Error(Kind::Denied, text)) if text.starts_with("NOAUTH") => {
                    Err(Trouble::denied(text))
                }
                Ok(Reply::Error(_, text)) if text.contains("max number of clients") => {
                    Err(Trouble::new(text))
                }
                Ok(_) => Ok(()),
                Err(trouble) => Err(trouble),
            }
        };
        match timeout(GREET, greeting).await {
            Ok(greeted) => greeted?,
            Err(_) => return Err(Trouble::new("connected, but no answer")),
        }
        Ok(link)
    }

    /// A connection to a sentinel. It may want the same credentials, or none.
    pub(super) async fn sentinel(&self, address: &Address) -> Result<Link, Trouble> {
        let link = self.open(address).await?;
        if let Some(credentials) = self.target.credentials() {
            // What it thinks of them shows in its next answer.
            let _ = timeout(GREET, link.authenticate(&credentials)).await;
        }
        Ok(link)
    }

    async fn open(&self, address: &Address) -> Result<Link, Trouble> {
        let connecting = async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(stream)
        };
        let stream = timeout(CONNECT, connecting)
            .await
            .map_err(|_| Trouble::new("no connection in time"))?
            .map_err(Trouble::new)?;
        if !self.target.tls {
            return Link::over(stream).await;
        }
        let config = self.tls.read().map_err(Trouble::new)?;
        let name = ServerName::try_from(address.host.clone()).map_err(Trouble::new)?;
        let shaking = TlsConnector::from(config).connect(name, stream);
        let stream = timeout(GREET, shaking)
            .await
            .map_err(|_| Trouble::new("no TLS handshake in time"))?
            .map_err(|problem| Trouble::new(format!("TLS: {problem}")))?;
        Link::over(stream).await
    }
}

// === impl Trouble ===

impl Trouble {
    pub(super) fn new(text: impl ToString) -> Self {
        Self {
            text: shown(&text.to_string(), ""),
            denied: false,
        }
    }

    /// The same, and whose it is.
    pub(super) fn of(self, address: &Address) -> Self {
        Self {
            text: shown(&format!("{address}: {}", self.text), ""),
            ..self
        }
    }

    fn denied(text: impl ToString) -> Self {
        Self {
            denied: true,
            ..Self::new(text)
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === impl Link ===

impl Link {
    /// Nothing is said on the connection: no HELLO, no CLIENT. Proxies hang up on what they do not know.
    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, Trouble> {
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(IN_FLIGHT);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&silent, Gathering::new(stream), config)
                .await
                .map_err(Trouble::new)?;
        let state = Arc::<State>::default();
        let ending = Arc::clone(&state);
        let driver = tokio::spawn(async move {
            driver.await;
            ending.ended.store(true, Ordering::Release);
            ending.end.notify_one();
        });
        Ok(Self {
            connection,
            state,
            driver: driver.abort_handle(),
            breaker: Breaker::default(),
        })
    }

    /// Whether the connection is known to have ended.
    pub(super) fn ended(&self) -> bool {
        self.state.ended.load(Ordering::Acquire)
    }

    /// Waits until it ends.
    pub(super) async fn end(&self) {
        while !self.ended() {
            self.state.end.notified().await;
        }
    }

    /// Sends a command and waits for its answer, however long that takes.
    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Reply, Trouble> {
        let answer = self.connection.clone().send_packed_command(cmd).await;
        answer.map(Reply::read).map_err(Trouble::new)
    }

    /// The same for a slot that is being brought here.
    pub(super) async fn send_asking(&self, cmd: &Cmd) -> Result<Reply, Trouble> {
        let mut pipe = redis::Pipeline::with_capacity(2);
        pipe.cmd("ASKING").add_command(cmd.clone());
        let answers = self.connection.clone().send_packed_commands(&pipe, 1, 1).await;
        let last = |mut answers: Vec<Value>| Reply::read(answers.pop().unwrap_or_default());
        answers.map(last).map_err(Trouble::new)
    }

    /// Ends it. Whoever still waits for an answer learns at once that none will come.
    pub(super) fn retire(&self) {
        self.driver.abort();
        self.state.ended.store(true, Ordering::Release);
        self.state.end.notify_one();
    }

    async fn expect(&self, cmd: &Cmd) -> Result<(), Trouble> {
        match self.send(cmd).await? {
            Reply::Error(Kind::Denied, text) => Err(Trouble::denied(text)),
            Reply::Error(_, text) => Err(Trouble::new(text)),
            _ => Ok(()),
        }
    }

    async fn authenticate(&self, credentials: &Credentials) -> Result<(), Trouble> {
        let mut auth = cmd("AUTH");
        if let Some(user) = &credentials.user {
            auth.arg(user);
        }
        auth.arg(&credentials.password);
        match self.send(&auth).await? {
            // A server that wants no password lets everybody in.
            Reply::Error(_, text) if text.contains("without any password configured") => Ok(()),
            Reply::Error(_, text) => Err(Trouble::denied(text)),
            _ => Ok(()),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.retire();
    }
}
