//! Who was never refused but is near the ceiling.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Near;
use crate::engine::time::Timestamp;

/// From which share of a budget on a caller is near its ceiling, in thousandths.
pub const NEAR: u32 = 800;

/// How many callers near it are kept for a limit: the nearest.
pub const MOST_NEAR: usize = 32;

/// Bits of the memory for who was refused: with some thousand callers refused in a window, callers that
/// were not begin to be taken for one of them, and are not shown.
const BITS: usize = 8_192;

/// The callers near a limit's ceiling.
#[derive(Debug, Default)]
pub(super) struct NearCeiling {
    callers: HashMap<u64, Peak>,
    /// Who was refused in this window and in the one before: made with the first refusal.
    refused: [Option<Box<[u64; BITS / 64]>>; 2],
}

#[derive(Debug)]
struct Peak {
    caller: Arc<str>,
    ratio: u32,
    at: Timestamp,
}

impl NearCeiling {
    /// A caller used that much of its budget, in thousandths.
    pub(super) fn reached(&mut self, id: u64, ratio: u32, at: Timestamp, name: impl FnOnce() -> Arc<str>) {
        if let Some(peak) = self.callers.get_mut(&id) {
            if ratio >= peak.ratio {
                (peak.ratio, peak.at) = (ratio, at);
            }
            return;
        }
        if self.was_refused(id) {
            return;
        }
        if self.callers.len() >= MOST_NEAR {
            let lowest = self.callers.iter().min_by_key(|(_, peak)| peak.ratio);
            match lowest.map(|(id, peak)| (*id, peak.ratio)) {
                Some((lowest, least)) if least < ratio => self.callers.remove(&lowest),
                _ => return,
            };
        }
        let caller = name();
        self.callers.insert(id, Peak { caller, ratio, at });
    }

    pub(super) fn refused(&mut self, id: u64) {
        self.callers.remove(&id);
        let bits = self.refused[0].get_or_insert_with(|| Box::new([0; BITS / 64]));
        for bit in probes(id) {
            bits[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// A window is over that began at `began`; what came before it is forgotten, and so is what is still to come
    /// by a clock that was set back.
    pub(super) fn turn(&mut self, began: Timestamp, now: Timestamp) {
        self.refused[1] = self.refused[0].take();
        self.callers.retain(|_, peak| (began..=now).contains(&peak.at));
    }

    pub(super) fn len(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn list(&self) -> Vec<Near> {
        let near = |peak: &Peak| Near {
            caller: Arc::clone(&peak.caller),
            ratio: f64::from(peak.ratio) / 1_000.0,
            at: peak.at,
        };
        let mut list: Vec<Near> = self.callers.values().map(near).collect();
        list.sort_by(|a, b| b.ratio.total_cmp(&a.ratio).then_with(|| a.caller.cmp(&b.caller)));
        list
    }

    fn was_refused(&self, id: u64) -> bool {
        let set =
            |bits: &[u64; BITS / 64]| probes(id).iter().all(|bit| bits[bit / 64] >> (bit % 64) & 1 == 1);
        self.refused.iter().flatten().any(|bits| set(bits))
    }
}

/// The identity is a hash, so any of its bits will do.
fn probes(id: u64) -> [usize; 2] {
    [id as usize % BITS, (id >> 32) as usize % BITS]
}
