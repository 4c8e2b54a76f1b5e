//! Running programs with a deadline, so that a hung mount can't hang the caller.

use crate::interrupt::{self, StopMode};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a running program is checked.
const POLL: Duration = Duration::from_millis(10);

/// Longest time that a killed program may take to disappear; after that it counts as stuck in the
/// kernel.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// Maximum number of output bytes retained per program for messages.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// Result of a finished program.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output, as text.
    pub stdout: String,
    /// Standard error, as text.
    pub stderr: String,
}

impl Finished {
    /// Returns the exit code; -1 after a signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Returns the last lines of both streams, for messages.
    pub fn tail(&self) -> String {
        let text = format!("{}{}", self.stdout, self.stderr);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ")
    }
}

/// Maximum number of output lines that a failure message quotes.
const TAIL_LINES: usize = 15;

/// Runs a program to its end. At the deadline, kills its whole process group and returns an error.
pub fn run(command: &mut Command, deadline: Duration) -> Result<Finished, String> {
    let what = describe(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = interrupt::spawn(command, StopMode::KillGroup);
    let mut child = started.map_err(|error| format!("cannot start {what}: {error}"))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let ended = wait(&mut child, deadline);
    if !matches!(ended, Ok(Some(_))) {
        kill_group(&mut child);
    }
    interrupt::ended(&child);
    let Some(status) = ended.map_err(|error| format!("{what}: {error}"))? else {
        return Err(format!("{what}: did not end within {} s", deadline.as_secs()));
    };
    Ok(Finished { status, stdout: stdout.text(), stderr: stderr.text() })
}

/// Like [`run`], but any exit status except 0 is an error that quotes the last lines of output.
pub fn run_ok(command: &mut Command, deadline: Duration) -> Result<Finished, String> {
    let what = describe(command);
    let finished = run(command, deadline)?;
    if finished.status.success() {
        return Ok(finished);
    }
    let cause = match finished.status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit status {}", finished.code()),
    };
    Err(format!("{what}: {cause}\n    {}", finished.tail()))
}

/// Waits for a child until the deadline. Returns `None` if it is still running.
pub fn wait(child: &mut Child, deadline: Duration) -> std::io::Result<Option<ExitStatus>> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Polls until `condition` holds. Returns `false` at the deadline.
pub fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// Kills a child that was started in its own process group, with all its descendants in the group.
pub fn kill_group(child: &mut Child) {
    let group = -(child.id() as i32);
    if crate::sys::kill(group, libc::SIGKILL).is_err() {
        // The child may not have its own group; the handle always identifies the child itself.
        drop(child.kill());
    }
    drop(wait(child, KILL_GRACE));
}

/// Returns a program's name and arguments as on a command line.
pub fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A stream that a background thread reads, so that its writer never blocks on a full pipe.
struct Collected(Option<thread::JoinHandle<Vec<u8>>>);

impl Collected {
    fn text(self) -> String {
        let bytes = self.0.and_then(|reader| reader.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> Collected {
    Collected(stream.map(|mut stream| {
        thread::spawn(move || {
            let mut kept = Vec::new();
            // Output beyond the limit is read and dropped. An error counts as the end of the
            // stream.
            drop(stream.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut kept));
            drop(std::io::copy(&mut stream, &mut std::io::sink()));
            kept
        })
    }))
}

/// Returns a path of this program for starting it as a helper; it works even if cargo has replaced
/// the file meanwhile.
pub fn this_program() -> &'static str {
    "/proc/self/exe"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_come_back() {
        let done = run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]), SHORT).unwrap();
        assert_eq!((done.code(), done.stdout.as_str(), done.stderr.as_str()), (3, "out\n", "err\n"));
    }

    #[test]
    fn a_program_past_its_deadline_is_killed() {
        let error = run(Command::new("sleep").arg("1000"), Duration::from_millis(50)).unwrap_err();
        assert!(error.contains("sleep 1000: did not end"), "{error}");
    }

    #[test]
    fn a_failure_quotes_the_last_words() {
        let error = run_ok(Command::new("sh").args(["-c", "echo because >&2; exit 1"]), SHORT).unwrap_err();
        assert!(error.contains("exit status 1") && error.contains("because"), "{error}");
    }

    const SHORT: Duration = Duration::from_secs(30);
}
