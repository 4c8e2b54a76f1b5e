//! Parser for the output of test programs.

/// Prefix of a line by which a test reports that it can't run here.
const SKIPPED: &str = "skipped: ";

/// The results in the output of one or several test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Number of tests that passed, including those that reported that they can't run here.
    pub passed: u64,
    /// Number of tests marked as ignored.
    pub ignored: u64,
    /// Tests that can't run here, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// Failed tests, each with its output.
    pub failures: Vec<(String, String)>,
    /// Whether the last program reported its totals.
    pub is_complete: bool,
}

/// The part of a program's final report that is being parsed.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Outside,
    /// The output of a test.
    Printed,
    /// Names of failed tests.
    Failed,
    /// Names of passed tests.
    Passed,
}

#[derive(Default)]
struct Reader {
    output: Output,
    /// Whether the results of several programs are summed up.
    adds_up: bool,
    section: Section,
    /// For the current program: outputs of its tests, and names of failed tests.
    printed: Vec<(String, String)>,
    failed: Vec<String>,
}

impl Output {
    /// Parses the output of a test program, with or without `--show-output`. The last totals count:
    /// a test may have printed those of a program that it ran.
    pub fn read(text: &str) -> Output {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.take(line));
        reader.output
    }

    /// Parses the concatenated output of several test programs.
    pub fn read_all(text: &str) -> Output {
        let mut reader = Reader { adds_up: true, ..Reader::default() };
        text.lines().for_each(|line| reader.take(line));
        reader.output
    }

    /// Returns a short description of the result.
    pub fn result(&self) -> String {
        match (self.is_complete, self.failures.len()) {
            (false, _) => "died".to_string(),
            (true, 0) => format!("{} passed", self.passed),
            (true, failed) => format!("{} passed, {failed} FAILED", self.passed),
        }
    }
}

impl Reader {
    fn take(&mut self, line: &str) {
        if let Some(result) = line.trim().strip_prefix("test result: ") {
            if !self.adds_up {
                (self.output.passed, self.output.ignored) = (0, 0);
                self.output.failures.clear();
            }
            self.output.passed += count_before(result, " passed");
            self.output.ignored += count_before(result, " ignored");
            self.end();
        } else if let Some(test) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.printed.push((test.to_string(), String::new()));
            self.section = Section::Printed;
        } else if line == "failures:" {
            // This section occurs twice: before the outputs, and before the names.
            self.failed.clear();
            self.section = Section::Failed;
        } else if line == "successes:" {
            self.section = Section::Passed;
        } else if line.starts_with("running ") && (line.ends_with(" test") || line.ends_with(" tests")) {
            self.output.is_complete = false;
        } else {
            self.take_within(line);
        }
    }

    fn take_within(&mut self, line: &str) {
        match self.section {
            Section::Outside | Section::Passed => {}
            Section::Printed => {
                if let Some((_, text)) = self.printed.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            Section::Failed => self.failed.extend(line.strip_prefix("    ").map(str::to_string)),
        }
    }

    /// Handles the totals of a program.
    fn end(&mut self) {
        let (printed, failed) = (std::mem::take(&mut self.printed), std::mem::take(&mut self.failed));
        for test in &failed {
            let message = printed.iter().find(|(of, _)| of == test).map(|(_, text)| text.clone());
            self.output.failures.push((test.clone(), message.unwrap_or_default()));
        }
        for (test, text) in printed.into_iter().filter(|(test, _)| !failed.contains(test)) {
            let reason = text.lines().find_map(|line| line.strip_prefix(SKIPPED));
            self.output.skipped.extend(reason.map(|reason| (test, reason.to_string())));
        }
        (self.output.is_complete, self.section) = (true, Section::Outside);
    }
}

/// Returns the number before `word`; 0 if there is none.
fn count_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    line[..end].rsplit([' ', ';']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test one ... ok
test two ... FAILED
test deep::three ... ignored
test four ... ok

successes:

---- four stdout ----
looking
skipped: no loop devices


successes:
    one
    four

failures:

---- two stdout ----

thread 'two' panicked at src/lib.rs:1:1:
too late
note: run with `RUST_BACKTRACE=1`


failures:
    two

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    const FINE: &str = "\
running 1 test
test fine ... ok
noise: 7 passed

test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_add_up_and_failures_have_names() {
        let output = Output::read_all(&format!("{OUTPUT}{FINE}"));
        assert_eq!((output.passed, output.ignored, output.is_complete), (12, 1, true));
        let [(test, message)] = &output.failures[..] else { panic!("{:?}", output.failures) };
        assert_eq!(test, "two");
        assert!(message.contains("too late"), "{message}");
        assert_eq!(output.skipped, [("four".to_string(), "no loop devices".to_string())]);
        assert_eq!(output.result(), "12 passed, 1 FAILED");
    }

    #[test]
    fn totals_that_a_test_has_printed_are_not_those_of_its_program() {
        let output =
            Output::read(&format!("running 1 test\nsuccesses:\n\n---- outer stdout ----\n{OUTPUT}\n{FINE}"));
        assert_eq!((output.result().as_str(), output.failures.len()), ("10 passed", 0));
    }

    #[test]
    fn a_program_that_dies_has_no_totals() {
        let died = "running 2 tests\ntest one ... ok\n";
        assert_eq!(Output::read(died).result(), "died");
        assert!(!Output::read(&format!("{FINE}{died}")).is_complete);
        assert!(!Output::read("").is_complete);
    }
}
