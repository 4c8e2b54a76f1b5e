//! Tests that compare the documents with the program: commands, configuration keys and findings
//! that a document names have to exist, and reference pages have to be complete.

mod commands;
mod findings;
mod limits;
mod links;
mod node_toml;
mod text;

use std::fs;
use std::path::{Path, PathBuf};

/// The root folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads a file of the workspace.
fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the paths and the texts of all documents for users and administrators.
fn all() -> Vec<(String, String)> {
    let mut found = vec!["README.md".to_string(), "SECURITY.md".to_string(), "ARCHITECTURE.md".to_string()];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap().map(Result::unwrap) {
            let path = folder.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(path),
                false => found.push(path.to_string_lossy().into_owned()),
            }
        }
    }
    found.retain(|path| path.ends_with(".md"));
    found.sort();
    found.into_iter().map(|path| (path.clone(), read(&path))).collect()
}
