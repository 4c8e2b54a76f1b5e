//! Records of the service itself in the store: owners of partitions, sessions, and answers to
//! requests that changed something. Protobuf, so that fields can be added.

use prost::Message;
use types::{Attr, InodeFlags, InodeId, NodeId, ProjectId, Timestamp};
use wire::MetaReply;

/// Owner of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Owner {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Ownership epoch: how often the partition was taken over. The first owner has 1.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The owner has released the partition: any service to which the map assigns it may adopt it.
    #[prost(bool, tag = "3")]
    pub released: bool,
}

impl Owner {
    /// The next owner record of a partition that has (or had) the record `before`.
    pub fn after(before: Option<&[u8]>, node: NodeId) -> Result<Owner, prost::DecodeError> {
        let epoch = before.map(Owner::decode).transpose()?.map_or(0, |owner| owner.epoch);
        Ok(Owner { node: node.0, epoch: epoch + 1, released: false })
    }
}

/// A session of another process.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StoredSession {
    /// The session was evicted: its id is never used again. `optional`, since no record may be
    /// empty.
    #[prost(bool, optional, tag = "1")]
    pub ended: Option<bool>,
    /// When it was evicted, in seconds since 1970. Absent in records of earlier versions.
    #[prost(int64, optional, tag = "2")]
    pub ended_s: Option<i64>,
}

impl StoredSession {
    pub const ACTIVE: StoredSession = StoredSession { ended: Some(false), ended_s: None };

    /// A session that was evicted at this time.
    pub fn ended_at(now_s: i64) -> StoredSession {
        StoredSession { ended: Some(true), ended_s: Some(now_s) }
    }

    pub fn is_ended(&self) -> bool {
        self.ended == Some(true)
    }
}

/// The answer to a request that changed something.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StoredReply {
    /// Sequence id of the change within its session slot.
    #[prost(uint32, tag = "5")]
    pub sequence: u32,
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4")]
    pub answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(crate) enum Answer {
    #[prost(bool, tag = "1")]
    Unit(bool),
    #[prost(message, tag = "2")]
    Entry(StoredAttr),
    #[prost(message, tag = "3")]
    Attr(StoredAttr),
    #[prost(message, tag = "4")]
    Renamed(StoredRename),
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StoredRename {
    #[prost(message, required, tag = "1")]
    pub moved: StoredAttr,
    #[prost(message, optional, tag = "2")]
    pub other: Option<StoredAttr>,
}

/// Attributes; times in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StoredAttr {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    #[prost(uint32, tag = "3")]
    pub nlink: u32,
    #[prost(uint32, tag = "4")]
    pub uid: u32,
    #[prost(uint32, tag = "5")]
    pub gid: u32,
    #[prost(uint32, tag = "6")]
    pub rdev: u32,
    #[prost(uint64, tag = "7")]
    pub size: u64,
    #[prost(uint64, tag = "8")]
    pub blocks: u64,
    #[prost(sint64, tag = "9")]
    pub atime: i64,
    #[prost(sint64, tag = "10")]
    pub mtime: i64,
    #[prost(sint64, tag = "11")]
    pub ctime: i64,
    #[prost(sint64, tag = "12")]
    pub btime: i64,
    #[prost(uint32, tag = "13")]
    pub flags: u32,
    #[prost(uint32, tag = "14")]
    pub project: u32,
    #[prost(bool, tag = "15")]
    pub has_no_xattrs: bool,
}

impl From<&Attr> for StoredAttr {
    fn from(attr: &Attr) -> StoredAttr {
        StoredAttr {
            ino: attr.ino.0,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.as_nanos(),
            mtime: attr.mtime.as_nanos(),
            ctime: attr.ctime.as_nanos(),
            btime: attr.btime.as_nanos(),
            flags: attr.flags.0,
            project: attr.project.0,
            has_no_xattrs: attr.has_no_xattrs,
        }
    }
}

impl From<&StoredAttr> for Attr {
    fn from(stored: &StoredAttr) -> Attr {
        Attr {
            ino: InodeId(stored.ino),
            mode: stored.mode,
            nlink: stored.nlink,
            uid: stored.uid,
            gid: stored.gid,
            rdev: stored.rdev,
            size: stored.size,
            blocks: stored.blocks,
            atime: Timestamp::from_nanos(stored.atime),
            mtime: Timestamp::from_nanos(stored.mtime),
            ctime: Timestamp::from_nanos(stored.ctime),
            btime: Timestamp::from_nanos(stored.btime),
            flags: InodeFlags(stored.flags),
            project: ProjectId(stored.project),
            has_no_xattrs: stored.has_no_xattrs,
        }
    }
}

impl StoredReply {
    /// The stored form of an answer; `None` if the request may as well be executed twice.
    pub fn of(reply: &MetaReply, sequence: u32) -> Option<StoredReply> {
        let answer = match reply {
            MetaReply::Unit => Answer::Unit(true),
            // The client can ask for the other details of a new file again.
            MetaReply::Entry(attr) | MetaReply::Created { attr, .. } => Answer::Entry(attr.into()),
            MetaReply::Attr(attr) => Answer::Attr(attr.into()),
            MetaReply::Renamed { moved, other } => Answer::Renamed(StoredRename {
                moved: moved.into(),
                other: other.as_ref().map(StoredAttr::from),
            }),
            // Opens and changes of a pattern return the same when they are repeated. Unused
            // reserved inode numbers are harmless, and the other requests change nothing. For a
            // truncation, only the fact that it was executed is stored (`Session::store_reply`).
            MetaReply::File(_)
            | MetaReply::Preallocated { .. }
            | MetaReply::Description(_)
            | MetaReply::Migration(_)
            | MetaReply::Bytes(_)
            | MetaReply::Names(_)
            | MetaReply::Directory { .. }
            | MetaReply::Recalls(_)
            | MetaReply::Redirect { .. }
            | MetaReply::Usage(_)
            | MetaReply::Process(_)
            | MetaReply::PartitionsTakenOver { .. }
            | MetaReply::Lock(_) => return None,
        };
        Some(StoredReply { sequence, answer: Some(answer) })
    }

    /// The answer; `None` for a kind that this version doesn't know.
    pub fn reply(&self) -> Option<MetaReply> {
        Some(match self.answer.as_ref()? {
            Answer::Unit(_) => MetaReply::Unit,
            Answer::Entry(attr) => MetaReply::Entry(attr.into()),
            Answer::Attr(attr) => MetaReply::Attr(attr.into()),
            Answer::Renamed(StoredRename { moved, other }) => {
                MetaReply::Renamed { moved: moved.into(), other: other.as_ref().map(Attr::from) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        let time = |n| Timestamp::new(n, n as u32);
        Attr {
            ino: InodeId(1 << 40 | 7),
            mode: 0o100644,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            size: 6,
            blocks: 7,
            atime: time(-1).max(time(0)),
            mtime: time(9),
            ctime: time(10),
            btime: time(11),
            flags: InodeFlags::NODUMP,
            project: ProjectId(12),
            has_no_xattrs: true,
        }
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let other = Some(Attr { ino: InodeId(9), ..attr() });
        let replies = [
            MetaReply::Unit,
            MetaReply::Entry(attr()),
            MetaReply::Attr(attr()),
            MetaReply::Renamed { moved: attr(), other },
            MetaReply::Renamed { moved: attr(), other: None },
        ];
        for reply in replies {
            let bytes = StoredReply::of(&reply, 7).unwrap().encode_to_vec();
            let decoded = StoredReply::decode(bytes.as_slice()).unwrap().reply().unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{reply:?}"));
        }
    }

    #[test]
    fn stored_bytes_are_frozen() {
        assert_eq!(Owner { node: 3, epoch: 300, released: false }.encode_to_vec(), [8, 3, 16, 172, 2]);
        assert_eq!(Owner { node: 3, epoch: 1, released: true }.encode_to_vec(), [8, 3, 16, 1, 24, 1]);
        assert_eq!(StoredSession::ACTIVE.encode_to_vec(), [8, 0]);
        let old = StoredSession { ended: Some(true), ended_s: None };
        assert_eq!(old.encode_to_vec(), [8, 1]);
        assert_eq!(StoredSession::ended_at(300).encode_to_vec(), [8, 1, 16, 172, 2]);
        assert_eq!(StoredReply::of(&MetaReply::Unit, 9).unwrap().encode_to_vec(), [8, 1, 40, 9]);
        let entry = MetaReply::Entry(Attr { ino: InodeId(5), mode: 1, nlink: 1, ..zero() });
        assert_eq!(StoredReply::of(&entry, 9).unwrap().encode_to_vec(), [18, 6, 8, 5, 16, 1, 24, 1, 40, 9]);
    }

    fn zero() -> Attr {
        (&StoredAttr::default()).into()
    }

    #[test]
    fn an_owner_follows_the_one_before() {
        let first = Owner::after(None, NodeId(1)).unwrap();
        assert_eq!(first.epoch, 1);
        let second = Owner::after(Some(&first.encode_to_vec()), NodeId(2)).unwrap();
        assert_eq!(second, Owner { node: 2, epoch: 2, released: false });
    }
}
