//! How a replica keeps up: it asks the ledger for what is new, takes it over, and gives back what a store lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Known, Overrides, RESET, ResetSpec, Set, check, to_json};
use crate::engine::overrides::RunTime;
use crate::store::ledger::{LedgerError, Line, NewEntry, News};
use crate::store::redis::CallError;

/// How often a replica asks whether anything changed: well within a second.
const POLL: Duration = Duration::from_millis(300);

impl Overrides {
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
        let mut lost = self.refreshing.lock().await;
        self.take_over_news(&mut lost).await?;
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
            self.take_over_news(&mut lost).await?;
        }
        Ok(())
    }

    async fn take_over_news(&self, lost: &mut Vec<Arc<Set>>) -> Result<(), CallError> {
        let known = self.known.lock().version;
        let Some(mut news) = self.ledger.news(known).await? else {
            // A store that holds all again, as one that comes back with its data does, has lost nothing.
            lost.clear();
            return Ok(());
        };
        if news.version == Line::default() {
            lost.clone_from(&self.known.lock().set);
        }
        if !lost.is_empty() {
            // What is known here stays so until the store has all of it again.
            self.restore(lost).await?;
            match self.ledger.news(known).await? {
                Some(restored) => news = restored,
                None => return Ok(()),
            }
        }
        self.take_over(news);
        Ok(())
    }

    /// A store without a log has lost all it had: what is known here goes back, one by one. After an error the rest
    /// is tried again.
    async fn restore(&self, lost: &mut Vec<Arc<Set>>) -> Result<(), CallError> {
        let now = self.clock.now();
        while let Some(set) = lost.last() {
            let entry = NewEntry {
                field: &set.field,
                expires: set.expires,
                id: &set.item.id,
                body: &to_json(&set.spec),
            };
            if now < set.expires {
                match self.ledger.restore(&entry).await {
                    Ok(()) => {
                        tracing::warn!(id = ?set.item.id, "the store lost an override, which was set again");
                    }
                    Err(LedgerError::Store(error)) => return Err(error),
                    Err(error @ LedgerError::Full) => {
                        tracing::warn!(id = ?set.item.id, %error, "the store lost an override");
                    }
                }
            }
            lost.pop();
        }
        Ok(())
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
        for note in news.notes.iter().filter(|note| note.event == RESET) {
            self.hear_of_reset(&note.body);
        }
    }

    fn hear_of_reset(&self, body: &str) {
        let reset = match serde_json::from_str::<ResetSpec>(body) {
            Ok(reset) => reset,
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(
                    error,
                    "a reset on the record cannot be read: it was not done here"
                );
                return;
            }
        };
        // Which budgets they are is for the policy here to say; a limit that only others have is theirs.
        match check::reset(&reset, &self.policy.load()) {
            Ok(targets) => {
                (self.listener)(&targets);
                tracing::info!(limits = targets.len(), "a caller's budgets start afresh here");
            }
            Err(error) => tracing::warn!(
                ?error,
                "a reset on the record concerns no budget of the policy here"
            ),
        }
    }
}
