//! What operators do to limits at run time: overrides and resets, on every replica and on the record.
//!
//! All of it is in a [`Ledger`]: a replica that sees a version it does not know takes over the overrides
//! in force and hears of the resets since. While the store is gone, the last known overrides stay in
//! force; each ends at its own time, whether anybody sweeps it or not.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::engine::overrides::{Override, RunTime};
use crate::engine::policy::Policy;
use crate::engine::reset::Target;
use crate::engine::time::Timestamp;
use crate::store::ledger::{Ledger, LedgerError, Line, NewEntry};
use crate::store::redis::{CallError, Fate};

mod check;
mod follow;
mod json;
mod shape;

pub use check::moment;
pub use json::to_json;
pub use shape::{AuditLine, Listed, Origin, ResetSpec, Revocation, Spec, rfc3339};

/// What a reset is called in the log, and one that did not reach the budgets.
const RESET: &str = "reset";
const RESET_FAILED: &str = "reset_failed";

const MAYBE_RESET: &str = "the budgets may not have been reset: repeat it";

/// The overrides set at run time, as this replica knows them.
pub struct Overrides {
    ledger: Ledger,
    policy: Arc<ArcSwap<Policy>>,
    live: Arc<ArcSwap<RunTime>>,
    known: Mutex<Known>,
    /// One at a time: what is older must not be taken over later. Holds what a store has lost and does not have
    /// back yet.
    refreshing: tokio::sync::Mutex<Vec<Arc<Set>>>,
    listener: Listener,
    clock: Arc<dyn Clock>,
}

/// Called on every replica with the budgets that start afresh everywhere, in order.
pub type Listener = Box<dyn Fn(&[Target]) + Send + Sync>;

/// Why something was not done.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It makes no sense.
    #[error("{0}")]
    Senseless(String),
    /// No override is called so.
    #[error("no override is called {0}")]
    Unknown(String),
    /// It stands in a policy file.
    #[error("{0} stands in a policy file: take it out there")]
    InFile(String),
    /// There are too many.
    #[error("{0}")]
    Full(String),
    /// The store gave no answer.
    #[error("{0}")]
    Unavailable(String),
}

struct Known {
    version: Line,
    set: Vec<Arc<Set>>,
}

/// An override as it is known here.
struct Set {
    field: String,
    made: Line,
    spec: Spec,
    item: Arc<Override>,
    expires: Timestamp,
}

impl Overrides {
    /// Overrides kept in a ledger, checked against the policy in force.
    pub fn new(ledger: Ledger, policy: Arc<ArcSwap<Policy>>, clock: impl Clock, listener: Listener) -> Self {
        Self {
            ledger,
            policy,
            live: Arc::default(),
            known: Mutex::new(Known {
                // Budgets kept here from now on hear of resets, even if the store is first reached later.
                version: Line::before(clock.now()),
                set: Vec::new(),
            }),
            refreshing: tokio::sync::Mutex::default(),
            listener,
            clock: Arc::new(clock),
        }
    }

    /// What requests are resolved with.
    pub fn live(&self) -> Arc<ArcSwap<RunTime>> {
        Arc::clone(&self.live)
    }

    /// How many are in force, those of policy files included, and when the next of them ends.
    pub fn active(&self) -> (usize, Option<Timestamp>) {
        let now = self.clock.now();
        let policy = self.policy.load();
        let of_file = policy.domains.values().flat_map(|domain| &domain.overrides);
        let known = self.known.lock();
        let ends = of_file.map(|item| item.expires_at);
        let ends = ends.chain(known.set.iter().map(|set| Some(set.expires)));
        let in_force = ends.filter(|end| end.is_none_or(|end| now < end));
        in_force.fold((0, None), |(active, next): (usize, Option<Timestamp>), end| {
            (active + 1, next.into_iter().chain(end).min())
        })
    }

    /// Those in force, those of policy files first.
    pub fn list(&self) -> Vec<Listed> {
        let now = self.clock.now();
        let policy = self.policy.load();
        let mut domains: Vec<_> = policy.domains.values().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        let of_file = domains.into_iter().flat_map(|domain| {
            let items = domain.overrides.iter();
            let in_force = items.filter(|item| item.expires_at.is_none_or(|at| now < at));
            in_force.map(|item| Listed::of_file(&domain.name, item))
        });
        let known = self.known.lock();
        let set = known.set.iter().filter(|set| now < set.expires);
        let set = set.map(|set| Listed::of_run_time(&set.item.id, &set.spec, Some(set.made)));
        of_file.chain(set).collect()
    }

    /// The log of all changes, the newest first.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn audit(&self) -> Result<Vec<AuditLine>, Refusal> {
        let log = self.ledger.log().await.map_err(|error| unavailable(&error, ""))?;
        let (lines, errors): (Vec<_>, Vec<_>) = log.into_iter().map(AuditLine::read).unzip();
        // Once for all of them: who may read the record may do so again and again.
        let mut errors = errors.into_iter().flatten();
        if let Some(error) = errors.next() {
            let error = error.to_string();
            tracing::warn!(
                lines = errors.count() + 1,
                error,
                "lines of the record cannot be read"
            );
        }
        Ok(lines)
    }

    /// Sets an override, in place of one with the same target. It is in force here when this returns.
    ///
    /// # Errors
    /// When it makes no sense, there are too many, or the store gave no answer.
    pub async fn set(&self, spec: Spec) -> Result<Listed, Refusal> {
        let now = self.clock.now();
        let expires = check::set(&spec, &self.policy.load(), now).map_err(Refusal::Senseless)?;
        self.catch_up().await?;
        let id = format!("r{:012x}", fastrand::u64(..1 << 48));
        let entry = NewEntry {
            field: &spec.target(),
            expires,
            id: &id,
            body: &to_json(&spec),
        };
        self.ledger.put(&entry, now).await.map_err(|error| match error {
            LedgerError::Full => Refusal::Full(error.to_string()),
            LedgerError::Store(error) => unavailable(&error, "whether it was set, the list will say"),
        })?;
        tracing::info!(id, domain = ?spec.domain, limit = ?spec.limit, author = ?spec.author, "override set");
        self.refresh_after_change().await;
        let made = self
            .known
            .lock()
            .set
            .iter()
            .find(|set| *set.item.id == *id)
            .map(|set| set.made);
        Ok(Listed::of_run_time(&id, &spec, made))
    }

    /// Takes an override away. It is out of force here when this returns.
    ///
    /// # Errors
    /// When none is called so, it stands in a file, or the store gave no answer.
    pub async fn revoke(&self, id: &str, by: &Revocation) -> Result<(), Refusal> {
        check::revocation(by).map_err(Refusal::Senseless)?;
        let policy = self.policy.load_full();
        let mut in_files = policy.domains.values().flat_map(|domain| &domain.overrides);
        if in_files.any(|item| *item.id == *id) {
            return Err(Refusal::InFile(id.into()));
        }
        self.catch_up().await?;
        let found = self
            .known
            .lock()
            .set
            .iter()
            .find(|set| *set.item.id == *id)
            .cloned();
        let unknown = || Refusal::Unknown(id.chars().take(64).collect());
        let set = found.ok_or_else(unknown)?;
        let body = to_json(&Spec {
            author: by.author.clone(),
            reason: by.reason.clone(),
            ..set.spec.clone()
        });
        let removed = self.ledger.remove(&set.field, id, &body, self.clock.now()).await;
        if !removed.map_err(|error| unavailable(&error, "whether it was revoked, the list will say"))? {
            return Err(unknown());
        }
        tracing::info!(id, author = ?by.author, "override revoked");
        self.refresh_after_change().await;
        Ok(())
    }

    /// Makes a caller's budgets start afresh, everywhere.
    ///
    /// # Errors
    /// When it makes no sense, or the store gave no answer.
    pub async fn reset(self: &Arc<Self>, spec: &ResetSpec) -> Result<(), Refusal> {
        let targets = check::reset(spec, &self.policy.load()).map_err(Refusal::Senseless)?;
        self.catch_up().await?;
        let named = |target: &Target| {
            let values = target.values();
            let key = target.key(&values);
            spec.matches
                .keys()
                .all(|name| key.tag().any(|(own, _)| own == name))
        };
        let whole = spec.limit.is_none() && targets.iter().all(named);
        let (overrides, spec) = (Arc::clone(self), spec.clone());
        // On its own: whoever asked may hang up, and what is recorded is done all the same.
        let done = tokio::spawn(async move { overrides.start_afresh(&spec, &targets, whole).await });
        done.await
            .unwrap_or_else(|error| Err(Refusal::Unavailable(format!("{error}; {MAYBE_RESET}"))))
    }

    async fn start_afresh(&self, spec: &ResetSpec, targets: &[Target], whole: bool) -> Result<(), Refusal> {
        let body = to_json(spec);
        let now = self.clock.now();
        // The record first: nothing is done that it does not show.
        let noted = self.ledger.note(RESET, &body, now).await;
        noted.map_err(|error| unavailable(&error, "if it was recorded, it was not done: repeat it"))?;
        if let Err(error) = self.ledger.reset(targets, whole).await {
            if let Err(error) = self.ledger.note(RESET_FAILED, &body, now).await {
                tracing::warn!(%error, "a failed reset could not be recorded as such");
            }
            return Err(unavailable(&error, MAYBE_RESET));
        }
        tracing::info!(domain = ?spec.domain, limit = ?spec.limit, author = ?spec.author, "budgets reset");
        self.refresh_after_change().await;
        Ok(())
    }

    /// Before a change: another replica may have made one just now, and a store that lost its data has to have
    /// it back before it gets a first line again.
    async fn catch_up(&self) -> Result<(), Refusal> {
        let caught_up = self.refresh().await;
        caught_up.map_err(|error| unavailable(&error, "nothing was changed"))
    }

    async fn refresh_after_change(&self) {
        if let Err(error) = self.refresh().await {
            tracing::warn!(%error, "a change was made and is not in force here yet");
        }
    }
}

/// What requests are resolved with where these are in force, without those of files.
///
/// # Errors
/// When one cannot be read.
pub fn run_time(listed: &[Listed]) -> Result<RunTime, String> {
    let set = listed.iter().filter(|item| item.origin == Origin::RunTime);
    let read = set.map(|Listed { id, spec, .. }| {
        let expires = check::moment(spec.expires_at.as_deref().unwrap_or_default())?;
        let item = check::item(id, spec, expires)?;
        Ok((spec.domain.as_str().into(), Arc::new(item)))
    });
    Ok(RunTime::new(read.collect::<Result<Vec<_>, String>>()?))
}

/// What the store's silence means for a change that it was asked for.
fn unavailable(error: &CallError, unknown: &str) -> Refusal {
    let meaning = match error.fate() {
        Fate::NotDone => "nothing was changed",
        Fate::Unknown => unknown,
    };
    Refusal::Unavailable(if meaning.is_empty() {
        error.to_string()
    } else {
        format!("{error}; {meaning}")
    })
}

#[cfg(test)]
mod tests;
