//! What weft needs of the kernel, checked before anything is changed.

use doctor::{KernelVersion, State};
use types::{Errno, Error, Result};

/// Refuses a kernel that weft isn't made for.
///
/// # Errors
/// `EOPNOTSUPP`: the kernel is older than the oldest one that `weft doctor` accepts.
pub fn require_supported() -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    require_version(&release)
}

/// Checks a release such as `6.1.0-18-amd64`. One that has no version is accepted: io_uring is
/// checked as well.
fn require_version(release: &str) -> Result<()> {
    let Some(version) = KernelVersion::parse(release) else { return Ok(()) };
    let finding = doctor::kernel_finding(version);
    match finding.state {
        State::Error => {
            let message = format!("{} (this machine runs {release})", finding.what);
            Err(Error::new(Errno::EOPNOTSUPP, message).hint(finding.hint))
        }
        State::Good | State::Warning => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_too_old_is_refused() {
        let error = require_version("5.10.0-32-amd64").unwrap_err();
        let text = format!("{error}; {}", error.hint);
        for part in ["Linux 5.10 is too old", "5.14", "5.10.0-32-amd64", "upgrade the kernel"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for release in ["5.14.0-427.13.1.el9_4.x86_64", "6.1.0-18-amd64", "6.18.44+", "generic"] {
            require_version(release).unwrap();
        }
        require_supported().unwrap();
    }
}
