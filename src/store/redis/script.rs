//! What the script is asked and what it answers: see the head of `redis.lua`.

use rmp::encode::{write_array_len, write_sint, write_str, write_uint};
use smallvec::SmallVec;

use super::key;
use super::returns::Return;
use crate::engine::budget::{State, Terms};
use crate::engine::decision::Slot;
use crate::engine::limit::{Algorithm, MAX_UNITS};
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::{Micros, Timestamp, Windows};
use crate::store::Reply;

/// The script.
pub const SCRIPT: &str = include_str!("../redis.lua");

const SHADOW: u64 = 1;
const QUOTA: u64 = 2;
const OVERDRAFT: u64 = 4;
const LANE: u64 = 8;
const EVEN: u64 = 16;
const IN_LANE: u64 = 32;

/// Bytes of one state; of a field with it and its expiry, and of one with two.
const STATE: usize = 20;
const FIELD: usize = STATE + 5;
const TWO: usize = 2 * STATE + 5;

/// One call of the script.
#[derive(Debug)]
pub(super) struct Call {
    /// The caller's key.
    pub(super) key: String,
    /// The argument.
    pub(super) arg: Vec<u8>,
}

/// What is asked of one charge.
struct Asked {
    charge: u16,
    refund: u64,
    spend: Option<u64>,
    /// The refund is this charge, given back.
    returns: Option<Return>,
}

/// The call that asks for those charges of a request, which share a caller. `now` is ours and only picks
/// the calendar windows around the present.
pub(super) fn call(
    resolved: &Resolved<'_>,
    group: &[u16],
    wait_cap: Micros,
    quota_refuses: bool,
    now: Timestamp,
) -> Call {
    let asked = |&i: &u16| {
        let charge = &resolved.charges[usize::from(i)];
        Asked {
            charge: i,
            refund: charge.refund,
            spend: charge.spend,
            returns: None,
        }
    };
    let asked: SmallVec<[Asked; 4]> = group.iter().map(asked).collect();
    encode(resolved, &asked, wait_cap, quota_refuses, now)
}

/// The call that gives back charges, which share a caller. `now` is ours, as in [`call`].
pub(super) fn give_back(resolved: &Resolved<'_>, returns: &[Return], now: Timestamp) -> Call {
    let asked = |returned: &Return| Asked {
        charge: returned.charge,
        refund: returned.units,
        spend: None,
        returns: Some(*returned),
    };
    let asked: SmallVec<[Asked; 4]> = returns.iter().map(asked).collect();
    encode(resolved, &asked, Micros::ZERO, false, now)
}

fn encode(
    resolved: &Resolved<'_>,
    asked: &[Asked],
    wait_cap: Micros,
    quota_refuses: bool,
    now: Timestamp,
) -> Call {
    let charge = |asked: &Asked| &resolved.charges[usize::from(asked.charge)];
    let plain: Option<SmallVec<[Plain; 4]>> = asked
        .iter()
        .map(|asked| Plain::of(charge(asked), asked))
        .collect();
    let mut packed = Vec::with_capacity(64 * asked.len());
    let out = &mut packed;
    match &plain {
        Some(_) => sint(out, -(asked.len() as i64)),
        None => uint(out, asked.len() as u64),
    }
    let mut field = String::with_capacity(64);
    for asked in asked {
        field.clear();
        key::field(&mut field, &resolved.key(charge(asked)));
        text(out, &field);
    }
    if let Some(plain) = plain {
        plain.iter().for_each(|plain| plain.write(out));
    } else {
        write_quota(out, resolved, asked, quota_refuses);
        for asked in asked {
            write_charge(out, charge(asked), asked, wait_cap, now);
        }
    }
    let caller = asked
        .first()
        .map(|asked| key::key(&resolved.key(charge(asked))))
        .unwrap_or_default();
    Call {
        key: caller,
        arg: packed,
    }
}

/// A charge that is nothing but a cost of a token bucket.
struct Plain {
    cost: u64,
    units: u64,
    period: u64,
    burst: u64,
}

impl Plain {
    fn of(charge: &Charge<'_>, asked: &Asked) -> Option<Self> {
        let terms = charge.terms();
        let cost = asked.spend.filter(|&cost| cost > 0)?;
        let plain = matches!(terms.algorithm, Algorithm::TokenBucket)
            && terms.units > 0
            && terms.max_wait == Micros::ZERO
            && asked.refund == 0
            && asked.returns.is_none()
            && flags(charge, &terms, asked) == 0;
        plain.then_some(Self {
            cost,
            units: terms.units,
            period: terms.period.0,
            burst: terms.burst,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        uint(out, self.cost);
        uint(out, self.units);
        uint(out, self.period);
        if self.burst == self.units {
            sint(out, -1);
        } else {
            uint(out, self.burst);
        }
    }
}

fn write_quota(out: &mut Vec<u8>, resolved: &Resolved<'_>, asked: &[Asked], refuses: bool) {
    let quota = |asked: &Asked| resolved.charges[usize::from(asked.charge)].limit.quota;
    if !asked.iter().any(quota) {
        uint(out, 0);
        return;
    }
    array(out, 1 + resolved.met.len());
    uint(out, refuses.into());
    for met in &resolved.met {
        let place = |i: &u16| asked.iter().position(|asked| asked.charge == *i);
        let members: SmallVec<[usize; 4]> = met.charges.iter().filter_map(place).collect();
        array(out, members.len());
        members.iter().for_each(|&i| uint(out, i as u64 + 1));
    }
}

fn flags(charge: &Charge<'_>, terms: &Terms<'_>, asked: &Asked) -> u64 {
    let flags = [
        (charge.shadow, SHADOW),
        (charge.limit.quota, QUOTA),
        (terms.overdraft, OVERDRAFT),
        (terms.lane().is_some(), LANE),
        (matches!(windows(terms), Some(Windows::Even { .. })), EVEN),
        (asked.returns.is_some_and(|returned| returned.lane), IN_LANE),
    ];
    flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum()
}

fn windows<'t>(terms: &Terms<'t>) -> Option<&'t Windows> {
    match terms.algorithm {
        Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => Some(windows),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => None,
    }
}

fn write_charge(out: &mut Vec<u8>, charge: &Charge<'_>, asked: &Asked, wait_cap: Micros, now: Timestamp) {
    let terms = charge.terms();
    let (lane, windows) = (terms.lane(), windows(&terms));
    let flags = flags(charge, &terms, asked);
    uint(out, algorithm(&terms));
    uint(out, flags);
    optional(out, asked.spend);
    uint(out, terms.units);
    uint(out, terms.period.0);
    uint(out, terms.burst);
    if windows.is_none() && flags == 0 && asked.refund == 0 && terms.max_wait == Micros::ZERO {
        uint(out, 0);
        return;
    }
    array(out, 9);
    write_windows(out, windows, now);
    uint(out, terms.max_wait.min(wait_cap).0);
    uint(out, terms.max_wait.0);
    uint(out, asked.refund);
    optional(out, asked.returns.map(|returned| returned.born));
    uint(
        out,
        asked
            .returns
            .map_or(0, |returned| returned.lasts.0.min(MAX_UNITS)),
    );
    uint(out, if terms.overdraft { terms.deepest() } else { 0 });
    uint(out, lane.map_or(0, |lane| lane.units));
    uint(out, lane.map_or(0, |lane| lane.burst));
}

fn write_windows(out: &mut Vec<u8>, windows: Option<&Windows>, now: Timestamp) {
    match windows {
        Some(Windows::Even { length, lead }) => {
            array(out, 2);
            uint(out, length.0);
            uint(out, lead.0);
        }
        Some(windows @ Windows::Calendar { .. }) => {
            // The window before, this one and the next: more than our clock and the store's differ.
            let first = windows.at(now).index.saturating_sub(1);
            array(out, 5);
            uint(out, first);
            (first..first + 4).for_each(|index| uint(out, windows.start(index).0));
        }
        None => uint(out, 0),
    }
}

/// A number, or -1.
fn optional(out: &mut Vec<u8>, n: Option<u64>) {
    match n {
        Some(n) => uint(out, n),
        None => sint(out, -1),
    }
}

fn algorithm(terms: &Terms<'_>) -> u64 {
    match terms.algorithm {
        Algorithm::FixedWindow(_) => 0,
        Algorithm::SlidingWindow(_) => 1,
        Algorithm::TokenBucket => 2,
        Algorithm::LeakyBucket => 3,
    }
}

// Writing to a vector does not fail.

fn array(out: &mut Vec<u8>, len: usize) {
    let _ = write_array_len(out, u32::try_from(len).unwrap_or(u32::MAX));
}

fn uint(out: &mut Vec<u8>, n: u64) {
    let _ = write_uint(out, n);
}

fn sint(out: &mut Vec<u8>, n: i64) {
    let _ = write_sint(out, n);
}

fn text(out: &mut Vec<u8>, text: &str) {
    let _ = write_str(out, text);
}

/// Reads the answer to a call for that many charges.
///
/// # Errors
/// What is wrong with it.
pub(super) fn reply(value: redis::Value, charges: usize) -> Result<Reply, &'static str> {
    match value {
        redis::Value::Array(parts) => listed(&parts, charges),
        redis::Value::BulkString(bytes) => joined(&bytes, charges),
        _ => Err("neither an array nor a string"),
    }
}

fn listed(parts: &[redis::Value], charges: usize) -> Result<Reply, &'static str> {
    let Some((redis::Value::Int(now), parts)) = parts.split_last() else {
        return Err("not a number last");
    };
    if parts.len() != charges {
        return Err("another number of states");
    }
    let slots = parts.iter().map(|part| match part {
        redis::Value::Nil => Ok(Slot::default()),
        redis::Value::BulkString(bytes) => slot(bytes).ok_or("a state of another length"),
        _ => Err("not a string for a state"),
    });
    Ok(said(*now, slots.collect::<Result<_, _>>()?))
}

/// All held one state, and so are of one length.
fn joined(bytes: &[u8], charges: usize) -> Result<Reply, &'static str> {
    let Some((states, now)) = bytes.split_last_chunk() else {
        return Err("no time");
    };
    if states.len() != charges * FIELD {
        return Err("another number of states");
    }
    let slots = states.chunks_exact(FIELD).map(slot).collect::<Option<_>>();
    Ok(said(
        i64::from_be_bytes(*now),
        slots.ok_or("a state of another length")?,
    ))
}

fn said(now: i64, slots: SmallVec<[Slot; 4]>) -> Reply {
    Reply {
        charged: now > 0,
        now: Timestamp(now.unsigned_abs()),
        slots,
    }
}

/// What a field holds.
fn slot(bytes: &[u8]) -> Option<Slot> {
    match bytes.len() {
        FIELD => Some(Slot {
            main: state(bytes)?,
            lane: State::default(),
        }),
        TWO => Some(Slot {
            main: state(bytes)?,
            lane: state(&bytes[STATE..])?,
        }),
        _ => None,
    }
}

fn state(bytes: &[u8]) -> Option<State> {
    let number = |range: std::ops::Range<usize>| {
        let bytes = bytes.get(range)?;
        Some(bytes.iter().fold(0, |n, &byte| n << 8 | u64::from(byte)))
    };
    Some(State {
        used: number(0..7)?,
        part: number(7..13)?,
        at: number(13..20)?,
    })
}
