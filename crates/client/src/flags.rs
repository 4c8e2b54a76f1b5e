//! Flags of inodes (chattr(1)): what a client enforces of them, since its kernel doesn't know them
//! and the service doesn't see it.
//!
//! The metadata service refuses what goes through it: changes of names, attributes and sizes.
//! Whether a file may be opened for writing is looked at here, when it is opened: what was open
//! before a flag was set is written as before, as XFS has it.

use crate::lease::Asked;
use crate::{Client, Handle, entry};
use std::sync::atomic::Ordering;
use types::{Attr, Credentials, Errno, Error, InodeFlags, InodeId, ProjectId, Result, SetAttr};
use wire::MetaOp;

const O_APPEND: u32 = 0o2000;

/// Flags of an inode, as an answer told them.
#[derive(Clone, Copy)]
pub(crate) struct KnownFlags {
    asked: Asked,
    /// `None`: they have changed, and answers from before must not be taken for new.
    flags: Option<InodeFlags>,
}

impl KnownFlags {
    /// What an answer tells; nothing if a later one is known.
    pub(crate) fn newer(
        known: Option<KnownFlags>,
        asked: Asked,
        flags: Option<InodeFlags>,
    ) -> Option<KnownFlags> {
        match known {
            Some(known) if known.asked.is_after(asked) => Some(known),
            _ => Some(KnownFlags { asked, flags }),
        }
    }
}

impl Client {
    /// Notes the flags of an inode, which an answer told.
    pub(crate) fn note_flags(&self, asked: Asked, attr: &Attr) {
        self.inodes.note_flags(attr.ino, asked, Some(attr.flags));
    }

    /// Sets the flags of an inode, and its project if one is given.
    ///
    /// # Errors
    /// `EPERM` to whoever may not, `EOPNOTSUPP` for what isn't a file or directory.
    pub async fn set_flags(
        &self,
        credentials: Credentials,
        ino: InodeId,
        flags: InodeFlags,
        project: Option<ProjectId>,
    ) -> Result<()> {
        let set = SetAttr { flags: Some(flags), project, ..SetAttr::default() };
        let changed = self.setattr(credentials, ino, set, None).await;
        self.inodes.note_flags(ino, self.leases.asking(), None);
        // The kernel doesn't know that the time of the last change is another one.
        self.uncache_attributes(ino).await;
        changed.map(drop)
    }

    /// Refuses a file that was opened for writing and may not be, and notes what else isn't to be
    /// done through it.
    ///
    /// # Errors
    /// `EPERM`, and what asking for the flags comes to.
    pub(crate) async fn refuse_writer(&self, handle: &Handle, open_flags: u32) -> Result<()> {
        if !handle.is_writable() {
            return Ok(());
        }
        let flags = match self.flags_under_lease(handle.ino()) {
            Some(flags) => flags,
            None => Box::pin(self.ask_for_flags(handle.ino())).await?,
        };
        handle.obey(flags, open_flags)
    }

    /// The flags as they were told under a lease that lasts: others have not changed them since.
    fn flags_under_lease(&self, ino: InodeId) -> Option<InodeFlags> {
        let known = self.inodes.flags(ino)?;
        self.leases.vouches(known.asked, ino)?;
        known.flags
    }

    async fn ask_for_flags(&self, ino: InodeId) -> Result<InodeFlags> {
        let answer = self.ask(MetaOp::Getattr { ino }).await?;
        let (asked, attr) = (answer.asked, entry(answer.reply)?);
        self.note_flags(asked, &attr);
        Ok(attr.flags)
    }
}

impl Handle {
    /// Refuses what the flags of its file forbid, as it was opened for writing.
    fn obey(&self, flags: InodeFlags, open_flags: u32) -> Result<()> {
        let ino = self.ino();
        if flags.has(InodeFlags::IMMUTABLE) {
            let message = format!("inode {ino} is immutable and can't be opened for writing");
            return Err(Error::new(Errno::EPERM, message).hint("chattr -i"));
        }
        if flags.has(InodeFlags::APPEND) {
            if open_flags & O_APPEND == 0 {
                let message =
                    format!("inode {ino} is append-only and can't be opened for writing without O_APPEND");
                return Err(Error::new(Errno::EPERM, message).hint("chattr -a"));
            }
            self.append_only.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Refuses what doesn't only append, if nothing else may be done through it. It was opened with
    /// `O_APPEND`, which fcntl(2) can take away; a mapping has no end.
    pub(crate) fn refuse_unless(&self, appends: bool) -> Result<()> {
        if appends || !self.append_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        let message = format!("inode {} is append-only: what it has can't be changed", self.ino());
        Err(Error::new(Errno::EPERM, message).hint("write with O_APPEND"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Leases;

    /// Answers come in any order.
    #[test]
    fn an_answer_tells_no_flags_where_a_later_one_is_known() {
        let leases = Leases::new(false);
        let asked = [leases.asking(), leases.asking(), leases.asking()];
        let changed = KnownFlags::newer(None, asked[1], None);
        let told = |asked| {
            let known = KnownFlags::newer(changed, asked, Some(InodeFlags::NODUMP));
            known.and_then(|known| known.flags)
        };
        assert_eq!(told(asked[0]), None, "it is of before the change");
        assert_eq!(told(asked[2]), Some(InodeFlags::NODUMP));
    }
}
