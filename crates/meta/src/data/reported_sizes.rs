//! Sizes that returning sessions report, of files on which they had the exclusive lease.
//!
//! A service that restarted, or has adopted a partition, runs size recovery for files that sessions
//! were writing. By itself it takes the size from the chunk files. These may reach beyond the end
//! of the file: an in-flight write past the end has reached some targets, or all of them. Its
//! client got no answer and repeats it, and an append would begin behind the torn first write. Only
//! the holder of the `Write` lease knows the end of the file that applications have seen. So the
//! client reports the size first, and the service cuts the chunk files to it before other sessions
//! get access.
//!
//! A size is used once: other sessions may extend the file afterwards. It is dropped after the
//! file's size recovery, and a later one (from a retransmission) is ignored.

use crate::limits::MAX_REPORTED_SIZES;
use crate::session::grace_period::SessionReturns;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{InodeId, PartitionId, Result, SessionId};
use wire::ReportedSize;

/// Reported sizes of files whose size recovery is pending.
#[derive(Default)]
pub(crate) struct ReportedSizes {
    reported: Mutex<BTreeMap<(SessionId, InodeId), u64>>,
}

impl ReportedSizes {
    /// The size that a session has reported of a file.
    pub fn of(&self, ino: InodeId, session: SessionId) -> Option<u64> {
        self.reported.lock().get(&(session, ino)).copied()
    }

    /// Drops the size after the file's size recovery.
    pub fn forget(&self, ino: InodeId, session: SessionId) {
        self.reported.lock().remove(&(session, ino));
    }

    /// Drops the sizes of a partition that another service owns now.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.reported.lock().retain(|(_, ino), _| ino.partition() != partition);
    }
}

impl SessionReturns {
    /// Takes the sizes that a session reports before it returns, for files in partitions that wait
    /// for it.
    ///
    /// # Errors
    /// `ESTALE` for an evicted session.
    pub fn reclaim_sizes(&self, id: SessionId, sizes: &[ReportedSize]) -> Result<()> {
        self.sessions.check_id(id)?;
        // Checked under this mutex: the sizes of a session that has returned are dropped under it.
        let mut reported = self.reported_sizes.reported.lock();
        let (must_register, to_reclaim) =
            (self.grace.awaits_registration(id), self.grace.partitions_to_reclaim(id));
        let is_awaited = |ino: InodeId| match self.shares_partitions {
            true => to_reclaim.contains(&ino.partition()),
            false => must_register,
        };
        for ReportedSize { ino, size } in sizes.iter().filter(|known| is_awaited(known.ino)) {
            if reported.len() >= MAX_REPORTED_SIZES && !reported.contains_key(&(id, *ino)) {
                tracing::warn!(
                    session = id.0,
                    limit = MAX_REPORTED_SIZES,
                    "sessions that come back were writing more files than there is room for: \
                     an append that was in flight may be found in part"
                );
                break;
            }
            reported.insert((id, *ino), *size);
        }
        Ok(())
    }

    /// Drops the sizes of a session that has returned or ended, except those for partitions that it
    /// has yet to reclaim, and for quarantined files.
    pub fn drop_reported_sizes(&self, session: SessionId) {
        let mut reported = self.reported_sizes.reported.lock();
        let to_reclaim = self.grace.partitions_to_reclaim(session);
        let is_used = |ino: InodeId| {
            !to_reclaim.contains(&ino.partition()) && !self.quarantine.is_pending_for(ino, session)
        };
        let own = reported.range((session, InodeId(0))..=(session, InodeId(u64::MAX)));
        let used: Vec<InodeId> = own.map(|((_, ino), _)| *ino).filter(|ino| is_used(*ino)).collect();
        used.into_iter().for_each(|ino| _ = reported.remove(&(session, ino)));
    }
}
