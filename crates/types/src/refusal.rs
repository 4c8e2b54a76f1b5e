//! Why a service refuses a request that the sender can repeat elsewhere, later, or under other
//! rights.

use std::fmt;

/// A refusal that the processes of a cluster use among themselves. Its receiver acts on it, so an
/// application never sees it. On the wire, a refusal is an error number: `wire::refusal` has them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// The request has another version of the group than the member, or the version is about to
    /// change. The sender waits for another map, or for the member's, and repeats the request.
    GroupVersionMismatch,
    /// This member can't prove that it has the current content. The reader asks the primary.
    RedirectToPrimary,
    /// The metadata service doesn't serve a partition of the request: another service owns it, it
    /// can't be locked there, or this service is cut off from management. The sender waits for the
    /// owner that the map names, and repeats the request.
    PartitionNotServed,
    /// The session doesn't have the lease any more under which the operation began. The client
    /// acquires it and starts the operation again.
    EndedLease,
    /// The capability has expired, is of an earlier epoch of its file, or has an unknown key. The
    /// client requests another one from the metadata service and repeats the request.
    ExpiredCapability,
    /// The target has seen a later lease epoch of the chunk file than that of the request. The
    /// client asks the metadata service whether it still has the lease, and in which epoch.
    RevokedLeaseEpoch,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Refusal {
    /// All refusals.
    pub const ALL: [Refusal; 6] = [
        Refusal::GroupVersionMismatch,
        Refusal::RedirectToPrimary,
        Refusal::PartitionNotServed,
        Refusal::EndedLease,
        Refusal::ExpiredCapability,
        Refusal::RevokedLeaseEpoch,
    ];

    /// The text of an error without a message.
    pub fn text(self) -> &'static str {
        match self {
            Refusal::GroupVersionMismatch => "the group has another version",
            Refusal::RedirectToPrimary => "only the group's primary can answer",
            Refusal::PartitionNotServed => "the metadata service doesn't serve the partition",
            Refusal::EndedLease => "the lease has ended",
            Refusal::ExpiredCapability => "the capability has expired",
            Refusal::RevokedLeaseEpoch => "the lease epoch is over",
        }
    }
}
