//! Who serves which key: fixed for one server, asked of the nodes in a cluster, of the sentinels otherwise.
//!
//! A task of its own keeps the answer fresh: at once when a connection is lost, when a node says that it is
//! elsewhere, or nobody's; again and again while a node is down; now and then in any case. Every node that
//! was ever heard of can be asked, so that a cluster may change all its addresses over time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::ask;
use super::error::Reply;
use super::link::{Dialer, Trouble};
use super::node::{Events, Node, ShardId, ShardState};
use super::slots::{self, Range, SLOTS};
use super::target::{Address, Target, Topology};

/// Between two looks while something is amiss, at most this often, and in any case.
const AMISS: Duration = Duration::from_millis(250);
const AT_MOST: Duration = Duration::from_millis(50);
const ANYWAY: Duration = Duration::from_secs(5);
/// How many strangers are asked at once.
const ABREAST: usize = 4;
/// How many addresses are remembered; a cluster has at most a thousand nodes.
const KNOWN: usize = 1_000;

/// The servers, and who serves what.
pub(super) struct Servers {
    target: Target,
    dialer: Arc<Dialer>,
    pub(super) events: Arc<Events>,
    runtime: Handle,
    table: ArcSwap<Table>,
    found: watch::Sender<Found>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    nodes: HashMap<Address, Arc<Node>>,
    /// A node that is let go and comes back is the same shard.
    ids: HashMap<Address, ShardId>,
    next_id: u32,
    /// Addresses that may be asked, the newest last; the given ones stay.
    known: Vec<Address>,
    trouble: Option<Box<str>>,
}

/// Who serves which slot. Replaced whole.
#[derive(Default)]
struct Table {
    nodes: Vec<Arc<Node>>,
    /// Index into the nodes for each slot; without any, the one node serves all.
    slots: Vec<u16>,
}

const NOBODY: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Searching,
    Something,
    Nothing,
}

impl Servers {
    pub(super) fn new(target: Target, dialer: Dialer, runtime: Handle) -> Self {
        let servers = Self {
            registry: Mutex::new(Registry {
                known: target.seeds().to_vec(),
                ..Registry::default()
            }),
            target,
            dialer: Arc::new(dialer),
            events: Arc::new(Events::new()),
            runtime,
            table: ArcSwap::default(),
            found: watch::Sender::new(Found::Searching),
        };
        if let Topology::Single { address, .. } = &servers.target.topology {
            servers.set_one(address);
        }
        servers
    }

    /// The node that serves a key. Waits while the first search lasts.
    pub(super) async fn node(&self, key: &[u8]) -> Option<Arc<Node>> {
        if let Some(node) = self.table.load().node(key) {
            return Some(node);
        }
        let mut found = self.found.subscribe();
        loop {
            let now = *found.borrow_and_update();
            let table = self.table.load();
            // A slot that seems nobody's: any node may know better.
            if let Some(node) = table.node(key).or_else(|| table.any()) {
                return Some(node);
            }
            if now != Found::Searching || found.changed().await.is_err() {
                return None;
            }
        }
    }

    /// Who serves the key now, if it is somebody else.
    pub(super) fn successor(&self, key: &[u8], node: &Arc<Node>) -> Option<Arc<Node>> {
        let now = self.table.load().node(key)?;
        (!Arc::ptr_eq(&now, node)).then_some(now)
    }

    pub(super) fn shard(&self, key: &[u8]) -> ShardId {
        let node = self.table.load().node(key);
        node.map_or(ShardId::UNKNOWN, |node| node.id())
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.table.load().nodes.clone()
    }

    /// What stands for all shards before any is known.
    pub(super) fn unknown(&self) -> ShardState {
        let seeds: Vec<_> = self.target.seeds().iter().map(Address::to_string).collect();
        ShardState {
            id: ShardId::UNKNOWN,
            address: seeds.join(","),
            up: false,
            since: self.events.since_start(),
            error: self.registry.lock().trouble.clone(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.target.topology, Topology::Cluster { .. })
    }

    /// Asks a node something on a connection of its own.
    pub(super) async fn aside(&self, shard: ShardId, command: &Cmd) -> Option<Value> {
        let node = self.nodes().into_iter().find(|node| node.id() == shard)?;
        let link = self.dialer.node(node.address()).await.ok()?;
        match timeout(ask::ANSWER, link.send(command)).await {
            Ok(Ok(Reply::Value(value))) => Some(value),
            _ => None,
        }
    }

    /// A node said that the slot of this key is at `to` from now on.
    pub(super) fn moved(&self, key: &[u8], to: &str, asked: &Address) -> Option<Arc<Node>> {
        let to = Address::redirected(to, asked)?;
        let mut registry = self.registry.lock();
        let node = self.obtain(&mut registry, &to);
        let mut table = Table::clone(&self.table.load());
        if !table.slots.is_empty() {
            let index = table.index(&node);
            table.slots[slots::slot(key)] = index;
            self.table.store(Arc::new(table));
        }
        drop(registry);
        self.events.refresh.notify_one();
        Some(node)
    }

    /// A node said to ask there for this once.
    pub(super) fn stranger(&self, at: &str, asked: &Address) -> Option<Arc<Node>> {
        let at = Address::redirected(at, asked)?;
        Some(self.obtain(&mut self.registry.lock(), &at))
    }

    /// Keeps the table fresh, for ever.
    pub(super) async fn keep(self: Arc<Self>) {
        if matches!(self.target.topology, Topology::Single { .. }) {
            return;
        }
        loop {
            let found = match self.look().await {
                Ok(()) => Found::Something,
                Err(trouble) => {
                    self.registry.lock().trouble = Some(trouble.text);
                    Found::Nothing
                }
            };
            self.found.send_replace(found);
            let table = self.table.load_full();
            let fine =
                found == Found::Something && table.complete() && !table.nodes.iter().any(|node| node.down());
            sleep(AT_MOST).await;
            let pause = if fine { ANYWAY } else { AMISS };
            let _ = timeout(pause, self.events.refresh.notified()).await;
        }
    }

    async fn look(&self) -> Result<(), Trouble> {
        match &self.target.topology {
            Topology::Single { .. } => Ok(()),
            Topology::Cluster { .. } => self.look_at_cluster().await,
            Topology::Sentinel { sentinels, master } => self.look_at_sentinels(sentinels, master).await,
        }
    }

    // === a cluster ===

    async fn look_at_cluster(&self) -> Result<(), Trouble> {
        let mut nodes = self.nodes();
        fastrand::shuffle(&mut nodes);
        for node in nodes.iter().filter(|node| node.up()) {
            if let Ok(ranges) = ask::node(node).await {
                self.set_cluster(&ranges);
                return Ok(());
            }
        }
        // Those that were given first: an address that was learned may have become somebody else's.
        let mut known = self.registry.lock().known.clone();
        let (seeds, learned) = known.split_at_mut(self.target.seeds().len());
        fastrand::shuffle(seeds);
        learned.reverse();
        let mut last = Trouble::new("no node is known");
        for addresses in seeds.chunks(ABREAST).chain(learned.chunks(ABREAST)) {
            let mut asking = JoinSet::new();
            for address in addresses {
                asking.spawn(ask::stranger(Arc::clone(&self.dialer), address.clone()));
            }
            while let Some(answer) = asking.join_next().await {
                match answer.unwrap_or_else(|died| Err(Trouble::new(died))) {
                    Ok(ranges) => {
                        self.set_cluster(&ranges);
                        return Ok(());
                    }
                    Err(trouble) => last = trouble,
                }
            }
        }
        Err(last)
    }

    fn set_cluster(&self, ranges: &[Range]) {
        let mut registry = self.registry.lock();
        let mut table = Table {
            nodes: Vec::new(),
            slots: vec![NOBODY; SLOTS],
        };
        for range in ranges {
            let index = table.index(&self.obtain(&mut registry, &range.primary));
            table.slots[range.first..=range.last].fill(index);
            for replica in &range.replicas {
                registry.remember(replica, self.target.seeds().len());
            }
        }
        self.table.store(Arc::new(table));
        // Those of the last table but this one are gone for good; those that a redirection brought stay until
        // the next look.
        registry.forget();
    }

    // === sentinels ===

    async fn look_at_sentinels(&self, sentinels: &[Address], master: &str) -> Result<(), Trouble> {
        let down = self.nodes().first().filter(|node| !node.up()).cloned();
        let mut asking = JoinSet::new();
        for sentinel in sentinels {
            asking.spawn(ask::sentinel(
                Arc::clone(&self.dialer),
                sentinel.clone(),
                master.to_owned(),
            ));
        }
        let mut last = Trouble::new("no sentinel is known");
        let mut same = false;
        loop {
            // One that is frozen is not waited for when another has answered.
            let limit = if same { ask::ANSWER } else { Duration::MAX };
            let Ok(Some(answer)) = timeout(limit, asking.join_next()).await else {
                break;
            };
            match answer.unwrap_or_else(|died| Err(Trouble::new(died))) {
                // While it is down, one who knows a new one is worth waiting for.
                Ok(address) if down.as_ref().is_some_and(|node| *node.address() == address) => same = true,
                Ok(address) => {
                    self.set_one(&address);
                    return Ok(());
                }
                Err(trouble) => last = trouble,
            }
        }
        if same { Ok(()) } else { Err(last) }
    }

    fn set_one(&self, address: &Address) {
        let mut registry = self.registry.lock();
        let node = self.obtain(&mut registry, address);
        self.table.store(Arc::new(Table {
            nodes: vec![node],
            slots: Vec::new(),
        }));
        registry.forget();
    }

    // === both ===

    fn obtain(&self, registry: &mut Registry, address: &Address) -> Arc<Node> {
        if let Some(node) = registry.nodes.get(address) {
            return Arc::clone(node);
        }
        registry.remember(address, self.target.seeds().len());
        let id = registry.id(address);
        let dialer = Arc::clone(&self.dialer);
        let node = Node::start(
            &self.runtime,
            id,
            address.clone(),
            dialer,
            Arc::clone(&self.events),
        );
        let node = Arc::new(node);
        registry.nodes.insert(address.clone(), Arc::clone(&node));
        node
    }
}

impl Registry {
    fn remember(&mut self, address: &Address, seeds: usize) {
        if self.known.contains(address) {
            return;
        }
        if self.known.len() >= KNOWN.max(seeds + 1) {
            let forgotten = self.known.remove(seeds);
            self.ids.remove(&forgotten);
        }
        self.known.push(address.clone());
    }

    fn id(&mut self, address: &Address) -> ShardId {
        *self.ids.entry(address.clone()).or_insert_with(|| {
            self.next_id += 1;
            ShardId(self.next_id - 1)
        })
    }

    /// Lets go of the nodes that only this registry holds: neither the table nor a call does.
    fn forget(&mut self) {
        self.nodes.retain(|_, node| Arc::strong_count(node) > 1);
    }
}

impl Clone for Table {
    fn clone(&self) -> Self {
        Self {
            nodes: self.nodes.clone(),
            slots: self.slots.clone(),
        }
    }
}

impl Table {
    fn node(&self, key: &[u8]) -> Option<Arc<Node>> {
        let index = match self.slots.get(..) {
            Some(slots) if !slots.is_empty() => slots[slots::slot(key)],
            _ => 0,
        };
        self.nodes.get(usize::from(index)).cloned()
    }

    fn any(&self) -> Option<Arc<Node>> {
        let up: Vec<_> = self.nodes.iter().filter(|node| node.up()).collect();
        fastrand::choice(up).cloned()
    }

    fn complete(&self) -> bool {
        !self.slots.contains(&NOBODY)
    }

    fn index(&mut self, node: &Arc<Node>) -> u16 {
        let found = self.nodes.iter().position(|known| Arc::ptr_eq(known, node));
        found.unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.nodes.len() - 1
        }) as u16
    }
}
