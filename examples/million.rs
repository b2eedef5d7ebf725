//! How much memory a million live callers take: the tables' own count, and what the process grew by.

use std::borrow::Cow;

use cota::clock::SystemClock;
use cota::engine::key::Identity;
use cota::engine::limit::{Algorithm, Limit, Numbers, Share, Unit};
use cota::engine::resolve::{Charge, Found, LimitRef, Met, Resolved};
use cota::engine::time::Micros;
use cota::store::Store;
use cota::store::memory::Memory;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CALLERS: usize = 1_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit = limit();
    let store = Memory::new(SystemClock, 2 * CALLERS);
    let before = resident()?;
    for caller in 0..CALLERS {
        let met = Met {
            found: Found::Limits,
            charges: [0].into_iter().collect(),
            values: [Cow::Owned(format!("tenant-{caller}"))].into_iter().collect(),
            caller: Some(0),
            ..Met::default()
        };
        let charge = Charge {
            limit: LimitRef::Policy(&limit),
            numbers: limit.numbers,
            plan: None,
            changed_by: None,
            met: 0,
            refund: 0,
            spend: Some(1),
            shadow: false,
        };
        let mut resolved = Resolved {
            charges: [charge].into_iter().collect(),
            met: [met].into_iter().collect(),
            ..Resolved::default()
        };
        store.decide(&mut resolved, Micros::ZERO).await?;
    }
    let grown = resident()?.saturating_sub(before);
    let live = store.len();
    println!(
        "{live} callers, {:.1} bytes a caller",
        store.allocated() as f64 / live as f64
    );
    println!(
        "the process grew by {:.1} bytes a caller",
        grown as f64 / live as f64
    );
    Ok(())
}

fn limit() -> Limit {
    let (algorithm, period) = (Algorithm::TokenBucket, Unit::Day.period());
    let identity = Identity::new("bench", &["tenant"], Some("tenant"), &algorithm, &period);
    let numbers = Numbers {
        requests_per_unit: 1_000,
        burst: 1_000,
        max_wait: Micros::ZERO,
        max_overshoot: Share::ZERO,
        unlimited: false,
    };
    Limit::plain(Some("tenant"), identity, algorithm, period, numbers)
}

/// Bytes of this process in memory.
fn resident() -> Result<usize, Box<dyn std::error::Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm
        .split_whitespace()
        .nth(1)
        .ok_or("no resident size")?
        .parse()?;
    Ok(pages * 4_096)
}
