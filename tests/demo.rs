//! `make demo`, as `ONCE=1` runs it: the real Envoy, the real store, and every check of the demo's own.
//!
//! The demo asks what a newcomer would ask of the quickstart's policy. Here it is only run, on free ports, and all that it
//! promises is counted, so that no check can go missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::{Command, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Longer than any of them takes on a busy machine; the demo stops its processes when it is told to end.
const PATIENCE: &str = "150";

/// Runs the demo on that store; it ends well, and says `ok` of so many checks and nothing else of any.
fn shows(store: &str, checks: usize) {
    let envoy = Path::new(ROOT).join(".venv/bin/envoy");
    assert!(envoy.exists(), "no {}: run `make setup`", envoy.display());
    let output = Command::new("timeout")
        .args([PATIENCE, "python3", "demo/demo.py", "--once", "--store", store])
        .args(["--cota", env!("CARGO_BIN_EXE_cota"), "--envoy"])
        .arg(envoy)
        .current_dir(ROOT)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let all = format!("{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{all}", output.status);
    let of = |verdict| told.lines().filter(|line| line.starts_with(verdict)).count();
    assert_eq!((of("  ok      "), of("  FAILED  ")), (checks, 0), "{all}");
}

#[test]
fn every_caller_of_the_demo_gets_what_the_quickstart_promises() {
    shows("memory", 19);
}

#[test]
fn the_same_holds_with_budgets_in_redis() {
    shows("redis", 19);
}

#[test]
fn tenants_of_a_killed_primary_are_served_on_and_no_others_notice() {
    shows("cluster", 23);
}
