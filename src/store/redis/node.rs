//! The servers as callers see them.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::error::{Kind, Reply};
use super::keeper::{Keeper, Phase};
use super::link::{Dialer, Link};
use super::target::Address;
use crate::clock::Stopwatch;

/// A shard: the server that serves a part of the keys. After a failover another one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardId(pub(super) u32);

impl ShardId {
    /// Of keys of which nobody knows who serves them.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

/// How a shard does.
#[derive(Clone, Debug)]
pub struct ShardState {
    /// Which one.
    pub id: ShardId,
    /// Where it is.
    pub address: String,
    /// Whether it takes calls.
    pub up: bool,
    /// For how long it has been so.
    pub since: Duration,
    /// What was wrong last; kept while it is up, for those who ask why it was not.
    pub error: Option<Box<str>>,
}

/// What the nodes tell the others.
pub(super) struct Events {
    epoch: Stopwatch,
    /// Counts changes of any node's health.
    pub(super) changes: watch::Sender<u64>,
    /// The servers may have changed places.
    pub(super) refresh: Notify,
}

/// A server.
pub(super) struct Node {
    keeper: Arc<Keeper>,
    task: AbortHandle,
}

/// Where a call is, for the case that its time runs out there.
#[derive(Default)]
pub(super) struct Trail {
    pub(super) node: Option<Arc<Node>>,
    link: Option<Arc<Link>>,
}

// === impl Events ===

impl Events {
    pub(super) fn new() -> Self {
        Self {
            epoch: Stopwatch::start(),
            changes: watch::Sender::new(0),
            refresh: Notify::new(),
        }
    }

    pub(super) fn since_start(&self) -> Duration {
        self.epoch.elapsed()
    }

    pub(super) fn now_ms(&self) -> u64 {
        // Never zero, which means "no moment".
        self.epoch.elapsed().as_millis() as u64 + 1
    }
}

// === impl Node ===

impl Node {
    pub(super) fn start(
        runtime: &Handle,
        id: ShardId,
        address: Address,
        dialer: Arc<Dialer>,
        events: Arc<Events>,
    ) -> Self {
        let keeper = Arc::new(Keeper::new(id, address, dialer, events));
        let task = runtime.spawn(Arc::clone(&keeper).keep()).abort_handle();
        Self { keeper, task }
    }

    pub(super) fn id(&self) -> ShardId {
        self.keeper.id
    }

    pub(super) fn address(&self) -> &Address {
        &self.keeper.address
    }

    pub(super) fn up(&self) -> bool {
        self.keeper.phase() == Phase::Up
    }

    /// Whether calls fail at once.
    pub(super) fn down(&self) -> bool {
        self.keeper.phase() == Phase::Down
    }

    pub(super) fn state(&self) -> ShardState {
        self.keeper.state()
    }

    /// Sends a command once and waits for its answer; the caller sets the limit and reports when it passed.
    pub(super) async fn send(&self, cmd: &Cmd, asking: bool, trail: &mut Trail) -> Result<Reply, Kind> {
        let _permit = self.keeper.permit()?;
        let link = &**trail.link.insert(self.keeper.link().await?);
        self.keeper.pass(link)?;
        let sent = if asking {
            link.send_asking(cmd).await
        } else {
            link.send(cmd).await
        };
        let reply = sent.map_err(|_| Kind::Disconnected)?;
        self.keeper.answered(link);
        Ok(reply)
    }

    /// The server at this address is not what it was; whoever is there now may be.
    pub(super) fn reconnect(&self) {
        self.keeper.replace();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Trail ===

impl Trail {
    pub(super) fn at(&mut self, node: &Arc<Node>) {
        self.node = Some(Arc::clone(node));
        self.link = None;
    }

    pub(super) fn shard(&self) -> ShardId {
        self.node.as_ref().map_or(ShardId::UNKNOWN, |node| node.id())
    }

    /// Whether the call may have been sent and not been answered.
    pub(super) fn sent(&self) -> bool {
        self.link.is_some()
    }

    /// The call's time ran out where it is.
    pub(super) fn timed_out(&self, after: Duration) {
        match (&self.node, &self.link) {
            (Some(node), Some(link)) => node.keeper.timed_out(link, after),
            (Some(node), None) => node.keeper.waited_in_vain(),
            (None, _) => {}
        }
    }
}
