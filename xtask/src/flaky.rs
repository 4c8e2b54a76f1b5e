//! The page that lists the tests which passed only when they were run again.

use crate::summary::Unsteady;
use crate::{build, process};
use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

/// The page, from the top folder.
const PAGE: &str = "docs/flaky.md";

/// How much of a test's message is listed, characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// Deadline of a call of git.
const GIT_DEADLINE: Duration = Duration::from_secs(20);

/// Adds a row for each of these tests to the page: it has to be found out whether the product or
/// the test is at fault.
pub fn record(tests: &[Unsteady]) -> Result<(), String> {
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
    println!("{} tests passed only when run again; they are listed in {PAGE}", tests.len());
    Ok(())
}

/// A row of the page's table; what is known of the fault is for a person to write.
fn row(test: &Unsteady, commit: &str) -> String {
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
            Unsteady { name: "e2e fsx [uring]".into(), message: "left | right\nno end within 60 s".into() };
        assert_eq!(row(&test, "1a2b3c"), "| e2e fsx [uring] | 1a2b3c | left / right no end within 60 s | |");
    }
}
