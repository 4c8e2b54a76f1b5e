//! The page that lists flaky tests: those that failed and passed when repeated.

use crate::summary::FlakyTest;
use crate::{build, process};
use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

/// Path of the page, relative to the root folder.
const PAGE: &str = "docs/flaky.md";

/// Maximum length of a test's message in the list, in characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// Deadline of a git command.
const GIT_DEADLINE: Duration = Duration::from_secs(20);

/// Adds a row for each test to the page. A person must find out whether the product or the test is
/// at fault.
pub fn record(tests: &[FlakyTest]) -> Result<(), String> {
    if tests.is_empty() {
        return Ok(());
    }
    let commit = process::run_ok(
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(build::root()),
        GIT_DEADLINE,
    );
    let commit = commit.map_or_else(|_| "unknown".to_string(), |done| done.stdout.trim().to_string());
    let path = build::root().join(PAGE);
    let failed = |error| format!("cannot write {}: {error}", path.display());
    let mut page = File::options().create(true).append(true).open(&path).map_err(failed)?;
    for test in tests {
        writeln!(page, "{}", row(test, &commit)).map_err(failed)?;
    }
    println!("{} flaky tests passed only on a retry; they are listed in {PAGE}", tests.len());
    Ok(())
}

/// Returns a row of the page's table; a person fills in the analysis.
fn row(test: &FlakyTest, commit: &str) -> String {
    let message: String = test.message.lines().collect::<Vec<_>>().join(" ");
    let message: String = message.replace('|', "/").chars().take(MAX_MESSAGE_CHARS).collect();
    format!("| {} | {commit} | {message} | |", test.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_line_of_the_table() {
        let test =
            FlakyTest { name: "e2e fsx [uring]".into(), message: "left | right\nno end within 60 s".into() };
        assert_eq!(row(&test, "1a2b3c"), "| e2e fsx [uring] | 1a2b3c | left / right no end within 60 s | |");
    }
}
