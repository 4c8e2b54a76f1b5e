//! External programs used by the suite.

use super::outcome::{TestResult, skip};
use crate::{build, process};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Deadline for building one tool.
const INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// Returns the path of a program; skips the test if it isn't installed.
pub fn find(program: &str) -> TestResult<PathBuf> {
    match search(program) {
        Some(path) => Ok(path),
        None => skip(format!("{program} is not installed")),
    }
}

fn search(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // A user's search path doesn't always include administrative programs.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Test programs from the crate registry: name and version.
const FROM_REGISTRY: &[(&str, &str)] = &[("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Installs the test programs from the crate registry. If one can't be installed, the tests that
/// use it report that.
pub fn install() {
    for (name, _) in FROM_REGISTRY {
        if let Err(failure) = from_registry(name) {
            println!("cannot install {name}: {failure:?}");
        }
    }
}

/// Returns a test program from the crate registry, installed in the build folder if the machine
/// doesn't have it.
pub fn from_registry(name: &str) -> TestResult<PathBuf> {
    let known = FROM_REGISTRY.iter().find(|(known, _)| *known == name);
    let (_, version) = known.ok_or_else(|| format!("{name} is no test program of the registry"))?;
    let home = build::target_dir().join("tools");
    let ours = home.join("bin").join(name);
    let is_right = |path: &PathBuf| {
        let answer = process::run(Command::new(path).arg("--version"), Duration::from_secs(20));
        answer.is_ok_and(|answer| answer.stdout.trim().ends_with(version))
    };
    if let Some(path) = [Some(ours.clone()), search(name)].into_iter().flatten().find(is_right) {
        return Ok(path);
    }
    println!("installing {name} {version}");
    let mut command = build::cargo();
    command.args(["install", "--locked", "--quiet", "--version", version, name, "--root"]).arg(&home);
    process::run_ok(&mut command, INSTALL_DEADLINE)?;
    Ok(ours)
}
