//! Several files and documents together.

use super::{Loaded, Source, load};
use crate::engine::time::Timestamp;

fn loaded(files: &[(&str, &str)]) -> Loaded {
    let sources: Vec<Source> = files
        .iter()
        .map(|(name, text)| Source {
            name: (*name).into(),
            text: (*text).to_owned(),
        })
        .collect();
    load(&sources, Timestamp(0))
}

/// The domains as `name@file:line`, with `!` before those that are not usable.
fn domains(loaded: &Loaded) -> Vec<String> {
    let domains = loaded.domains.iter();
    domains
        .map(|d| {
            let mark = if d.domain.is_some() { "" } else { "!" };
            format!("{mark}{}@{}:{}", d.name, d.file, d.line)
        })
        .collect()
}

fn messages(loaded: &Loaded) -> Vec<String> {
    let faults = loaded.faults.iter();
    faults
        .map(|f| format!("{}:{} {}", f.file, f.span.line, f.message))
        .collect()
}

#[test]
fn one_bad_domain_does_not_take_down_the_others() {
    let loaded = loaded(&[
        (
            "a.yaml",
            "domain: a\n---\ndomain: b\ncolour: red\n---\ndomain: c\n",
        ),
        ("d.yaml", "domain: d\n"),
    ]);
    assert_eq!(
        domains(&loaded),
        ["a@a.yaml:1", "!b@a.yaml:3", "c@a.yaml:6", "d@d.yaml:1"]
    );
    assert!(loaded.has_errors());
    assert!(loaded.files.iter().all(|file| file.whole));
}

#[test]
fn a_domain_in_two_files_is_refused_in_both_and_both_are_named() {
    let loaded = loaded(&[
        ("a.yaml", "domain: a\n"),
        ("b.yaml", "# again\ndomain: a\n---\ndomain: b\n"),
    ]);
    assert_eq!(domains(&loaded), ["!a@a.yaml:1", "!a@b.yaml:2", "b@b.yaml:4"]);
    assert_eq!(
        messages(&loaded),
        ["b.yaml:2 the domain `a` is already defined in a.yaml, line 1"]
    );
}

#[test]
fn a_file_that_is_not_wholly_readable_says_so() {
    let whole = |text| loaded(&[("f", text)]).files[0].whole;
    assert!(whole("domain: a\n"));
    assert!(whole("domain: a\ncolour: red\n"));
    assert!(!whole(""));
    assert!(!whole("# nothing\n"));
    assert!(!whole("---\n---\n"));
    assert!(!whole("domain: a\n---\ndomain: 'b\n"));
    assert!(!whole("descriptors: []\n"));
    assert!(!whole("domain: {{ .Values.a }}\n"));
    assert!(!whole("some text about limits\n"));
}

#[test]
fn faults_come_file_by_file_in_order_of_position() {
    let loaded = loaded(&[
        (
            "b",
            "domain: b\nx: 1\ndescriptors:\n  - key: a\n    rate_limit: {requests_per_unit: 1}\n    y: 1\n",
        ),
        ("a", "domain: a\nz: 1\n"),
    ]);
    let places: Vec<String> = messages(&loaded)
        .iter()
        .filter_map(|m| m.split(' ').next().map(str::to_owned))
        .collect();
    assert_eq!(places, ["b:2", "b:5", "b:6", "a:2"]);
}

#[test]
fn a_mistake_is_told_once() {
    for text in [
        "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: minutes, requests_per_unit: 5}\n",
        "domain: a\ndefaults: {algorithm: bucket}\ndescriptors:\n  - key: k\n    rate_limit: {unit: minute, requests_per_unit: 5, burst: 2}\n",
        "domain: a\ndescriptors:\n  - {key: k, value: [x]}\n  - {key: k}\n",
        "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {name: n, unit: minute, requests_per_unit: x}\noverrides:\n  - {match: {k: v}, limit: n, multiply: 2}\n",
        "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {plan_entry: p, default_plan: x, plans: {x: 5}}\n",
        "domain: a\ncapacity: {unit: second, requests_per_unit: 1.5}\n",
        "domain: a\nresponse: {headers: [draft-4]}\n",
        "domain: a\nmetadata:\n  d: &d {unit: minute, requests_per_unit: x}\ndescriptors:\n  - {key: k, rate_limit: *d}\n  - {key: l, rate_limit: *d}\n",
    ] {
        let found = messages(&loaded(&[("f", text)]));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
    }
}
