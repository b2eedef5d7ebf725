//! Which files are policy files, and what they hold.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Files;

/// Which files of a directory are policy files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `*.yaml` and `*.yml`.
    #[default]
    Yaml,
    /// All, whatever they are called.
    All,
    /// Those whose path below the directory, with dots for slashes, begins with this.
    Beginning(Arc<str>),
}

/// Every policy file under the paths. What cannot be read is part of the answer.
pub(super) fn read(paths: &[PathBuf], names: &Names) -> Files {
    let mut files = Files::default();
    for path in paths {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => list(path, "", names, &mut Vec::new(), &mut files),
            Ok(_) => files.add(path, text(path)),
            Err(error) => files.add(path, Err(error.to_string())),
        }
    }
    files
}

/// Adds the policy files of a directory, deeper ones included, in order of name. `key` is its path below the
/// first one, with a dot after each name; `above` are the directories that contain it.
fn list(directory: &Path, key: &str, names: &Names, above: &mut Vec<PathBuf>, files: &mut Files) {
    let entries = std::fs::read_dir(directory).and_then(|entries| {
        let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
        Ok((paths?, directory.canonicalize()?))
    });
    let (mut entries, real) = match entries {
        Ok(found) => found,
        Err(error) => return files.add(directory, Err(error.to_string())),
    };
    if above.contains(&real) {
        files
            .skipped
            .push((directory.into(), "it links to a directory above it"));
        return;
    }
    above.push(real);
    entries.sort();
    for entry in entries {
        // Dot entries are editors' and, in a ConfigMap, where the links point to.
        let Some(name) = entry
            .file_name()
            .filter(|name| !name.as_encoded_bytes().starts_with(b"."))
        else {
            continue;
        };
        let key = format!("{key}{}", name.display());
        match std::fs::metadata(&entry) {
            Ok(meta) if meta.is_dir() => {
                let key = key + ".";
                if names.may_be_below(&key) {
                    list(&entry, &key, names, above, files);
                }
            }
            _ if !names.are(&entry, &key) => files.skipped.push((entry, names.otherwise())),
            // Reading a pipe would wait for whoever writes into it.
            Ok(meta) if !meta.is_file() => files.skipped.push((entry, "it is no file")),
            Ok(_) => files.add(&entry, text(&entry)),
            // A dangling link is a fault; what has gone since it was listed is not.
            Err(_) if entry.symlink_metadata().is_err_and(is_gone) => {}
            Err(error) => files.add(&entry, Err(error.to_string())),
        }
    }
    above.pop();
}

fn text(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8: {}", error.utf8_error()))
}

#[expect(clippy::needless_pass_by_value, reason = "the form `is_err_and` asks for")]
fn is_gone(error: io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

// === impl Names ===

impl Names {
    fn are(&self, file: &Path, key: &str) -> bool {
        match self {
            Self::Yaml => file.extension().is_some_and(|ext| ext == "yaml" || ext == "yml"),
            Self::All => true,
            Self::Beginning(start) => key.starts_with(&**start),
        }
    }

    /// Whether a directory can hold such files. Others may be large, and nobody's business.
    fn may_be_below(&self, key: &str) -> bool {
        match self {
            Self::Yaml | Self::All => true,
            Self::Beginning(start) => key.starts_with(&**start) || start.starts_with(key),
        }
    }

    /// Why a file is none.
    fn otherwise(&self) -> &'static str {
        match self {
            Self::Yaml | Self::All => "it is not called *.yaml or *.yml",
            Self::Beginning(_) => {
                "its name does not begin with that of the application's directory and a dot"
            }
        }
    }
}
