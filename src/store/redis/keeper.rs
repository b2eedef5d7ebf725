//! Keeps the connection to one server, in a task of its own.
//!
//! It dials as long as the server is of interest, whoever calls or not, so that no caller pays for finding out
//! whether a dead one is back: while it is down calls fail at once. A connection counts only once the server
//! has answered on it. One that ended by timeouts makes the next one prove itself call by call, since a proxy
//! may answer for a server that does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::cmd;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::{sleep, timeout};

use super::error::Kind;
use super::link::{Dialer, IN_FLIGHT, Link, Trouble};
use super::node::{Events, ShardId, ShardState};
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
const BETWEEN_REPLACEMENTS_MS: u64 = 1_000;
/// How many callers may wait in vain for a first connection.
const IMPATIENT: u32 = 3;

/// A server's connection, and what is known of its health.
pub(super) struct Keeper {
    pub(super) id: ShardId,
    pub(super) address: Address,
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
pub(super) enum Phase {
    /// Being tried for the first time, or lost a moment ago: worth waiting for.
    Connecting,
    Up,
    /// Connected, and has to prove itself.
    Trial,
    Down,
}

enum End {
    Lost,
    Stuck,
    Replaced,
}

impl Keeper {
    pub(super) fn new(id: ShardId, address: Address, dialer: Arc<Dialer>, events: Arc<Events>) -> Self {
        Self {
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
        }
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn state(&self) -> ShardState {
        let report = self.report.lock();
        ShardState {
            id: self.id,
            address: self.address.to_string(),
            up: self.phase() == Phase::Up,
            since: report.since.elapsed(),
            error: report.error.clone(),
        }
    }

    // === for calls ===

    /// A place among the calls under way.
    pub(super) fn permit(&self) -> Result<SemaphorePermit<'_>, Kind> {
        self.permits.try_acquire().map_err(|_| Kind::Overloaded)
    }

    /// The connection; waits for one as long as there is hope.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Kind> {
        if let Some(link) = self.living() {
            return Ok(link);
        }
        let mut phase = self.phase.subscribe();
        loop {
            // Seen before the link is looked at, so that no change between the two is missed.
            let now = *phase.borrow_and_update();
            if let Some(link) = self.living() {
                return Ok(link);
            }
            if now == Phase::Down || phase.changed().await.is_err() {
                return Err(Kind::Refused);
            }
        }
    }

    pub(super) fn pass(&self, link: &Link) -> Result<(), Kind> {
        let passes = link.breaker.pass(|| self.events.now_ms());
        if passes { Ok(()) } else { Err(Kind::Refused) }
    }

    pub(super) fn answered(&self, link: &Link) {
        if !self.answered.load(Ordering::Relaxed) {
            self.answered.store(true, Ordering::Relaxed);
        }
        if link.breaker.answered() {
            self.wake.notify_one();
        }
    }

    pub(super) fn timed_out(&self, link: &Link, after: Duration) {
        self.patience.store(after.as_micros() as u64, Ordering::Relaxed);
        if link.breaker.timed_out() {
            self.wake.notify_one();
        }
    }

    /// A call's time ran out before there was a connection. Others need not wait as long.
    pub(super) fn waited_in_vain(&self) {
        let many = self.impatient.fetch_add(1, Ordering::Relaxed) + 1 >= IMPATIENT;
        if many && self.phase() == Phase::Connecting {
            self.enter(Phase::Down, Some("no connection in time".into()));
        }
    }

    /// Asks for another connection to the same address.
    pub(super) fn replace(&self) {
        let now = self.events.now_ms();
        let last = self.replaced_ms.load(Ordering::Relaxed);
        if last == 0 || now >= last + BETWEEN_REPLACEMENTS_MS {
            self.replaced_ms.store(now, Ordering::Relaxed);
            self.replace.store(true, Ordering::Relaxed);
            self.wake.notify_one();
        }
    }

    fn living(&self) -> Option<Arc<Link>> {
        self.link.load_full().filter(|link| !link.ended())
    }

    // === the task ===

    pub(super) async fn keep(self: Arc<Self>) {
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
        self.replace.store(false, Ordering::Relaxed);
        self.enter(if suspect { Phase::Trial } else { Phase::Up }, None);
        let end = self.watch(&link).await;
        let trusted = self.phase() == Phase::Up;
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
        // One that never proved itself is not followed by another at once: each costs callers a few timeouts.
        if brief || !trusted {
            sleep(jittered(PAUSE)).await;
        }
        stuck
    }

    async fn watch(&self, link: &Link) -> End {
        loop {
            let proven = self.phase() == Phase::Up;
            let looked = self.events.now_ms();
            tokio::select! {
                () = link.end() => return End::Lost,
                () = self.wake.notified() => {}
                () = sleep(if proven { IDLE } else { PAUSE }) => {
                    let alive = if proven {
                        self.answered.swap(false, Ordering::Relaxed) || tokio::select! {
                            alive = self.alive(link, IDLE_ANSWER) => alive,
                            // Calls were quicker to find out.
                            () = self.wake.notified() => true,
                        }
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
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + fastrand::f64() / 2.0)
}
