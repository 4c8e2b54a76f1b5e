//! The error that crosses service boundaries: an errno for applications or a refusal for another
//! process, a message and a hint for people.

use crate::Refusal;
use std::borrow::Cow;
use std::fmt;

/// The kind of an error: a Linux error number, which an application may see, or a refusal, which
/// only processes of the cluster do.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Errno {
    /// An error number of Linux.
    Number(i32),
    /// A refusal that its receiver acts on.
    Refusal(Refusal),
}

macro_rules! errnos {
    ($($name:ident = $value:expr),* $(,)?) => {
        impl Errno {
            $(#[allow(missing_docs)] pub const $name: Errno = Errno::Number($value);)*

            /// The symbolic name of a number, or the text of a refusal, for messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)*
                    Errno::Number(_) => "errno",
                    Errno::Refusal(refusal) => refusal.text(),
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EAGAIN = 11, ENOMEM = 12,
    EACCES = 13, EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22,
    ENFILE = 23, ETXTBSY = 26, EFBIG = 27, ENOSPC = 28, EROFS = 30, EMLINK = 31, ERANGE = 34, EDEADLK = 35,
    ENAMETOOLONG = 36, ENOLCK = 37, ENOSYS = 38, ENOTEMPTY = 39, ELOOP = 40, ENODATA = 61, EPROTO = 71,
    EOVERFLOW = 75, EOPNOTSUPP = 95, EADDRINUSE = 98, ENOTCONN = 107, ESHUTDOWN = 108, ETIMEDOUT = 110, EHOSTDOWN = 112, ESTALE = 116, EDQUOT = 122,
    ECANCELED = 125,
}

impl Errno {
    /// The number that a system call returns: `EIO` for a refusal, which has none.
    pub const fn number(self) -> i32 {
        match self {
            Errno::Number(number) => number,
            Errno::Refusal(_) => Errno::EIO.number(),
        }
    }
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        Errno::Refusal(refusal)
    }
}

impl PartialEq<Refusal> for Errno {
    fn eq(&self, refusal: &Refusal) -> bool {
        *self == Errno::Refusal(*refusal)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Errno::Number(number) => write!(f, "{}({number})", self.name()),
            Errno::Refusal(refusal) => fmt::Debug::fmt(refusal, f),
        }
    }
}

/// What failed, on which object, and what the reader can do.
///
/// An error that applications expect in normal operation (`ENOENT` from a lookup) has an empty
/// message and costs no allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The number that a system call returns, or why another process refused the request.
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
    pub fn new(errno: impl Into<Errno>, message: impl Into<Cow<'static, str>>) -> Error {
        Error { errno: errno.into(), message: message.into(), hint: Cow::Borrowed("") }
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

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Errno::Refusal(refusal).into()
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
