//! Licenses, sources, versions and known vulnerabilities of the dependencies, by cargo-deny and
//! deny.toml.

use crate::build;
use crate::process;
use crate::summary::Summary;
use crate::timing::Timing;
use std::process::Command;
use std::time::{Duration, Instant};

/// Checks that need only the source tree and local registry files.
const OFFLINE_CHECKS: [&str; 3] = ["bans", "licenses", "sources"];
/// Deadline of one check, which reads some hundred manifests.
const CHECK_LIMIT: Duration = Duration::from_secs(120);
/// Deadline for fetching the vulnerability database, a git repository of some MiB.
const FETCH_LIMIT: Duration = Duration::from_secs(60);
/// The command that installs cargo-deny.
const INSTALL: &str = "cargo install --locked cargo-deny";

/// Runs all checks and prints the totals last.
pub fn run() -> Result<(), String> {
    let summary = check();
    summary.print();
    if summary.failed > 0 { Err(format!("{} checks failed", summary.failed)) } else { Ok(()) }
}

/// Runs all checks as a stage of a whole run.
pub fn check_timed() -> (Summary, Timing) {
    let start = Instant::now();
    let summary = check();
    let mut timing = Timing::default();
    timing.add("checks of the dependencies", start.elapsed(), Vec::new());
    (summary, timing)
}

/// Runs all checks, each counted as one test. Without cargo-deny all are skipped. Without its
/// database, the check of known vulnerabilities is skipped.
fn check() -> Summary {
    let mut summary = Summary::default();
    if !is_installed() {
        let checks = OFFLINE_CHECKS.iter().chain(&["advisories"]);
        checks.for_each(|check| skip(&mut summary, check, "cargo-deny isn't installed", INSTALL));
        return summary;
    }
    for check in OFFLINE_CHECKS {
        judge(&mut summary, check, &["--offline"], &[]);
    }
    match process::run_ok(deny().args(["fetch", "db"]), FETCH_LIMIT) {
        Ok(_) => judge(&mut summary, "advisories", &[], &["--disable-fetch"]),
        Err(_) => {
            let cause = "the database of known vulnerabilities can't be fetched";
            skip(&mut summary, "advisories", cause, "cargo deny fetch db, on a machine with a network");
        }
    }
    summary
}

fn deny() -> Command {
    let mut command = build::cargo();
    command.arg("deny");
    command
}

fn is_installed() -> bool {
    process::run_ok(deny().arg("--version"), CHECK_LIMIT).is_ok()
}

/// Runs one check; a failure quotes its findings.
fn judge(summary: &mut Summary, check: &str, graph: &[&str], options: &[&str]) {
    let mut command = deny();
    command
        .arg("--all-features")
        .args(graph)
        .args(["check", "--hide-inclusion-graph"])
        .args(options)
        .arg(check);
    match process::run_ok(&mut command, CHECK_LIMIT) {
        Ok(_) => summary.passed += 1,
        Err(message) => summary.fail(&format!("cargo deny check {check}"), &message),
    }
}

fn skip(summary: &mut Summary, check: &str, cause: &str, hint: &str) {
    println!("skipped: cargo deny check {check}: {cause}; hint: {hint}");
    summary.skipped += 1;
}
