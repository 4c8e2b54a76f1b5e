//! Running programs with a deadline, so that a hung mount can't hang the caller.

use crate::interrupt::{self, Reach};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(10);

/// How long a killed program may take to disappear before it is given up as stuck in the kernel.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// The most output of one program that is kept for messages, bytes.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// What a finished program left behind.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output, as text.
    pub stdout: String,
    /// Standard error, as text.
    pub stderr: String,
}

impl Finished {
    /// Exit code; -1 after a signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Both streams, for messages: the last lines only.
    pub fn tail(&self) -> String {
        let text = format!("{}{}", self.stdout, self.stderr);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ")
    }
}

/// How many lines of a program's output a failure message quotes.
const TAIL_LINES: usize = 15;

/// Runs a program to its end; on the deadline its whole process group is killed and an error says
/// so.
pub fn run(command: &mut Command, deadline: Duration) -> Result<Finished, String> {
    let what = describe(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = interrupt::spawn(command, Reach::KillGroup);
    let mut child = started.map_err(|error| format!("cannot start {what}: {error}"))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let ended = wait(&mut child, deadline);
    if !matches!(ended, Ok(Some(_))) {
        kill_group(&mut child);
    }
    interrupt::ended(&child);
    let Some(status) = ended.map_err(|error| format!("{what}: {error}"))? else {
        return Err(format!("{what}: no end within {} s", deadline.as_secs()));
    };
    Ok(Finished { status, stdout: stdout.text(), stderr: stderr.text() })
}

/// Like [`run`], and anything but exit status 0 is an error that quotes the program's last words.
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

/// Waits for a child until the deadline; `None` when it still runs.
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

/// Asks again and again until `condition` holds; `false` when the deadline came first.
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

/// Kills a child that was started in its own process group, with everything that it started.
pub fn kill_group(child: &mut Child) {
    let group = -(child.id() as i32);
    if crate::sys::kill(group, libc::SIGKILL).is_err() {
        // The child may have no group of its own; the handle always names the child itself.
        drop(child.kill());
    }
    drop(wait(child, KILL_GRACE));
}

/// A program's name and arguments, as a person would type them.
pub fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A stream that is being read in the background, so that its writer never blocks on a full pipe.
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
            // What goes beyond the limit is read and dropped; an error ends the stream like its
            // end.
            drop(stream.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut kept));
            drop(std::io::copy(&mut stream, &mut std::io::sink()));
            kept
        })
    }))
}

/// This program, to be started again as a helper: also when cargo has replaced its file meanwhile.
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
        assert!(error.contains("sleep 1000: no end"), "{error}");
    }

    #[test]
    fn a_failure_quotes_the_last_words() {
        let error = run_ok(Command::new("sh").args(["-c", "echo because >&2; exit 1"]), SHORT).unwrap_err();
        assert!(error.contains("exit status 1") && error.contains("because"), "{error}");
    }

    const SHORT: Duration = Duration::from_secs(30);
}
