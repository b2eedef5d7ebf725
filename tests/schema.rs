//! The JSON Schema of policy files: it stands in the repository, takes every good file, and sees what is wrong
//! with the shape of a bad one.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cota::config::schema::schema;

const COMMITTED: &str = "docs/policy.schema.json";

/// What `check` says of a value that cannot stand where it stands, whatever the others are.
const OF_SHAPE: [&str; 18] = [
    "unknown key `",
    "` has no meaning in ",
    " is a map, not ",
    "` is a list",
    "a list under `rate_limit`",
    "` is one text, not a list",
    "` takes a single value",
    "` cannot be `",
    " is text, since it is quoted",
    " is neither true nor false",
    " is no unit of time",
    " is no duration",
    " has no percent sign",
    " is negative",
    " is above 4294967295",
    "` has no value",
    "has no `key`",
    "the file has no `domain`",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn policies(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join(folder)).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder}");
    files
}

/// What is wrong with the shape of each file.
fn faults(files: &[PathBuf]) -> BTreeMap<PathBuf, Option<String>> {
    let python = root().join(".venv/bin/python");
    let run = Command::new(&python)
        .arg(root().join("tests/schema/validate.py"))
        .arg(root().join(COMMITTED))
        .args(files)
        .output()
        .unwrap_or_else(|error| panic!("{error}: {}: run `make setup`", python.display()));
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        run.status.success(),
        "if a module is missing, run `make setup`\n{said}"
    );
    let faults: BTreeMap<PathBuf, Option<String>> = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(faults.len(), files.len());
    faults
}

#[test]
fn the_schema_in_the_repository_is_what_is_printed() {
    let printed = Command::new(env!("CARGO_BIN_EXE_cota"))
        .arg("schema")
        .output()
        .unwrap();
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    let file = root().join(COMMITTED);
    if std::env::var_os("BLESS_EXPECTED").is_some() {
        fs::write(&file, &printed).unwrap();
    }
    let committed = fs::read_to_string(file).unwrap();
    assert!(committed == printed, "cota schema > {COMMITTED}");
    let value: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(value, schema());
}

#[test]
fn every_good_policy_of_the_repository_is_valid() {
    let mut files = policies("tests/policies/good");
    files.extend(policies("config"));
    let examples = tempfile::tempdir().unwrap();
    for document in ["README.md", "docs/POLICY.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let blocks = text.split("```").skip(1).step_by(2);
        let policies = blocks.filter_map(|block| block.strip_prefix("yaml\n"));
        let policies = policies.filter(|block| block.lines().any(|line| line.starts_with("domain:")));
        for (n, policy) in policies.enumerate() {
            let file = examples
                .path()
                .join(format!("{}-{n}.yaml", document.replace('/', "-")));
            fs::write(&file, policy).unwrap();
            files.push(file);
        }
    }
    let wrong = faults(&files).into_iter().filter(|(_, fault)| fault.is_some());
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(files.len() > 50, "{}", files.len());
}

#[test]
fn the_shape_of_a_bad_policy_is_not_valid() {
    let said = |policy: &Path| fs::read_to_string(policy.with_extension("expected")).unwrap();
    let mut files = policies("tests/policies/bad");
    files.retain(|policy| {
        let said = said(policy);
        let first = said.lines().next().unwrap();
        OF_SHAPE.iter().any(|phrase| first.contains(phrase))
    });
    assert!(files.len() > 70, "{}", files.len());
    for (policy, fault) in faults(&files) {
        let fault = fault.unwrap_or_else(|| panic!("{} is valid\n{}", policy.display(), said(&policy)));
        // A file that is no YAML would say nothing of the schema.
        assert!(fault.starts_with('$'), "{}: {fault}", policy.display());
    }
}

#[test]
fn each_shell_is_told_of_every_subcommand() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let printed = Command::new(env!("CARGO_BIN_EXE_cota"))
            .args(["completions", shell])
            .output()
            .unwrap();
        assert!(printed.status.success(), "{shell}");
        let printed = String::from_utf8(printed.stdout).unwrap();
        for word in [
            "serve",
            "check",
            "explain",
            "schema",
            "completions",
            "tls-client-names",
        ] {
            assert!(printed.contains(word), "{shell}: {word}");
        }
    }
}
