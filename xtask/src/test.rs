//! Every test there is.

use crate::summary::Summary;
use crate::{build, e2e};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Only the tests of the crates, without mounting anything.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: e2e::Form,
}

/// Runs `cargo test`, then the end-to-end suite, and prints the line of totals last.
pub fn run(options: &Options) -> Result<(), String> {
    let mut total = cargo_test()?;
    if !options.quick {
        total += e2e::run_suite(&e2e::Options::everything(options.form.clone()))?;
    }
    println!("{total}");
    if total.failed > 0 { Err(format!("{} tests failed", total.failed)) } else { Ok(()) }
}

/// Runs the tests of all crates, showing their output as it comes.
fn cargo_test() -> Result<Summary, String> {
    println!("$ cargo test --workspace --no-fail-fast");
    let mut child = build::cargo()
        .args(["test", "--workspace", "--no-fail-fast"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
    let output = echo(stdout);
    let status = child.wait().map_err(|error| format!("cargo test: {error}"))?;
    let mut summary = Summary::of_cargo_test(&output);
    if !status.success() && summary.failed == 0 {
        // Something that doesn't compile or a test program that died has no result line of its own.
        summary.failed = 1;
    }
    Ok(summary)
}

/// Prints a stream line by line and keeps it.
fn echo(stream: impl Read) -> String {
    let mut kept = String::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        println!("{line}");
        kept.push_str(&line);
        kept.push('\n');
    }
    kept
}
