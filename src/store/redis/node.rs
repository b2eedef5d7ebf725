//! One server: the connection to it, and what is known of its health.
//!
//! A task of its own keeps the connection. It dials as long as the node exists, whoever calls or not, so that
//! no caller pays for finding out whether a dead server is back: while it is down calls fail at once. A
//! connection counts only once the server has answered on it. One that ended by timeouts makes the next one
//! prove itself call by call, since a proxy may answer for a server that does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::{Cmd, cmd};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::error::{Kind, Reply};
use super::link::{Dialer, IN_FLIGHT, Link, Trouble};
use super::target::Address;
use crate::clock::Stopwatch;

/// Between two attempts to connect; half as long again at most, so that replicas spread.
const PAUSE: Duration = Duration::from_millis(100);
/// The same where the server is there and refuses us.
const PAUSE_DENIED: Duration = Duration::from_millis(500);
/// How often an unused connection is tried, so that its end is not first met by a caller.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_ANSWER: Duration = Duration::from_millis(500);
/// A replica in place of the primary is not left and found again at every call.
const BETWEEN_RECONNECTS_MS: u64 = 1_000;
/// How many callers may wait in vain for a first connection.
const IMPATIENT: u32 = 3;

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

struct Keeper {
    id: ShardId,
    address: Address,
    dialer: Arc<Dialer>,
    events: Arc<Events>,
    link: ArcSwapOption<Link>,
    phase: watch::Sender<Phase>,
    report: Mutex<Report>,
    permits: Semaphore,
    /// Wakes the task: the link is stuck, proven or to be replaced.
    wake: Notify,
    replace: AtomicBool,
    replaced_ms: AtomicU64,
    /// Whether an answer came since the task last looked.
    answered: AtomicBool,
    /// How long the last caller waited in vain (us): what a suspect server's answer must beat.
    patience: AtomicU64,
    impatient: AtomicU32,
}

struct Report {
    since: Stopwatch,
    error: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Being tried for the first time, or lost a moment ago: worth waiting for.
    Connecting,
    Up,
    /// Connected, and has to prove itself.
    Trial,
    Down,
}

/// Where a call is, for the case that its time runs out there.
#[derive(Default)]
pub(super) struct Trail {
    pub(super) node: Option<Arc<Node>>,
    link: Option<Arc<Link>>,
}

enum End {
    Lost,
    Stuck,
    Replaced,
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
        let keeper = Arc::new(Keeper {
            id,
            address,
            dialer,
            events,
            link: ArcSwapOption::empty(),
            phase: watch::Sender::new(Phase::Connecting),
            report: Mutex::new(Report {
                since: Stopwatch::start(),
                error: None,
            }),
            permits: Semaphore::new(IN_FLIGHT),
            wake: Notify::new(),
            replace: AtomicBool::new(false),
            replaced_ms: AtomicU64::new(0),
            answered: AtomicBool::new(false),
            patience: AtomicU64::new(u64::MAX),
            impatient: AtomicU32::new(0),
        });
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
        *self.keeper.phase.borrow() == Phase::Up
    }

    /// Whether calls fail at once.
    pub(super) fn down(&self) -> bool {
        *self.keeper.phase.borrow() == Phase::Down
    }

    pub(super) fn state(&self) -> ShardState {
        let report = self.keeper.report.lock();
        ShardState {
            id: self.id(),
            address: self.address().to_string(),
            up: self.up(),
            since: report.since.elapsed(),
            error: report.error.clone(),
        }
    }

    /// Sends a command once and waits for its answer; the caller sets the limit and reports when it passed.
    pub(super) async fn send(&self, cmd: &Cmd, asking: bool, trail: &mut Trail) -> Result<Reply, Kind> {
        let keeper = &*self.keeper;
        let _permit = keeper.permits.try_acquire().map_err(|_| Kind::Overloaded)?;
        let link = &**trail.link.insert(match keeper.link() {
            Some(link) => link,
            None => keeper.wait().await?,
        });
        if !link.breaker.pass(|| keeper.events.now_ms()) {
            return Err(Kind::Refused);
        }
        let sent = if asking {
            link.send_asking(cmd).await
        } else {
            link.send(cmd).await
        };
        let reply = sent.map_err(|_| Kind::Disconnected)?;
        if !keeper.answered.load(Ordering::Relaxed) {
            keeper.answered.store(true, Ordering::Relaxed);
        }
        if link.breaker.answered() {
            keeper.wake.notify_one();
        }
        Ok(reply)
    }

    /// The server at this address is not what it was; whoever is there now may be.
    pub(super) fn reconnect(&self) {
        let now = self.keeper.events.now_ms();
        let last = self.keeper.replaced_ms.load(Ordering::Relaxed);
        if last == 0 || now >= last + BETWEEN_RECONNECTS_MS {
            self.keeper.replaced_ms.store(now, Ordering::Relaxed);
            self.keeper.replace.store(true, Ordering::Relaxed);
            self.keeper.wake.notify_one();
        }
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
        let Some(node) = &self.node else { return };
        let keeper = &node.keeper;
        match &self.link {
            Some(link) => {
                keeper.patience.store(after.as_micros() as u64, Ordering::Relaxed);
                if link.breaker.timed_out() {
                    keeper.wake.notify_one();
                }
            }
            None => {
                if keeper.impatient.fetch_add(1, Ordering::Relaxed) + 1 >= IMPATIENT {
                    keeper.give_up();
                }
            }
        }
    }
}

// === impl Keeper ===

impl Keeper {
    fn link(&self) -> Option<Arc<Link>> {
        self.link.load_full().filter(|link| !link.ended())
    }

    /// Waits for a connection as long as there is hope.
    async fn wait(&self) -> Result<Arc<Link>, Kind> {
        let mut phase = self.phase.subscribe();
        loop {
            // Seen before the link is looked at, so that no change between the two is missed.
            let now = *phase.borrow_and_update();
            if let Some(link) = self.link() {
                return Ok(link);
            }
            if now == Phase::Down || phase.changed().await.is_err() {
                return Err(Kind::Refused);
            }
        }
    }

    async fn keep(self: Arc<Self>) {
        let mut suspect = false;
        loop {
            match self.dial(suspect).await {
                Ok(link) => {
                    suspect = self.serve(link, suspect).await;
                }
                Err(trouble) => {
                    self.enter(Phase::Down, Some(trouble.text));
                    sleep(jittered(if trouble.denied { PAUSE_DENIED } else { PAUSE })).await;
                }
            }
        }
    }

    async fn dial(&self, suspect: bool) -> Result<Link, Trouble> {
        let link = self.dialer.node(&self.address).await?;
        if suspect && !self.alive(&link, self.patience()).await {
            return Err(Trouble::new("answers, but too late"));
        }
        Ok(link)
    }

    /// Offers a connection to callers until it is no good any more. True if the next one is suspect.
    async fn serve(&self, link: Link, suspect: bool) -> bool {
        let served = Stopwatch::start();
        let link = Arc::new(link);
        if suspect {
            link.breaker.suspect(self.events.now_ms());
        }
        self.link.store(Some(Arc::clone(&link)));
        self.impatient.store(0, Ordering::Relaxed);
        self.enter(if suspect { Phase::Trial } else { Phase::Up }, None);
        let end = self.watch(&link).await;
        self.link.store(None);
        let (stuck, text) = match end {
            End::Lost => (false, "the connection ended"),
            End::Stuck => (true, "no answers in time"),
            End::Replaced => (false, "it became a replica"),
        };
        // A server that hangs up at once is not waited for.
        let brief = served.elapsed() < PAUSE;
        let next = if stuck || brief {
            Phase::Down
        } else {
            Phase::Connecting
        };
        self.enter(next, Some(text.into()));
        link.retire();
        if brief {
            sleep(jittered(PAUSE)).await;
        }
        stuck
    }

    async fn watch(&self, link: &Link) -> End {
        loop {
            let proven = *self.phase.borrow() == Phase::Up;
            let looked = self.events.now_ms();
            tokio::select! {
                () = link.end() => return End::Lost,
                () = self.wake.notified() => {}
                () = sleep(if proven { IDLE } else { PAUSE }) => {
                    let alive = if proven {
                        self.answered.swap(false, Ordering::Relaxed) || self.alive(link, IDLE_ANSWER).await
                    } else if link.breaker.idle_since(looked) {
                        // Nobody calls: its own word must do.
                        if self.alive(link, self.patience()).await {
                            link.breaker.answered();
                        }
                        true
                    } else {
                        true
                    };
                    if !alive {
                        return if link.ended() { End::Lost } else { End::Stuck };
                    }
                }
            }
            if link.breaker.shut() {
                return End::Stuck;
            }
            if self.replace.swap(false, Ordering::Relaxed) {
                return End::Replaced;
            }
            if link.breaker.free() {
                self.enter(Phase::Up, None);
            }
        }
    }

    /// Whether the server answers something within the time.
    async fn alive(&self, link: &Link, within: Duration) -> bool {
        matches!(timeout(within, link.send(&cmd("PING"))).await, Ok(Ok(_)))
    }

    fn patience(&self) -> Duration {
        Duration::from_micros(self.patience.load(Ordering::Relaxed)).min(IDLE_ANSWER)
    }

    fn enter(&self, phase: Phase, error: Option<Box<str>>) {
        let changed = {
            let mut report = self.report.lock();
            if error.is_some() {
                report.error = error;
            }
            let before = self.phase.send_replace(phase);
            if before != phase {
                report.since = Stopwatch::start();
            }
            before != phase
        };
        if changed {
            self.events.changes.send_modify(|count| *count += 1);
            if phase != Phase::Up {
                self.events.refresh.notify_one();
            }
        }
    }

    /// Callers need not wait for the first connection any longer.
    fn give_up(&self) {
        if *self.phase.borrow() == Phase::Connecting {
            self.enter(Phase::Down, Some("no connection in time".into()));
        }
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + fastrand::f64() / 2.0)
}
