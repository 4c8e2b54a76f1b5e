//! Preallocated inodes of a directory: the numbers and attributes of files that this session will
//! create there.

use crate::session::leases::RequestStamp;
use std::collections::VecDeque;
use std::ops::Range;
use types::{Attr, Credentials, FileKind, InodeId, mode};
use wire::MetaReply;

/// Inode numbers of the first request, and of later ones.
pub(crate) const FIRST_INODES: u32 = 64;
pub(crate) const MORE_INODES: u32 = 1024;

/// Preallocated inodes, for creates without a request.
pub(crate) struct InodePreallocation {
    /// Attributes of the directory.
    attr: Attr,
    inline_limit: u32,
    numbers: VecDeque<Range<u64>>,
}

/// The inode number and attributes for a create.
pub(crate) struct NewInode {
    pub(crate) ino: InodeId,
    /// The lease under which the file may be created, and a stamp of a time at which it was held.
    pub(crate) lease: InodeId,
    pub(crate) stamp: RequestStamp,
    /// Attributes of the directory.
    pub(crate) attr: Attr,
    pub(crate) inline_limit: u32,
    /// Whether the client should request more numbers.
    pub(crate) needs_refill: bool,
}

impl InodePreallocation {
    /// Takes the inode numbers from a service's reply.
    pub(crate) fn of(reply: &MetaReply) -> Option<InodePreallocation> {
        let MetaReply::Preallocated { first, count, attr, inline_limit, .. } = *reply else { return None };
        let mut numbers = VecDeque::new();
        numbers.push_back(first.0..first.0 + u64::from(count));
        Some(InodePreallocation { attr, inline_limit, numbers })
    }

    /// Adds the remaining numbers of an earlier reply in front of these.
    pub(crate) fn append_to(mut self, before: InodePreallocation) -> InodePreallocation {
        let added = std::mem::replace(&mut self.numbers, before.numbers);
        self.numbers.extend(added);
        self
    }

    pub(crate) fn take_inode(&mut self, lease: InodeId, stamp: RequestStamp) -> Option<NewInode> {
        let ino = loop {
            let range = self.numbers.front_mut()?;
            match range.next() {
                Some(number) => break InodeId(number),
                None => drop(self.numbers.pop_front()),
            }
        };
        let left: u64 = self.numbers.iter().map(|range| range.end - range.start).sum();
        let needs_refill = left < u64::from(FIRST_INODES) / 2;
        let (attr, inline_limit) = (self.attr, self.inline_limit);
        Some(NewInode { ino, lease, stamp, attr, inline_limit, needs_refill })
    }

    /// Whether the service surely permits a user to create files; the client knows no further
    /// rules. With squashed root, no client gets a directory delegation.
    pub(crate) fn permits(&self, who: Credentials) -> bool {
        const OWNER_CHANGES: u32 = 0o300;
        who.uid == 0 || (who.uid == self.attr.uid && self.attr.mode & OWNER_CHANGES == OWNER_CHANGES)
    }
}

/// Returns the attributes that the file will have when the service creates it.
pub(crate) fn new_file_attr(ino: InodeId, directory: &Attr, who: Credentials, permissions: u32) -> Attr {
    let now = rt::now();
    let gid = if directory.mode & mode::S_ISGID != 0 { directory.gid } else { who.gid };
    Attr {
        ino,
        mode: mode::S_IFREG | permissions,
        nlink: 1,
        uid: who.uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        flags: directory.flags.inherited_flags(FileKind::Regular),
        project: directory.flags.inherited_project(directory.project),
        has_no_xattrs: true,
    }
}
