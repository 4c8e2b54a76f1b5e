//! The records of a load generator, one for each operation.

use serde::{Deserialize, Serialize};

/// One operation on one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Number of the mount.
    pub client: u32,
    /// Number of the thread on the mount.
    pub thread: u32,
    /// The object. All records of an object are of one type: block, name or log.
    pub object: String,
    /// When it was called, on a clock that all callers share.
    pub called_ns: u64,
    /// When it returned; none: its outcome is uncertain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned_ns: Option<u64>,
    /// The operation and its answer.
    pub event: Event,
}

/// An operation and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Event {
    /// Wrote a block.
    Write { value: u64 },
    /// Read this value from a block.
    Read { value: u64 },
    /// Read parts of several contents from a block, through the kernel's page cache or past it.
    TornRead {
        values: Vec<u64>,
        #[serde(default)]
        cached: bool,
    },
    /// Created a name exclusively. The inode is missing if it is unknown, or if the outcome is
    /// uncertain.
    Create { inode: Option<u64> },
    /// The name existed already.
    CreateExists,
    /// Removed a name, or tried to with an uncertain outcome.
    Unlink,
    /// There was no name to remove.
    UnlinkMissing,
    /// Found this inode by the name.
    Look { inode: u64 },
    /// Found no inode by the name.
    LookMissing,
    /// Appended a record to a log.
    Append { record: u64 },
    /// Read these records from a log.
    ReadLog { records: Vec<u64> },
    /// Read invalid data from a log, after these records.
    TornLog { records: Vec<u64>, rest: String },
    /// Got an error that a file system must not return here.
    Refused { what: String, errno: i32 },
}
