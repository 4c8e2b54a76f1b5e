//! The service manager: states of the service (`sd_notify(3)`), and priorities of lines in the
//! journal (`sd-daemon(3)`).
//!
//! Without systemd nothing here has an effect, and no failure here makes the process fail.

use rustix::fs::fstat;
use sd_notify::NotifyState;
use std::fmt::Display;
use std::os::fd::AsFd;
use tracing::Level;

/// Environment variable with device and inode number of the journal's stream (`systemd.exec(5)`).
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

/// Reports that the service does its work. `systemctl status` shows `status`.
pub fn notify_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the service shuts down, and why.
pub fn notify_stopping(reason: impl Display) {
    notify(&[NotifyState::Stopping, NotifyState::Status(&format!("stopping: {}", one_line(&reason)))]);
}

fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "can't report to the service manager; hint: the unit needs NotifyAccess=main");
    }
}

/// Returns a text without line breaks: a line break ends a state.
fn one_line(text: &impl Display) -> String {
    text.to_string().replace(['\n', '\r'], " ")
}

/// Returns whether a stream leads to the journal. The variable alone doesn't show that: processes
/// whose output goes elsewhere inherit it.
pub fn is_journal(stream: impl AsFd) -> bool {
    let named = std::env::var(JOURNAL_VARIABLE).ok();
    let numbers = named.as_deref().and_then(|text| text.split_once(':'));
    let numbers = numbers.and_then(|(dev, ino)| Some((dev.parse::<u64>().ok()?, ino.parse::<u64>().ok()?)));
    fstat(stream).is_ok_and(|stat| numbers == Some((stat.st_dev, stat.st_ino)))
}

/// Returns the mark at the start of a line that gives it its priority in the journal.
pub fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_stays_one_state() {
        assert_eq!(one_line(&"the mount failed:\nREADY=1"), "the mount failed: READY=1");
    }
}
