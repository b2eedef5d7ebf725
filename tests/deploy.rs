//! What `deploy/` holds: every kustomization is built and checked, every Envoy file is loaded by the real Envoy, the
//! cluster for trial is made of real servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A script of `tests/deploy`; what it printed.
fn script(name: &str, arguments: &[&Path]) -> String {
    let python = Path::new(ROOT).join(".venv/bin/python");
    assert!(python.exists(), "no {}: run `make setup`", python.display());
    let output = Command::new(python)
        .arg(format!("tests/deploy/{name}"))
        .args(arguments)
        .current_dir(ROOT)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    told.into_owned()
}

#[test]
fn every_manifest_is_valid_and_holds_together_and_every_envoy_file_is_accepted() {
    // Below the repository: kustomize refers to other folders by relative paths.
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let envoy = Path::new(ROOT).join(".venv/bin/envoy");
    let cota = Path::new(env!("CARGO_BIN_EXE_cota"));
    let told = script("manifests.py", &[cota, &envoy, work.path()]);
    assert!(
        told.contains("deploy/envoy/envoy.yaml: accepted by Envoy"),
        "{told}"
    );
}

#[test]
fn the_script_for_trial_makes_a_cluster_of_six_servers_once() {
    let told = script("redis_cluster.py", &[]);
    assert!(told.contains("three primaries, three replicas"), "{told}");
}
