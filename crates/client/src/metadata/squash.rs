//! Access checks that the kernel can't make: for squashed users, and for a create that finds an
//! existing file.
//!
//! The kernel checks every access by the users that it knows, and the client requests cacheable
//! attributes only once per lease. That isn't enough if the cluster's export rules squash users:
//! the service must then decide at each open whether root may open a file. A client doesn't know
//! which rule applies to it, so it asks the service if any rule might.

use crate::session::Session;
use std::sync::Arc;
use types::{Credentials, InodeId, MapHandle, Result, Squash};
use wire::MetaOp;

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;
/// The owner always may: it may have had the file open before its mode was changed.
const OWNER: u32 = 8;

/// The kernel adds this to the flags of a file that is opened for execution.
const FMODE_EXEC: u32 = 0x20;

/// Returns the permissions that `open(2)` with these flags needs.
fn wanted(flags: u32) -> u32 {
    match flags & 0o3 {
        0 if flags & FMODE_EXEC != 0 => EXECUTE,
        0 => READ,
        1 => WRITE,
        _ => READ | WRITE,
    }
}

/// Checks accesses that the kernel can't.
pub(crate) struct AccessChecks {
    pub(crate) session: Arc<Session>,
    pub(crate) map: MapHandle,
}

impl AccessChecks {
    /// Whether the service may squash a user.
    fn may_be_squashed(&self, user: Credentials) -> bool {
        if self.session.leases.is_only_session() {
            return false;
        }
        let map = self.map.load();
        map.exports.iter().any(|rule| match rule.export.squash {
            Squash::None => false,
            Squash::Root => user.uid == 0 || user.gid == 0 || user.is_unknown(),
            Squash::All => true,
        })
    }

    /// Checks whether a user may open a file with these flags of `open(2)`, if the kernel may not
    /// know that.
    pub(crate) async fn check_open(&self, user: Credentials, ino: InodeId, flags: u32) -> Result<()> {
        self.check_access(user, ino, wanted(flags)).await
    }

    /// Checks whether a user may open a file that it wanted to create, and that another client has
    /// created first. The kernel takes the file for new and skips its own check (`FMODE_CREATED` in
    /// `fs/namei.c`).
    ///
    /// # Errors
    /// `EACCES`, and the errors of the request.
    pub(crate) async fn check_open_found(&self, user: Credentials, ino: InodeId, flags: u32) -> Result<()> {
        // A single kernel knows every create. Root may open the file, unless it is squashed.
        if self.session.leases.is_only_session() || user.uid == 0 && !self.may_be_squashed(user) {
            return Ok(());
        }
        // No kernel has checked it, so the groups of an earlier process with this pid must not
        // count.
        let op = MetaOp::MayOpen { ino, wanted: wanted(flags) | OWNER };
        Box::pin(self.session.report_groups(user, &op)).await;
        self.session.query_with_privileges(None, user, op).await.map(drop)
    }

    /// Checks whether a user may truncate a file, by its name or through a descriptor.
    pub(crate) async fn check_truncate(&self, user: Credentials, ino: InodeId) -> Result<()> {
        self.check_access(user, ino, WRITE | OWNER).await
    }

    async fn check_access(&self, user: Credentials, ino: InodeId, wanted: u32) -> Result<()> {
        match self.may_be_squashed(user) {
            true => self
                .session
                .query_with_privileges(None, user, MetaOp::MayOpen { ino, wanted })
                .await
                .map(drop),
            false => Ok(()),
        }
    }
}
