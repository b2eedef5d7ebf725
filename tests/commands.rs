//! The commands that the documents show are run, as a reader would who copies them.
//!
//! Every ```` ```sh ```` block, in the order of its document. Its info string may say otherwise: `no-run: WHY` for what cannot
//! run here, `background` for a service that stays up while the document goes on. A document that asks
//! `localhost:8080` without having started anything gets the service of the README.
//!
//! Two things are changed: `cargo run --` is the binary that is there already, and ports are free ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

#[path = "support/cota.rs"]
#[allow(dead_code, reason = "every test crate uses its part")]
mod cota_process;

use cota_process::{Cota, command};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const HTTP: &str = "localhost:8080";

/// Longer than any of them takes on a busy machine.
const PATIENCE: &str = "120";

struct Block {
    line: usize,
    info: String,
    text: String,
}

/// All fenced blocks.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in document.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(info), None) => {
                open = Some(Block {
                    line: number + 1,
                    info: info.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text += line;
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    let mut found = Vec::new();
    for folder in [root.to_owned(), root.join("docs")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found.sort();
    found
}

/// A folder in which the repository's are, so that commands leave nothing behind; and `cota` to call by name.
fn scratch() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["config", "deploy", "demo", "docs"] {
        symlink(Path::new(ROOT).join(name), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join(".bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_cota"), folder.path().join(".bin/cota")).unwrap();
    folder
}

fn serve(folder: &Path, text: &str) -> Cota {
    let words: Vec<&str> = text.split_whitespace().collect();
    let arguments = words.strip_prefix(&["cargo", "run", "--", "serve"]).unwrap();
    // The ports are left out, for free ones.
    let mut kept = vec!["serve"];
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        if word.ends_with("-listen") {
            rest.next().unwrap();
        } else {
            kept.push(word);
        }
    }
    Cota::start(command(&kept).current_dir(folder))
}

fn run(folder: &Path, text: &str, service: Option<&Cota>) {
    let mut text = text.replace("cargo run -- ", "cota ");
    if let Some(cota) = service {
        text = text.replace(HTTP, &cota.http.to_string());
    }
    let mut path = folder.join(".bin").into_os_string();
    path.push(format!(":{ROOT}/.venv/bin:"));
    path.push(std::env::var_os("PATH").unwrap());
    let output = Command::new("timeout")
        .args([PATIENCE, "sh", "-euc", &text])
        .current_dir(folder)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{told}", output.status);
}

#[test]
fn every_command_that_the_documents_show_works() {
    let mut ran = 0;
    for document in documents() {
        let folder = scratch();
        let mut service = None;
        for block in blocks(&fs::read_to_string(&document).unwrap()) {
            let place = format!("{}:{}", document.display(), block.line);
            let (language, how) = block.info.split_once(' ').unwrap_or((&block.info, ""));
            assert!(
                !["bash", "shell", "console", "zsh"].contains(&language),
                "{place}: write `sh`"
            );
            if language != "sh" {
                continue;
            }
            println!("{place}");
            match how {
                "" => {
                    if block.text.contains(HTTP) && service.is_none() {
                        service = Some(serve(folder.path(), "cargo run -- serve --config config"));
                    }
                    run(folder.path(), &block.text, service.as_ref());
                    ran += 1;
                }
                "background" => {
                    service = Some(serve(folder.path(), &block.text));
                    ran += 1;
                }
                _ => {
                    let why = how.strip_prefix("no-run: ");
                    assert!(why.is_some_and(|why| why.len() > 5), "{place}: `{how}`");
                }
            }
        }
    }
    assert!(ran >= 4, "only {ran} blocks were run");
}
