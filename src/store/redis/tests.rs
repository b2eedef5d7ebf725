//! The script against the engine, on a real server: any state, any limit, any cost.

use std::process::{Child, Command, Stdio};

use proptest::prelude::*;

use super::key;
use super::script::{SCRIPT, call, reply};
use crate::engine::budget::{State, Terms};
use crate::engine::decision::{Evaluation, Slot, evaluate, settle};
use crate::engine::key::BudgetKey;
use crate::engine::limit::{Excess, ExcessAction, Limit, MAX_LIMIT, MAX_UNITS, Unit};
use crate::engine::resolve::{Resolved, resolve};
use crate::engine::time::{Micros, Timestamp};
use crate::support::policy::{bucket, domain, every, fixed, initial, leaky, request, sliding, waiting};

mod given_back;
mod keys;

/// A server on a socket of its own, gone with the test.
struct Server {
    process: Child,
    connection: redis::Connection,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("redis.sock");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server runs; if it is missing, run `make setup`");
        let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
        let connection = (0..500)
            .find_map(|_| {
                let connection = client.get_connection().ok();
                if connection.is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                connection
            })
            .expect("the server answers within five seconds");
        Self {
            process,
            connection,
            _dir: dir,
        }
    }

    fn plant(&mut self, key: &str, field: &str, slot: Slot, lane: bool) {
        let mut bytes = state(slot.main);
        if lane {
            bytes.extend(state(slot.lane));
        }
        let end = 1_u64 << 38;
        bytes.extend(&end.to_be_bytes()[3..]);
        let mut both = redis::pipe();
        both.cmd("HSET").arg(key).arg(field).arg(bytes).ignore();
        both.cmd("EXPIREAT").arg(key).arg(end).ignore();
        both.exec(&mut self.connection).unwrap();
    }

    fn call(&mut self, call: &super::script::Call) -> redis::Value {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(&call.key);
        command.arg(call.arg.as_slice());
        command.query(&mut self.connection).unwrap()
    }

    /// What a field holds, read as a reply would be.
    fn read(&mut self, key: &str, field: &str) -> Slot {
        let bytes: Option<Vec<u8>> = redis::cmd("HGET")
            .arg(key)
            .arg(field)
            .query(&mut self.connection)
            .unwrap();
        let field = bytes.map_or(redis::Value::Nil, redis::Value::BulkString);
        let parts = vec![field, redis::Value::Int(1)];
        reply(redis::Value::Array(parts), 1).unwrap().slots[0]
    }

    fn ttl(&mut self, key: &str) -> i64 {
        redis::cmd("PTTL").arg(key).query(&mut self.connection).unwrap()
    }

    fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn field(budget: &BudgetKey<'_>) -> String {
    let mut out = String::new();
    key::field(&mut out, budget);
    out
}

fn state(state: State) -> Vec<u8> {
    let mut bytes = state.used.to_be_bytes()[1..].to_vec();
    bytes.extend(&state.part.to_be_bytes()[2..]);
    bytes.extend(&state.at.to_be_bytes()[1..]);
    bytes
}

/// A number of any magnitude up to `most`.
fn magnitude(most: u64) -> impl Strategy<Value = u64> {
    (0..64u32, any::<u64>()).prop_map(move |(shift, n)| (n >> shift) % (most + 1))
}

fn units() -> impl Strategy<Value = u64> {
    prop_oneof![1..20u64, magnitude(MAX_LIMIT)]
}

fn limit() -> impl Strategy<Value = Limit> {
    let numbers = (
        units(),
        units(),
        0..7usize,
        prop_oneof![Just(None), (1..100_000u64).prop_map(Some)],
    );
    let kinds = (0..6u8, magnitude(10_000_000), 0..8u8, 101..400u32);
    (numbers, kinds).prop_map(|((units, burst, unit, period), (kind, wait, flags, percent))| {
        let unit = Unit::ALL[unit];
        let wait = Micros(wait);
        let mut limit = match kind {
            0 | 1 => fixed("l", units, unit),
            2 if unit < Unit::Month => sliding("l", units, unit),
            2 | 3 => bucket("l", units, burst, unit),
            4 => waiting(bucket("l", units, burst, unit), wait),
            _ => leaky("l", units, unit, wait),
        };
        if let Some(millis) = period {
            limit = every(limit, millis);
        }
        limit.shadow = flags == 1;
        limit.quota = flags == 2 || flags == 3;
        match kind {
            0 | 3 if flags == 4 => limit.overdraft = true,
            _ if flags >= 6 => {
                limit.excess = Some(Excess {
                    action: ExcessAction::Degrade,
                    up_to_percent: percent,
                });
            }
            _ => {}
        }
        limit
    })
}

#[derive(Debug, Clone)]
struct Planted {
    used: u64,
    part: u64,
    /// How long ago the state was written, in microseconds or windows; negative: in the future.
    ago: i64,
}

fn planted() -> impl Strategy<Value = Option<Planted>> {
    let ago = prop_oneof![
        -3..3i64,
        magnitude(1 << 50).prop_map(|n| n as i64),
        magnitude(1 << 40).prop_map(|n| -(n as i64))
    ];
    proptest::option::weighted(
        0.8,
        (prop_oneof![0..30u64, magnitude(MAX_UNITS)], any::<u64>(), ago)
            .prop_map(|(used, part, ago)| Planted { used, part, ago }),
    )
}

/// A state as it could have been stored under that limit, or by a clock that was wrong.
fn stored(limit: &Limit, planted: &Planted, now: Timestamp) -> State {
    use crate::engine::limit::Algorithm;
    let shifted = |n: u64, by: i64| n.saturating_add_signed(-by).min(MAX_UNITS);
    match &limit.algorithm {
        Algorithm::FixedWindow(windows) => State {
            used: planted.used,
            part: 0,
            at: shifted(windows.at(now).index, planted.ago),
        },
        Algorithm::SlidingWindow(windows) => State {
            used: planted.used.min(MAX_LIMIT),
            part: planted.part.min(MAX_LIMIT),
            at: shifted(windows.at(now).index, planted.ago),
        },
        Algorithm::TokenBucket | Algorithm::LeakyBucket => State {
            used: planted.used,
            part: planted.part % limit.period.length.0,
            at: shifted(now.0, planted.ago),
        },
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a state is planted around the server's present"
)]
fn present() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(Micros::from(since.unwrap()).0)
}

/// The state, unless it has run out.
fn alive(terms: Terms<'_>, state: State, now: Timestamp) -> State {
    if initial(terms.advance(state, now).0) {
        State::default()
    } else {
        state
    }
}

/// Whether a field holds what it should, or is gone because that has run out since.
fn holds(terms: Terms<'_>, after: State, wanted: State, answered: Timestamp) -> bool {
    let gone = || initial(terms.advance(wanted, present()).0);
    alive(terms, after, answered) == alive(terms, wanted, answered) || (initial(after) && gone())
}

fn charge_terms<'s>(resolved: &'s Resolved<'_>, i: usize) -> (Terms<'s>, Option<Terms<'s>>) {
    let terms = resolved.charges[i].terms();
    (terms, terms.lane())
}

type Asked = (Limit, Option<Planted>, Option<Planted>);

/// Runs one request against planted states, in the script and in the engine.
fn same(
    server: &mut Server,
    asked: &[Asked],
    (refund, spend): (u64, Option<u64>),
    cap: u64,
) -> Result<(), TestCaseError> {
    server.clear();
    let limits: Vec<Limit> = asked
        .iter()
        .enumerate()
        .map(|(i, (limit, ..))| Limit {
            name: Some(format!("l{i}").into()),
            ..limit.clone()
        })
        .collect();
    let domain = domain([(&[("tenant", None)], limits)]);
    let request = request(&[&[("tenant", "acme")]]);
    let mut resolved: Resolved<'_> = resolve(Some(&domain), &request, false, Timestamp(0));
    prop_assert_eq!(resolved.charges.len(), asked.len());
    for charge in &mut resolved.charges {
        (charge.refund, charge.spend) = (refund, spend);
    }
    let now = present();
    let group: Vec<u16> = (0..asked.len() as u16).collect();
    let call = call(&resolved, &group, Micros(cap), true, now);
    let mut slots = Vec::new();
    for (i, (_, main, lane)) in asked.iter().enumerate() {
        let charge = &resolved.charges[i];
        let field = field(&resolved.key(charge));
        let has_lane = charge.limit.excess.is_some();
        let slot = Slot {
            main: main
                .as_ref()
                .map_or_else(State::default, |main| stored(&charge.limit, main, now)),
            lane: lane
                .as_ref()
                .filter(|_| has_lane)
                .map_or_else(State::default, |lane| stored(&charge.limit, lane, now)),
        };
        if main.is_some() {
            server.plant(&call.key, &field, slot, has_lane);
            slots.push((field, slot));
        } else {
            slots.push((field, Slot::default()));
        }
    }
    let answered = reply(server.call(&call), asked.len()).unwrap();
    let evaluations: Vec<Evaluation> = resolved
        .charges
        .iter()
        .zip(&slots)
        .map(|(charge, (_, slot))| evaluate(charge, *slot, answered.now, Micros(cap)))
        .collect();
    let decision = settle(&resolved, &evaluations);
    prop_assert_eq!(answered.charged, !decision.refused, "{:?}", evaluations);
    for (i, (field, before)) in slots.iter().enumerate() {
        prop_assert_eq!(answered.slots[i], *before);
        let written = decision.verdicts[i].charged || refund > 0 || evaluations[i].clamped;
        let wanted = match (decision.verdicts[i].charged, written) {
            (true, _) => evaluations[i].charged,
            (false, true) => evaluations[i].base,
            (false, false) => *before,
        };
        let after = server.read(&call.key, field);
        // What has run out by now may be gone: it is the initial state.
        let terms = charge_terms(&resolved, i);
        prop_assert!(
            holds(terms.0, after.main, wanted.main, answered.now)
                && terms
                    .1
                    .is_none_or(|lane| holds(lane, after.lane, wanted.lane, answered.now)),
            "{} of {:?}: {:?}, not {:?}",
            i,
            before,
            after,
            wanted
        );
        if written {
            let ttl = server.ttl(&call.key);
            prop_assert!(ttl != -1, "a key without expiry");
        }
    }
    Ok(())
}

fn ask() -> impl Strategy<Value = (u64, Option<u64>)> {
    let cost = prop_oneof![0..5u64, magnitude(MAX_UNITS)];
    prop_oneof![
        6 => cost.clone().prop_map(|cost| (0, Some(cost))),
        1 => cost.clone().prop_map(|cost| (cost, None)),
        1 => (cost.clone(), cost).prop_map(|(refund, cost)| (refund, Some(cost))),
    ]
}

/// Costs around what is left of plain buckets: the loop without functions that most requests take.
fn plain() -> impl Strategy<Value = Asked> {
    let ago = prop_oneof![9 => 0..3_000_000i64, 1 => magnitude(1 << 45).prop_map(|n| n as i64)];
    let state = (0..60u64, any::<u64>(), ago).prop_map(|(used, part, ago)| Planted { used, part, ago });
    (
        1..200u64,
        1..60u64,
        0..7usize,
        proptest::option::weighted(0.8, state),
    )
        .prop_map(|(units, burst, unit, planted)| (bucket("l", units, burst, Unit::ALL[unit]), planted, None))
}

#[test]
fn plain_buckets_agree_to_the_bit() {
    let server = std::cell::RefCell::new(Server::start());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1_000,
        ..ProptestConfig::default()
    });
    runner
        .run(
            &(proptest::collection::vec(plain(), 1..5), 1..8u64),
            |(asked, cost)| same(&mut server.borrow_mut(), &asked, (0, Some(cost)), 0),
        )
        .unwrap();
}

#[test]
fn a_key_lives_until_its_last_budget_is_full_and_a_second_more_at_most() {
    let mut server = Server::start();
    let limits = vec![
        bucket("l", 10, 30, Unit::Minute),
        bucket("m", 60, 60, Unit::Minute),
    ];
    let domain = domain([(&[("tenant", None)], limits)]);
    let request = request(&[&[("tenant", "acme")]]);
    let resolved: Resolved<'_> = resolve(Some(&domain), &request, false, Timestamp(0));
    let call = call(&resolved, &[0, 1], Micros::ZERO, true, present());
    for spent in 1..=30 {
        assert!(reply(server.call(&call), 2).unwrap().charged, "{spent}");
        let (ttl, full) = (server.ttl(&call.key), spent * 6_000);
        assert!(
            (full - 5_000..=full + 1_001).contains(&ttl),
            "{ttl} ms after {spent}"
        );
    }
    assert!(!reply(server.call(&call), 2).unwrap().charged);
}

#[test]
fn the_script_and_the_engine_agree_to_the_bit() {
    let server = std::cell::RefCell::new(Server::start());
    let cases = 1_500;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        ..ProptestConfig::default()
    });
    let one = (limit(), planted(), planted());
    let cap = prop_oneof![Just(1 << 52), magnitude(20_000_000)];
    runner
        .run(
            &(proptest::collection::vec(one, 1..4), ask(), cap),
            |(asked, ask, cap)| same(&mut server.borrow_mut(), &asked, ask, cap),
        )
        .unwrap();
}
