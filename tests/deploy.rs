//! What `deploy/` holds: every kustomization is built and checked, every Envoy file is loaded by the real Envoy.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::Command;

#[test]
fn every_manifest_is_valid_and_holds_together_and_every_envoy_file_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".venv/bin/python");
    assert!(python.exists(), "no {}: run `make setup`", python.display());
    // Below the repository: kustomize refers to other folders by relative paths.
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new(python)
        .arg("tests/deploy/manifests.py")
        .arg(env!("CARGO_BIN_EXE_cota"))
        .arg(root.join(".venv/bin/envoy"))
        .arg(work.path())
        .current_dir(root)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("deploy/envoy/envoy.yaml: accepted by Envoy"),
        "{told}"
    );
}
