//! Moving one stripe from group to group.

use super::Claims;
use super::exclusive::ExclusiveAccess;
use super::transfer::{Endpoint, Transfer, truncated_source_error};
use crate::data::chunks::{ChunkFiles, EpochedChunkFile};
use crate::data::reaper::Reaper;
use crate::lease::table::Leases;
use crate::limits::{EXCLUSIVE_TIMEOUT, MAX_FINAL_REGIONS, MAX_FINAL_REGIONS_BUSY, MAX_ROUNDS};
use crate::partition::executor::{CommandOutput, Executors};
use crate::partition::serving::Serving;
use crate::session::table::Session;
use crate::store::restore_records::RestoreRecord;
use namespace::{Chunks, MoveStep, StripeMove};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ChunkSlot, Errno, Error, GroupId, InodeId, Layout, PoolId, Result, Scheme};
use wire::{StorageOp, StorageReply};

/// Destination of a stripe.
pub(super) struct MoveRequest<'a> {
    /// Pool and scheme of its new group.
    pub kind: (PoolId, Scheme),
    /// Groups without enough space for it.
    pub lacks_space: &'a dyn Fn(GroupId) -> bool,
    /// Called with the number of bytes that have been copied.
    pub copied: &'a dyn Fn(u64),
}

/// Moves stripes.
pub(crate) struct StripeMover {
    pub executors: Arc<Executors>,
    pub leases: Arc<Leases>,
    pub chunks: Arc<ChunkFiles>,
    pub claims: Arc<Claims>,
    pub exclusive: Arc<ExclusiveAccess>,
    pub reaper: Arc<Reaper>,
    pub serving: Arc<Serving>,
}

impl StripeMover {
    /// Moves a stripe of a file to another group.
    pub(super) async fn move_stripe(
        &self,
        migrator: &Arc<Session>,
        ino: InodeId,
        (from, stripe): (Layout, usize),
        request: &MoveRequest<'_>,
    ) -> Result<()> {
        let to = self.choose_location(ino, (&from, stripe), request).await?;
        let moved = StripeMove { ino, from, stripe, to, kind: request.kind };
        let (location, name) = (self.chunks.location(to.0)?, ino.chunk_file(to.1));
        let source = self.chunks.location(moved.source().0)?;
        let source = Endpoint { location: source, name: moved.from.chunk_file(ino, stripe) };
        self.require_complete(&moved, source).await?;
        let Some(claim) = self.claims.claim(location, name) else { return Err(busy_error(ino)) };
        let epoch = self.leases.next_epoch(ino);
        self.step(&moved, namespace::begin_move).await?;
        let may_continue = || !self.serving.is_stopping() && self.executors.is_serving(ino.partition());
        let chunks_and_epoch = (&*self.chunks, epoch);
        let transfer = Transfer::new(
            chunks_and_epoch,
            source,
            Endpoint { location, name },
            (&may_continue, request.copied),
        );
        let outcome = self.fill_and_switch(migrator, &moved, &transfer).await;
        if let Err(error) = &outcome {
            // Requests may still be under way, so this process doesn't use the name again. The
            // chunk file is deleted.
            tracing::debug!(ino = ino.0, %error, "a move of a stripe failed");
            transfer.stop_tracking().await;
            claim.retire_name();
        } else {
            // Before dirty tracking of the source ends, which may take long. The chunk file belongs
            // to the file now, and crash reconciliation must include it if its target restarts.
            drop(claim);
            transfer.stop_tracking().await;
        }
        self.reaper.request(ino.partition());
        outcome
    }

    async fn fill_and_switch(
        &self,
        migrator: &Arc<Session>,
        moved: &StripeMove,
        transfer: &Transfer<'_>,
    ) -> Result<()> {
        transfer.begin().await?;
        transfer.copy_all().await?;
        let mut limit = MAX_FINAL_REGIONS;
        loop {
            for _ in 0..MAX_ROUNDS {
                if transfer.copy_changes(u64::MAX).await? <= MAX_FINAL_REGIONS {
                    break;
                }
            }
            transfer.sync().await?;
            let switch = async {
                let _lease = self.exclusive.acquire_exclusive_lease(migrator, moved.ino).await?;
                let finish = async {
                    let is_little = transfer.copy_changes(limit).await? <= limit;
                    if is_little {
                        transfer.finish(self.min_chunk_len(moved).await?).await?;
                    }
                    Ok(is_little)
                };
                // All other users of the file wait, although their own targets may be available: so
                // this is limited to a time that an application may be kept waiting.
                let is_little = rt::timeout(EXCLUSIVE_TIMEOUT, finish)
                    .await
                    .unwrap_or_else(|| Err(busy_error(moved.ino)))?;
                if is_little {
                    self.step(moved, namespace::finish_move).await?;
                }
                Ok(is_little)
            };
            if self.exclusive.with_local_mount_suspended(moved.ino, switch).await? {
                return Ok(());
            }
            if limit >= MAX_FINAL_REGIONS_BUSY {
                return Err(busy_error(moved.ino));
            }
            limit *= 2;
        }
    }

    /// Refuses to move a chunk file that is lost or truncated. After a move, all old chunk files
    /// are deleted. That would include a complete replica in a mirrored group, and a chunk file
    /// that is found again would belong nowhere.
    async fn require_complete(&self, moved: &StripeMove, source: Endpoint) -> Result<()> {
        let min_len = self.min_chunk_len(moved).await?;
        if min_len == 0 {
            return Ok(());
        }
        let file = EpochedChunkFile { name: source.name, epoch: 0 };
        match self.chunks.at(source.location, file, StorageOp::Stat).await? {
            // A truncation under way only postpones the move.
            StorageReply::Stat { len, .. } if len < min_len => {
                Err(truncated_source_error(source, len, min_len))
            }
            _ => Ok(()),
        }
    }

    /// Known minimum length of the chunk file that moves, in bytes, while no session changes the
    /// file.
    async fn min_chunk_len(&self, moved: &StripeMove) -> Result<u64> {
        let chunks =
            self.executors.read(moved.ino.partition(), |view| namespace::chunks(view, moved.ino)).await?;
        Ok(match chunks {
            Chunks::Stable { layout, length_bounds: known, .. } if layout == moved.from => {
                layout::length_bounds::of_stripe(&known, moved.stripe)
            }
            _ => 0,
        })
    }

    /// Commits a step of a move.
    async fn step(
        &self,
        moved: &StripeMove,
        step: impl Fn(&dyn namespace::Reader, &StripeMove) -> Result<MoveStep, namespace::ReadError>,
    ) -> Result<()> {
        let command = |view: &crate::store::transaction_view::View<'_>| match step(view, moved) {
            Ok(MoveStep::Writes(writes)) => Ok(CommandOutput { answer: Ok(()), writes }),
            Ok(MoveStep::Changed) => {
                Ok(CommandOutput { answer: Err(Errno::EAGAIN.into()), writes: Vec::new() })
            }
            Ok(MoveStep::BeingWritten) => {
                Ok(CommandOutput { answer: Err(busy_error(moved.ino)), writes: Vec::new() })
            }
            Err(error) => Err(error.into()),
        };
        self.executors.transact_without_leases(moved.ino.partition(), command).await?
    }

    /// Chooses another group for a stripe, and a slot whose chunk file doesn't exist and isn't
    /// about to be deleted.
    ///
    /// With a restored store, a chunk file may exist there that no record names: the only content
    /// of a file that had moved to this very location. Nothing is moved over it.
    async fn choose_location(
        &self,
        ino: InodeId,
        (layout, stripe): (&Layout, usize),
        request: &MoveRequest<'_>,
    ) -> Result<(GroupId, ChunkSlot)> {
        let doomed = self
            .executors
            .read(ino.partition(), |view| {
                (0..layout::MAX_SLOTS)
                    .map(ChunkSlot)
                    .map(|slot| namespace::doomed_in(view, ino, slot))
                    .collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let map = self.chunks.current_map();
        let is_restored = RestoreRecord::read(&*self.executors.store).await? != RestoreRecord::default();
        let mut present = BTreeSet::new();
        loop {
            let is_taken = |group: GroupId, slot: ChunkSlot| {
                let location = self.chunks.location(group);
                doomed[usize::from(slot.0)].contains(&group)
                    || present.contains(&(group, slot))
                    || location.is_ok_and(|location| self.claims.is_claimed(location, ino.chunk_file(slot)))
                    || (request.lacks_space)(group)
            };
            let to = layout::choose_for_stripe(
                &map,
                layout,
                (stripe, request.kind),
                is_taken,
                (ino, rt::random_u64()),
            )?;
            if !is_restored || self.is_vacant(ino, to).await? {
                return Ok(to);
            }
            present.insert(to);
        }
    }

    /// Whether no chunk file exists with the new name.
    async fn is_vacant(&self, ino: InodeId, (group, slot): (GroupId, ChunkSlot)) -> Result<bool> {
        let file = EpochedChunkFile { name: ino.chunk_file(slot), epoch: 0 };
        match self.chunks.at_group(group, file, StorageOp::Stat).await? {
            StorageReply::Stat { len, .. } => Ok(len == 0),
            other => Err(Error::new(
                Errno::EPROTO,
                format!("group {group} sent an unexpected reply type: {other:?}"),
            )),
        }
    }
}

pub(super) fn busy_error(ino: InodeId) -> Error {
    Error::new(Errno::EBUSY, format!("inode {ino} changes too fast, or its size is being recovered"))
        .hint("no action is needed: the service retries by itself")
}
