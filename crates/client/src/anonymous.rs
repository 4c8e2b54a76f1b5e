//! Whom the kernel can't judge: users whom the service takes for somebody else than this machine's
//! kernel does, and who finds a file instead of making it.
//!
//! The kernel checks every access by the users that it knows, and the service is asked only once
//! for what may be kept under a lease. Where the cluster's rules for networks squash users, that
//! isn't enough: whether root may open a file is then the service's to say, each time. A client
//! doesn't know which rule it falls under, so it asks as soon as there is one that could be meant.

use crate::Client;
use std::sync::PoisonError;
use types::{Credentials, InodeId, Result, Squash};
use wire::MetaOp;

const READ: u32 = 4;
const WRITE: u32 = 2;
const RUN: u32 = 1;
/// The owner may in any case: it may have had the file open before its mode was changed.
const OWNER: u32 = 8;

/// What the kernel adds to the flags of a file that is opened to be run.
const FMODE_EXEC: u32 = 0x20;

/// What `open(2)` with these flags needs.
fn wanted(flags: u32) -> u32 {
    match flags & 0o3 {
        0 if flags & FMODE_EXEC != 0 => RUN,
        0 => READ,
        1 => WRITE,
        _ => READ | WRITE,
    }
}

impl Client {
    /// Whether a user may be somebody else for the service.
    fn may_be_squashed(&self, user: Credentials) -> bool {
        if self.is_alone() {
            return false;
        }
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.exports.iter().any(|rule| match rule.export.squash {
            Squash::None => false,
            Squash::Root => user.uid == 0 || user.gid == 0 || user.is_unknown(),
            Squash::All => true,
        })
    }

    /// Asks whether a user may open a file, with these flags of `open(2)`, where the kernel may not
    /// know it.
    pub(crate) async fn may_open(&self, user: Credentials, ino: InodeId, flags: u32) -> Result<()> {
        self.may_use(user, ino, wanted(flags)).await
    }

    /// Asks whether a user may open a file that it wanted to make and that another client has made
    /// first. The kernel takes it for made, and looks at nothing (`FMODE_CREATED` in `fs/namei.c`).
    ///
    /// # Errors
    /// `EACCES`, and what the service's answer comes to.
    pub(crate) async fn may_open_found(&self, user: Credentials, ino: InodeId, flags: u32) -> Result<()> {
        // Nobody makes a name behind the back of a single kernel. Root may, unless it is squashed.
        if self.is_alone() || user.uid == 0 && !self.may_be_squashed(user) {
            return Ok(());
        }
        // No kernel has checked it: groups that an earlier process had under this number don't
        // count.
        let op = MetaOp::MayOpen { ino, wanted: wanted(flags) | OWNER };
        Box::pin(self.introduce(user, &op)).await;
        self.ask_introduced(None, user, op).await.map(drop)
    }

    /// The same of cutting it, by its name or through a descriptor.
    pub(crate) async fn may_truncate(&self, user: Credentials, ino: InodeId) -> Result<()> {
        self.may_use(user, ino, WRITE | OWNER).await
    }

    async fn may_use(&self, user: Credentials, ino: InodeId, wanted: u32) -> Result<()> {
        match self.may_be_squashed(user) {
            true => self.ask_introduced(None, user, MetaOp::MayOpen { ino, wanted }).await.map(drop),
            false => Ok(()),
        }
    }
}
