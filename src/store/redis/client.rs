//! Calls on whichever server serves their key.
//!
//! A call has one limit of time, whatever happens meanwhile: connecting, redirections, the script's body. It is
//! sent again only where the server said that it did nothing: a charge whose fate is unknown stays unknown.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Script, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::error::{CallError, Kind, Reply};
use super::link::Dialer;
use super::node::{ShardId, ShardState, Trail};
use super::target::Target;
use super::tls::{BadTls, TlsFiles};
use super::topology::Servers;

/// How often a call is sent on before it is given up: a redirection, one more, the script's body, the rest.
const SENDS: usize = 5;

/// A client of the store; clones share all.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Arc<Servers>,
    task: AbortHandle,
    body: &'static str,
    hash: String,
}

/// What is asked.
enum Request<'a> {
    /// The script on a key.
    Script { key: &'a [u8], args: &'a [&'a [u8]] },
    /// A command that concerns a key.
    Command(&'a Cmd),
}

impl Client {
    /// A client that runs `script`. It connects in the background, on the runtime in which this is called, and
    /// goes on trying as long as it exists; while nothing is reachable, calls fail.
    ///
    /// # Errors
    /// When the files for TLS cannot be used.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(target: Target, tls: TlsFiles, script: &'static str) -> Result<Self, BadTls> {
        let dialer = Dialer::new(target.clone(), tls)?;
        let runtime = Handle::current();
        let servers = Arc::new(Servers::new(target, dialer, runtime.clone()));
        let task = runtime.spawn(Arc::clone(&servers).keep()).abort_handle();
        Ok(Self {
            inner: Arc::new(Inner {
                servers,
                task,
                body: script,
                hash: Script::new(script).get_hash().to_owned(),
            }),
        })
    }

    /// Runs the script on one key, at most once.
    ///
    /// # Errors
    /// When no answer came before `within` had passed, or the answer was an error.
    pub async fn call(&self, key: &[u8], args: &[&[u8]], within: Duration) -> Result<Value, CallError> {
        self.ask(key, &Request::Script { key, args }, within).await
    }

    /// Runs a command that concerns the key, at most once.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn command(&self, key: &[u8], command: &Cmd, within: Duration) -> Result<Value, CallError> {
        self.ask(key, &Request::Command(command), within).await
    }

    /// The shard that serves a key, as far as is known.
    pub fn shard(&self, key: &[u8]) -> ShardId {
        self.inner.servers.shard(key)
    }

    /// The shards that serve keys now. Before any is known, one that stands for all.
    pub fn shards(&self) -> Vec<ShardState> {
        let nodes = self.inner.servers.nodes();
        if nodes.is_empty() {
            return vec![self.inner.servers.unknown()];
        }
        nodes.iter().map(|node| node.state()).collect()
    }

    /// Whether keys are spread over slots.
    pub fn is_cluster(&self) -> bool {
        self.inner.servers.is_cluster()
    }

    /// Asks a shard something on a connection of its own, in the time that a reconnect takes. No answer, or an
    /// error, is `None`.
    pub async fn aside(&self, shard: ShardId, command: &Cmd) -> Option<Value> {
        self.inner.servers.aside(shard, command).await
    }

    /// Changes whenever the health of a shard does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.servers.events.changes.subscribe()
    }

    /// The error of an answer that is not what was asked for: another script, or no script at all.
    pub(super) fn nonsense(&self, key: &[u8], what: &str) -> CallError {
        CallError {
            kind: Kind::Script,
            shard: self.shard(key),
            sent: true,
            detail: Some(what.into()),
        }
    }

    async fn ask(&self, key: &[u8], request: &Request<'_>, within: Duration) -> Result<Value, CallError> {
        let mut trail = Trail::default();
        let result = match timeout(within, self.send(key, request, &mut trail)).await {
            Ok(result) => result,
            Err(_) => {
                trail.timed_out(within);
                Err(Kind::Timeout.into())
            }
        };
        result.map_err(|Failure { kind, detail }| CallError {
            kind,
            shard: trail.shard(),
            sent: trail.sent(),
            detail,
        })
    }

    async fn send(&self, key: &[u8], request: &Request<'_>, trail: &mut Trail) -> Result<Value, Failure> {
        let Inner { servers, hash, .. } = &*self.inner;
        let mut node = servers.node(key).await.ok_or(Kind::Refused)?;
        let mut asking = false;
        let mut command = match *request {
            Request::Script { key, args } => Cow::Owned(script("EVALSHA", hash, key, args)),
            Request::Command(command) => Cow::Borrowed(command),
        };
        for _ in 0..SENDS {
            trail.at(&node);
            let reply = match node.send(&command, asking, trail).await {
                Ok(reply) => reply,
                // It did not get there. Whoever took over meanwhile may be known by now.
                Err(Kind::Refused) => match servers.successor(key, &node) {
                    Some(successor) => {
                        asking = false;
                        node = successor;
                        continue;
                    }
                    None => return Err(Kind::Refused.into()),
                },
                Err(kind) => return Err(kind.into()),
            };
            match reply {
                Reply::Value(value) => return Ok(value),
                // Restarted, promoted or flushed. EVAL brings the script to just this node.
                Reply::NoScript => match *request {
                    Request::Script { key, args } => {
                        command = Cow::Owned(script("EVAL", self.inner.body, key, args));
                    }
                    Request::Command(_) => return Err(Kind::Script.into()),
                },
                Reply::Moved(to) => {
                    asking = false;
                    node = servers.moved(key, &to, node.address()).ok_or(Kind::Moved)?;
                }
                Reply::Ask(at) => {
                    asking = true;
                    node = servers.stranger(&at, node.address()).ok_or(Kind::Moved)?;
                }
                Reply::Error(kind, detail) => {
                    // Each says that it did nothing.
                    if matches!(kind, Kind::ClusterDown | Kind::ReadOnly | Kind::Loading) {
                        servers.events.refresh.notify_one();
                        if kind == Kind::ReadOnly {
                            node.reconnect();
                        }
                        if let Some(successor) = servers.successor(key, &node) {
                            asking = false;
                            node = successor;
                            continue;
                        }
                    }
                    return Err(Failure {
                        kind,
                        detail: Some(detail),
                    });
                }
            }
        }
        servers.events.refresh.notify_one();
        Err(Kind::Moved.into())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("shards", &self.shards()).finish()
    }
}

struct Failure {
    kind: Kind,
    detail: Option<Box<str>>,
}

impl From<Kind> for Failure {
    fn from(kind: Kind) -> Self {
        Self { kind, detail: None }
    }
}

fn script(verb: &str, script: &str, key: &[u8], args: &[&[u8]]) -> Cmd {
    let bytes = verb.len() + script.len() + 1 + key.len() + args.iter().map(|arg| arg.len()).sum::<usize>();
    let mut command = Cmd::with_capacity(4 + args.len(), bytes);
    command.arg(verb).arg(script).arg(&b"1"[..]).arg(key);
    for arg in args {
        command.arg(*arg);
    }
    command
}
