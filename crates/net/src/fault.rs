//! Reasons why a connection ends.

use std::fmt;
use std::io;
use wire::Malformed;

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The peer closed it.
    Closed,
    /// The network or the kernel ended it.
    Io(io::Error),
    /// The peer sent something that is no frame, or a frame that isn't allowed at this point.
    Malformed(Malformed),
    /// No byte arrived within the silence limit.
    Silent,
    /// The peer read nothing of what was sent to it within the limit.
    ReceiverStalled,
    /// A caller abandoned a transfer that was in progress.
    Abandoned,
    /// A transfer didn't complete within its call's time-out.
    TransferTimedOut,
    /// The peer has another address now.
    AddressChanged,
}

impl Fault {
    /// A frame that isn't allowed at this point.
    pub(crate) fn unexpected(what: impl Into<String>) -> Fault {
        Fault::Malformed(Malformed::new(what))
    }

    /// Whether the network path may be at fault, so that another path to the same process may work.
    /// A process that exits or is killed closes or resets its connections.
    pub(crate) fn may_be_path_failure(&self) -> bool {
        match self {
            Fault::Silent | Fault::ReceiverStalled | Fault::TransferTimedOut | Fault::Malformed(_) => true,
            Fault::Io(e) => !matches!(e.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
            Fault::Closed | Fault::Abandoned | Fault::AddressChanged => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Closed => f.write_str("the connection was closed"),
            Fault::Io(e) => e.fmt(f),
            Fault::Malformed(malformed) => malformed.fmt(f),
            Fault::Abandoned => f.write_str("a caller abandoned a transfer in progress"),
            Fault::TransferTimedOut => f.write_str("a transfer took longer than its call's time-out"),
            Fault::AddressChanged => f.write_str("the peer's address has changed"),
            Fault::Silent => f.write_str("the connection was silent for too long"),
            Fault::ReceiverStalled => f.write_str("the peer read nothing for too long"),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Closed,
            _ => Fault::Io(e),
        }
    }
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Fault {
        Fault::Malformed(malformed)
    }
}
