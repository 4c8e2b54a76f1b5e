//! Calls of cargo.

use std::fs;
use std::path::{Path, PathBuf};
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

/// Builds the `weft` binary and returns its path: `target/release/weft`, linked statically, or
/// `target/debug/weft`.
///
/// The development profile selects all of the workspace's packages, so that feature unification is
/// the same as in `cargo test --workspace` and nothing is built twice.
pub fn weft(release: bool) -> Result<PathBuf, String> {
    if release {
        return static_weft();
    }
    run_cargo(&["build", "--workspace", "--bins"])?;
    let binary = target_dir().join("debug/weft");
    match binary.exists() {
        true => Ok(binary),
        false => Err(format!("cargo built no {}", binary.display())),
    }
}

/// Builds the released binary, and links it to where `make` and the documents expect it.
fn static_weft() -> Result<PathBuf, String> {
    let target = static_target();
    run_cargo(&["build", "--release", "--target", &target, "--package", "weft"]).map_err(|error| {
        format!("{error}; hint: make tools installs the target {target} and musl-gcc, which this build needs")
    })?;
    let built = target_dir().join(&target).join("release/weft");
    let binary = target_dir().join("release/weft");
    link(&built, &binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    Ok(binary)
}

/// Returns the target of the released binary.
pub fn static_target() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// Makes `to` another name of `from`, also if `to` exists.
fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
    match fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::hard_link(from, to),
    }
}

/// Returns whether an ELF program starts without a dynamic linker: it has no `PT_INTERP` header.
pub fn is_static(program: &[u8]) -> Option<bool> {
    const INTERPRETER: u64 = 3;
    // Offsets of 64-bit ELF: table of program headers, size and number of its entries.
    let word = |at: usize, len: usize| -> Option<u64> {
        let bytes = program.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    // 64 bits, little-endian.
    if program.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    let kinds = (0..count).map(|index| word(usize::try_from(table + index * size).ok()?, 4));
    let kinds: Vec<u64> = kinds.collect::<Option<_>>()?;
    Some(!kinds.contains(&INTERPRETER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        // This test is built for the host, with its C library.
        let itself = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&itself), Some(cfg!(target_feature = "crt-static")));
        assert_eq!(is_static(b"#!/bin/sh"), None);
        assert_eq!(is_static(&itself[..60]), None);
    }

    #[test]
    fn the_released_binary_replaces_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let (built, binary) = (dir.path().join("built"), dir.path().join("release/weft"));
        for content in ["first", "second"] {
            fs::write(&built, content).unwrap();
            link(&built, &binary).unwrap();
            assert_eq!(fs::read_to_string(&binary).unwrap(), content);
            fs::remove_file(&built).unwrap();
        }
    }
}
