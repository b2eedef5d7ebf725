//! Turns `proto/` into Rust and a descriptor set, and notes the git revision.
//!
//! The protos are compiled in Rust, so that a build needs no `protoc`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use protox::prost::Message;

/// Each of these names the files it imports.
const ROOTS: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    compile_protos()?;
    export_revision();
    Ok(())
}

fn compile_protos() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(ROOTS, ["proto"])?;

    // Imports stay, since reflection has to resolve them; comments go, since nobody reads them there.
    let mut described = files.clone();
    for file in &mut described.file {
        file.source_code_info = None;
    }
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out_dir.join("descriptors.bin"), described.encode_to_vec())?;

    tonic_prost_build::compile_fds(files)?;
    Ok(())
}

/// Sets `COTA_REVISION`, `unknown` when the sources come without git.
fn export_revision() {
    let revision = git(&["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=COTA_REVISION={revision}");

    // HEAD changes with the branch, its log with each commit. Cargo takes a missing file for a changed one.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
