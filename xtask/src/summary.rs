//! Totals of a test run and the line that ends it.

use std::fmt;
use std::ops::AddAssign;

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Did what they promise.
    pub passed: u64,
    /// Didn't.
    pub failed: u64,
    /// Couldn't be run here, or are marked ignored.
    pub skipped: u64,
}

impl Summary {
    /// Adds up the `test result:` lines of `cargo test`.
    pub fn of_cargo_test(output: &str) -> Summary {
        let mut total = Summary::default();
        for line in output.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
            total += Summary {
                passed: count_before(line, " passed"),
                failed: count_before(line, " failed"),
                skipped: count_before(line, " ignored"),
            };
        }
        total
    }
}

/// The number that stands before `word`; 0 when there is none.
fn count_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    line[..end].rsplit([' ', ';']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
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
    fn cargo_results_add_up() {
        let output = "running 3 tests\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            noise: 7 passed\n\
            test result: FAILED. 10 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        assert_eq!(Summary::of_cargo_test(output), Summary { passed: 12, failed: 3, skipped: 1 });
    }

    #[test]
    fn the_closing_line_has_its_exact_form() {
        let summary = Summary { passed: 12, failed: 0, skipped: 1 };
        assert_eq!(summary.to_string(), "12 passed, 0 failed, 1 skipped");
    }
}
