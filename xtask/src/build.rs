//! Calls of cargo.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the workspace's root folder.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Returns a command for the cargo that runs xtask, in the workspace's root folder. Variables that
/// cargo has set for the xtask crate are removed: build scripts that read them would run again, and
/// all crates that depend on theirs would be rebuilt.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_a_crate(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

/// Returns whether cargo sets this variable when it runs a crate's program.
fn is_of_a_crate(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| variable.starts_with(start))
}

/// Returns cargo's target directory.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Runs cargo with inherited standard streams. The error names the failed command.
pub fn run_cargo(arguments: &[&str]) -> Result<(), String> {
    println!("$ cargo {}", arguments.join(" "));
    let status = cargo().args(arguments).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cannot start cargo: {error}; hint: install Rust from https://rustup.rs")),
    }
}

/// Builds the `weft` binary and returns its path.
///
/// The development profile selects all of the workspace's packages, so that feature unification is
/// the same as in `cargo test --workspace` and nothing is built twice.
pub fn weft(release: bool) -> Result<PathBuf, String> {
    let (selection, folder): (&[&str], &str) = match release {
        true => (&["build", "--release", "--package", "weft"], "release"),
        false => (&["build", "--workspace", "--bins"], "debug"),
    };
    run_cargo(selection)?;
    let binary = target_dir().join(folder).join("weft");
    match binary.exists() {
        true => Ok(binary),
        false => Err(format!("cargo built no {}", binary.display())),
    }
}
