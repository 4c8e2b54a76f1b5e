//! What there is.

use std::collections::BTreeSet;

/// Members of the largest group.
pub const MAX_MEMBERS: usize = 3;

/// What management says of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Consistency {
    /// Has everything that was acknowledged.
    Good,
    /// Has missed something.
    NeedsResync,
    /// Is being brought up to date, and gets what is written meanwhile.
    Resyncing,
}

/// A version of the group in the cluster map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// Grows with every change.
    pub version: u8,
    /// Orders writes; always good.
    pub primary: usize,
    /// By member; of those beyond the group's size nothing is said.
    pub states: [Consistency; MAX_MEMBERS],
}

impl Record {
    /// Whether a member is in sync.
    pub fn is_good(&self, member: usize) -> bool {
        self.states[member] == Consistency::Good
    }

    /// Whether writes go to a member.
    pub fn gets_writes(&self, member: usize) -> bool {
        self.states[member] != Consistency::NeedsResync
    }
}

/// What the primary is doing in the region; nothing else happens there meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operation {
    /// What is written everywhere.
    pub value: u8,
    /// A client waits for it; else it is a copy to those who may lack it.
    pub is_write: bool,
    /// The primary has it itself.
    pub applied: bool,
    /// Who has said that he has it, by member.
    pub has: [bool; MAX_MEMBERS],
}

/// One target of the group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    /// The process runs.
    pub alive: bool,
    /// Management knows of this run of the process.
    pub registered: bool,
    /// It may serve, as far as it knows.
    pub lease: bool,
    /// The group as it knows it.
    pub view: Record,
    /// The region as it is read.
    pub value: u8,
    /// The region as it is after the power went.
    pub on_disk: u8,
    /// The intent log says that the region may differ on others or on disk. On disk itself.
    pub noted: bool,
    /// A write was done here, of which it isn't known whether all have it.
    pub open: bool,
    /// As the primary of its view: nothing can differ between copies that it doesn't know of.
    pub ready: bool,
    /// As the primary.
    pub operation: Option<Operation>,
    /// It has not lost anything since it was good.
    pub intact: bool,
    /// What it has lost may be on disk nowhere.
    pub lost_power: bool,
}

/// What is on its way. Each is for the run of the process that it was sent to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Message {
    /// From the client.
    Write { to: usize, version: u8, value: u8 },
    /// From the primary.
    Replicate { to: usize, version: u8, value: u8 },
    /// To the primary.
    Has { from: usize, to: usize, version: u8, value: u8 },
    /// All members have it.
    Committed { to: usize, version: u8, value: u8 },
}

impl Message {
    /// The member that it is for.
    pub fn to(&self) -> usize {
        match *self {
            Message::Write { to, .. }
            | Message::Replicate { to, .. }
            | Message::Has { to, .. }
            | Message::Committed { to, .. } => to,
        }
    }

    /// The version of the group in which it was sent.
    pub fn version(&self) -> u8 {
        match *self {
            Message::Write { version, .. }
            | Message::Replicate { version, .. }
            | Message::Has { version, .. }
            | Message::Committed { version, .. } => version,
        }
    }
}

/// How much may still go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Faults {
    /// Processes that are killed.
    pub kills: u8,
    /// Machines that lose power.
    pub power_cuts: u8,
    /// Leases that end, or members that are reported as unreachable, while they live.
    pub cuts: u8,
}

/// What keeps it safe; all of it unless a test is to show what happens without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Safeguards {
    /// Regions are noted before they are changed, until all copies are known to be equal and on
    /// disk.
    pub intent_notes: bool,
    /// A member that doesn't answer is taken out only when its lease has ended or it knows.
    pub leases: bool,
    /// A member that has a write of which it doesn't know whether all have it sends readers to the
    /// primary.
    pub open_writes: bool,
    /// A new primary copies noted regions to the others before it serves.
    pub reconciliation: bool,
    /// Requests of another version are refused.
    pub versions: bool,
    /// A primary that takes the others out serves when all of them know so, or can't serve.
    pub word: bool,
}

/// What becomes of the other members that are in sync when the primary is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Succession {
    /// The new primary copies noted regions to them before it serves.
    Reconciled,
    /// They need resync, and are brought up to date like any other.
    TakenOut,
}

impl Safeguards {
    /// As it is meant.
    pub const ALL: Safeguards = Safeguards {
        intent_notes: true,
        leases: true,
        open_writes: true,
        reconciliation: true,
        versions: true,
        word: true,
    };
}

/// Everything at one time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// What management says.
    pub record: Record,
    /// By member.
    pub members: [Member; MAX_MEMBERS],
    /// What is on its way.
    pub messages: BTreeSet<Message>,
    /// The last value that the client has begun to write.
    pub begun: u8,
    /// The last one that it was told is written.
    pub acknowledged: u8,
    /// The last one that a sync has covered.
    pub synced: u8,
    /// What a read may at least give.
    pub floor: u8,
    /// A read gave something else than it may.
    pub misread: bool,
    /// What may still go wrong.
    pub faults: Faults,
}
