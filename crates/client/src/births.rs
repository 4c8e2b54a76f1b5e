//! What this session knows of files that are going to be made in a directory: their numbers, and
//! what they will be.

use crate::lease::Asked;
use std::collections::VecDeque;
use std::ops::Range;
use types::{Attr, Credentials, FileKind, InodeId, mode};
use wire::MetaReply;

/// Numbers that are asked for at first, and when that was too few.
pub(crate) const FEW_NUMBERS: u32 = 64;
pub(crate) const MANY_NUMBERS: u32 = 1024;

/// Files that may be made without asking.
pub(crate) struct Births {
    /// The directory.
    attr: Attr,
    inline_limit: u32,
    numbers: VecDeque<Range<u64>>,
}

/// A file that is about to be made.
pub(crate) struct Numbered {
    pub(crate) ino: InodeId,
    /// The lease under which it may be, and when that was held.
    pub(crate) lease: InodeId,
    pub(crate) asked: Asked,
    /// The directory.
    pub(crate) attr: Attr,
    pub(crate) inline_limit: u32,
    /// More numbers are needed.
    pub(crate) are_few: bool,
}

impl Births {
    /// Those that a service has answered with.
    pub(crate) fn of(reply: &MetaReply) -> Option<Births> {
        let MetaReply::Reserved { first, count, attr, inline_limit, .. } = *reply else { return None };
        let mut numbers = VecDeque::new();
        numbers.push_back(first.0..first.0 + u64::from(count));
        Some(Births { attr, inline_limit, numbers })
    }

    /// These, and the numbers that are left of earlier ones.
    pub(crate) fn after(mut self, before: Births) -> Births {
        let added = std::mem::replace(&mut self.numbers, before.numbers);
        self.numbers.extend(added);
        self
    }

    pub(crate) fn take_number(&mut self, lease: InodeId, asked: Asked) -> Option<Numbered> {
        let ino = loop {
            let range = self.numbers.front_mut()?;
            match range.next() {
                Some(number) => break InodeId(number),
                None => drop(self.numbers.pop_front()),
            }
        };
        let left: u64 = self.numbers.iter().map(|range| range.end - range.start).sum();
        let are_few = left < u64::from(FEW_NUMBERS) / 2;
        let (attr, inline_limit) = (self.attr, self.inline_limit);
        Some(Numbered { ino, lease, asked, attr, inline_limit, are_few })
    }

    /// Whether the service surely lets a user make files: more is not known here of who may. Where
    /// root is taken for somebody else nobody has a directory alone.
    pub(crate) fn lets(&self, who: Credentials) -> bool {
        const OWNER_CHANGES: u32 = 0o300;
        who.uid == 0 || (who.uid == self.attr.uid && self.attr.mode & OWNER_CHANGES == OWNER_CHANGES)
    }
}

/// A file as it will be when it is delivered.
pub(crate) fn newborn(ino: InodeId, directory: &Attr, who: Credentials, permissions: u32) -> Attr {
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
        flags: directory.flags.inherited(FileKind::Regular),
        project: directory.flags.project_inside(directory.project),
    }
}
