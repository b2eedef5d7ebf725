//! The documents name what there is, and nothing that there is not.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use cota::cli::Cli;
use cota::config::keys::Place;
use cota::config::{Source, load};
use cota::engine::policy::Policy;
use cota::engine::time::Timestamp;
use cota::store::memory::Eviction;
use cota::store::redis::Kind;
use cota::telemetry::{
    EVICTIONS, LimitLeases, Metrics, STORE_ERRORS, register_counts, register_degraded, register_leases,
    register_overrides, register_store_duration,
};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;
use std::time::Duration;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    fs::read_to_string(path).unwrap()
}

/// The words in backticks, without blocks of code.
fn code(text: &str) -> BTreeSet<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|prose| prose.split('`').skip(1).step_by(2))
        .collect()
}

/// The keys of the table whose first column is headed `key of PLACE`: what is in backticks there.
fn table<'d>(document: &'d str, place: &str) -> BTreeSet<&'d str> {
    let head = format!("| key of {place} |");
    let mut lines = document.lines().skip_while(|line| !line.starts_with(&head));
    assert!(lines.next().is_some(), "no table is headed {head}");
    let rows = lines.take_while(|line| line.starts_with('|')).skip(1);
    let first = rows.filter_map(|row| row.split('|').nth(1));
    first.flat_map(code).collect()
}

/// The policy of the reference's first example.
fn example() -> Policy {
    let reference = document("POLICY.md");
    let text = reference.split("```").nth(1).unwrap();
    let source = Source {
        name: "example".into(),
        text: text.strip_prefix("yaml").unwrap().to_owned(),
    };
    let loaded = load(&[source], Timestamp(0));
    let domains = loaded.domains.into_iter();
    Policy {
        version: 1,
        domains: domains.map(|item| (item.name, item.domain.unwrap())).collect(),
    }
}

#[test]
fn every_key_of_a_policy_file_stands_in_the_table_of_its_place_and_no_other() {
    let reference = document("POLICY.md");
    for place in Place::ALL {
        let accepted: BTreeSet<&str> = place.keys().iter().copied().collect();
        assert_eq!(
            table(&reference, place.called()),
            accepted,
            "the table of {}",
            place.called()
        );
    }
}

#[test]
fn every_table_of_keys_is_that_of_a_place() {
    let reference = document("POLICY.md");
    let heads = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| key of "));
    for head in heads {
        let place = head.split(" |").next().unwrap();
        assert!(Place::ALL.iter().any(|known| known.called() == place), "{place}");
    }
}

#[test]
fn every_metric_family_is_named() {
    let mut registry = Registry::default();
    // Some families show only once a domain is in force.
    Metrics::new(&mut registry, false).install(example().into());
    register_counts(
        &mut registry,
        EVICTIONS,
        Eviction::ALL.map(|kind| (kind.name(), kind)),
        |_| 0,
    );
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
    register_counts(&mut registry, STORE_ERRORS, kinds, |_| 0);
    register_degraded(&mut registry, || false);
    register_leases(&mut registry, || {
        vec![LimitLeases {
            domain: "api".into(),
            limit: "tenant".into(),
            units: 0,
            bound: 0,
        }]
    });
    register_overrides(&mut registry, || (0, Some(Timestamp(1))));
    register_store_duration(&mut registry, "redis")(Duration::ZERO);
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).unwrap();
    let mut families: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(families.len() > 5, "{text}");
    // These show with the first such decision; `tests/chaos.rs` and the metrics' own tests see them.
    families.push("cota_local_refusals_total");
    families.push("cota_degraded_decisions_total");

    let operations = document("OPERATIONS.md");
    let named = code(&operations);
    for family in &families {
        let labelled = named.iter().any(|word| word.split('{').next() == Some(family));
        assert!(labelled, "{family}");
    }
    for word in named.iter().filter(|word| word.starts_with("cota_")) {
        assert!(families.contains(&word.split('{').next().unwrap()), "{word}");
    }
}

#[test]
fn every_flag_and_variable_of_serve_is_named() {
    let operations = document("OPERATIONS.md");
    let named = code(&operations);
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    let mut flags = 0;
    for argument in serve
        .get_arguments()
        .filter(|argument| argument.get_id() != "help")
    {
        let flag = format!("--{}", argument.get_long().unwrap());
        let variable = argument.get_env().unwrap().to_str().unwrap();
        assert!(
            named.iter().any(|word| word.split(' ').next() == Some(&flag)),
            "{flag}"
        );
        assert!(named.contains(variable), "{variable}");
        flags += 1;
    }
    for word in named.iter().filter(|word| word.starts_with("COTA_")) {
        let known = |argument: &clap::Arg| argument.get_env().is_some_and(|env| env == *word);
        assert!(serve.get_arguments().any(known), "{word}");
    }
    assert!(flags > 5);
}
