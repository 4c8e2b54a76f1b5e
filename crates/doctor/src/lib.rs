//! `weft doctor`: whether a machine can run weft, and what to change if not.
//!
//! [`read`] collects [`Facts`] about the machine: kernel, devices, limits, sysctls, clock, ports,
//! disks, network. [`examine`] compares the facts with what weft needs, which is a pure function,
//! and returns one [`Finding`] per check. A finding that isn't [`State::Good`] has a hint; a
//! [`Fix`] is a change that can't do harm and that [`Fix::apply`] makes.
//!
//! The crate changes nothing but by [`Fix::apply`], and doesn't contact a cluster except for TCP
//! connections to the given addresses of management.
//!
//! ```
//! use doctor::{Facts, KernelVersion, Purpose, State, examine};
//! let facts = Facts { kernel: KernelVersion { major: 4, minor: 18 }, ..Facts::default() };
//! let findings = examine(&facts, Purpose::ALL);
//! let kernel = findings.iter().find(|finding| finding.check == "kernel").unwrap();
//! assert_eq!(kernel.state, State::Error);
//! ```

mod checks;
mod code;
mod facts;
mod fix;
pub mod read;

pub use checks::{CHECKS, examine, kernel_finding};
pub use code::Code;
pub use facts::{
    Clock, Device, Facts, FileSystem, FuseOverUring, Interface, IoUring, KernelVersion, ManagementContact,
    Memory, OpenFiles, Port, PortUse, Sysctl, TargetDir,
};
pub use fix::{Fix, SYSCTL_FILE};

use serde::Serialize;

/// What the machine is for: a check that a purpose doesn't need is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purpose {
    /// It runs services of a cluster.
    pub is_node: bool,
    /// It mounts a cluster.
    pub is_client: bool,
}

impl Purpose {
    /// A machine that runs services and mounts the file system.
    pub const ALL: Purpose = Purpose { is_node: true, is_client: true };
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing to do.
    Good,
    /// weft runs, but slower, with less capacity, or less safely.
    Warning,
    /// weft can't run, or would lose data.
    Error,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Name of the check; one of [`CHECKS`].
    pub check: &'static str,
    /// Its result.
    pub state: State,
    /// What is the case, for programs; absent if the state is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What is the case, with the object's name.
    pub what: String,
    /// What to do; empty if there is nothing to do.
    pub hint: String,
    /// The change that `--apply` makes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

impl Finding {
    fn good(check: &'static str, what: impl Into<String>) -> Finding {
        Finding { check, state: State::Good, code: None, what: what.into(), hint: String::new(), fix: None }
    }

    fn warning(code: Code, what: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding {
            check: code.check(),
            state: State::Warning,
            code: Some(code),
            what: what.into(),
            hint: hint.into(),
            fix: None,
        }
    }

    fn error(code: Code, what: impl Into<String>, hint: impl Into<String>) -> Finding {
        Finding { state: State::Error, ..Finding::warning(code, what, hint) }
    }

    fn with_fix(self, fix: Fix) -> Finding {
        Finding { fix: Some(fix), ..self }
    }
}
