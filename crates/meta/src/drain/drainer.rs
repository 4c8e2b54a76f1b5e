//! Emptying draining targets: counts the files that have data there, and moves them.

use super::Drains;
use super::stripe_move::{MoveRequest, StripeMover};
use crate::data::chunks::ChunkFiles;
use crate::data::reaper::Reaper;
use crate::data::references::References;
use crate::limits::{BACKGROUND_BATCH, DRAIN_IDLE, DRAIN_POLL, DRAIN_RETRY, MOVES_AT_ONCE};
use crate::partition::executor::Executors;
use crate::partition::ownership::Ownership;
use crate::partition::serving::Serving;
use crate::session::grace_period::GracePeriod;
use crate::session::table::{Session, Sessions};
use std::collections::VecDeque;
use std::sync::Arc;
use types::{
    ClusterMap, Errno, Error, GroupId, InodeId, Layout, PartitionId, Result, SessionId, TargetId, TargetState,
};

/// A file with a stripe on a draining target.
#[derive(Clone, Copy)]
struct DrainCandidate {
    ino: InodeId,
    target: TargetId,
    /// Bytes of its stripes there.
    bytes: u64,
}

/// Empties draining targets.
pub(crate) struct Drainer {
    pub executors: Arc<Executors>,
    pub sessions: Arc<Sessions>,
    pub grace: Arc<GracePeriod>,
    pub ownership: Arc<Ownership>,
    pub chunks: Arc<ChunkFiles>,
    pub references: Arc<References>,
    pub drains: Arc<Drains>,
    pub mover: Arc<StripeMover>,
    pub reaper: Arc<Reaper>,
    pub serving: Arc<Serving>,
}

impl Drainer {
    /// Empties draining targets, until the service stops.
    pub async fn drain_targets(self: Arc<Self>) {
        let mut migrator = None;
        let mut partitions = Vec::new();
        let mut pause = DRAIN_POLL;
        while rt::timeout(pause, self.serving.stopping.wait()).await.is_none() {
            pause = DRAIN_POLL;
            let draining = draining(&self.chunks.current_map());
            self.drains.set_draining(&draining);
            let executed = self.executors.serving();
            if partitions != executed {
                // Files of adopted partitions have to be checked, and those of released partitions
                // belong to another service.
                self.drains.restart_round();
                partitions = executed;
            }
            if draining.is_empty() || self.grace.is_on() || !self.drains.need_check(&draining) {
                continue;
            }
            if migrator.is_none() {
                match self.sessions.register_local(SessionId::from_random(rt::secret_u64())) {
                    Ok(registered) => migrator = Some(registered),
                    Err(error) => self.drains.record_error(&draining, &error),
                }
            }
            let Some(migrator) = &migrator else { continue };
            if let Err(error) = self.drain_pass(migrator, &draining, &partitions).await {
                tracing::warn!(%error, "draining is interrupted");
                self.drains.record_error(&draining, &error);
                pause = DRAIN_RETRY;
            }
        }
    }

    /// Scans all files of these partitions twice: first to count them, then to move them.
    async fn drain_pass(
        &self,
        migrator: &Arc<Session>,
        draining: &[TargetId],
        partitions: &[PartitionId],
    ) -> Result<()> {
        self.drains.check_local_mount()?;
        self.drains.begin_count(draining);
        for &partition in partitions {
            let mut after = InodeId(0);
            while let Some((found, last)) = self.page_on(partition, after, draining).await? {
                after = last;
                found.iter().for_each(|found| self.drains.counted(found.target, found.bytes));
            }
        }
        self.drains.begin_moves(draining);
        for &partition in partitions {
            let mut after = InodeId(0);
            while let Some((found, last)) = self.page_on(partition, after, draining).await? {
                after = last;
                self.move_all(migrator, found).await;
                if self.serving.is_stopping() || self::draining(&self.chunks.current_map()) != draining {
                    return Ok(());
                }
            }
        }
        // Deletes the old chunk files, so that an empty target is reported as empty at once.
        self.reaper.reap(self.executors.owned().into_iter().collect()).await?;
        // Partitions that this service has yet to adopt or recover may have files there.
        let is_all = !self.ownership.lacks_partitions(&self.chunks.current_map())
            && self.executors.owned() == partitions;
        for &target in draining {
            let mut is_empty = is_all;
            for &partition in partitions {
                is_empty = is_empty && self.references.file_on_in(target, partition).await?.is_none();
            }
            // Nothing can be moved off an offline target before it is back.
            let rests = is_empty || is_offline(&self.chunks.current_map(), target);
            self.drains.end_pass(target, is_empty, if rests { DRAIN_IDLE } else { DRAIN_RETRY });
        }
        Ok(())
    }

    /// The files among the next inodes of a partition that have data on these targets, and the last
    /// inode that was read.
    async fn page_on(
        &self,
        partition: PartitionId,
        after: InodeId,
        draining: &[TargetId],
    ) -> Result<Option<(Vec<DrainCandidate>, InodeId)>> {
        rt::yield_now().await;
        let page = self
            .executors
            .read(partition, |view| namespace::inodes(view, partition, after, BACKGROUND_BATCH))
            .await?;
        let Some(&(last, _)) = page.last() else { return Ok(None) };
        let mut found = Vec::new();
        for (ino, inode) in &page {
            let Some(layout) = &inode.layout else { continue };
            let layout = Layout::try_from(layout)?;
            for &target in draining {
                let mut bytes = None;
                for stripe in 0..layout.groups.len() {
                    if self.chunks.members(layout.groups[stripe])?.contains(&target) {
                        let len = layout::local_len(&layout, stripe, inode.size);
                        *bytes.get_or_insert(0) += if inode.inline { 0 } else { len };
                    }
                }
                found.extend(bytes.map(|bytes| DrainCandidate { ino: *ino, target, bytes }));
            }
        }
        Ok(Some((found, last)))
    }

    /// Moves files, several at a time.
    async fn move_all(&self, migrator: &Arc<Session>, found: Vec<DrainCandidate>) {
        let left = parking_lot::Mutex::new(VecDeque::from(found));
        let worker = || async {
            loop {
                let next = left.lock().pop_front();
                let Some(found) = next.filter(|_| !self.serving.is_stopping()) else { return };
                match self.move_off_target(migrator, found).await {
                    Ok(()) => self.drains.moved(found.target, found.bytes),
                    Err(error) => {
                        tracing::debug!(ino = found.ino.0, target_id = found.target.0, %error, "a file can't be moved now");
                        self.drains.record_failure(found.target, found.ino, &error);
                    }
                }
            }
        };
        rt::join_all((0..MOVES_AT_ONCE).map(|_| worker()).collect()).await;
    }

    /// Moves all stripes of a file off a target.
    async fn move_off_target(&self, migrator: &Arc<Session>, found: DrainCandidate) -> Result<()> {
        loop {
            let partition = found.ino.partition();
            let known = self.executors.read(partition, |view| namespace::layout_of(view, found.ino)).await?;
            let Some(layout) = known else { return Ok(()) };
            let Some(stripe) = self.chunks.stripe_on(&layout, found.target)? else { return Ok(()) };
            let group = layout.groups[stripe];
            if self.chunks.is_mirrored(group)? {
                return Err(mirrored_error(group));
            }
            self.ensure_can_be_read(found.target)?;
            let kind = self.chunks.kind(group)?;
            let request = MoveRequest { kind, lacks_space: &|_| false, copied: &|_| () };
            self.mover.move_stripe(migrator, found.ino, (layout, stripe), &request).await?;
        }
    }

    /// Refuses to copy from an offline target, before anything is recorded.
    ///
    /// # Errors
    /// `EHOSTDOWN`.
    fn ensure_can_be_read(&self, target: TargetId) -> Result<()> {
        match is_offline(&self.chunks.current_map(), target) {
            false => Ok(()),
            true => Err(Error::new(Errno::EHOSTDOWN, format!("target {target} is offline"))
                .hint("weft node list shows which nodes are up; weft health says more")),
        }
    }
}

/// Why a target with replicas of mirrored groups doesn't become empty.
fn mirrored_error(group: GroupId) -> Error {
    Error::new(
        Errno::EOPNOTSUPP,
        format!("it is a replica in mirrored group {group}, where another target replaces it"),
    )
    .hint("weft group resync status shows the progress")
}

fn is_offline(map: &ClusterMap, target: TargetId) -> bool {
    map.target(target).is_some_and(|known| known.state == TargetState::Offline)
}

/// Targets that are draining.
fn draining(map: &ClusterMap) -> Vec<TargetId> {
    map.targets.iter().filter(|target| target.drain).map(|target| target.id).collect()
}
