//! The state of the model.

use std::collections::BTreeSet;

/// Members of the largest group.
pub const MAX_MEMBERS: usize = 3;

/// State of a member, by decision of management.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Consistency {
    /// In sync: has everything that was acknowledged.
    InSync,
    /// Has missed a change.
    NeedsResync,
    /// Is being resynced, and gets new writes meanwhile.
    Resyncing,
}

/// A version of the group in the cluster map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// Grows with every change.
    pub version: u8,
    /// Orders writes; always in sync.
    pub primary: usize,
    /// By member; entries beyond the group's size are unused.
    pub states: [Consistency; MAX_MEMBERS],
}

impl Record {
    /// Whether a member is in sync.
    pub fn is_in_sync(&self, member: usize) -> bool {
        self.states[member] == Consistency::InSync
    }

    /// Whether a member gets writes.
    pub fn receives_writes(&self, member: usize) -> bool {
        self.states[member] != Consistency::NeedsResync
    }
}

/// The primary's operation in the region, which excludes others there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operation {
    /// The value to replicate.
    pub value: u8,
    /// A client waits for it; otherwise it is a copy to members that may lack it.
    pub is_write: bool,
    /// The primary itself has it.
    pub applied: bool,
    /// Members that have confirmed it.
    pub acknowledged_by: [bool; MAX_MEMBERS],
}

/// One target of the group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    /// The process runs.
    pub alive: bool,
    /// Management knows this process.
    pub registered: bool,
    /// It may serve, as far as it knows.
    pub has_lease: bool,
    /// The group's record, as it knows it.
    pub view: Record,
    /// Content of the region, as reads return it.
    pub value: u8,
    /// Content of the region after a power loss.
    pub on_disk: u8,
    /// The intent log, which is on disk itself, has a note that the region may differ on other
    /// members or on disk.
    pub has_intent_note: bool,
    /// A write was executed here that other members may not have.
    pub has_uncommitted_write: bool,
    /// As the primary of its view: every possible difference between replicas is resolved.
    pub is_reconciled: bool,
    /// Its operation as the primary.
    pub operation: Option<Operation>,
    /// It has not lost anything since it was in sync.
    pub intact: bool,
    /// Data that it has lost may not be on any disk.
    pub lost_power: bool,
}

/// Messages in flight. Each is for the process to which it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Message {
    /// From the client.
    Write { to: usize, version: u8, value: u8 },
    /// From the primary.
    Replicate { to: usize, version: u8, value: u8 },
    /// To the primary.
    Ack { from: usize, to: usize, version: u8, value: u8 },
    /// All members have it.
    Committed { to: usize, version: u8, value: u8 },
}

impl Message {
    /// The member to which it was sent.
    pub fn to(&self) -> usize {
        match *self {
            Message::Write { to, .. }
            | Message::Replicate { to, .. }
            | Message::Ack { to, .. }
            | Message::Committed { to, .. } => to,
        }
    }

    /// The group version in which it was sent.
    pub fn version(&self) -> u8 {
        match *self {
            Message::Write { version, .. }
            | Message::Replicate { version, .. }
            | Message::Ack { version, .. }
            | Message::Committed { version, .. } => version,
        }
    }
}

/// Remaining faults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Faults {
    /// Processes that are killed.
    pub kills: u8,
    /// Machines that lose power.
    pub power_cuts: u8,
    /// Leases that end, or members that are reported as unreachable, while they live.
    pub cuts: u8,
}

/// Safeguards of the protocol; a test may leave one out to show that it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Safeguards {
    /// Regions are noted before they change, until all replicas are known to be equal and on disk.
    pub intent_notes: bool,
    /// A member that doesn't answer is ejected only when its lease has ended, or when it knows.
    pub leases: bool,
    /// A member with a write that other members may not have redirects readers to the primary.
    pub uncommitted_writes: bool,
    /// A new primary copies noted regions to the others before it serves.
    pub reconciliation: bool,
    /// Requests of another group version are refused.
    pub versions: bool,
    /// A primary that ejects the others serves once all of them know so, or can't serve.
    pub ejection_known: bool,
}

/// What happens to the other members that are in sync when the primary is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrimaryChange {
    /// The new primary copies noted regions to them before it serves.
    Reconciled,
    /// They need a resync, like any other such member.
    OthersEjected,
}

impl Safeguards {
    /// All safeguards in force.
    pub const ALL: Safeguards = Safeguards {
        intent_notes: true,
        leases: true,
        uncommitted_writes: true,
        reconciliation: true,
        versions: true,
        ejection_known: true,
    };
}

/// A state of the whole model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Management's record.
    pub record: Record,
    /// State of each member.
    pub members: [Member; MAX_MEMBERS],
    /// Messages in flight.
    pub messages: BTreeSet<Message>,
    /// The last value that the client has begun to write.
    pub started: u8,
    /// The last value whose write was acknowledged.
    pub acknowledged: u8,
    /// The last value that a sync has covered.
    pub synced: u8,
    /// The lowest value that a read may return.
    pub floor: u8,
    /// A read returned a value that it must not.
    pub has_stale_read: bool,
    /// Remaining faults.
    pub faults: Faults,
}
