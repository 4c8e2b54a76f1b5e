//! The tests of the crates: their programs are built together and run concurrently; failed tests
//! are repeated alone.

mod miri;
mod output;
mod programs;

use crate::summary::Summary;
use crate::timing::Timing;
use crate::{build, pool, process};
use output::Output;
use programs::{Ended, Program};
use std::time::{Duration, Instant};

/// Number of concurrent programs, and of threads in each: many tests mostly wait for a disk or a
/// time-out.
const WIDTH: usize = 3;
const THREADS: &str = "--test-threads=4";

/// Deadline of the documentation examples of all crates.
const EXAMPLES_DEADLINE: Duration = Duration::from_secs(20 * 60);

/// A failed test.
struct Failure {
    program: Program,
    test: String,
    message: String,
}

/// Builds and runs the tests of all crates, in their long form if `is_full`. A failed test is
/// repeated alone: on a stalled machine a test may fail by chance, and is then reported as flaky. A
/// test whose execution a seed determines fails again if its result is wrong.
pub fn run(is_full: bool) -> Result<(Summary, Timing), String> {
    let mut timing = Timing::default();
    let start = Instant::now();
    let programs = programs::build()?;
    timing.add("build of all programs", start.elapsed(), Vec::new());

    let start = Instant::now();
    let (mut summary, mut failures, mut parts) = (Summary::default(), Vec::new(), Vec::new());
    let timed = |program: Program| {
        let start = Instant::now();
        let ended = program.run(is_full, &["--show-output", THREADS]);
        (program, ended, start.elapsed())
    };
    pool::run(programs, WIDTH, timed, |(program, ended, took)| {
        judge(&program, ended, took, &mut summary, &mut failures);
        parts.push((program.package, took));
    });
    for failure in failures {
        retry(&failure, is_full, &mut summary);
    }
    timing.add("tests of the crates", start.elapsed(), parts);

    let start = Instant::now();
    examples(&mut summary);
    timing.add("examples in the documentation", start.elapsed(), Vec::new());

    if is_full {
        let start = Instant::now();
        miri::run(&mut summary);
        timing.add("shared memory under Miri", start.elapsed(), Vec::new());
    }
    Ok((summary, timing))
}

/// Prints and counts the results of a program.
fn judge(
    program: &Program,
    ended: Ended,
    took: Duration,
    summary: &mut Summary,
    failures: &mut Vec<Failure>,
) {
    let name = program.name();
    let text = match ended.output {
        Ok(text) => text,
        Err(error) => return summary.fail(&name, &error),
    };
    let output = Output::read(&text);
    println!("{name}: {} ({:.1} s)", output.result(), took.as_secs_f64());
    output.skipped.iter().for_each(|(test, reason)| println!("    {test} skipped: {reason}"));
    summary.passed += output.passed - output.skipped.len() as u64;
    summary.skipped += output.ignored + output.skipped.len() as u64;
    if ended.is_success {
        return;
    }
    println!("{}", text.trim_end());
    if !output.is_complete || output.failures.is_empty() {
        return summary.fail(&name, "the test program ended before it reported its results");
    }
    failures.extend(output.failures.into_iter().map(|(test, message)| Failure {
        program: program.clone(),
        test,
        message,
    }));
}

/// Repeats a failed test alone, if the limit permits it.
fn retry(failure: &Failure, is_full: bool, summary: &mut Summary) {
    let name = format!("{} {}", failure.program.name(), failure.test);
    if summary.permits_retry() && passes_alone(failure, is_full) {
        println!("{name} passed on a retry");
        summary.pass_on_retry(&name, &failure.message);
    } else {
        summary.fail(&name, &failure.message);
    }
}

fn passes_alone(failure: &Failure, is_full: bool) -> bool {
    let ended = failure.program.run(is_full, &["--exact", &failure.test]);
    ended.is_success && ended.output.is_ok_and(|text| Output::read(&text).passed == 1)
}

/// Runs the documentation examples of all crates.
fn examples(summary: &mut Summary) {
    const ARGUMENTS: [&str; 3] = ["test", "--workspace", "--doc"];
    println!("$ cargo {}", ARGUMENTS.join(" "));
    let done = match process::run(build::cargo().args(ARGUMENTS), EXAMPLES_DEADLINE) {
        Ok(done) => done,
        Err(error) => return summary.fail("examples in the documentation", &error),
    };
    let output = Output::read_all(&done.stdout);
    summary.passed += output.passed;
    summary.skipped += output.ignored;
    for (test, message) in &output.failures {
        summary.fail(test, message);
    }
    if !done.status.success() && output.failures.is_empty() {
        summary.fail("examples in the documentation", &done.tail());
    }
}
