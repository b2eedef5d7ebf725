//! What the script is asked and what it answers: see the head of `redis.lua`.

use rmp::encode::{write_array_len, write_sint, write_uint};
use smallvec::SmallVec;

use super::key;
use crate::engine::budget::{State, Terms};
use crate::engine::decision::Slot;
use crate::engine::limit::Algorithm;
use crate::engine::resolve::{Charge, Resolved};
use crate::engine::time::{Micros, Timestamp, Windows};
use crate::store::Reply;

/// The script.
pub(crate) const SCRIPT: &str = include_str!("../redis.lua");

const SHADOW: u64 = 1;
const QUOTA: u64 = 2;
const OVERDRAFT: u64 = 4;
const LANE: u64 = 8;
const EVEN: u64 = 16;

/// Bytes of one state in a field.
const STATE: usize = 20;

/// One call of the script.
#[derive(Debug)]
pub(super) struct Call {
    /// The caller's key.
    pub(super) key: String,
    /// The arguments.
    pub(super) args: SmallVec<[Vec<u8>; 6]>,
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
    let charge = |i: &u16| &resolved.charges[usize::from(*i)];
    let mut asked = Vec::with_capacity(32 * group.len());
    let out = &mut asked;
    array(out, 3);
    uint(out, quota_refuses.into());
    let quota = group.iter().any(|i| charge(i).limit.quota);
    array(out, if quota { resolved.met.len() } else { 0 });
    if quota {
        for met in &resolved.met {
            let members = met
                .charges
                .iter()
                .filter_map(|i| group.iter().position(|member| member == i));
            let members: SmallVec<[usize; 4]> = members.collect();
            array(out, members.len());
            members.iter().for_each(|&i| uint(out, i as u64 + 1));
        }
    }
    array(out, group.len());
    for i in group {
        write_charge(out, charge(i), wait_cap, now);
    }
    let fields = group
        .iter()
        .map(|i| key::field(&resolved.key(charge(i))).into_bytes());
    let caller = group
        .first()
        .map(|i| key::key(&resolved.key(charge(i))))
        .unwrap_or_default();
    let args = std::iter::once(Vec::new()).chain(fields).collect();
    let mut call = Call { key: caller, args };
    call.args[0] = asked;
    call
}

fn write_charge(out: &mut Vec<u8>, charge: &Charge<'_>, wait_cap: Micros, now: Timestamp) {
    let terms = charge.terms();
    let lane = terms.lane();
    let windows = match terms.algorithm {
        Algorithm::FixedWindow(windows) | Algorithm::SlidingWindow(windows) => Some(windows),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => None,
    };
    let extra = match windows {
        None => 0,
        Some(Windows::Even { .. }) => 2,
        Some(Windows::Calendar { .. }) => 5,
    };
    let flags = [
        (charge.shadow, SHADOW),
        (charge.limit.quota, QUOTA),
        (terms.overdraft, OVERDRAFT),
        (lane.is_some(), LANE),
        (matches!(windows, Some(Windows::Even { .. })), EVEN),
    ];
    array(out, 12 + extra);
    uint(out, algorithm(&terms));
    uint(
        out,
        flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum(),
    );
    uint(out, charge.refund);
    match charge.spend {
        Some(cost) => uint(out, cost),
        None => {
            // Writing to a vector does not fail.
            let _ = write_sint(out, -1);
        }
    }
    uint(out, terms.units);
    uint(out, terms.period.0);
    uint(out, terms.burst);
    uint(out, terms.max_wait.min(wait_cap).0);
    uint(out, terms.max_wait.0);
    uint(out, if terms.overdraft { terms.deepest() } else { 0 });
    uint(out, lane.map_or(0, |lane| lane.units));
    uint(out, lane.map_or(0, |lane| lane.burst));
    match windows {
        Some(Windows::Even { length, lead }) => {
            uint(out, length.0);
            uint(out, lead.0);
        }
        Some(windows @ Windows::Calendar { .. }) => {
            // The window before, this one and the next: more than our clock and the store's differ.
            let first = windows.at(now).index.saturating_sub(1);
            uint(out, first);
            (first..first + 4).for_each(|index| uint(out, windows.start(index).0));
        }
        None => {}
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

fn array(out: &mut Vec<u8>, len: usize) {
    // Writing to a vector does not fail.
    let _ = write_array_len(out, u32::try_from(len).unwrap_or(u32::MAX));
}

fn uint(out: &mut Vec<u8>, n: u64) {
    let _ = write_uint(out, n);
}

/// Reads the answer to a call for that many charges.
///
/// # Errors
/// What is wrong with it.
pub(super) fn reply(value: redis::Value, charges: usize) -> Result<Reply, &'static str> {
    let redis::Value::Array(parts) = value else {
        return Err("not an array");
    };
    let mut parts = parts.into_iter();
    let (Some(redis::Value::Int(charged)), Some(redis::Value::Int(now))) = (parts.next(), parts.next())
    else {
        return Err("not two numbers first");
    };
    let now = Timestamp(u64::try_from(now).map_err(|_| "a negative time")?);
    let mut slots = SmallVec::new();
    for part in parts {
        let redis::Value::BulkString(bytes) = part else {
            return Err("not a string for a state");
        };
        slots.push(slot(&bytes).ok_or("a state of another length")?);
    }
    if slots.len() != charges {
        return Err("another number of states");
    }
    Ok(Reply {
        charged: charged == 1,
        now,
        slots,
    })
}

/// What a field holds.
fn slot(bytes: &[u8]) -> Option<Slot> {
    match bytes.len() {
        0 => Some(Slot::default()),
        // One state or two, and five bytes of expiry.
        25 => Some(Slot {
            main: state(bytes)?,
            lane: State::default(),
        }),
        45 => Some(Slot {
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
