//! Policy files to compiled policy, with every fault of every file.
//!
//! A file passes through [`yaml`] (text to nodes with positions), `read` (nodes to [`raw`]: every
//! key and scalar checked) and the compiler. No step stops at a fault: whoever mends a file sees
//! all that is wrong with it at once. A fault belongs to its domain; the others go live.

pub mod fault;
pub mod raw;
pub mod yaml;

mod keys;
mod read;
mod scalar;
mod syntax;

use std::sync::Arc;

use fault::{Fault, Faults};
use raw::RawPolicy;

/// The text of a policy file and what it is called.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file's name, as faults show it.
    pub name: Arc<str>,
    /// What it holds.
    pub text: String,
}

/// Reads one file as far as it can be read without looking at the others.
pub fn read(source: &Source) -> (Vec<RawPolicy>, Vec<Fault>) {
    let mut faults = Faults::new(Arc::clone(&source.name), &source.text);
    let documents = yaml::parse(&source.text, &mut faults);
    let policies = documents
        .iter()
        .map(|document| read::policy(document, &mut faults))
        .collect();
    (policies, faults.into_sorted())
}
