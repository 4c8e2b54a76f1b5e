//! File descriptors of this process.

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

/// The first descriptor that isn't standard input, output or error.
const FIRST: libc::c_uint = 3;

/// Keeps all descriptors but standard input, output and error from programs that this process
/// starts from now on. A process in the background would otherwise hold files open that its
/// caller's shell had open, for example on a file system that is to be unmounted.
///
/// # Errors
/// Those of close_range(2), which Linux has since 5.11.
pub fn keep_descriptors_from_children() -> io::Result<()> {
    // SAFETY: the call only sets a flag of descriptors.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes a file of a program that works with blocking system calls.
///
/// # Errors
/// What a file system reports only now: it can't store what was written. The file is closed
/// nevertheless.
pub fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: nothing else closes the descriptor, since its owner has given it up.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn an_inherited_descriptor_is_not_passed_on() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let flags_of = |fd| {
            // SAFETY: asks for flags.
            unsafe { libc::fcntl(fd, libc::F_GETFD) }
        };
        // SAFETY: sets flags of an open descriptor.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        assert_eq!(flags_of(file.as_raw_fd()) & libc::FD_CLOEXEC, 0);
        keep_descriptors_from_children().unwrap();
        assert_eq!(flags_of(file.as_raw_fd()) & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        assert_eq!(flags_of(0) & libc::FD_CLOEXEC, 0);
    }
}
