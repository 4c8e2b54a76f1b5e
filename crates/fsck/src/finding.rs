//! Findings of a check.

use crate::data::ReplicaLocation;
use serde::{Deserialize, Serialize};
use types::{ByteRange, ClusterMap, InodeId, TargetId};

/// Kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A stored record can't be decoded.
    DamagedRecord,
    /// An entry refers to an inode that doesn't exist.
    DanglingName,
    /// An entry is stored under the wrong hash or with the wrong type.
    MisfiledName,
    /// The link count differs from the number of names.
    LinkCount,
    /// An inode without a name that isn't marked as an orphan.
    Unreachable,
    /// A directory's `..` doesn't lead to the directory of its entry, or it has several names.
    Parent,
    /// A record refers to no inode, or contradicts its inode.
    StrayRecord,
    /// The next inode number of a partition is in use already.
    NextNumber,
    /// The recorded number of inodes of a partition differs from the existing ones.
    InodeCount,
    /// An orphaned chunk file.
    StrayChunkFile,
    /// A chunk file that should exist is missing.
    MissingChunkFile,
    /// A chunk file ends before the data that was written to it.
    ShortChunkFile,
    /// A chunk file extends beyond the end of its file.
    LongChunkFile,
    /// Content doesn't match its checksum.
    DamagedContent,
    /// Replicas of a mirrored group have different content although all should be in sync.
    CopiesDiffer,
    /// A file has content in a group whose content is lost.
    LostGroup,
    /// A layout refers to a group or target that isn't in the map, or a target or replica of a
    /// group can't be opened.
    UnknownTarget,
}

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The path, or the inode if there is no path.
    pub object: String,
    /// The affected bytes of the file, for a fault of content.
    pub range: Option<types::ByteRange>,
    /// Cause of the fault.
    pub cause: String,
    /// What the administrator can do.
    pub remedy: String,
    /// It was repaired.
    pub repaired: bool,
    /// No replica has the content, or had it before it was zeroed.
    #[serde(default)]
    pub lost: bool,
    /// The target of the faulty replica, for a fault of one replica.
    #[serde(default)]
    pub target: Option<TargetId>,
    /// The name of its node.
    #[serde(default)]
    pub node: Option<String>,
    /// The affected file and stripe, for the repair.
    #[serde(skip)]
    pub(crate) place: Option<(InodeId, usize)>,
}

impl Finding {
    /// Creates a finding without a range or a target.
    pub fn new(
        kind: Kind,
        object: impl Into<String>,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            kind,
            object: object.into(),
            range: None,
            cause: cause.into(),
            remedy: remedy.into(),
            repaired: false,
            lost: false,
            target: None,
            node: None,
            place: None,
        }
    }

    /// Sets the affected bytes of the file.
    pub fn over(self, range: ByteRange) -> Finding {
        Finding { range: Some(range), ..self }
    }

    /// Sets the faulty replica.
    pub(crate) fn at(self, location: ReplicaLocation, map: &ClusterMap) -> Finding {
        let node = map.target(location.target).and_then(|target| map.node(target.node));
        Finding { target: Some(location.target), node: node.map(|node| node.name.clone()), ..self }
    }

    pub(crate) fn of(self, ino: InodeId, stripe: usize) -> Finding {
        Finding { place: Some((ino, stripe)), ..self }
    }
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// All faults found, repaired or not.
    pub findings: Vec<Finding>,
    /// Files that have a name or are orphans.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Chunk files whose content was read.
    pub chunk_files: u64,
    /// Bytes read of them.
    pub bytes: u64,
    /// Files that a restart will reconcile: orphans, interrupted writes, pending deletions.
    pub pending: u64,
    /// Replicas that were not checked, each as a sentence with the reason.
    #[serde(default)]
    pub unjudged: Vec<String>,
}

/// Overall result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum CheckOutcome {
    Clean,
    Repaired,
    Damaged,
}

impl CheckReport {
    /// Returns the overall result: clean, all repaired, or damaged.
    pub fn outcome(&self) -> CheckOutcome {
        if self.findings.is_empty() {
            CheckOutcome::Clean
        } else if self.findings.iter().all(|finding| finding.repaired) {
            CheckOutcome::Repaired
        } else {
            CheckOutcome::Damaged
        }
    }

    pub(crate) fn add(
        &mut self,
        kind: Kind,
        object: impl Into<String>,
        cause: impl Into<String>,
        remedy: &str,
    ) {
        self.findings.push(Finding::new(kind, object, cause, remedy));
    }
}
