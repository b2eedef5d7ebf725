//! The image: its Dockerfile is followed by hand, and what comes out runs as it would in a container.
//!
//! `tests/deploy/image.py` does it. Here it is given the binary of the tests; `make image-check` compiles as well.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A program that `make setup` installs, run at the root; what it printed.
fn run(program: &str, arguments: &[&str]) -> String {
    let program = Path::new(ROOT).join(".venv/bin").join(program);
    assert!(program.exists(), "no {}: run `make setup`", program.display());
    let output = Command::new(program)
        .args(arguments)
        .current_dir(ROOT)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    text.into_owned()
}

#[test]
fn the_image_holds_one_binary_that_runs_as_nobody_on_a_read_only_file_system_without_a_shell() {
    let work = tempfile::tempdir().unwrap();
    let told = run(
        "python",
        &[
            "tests/deploy/image.py",
            work.path().to_str().unwrap(),
            "--binary",
            env!("CARGO_BIN_EXE_cota"),
        ],
    );
    assert!(told.contains("from exec to ready"), "{told}");
}

#[test]
fn the_dockerfile_has_no_fault_that_a_linter_knows() {
    run("hadolint", &["--failure-threshold", "style", "Dockerfile"]);
}
