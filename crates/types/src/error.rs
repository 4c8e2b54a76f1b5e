//! The error that crosses service boundaries: an errno for applications, a message and a hint for
//! people.

use std::borrow::Cow;
use std::fmt;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:expr),* $(,)?) => {
        impl Errno {
            $(#[allow(missing_docs)] pub const $name: Errno = Errno($value);)*

            /// The symbolic name, for messages.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)*
                    _ => "errno",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EAGAIN = 11, ENOMEM = 12,
    EACCES = 13, EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22,
    ENFILE = 23, ETXTBSY = 26, EFBIG = 27, ENOSPC = 28, EROFS = 30, EMLINK = 31, ERANGE = 34, EDEADLK = 35,
    ENAMETOOLONG = 36, ENOLCK = 37, ENOSYS = 38, ENOTEMPTY = 39, ELOOP = 40, ENODATA = 61, EREMOTE = 66, EPROTO = 71,
    EOVERFLOW = 75, EREMCHG = 78, EOPNOTSUPP = 95, EADDRINUSE = 98, ENOTCONN = 107, ESHUTDOWN = 108, ETIMEDOUT = 110, EHOSTDOWN = 112, ESTALE = 116, EDQUOT = 122,
    ECANCELED = 125, EKEYEXPIRED = 127, EKEYREVOKED = 128,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// What failed, on which object, and what the reader can do.
///
/// An error that applications expect in normal operation (`ENOENT` from a lookup) has an empty
/// message and costs no allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The number that a system call returns.
    pub errno: Errno,
    /// Object and cause; empty for expected errors.
    pub message: Cow<'static, str>,
    /// The remedy; may be empty.
    pub hint: Cow<'static, str>,
}

/// Result with the boundary error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a message that names object and cause.
    pub fn new(errno: Errno, message: impl Into<Cow<'static, str>>) -> Error {
        Error { errno, message: message.into(), hint: Cow::Borrowed("") }
    }

    /// Adds the remedy.
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Error {
        self.hint = hint.into();
        self
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error { errno, message: Cow::Borrowed(""), hint: Cow::Borrowed("") }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            write!(f, "{}", self.errno.name())?;
        } else {
            write!(f, "{}", self.message)?;
        }
        if !self.hint.is_empty() {
            write!(f, "; hint: {}", self.hint)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.errno, self)
    }
}

impl std::error::Error for Error {}
