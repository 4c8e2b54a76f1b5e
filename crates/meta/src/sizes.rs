//! Sizes that sessions tell when they come back, of files that they were changing alone.
//!
//! A service that was started again, or has adopted a partition, settles what sessions were
//! writing. By itself it takes the size of a file from the chunk files. These may reach beyond the
//! end of the file: a write past the end that was in flight has reached some targets, or all of
//! them. Its client has no answer and repeats it, and an append would begin behind the torn first
//! copy. Where the file ended for applications only the holder of the `Write` lease knows. So the
//! client tells the size first, and the service cuts the chunks to it before it lets anybody in.
//!
//! A size is used once: others may have made the file longer afterwards. It is forgotten when the
//! file is settled, and one that comes later (a request that was sent twice) is ignored.

use crate::limits::KNOWN_SIZES;
use crate::service::MetaService;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{InodeId, PartitionId, Result, SessionId};
use wire::KnownSize;

/// Sizes that were told of files that are not settled yet.
#[derive(Default)]
pub(crate) struct Sizes {
    told: Mutex<BTreeMap<(SessionId, InodeId), u64>>,
}

impl Sizes {
    /// What a session has told of a file.
    pub fn of(&self, ino: InodeId, session: SessionId) -> Option<u64> {
        self.told.lock().get(&(session, ino)).copied()
    }

    /// The file is settled.
    pub fn forget(&self, ino: InodeId, session: SessionId) {
        self.told.lock().remove(&(session, ino));
    }

    /// A partition is another service's.
    pub fn forget_partition(&self, partition: PartitionId) {
        self.told.lock().retain(|(_, ino), _| ino.partition() != partition);
    }
}

impl MetaService {
    /// Takes sizes from a session that is about to come back: of files in partitions that wait for
    /// it.
    ///
    /// # Errors
    /// `ESTALE` for a session that was evicted.
    pub(crate) fn reclaim_sizes(&self, id: SessionId, sizes: &[KnownSize]) -> Result<()> {
        self.sessions.check_id(id)?;
        // Looked at under this lock, under which sizes of a session that has come back are dropped.
        let mut told = self.sizes.told.lock();
        let (registers, follows) = (self.grace.awaits_registration(id), self.grace.awaits_following(id));
        let is_awaited = |ino: InodeId| match self.neighbours.is_some() {
            true => follows.contains(&ino.partition()),
            false => registers,
        };
        for KnownSize { ino, size } in sizes.iter().filter(|known| is_awaited(known.ino)) {
            if told.len() >= KNOWN_SIZES && !told.contains_key(&(id, *ino)) {
                tracing::warn!(
                    session = id.0,
                    limit = KNOWN_SIZES,
                    "sessions that come back were writing more files than there is room for: \
                     an append that was in flight may be found in part"
                );
                break;
            }
            told.insert((id, *ino), *size);
        }
        Ok(())
    }

    /// A session has come back, or has ended: what it has told is used, but for partitions that it
    /// has yet to follow and files that are kept shut.
    pub(crate) fn drop_sizes(&self, session: SessionId) {
        let mut told = self.sizes.told.lock();
        let follows = self.grace.awaits_following(session);
        let is_used =
            |ino: InodeId| !follows.contains(&ino.partition()) && !self.shut.waits_for(ino, session);
        let own = told.range((session, InodeId(0))..=(session, InodeId(u64::MAX)));
        let used: Vec<InodeId> = own.map(|((_, ino), _)| *ino).filter(|ino| is_used(*ino)).collect();
        used.into_iter().for_each(|ino| _ = told.remove(&(session, ino)));
    }
}
