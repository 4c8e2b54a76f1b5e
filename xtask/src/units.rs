//! The tests of the crates: `cargo test`, its output read, and what failed run again alone.

use crate::build;
use crate::summary::Summary;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

/// Runs the tests of all crates, showing their output as it comes. What failed is run again, alone: on a machine that stood still a test may fail by
/// chance, and then it is named as such. A wrong result of a test whose course is given by a seed stays wrong.
pub fn run() -> Result<Summary, String> {
    let mut found = Found::default();
    let is_success = cargo_test(&["--workspace", "--no-fail-fast"], &mut found)?;
    let mut summary = Summary { passed: found.passed, skipped: found.ignored, ..Summary::default() };
    let is_known = !found.failures.is_empty() || !found.died.is_empty();
    for failure in found.failures {
        let name = format!("{} {}", failure.program.join(" "), failure.test);
        if summary.grants_again() && passes_alone(&failure)? {
            summary.pass_again(&name, &failure.message);
        } else {
            summary.fail(&name, &failure.message);
        }
    }
    for program in found.died {
        summary.fail(&program.join(" "), "the test program died before it had told its results");
    }
    if !is_success && !is_known {
        summary.fail("cargo test", "something doesn't compile, or can't be run");
    }
    Ok(summary)
}

fn passes_alone(failure: &Failure) -> Result<bool, String> {
    let mut arguments: Vec<&str> = failure.program.iter().map(String::as_str).collect();
    arguments.extend(["--", "--exact", &failure.test]);
    let mut found = Found::default();
    Ok(cargo_test(&arguments, &mut found)? && found.passed == 1)
}

/// Runs `cargo test`; whether it was content.
fn cargo_test(arguments: &[&str], found: &mut Found) -> Result<bool, String> {
    println!("$ cargo test {}", arguments.join(" "));
    let failed = |error| format!("cannot start cargo: {error}");
    // One pipe for both, so that the lines of cargo and of the tests stay in their order.
    let (output, input) = std::io::pipe().map_err(failed)?;
    let both = input.try_clone().map_err(failed)?;
    let mut child = {
        let mut command = build::cargo();
        command.arg("test").args(arguments).env("CARGO_TERM_COLOR", "never");
        command.stdin(Stdio::null()).stdout(input).stderr(both).spawn().map_err(failed)?
    };
    echo(output, |line| found.take(line));
    let status = child.wait().map_err(|error| format!("cargo test: {error}"))?;
    Ok(status.success())
}

/// Prints a stream line by line and shows each line to `look`.
fn echo(stream: impl Read, mut look: impl FnMut(&str)) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while stream.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\n');
        println!("{text}");
        look(text);
        line.clear();
    }
}

/// What cargo says of a program that failed, up to how to run it again.
const FAILED: [&str; 2] = ["error: test failed, to rerun pass `", "error: doctest failed, to rerun pass `"];

/// A test of a crate that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    /// What `cargo test` has to be given to run its program.
    program: Vec<String>,
    test: String,
    message: String,
}

/// What the output of `cargo test` has told so far.
#[derive(Debug, Default)]
struct Found {
    passed: u64,
    ignored: u64,
    failures: Vec<Failure>,
    /// Programs that ended without a result.
    died: Vec<Vec<String>>,
    /// Of the program that runs now: what its tests said, the names of those that failed, and whether it has told its result.
    said: Vec<(String, String)>,
    names: Vec<String>,
    section: Section,
    has_result: bool,
}

/// Which part of a program's closing report is being read.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Outside,
    /// What a test that failed has said.
    Said,
    /// The names of those that failed.
    Names,
}

impl Found {
    fn take(&mut self, line: &str) {
        if let Some(result) = line.trim().strip_prefix("test result: ") {
            self.passed += count_before(result, " passed");
            self.ignored += count_before(result, " ignored");
            (self.has_result, self.section) = (true, Section::Outside);
        } else if let Some(program) = FAILED.iter().find_map(|failed| line.strip_prefix(failed)) {
            self.ended(program.trim_end_matches('`'));
        } else if let Some(test) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.said.push((test.to_string(), String::new()));
            self.section = Section::Said;
        } else if line == "failures:" {
            // Once before what they said, and once before their names.
            self.names.clear();
            self.section = Section::Names;
        } else {
            self.take_within(line);
        }
    }

    fn take_within(&mut self, line: &str) {
        match self.section {
            Section::Outside => {}
            Section::Said => {
                if let Some((_, text)) = self.said.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
            Section::Names => self.names.extend(line.strip_prefix("    ").map(str::to_string)),
        }
    }

    /// A program has ended badly.
    fn ended(&mut self, program: &str) {
        let program: Vec<String> = program.split_whitespace().map(str::to_string).collect();
        let (said, names) = (std::mem::take(&mut self.said), std::mem::take(&mut self.names));
        if !std::mem::take(&mut self.has_result) || names.is_empty() {
            self.died.push(program);
            return;
        }
        for test in names {
            let message = said.iter().find(|(of, _)| *of == test).map(|(_, text)| text.clone());
            let message = message.unwrap_or_default();
            self.failures.push(Failure { program: program.clone(), test, message });
        }
    }
}

/// The number that stands before `word`; 0 when there is none.
fn count_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    line[..end].rsplit([' ', ';']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Found {
        let mut found = Found::default();
        output.lines().for_each(|line| found.take(line));
        found
    }

    const OUTPUT: &str = "\
     Running unittests src/lib.rs (target/debug/deps/a-1)

running 3 tests
test one ... ok
test two ... FAILED
test deep::three ... ignored

failures:

---- two stdout ----

thread 'two' panicked at src/lib.rs:1:1:
too late
note: run with `RUST_BACKTRACE=1`


failures:
    two

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `-p a --lib`
     Running tests/b.rs (target/debug/deps/b-1)

running 1 test
test fine ... ok
noise: 7 passed

test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

";

    #[test]
    fn results_add_up_and_failures_have_names() {
        let found = read(OUTPUT);
        assert_eq!((found.passed, found.ignored), (11, 1));
        let [failure] = &found.failures[..] else { panic!("{:?}", found.failures) };
        assert_eq!((failure.program.join(" "), &*failure.test), ("-p a --lib".to_string(), "two"));
        assert!(failure.message.contains("too late"), "{}", failure.message);
        assert!(found.died.is_empty());
    }

    #[test]
    fn a_program_that_dies_is_named() {
        let died = "running 2 tests\ntest one ... ok\nerror: test failed, to rerun pass `-p c --test d`\n\nCaused by:\n  signal: 6\n";
        let undocumented = "error: doctest failed, to rerun pass `-p e --doc`\n";
        let found = read(&format!("{OUTPUT}{died}{undocumented}"));
        assert_eq!(found.died, [vec!["-p", "c", "--test", "d"], vec!["-p", "e", "--doc"]]);
        assert_eq!(found.failures.len(), 1);
    }
}
