//! Lists the files of a group, whichever of its members have them.

use super::member_calls::{others_in_sync, read_context, unexpected_reply};
use super::{GroupService, Replica};
use chunkstore::Store;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ChunkFileId, Result};
use wire::{MAX_REGIONS, RegionSelection, StorageOp, StorageReply};

/// One page of a file listing.
pub(crate) struct FilePage {
    pub(crate) files: Vec<ChunkFileId>,
    /// Where the next page begins.
    pub(crate) next: Option<ChunkFileId>,
}

impl GroupService {
    /// Whether a replica is the primary's, by the current map, and may act as such.
    pub(crate) fn is_primary(&self, replica: &Replica) -> bool {
        self.lease.is_valid(rt::monotonic_ns()) && !replica.is_unclean() && self.primary_view(replica).is_ok()
    }

    /// Returns the files that any in-sync member has, from `from` on and in the order of stores.
    /// Fails if a member doesn't answer.
    pub(crate) async fn files_of_all(
        self: &Arc<Self>,
        replica: &Replica,
        from: ChunkFileId,
    ) -> Result<FilePage> {
        let failed = |error| replica.failed(&error);
        let (own, next) = replica.store.files(from, MAX_REGIONS).await.map_err(failed)?;
        let mut files: BTreeSet<ChunkFileId> = own.into_iter().collect();
        let mut ends: Vec<ChunkFileId> = next.into_iter().collect();
        let view = self.primary_view(replica)?;
        let group = view.group()?;
        for target in others_in_sync(group, replica.target) {
            let op = StorageOp::Regions { from, which: RegionSelection::All };
            match self.call_member(target, (ChunkFileId(0), op), read_context(group), None).await? {
                StorageReply::Regions { regions, next } => {
                    files.extend(regions.into_iter().map(|(ino, _)| ino));
                    ends.extend(next);
                }
                other => return Err(unexpected_reply(&other)),
            }
        }
        // Beyond the end of the shortest page, the others may have more.
        let next = ends.into_iter().min_by_key(|ino| Store::list_order(*ino));
        let is_before =
            |ino: &ChunkFileId| next.is_none_or(|next| Store::list_order(*ino) < Store::list_order(next));
        let mut files: Vec<ChunkFileId> = files.into_iter().filter(is_before).collect();
        files.sort_by_key(|ino| Store::list_order(*ino));
        Ok(FilePage { files, next })
    }
}
