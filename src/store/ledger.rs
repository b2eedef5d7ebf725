//! What replicas agree on beside budgets: the entries in force now, and the log of what became of them.
//!
//! An entry is text of others' making under a field of its own; a new one takes the place of what its
//! field held. Each change is one atomic step that also writes the log, whose last line is the version of
//! all. So whoever sees a version that it does not know reads everything, and whoever sees the one it
//! knows has read one line.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use super::redis::{CallError, Redis};
use crate::engine::reset::Target;
use crate::engine::time::{Micros, Timestamp};

/// How many entries there may be.
pub const MOST_ENTRIES: usize = 1_000;

/// How many lines the log keeps.
pub const MOST_LINES: usize = 10_000;

/// How many of them are told, the newest.
pub const MOST_TOLD: usize = 1_000;

/// An entry in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is about: there is one entry for each.
    pub field: String,
    /// When it was made: its line in the log.
    pub made: Line,
    /// When it ends.
    pub expires: Timestamp,
    /// How it is called.
    pub id: String,
    /// The rest.
    pub body: String,
}

/// The place of a line in the log: the millisecond in which it was written, and which one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64, pub u64);

impl Line {
    /// The version of whoever knows nothing yet and wants to hear of what is written from now on: no line's own.
    pub fn before(now: Timestamp) -> Self {
        Self(
            (now.0 / Micros::from_millis(1).0).saturating_sub(1),
            1_000_000_000,
        )
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its place.
    pub line: Line,
    /// What happened.
    pub event: String,
    /// To which entry; empty if to none.
    pub id: String,
    /// Which entry had to make room; empty if none.
    pub replaced: String,
    /// The rest.
    pub body: String,
}

/// What is new to somebody who knew a version.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// The version now.
    pub version: Line,
    /// All entries.
    pub entries: Vec<Entry>,
    /// The lines since.
    pub notes: Vec<Note>,
}

/// An entry to be made.
#[derive(Clone, Debug)]
pub struct NewEntry<'e> {
    /// See [`Entry::field`].
    pub field: &'e str,
    /// See [`Entry::expires`].
    pub expires: Timestamp,
    /// See [`Entry::id`].
    pub id: &'e str,
    /// See [`Entry::body`].
    pub body: &'e str,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// There are [`MOST_ENTRIES`].
    #[error("there are {MOST_ENTRIES} already: revoke some first")]
    Full,
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] CallError),
}

/// Where the entries are kept.
#[derive(Debug)]
pub enum Ledger {
    /// In this process.
    Memory(Mutex<Book>),
    /// In the store, for all replicas.
    Redis(Redis),
}

impl Ledger {
    /// One of this process alone, that is lost with it.
    pub fn in_memory() -> Self {
        Self::Memory(Mutex::default())
    }

    /// What is new since `known`; `None`: nothing.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn news(&self, known: Line) -> Result<Option<News>, CallError> {
        match self {
            Self::Memory(book) => Ok(book.lock().news(known)),
            Self::Redis(redis) => redis.news(known).await,
        }
    }

    /// Makes an entry, in place of the one that its field holds.
    ///
    /// # Errors
    /// When there is no room, or the store gave no answer: it may have been made then.
    pub async fn put(&self, entry: &NewEntry<'_>, now: Timestamp) -> Result<(), LedgerError> {
        match self {
            Self::Memory(book) => book.lock().put(entry, now),
            Self::Redis(redis) => redis.put(entry).await,
        }
    }

    /// Makes an entry again that a store has lost, unless somebody was faster.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn restore(&self, entry: &NewEntry<'_>) -> Result<(), LedgerError> {
        match self {
            // It loses nothing while it lives.
            Self::Memory(_) => Ok(()),
            Self::Redis(redis) => redis.restore(entry).await,
        }
    }

    /// Makes budgets that are kept beside the ledger start afresh; `whole`: all that their callers have.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn reset(&self, targets: &[Target], whole: bool) -> Result<(), CallError> {
        match self {
            // Those of this process are for whoever hears of the line in the log.
            Self::Memory(_) => Ok(()),
            Self::Redis(redis) => redis.reset(targets, whole).await,
        }
    }

    /// Takes an entry away, unless it has gone; `body` is for the log. Says whether it was there.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn remove(&self, field: &str, id: &str, body: &str, now: Timestamp) -> Result<bool, CallError> {
        match self {
            Self::Memory(book) => Ok(book.lock().remove(field, id, body, now)),
            Self::Redis(redis) => redis.remove(field, id, body).await,
        }
    }

    /// Takes away what has ended, of these fields; each is logged once, whoever else does this.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn sweep(&self, fields: &[&str], now: Timestamp) -> Result<(), CallError> {
        match self {
            Self::Memory(book) => {
                book.lock().sweep(fields, now);
                Ok(())
            }
            Self::Redis(redis) => redis.sweep(fields).await,
        }
    }

    /// Writes a line that concerns no entry.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn note(&self, event: &str, body: &str, now: Timestamp) -> Result<(), CallError> {
        match self {
            Self::Memory(book) => {
                book.lock().write(now, event, "", "", body);
                Ok(())
            }
            Self::Redis(redis) => redis.note(event, body).await,
        }
    }

    /// The log, the newest line first, a part of it.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn log(&self) -> Result<Vec<Note>, CallError> {
        match self {
            Self::Memory(book) => Ok(book.lock().log.iter().rev().take(MOST_TOLD).cloned().collect()),
            Self::Redis(redis) => redis.log().await,
        }
    }
}

/// What events are called in the log.
pub mod event {
    /// An entry was made.
    pub const SET: &str = "set";
    /// An entry was taken away.
    pub const REVOKED: &str = "revoked";
    /// An entry has ended.
    pub const EXPIRED: &str = "expired";
    /// An entry that a store had lost was made again.
    pub const RESTORED: &str = "restored";
}

/// Entries and log of one process.
#[derive(Debug, Default)]
pub struct Book {
    entries: BTreeMap<String, Entry>,
    log: VecDeque<Note>,
}

impl Book {
    fn news(&self, known: Line) -> Option<News> {
        let version = self.log.back().map(|note| note.line).unwrap_or_default();
        let is_new = |note: &&Note| known < note.line;
        (known != version).then(|| News {
            version,
            entries: self.entries.values().cloned().collect(),
            notes: self.log.iter().filter(is_new).cloned().collect(),
        })
    }

    fn put(&mut self, new: &NewEntry<'_>, now: Timestamp) -> Result<(), LedgerError> {
        let replaced = self.entries.get(new.field).map(|old| old.id.clone());
        if replaced.is_none() && self.entries.len() >= MOST_ENTRIES {
            return Err(LedgerError::Full);
        }
        let made = self.write(now, event::SET, new.id, &replaced.unwrap_or_default(), new.body);
        let entry = Entry {
            field: new.field.into(),
            made,
            expires: new.expires,
            id: new.id.into(),
            body: new.body.into(),
        };
        self.entries.insert(entry.field.clone(), entry);
        Ok(())
    }

    fn remove(&mut self, field: &str, id: &str, body: &str, now: Timestamp) -> bool {
        let there = self.entries.get(field).is_some_and(|entry| entry.id == id);
        if there {
            self.entries.remove(field);
            self.write(now, event::REVOKED, id, "", body);
        }
        there
    }

    fn sweep(&mut self, fields: &[&str], now: Timestamp) {
        for field in fields {
            if let Some(entry) = self.entries.get(*field).filter(|entry| entry.expires <= now) {
                let Entry { id, body, .. } = entry.clone();
                self.entries.remove(*field);
                self.write(now, event::EXPIRED, &id, "", &body);
            }
        }
    }

    fn write(&mut self, now: Timestamp, event: &str, id: &str, replaced: &str, body: &str) -> Line {
        let last = self.log.back().map(|note| note.line).unwrap_or_default();
        let now = Line(now.0 / Micros::from_millis(1).0, 0);
        // A clock that goes back does not take the log along.
        let line = now.max(Line(last.0, last.1 + 1));
        if self.log.len() >= MOST_LINES {
            self.log.pop_front();
        }
        self.log.push_back(Note {
            line,
            event: event.into(),
            id: id.into(),
            replaced: replaced.into(),
            body: body.into(),
        });
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(book: &mut Book, field: &str, id: &str, expires: u64) -> Result<(), LedgerError> {
        let entry = NewEntry {
            field,
            expires: Timestamp(expires),
            id,
            body: "",
        };
        book.put(&entry, Timestamp(5_000))
    }

    fn told(book: &Book) -> Vec<(&str, &str, &str)> {
        let lines = book.log.iter();
        lines.map(|n| (&*n.event, &*n.id, &*n.replaced)).collect()
    }

    #[test]
    fn the_log_tells_what_became_of_each_entry() {
        let mut book = Book::default();
        put(&mut book, "acme", "one", 9_000).unwrap();
        put(&mut book, "acme", "two", 9_000).unwrap();
        put(&mut book, "beta", "three", 7_000).unwrap();
        assert!(
            !book.remove("acme", "one", "", Timestamp(5_000)),
            "it was replaced"
        );
        book.sweep(&["acme", "beta"], Timestamp(6_999));
        book.sweep(&["acme", "beta"], Timestamp(7_000));
        book.sweep(&["acme", "beta"], Timestamp(7_000));
        assert!(book.remove("acme", "two", "", Timestamp(0)));
        let expected = [
            ("set", "one", ""),
            ("set", "two", "one"),
            ("set", "three", ""),
            ("expired", "three", ""),
            ("revoked", "two", ""),
        ];
        assert_eq!(told(&book), expected);
        assert!(book.log.iter().is_sorted_by_key(|note| note.line));
        assert_eq!(book.news(Line::default()).unwrap().entries, []);
    }

    #[test]
    fn news_are_what_was_written_since() {
        let mut book = Book::default();
        assert!(book.news(Line::default()).is_none());
        put(&mut book, "gone", "zero", 9_000).unwrap();
        let start = Line::before(Timestamp(6_000));
        let news = book.news(start).unwrap();
        assert_eq!((news.entries.len(), news.notes.len()), (1, 0));
        let line = book.write(Timestamp(6_000), event::SET, "one", "", "");
        let news = book.news(start).unwrap();
        assert_eq!((news.version, news.notes.len()), (line, 1));
        assert!(book.news(line).is_none());
    }

    #[test]
    fn entries_and_log_are_bounded() {
        let mut book = Book::default();
        for i in 0..MOST_ENTRIES {
            put(&mut book, &format!("{i}"), "id", 9_000).unwrap();
        }
        assert!(matches!(
            put(&mut book, "more", "id", 9_000),
            Err(LedgerError::Full)
        ));
        for _ in 0..MOST_LINES {
            put(&mut book, "7", "again", 9_000).unwrap();
        }
        assert_eq!(book.log.len(), MOST_LINES);
    }
}
