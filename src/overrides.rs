//! What operators do to limits at run time: overrides and resets, on every replica and on the record.
//!
//! All of it is in a [`Ledger`]: a replica that sees a version it does not know takes over the overrides
//! in force and hears of the resets since. While the store is gone, the last known overrides stay in
//! force; each ends at its own time, whether anybody sweeps it or not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::engine::overrides::{Override, RunTime};
use crate::engine::policy::Policy;
use crate::engine::reset::Target;
use crate::engine::time::Timestamp;
use crate::store::ledger::{Ledger, LedgerError, Line, NewEntry, News};
use crate::store::redis::{CallError, Fate};

mod check;
mod json;
mod shape;

pub use check::moment;
pub use json::to_json;
pub use shape::{AuditLine, Listed, Origin, ResetSpec, Revocation, Spec, rfc3339};

/// How often a replica asks whether anything changed: well within a second.
const POLL: Duration = Duration::from_millis(300);

/// What a reset is called in the log, and one that did not reach the budgets.
const RESET: &str = "reset";
const RESET_FAILED: &str = "reset_failed";

/// The overrides set at run time, as this replica knows them.
pub struct Overrides {
    ledger: Ledger,
    policy: Arc<ArcSwap<Policy>>,
    live: Arc<ArcSwap<RunTime>>,
    known: Mutex<Known>,
    /// One at a time: what is older must not be taken over later.
    refreshing: tokio::sync::Mutex<()>,
    listeners: Vec<Listener>,
    clock: Arc<dyn Clock>,
}

/// What happened, for whoever keeps something that depends on it.
#[derive(Debug)]
pub enum Happened<'e> {
    /// Other overrides are in force.
    Overridden,
    /// These budgets start afresh, everywhere.
    Reset(&'e [Target]),
}

/// Called on every replica with all that happens, in order.
pub type Listener = Box<dyn Fn(&Happened<'_>) + Send + Sync>;

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
    pub fn new(
        ledger: Ledger,
        policy: Arc<ArcSwap<Policy>>,
        clock: impl Clock,
        listeners: Vec<Listener>,
    ) -> Self {
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
            listeners,
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
        let set = set.map(|set| Listed::of_run_time(&set.item.id, &set.spec, set.made));
        of_file.chain(set).collect()
    }

    /// The log of all changes, the newest first.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn audit(&self) -> Result<Vec<AuditLine>, Refusal> {
        let log = self.ledger.log().await.map_err(|error| unavailable(&error, ""))?;
        Ok(log.into_iter().map(AuditLine::new).collect())
    }

    /// Sets an override, in place of one with the same target. It is in force here when this returns.
    ///
    /// # Errors
    /// When it makes no sense, there are too many, or the store gave no answer.
    pub async fn set(&self, spec: Spec) -> Result<Listed, Refusal> {
        let now = self.clock.now();
        let checked = check::set(&spec, &self.policy.load(), now).map_err(Refusal::Senseless)?;
        self.catch_up().await?;
        let id = format!("r{:012x}", fastrand::u64(..1 << 48));
        let entry = NewEntry {
            field: &spec.target(),
            expires: checked.expires,
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
        Ok(Listed::of_run_time(&id, &spec, made.unwrap_or_default()))
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
    pub async fn reset(&self, spec: &ResetSpec) -> Result<(), Refusal> {
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
        let body = to_json(spec);
        let now = self.clock.now();
        // The record first: nothing is done that it does not show.
        let noted = self.ledger.note(RESET, &body, now).await;
        noted.map_err(|error| unavailable(&error, "if it was recorded, it was not done: repeat it"))?;
        if let Err(error) = self.ledger.reset(&targets, whole).await {
            if let Err(error) = self.ledger.note(RESET_FAILED, &body, now).await {
                tracing::warn!(%error, "a failed reset could not be recorded as such");
            }
            return Err(unavailable(
                &error,
                "the budgets may not have been reset: repeat it",
            ));
        }
        tracing::info!(domain = ?spec.domain, limit = ?spec.limit, author = ?spec.author, "budgets reset");
        self.refresh_after_change().await;
        Ok(())
    }

    /// Asks for changes again and again.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL).await;
            if let Err(error) = self.refresh().await {
                // The outage has its own lines in the log.
                tracing::debug!(%error, "overrides stay as last known");
            }
        }
    }

    /// Takes over what changed, and sweeps what has ended.
    ///
    /// # Errors
    /// When the store gave no answer: all stays as it was last known.
    pub async fn refresh(&self) -> Result<(), CallError> {
        let _alone = self.refreshing.lock().await;
        self.take_over_news().await?;
        let now = self.clock.now();
        let ended: Vec<String> = self
            .known
            .lock()
            .set
            .iter()
            .filter(|set| set.expires <= now)
            .map(|set| set.field.clone())
            .collect();
        if !ended.is_empty() {
            let fields: Vec<&str> = ended.iter().map(String::as_str).collect();
            self.ledger.sweep(&fields, now).await?;
            self.take_over_news().await?;
        }
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

    async fn take_over_news(&self) -> Result<(), CallError> {
        let known = self.known.lock().version;
        let Some(mut news) = self.ledger.news(known).await? else {
            return Ok(());
        };
        if news.version == Line::default() {
            self.restore().await;
            match self.ledger.news(known).await? {
                Some(restored) => news = restored,
                None => return Ok(()),
            }
        }
        self.take_over(news);
        Ok(())
    }

    /// A store without a log has lost all it had: what is known here goes back.
    async fn restore(&self) {
        let now = self.clock.now();
        let known = self.known.lock().set.clone();
        for set in known.iter().filter(|set| now < set.expires) {
            let entry = NewEntry {
                field: &set.field,
                expires: set.expires,
                id: &set.item.id,
                body: &to_json(&set.spec),
            };
            match self.ledger.restore(&entry).await {
                Ok(()) => {
                    tracing::warn!(id = ?set.item.id, "the store lost an override, which was set again")
                }
                Err(error) => {
                    tracing::warn!(id = ?set.item.id, %error, "the store lost an override");
                }
            }
        }
    }

    fn take_over(&self, news: News) {
        // Most are what they were: a line is never written twice.
        let known = self.known.lock().set.clone();
        let known: HashMap<Line, Arc<Set>> = known.into_iter().map(|set| (set.made, set)).collect();
        let mut set: Vec<Arc<Set>> = Vec::new();
        for entry in news.entries {
            if let Some(same) = known.get(&entry.made).filter(|same| same.field == entry.field) {
                set.push(Arc::clone(same));
                continue;
            }
            match check::stored(&entry) {
                Ok((spec, item)) => set.push(Arc::new(Set {
                    field: entry.field,
                    made: entry.made,
                    spec,
                    item: Arc::new(item),
                    expires: entry.expires,
                })),
                Err(error) => {
                    tracing::warn!(id = ?entry.id, error, "an override of the store cannot be read");
                }
            }
        }
        // The later beats the earlier.
        set.sort_by_key(|set| set.made);
        let live = RunTime::new(
            set.iter()
                .map(|set| (set.spec.domain.as_str().into(), Arc::clone(&set.item))),
        );
        self.live.store(Arc::new(live));
        *self.known.lock() = Known {
            version: news.version,
            set,
        };
        self.tell(&Happened::Overridden);
        for note in news.notes.iter().filter(|note| note.event == RESET) {
            // Which budgets they are is for the policy here to say; a limit that only others have is theirs.
            let reset = serde_json::from_str::<ResetSpec>(&note.body);
            let targets = reset
                .ok()
                .and_then(|reset| check::reset(&reset, &self.policy.load()).ok());
            let targets = targets.unwrap_or_default();
            self.tell(&Happened::Reset(&targets));
            tracing::info!(limits = targets.len(), "a caller's budgets start afresh here");
        }
    }

    fn tell(&self, happened: &Happened<'_>) {
        self.listeners.iter().for_each(|listener| listener(happened));
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
