//! Reads policy files, and reads them again when they change.
//!
//! Changes are seen by notification (writes, renames, the symlink swap of a ConfigMap) and, where
//! notification fails, by comparing contents every two seconds. A change is taken when two reads
//! 200 ms apart agree, so that a file being written is not read half. What cannot be used keeps what
//! it gave before: a file its domains, a domain its rules.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use notify::Watcher as _;
use tokio::sync::mpsc;

use super::fault::{Fault, Severity};
use super::{Source, load};
use crate::clock::Clock;
use crate::engine::policy::Policy;

/// How often contents are compared when no notification came.
const POLL: Duration = Duration::from_secs(2);

/// How far apart two reads must agree.
const SETTLE: Duration = Duration::from_millis(200);

/// What a reload came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Everything is in force as written.
    Ok,
    /// Some domains are in force as written; others keep their last good version, if they had one.
    Partial,
    /// Nothing new is in force.
    Rejected,
}

/// Called at every reload with the policy that is about to be in force.
pub type OnReload = Box<dyn Fn(Outcome, &Arc<Policy>) + Send + Sync>;

/// Loads policy files into a policy that others read.
pub struct Reloader {
    paths: Vec<PathBuf>,
    policy: Arc<ArcSwap<Policy>>,
    report: Arc<ArcSwap<Vec<String>>>,
    /// The domains that each file holds.
    held: HashMap<Arc<str>, Vec<Box<str>>>,
    last: Vec<Text>,
    clock: Arc<dyn Clock>,
    on_reload: OnReload,
}

/// A file's name and text, or why it has none.
#[derive(Clone, Debug, PartialEq)]
struct Text {
    name: Arc<str>,
    text: Result<String, String>,
}

/// A path that holds no readable policy files.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No file of it names a domain.
    #[error("no domain in {paths}: a policy file begins with `domain: NAME`")]
    NoDomain {
        /// What was read.
        paths: String,
    },
}

impl Reloader {
    /// A reloader that publishes into `policy`, and into `report` what is wrong with the files.
    pub fn new(
        paths: Vec<PathBuf>,
        policy: Arc<ArcSwap<Policy>>,
        report: Arc<ArcSwap<Vec<String>>>,
        clock: Arc<dyn Clock>,
        on_reload: OnReload,
    ) -> Self {
        Self {
            paths,
            policy,
            report,
            held: HashMap::new(),
            last: Vec::new(),
            clock,
            on_reload,
        }
    }

    /// Loads for the first time. Faulty files are no error: they wait for being mended.
    ///
    /// # Errors
    /// When a path cannot be read, or no file names a domain or has a fault.
    pub fn start(&mut self) -> Result<Outcome, ReadError> {
        let texts = read(&self.paths)?;
        if let Some(Text {
            name,
            text: Err(reason),
        }) = texts.iter().find(|text| text.text.is_err())
        {
            return Err(unreadable(name, reason));
        }
        let outcome = self.apply(texts);
        if self.policy.load().domains.is_empty() && outcome == Outcome::Ok {
            let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
            return Err(ReadError::NoDomain {
                paths: paths.join(", "),
            });
        }
        Ok(outcome)
    }

    /// Follows the files until the sender of `reload` is gone; each message reads them at once.
    pub async fn follow(mut self, mut reload: mpsc::Receiver<()>) {
        let (changed, mut changes) = mpsc::channel(1);
        let _watcher = watcher(&self.paths, changed);
        let mut poll = tokio::time::interval(POLL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let forced = tokio::select! {
                told = reload.recv() => match told {
                    Some(()) => true,
                    None => return,
                },
                Some(()) = changes.recv() => false,
                _ = poll.tick() => false,
            };
            if let Some(texts) = self.settled(forced).await {
                self.apply(texts);
            }
        }
    }

    /// The texts, once two reads agree; nothing when they are the ones in force.
    async fn settled(&self, forced: bool) -> Option<Vec<Text>> {
        let mut texts = self.read_again().await?;
        if texts == self.last && !forced {
            return None;
        }
        loop {
            tokio::time::sleep(SETTLE).await;
            let again = self.read_again().await?;
            if again == texts {
                return (forced || texts != self.last).then_some(texts);
            }
            texts = again;
        }
    }

    async fn read_again(&self) -> Option<Vec<Text>> {
        let paths = self.paths.clone();
        match tokio::task::spawn_blocking(move || read(&paths)).await {
            Ok(Ok(texts)) => Some(texts),
            Ok(Err(error)) => {
                // The directory is gone or closed: what is in force stays.
                let reason = std::error::Error::source(&error)
                    .map(ToString::to_string)
                    .unwrap_or_default();
                tracing::warn!(%error, reason, "policy files cannot be read, keeping what is in force");
                None
            }
            Err(_) => None,
        }
    }

    /// Compiles the texts and publishes what can be used.
    fn apply(&mut self, texts: Vec<Text>) -> Outcome {
        let sources: Vec<Source> = texts
            .iter()
            .filter_map(|Text { name, text }| {
                let text = text.as_ref().ok()?.clone();
                Some(Source {
                    name: Arc::clone(name),
                    text,
                })
            })
            .collect();
        let loaded = load(&sources, self.clock.now());
        let before = self.policy.load_full();
        let mut next = Policy {
            version: before.version + 1,
            ..Policy::default()
        };
        let mut held: HashMap<Arc<str>, Vec<Box<str>>> = HashMap::new();
        let mut notes = Vec::new();
        let (mut fresh, mut failed) = (0, 0);
        for Text { name, text } in &texts {
            let Err(reason) = text else { continue };
            failed += 1;
            notes.push(format!(
                "{name}: cannot be read ({reason}); it keeps what it held"
            ));
            held.insert(Arc::clone(name), self.held.get(name).cloned().unwrap_or_default());
        }
        for file in loaded.files {
            let names = held.entry(Arc::clone(&file.name)).or_default();
            let kept = self.held.get(&file.name).filter(|_| !file.whole);
            if let Some(kept) = kept.filter(|kept| !kept.is_empty()) {
                failed += 1;
                notes.push(format!(
                    "{}: empty or not readable whole; it keeps: {}",
                    file.name,
                    kept.join(", ")
                ));
                names.extend(kept.iter().cloned());
            }
        }
        for item in loaded.domains {
            held.entry(Arc::clone(&item.file))
                .or_default()
                .push(item.name.clone());
            let Some(domain) = item.domain else {
                failed += 1;
                continue;
            };
            if let Some(old) = before.domains.get(&item.name)
                && old.limit_count() > 0
                && domain.limit_count() == 0
            {
                notes.push(format!("{}: domain {} lost its last limit", item.file, item.name));
            }
            fresh += 1;
            next.domains.insert(item.name, domain);
        }
        for name in held.values().flatten() {
            if !next.domains.contains_key(name)
                && let Some(kept) = before.domains.get(name)
            {
                next.domains.insert(name.clone(), Arc::clone(kept));
            }
        }
        let errors = loaded
            .faults
            .iter()
            .any(|fault| fault.severity == Severity::Error)
            || failed > 0;
        let outcome = match (errors, fresh) {
            (false, _) => Outcome::Ok,
            (true, 0) => Outcome::Rejected,
            (true, _) => Outcome::Partial,
        };
        log(outcome, &next, &before, &loaded.faults, &notes);
        let next = if outcome == Outcome::Rejected {
            before
        } else {
            Arc::new(next)
        };
        (self.on_reload)(outcome, &next);
        if outcome != Outcome::Rejected {
            self.policy.store(next);
            self.held = held;
        }
        self.last = texts;
        let faults = loaded.faults.iter().map(ToString::to_string);
        self.report.store(Arc::new(faults.chain(notes).collect()));
        outcome
    }
}

fn log(outcome: Outcome, next: &Policy, before: &Policy, faults: &[Fault], notes: &[String]) {
    for fault in faults {
        match fault.severity {
            Severity::Error => tracing::error!("{fault}"),
            Severity::Warning => tracing::warn!("{fault}"),
        }
    }
    for note in notes {
        tracing::warn!("{note}");
    }
    let limits: usize = next.domains.values().map(|domain| domain.limit_count()).sum();
    let mut gone: Vec<&str> = before
        .domains
        .keys()
        .filter(|name| !next.domains.contains_key(*name))
        .map(|name| &**name)
        .collect();
    gone.sort_unstable();
    match outcome {
        Outcome::Rejected => tracing::error!("policy rejected, keeping what is in force"),
        Outcome::Ok | Outcome::Partial => {
            tracing::info!(
                version = next.version,
                domains = next.domains.len(),
                limits,
                ?gone,
                "policy in force"
            );
        }
    }
}

/// The policy files under the paths, for one look.
///
/// # Errors
/// When a path or a file cannot be read.
pub fn sources(paths: &[PathBuf]) -> Result<Vec<Source>, ReadError> {
    let source = |Text { name, text }| match text {
        Ok(text) => Ok(Source { name, text }),
        Err(reason) => Err(unreadable(&name, &reason)),
    };
    read(paths)?.into_iter().map(source).collect()
}

fn unreadable(name: &str, reason: &str) -> ReadError {
    ReadError::Io {
        path: PathBuf::from(name),
        source: io::Error::other(reason.to_owned()),
    }
}

/// Every policy file under the paths, in order of name. A file that cannot be read is part of the
/// answer; a path that cannot be read is an error.
fn read(paths: &[PathBuf]) -> Result<Vec<Text>, ReadError> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files).map_err(|source| ReadError::Io {
            path: path.clone(),
            source,
        })?;
    }
    files.dedup();
    let text = |path: &PathBuf| match std::fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|e| format!("not UTF-8: {}", e.utf8_error())),
        Err(error) => Err(error.to_string()),
    };
    Ok(files
        .iter()
        .map(|path| Text {
            name: path.display().to_string().into(),
            text: text(path),
        })
        .collect())
}

/// The policy files of a directory, deeper ones included, or the one file that the path is.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !std::fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path)? {
        entries.push(entry?.path());
    }
    entries.sort();
    for entry in entries {
        // Dot entries are editors' and, in a ConfigMap, where the links point to.
        let hidden = entry
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden {
            continue;
        }
        let is_dir = std::fs::metadata(&entry).is_ok_and(|meta| meta.is_dir());
        let is_yaml = entry.extension().is_some_and(|ext| ext == "yaml" || ext == "yml");
        if is_dir {
            collect(&entry, files)?;
        } else if is_yaml {
            files.push(entry);
        } else {
            tracing::debug!(file = %entry.display(), "skipped: not *.yaml or *.yml");
        }
    }
    Ok(())
}

/// Notifies of changes below the paths for as long as it lives. Without it, polling remains.
fn watcher(paths: &[PathBuf], changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Reading a file is an event too; telling of it would make every look lead to another.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // A full channel already holds the message.
            let _ = changed.try_send(());
        }
    };
    let mut watcher = notify::recommended_watcher(tell)
        .inspect_err(|error| tracing::warn!(%error, "no notification of file changes, comparing every 2 s"))
        .ok()?;
    for path in paths {
        // A file is replaced by renaming: its directory knows.
        let (place, mode) = if path.is_dir() {
            (path.as_path(), notify::RecursiveMode::Recursive)
        } else {
            (
                path.parent()
                    .filter(|p| !p.as_os_str().is_empty())
                    .unwrap_or(Path::new(".")),
                notify::RecursiveMode::NonRecursive,
            )
        };
        if let Err(error) = watcher.watch(place, mode) {
            tracing::warn!(%error, path = %place.display(), "no notification of file changes, comparing every 2 s");
        }
    }
    Some(watcher)
}
