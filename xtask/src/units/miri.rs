//! Memory and synchronisation that threads share, run by Miri, an interpreter that detects data
//! races, invalid pointers and leaks.

use super::output::Output;
use crate::build;
use crate::process;
use crate::summary::Summary;
use std::process::Command;
use std::time::Duration;

/// The tests: a crate, and the modules of its library. They use no ring, socket or file, which Miri
/// doesn't have.
const SUBJECTS: [(&str, &[&str]); 2] =
    [("rt", &["buf::", "select::", "sync::"]), ("types", &["hash::", "map_handle::"])];

/// Number of orders in which Miri runs the threads of each test.
const ORDERS: &str = "-Zmiri-many-seeds=0..8";

/// Deadline for one crate, which includes the build of the standard library for Miri.
const DEADLINE: Duration = Duration::from_secs(30 * 60);

/// The command that installs Miri.
const INSTALL: &str = "rustup toolchain install nightly --component miri,rust-src";

/// Runs the tests. Miri comes only with the nightly compiler, which nothing else here needs: where
/// it isn't installed, they are skipped.
pub fn run(summary: &mut Summary) {
    if let Err(cause) = process::run_ok(miri().arg("--version"), DEADLINE) {
        let cause = cause.lines().next().unwrap_or_default().to_string();
        println!("skipped: Miri over rt and types: it isn't installed ({cause}); hint: {INSTALL}");
        summary.skipped += SUBJECTS.len() as u64;
        return;
    }
    for (package, modules) in SUBJECTS {
        let mut command = miri();
        command.args(["test", "--package", package, "--lib", "--"]).args(modules);
        println!("$ rustup run nightly cargo miri test --package {package} --lib -- {}", modules.join(" "));
        judge(summary, package, process::run(&mut command, DEADLINE));
    }
}

/// Returns the command for Miri of the nightly compiler, whatever compiler runs xtask.
fn miri() -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "miri"])
        .current_dir(build::root())
        .env("CARGO_TARGET_DIR", build::target_dir().join("miri"))
        .env("MIRIFLAGS", ORDERS)
        .env("RUSTUP_AUTO_INSTALL", "0")
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Counts a crate as one test.
fn judge(summary: &mut Summary, package: &str, done: Result<process::Finished, String>) {
    let name = format!("Miri over {package}");
    match done {
        Ok(done) if done.status.success() && Output::read_all(&done.stdout).passed > 0 => {
            println!("{name}: passed");
            summary.passed += 1;
        }
        Ok(done) => summary.fail(&name, &done.tail()),
        Err(error) => summary.fail(&name, &error),
    }
}
