//! The shared store on a live Redis, whose script is told the time. Nothing else is made up.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cota::clock::ManualClock;
use cota::engine::time::{Micros, Timestamp};
use cota::store::redis::{Client, Redis, SCRIPT, TlsFiles};
use cota::store::shared::{Replicas, Shared};
use parking_lot::Mutex;
use redis::{Cmd, Connection, FromRedisValue, cmd};

use crate::harness::Harness;
use crate::support::redis::{PATIENCE, Server};

/// So long that a busy machine degrades nothing.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where the script finds the time, and notes when each key expires in that time.
const CLOCK: &str = "clock";
const EXPIRIES: &str = "expiries";

pub struct InRedis {
    shared: Arc<Shared<ManualClock>>,
    clock: ManualClock,
    admin: RefCell<Connection>,
    _server: Arc<Shelf>,
}

/// One server for all tests that run, with a database for each store.
struct Shelf {
    server: Server,
    taken: AtomicU32,
}

impl Shelf {
    fn get() -> Arc<Self> {
        static SHELF: Mutex<std::sync::Weak<Shelf>> = Mutex::new(std::sync::Weak::new());
        let mut shelf = SHELF.lock();
        shelf.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self {
                server: Server::start(&["--databases", "4096"]),
                taken: AtomicU32::new(0),
            });
            *shelf = Arc::downgrade(&made);
            made
        })
    }
}

/// The script with the time, and so the end of a key, as the test has them.
fn script() -> String {
    let changes = [
        (
            "local time = call('TIME')",
            "local time = { 0, call('GET', 'clock') }",
        ),
        (
            "call('PTTL', KEYS[1])",
            "call('EXISTS', KEYS[1]) == 1 and (call('HGET', 'expiries', KEYS[1]) or 0) - now / 1000 or -2",
        ),
        (
            "call('EXPIREAT', KEYS[1], last)",
            "call('HSET', 'expiries', KEYS[1], string.format('%.0f', last * 1000)) call('PEXPIRE', KEYS[1], 3600000)",
        ),
    ];
    replaced(SCRIPT.to_owned(), &changes)
}

/// The same, which forgets nothing that its clock says has run out: the clock may go back.
fn unforgetting() -> String {
    let changes = [
        ("if ends <= second then", "if false then"),
        ("call('HRANDFIELD', KEYS[1], 4,", "call('HRANDFIELD', KEYS[1], 0,"),
    ];
    replaced(script(), &changes)
}

fn replaced(script: String, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(script, |script, (from, to)| {
        assert_eq!(script.matches(from).count(), 1, "{from}");
        script.replace(from, to)
    })
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

impl InRedis {
    async fn with(script: &'static str, now: Timestamp) -> Self {
        let shelf = Shelf::get();
        let url = format!(
            "{}/{}",
            shelf.server.url(),
            shelf.taken.fetch_add(1, Ordering::Relaxed)
        );
        let admin = redis::Client::open(&*url).unwrap().get_connection().unwrap();
        let client = Client::start(url.parse().unwrap(), TlsFiles::default(), script).unwrap();
        let connected = async {
            while !client.shards().iter().all(|shard| shard.up) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, connected).await.unwrap();
        let clock = ManualClock::at(now);
        let shared = Shared::start(
            Redis::new(client, TIMEOUT),
            Replicas::fixed(1),
            clock.clone(),
            1_000,
            TIMEOUT,
            Box::new(|_| {}),
        );
        let harness = Self {
            shared,
            clock,
            admin: RefCell::new(admin),
            _server: shelf,
        };
        harness.set_clock(now);
        harness
    }

    fn ask<T: FromRedisValue>(&self, command: &mut Cmd) -> T {
        command.query(&mut *self.admin.borrow_mut()).unwrap()
    }
}

impl Harness for InRedis {
    type Store = Arc<Shared<ManualClock>>;

    const ATOMIC: bool = false;

    async fn begin(now: Timestamp) -> Self {
        static TEXT: OnceLock<&str> = OnceLock::new();
        Self::with(TEXT.get_or_init(|| leaked(script())), now).await
    }

    async fn begin_unforgetting(now: Timestamp) -> Self {
        static TEXT: OnceLock<&str> = OnceLock::new();
        Self::with(TEXT.get_or_init(|| leaked(unforgetting())), now).await
    }

    fn store(&self) -> &Self::Store {
        &self.shared
    }

    fn set_clock(&self, now: Timestamp) {
        self.clock.set(now);
        self.ask::<()>(cmd("SET").arg(CLOCK).arg(now.0));
    }

    fn cap(&self, cap: Micros) -> Micros {
        cap.saturating_add(TIMEOUT.into())
    }

    async fn settled(&self) {
        let done = async {
            while self.shared.giving_back() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.unwrap();
    }

    async fn forget_expired(&self) {
        let now: u64 = self.ask(cmd("GET").arg(CLOCK));
        let expiries: HashMap<String, u64> = self.ask(cmd("HGETALL").arg(EXPIRIES));
        for (key, _) in expiries.iter().filter(|(_, at)| **at <= now / 1_000) {
            self.ask::<()>(cmd("DEL").arg(key));
        }
    }

    async fn kept(&self) -> usize {
        let keys: Vec<String> = self.ask(cmd("KEYS").arg("c:{*"));
        let mut states = 0;
        // What the service keeps for itself is nobody's budget.
        let own = ["c:{replicas}", "c:{selftest"];
        for key in keys
            .iter()
            .filter(|key| !own.iter().any(|own| key.starts_with(own)))
        {
            let ttl: i64 = self.ask(cmd("PTTL").arg(key));
            assert!(ttl > 0, "{key} has no expiry");
            let fields: HashMap<Vec<u8>, Vec<u8>> = self.ask(cmd("HGETALL").arg(key));
            for value in fields.values() {
                // A state is what was used, seven bytes and six, and a time.
                let spent = |state: &&[u8]| state[..13].iter().any(|byte| *byte != 0);
                states += value[..value.len() - 5].chunks(20).filter(spent).count();
            }
        }
        states
    }
}
