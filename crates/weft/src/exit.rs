//! Exit statuses of the commands: one table, which `weft help exit-status` prints and from which
//! the reference is generated.

use crate::output::{Align, table};
use std::process::ExitCode;
use types::{Error, Result};

/// Outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The command did what it was asked to do.
    Success,
    /// The command failed, and has printed why.
    Failed,
    /// `weft health` found a problem that needs attention.
    HealthWarning,
    /// `weft health` found a problem that needs an action now.
    HealthCritical,
    /// `weft health` got no answer.
    HealthUnknown,
    /// `weft doctor` found that weft would be slower, smaller or less safe than it could be.
    DoctorWarning,
    /// `weft doctor` found that weft can't run.
    DoctorError,
    /// `weft fsck` found damage, and repaired all of it.
    FsckRepaired,
    /// `weft fsck` leaves damage.
    FsckDamaged,
    /// `weft fsck` could not check.
    FsckFailed,
    /// The command was called wrongly, and has done nothing.
    Usage,
    /// mount(8) called its helper wrongly, or an option is wrong.
    MountUsage,
    /// The helper of mount(8) could not mount.
    MountFailed,
}

impl Exit {
    /// All outcomes, in the order of the reference.
    pub const ALL: [Exit; 13] = [
        Exit::Success,
        Exit::Failed,
        Exit::Usage,
        Exit::HealthWarning,
        Exit::HealthCritical,
        Exit::HealthUnknown,
        Exit::DoctorWarning,
        Exit::DoctorError,
        Exit::FsckRepaired,
        Exit::FsckDamaged,
        Exit::FsckFailed,
        Exit::MountUsage,
        Exit::MountFailed,
    ];

    /// The status, the commands that end with it, and its meaning there.
    const fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Exit::Success => (0, "all", "success; health: healthy; doctor: all is good; fsck: no damage"),
            Exit::Failed => (1, "all others", "failure: the command prints an error"),
            // EX_USAGE of sysexits.h: monitoring and fsck(8) use the small numbers.
            Exit::Usage => (64, "all but mount.fuse.weft", "called wrongly: nothing was done"),
            // As of a plugin for Nagios.
            Exit::HealthWarning => (1, "health", "a problem needs attention"),
            Exit::HealthCritical => (2, "health", "a problem needs an action now"),
            Exit::HealthUnknown => (3, "health", "the cluster did not answer"),
            Exit::DoctorWarning => {
                (1, "doctor", "weft runs, but slower, smaller or less safely than it could")
            }
            Exit::DoctorError => (2, "doctor", "weft can't run, or data would be lost"),
            // As of fsck(8).
            Exit::FsckRepaired => (1, "fsck", "damage was found, and all of it repaired"),
            Exit::FsckDamaged => (4, "fsck", "damage is left"),
            Exit::FsckFailed => (8, "fsck", "the check failed"),
            // As mount(8) expects of a helper; 64 means there that some mounts succeeded.
            Exit::MountUsage => (1, "mount.fuse.weft", "an option or argument is wrong"),
            Exit::MountFailed => (32, "mount.fuse.weft", "the mount failed"),
        }
    }

    /// The status that the process returns.
    pub const fn code(self) -> u8 {
        self.row().0
    }

    /// Returns the table of all exit statuses.
    pub fn table() -> String {
        let row = |exit: Exit| {
            let (code, commands, meaning) = exit.row();
            [code.to_string(), commands.into(), meaning.into()]
        };
        let heading = [("STATUS", Align::Right), ("COMMANDS", Align::Left), ("MEANING", Align::Left)];
        table(heading, &Exit::ALL.map(row))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        exit.code().into()
    }
}

/// An error that ends a command, with the status to return.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What the process returns.
    pub exit: Exit,
    /// What it prints.
    pub error: Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { exit: Exit::Failed, error }
    }
}

impl From<mgmt::Error> for Failure {
    fn from(error: mgmt::Error) -> Failure {
        Error::from(error).into()
    }
}

impl From<identity::Error> for Failure {
    fn from(error: identity::Error) -> Failure {
        Error::from(error).into()
    }
}

/// Result of a command: how it ends.
pub type Outcome = std::result::Result<Exit, Failure>;

/// Checks of arguments that the definition of the command line can't express.
pub trait ArgumentCheck<T> {
    /// Marks an error as one of the arguments: the command was called wrongly.
    fn or_usage(self) -> std::result::Result<T, Failure>;
    /// Gives an error another exit status.
    fn or_exit(self, exit: Exit) -> std::result::Result<T, Failure>;
}

impl<T> ArgumentCheck<T> for Result<T> {
    fn or_usage(self) -> std::result::Result<T, Failure> {
        self.or_exit(Exit::Usage)
    }

    fn or_exit(self, exit: Exit) -> std::result::Result<T, Failure> {
        self.map_err(|error| Failure { exit, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_one_meaning_for_each_command() {
        let mut seen: Vec<(u8, &str)> = Exit::ALL.iter().map(|exit| (exit.row().0, exit.row().1)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), Exit::ALL.len());
        assert_eq!(Exit::table().lines().count(), Exit::ALL.len() + 1);
    }
}
