//! What a check finds.

use crate::data::Seat;
use serde::{Deserialize, Serialize};
use types::{ByteRange, ClusterMap, InodeId, TargetId};

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A stored record can't be decoded.
    DamagedRecord,
    /// A name leads to an inode that doesn't exist.
    DanglingName,
    /// A name is stored under the wrong hash or with the wrong type.
    MisfiledName,
    /// The link count isn't the number of names.
    LinkCount,
    /// An inode without a name that isn't marked as an orphan.
    Unreachable,
    /// A directory's `..` doesn't lead to where its name is, or it has several names.
    Parent,
    /// A record that belongs to no inode, or contradicts it.
    StrayRecord,
    /// The next inode number of a partition was already given out.
    NextNumber,
    /// The number of inodes that is on record for a partition isn't that of those that there are.
    InodeCount,
    /// A chunk file that no file owns.
    StrayChunkFile,
    /// A chunk file that should be there and isn't.
    MissingChunkFile,
    /// A chunk file that ends before what was written to it.
    ShortChunkFile,
    /// A chunk file that reaches beyond the end of its file.
    LongChunkFile,
    /// Content that doesn't match its checksum.
    DamagedContent,
    /// Copies of a mirrored group that have different content although both count as good.
    CopiesDiffer,
    /// A file with content in a group whose content is lost.
    LostGroup,
    /// A layout that names a group or target which isn't in the map, or a target or copy of a group
    /// that can't be opened.
    UnknownTarget,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// The path, or the inode where there is no path.
    pub object: String,
    /// The bytes of the file that are affected, where it is about content.
    pub range: Option<types::ByteRange>,
    /// Why it is wrong.
    pub cause: String,
    /// What the reader can do.
    pub remedy: String,
    /// It was put right.
    pub repaired: bool,
    /// No copy has it, or had it before it was made zeros.
    #[serde(default)]
    pub lost: bool,
    /// The target whose copy is wrong, where it is about one.
    #[serde(default)]
    pub target: Option<TargetId>,
    /// The name of its node.
    #[serde(default)]
    pub node: Option<String>,
    /// The file and stripe that it is about, for who mends it.
    #[serde(skip)]
    pub(crate) place: Option<(InodeId, usize)>,
}

impl Finding {
    /// A finding that isn't about bytes or a target.
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

    /// The bytes of the file that it is about.
    pub fn over(self, range: ByteRange) -> Finding {
        Finding { range: Some(range), ..self }
    }

    /// The copy that is wrong.
    pub(crate) fn at(self, seat: Seat, map: &ClusterMap) -> Finding {
        let node = map.target(seat.target).and_then(|target| map.node(target.node));
        Finding { target: Some(seat.target), node: node.map(|node| node.name.clone()), ..self }
    }

    pub(crate) fn of(self, ino: InodeId, stripe: usize) -> Finding {
        Finding { place: Some((ino, stripe)), ..self }
    }
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Everything that is or was wrong.
    pub findings: Vec<Finding>,
    /// Files that have a name or are orphans.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Chunk files whose content was read.
    pub chunk_files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that a restart will settle: orphans, interrupted writes, pending deletions.
    pub pending: u64,
    /// Copies that were not judged, each in a sentence that says why.
    #[serde(default)]
    pub unjudged: Vec<String>,
}

/// What to tell the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Verdict {
    Clean,
    Repaired,
    Damaged,
}

impl Report {
    /// Clean, all repaired, or something left.
    pub fn verdict(&self) -> Verdict {
        if self.findings.is_empty() {
            Verdict::Clean
        } else if self.findings.iter().all(|finding| finding.repaired) {
            Verdict::Repaired
        } else {
            Verdict::Damaged
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
