//! Time, the network and replicas: one event after the other, the same for the same seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use cota::clock::ManualClock;
use cota::engine::decision::Decision;
use cota::engine::descriptor::{Descriptor, Entry, Request};
use cota::engine::key::BudgetKey;
use cota::engine::lease::Ask;
use cota::engine::policy::Domain;
use cota::engine::resolve::{Resolved, resolve};
use cota::engine::time::{Micros, Timestamp};
use cota::store::leased::{Central as LeaseStore, Leased, NoAnswer};
use cota::store::redis::Return;
use cota::store::{Reply, Store, StoreError};
use parking_lot::Mutex;

use crate::central::{Asked, Central};
use crate::support::policy::{NOON, costing, request};

/// When a caller gives up on an answer.
const TIMEOUT: u64 = 100_000;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Op = Box<dyn FnOnce(&mut Central, Timestamp) + Send>;

/// How well the network does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// The longest that a message usually takes, in microseconds.
    pub(crate) delay: u64,
    /// One message in so many takes up to three seconds; 0: none.
    pub(crate) late: u32,
    /// One message in so many is lost; 0: none.
    pub(crate) lost: u32,
}

/// A request that was let pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: Timestamp,
    pub(crate) cost: u64,
    pub(crate) here: bool,
    pub(crate) replica: usize,
}

/// What a request was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// It was decided without the store.
    pub(crate) here: bool,
    /// It passed; `None`: no answer.
    pub(crate) passed: Option<bool>,
    /// What its budgets show.
    pub(crate) remaining: Vec<u64>,
}

enum Event {
    /// A message reaches the store.
    Arrives(Op),
    /// An answer, or the end of patience, reaches a replica.
    Answers(usize, Box<dyn FnOnce() + Send>),
}

/// What replicas and the network share.
struct Shared {
    now: Timestamp,
    rng: fastrand::Rng,
    network: Network,
    down: bool,
    replicas: u32,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    due: HashMap<u64, Event>,
    seq: u64,
    central: Central,
    /// A replica heard of a block that was charged.
    taken: bool,
    admitted: Vec<Admitted>,
    refused: u64,
    unanswered: u64,
}

/// All of it.
pub(crate) struct World {
    shared: Arc<Mutex<Shared>>,
    replicas: Vec<Replica>,
    domain: Arc<Domain>,
}

/// One replica: a clock of its own, its leases, what it is doing.
pub(crate) struct Replica {
    clock: ManualClock,
    /// Its clock: an offset, and parts of a million by which it runs fast.
    offset: u64,
    drift: i64,
    pub(crate) leased: Arc<Leased<Link, ManualClock>>,
    tasks: Vec<Task>,
    spawned: Arc<Mutex<Vec<Task>>>,
}

/// A replica's way to the store.
pub(crate) struct Link {
    shared: Arc<Mutex<Shared>>,
    replica: usize,
}

// === impl World ===

impl World {
    pub(crate) fn new(seed: u64, domain: Domain, replicas: usize, network: Network) -> Self {
        let shared = Shared {
            now: NOON,
            rng: fastrand::Rng::with_seed(seed),
            network,
            down: false,
            replicas: replicas as u32,
            events: BinaryHeap::new(),
            due: HashMap::new(),
            seq: 0,
            central: Central::default(),
            taken: false,
            admitted: Vec::new(),
            refused: 0,
            unanswered: 0,
        };
        let mut world = Self {
            shared: Arc::new(Mutex::new(shared)),
            replicas: Vec::new(),
            domain: Arc::new(domain),
        };
        for _ in 0..replicas {
            let replica = world.replica(world.replicas.len());
            world.replicas.push(replica);
            world.shared.lock().central.ledger.push((0, 0));
        }
        world
    }

    fn replica(&self, index: usize) -> Replica {
        let link = Link {
            shared: Arc::clone(&self.shared),
            replica: index,
        };
        let (offset, drift) = {
            let rng = &mut self.shared.lock().rng;
            (rng.u64(..1 << 40), rng.i64(-1_000..=1_000))
        };
        let clock = ManualClock::at(Timestamp(0));
        let spawned: Arc<Mutex<Vec<Task>>> = Arc::default();
        let tasks = Arc::clone(&spawned);
        let replica = Replica {
            leased: Leased::new(link, clock.clone(), Box::new(move |task| tasks.lock().push(task))),
            clock,
            offset,
            drift,
            tasks: Vec::new(),
            spawned,
        };
        replica.set(self.now());
        replica
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.lock().now
    }

    /// How many requests were refused, and how many got no answer.
    pub(crate) fn others(&self) -> (u64, u64) {
        let shared = self.shared.lock();
        (shared.refused, shared.unanswered)
    }

    pub(crate) fn calls(&self) -> u64 {
        self.shared.lock().central.calls
    }

    /// Of each replica: units of blocks charged, units given back.
    pub(crate) fn ledger(&self) -> Vec<(u64, u64)> {
        self.shared.lock().central.ledger.clone()
    }

    /// What was let pass, in the order of time.
    pub(crate) fn admitted(&self) -> Vec<Admitted> {
        let mut admitted = self.shared.lock().admitted.clone();
        admitted.sort_by_key(|admitted| admitted.at);
        admitted
    }

    /// The store loses all it keeps, but not the count of what it did.
    pub(crate) fn flush(&self) {
        self.shared.lock().central.flush();
    }

    /// The network is another from now on.
    pub(crate) fn set_network(&self, network: Network) {
        self.shared.lock().network = network;
    }

    /// The rules are others from now on.
    pub(crate) fn set_domain(&mut self, domain: Domain) {
        self.domain = Arc::new(domain);
    }

    /// The leases of a replica.
    pub(crate) fn leased(&self, replica: usize) -> &Leased<Link, ManualClock> {
        &self.replicas[replica].leased
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.shared.lock().down = down;
    }

    /// How many replicas each believes there are.
    pub(crate) fn set_believed(&self, replicas: u32) {
        self.shared.lock().replicas = replicas;
    }

    /// Units that can be spent, of each limit: all replicas together.
    pub(crate) fn held(&self) -> HashMap<Box<str>, u64> {
        let mut all = HashMap::new();
        for held in self.replicas.iter().flat_map(|replica| replica.leased.holdings()) {
            *all.entry(held.limit).or_default() += held.units;
        }
        all
    }

    /// A request of that cost reaches a replica.
    pub(crate) fn ask(&mut self, replica: usize, cost: u64) {
        let request = costing(request(&[&[("tenant", "acme")]]), cost);
        self.put(replica, request, Arc::default());
    }

    /// Any request reaches a replica, and is answered.
    pub(crate) fn decide(&mut self, replica: usize, request: Request<'static>) -> Told {
        let told = Arc::default();
        self.put(replica, request, Arc::clone(&told));
        let patience = self.now().plus(Micros(2 * TIMEOUT));
        while told.lock().is_none() && self.now() < patience {
            self.run(self.now().plus(Micros(100)), |_| {});
        }
        told.lock().take().expect("patience ends before")
    }

    fn put(&mut self, replica: usize, request: Request<'static>, told: Arc<Mutex<Option<Told>>>) {
        let first = &request.descriptors[0];
        let cost = match first.is_negative_hits {
            true => 0,
            false => first.hits_addend.unwrap_or(1),
        };
        let (domain, shared) = (Arc::clone(&self.domain), Arc::clone(&self.shared));
        let leased = Arc::clone(&self.replicas[replica].leased);
        let at_once = Arc::new(AtomicBool::new(true));
        let first = Arc::clone(&at_once);
        let task = async move {
            let (request, began) = (for_now(&request), shared.lock().now);
            let mut resolved = resolve(Some(&domain), &request, false, began);
            let answer = leased.decide(&mut resolved, Micros::ZERO).await;
            let here = first.load(Ordering::Relaxed);
            let mut shared = shared.lock();
            *told.lock() = Some(Told {
                here,
                passed: answer.as_ref().ok().map(|decision| !decision.refused),
                remaining: answer
                    .iter()
                    .flat_map(|answer| &answer.verdicts)
                    .map(|v| v.view.remaining)
                    .collect(),
            });
            match answer {
                // Decided here, it passes now; decided there, it passed then.
                Ok(decision) if !decision.refused => {
                    let at = if here { began } else { decision.verdicts[0].at };
                    shared.admitted.push(Admitted {
                        at,
                        cost,
                        here,
                        replica,
                    });
                }
                Ok(_) => shared.refused += 1,
                Err(_) => shared.unanswered += 1,
            }
        };
        self.replicas[replica].tasks.push(Box::pin(task));
        self.poll(replica);
        at_once.store(false, Ordering::Relaxed);
    }

    /// What the task of every replica does now and then.
    pub(crate) fn tend(&mut self, replica: usize) {
        self.replicas[replica].leased.tend();
        self.poll(replica);
    }

    /// A replica is gone without notice, and another takes its place.
    pub(crate) fn crash(&mut self, replica: usize) {
        self.replicas[replica] = self.replica(replica);
    }

    /// A replica ends in good order.
    pub(crate) fn end(&mut self, replica: usize) {
        let leased = Arc::clone(&self.replicas[replica].leased);
        self.replicas[replica]
            .tasks
            .push(Box::pin(async move { leased.end().await }));
        self.poll(replica);
    }

    /// Lets time pass until `to`, with all that is due meanwhile. `changed` is called whenever units may have
    /// been taken.
    pub(crate) fn run(&mut self, to: Timestamp, mut changed: impl FnMut(&Self)) {
        loop {
            let event = {
                let mut shared = self.shared.lock();
                let next = shared.events.peek().map(|Reverse(next)| *next);
                match next {
                    Some((at, seq)) if at <= to.0 => {
                        shared.events.pop();
                        shared.now = shared.now.max(Timestamp(at));
                        shared.due.remove(&seq)
                    }
                    _ => {
                        shared.now = to;
                        break;
                    }
                }
            };
            match event {
                Some(Event::Arrives(op)) => {
                    let shared = &mut *self.shared.lock();
                    if !shared.down {
                        op(&mut shared.central, shared.now);
                    }
                }
                Some(Event::Answers(replica, answer)) => {
                    answer();
                    self.poll(replica);
                    let taken = std::mem::take(&mut self.shared.lock().taken);
                    if taken {
                        changed(self);
                    }
                }
                None => {}
            }
        }
        let now = self.now();
        self.replicas.iter().for_each(|replica| replica.set(now));
    }

    /// Lets what a replica does go on as far as it can.
    fn poll(&mut self, replica: usize) {
        let now = self.now();
        self.replicas.iter().for_each(|replica| replica.set(now));
        let replica = &mut self.replicas[replica];
        let mut context = Context::from_waker(Waker::noop());
        loop {
            replica.tasks.append(&mut replica.spawned.lock());
            replica
                .tasks
                .retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            if replica.spawned.lock().is_empty() {
                return;
            }
        }
    }
}

/// The same request, of a life as short as it has to be.
fn for_now<'a>(request: &Request<'static>) -> Request<'a> {
    let descriptors = request.descriptors.iter().map(|descriptor| Descriptor {
        entries: descriptor
            .entries
            .iter()
            .map(|&Entry { key, value }| Entry { key, value })
            .collect(),
        limit: descriptor.limit,
        hits_addend: descriptor.hits_addend,
        is_negative_hits: descriptor.is_negative_hits,
    });
    Request {
        domain: request.domain,
        descriptors: descriptors.collect(),
        hits_addend: request.hits_addend,
    }
}

// === impl Replica ===

impl Replica {
    fn set(&self, now: Timestamp) {
        let elapsed = now.since(NOON).0;
        let drift = elapsed as i64 * self.drift / 1_000_000;
        let local = self.offset + elapsed.saturating_add_signed(drift);
        self.clock.set(Timestamp(local));
    }
}

// === impl Link ===

/// An answer that is yet to come.
struct Answer<T>(Arc<Mutex<Option<Result<T, NoAnswer>>>>);

impl<T> Future for Answer<T> {
    type Output = Result<T, NoAnswer>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.lock().take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Shared {
    fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((at, self.seq)));
        self.due.insert(self.seq, event);
    }

    /// When a message that is sent now arrives.
    fn arrives(&mut self) -> Option<u64> {
        let Network { delay, late, lost } = self.network;
        if lost > 0 && self.rng.u32(..lost) == 0 {
            return None;
        }
        let is_late = late > 0 && self.rng.u32(..late) == 0;
        let most = if is_late { 3_000_000 } else { delay };
        Some(self.rng.u64(1..=most.max(1)))
    }
}

impl Link {
    /// Sends what is to be done; it is done when it arrives, whether anybody still waits or not.
    fn send<T: Send + 'static>(
        &self,
        op: impl FnOnce(&mut Central, Timestamp) -> T + Send + 'static,
    ) -> Answer<T> {
        let slot = Arc::new(Mutex::new(None));
        let (replica, now) = (self.replica, {
            let shared = self.shared.lock();
            shared.now.0
        });
        let shared = &mut *self.shared.lock();
        let there = shared.arrives();
        let back = shared.arrives();
        // What the operation gave, for the answer to bring.
        let given: Arc<Mutex<Option<T>>> = Arc::default();
        if let Some(there) = there {
            let given = Arc::clone(&given);
            let op = Box::new(move |central: &mut Central, now| *given.lock() = Some(op(central, now)));
            shared.at(now + there, Event::Arrives(op));
        }
        let answered = there.zip(back).map(|(there, back)| there + back);
        let waits = answered.map_or(TIMEOUT, |answered| answered.min(TIMEOUT));
        let in_time = answered.is_some_and(|answered| answered < TIMEOUT);
        let answer = Arc::clone(&slot);
        let arrive = Box::new(move || {
            let given = given.lock().take().filter(|_| in_time);
            *answer.lock() = Some(given.ok_or(NoAnswer));
        });
        shared.at(now + waits, Event::Answers(replica, arrive));
        Answer(slot)
    }
}

impl Store for Link {
    async fn decide(&self, resolved: &mut Resolved<'_>, _: Micros) -> Result<Decision, StoreError> {
        let asked = Asked::of(resolved);
        let answer = self.send(move |central, now| central.decide(&asked, now).0);
        answer
            .await
            .map_err(|_| StoreError::Unavailable("no answer".into()))
    }

    fn give_back(&self, _: &Resolved<'_>, _: &Decision) {
        unreachable!("no answer is held");
    }
}

impl LeaseStore for Link {
    async fn reserve(&self, budget: &BudgetKey<'_>, id: u64, ask: &Ask) -> Result<u64, NoAnswer> {
        let (budget, ask) = (budget.text(), ask.clone());
        self.send(move |central, now| central.reserve(&budget, id, &ask, now))
            .await
    }

    async fn strike(&self, budget: &BudgetKey<'_>, id: u64) -> Result<bool, NoAnswer> {
        let budget = budget.text();
        self.send(move |central, _| central.strike(&budget, id)).await
    }

    async fn charge(&self, asked: &Resolved<'_>) -> Result<Reply, NoAnswer> {
        let (asked, replica) = (Asked::of(asked), self.replica);
        let reply = self
            .send(move |central, now| central.charge(&asked, now, replica))
            .await;
        self.shared.lock().taken |= reply.is_ok();
        reply
    }

    async fn refund(&self, asked: &Resolved<'_>, part: Return) -> Result<(), NoAnswer> {
        let (asked, replica) = (Asked::of(asked), self.replica);
        self.send(move |central, now| central.refund(&asked, part, now, replica))
            .await
    }

    fn replicas(&self) -> u32 {
        self.shared.lock().replicas
    }
}
