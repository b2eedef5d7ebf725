//! Every file of `tests/policies`: what is said of the bad ones, and that the good ones are taken.
//!
//! `bad/NAME.yaml` holds one fault, `bad/NAME.expected` what is printed for it. `good/NAME.yaml`
//! starts with `# limits: N`; a `good/NAME.expected` beside it holds warnings. With
//! `BLESS_EXPECTED` in the environment the expected files are written instead of compared.

use std::fs;
use std::path::{Path, PathBuf};

use cota::config::fault::{Fault, Severity};
use cota::config::{Loaded, Source, load};
use cota::engine::time::Timestamp;

/// 2026-12-01: what has expired is a matter of the test, not of the day it runs on.
const NOW: Timestamp = Timestamp(1_796_083_200_000_000);

fn cases(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/policies")
        .join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder is part of the repository")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn check(path: &Path) -> Loaded {
    let name = path.file_name().expect("a file").to_string_lossy();
    let text = fs::read_to_string(path).expect("UTF-8");
    let source = Source {
        name: name.as_ref().into(),
        text,
    };
    load(&[source], NOW)
}

/// Compares what is printed with the file beside `path`; `None` if it is as expected.
fn difference(path: &Path, faults: &[Fault]) -> Option<String> {
    let printed: String = faults.iter().map(Fault::to_string).collect();
    let expected = path.with_extension("expected");
    if std::env::var_os("BLESS_EXPECTED").is_some() {
        fs::write(&expected, &printed).expect("writable");
    }
    let wanted = fs::read_to_string(&expected).unwrap_or_else(|_| "a missing file\n".to_owned());
    let name = path.file_name()?.to_string_lossy();
    (printed != wanted).then(|| format!("{name}\n--- expected\n{wanted}--- printed\n{printed}"))
}

fn report(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} cases differ\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn bad_files_are_told_what_is_wrong() {
    let failures = cases("bad")
        .into_iter()
        .filter_map(|path| difference(&path, &check(&path).faults));
    report(&failures.collect::<Vec<_>>());
}

#[test]
fn bad_files_hold_one_error_each_and_nothing_of_them_goes_live() {
    let failures = cases("bad").into_iter().filter_map(|path| {
        let loaded = check(&path);
        let errors = loaded.faults.iter().filter(|f| f.severity == Severity::Error);
        let live = loaded.domains.iter().any(|domain| domain.domain.is_some());
        let errors = errors.count();
        (errors != 1 || live).then(|| format!("{}: {errors} errors, live: {live}", path.display()))
    });
    report(&failures.collect::<Vec<_>>());
}

#[test]
fn good_files_are_taken_with_all_their_limits() {
    let mut failures = Vec::new();
    for path in cases("good") {
        let loaded = check(&path);
        let text = fs::read_to_string(&path).expect("UTF-8");
        let wanted = text
            .trim_start_matches('\u{feff}')
            .lines()
            .next()
            .unwrap_or_default();
        let domains = || loaded.domains.iter().map(|loaded| loaded.domain.as_ref());
        let limits: usize = domains().flatten().map(|domain| domain.limit_count()).sum();
        if wanted != format!("# limits: {limits}") {
            failures.push(format!("{}: {wanted:?}, found {limits}", path.display()));
        }
        if loaded.has_errors() || domains().any(|domain| domain.is_none()) {
            failures.push(format!("{}: an error: {:?}", path.display(), loaded.faults));
        }
        if !loaded.faults.is_empty() || path.with_extension("expected").exists() {
            failures.extend(difference(&path, &loaded.faults));
        }
    }
    report(&failures);
}

#[test]
fn no_expected_file_is_left_without_its_policy() {
    for folder in ["bad", "good"] {
        let cases = cases(folder);
        let folder = cases[0].parent().expect("a folder");
        for entry in fs::read_dir(folder).expect("readable") {
            let file = entry.expect("readable").path();
            assert!(file.with_extension("yaml").exists(), "{}", file.display());
        }
    }
}
