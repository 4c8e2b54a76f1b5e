//! Findings of a check.

use crate::data::ReplicaLocation;
use serde::{Deserialize, Serialize};
use types::{ByteRange, ClusterMap, InodeId, TargetId};

types::finding_codes! {
    /// Kind of a fault.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Kind {
        DamagedRecord = "damaged-record",
            "A record of the metadata store can't be decoded.",
            "Restore the metadata from a backup. weft fsck --repair drops the record.",
        DanglingName = "dangling-name",
            "An entry refers to an inode or a directory that doesn't exist.",
            "weft fsck --repair removes the entry.",
        MisfiledName = "misfiled-name",
            "An entry is stored under a wrong hash, or with a type that isn't the inode's.",
            "weft fsck --repair stores it again.",
        LinkCount = "link-count",
            "The link count differs from the number of names.",
            "weft fsck --repair sets the count.",
        Unreachable = "unreachable",
            "An inode without a name isn't marked as an orphan, or a directory isn't reachable from the root.",
            "weft fsck --repair names the inode in /lost+found. It doesn't repair the directory: restore the metadata from a backup.",
        Parent = "parent",
            "The entry .. of a directory doesn't lead to the directory of its entry, or a directory has several names.",
            "weft fsck --repair sets the entry. It doesn't repair several names: rename or remove all but one.",
        StrayRecord = "stray-record",
            "An attribute, content, orphan mark or deletion mark refers to an inode that doesn't exist, or contradicts its inode.",
            "weft fsck --repair removes the record.",
        NextNumber = "next-number",
            "A partition would allocate an inode number that is in use.",
            "weft fsck --repair sets the number.",
        InodeCount = "inode-count",
            "The recorded number of inodes of a partition is wrong.",
            "weft fsck --repair sets the number.",
        StrayChunkFile = "stray-chunk-file",
            "A chunk file belongs to no file.",
            "weft fsck --repair moves it to orphans of its target; with --delete it deletes it.",
        MissingChunkFile = "missing-chunk-file",
            "A chunk file that should exist is missing.",
            "weft fsck --repair takes the content from another replica. Without one, restore the file from a backup.",
        ShortChunkFile = "short-chunk-file",
            "A chunk file ends before data that was written to it.",
            "weft fsck --repair takes the content from another replica. Without one, restore the file from a backup.",
        LongChunkFile = "long-chunk-file",
            "A chunk file extends beyond the end of its file.",
            "weft fsck --repair truncates it on a stopped cluster of one process, and saves a copy in orphans unless --delete. In use, it does so only if another replica isn't too long.",
        DamagedContent = "damaged-content",
            "Content doesn't match its checksum.",
            "weft fsck --repair takes the content from another replica. Without one, restore the file from a backup.",
        CopiesDiffer = "copies-differ",
            "Replicas match their checksums and differ, although all should be in sync.",
            "weft fsck --repair uses the content of the majority; with two replicas, that of the group's primary.",
        LostGroup = "lost-group",
            "A file has content in a group whose target was removed.",
            "Delete the file, or restore it from a backup. --repair changes nothing.",
        UnknownTarget = "unknown-target",
            "A layout refers to a group that isn't in the cluster map, or a replica can't be opened or read.",
            "Start the node, or mount the disk, and check again. --repair changes nothing.",
    }
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
