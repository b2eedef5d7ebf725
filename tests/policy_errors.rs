//! Every file of `tests/policies`: what is said of the bad ones, and that the good ones are taken.
//!
//! `bad/NAME.yaml` holds one fault, `bad/NAME.expected` what is printed for it. `good/NAME.yaml`
//! starts with `# limits: N`; a `good/NAME.expected` beside it holds warnings. With
//! `BLESS_EXPECTED` in the environment the expected files are written instead of compared.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use cota::config::fault::{Fault, Severity};
use cota::config::raw::RawPolicy;
use cota::config::{Source, read};

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

fn check(path: &Path) -> (Vec<RawPolicy>, Vec<Fault>) {
    let name = path.file_name().expect("a file").to_string_lossy();
    read(&Source {
        name: name.as_ref().into(),
        text: fs::read_to_string(path).expect("UTF-8"),
    })
}

/// Compares what is printed with the file beside `path`; `None` if it is as expected.
fn difference(path: &Path, faults: &[Fault]) -> Option<String> {
    let printed: String = faults.iter().map(Fault::to_string).collect();
    let expected = path.with_extension("expected");
    if std::env::var_os("BLESS_EXPECTED").is_some() {
        fs::write(&expected, &printed).expect("writable");
    }
    let wanted = fs::read_to_string(&expected).unwrap_or_else(|_| "a missing file\n".to_owned());
    (printed != wanted).then(|| {
        format!(
            "{}\n--- expected\n{wanted}--- printed\n{printed}",
            expected.display()
        )
    })
}

fn report(failures: Vec<String>) {
    let mut text = String::new();
    for failure in &failures {
        let _ = writeln!(text, "{failure}");
    }
    assert!(failures.is_empty(), "{} cases differ\n{text}", failures.len());
}

#[test]
fn bad_files_are_told_what_is_wrong() {
    let failures = cases("bad").into_iter().filter_map(|path| {
        let (_, faults) = check(&path);
        difference(&path, &faults)
    });
    report(failures.collect());
}

#[test]
fn bad_files_hold_one_error_each_and_break_their_domain() {
    for path in cases("bad") {
        let (policies, faults) = check(&path);
        let errors = faults
            .iter()
            .filter(|fault| fault.severity == Severity::Error)
            .count();
        assert_eq!(errors, 1, "{}: {faults:?}", path.display());
        assert!(
            policies.iter().any(|policy| policy.broken) || policies.is_empty(),
            "{}",
            path.display()
        );
    }
}

#[test]
fn good_files_are_taken_with_all_their_limits() {
    let mut failures = Vec::new();
    for path in cases("good") {
        let (policies, faults) = check(&path);
        let text = fs::read_to_string(&path).expect("UTF-8");
        let wanted = text.trim_start_matches('\u{feff}').lines().next().unwrap_or("");
        let limits: usize = policies.iter().map(RawPolicy::limits).sum();
        if wanted != format!("# limits: {limits}") {
            failures.push(format!("{}: {wanted:?}, found {limits}", path.display()));
        }
        if policies.iter().any(|policy| policy.broken)
            || policies.iter().any(|policy| policy.domain.is_none())
        {
            failures.push(format!("{}: a domain is broken: {faults:?}", path.display()));
        }
        if !faults.is_empty() || path.with_extension("expected").exists() {
            failures.extend(difference(&path, &faults));
        }
    }
    report(failures);
}

#[test]
fn no_expected_file_is_left_without_its_policy() {
    for folder in ["bad", "good"] {
        for path in cases(folder) {
            let folder = path.parent().expect("a folder");
            for entry in fs::read_dir(folder).expect("readable") {
                let file = entry.expect("readable").path();
                assert!(file.with_extension("yaml").exists(), "{}", file.display());
            }
        }
    }
}
