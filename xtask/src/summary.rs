//! Totals of a test run, the tests that have to be named, and the line that ends it.

use std::fmt;
use std::ops::AddAssign;

/// How many tests ended how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Did what they promise.
    pub passed: u64,
    /// Didn't.
    pub failed: u64,
    /// Couldn't be run here, or are marked ignored.
    pub skipped: u64,
    /// Those that failed, each with the beginning of what it said.
    pub failures: Vec<String>,
    /// Those that passed only when they were run again.
    pub unsteady: Vec<Unsteady>,
}

/// A test that failed, and passed when it was run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsteady {
    /// The test.
    pub name: String,
    /// The beginning of what it said when it failed.
    pub message: String,
}

/// Runs of tests that have failed that are granted to a whole run: more than a few don't fail by
/// chance.
pub const MAX_AGAIN: usize = 4;

/// How much is quoted of what a failed test said, characters.
const MAX_QUOTE_CHARS: usize = 1500;

impl Summary {
    /// One test that failed.
    pub fn fail(&mut self, name: &str, message: &str) {
        self.failed += 1;
        self.failures.push(format!("{name}: {}", beginning(message)));
    }

    /// One that failed and passed when it was run again.
    pub fn pass_again(&mut self, name: &str, message: &str) {
        self.passed += 1;
        self.unsteady.push(Unsteady { name: name.to_string(), message: beginning(message) });
    }

    /// Counts tests that passed only when they were run again as failed: where time is no reason,
    /// none may need a second try.
    pub fn refuse_unsteady(&mut self) {
        for test in std::mem::take(&mut self.unsteady) {
            self.passed -= 1;
            self.fail(&test.name, &format!("passed only when run again: {}", test.message));
        }
    }

    /// Whether one more test that has failed may be run again.
    pub fn grants_again(&self) -> bool {
        self.unsteady.len() + self.failures.len() < MAX_AGAIN
    }

    /// Names what failed, so that it stands at the end of a long output, and prints the totals
    /// last.
    pub fn print(&self) {
        for test in &self.unsteady {
            println!("passed only when run again: {}: {}", test.name, test.message);
        }
        for test in &self.failures {
            println!("failed: {test}");
        }
        println!("{self}");
    }
}

/// As much of a message as is quoted.
fn beginning(message: &str) -> String {
    message.trim().chars().take(MAX_QUOTE_CHARS).collect()
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
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
        for _ in 1..MAX_AGAIN {
            summary.pass_again("a", "too slow");
        }
        assert!(summary.grants_again());
        summary.fail("b", "wrong");
        assert!(!summary.grants_again());
    }

    #[test]
    fn the_long_form_takes_no_second_try() {
        let mut summary = Summary { passed: 7, ..Summary::default() };
        summary.pass_again("a", "too slow");
        summary.refuse_unsteady();
        assert_eq!((summary.passed, summary.failed, summary.unsteady.len()), (7, 1, 0));
        assert!(summary.failures[0].starts_with("a: passed only when run again: too slow"));
    }
}
