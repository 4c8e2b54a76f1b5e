//! Changes that can't do harm.

use serde::Serialize;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

/// The file that makes changed kernel parameters survive a restart of the machine.
pub const SYSCTL_FILE: &str = "/etc/sysctl.d/90-weft.conf";

/// A change of the machine that `--apply` makes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fix {
    /// Set a kernel parameter, now and at each start of the machine.
    Sysctl {
        /// Name with dots.
        name: &'static str,
        /// The value to set.
        value: u64,
    },
    /// Load a kernel module.
    Module {
        /// Its name.
        name: &'static str,
    },
}

impl Fix {
    /// Makes the change. Returns what was changed.
    ///
    /// Errors: those of the files and of `modprobe`, with the object's name. Needs root.
    pub fn apply(&self) -> io::Result<String> {
        match self {
            Fix::Sysctl { name, value } => {
                let file = Path::new("/proc/sys").join(name.replace('.', "/"));
                fs::write(&file, value.to_string()).map_err(|e| named(file.display(), &e))?;
                let persistent = Path::new(SYSCTL_FILE);
                persist(persistent, name, *value).map_err(|e| named(SYSCTL_FILE, &e))?;
                Ok(format!("{name}={value}, also in {SYSCTL_FILE}"))
            }
            Fix::Module { name } => {
                let done = Command::new("modprobe").arg(name).output().map_err(|e| named("modprobe", &e))?;
                if !done.status.success() {
                    let cause = String::from_utf8_lossy(&done.stderr).trim().to_string();
                    return Err(io::Error::other(format!("modprobe {name}: {cause}")));
                }
                Ok(format!("kernel module {name} loaded"))
            }
        }
    }
}

fn named(what: impl std::fmt::Display, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("{what}: {cause}"))
}

/// Adds the line to the file, or replaces the one with the same name.
fn persist(file: &Path, name: &str, value: u64) -> io::Result<()> {
    let before = match fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => "# Written by weft doctor --apply.\n".to_string(),
        before => before?,
    };
    let is_of_name = |line: &&str| line.split('=').next().is_some_and(|key| key.trim() == name);
    let mut text: String =
        before.lines().filter(|line| !is_of_name(line)).map(|line| format!("{line}\n")).collect();
    text += &format!("{name} = {value}\n");
    fs::write(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_added_once_and_other_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("90-weft.conf");
        persist(&file, "vm.zone_reclaim_mode", 1).unwrap();
        fs::write(&file, fs::read_to_string(&file).unwrap() + "# mine\nvm.swappiness=1\n").unwrap();
        persist(&file, "vm.zone_reclaim_mode", 0).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text,
            "# Written by weft doctor --apply.\n# mine\nvm.swappiness=1\nvm.zone_reclaim_mode = 0\n"
        );
    }

    #[test]
    fn an_unknown_parameter_is_an_error_with_its_name() {
        let fix = Fix::Sysctl { name: "kernel.no_such_parameter", value: 0 };
        assert!(fix.apply().unwrap_err().to_string().contains("no_such_parameter"));
    }
}
