//! Totals of a test run, the failed and flaky tests, and the last line of the output.

use std::fmt;
use std::ops::AddAssign;

/// Numbers of tests by result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that can't run here, or are marked ignored.
    pub skipped: u64,
    /// Failed tests, each with the beginning of its message.
    pub failures: Vec<String>,
    /// Tests that failed and passed when repeated.
    pub flaky: Vec<FlakyTest>,
}

/// A flaky test: it failed, and passed when repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlakyTest {
    /// Name of the test.
    pub name: String,
    /// The beginning of its message when it failed.
    pub message: String,
}

/// Maximum number of repeated tests in a whole run: if more tests fail, it isn't by chance.
pub const MAX_RETRIES: usize = 4;

/// Maximum length of a quoted failure message, in characters.
const MAX_QUOTE_CHARS: usize = 1500;

impl Summary {
    /// Adds a failed test.
    pub fn fail(&mut self, name: &str, message: &str) {
        self.failed += 1;
        self.failures.push(format!("{name}: {}", excerpt(message)));
    }

    /// Adds a test that failed and passed when repeated.
    pub fn pass_on_retry(&mut self, name: &str, message: &str) {
        self.passed += 1;
        self.flaky.push(FlakyTest { name: name.to_string(), message: excerpt(message) });
    }

    /// Counts flaky tests as failed, for suites that don't depend on timing.
    pub fn fail_flaky(&mut self) {
        for test in std::mem::take(&mut self.flaky) {
            self.passed -= 1;
            self.fail(&test.name, &format!("passed only on a retry: {}", test.message));
        }
    }

    /// Returns whether another failed test may be repeated.
    pub fn permits_retry(&self) -> bool {
        self.flaky.len() + self.failures.len() < MAX_RETRIES
    }

    /// Prints the failed tests at the end of the output, and the totals last.
    pub fn print(&self) {
        for test in &self.flaky {
            println!("passed only on a retry: {}: {}", test.name, test.message);
        }
        for test in &self.failures {
            println!("failed: {test}");
        }
        println!("{self}");
    }
}

/// Returns the quoted part of a message.
fn excerpt(message: &str) -> String {
    message.trim().chars().take(MAX_QUOTE_CHARS).collect()
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_its_exact_form() {
        let summary = Summary { passed: 12, skipped: 1, ..Summary::default() };
        assert_eq!(summary.to_string(), "12 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn only_a_few_are_run_again() {
        let mut summary = Summary::default();
        for _ in 1..MAX_RETRIES {
            summary.pass_on_retry("a", "too slow");
        }
        assert!(summary.permits_retry());
        summary.fail("b", "wrong");
        assert!(!summary.permits_retry());
    }

    #[test]
    fn the_long_form_takes_no_second_try() {
        let mut summary = Summary { passed: 7, ..Summary::default() };
        summary.pass_on_retry("a", "too slow");
        summary.fail_flaky();
        assert_eq!((summary.passed, summary.failed, summary.flaky.len()), (7, 1, 0));
        assert!(summary.failures[0].starts_with("a: passed only on a retry: too slow"));
    }
}
