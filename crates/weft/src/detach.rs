//! Background processes: the command starts itself again, detached, and waits for one line with the
//! outcome.

use crate::control::{Answer, ClusterStatus};
use crate::exit::Exit;
use crate::kernel;
use crate::output::os_error;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use types::{Errno, Error, Result};

/// Longest report, in bytes.
const MAX_REPORT_BYTES: u64 = 1 << 20;

/// Starts this binary in the background with these arguments, and waits for its report.
pub fn spawn(arguments: &[OsString], log: &Path) -> Result<ClusterStatus> {
    let status = spawn_and_wait(arguments, log)?;
    serde_json::from_value(status).map_err(|e| Error::new(Errno::EPROTO, e.to_string()))
}

/// Like [`spawn`], for a process that reports only that it has started.
pub fn spawn_quiet(arguments: &[OsString], log: &Path) -> Result<()> {
    spawn_and_wait(arguments, log).map(drop)
}

fn spawn_and_wait(arguments: &[OsString], log: &Path) -> Result<serde_json::Value> {
    kernel::require_supported()?;
    let binary = std::env::current_exe().map_err(|e| os_error("can't find this binary", &e))?;
    rt::keep_descriptors_from_children().map_err(|e| os_error("inherited descriptors", &e))?;
    let mut child = Command::new(&binary)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| os_error(format_args!("can't start {}", binary.display()), &e))?;
    let pipe = child.stdout.take().expect("standard output was asked to be a pipe");
    let mut line = String::new();
    let read = BufReader::new(pipe.take(MAX_REPORT_BYTES)).read_line(&mut line);
    match read.ok().and_then(|_| serde_json::from_str::<Answer>(&line).ok()) {
        Some(answer) => Result::from(answer),
        None => {
            let end = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            Err(Error::new(Errno::ECANCELED, format!("the background process ended while starting ({end})"))
                .hint(format!("its log may say more: {}", log.display())))
        }
    }
}

/// The parent process, to which the background process reports.
pub struct ParentProcess {
    pipe: File,
}

/// Leaves the terminal's session. Standard output, a pipe to the parent, is set aside for the
/// report and closed to everything else.
pub fn leave_terminal() -> Result<ParentProcess> {
    // Fails only if the process already leads a process group, for example when started by hand.
    let _ = rustix::process::setsid();
    let detached = || -> std::io::Result<ParentProcess> {
        let pipe = File::from(rustix::io::dup(std::io::stdout())?);
        rustix::io::fcntl_setfd(&pipe, rustix::io::FdFlags::CLOEXEC)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(ParentProcess { pipe })
    };
    detached().map_err(|e| os_error("can't detach", &e))
}

impl ParentProcess {
    /// Reports the outcome to the parent, and closes the pipe.
    pub fn report(self, outcome: Result<ClusterStatus>) -> Result<()> {
        let answer = match outcome {
            Ok(status) => Answer::Ok {
                ok: serde_json::to_value(status).map_err(|e| Error::new(Errno::EPROTO, e.to_string()))?,
            },
            Err(error) => error.into(),
        };
        self.send_answer(&answer)
    }

    /// Reports an error to the parent, which prints it, and ends this process. `has_log`: standard
    /// error is the log already; otherwise it is the parent's terminal, which must not show the
    /// error twice.
    pub fn fail(self, what: &str, error: Error, has_log: bool) -> ! {
        if has_log {
            tracing::error!(hint = &*error.hint, "{what}: {}", error.message);
        }
        // Without a parent, the log has the error.
        let _ = self.report(Err(error));
        std::process::exit(Exit::Failed.code().into())
    }

    /// Reports success to the parent.
    pub fn report_done(self) -> Result<()> {
        self.send_answer(&Answer::Ok { ok: serde_json::Value::Null })
    }

    fn send_answer(mut self, answer: &Answer) -> Result<()> {
        let mut line = serde_json::to_vec(answer).map_err(|e| Error::new(Errno::EPROTO, e.to_string()))?;
        line.push(b'\n');
        // An interrupted parent doesn't end the cluster.
        let _ = self.pipe.write_all(&line);
        Ok(())
    }
}
