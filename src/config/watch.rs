//! Reads policy files, and reads them again when they change.
//!
//! Changes are seen by notification (writes, renames, the symlink swap of a ConfigMap) and, where
//! notification fails, by comparing contents every two seconds. A change is taken when two reads
//! 200 ms apart agree, so that a file being written is not read half. What cannot be used keeps what
//! it gave before: a file its domains, a domain its rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use notify::Watcher as _;
use tokio::sync::mpsc;

pub use super::fault::Severity;
use super::fault::{Fault, escape};
use super::{Loaded, Source, load_with};
use crate::clock::Clock;
use crate::engine::policy::Policy;
use crate::engine::response::Response;

mod files;

pub use files::Names;
use files::read;

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
    report: Arc<ArcSwap<Vec<(Severity, String)>>>,
    held: Held,
    /// Domains in force that had limits once and have none now.
    emptied: BTreeSet<Box<str>>,
    last: Files,
    clock: Arc<dyn Clock>,
    on_reload: OnReload,
    unsaid: Response,
    names: Names,
}

/// The domains that each file holds: by name, whether they are good or not.
type Held = BTreeMap<Arc<str>, BTreeSet<Box<str>>>;

/// What was found under the paths.
#[derive(Clone, Debug, Default)]
struct Files {
    texts: Vec<Text>,
    /// What lies beside them, and why it is no policy file.
    skipped: Vec<(PathBuf, &'static str)>,
}

/// The name and the text of a file, or why it has none. A directory that cannot be read is one, too.
#[derive(Clone, Debug, PartialEq)]
struct Text {
    name: Arc<str>,
    text: Result<String, String>,
}

/// A path that holds no readable policy files.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file or directory.
        path: String,
        /// Why.
        reason: String,
    },
    /// No file of it names a domain.
    #[error("no domain in {paths}: a policy file begins with `domain: NAME`")]
    NoDomain {
        /// What was read.
        paths: String,
    },
}

impl ReadError {
    /// That no file under the paths names a domain.
    pub fn no_domain(paths: &[PathBuf]) -> Self {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        Self::NoDomain {
            paths: paths.join(", "),
        }
    }
}

impl Reloader {
    /// A reloader that publishes into `policy`, and into `report` what is wrong with the files.
    pub fn new(
        paths: Vec<PathBuf>,
        policy: Arc<ArcSwap<Policy>>,
        report: Arc<ArcSwap<Vec<(Severity, String)>>>,
        clock: Arc<dyn Clock>,
        on_reload: OnReload,
    ) -> Self {
        Self {
            paths,
            policy,
            report,
            held: Held::new(),
            emptied: BTreeSet::new(),
            last: Files::default(),
            clock,
            on_reload,
            unsaid: Response::default(),
            names: Names::default(),
        }
    }

    /// The same; `unsaid` is what answers look like in a domain without a `response`.
    pub fn unsaid(self, unsaid: Response) -> Self {
        Self { unsaid, ..self }
    }

    /// The same, which takes those files of a directory for policy files.
    pub fn named(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// Loads for the first time. Faulty files are no error: they wait for being mended.
    ///
    /// # Errors
    /// When a path cannot be read, or no file names a domain or has a fault.
    pub fn start(&mut self) -> Result<Outcome, ReadError> {
        let files = read(&self.paths, &self.names);
        if let Some(error) = files.texts.iter().find_map(Text::error) {
            return Err(error);
        }
        let outcome = self.apply(files);
        if self.policy.load().domains.is_empty() && outcome == Outcome::Ok {
            return Err(ReadError::no_domain(&self.paths));
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
            let Some(files) = self.settled(forced).await else {
                continue;
            };
            // Compiling a large policy takes longer than a request may wait for its thread.
            let applied = tokio::task::spawn_blocking(move || {
                let before = self.policy.load_full();
                self.apply(files);
                retire(&before);
                self
            });
            self = match applied.await {
                Ok(reloader) => reloader,
                Err(error) => {
                    tracing::error!(%error, "policy files are no longer followed");
                    return;
                }
            };
        }
    }

    /// The files, once two reads agree; nothing when they are the ones in force.
    async fn settled(&self, forced: bool) -> Option<Files> {
        let mut files = self.read_again().await?;
        if files.texts == self.last.texts && !forced {
            return None;
        }
        loop {
            tokio::time::sleep(SETTLE).await;
            let again = self.read_again().await?;
            if again.texts == files.texts {
                return (forced || again.texts != self.last.texts).then_some(again);
            }
            files = again;
        }
    }

    async fn read_again(&self) -> Option<Files> {
        let (paths, names) = (self.paths.clone(), self.names.clone());
        tokio::task::spawn_blocking(move || read(&paths, &names))
            .await
            .ok()
    }

    /// Compiles the files and publishes what can be used.
    fn apply(&mut self, files: Files) -> Outcome {
        if files.skipped != self.last.skipped {
            for (path, reason) in &files.skipped {
                tracing::info!(path = %path.display(), reason, "skipped");
            }
        }
        let sources: Vec<Source> = files.texts.iter().filter_map(Text::source).collect();
        let loaded = load_with(&sources, &self.unsaid, self.clock.now());
        let before = self.policy.load_full();
        let mut notes = Vec::new();
        let held = self.held_by(&files, &loaded, &mut notes);
        let mut faulty = loaded.has_errors() || files.texts.iter().any(|text| text.text.is_err());

        let mut next = Policy {
            version: before.version + 1,
            ..Policy::default()
        };
        let mut emptied = BTreeSet::new();
        for item in loaded.domains {
            let Some(domain) = item.domain else { continue };
            let had_limits = || {
                let old = before.domains.get(&item.name);
                old.is_some_and(|old| old.limit_count() > 0)
            };
            if domain.limit_count() == 0 && (self.emptied.contains(&item.name) || had_limits()) {
                let (file, name) = (escape(&item.file), escape(&item.name));
                let note = format!("{file}: domain {name} has lost its last limit");
                notes.push((Severity::Warning, note));
                emptied.insert(item.name.clone());
            }
            next.domains.insert(item.name, domain);
        }
        let mut changed = !next.domains.is_empty();
        for (file, names) in &held {
            for name in names {
                if next.domains.contains_key(name) {
                    continue;
                }
                faulty = true;
                let (file, shown) = (escape(file), escape(name));
                if let Some(kept) = before.domains.get(name) {
                    notes.push((Severity::Error, format!("{file}: domain {shown} stays as it was")));
                    next.domains.insert(name.clone(), Arc::clone(kept));
                } else {
                    notes.push((Severity::Error, format!("{file}: domain {shown} is not in force")));
                }
            }
        }
        let mut gone = before
            .domains
            .keys()
            .filter(|name| !next.domains.contains_key(*name));
        changed |= gone.next().is_some();
        let outcome = match (faulty, changed) {
            (false, _) => Outcome::Ok,
            (true, true) => Outcome::Partial,
            (true, false) => Outcome::Rejected,
        };

        log(outcome, &next, &before, &loaded.faults, &notes);
        let next = if outcome == Outcome::Rejected {
            before
        } else {
            Arc::new(next)
        };
        (self.on_reload)(outcome, &next);
        self.policy.store(next);
        self.held = held;
        self.emptied = emptied;
        self.last = files;
        let faults = loaded
            .faults
            .iter()
            .map(|fault| (fault.severity, fault.to_string().trim_end().to_owned()));
        self.report.store(Arc::new(faults.chain(notes).collect()));
        outcome
    }

    /// What each file holds now. A file that cannot be read, or not whole, holds what it held before.
    fn held_by(&self, files: &Files, loaded: &Loaded, notes: &mut Vec<(Severity, String)>) -> Held {
        let mut held = Held::new();
        for item in &loaded.domains {
            let names = held.entry(Arc::clone(&item.file)).or_default();
            names.insert(item.name.clone());
        }
        for Text { name, text } in &files.texts {
            let Err(reason) = text else { continue };
            let note = format!("{}: cannot be read ({reason})", escape(name));
            notes.push((Severity::Error, note));
            let below = self
                .held
                .iter()
                .filter(|(file, _)| Path::new(&***file).starts_with(&**name));
            held.extend(below.map(|(file, names)| (Arc::clone(file), names.clone())));
        }
        for file in loaded.files.iter().filter(|file| !file.whole) {
            let before = self.held.get(&file.name).cloned().unwrap_or_default();
            if !loaded.faults.iter().any(|fault| fault.file == file.name) {
                let note = format!("{}: no policy in it", escape(&file.name));
                notes.push((Severity::Error, note));
            }
            held.entry(Arc::clone(&file.name)).or_default().extend(before);
        }
        held
    }
}

// === impl Text ===

/// Waits until no request holds a policy any more, but not for those that are held for long: whoever lets go last
/// frees all of its limits, and that takes longer than a request may.
fn retire(before: &Arc<Policy>) {
    const ROUNDS: usize = 100;
    for _ in 0..ROUNDS {
        if Arc::strong_count(before) == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Text {
    fn source(&self) -> Option<Source> {
        let text = self.text.as_ref().ok()?.clone();
        let name = Arc::clone(&self.name);
        Some(Source { name, text })
    }

    fn error(&self) -> Option<ReadError> {
        let reason = self.text.as_ref().err()?.clone();
        let path = escape(&self.name);
        Some(ReadError::Unreadable { path, reason })
    }
}

fn log(outcome: Outcome, next: &Policy, before: &Policy, faults: &[Fault], notes: &[(Severity, String)]) {
    for fault in faults {
        let (file, help) = (escape(&fault.file), fault.help.as_deref());
        let (line, column) = (fault.span.line, fault.span.column);
        match fault.severity {
            Severity::Error => tracing::error!(%file, line, column, help, "{}", fault.message),
            Severity::Warning => tracing::warn!(%file, line, column, help, "{}", fault.message),
        }
    }
    for (_, note) in notes {
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
    let texts = read(paths, &Names::Yaml).texts;
    match texts.iter().find_map(Text::error) {
        Some(error) => Err(error),
        None => Ok(texts.iter().filter_map(Text::source).collect()),
    }
}

// === impl Files ===

impl Files {
    /// Adds a file, unless it is there: a path may be given beside the directory that holds it.
    fn add(&mut self, path: &Path, text: Result<String, String>) {
        let name: Arc<str> = path.display().to_string().into();
        if self.texts.iter().all(|text| text.name != name) {
            self.texts.push(Text { name, text });
        }
    }
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
