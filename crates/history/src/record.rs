//! What a load generator writes down, one record an operation.

use serde::{Deserialize, Serialize};

/// One operation on one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Which mount.
    pub client: u32,
    /// Which thread there.
    pub thread: u32,
    /// What it was done to. All records of an object are of one kind: block, name or log.
    pub object: String,
    /// When it was called: any clock that all share.
    pub called_ns: u64,
    /// When it returned; none: its effect is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned_ns: Option<u64>,
    /// What was done and answered.
    pub event: Event,
}

/// What was done, and what was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Event {
    /// Wrote a block.
    Write { value: u64 },
    /// Found this in a block.
    Read { value: u64 },
    /// Found parts of several contents in a block; through the kernel's page cache, or past it.
    TornRead {
        values: Vec<u64>,
        #[serde(default)]
        cached: bool,
    },
    /// Made a name exclusively. The inode is missing where it couldn't be learnt, or the effect is
    /// open.
    Create { inode: Option<u64> },
    /// It was there already.
    CreateExists,
    /// Removed a name, or tried to and doesn't know.
    Unlink,
    /// There was none to remove.
    UnlinkMissing,
    /// Found this inode under the name.
    Look { inode: u64 },
    /// Found nothing under the name.
    LookMissing,
    /// Added a record at the end of a log.
    Append { record: u64 },
    /// Found these records in a log.
    ReadLog { records: Vec<u64> },
    /// Found something in a log, after these records, that is no record.
    TornLog { records: Vec<u64>, rest: String },
    /// Got an error that a file system doesn't give here.
    Refused { what: String, errno: i32 },
}
