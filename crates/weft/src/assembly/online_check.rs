//! The check of a cluster that is in use: metadata is local, chunk files are on all nodes.

use super::offline_check::{LossList, OnlineChecks, check_options, record_loss};
use crate::control::{CheckParameters, LossParameters};
use fsck::{Online, ReplicaLocation, Targets};
use kv::Store;
use routing::StorageChannels;
use rt::IoBuf;
use std::sync::Arc;
use std::time::Duration;
use types::{
    ByteRange, ChunkFileId, ClusterMap, Errno, Error, MapHandle, Refusal, Result, SessionId, TargetId, crc32c,
};
use wire::{DataPath, GroupContext, GroupRole, RegionSelection, StorageOp, StorageReply, StorageRequest};

/// Wait before a file that looks damaged is checked again: most writes are reported to the metadata
/// service sooner.
const RECHECK_DELAY: Duration = Duration::from_secs(2);

/// Access to metadata and chunk files for the check.
pub struct OnlineCheck {
    pub partitions: u16,
    pub hash_key: (u64, u64),
    pub storage: StorageChannels,
    /// The current map: requests to a mirrored group carry its version.
    pub map: MapHandle,
}

/// Bytes that one request repairs: about a second of a slow disk.
const REPAIR_PART_BYTES: u64 = 64 << 20;

/// Attempts after a group's version has changed: this process may get the map later than the
/// members.
const MAX_ATTEMPTS: usize = 5;

/// Wait before the next attempt.
const RETRY_DELAY: Duration = Duration::from_millis(200);

impl OnlineCheck {
    /// Runs the check on the calling core.
    ///
    /// # Errors
    /// `EBUSY` for a repair while another one runs.
    pub async fn run(
        &self,
        metadata: &dyn Store,
        orders: &CheckParameters,
        checks: &OnlineChecks,
    ) -> Result<fsck::CheckReport> {
        let _permit = if orders.repair { Some(checks.acquire_repair_permit()?) } else { None };
        let note = |loss: &fsck::Loss| record_loss(orders.forget.as_deref(), loss);
        let progress = |what: &str, done: u64, total: u64| checks.set_progress(what, done, total);
        let map = self.current_map();
        self.run_check(metadata, &map, check_options(orders, &note), &progress, async |online| {
            fsck::check_online(online).await
        })
        .await
    }

    /// Compares the chunk files that exist with the metadata, for the next page of inodes; returns
    /// the position after it, and `None` at the end.
    pub async fn inventory_page(
        &self,
        metadata: &dyn Store,
        position: &fsck::InventoryPosition,
    ) -> Result<Option<(fsck::InventoryPage, fsck::InventoryPosition)>> {
        loop {
            let map = self.current_map();
            let options = fsck::CheckOptions::default();
            let checked = self
                .run_check(metadata, &map, options, &|_, _, _| (), async |online| {
                    fsck::inventory_page(online, position).await
                })
                .await?;
            let is_suspicious = checked.as_ref().is_some_and(|(page, _)| !page.missing.is_empty());
            // A member that left its group meanwhile needn't have anything.
            if !is_suspicious || self.current_map().epoch == map.epoch {
                return Ok(checked);
            }
        }
    }

    /// Returns what would be lost with each target and node.
    pub async fn exposure(&self, metadata: &dyn Store) -> Result<fsck::Exposure> {
        let map = self.current_map();
        self.run_check(metadata, &map, fsck::CheckOptions::default(), &|_, _, _| (), async |online| {
            fsck::exposure(online).await
        })
        .await
    }

    /// Returns what would be lost by the removal of an offline target. The complete list is written
    /// to the file of the order, if it names one.
    pub async fn losses(&self, metadata: &dyn Store, order: &LossParameters) -> Result<fsck::Losses> {
        let map = self.current_map();
        let mut list = order.list.as_deref().map(LossList::open).transpose()?;
        let mut add_to_list = |file: &fsck::LostFile| list.as_mut().map_or(Ok(()), |list| list.add(file));
        let orders = fsck::CheckOptions::default();
        let losses = self
            .run_check(metadata, &map, orders, &|_, _, _| (), async |online| {
                fsck::losses(online, order.target, &mut add_to_list).await
            })
            .await?;
        list.map_or(Ok(()), LossList::close)?;
        Ok(losses)
    }

    fn current_map(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    async fn run_check<T>(
        &self,
        metadata: &dyn Store,
        map: &ClusterMap,
        orders: fsck::CheckOptions<'_>,
        progress: fsck::Progress<'_>,
        run: impl AsyncFnOnce(&Online<'_>) -> Result<T>,
    ) -> Result<T> {
        let (partitions, hash_key) = (self.partitions, self.hash_key);
        run(&Online { metadata, partitions, hash_key, map, targets: self, options: orders, progress }).await
    }

    /// Sends the request to the primary of the location's group, or to its target if it has no
    /// group.
    async fn call_primary(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        op: StorageOp,
    ) -> Result<StorageReply> {
        let Some(id) = location.group else { return self.call_member(location, ino, op, None).await };
        let mut tries = 0;
        loop {
            let map = self.current_map();
            let group =
                map.group(id).ok_or_else(|| Error::new(Errno::ENXIO, format!("there is no group {id}")))?;
            let primary = group.primary().ok_or_else(|| {
                Error::new(Errno::EIO, format!("group {id} has no in-sync member"))
                    .hint("weft group list shows what it waits for")
            })?;
            let mut request = StorageRequest::new(SessionId(0), primary, ino, op.clone());
            request.group = Some(GroupContext { group: id, version: group.since, role: GroupRole::Primary });
            match self.storage.call(request, None).await {
                Err(error) if error.errno == Refusal::GroupVersionMismatch && tries < MAX_ATTEMPTS => {
                    tries += 1;
                    rt::sleep(RETRY_DELAY).await;
                }
                answer => return answer,
            }
        }
    }

    async fn call_member(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let mut tries = 0;
        loop {
            let mut request = StorageRequest::new(SessionId(0), location.target, ino, op.clone());
            let map = self.current_map();
            request.group = location.group.map(|group| GroupContext {
                group,
                version: map.group(group).map_or(types::Epoch(0), |group| group.since),
                // As a member's own part: a primary whose replica is damaged would answer from
                // another replica.
                role: GroupRole::Member { sequence: 0, committed: 0 },
            });
            match self.storage.call(request, payload.clone()).await {
                Err(error) if error.errno == Refusal::GroupVersionMismatch && tries < MAX_ATTEMPTS => {
                    tries += 1;
                    rt::sleep(RETRY_DELAY).await;
                }
                answer => return answer,
            }
        }
    }
}

impl Targets for OnlineCheck {
    fn len(&self, location: ReplicaLocation, ino: ChunkFileId) -> fsck::TargetFuture<'_, u64> {
        Box::pin(async move {
            match self.call_member(location, ino, StorageOp::Stat, None).await? {
                StorageReply::Stat { len, .. } => Ok(len),
                other => {
                    Err(Error::new(Errno::EPROTO, format!("{location} sent an unexpected reply: {other:?}")))
                }
            }
        })
    }

    fn read(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> fsck::TargetFuture<'_, u32> {
        Box::pin(async move {
            let buffer = IoBuf::alloc((range.end - range.start) as usize);
            let op = StorageOp::Read { offset: range.start, path: DataPath::Direct };
            self.call_member(location, ino, op, Some(buffer.clone())).await?;
            Ok(crc32c(buffer.as_slice()))
        })
    }

    fn list(
        &self,
        location: ReplicaLocation,
        from: ChunkFileId,
    ) -> fsck::TargetFuture<'_, (Vec<ChunkFileId>, Option<ChunkFileId>)> {
        Box::pin(async move {
            let op = StorageOp::Regions { from, which: RegionSelection::All };
            match self.call_member(location, ChunkFileId(0), op, None).await? {
                StorageReply::Regions { regions, next } => {
                    Ok((regions.into_iter().map(|(ino, _)| ino).collect(), next))
                }
                other => {
                    Err(Error::new(Errno::EPROTO, format!("{location} sent an unexpected reply: {other:?}")))
                }
            }
        })
    }

    fn repair(
        &self,
        from: ReplicaLocation,
        to: TargetId,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> fsck::TargetFuture<'_, ()> {
        Box::pin(async move {
            let mut parts = parts(range);
            // A file that is only cut has no content to copy.
            if parts.is_empty() {
                parts.push(range);
            }
            for range in parts {
                let op = StorageOp::CopyReplica { from: from.target, to, range };
                self.call_primary(from, ino, op).await?;
            }
            Ok(())
        })
    }

    fn give_up(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> fsck::TargetFuture<'_, Vec<ByteRange>> {
        Box::pin(async move {
            let mut lost = Vec::new();
            for range in parts(range) {
                match self.call_primary(location, ino, StorageOp::DiscardLost { range }).await? {
                    StorageReply::Regions { regions, .. } => {
                        lost.extend(regions.into_iter().map(|(_, range)| range));
                    }
                    other => {
                        let message = format!("{location} sent an unexpected reply: {other:?}");
                        return Err(Error::new(Errno::EPROTO, message));
                    }
                }
            }
            Ok(lost)
        })
    }

    fn discard(
        &self,
        location: ReplicaLocation,
        ino: ChunkFileId,
        how: fsck::Discard,
    ) -> fsck::TargetFuture<'_, ()> {
        let op = match how {
            fsck::Discard::MoveAside => StorageOp::SetAside,
            fsck::Discard::Delete => StorageOp::Delete,
        };
        Box::pin(async move { self.call_primary(location, ino, op).await.map(drop) })
    }

    fn pause(&self) -> fsck::TargetFuture<'_, ()> {
        Box::pin(async {
            rt::sleep(RECHECK_DELAY).await;
            Ok(())
        })
    }
}

/// Splits a range into parts, each of which takes far less time than the request time-out.
fn parts(range: ByteRange) -> Vec<ByteRange> {
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let part = ByteRange::new(at, ((at / REPAIR_PART_BYTES + 1) * REPAIR_PART_BYTES).min(range.end));
        at = part.end;
        parts.push(part);
    }
    parts
}
