//! The layers of the crate use only what they may.
//!
//! A single crate has no manifest for each layer to hold this. Paths are read from the text of `src/`:
//! everything after `crate::` and `super::`, with groups, but comments, strings and tests.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail it")]

use std::fs;
use std::path::{Path, PathBuf};

/// What a layer may use of the crate besides itself, and what it must never see of others.
struct Layer {
    name: &'static str,
    uses: &'static [Use],
    never: &'static [&'static str],
}

enum Use {
    /// A layer with all that is in it.
    All(&'static str),
    /// Its own items, not its submodules: the trait, not what implements it.
    Items(&'static str),
    /// One submodule of it.
    Part(&'static str, &'static str),
}

use Use::{All, Items, Part};

const LAYERS: [Layer; 15] = [
    Layer {
        name: "engine",
        uses: &[],
        never: &[
            "fastrand",
            "std::env",
            "std::fs",
            "std::io",
            "std::process",
            "std::thread",
            "std::time::Instant",
            "std::time::SystemTime",
        ],
    },
    Layer {
        name: "answer",
        uses: &[All("engine")],
        never: &["tokio", "tonic", "prost", "prost_types"],
    },
    Layer {
        name: "usage",
        uses: &[All("engine")],
        never: &["tonic", "prost", "prost_types"],
    },
    Layer {
        name: "clock",
        uses: &[Part("engine", "time")],
        never: &["tokio"],
    },
    Layer {
        name: "gather",
        uses: &[],
        never: &["tonic"],
    },
    Layer {
        name: "store",
        uses: &[All("engine"), All("clock"), All("gather")],
        never: &["axum", "tonic", "prost", "granit_parser"],
    },
    Layer {
        name: "tls",
        uses: &[],
        never: &["axum", "tonic", "prost", "granit_parser"],
    },
    Layer {
        name: "overrides",
        uses: &[All("engine"), All("clock"), All("store")],
        never: &["axum", "tonic", "prost", "granit_parser"],
    },
    Layer {
        name: "limiter",
        uses: &[All("engine"), All("clock"), Items("store"), All("usage")],
        never: &["axum", "tonic", "prost", "prometheus_client"],
    },
    Layer {
        name: "config",
        uses: &[All("engine"), All("clock")],
        never: &["axum", "tonic", "prost"],
    },
    Layer {
        name: "telemetry",
        uses: &[All("engine"), All("usage"), Items("store")],
        never: &["axum", "tonic", "granit_parser"],
    },
    Layer {
        name: "grpc",
        uses: &[
            All("engine"),
            All("clock"),
            Items("store"),
            All("limiter"),
            All("answer"),
            All("telemetry"),
            All("tls"),
            All("gather"),
        ],
        never: &["axum", "granit_parser"],
    },
    Layer {
        name: "http",
        uses: &[
            All("engine"),
            All("clock"),
            All("limiter"),
            All("usage"),
            All("overrides"),
            Part("config", "watch"),
            All("telemetry"),
            All("tls"),
            // The generated messages only: `/json` speaks them.
            Part("grpc", "proto"),
        ],
        never: &[],
    },
    Layer {
        name: "app",
        uses: &[
            All("engine"),
            All("answer"),
            All("usage"),
            All("clock"),
            All("store"),
            All("limiter"),
            All("config"),
            All("telemetry"),
            All("grpc"),
            All("http"),
            All("overrides"),
            All("tls"),
        ],
        never: &["clap"],
    },
    Layer {
        name: "cli",
        uses: &[
            All("app"),
            All("config"),
            All("engine"),
            All("clock"),
            All("telemetry"),
            All("usage"),
            All("overrides"),
        ],
        never: &[],
    },
];

/// The crates that the engine may use; any other dependency is forbidden there.
const ENGINE_CRATES: [&str; 6] = [
    "jiff",
    "ipnet",
    "smallvec",
    "hashbrown",
    "siphasher",
    "percent_encoding",
];

#[test]
fn each_layer_uses_only_what_it_may() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dependencies = dependencies(&fs::read_to_string(root.join("Cargo.toml")).unwrap());
    let mut faults = Vec::new();
    let mut checked = 0;
    for file in rust_files(&root.join("src")) {
        let module = module_of(file.strip_prefix(root.join("src")).unwrap());
        if module.is_empty() || module.iter().any(|part| part == "tests" || part == "testing") {
            continue;
        }
        let source = fs::read_to_string(&file).unwrap();
        for fault in faults_of(&module, &source, &dependencies) {
            faults.push(format!("{}: {fault}", file.display()));
        }
        checked += 1;
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(checked > 10, "only {checked} files were found");
}

#[test]
fn a_forbidden_path_is_found_however_it_is_written() {
    let dependencies = ["tokio", "jiff", "serde_json"].map(str::to_owned);
    for (module, source, fault) in [
        ("engine::limit", "use crate::store::Store;", "crate::store::Store"),
        (
            "engine::limit",
            "use crate::{engine::key as k, clock::Clock as _};",
            "crate::clock::Clock",
        ),
        (
            "engine::limit",
            "fn f() { crate::app::run(); }",
            "crate::app::run",
        ),
        ("engine::limit", "use super::super::grpc;", "crate::grpc"),
        ("engine", "use super::clock;", "crate::clock"),
        (
            "engine",
            "pub use crate::{engine::{key, time}, limiter};",
            "crate::limiter",
        ),
        ("engine::key", "use tokio::time;", "tokio"),
        ("engine::key", "fn f() -> serde_json::Value { x }", "serde_json"),
        (
            "engine::key",
            "use std::{fmt, time::Instant};",
            "std::time::Instant",
        ),
        ("engine::key", "fn f() { std::env::vars(); }", "std::env"),
        (
            "clock",
            "use crate::engine::limit::Limit;",
            "crate::engine::limit::Limit",
        ),
        (
            "limiter::wait",
            "use crate::store::memory::Memory;",
            "crate::store::memory::Memory",
        ),
        (
            "http::limits",
            "use crate::config::compile;",
            "crate::config::compile",
        ),
        ("cli", "use crate::grpc::server;", "crate::grpc::server"),
        ("answer", "use tonic::Status;", "tonic"),
        ("shortcuts", "", "say in the table"),
    ] {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        let faults = faults_of(&module, source, &dependencies);
        assert_eq!(faults.len(), 1, "{source}: {faults:?}");
        assert!(faults[0].contains(fault), "{source}: {faults:?}");
    }
}

#[test]
fn a_path_that_may_be_used_is_no_fault() {
    let dependencies = ["tokio", "jiff"].map(str::to_owned);
    for (module, source) in [
        (
            "engine::limit",
            "use super::time::{Micros, Windows};\nuse crate::engine::key::{self, Identity};",
        ),
        (
            "engine::limit",
            "use jiff::tz::TimeZone;\nuse std::time::Duration;",
        ),
        (
            "engine::limit",
            "// use crate::store::Store;\n/* crate::app */\nconst S: &str = \"crate::app::x\";",
        ),
        (
            "engine::limit",
            "#[cfg(test)]\nmod tests {\n    use crate::clock::ManualClock;\n}",
        ),
        ("clock", "use crate::engine::time::Timestamp;"),
        ("limiter", "use crate::store::{Store, StoreError};"),
        ("http::limits", "use crate::config::watch::Watch;"),
        (
            "grpc::convert",
            "use super::proto::Thing;\nlet not_tokio = my_tokio::x();",
        ),
    ] {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        let faults = faults_of(&module, source, &dependencies);
        assert!(faults.is_empty(), "{source}: {faults:?}");
    }
}

fn faults_of(module: &[String], source: &str, dependencies: &[String]) -> Vec<String> {
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == module[0]) else {
        return vec![format!("say in the table what {} may use", module[0])];
    };
    let code = code_of(source);
    let mut faults = Vec::new();
    for path in paths(&code, "crate", &[])
        .into_iter()
        .chain(relative_paths(&code, module))
    {
        if !path.is_empty() && path[0] != module[0] && !layer.uses.iter().any(|used| used.covers(&path)) {
            faults.push(format!("{} may not use crate::{}", layer.name, path.join("::")));
        }
    }
    let foreign = |name: &str| {
        let depends = dependencies.iter().any(|dependency| dependency == name);
        let engine = layer.name == "engine" && depends && !ENGINE_CRATES.contains(&name);
        engine || layer.never.contains(&name)
    };
    let never_roots = layer.never.iter().filter(|never| !never.contains("::"));
    let mut roots: Vec<&str> = dependencies
        .iter()
        .map(String::as_str)
        .chain(never_roots.copied())
        .collect();
    roots.sort_unstable();
    roots.dedup();
    for root in roots {
        if foreign(root) && !paths(&code, root, &[]).is_empty() {
            faults.push(format!("{} must not see {root}", layer.name));
        }
    }
    for path in paths(&code, "std", &["std".to_owned()]) {
        let path = path.join("::");
        if let Some(never) = layer.never.iter().find(|never| path.starts_with(**never)) {
            faults.push(format!("{} must not see {never}", layer.name));
        }
    }
    faults
}

impl Use {
    fn covers(&self, path: &[String]) -> bool {
        let second = path.get(1).map(String::as_str);
        match *self {
            All(name) => path[0] == name,
            Items(name) => path[0] == name && second.is_none_or(|item| item.starts_with(char::is_uppercase)),
            Part(name, part) => path[0] == name && second == Some(part),
        }
    }
}

/// All paths that begin with `root::`, each with `base` in its place; groups are taken apart.
fn paths(code: &str, root: &str, base: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(root) {
        let before = code[..at].chars().next_back();
        let inside = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
        if let (false, Some(rest)) = (inside, code[at + root.len()..].strip_prefix("::")) {
            tree(rest, base, &mut found);
        }
    }
    found
}

/// The paths that climb from a module with `super::`.
fn relative_paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("super::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let (mut rest, mut base) = (&code[at..], module);
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, base) = (after, &base[..base.len().saturating_sub(1)]);
        }
        tree(rest, base, &mut found);
    }
    found
}

/// Reads `a::b`, `a::{b, c::d}` or `{…}`, and returns what follows it.
fn tree<'c>(code: &'c str, base: &[String], found: &mut Vec<Vec<String>>) -> &'c str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',']);
            if rest.is_empty() || rest.starts_with('}') {
                return rest.strip_prefix('}').unwrap_or(rest);
            }
            let after = tree(rest, base, found);
            rest = if after.len() < rest.len() {
                after
            } else {
                &rest[1..]
            };
        }
    }
    let end = code
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(code.len());
    let mut path = base.to_vec();
    if end > 0 && &code[..end] != "self" {
        path.push(code[..end].to_owned());
    }
    match code[end..].strip_prefix("::") {
        Some(rest) if end > 0 => tree(rest, &path, found),
        _ => {
            found.push(path);
            let after = &code[end..];
            // Another name for it is no path.
            match after.strip_prefix(" as ") {
                Some(alias) => alias.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'),
                None => after,
            }
        }
    }
}

/// The source without comments, strings and what follows the first `#[cfg(test)]`, where tests stand.
fn code_of(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or(source);
    let mut code = String::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") {
            3
        } else if c == '"' {
            string_length(rest)
        } else {
            code.push(c);
            c.len_utf8()
        };
        rest = &rest[skipped..];
    }
    code
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// `engine/budget.rs` is `engine::budget`; the crate's root files are nothing.
fn module_of(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let parts: Vec<String> = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .filter(|part| part != "mod")
        .collect();
    match parts.as_slice() {
        [root] if root == "lib" || root == "main" => Vec::new(),
        _ => parts,
    }
}

/// The names under every `dependencies` heading of a manifest, as they are written in code.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if let (true, Some((name, _))) = (inside, line.split_once('=')) {
            names.push(name.trim().replace('-', "_"));
        }
    }
    names
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
