//! Calling cargo.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The workspace's top folder.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// The cargo that runs us, in the workspace's top folder. What it has told us of our own crate is
/// kept from it: build scripts that look at such variables would run again, and all that stands on
/// their crates would be built again.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_a_crate(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

/// Whether cargo sets this variable for the program of a crate.
fn is_of_a_crate(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| variable.starts_with(start))
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Runs cargo with the terminal as its own; an error says what failed.
pub fn run_cargo(arguments: &[&str]) -> Result<(), String> {
    println!("$ cargo {}", arguments.join(" "));
    let status = cargo().args(arguments).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cannot start cargo: {error}; hint: install Rust from https://rustup.rs")),
    }
}

/// Builds the `weft` binary and says where it is.
///
/// The development profile selects all of the workspace's packages, so that features are unified as
/// they are in `cargo test --workspace` and nothing is built twice.
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
