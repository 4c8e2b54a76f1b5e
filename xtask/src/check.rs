//! Checks to pass before every commit.

use crate::build::run_cargo;

/// Runs format, lints, the project's own rules, and the tests of every crate's library, in under
/// three minutes.
pub fn run() -> Result<(), String> {
    run_cargo(&["fmt", "--all", "--check"])?;
    run_cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    crate::tidy::run()?;
    run_cargo(&["test", "--workspace", "--lib", "--bins", "--quiet"])
}
