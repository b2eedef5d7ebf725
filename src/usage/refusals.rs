//! Who is refused by a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use heavykeeper::TopK;

use super::{Concentration, Denied, Labelled};
use crate::engine::time::Timestamp;

/// How many callers of a limit have a series of their own at most.
pub const LABELS_OF_A_LIMIT: usize = 20;

/// How many callers of all limits together.
pub const LABELS: usize = 200;

/// How many callers of a limit are followed in a window.
const FOLLOWED: usize = 48;

/// Cells of the sketch, and rows: 8 kB. A caller that makes more than a few in a thousand of the refusals of
/// a window is found whatever the others do.
const CELLS: usize = 256;
const ROWS: usize = 2;

/// The paper's: how fast a large count gives way to others.
const DECAY: f64 = 0.925;

/// A caller that makes less of the refusals, or was refused less often, is not worth a series.
const SHARE_FOR_LABEL: u64 = 100;
const COUNT_FOR_LABEL: u64 = 10;

/// The refusals of one limit.
///
/// The sketch says who is worth following; of those the refusals are counted one by one, from what the
/// sketch knew of them. Each refusal counts in one series: the caller's own, if it has one by then, or that
/// of all others. So no series ever goes back, and together they make up all refusals.
pub(super) struct Refusals {
    sketch: TopK<u64>,
    callers: HashMap<u64, Caller>,
    /// All of this window and of the one before.
    all: [u64; 2],
    total: u64,
    other: u64,
    labels: Arc<AtomicUsize>,
}

struct Caller {
    name: Arc<str>,
    /// In this window and in the one before.
    refused: [u64; 2],
    last: Timestamp,
    /// In this window and in the one before.
    attributed: [Option<Majority>; 2],
    label: Option<Label>,
}

/// A series, and its place among the [`LABELS`].
struct Label {
    refused: u64,
    labels: Arc<AtomicUsize>,
}

/// The value that is beside more than half of the refusals, if one is (Boyer and Moore).
struct Majority {
    value: Arc<str>,
    ahead: u64,
}

// === impl Refusals ===

impl Refusals {
    pub(super) fn new(labels: Arc<AtomicUsize>) -> Self {
        Self {
            sketch: sketch(),
            callers: HashMap::new(),
            all: [0; 2],
            total: 0,
            other: 0,
            labels,
        }
    }

    /// `id` is a keyed hash of the caller, `attributed` the escaped value beside this refusal.
    pub(super) fn add(
        &mut self,
        id: u64,
        at: Timestamp,
        name: impl FnOnce() -> Arc<str>,
        attributed: Option<&str>,
    ) {
        self.total += 1;
        self.all[0] += 1;
        let (gone, _) = self.sketch.add_with_evicted(&id, 1);
        if let Some(gone) = gone {
            self.unfollow(gone);
        }
        if !self.sketch.contains_top_k(&id) && !self.callers.contains_key(&id) {
            self.other += 1;
            return;
        }
        let known = self.sketch.count(&id).saturating_sub(1);
        let caller = self.callers.entry(id).or_insert_with(|| Caller {
            name: name(),
            refused: [known, 0],
            last: at,
            attributed: [None, None],
            label: None,
        });
        caller.refused[0] += 1;
        caller.last = at;
        if let Some(value) = attributed {
            Majority::vote(&mut caller.attributed[0], value);
        }
        if caller.label.is_none() {
            self.label(id);
        }
        match self.callers.get_mut(&id).and_then(|caller| caller.label.as_mut()) {
            Some(label) => label.refused += 1,
            None => self.other += 1,
        }
    }

    /// A window is over. Who was not refused in it is forgotten.
    pub(super) fn turn(&mut self) {
        self.sketch = sketch();
        self.all = [0, self.all[0]];
        for caller in self.callers.values_mut() {
            caller.refused = [0, caller.refused[0]];
            caller.attributed = [None, caller.attributed[0].take()];
        }
        self.callers.retain(|_, caller| caller.refused[1] > 0);
        if self.callers.len() > FOLLOWED {
            // Those that stayed on from the window before that do not pile up.
            let mut counts: Vec<(u64, u64)> =
                self.callers.iter().map(|(&id, c)| (c.refused[1], id)).collect();
            counts.sort_unstable();
            for (_, id) in &counts[..counts.len() - FOLLOWED] {
                self.callers.remove(id);
            }
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn lately(&self) -> u64 {
        self.all.iter().sum()
    }

    pub(super) fn other(&self) -> u64 {
        self.other
    }

    #[cfg(test)]
    pub(super) fn followed(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn labelled(&self) -> Vec<Labelled> {
        let labelled = |caller: &Caller| {
            let label = caller.label.as_ref()?;
            Some(Labelled {
                caller: Arc::clone(&caller.name),
                refused: label.refused,
            })
        };
        let mut list: Vec<Labelled> = self.callers.values().filter_map(labelled).collect();
        list.sort_by(|a, b| a.caller.cmp(&b.caller));
        list
    }

    /// Who was refused most, and how concentrated that is.
    pub(super) fn denied(&self) -> (Vec<Denied>, Concentration) {
        let all = self.lately().max(1) as f64;
        let denied = |caller: &Caller| Denied {
            caller: Arc::clone(&caller.name),
            refused: caller.lately(),
            share: caller.lately() as f64 / all,
            attributed: caller.attributed(),
            last: caller.last,
        };
        let mut list: Vec<Denied> = self.callers.values().map(denied).collect();
        list.sort_by(|a, b| b.refused.cmp(&a.refused).then_with(|| a.caller.cmp(&b.caller)));
        let top = |n: usize| {
            list.iter()
                .take(n)
                .map(|denied| denied.share)
                .sum::<f64>()
                .min(1.0)
        };
        let concentration = Concentration {
            top1: top(1),
            top5: top(5),
            top20: top(20),
        };
        list.truncate(LABELS_OF_A_LIMIT);
        (list, concentration)
    }

    /// The sketch follows another caller instead, or it lost its series. Who has a series keeps it, and who was
    /// refused in the window before is kept, until the next turn: callers of one size do not take turns.
    fn unfollow(&mut self, id: u64) {
        let held = |caller: &Caller| caller.refused[1] > 0 || caller.label.is_some();
        if !self.sketch.contains_top_k(&id) && !self.callers.get(&id).is_some_and(held) {
            self.callers.remove(&id);
        }
    }

    /// Gives a caller a series of its own, if it is worth one and there is place.
    fn label(&mut self, id: u64) {
        let lately = self.callers.get(&id).map_or(0, Caller::lately);
        if lately < COUNT_FOR_LABEL || lately * SHARE_FOR_LABEL < self.lately() {
            return;
        }
        let labelled = self.callers.iter().filter(|(_, caller)| caller.label.is_some());
        if labelled.clone().count() >= LABELS_OF_A_LIMIT {
            // Much less than this one, so that two of a kind do not take turns.
            let least = labelled.min_by_key(|(_, caller)| caller.lately());
            match least.map(|(id, caller)| (*id, caller.lately())) {
                Some((least, count)) if count * 2 < lately => {
                    if let Some(caller) = self.callers.get_mut(&least) {
                        caller.label = None;
                    }
                    self.unfollow(least);
                }
                _ => return,
            }
        }
        if let (Some(label), Some(caller)) = (Label::take(&self.labels), self.callers.get_mut(&id)) {
            caller.label = Some(label);
        }
    }
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refusals")
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

fn sketch() -> TopK<u64> {
    // What is counted is a keyed hash already, so a fixed seed gives nothing away.
    TopK::new(FOLLOWED, CELLS, ROWS, DECAY)
}

// === impl Caller ===

impl Caller {
    fn lately(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// The value that is further ahead in its window.
    fn attributed(&self) -> Option<Arc<str>> {
        let most = self.attributed.iter().flatten().max_by_key(|most| most.ahead);
        most.map(|most| Arc::clone(&most.value))
    }
}

// === impl Label ===

impl Label {
    fn take(labels: &Arc<AtomicUsize>) -> Option<Self> {
        let one_more = |n: usize| (n < LABELS).then_some(n + 1);
        labels
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        Some(Self {
            refused: 0,
            labels: Arc::clone(labels),
        })
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        self.labels.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Majority ===

impl Majority {
    fn vote(majority: &mut Option<Self>, value: &str) {
        match majority {
            Some(most) if *most.value == *value => most.ahead += 1,
            Some(most) if most.ahead > 0 => most.ahead -= 1,
            _ => {
                *majority = Some(Self {
                    value: value.into(),
                    ahead: 1,
                });
            }
        }
    }
}
