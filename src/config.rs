//! Policy files to compiled policy, with every fault of every file.
//!
//! A file passes through [`yaml`] (text to nodes with positions), `read` (nodes to [`raw`]: every
//! key and scalar checked), `compile` (raw to the engine's values) and, if all is well, `lint`. No
//! step stops at a fault: whoever mends a file sees all that is wrong with it at once. A fault
//! belongs to its domain; the others go live.

pub mod fault;
pub mod keys;
pub mod raw;
pub mod schema;
pub mod watch;
pub mod yaml;

mod compile;
mod lint;
mod read;
mod scalar;
mod syntax;
mod words;

use std::hash::Hasher as _;
use std::sync::Arc;

use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

use crate::engine::policy::Domain;
use crate::engine::response::Response;
use crate::engine::time::Timestamp;
use fault::{Fault, Faults, Severity};
use raw::RawPolicy;

/// The text of a policy file and what it is called.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file's name, as faults show it.
    pub name: Arc<str>,
    /// What it holds.
    pub text: String,
}

/// What a set of policy files comes to.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Every domain whose name could be read, in the order of the files.
    pub domains: Vec<LoadedDomain>,
    /// Every file, in the order given.
    pub files: Vec<LoadedFile>,
    /// All faults, by file and position.
    pub faults: Vec<Fault>,
}

/// One domain of a file.
#[derive(Debug)]
pub struct LoadedDomain {
    /// Its name.
    pub name: Box<str>,
    /// The file that holds it.
    pub file: Arc<str>,
    /// The line its document starts on.
    pub line: u32,
    /// Its rules; `None` when it has an error, and its last good version should stay.
    pub domain: Option<Arc<Domain>>,
}

/// How much of a file was readable.
#[derive(Debug)]
pub struct LoadedFile {
    /// Its name.
    pub name: Arc<str>,
    /// Whether all of its domains are known by name. If not (a document is no YAML, or has no
    /// readable `domain`, or the file is empty), a domain that this file held before may still be
    /// meant, and its last good version should stay.
    pub whole: bool,
}

impl Loaded {
    /// Whether any fault is an error.
    pub fn has_errors(&self) -> bool {
        self.faults.iter().any(|fault| fault.severity == Severity::Error)
    }
}

/// Reads and compiles policy files. `now` tells which overrides have expired.
pub fn load(sources: &[Source], now: Timestamp) -> Loaded {
    load_with(sources, &Response::default(), now)
}

/// The same; `unsaid` is what answers look like in a domain without a `response`.
pub fn load_with(sources: &[Source], unsaid: &Response, now: Timestamp) -> Loaded {
    let mut loaded = Loaded::default();
    let mut read = Vec::with_capacity(sources.len());
    for source in sources {
        let mut faults = Faults::new(Arc::clone(&source.name), &source.text);
        let parsed = yaml::parse(&source.text, &mut faults);
        let policies: Vec<RawPolicy> = parsed
            .documents
            .iter()
            .map(|document| read::policy(document, &mut faults))
            .collect();
        let whole =
            parsed.complete && !policies.is_empty() && policies.iter().all(|policy| policy.domain.is_some());
        loaded.files.push(LoadedFile {
            name: Arc::clone(&source.name),
            whole,
        });
        read.push((policies, faults, revision(&source.text)));
    }
    refuse_twice(&mut read);
    for (policies, mut faults, revision) in read {
        for policy in &policies {
            let before = faults.errors();
            let mut compiled = compile::domain(policy, unsaid, &mut faults);
            compiled.domain.revision = revision.as_str().into();
            let good = !policy.broken && faults.errors() == before;
            if good {
                lint::domain(policy, &compiled, now, &mut faults);
            }
            let Some(name) = &policy.domain else { continue };
            loaded.domains.push(LoadedDomain {
                name: name.value.as_str().into(),
                file: Arc::clone(faults.file()),
                line: policy.span.line,
                domain: good.then(|| Arc::new(compiled.domain)),
            });
        }
        loaded.faults.extend(faults.into_sorted());
    }
    loaded
}

/// Sixteen hex digits that tell one text from another, on every replica alike.
fn revision(text: &str) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    format!("{:016x}", hasher.finish())
}

/// A domain in two places: neither counts, since nobody can say which is meant.
fn refuse_twice(read: &mut [(Vec<RawPolicy>, Faults<'_>, String)]) {
    let mut first: HashMap<String, (usize, usize)> = HashMap::new();
    let mut twice = Vec::new();
    for (file, (policies, ..)) in read.iter().enumerate() {
        for (document, policy) in policies.iter().enumerate() {
            let Some(domain) = &policy.domain else { continue };
            match first.get(&domain.value) {
                Some(before) => twice.push(((file, document), *before)),
                None => {
                    first.insert(domain.value.clone(), (file, document));
                }
            }
        }
    }
    for (again, before) in twice {
        let other = (
            Arc::clone(read[before.0].1.file()),
            read[before.0].0[before.1].domain.clone(),
        );
        read[before.0].0[before.1].broken = true;
        let (policies, faults, _) = &mut read[again.0];
        policies[again.1].broken = true;
        let ((file, Some(first)), Some(domain)) = (other, &policies[again.1].domain) else {
            continue;
        };
        let place = match &file == faults.file() {
            true => format!("on line {}", first.span.line),
            false => format!("in {}, line {}", fault::escape(&file), first.span.line),
        };
        faults
            .error(
                domain.span,
                format!(
                    "the domain {} is already defined {place}",
                    fault::quoted(&domain.value)
                ),
            )
            .help("put all descriptors of a domain into one document; until then neither place counts");
    }
}

#[cfg(test)]
mod tests;
