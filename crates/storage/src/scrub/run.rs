//! One scrub of one target.

use super::record::{Phase, Position, ScrubRecord};
use super::{DEFAULT_RATE, settings};
use crate::group::{GroupService, Replica};
use crate::service::{Served, StorageService};
use chunkstore::{IfAbsent, Store};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{
    ByteRange, ChunkFileId, Errno, Error, GroupId, MapHandle, MemberState, Refusal, Result, TargetId,
};
use wire::RepairResult;

/// Size of one read, bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// Files that are listed at a time; after each batch the record is stored.
const BATCH_FILES: usize = 256;

/// Bytes of reading that count for the comparison of two replicas of a file.
const COMPARISON_BYTES: u64 = 64 << 10;

/// Factor by which the scrub slows down while the target has requests.
const BUSY_SLOWDOWN: u32 = 4;

/// Why a scrub pauses.
enum Interruption {
    /// It was stopped, or a new one was requested.
    Settings,
    Failed(Error),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Interruption {
        Interruption::Failed(error)
    }
}

/// A scrub under way.
pub(super) struct ScrubRun<'a> {
    pub(super) service: &'a StorageService,
    pub(super) map: &'a MapHandle,
    pub(super) target: TargetId,
    pub(super) dir: &'a Path,
}

impl ScrubRun<'_> {
    /// Continues at the recorded position, to the end or until the settings say otherwise.
    pub(super) async fn run(&self, record: &mut ScrubRecord) -> Result<()> {
        match self.scrub(record).await {
            Ok(()) => {
                record.end(rt::now().secs);
                let ScrubRecord { bytes_done, files_done, damaged, mended, missing, .. } = *record;
                tracing::info!(
                    target_id = %self.target, bytes_done, files_done, damaged, mended, missing,
                    "scrub of target {} has ended", self.target
                );
                Ok(())
            }
            Err(Interruption::Settings) => Ok(()),
            Err(Interruption::Failed(error)) => Err(error),
        }
    }

    fn served(&self) -> Result<&Served> {
        self.service.find(self.target).ok_or_else(|| Error::new(Errno::ENODEV, "the target isn't served"))
    }

    async fn scrub(&self, record: &mut ScrubRecord) -> Result<(), Interruption> {
        let mut groups: Vec<Option<GroupId>> = vec![None];
        let store = self.served()?.store.clone();
        store.verify_dir().await.map_err(|e| self.failed(&e))?;
        let found = store.groups().await.map_err(|e| self.failed(&e))?;
        groups.extend(found.into_iter().map(Some));
        for group in groups {
            let at = record.position.unwrap_or_default();
            if group < at.group {
                continue;
            }
            if group > at.group {
                record.position = Some(Position { group, ..Position::default() });
            }
            match group {
                None => self.scrub_own_files(record).await?,
                Some(group) => self.scrub_group(record, group).await?,
            }
        }
        // Confirms that the scrubbed directory is this target.
        Ok(store.verify_dir().await.map_err(|e| self.failed(&e))?)
    }

    fn failed(&self, error: &chunkstore::StoreError) -> Error {
        match self.served() {
            Ok(served) => served.failed(error),
            Err(error) => error,
        }
    }

    /// Scrubs the target's own chunk files, which have no other replica.
    async fn scrub_own_files(&self, record: &mut ScrubRecord) -> Result<(), Interruption> {
        let store = self.served()?.store.clone();
        if phase(record) == Phase::Read {
            self.read(record, &store, None).await?;
            self.begin_phase(record, Phase::Missing).await;
        }
        if phase(record) == Phase::Missing {
            for ino in store.missing().await.map_err(|e| self.failed(&e))? {
                tracing::error!(
                    target_id = %self.target, inode = %ino,
                    "the chunk file of inode {ino} is missing on target {}; hint: weft fsck names the file; restore it from a backup",
                    self.target
                );
                record.missing += 1;
            }
        }
        Ok(())
    }

    /// Scrubs the target's replica of a mirrored group, if it is in sync.
    async fn scrub_group(&self, record: &mut ScrubRecord, group: GroupId) -> Result<(), Interruption> {
        let Some(groups) = self.service.groups.get() else { return Ok(()) };
        let is_good = || {
            let map = self.map.load();
            let state = map.group(group).and_then(|group| group.state_of(self.target));
            state == Some(MemberState::InSync)
        };
        // Resync verifies what changed on a member that is out of sync; the next scrub covers the
        // rest.
        if !is_good() {
            return Ok(());
        }
        let served = self.served()?;
        let replica = groups.replica(&served.store, &served.counters, group, IfAbsent::Create).await?;
        if replica.is_unclean() {
            return Ok(());
        }
        if phase(record) == Phase::Read {
            self.read(record, &replica.store, Some((groups, &replica))).await?;
            self.begin_phase(record, Phase::Missing).await;
        }
        if phase(record) == Phase::Missing {
            for ino in replica.store.missing().await.map_err(|e| self.failed(&e))? {
                record.missing += 1;
                self.request_repair(record, groups, &replica, ino, ByteRange::new(0, 1)).await?;
            }
            self.begin_phase(record, Phase::Compare).await;
        }
        self.compare(record, groups, &replica).await
    }

    async fn begin_phase(&self, record: &mut ScrubRecord, phase: Phase) {
        let group = record.position.unwrap_or_default().group;
        record.position = Some(Position { group, phase, ino: ChunkFileId(0) });
        self.store_record(record).await;
    }

    /// Stores the record in the target's directory, but not in another one that may be in its
    /// place.
    pub(super) async fn store_record(&self, record: &ScrubRecord) {
        if self.service.is_available(self.target) {
            record.store(self.dir, self.target).await;
        }
    }

    /// Reads all files from the position on.
    async fn read(
        &self,
        record: &mut ScrubRecord,
        store: &Arc<Store>,
        member: Option<(&Arc<GroupService>, &Arc<Replica>)>,
    ) -> Result<(), Interruption> {
        let mut from = Some(record.position.unwrap_or_default().ino);
        while let Some(at) = from {
            self.update_position(record, at).await;
            let (files, next) = store.files(at, BATCH_FILES).await.map_err(|e| self.failed(&e))?;
            for ino in files {
                self.read_one(record, store, member, ino).await?;
                record.files_done += 1;
            }
            from = next;
        }
        Ok(())
    }

    async fn read_one(
        &self,
        record: &mut ScrubRecord,
        store: &Arc<Store>,
        member: Option<(&Arc<GroupService>, &Arc<Replica>)>,
        ino: ChunkFileId,
    ) -> Result<(), Interruption> {
        let (mut at, mut end) = (0, 1);
        while at < end {
            let began_ns = rt::monotonic_ns();
            let piece = ByteRange::at(at, PIECE_BYTES);
            let survey = store.survey(ino, piece, PIECE_BYTES, true).await.map_err(|e| self.failed(&e))?;
            if !survey.exists {
                let is_replaced = store.is_replaced(ino).await.map_err(|e| self.failed(&e))?;
                match member {
                    // It may just have been deleted.
                    _ if !is_replaced => {}
                    Some((groups, replica)) => {
                        record.missing += 1;
                        self.request_repair(record, groups, replica, ino, ByteRange::new(0, 1)).await?;
                    }
                    None => {
                        record.missing += 1;
                        tracing::error!(
                            target_id = %self.target, inode = %ino,
                            "another file has replaced the chunk file of inode {ino}; hint: weft fsck names the file: copy it while weft runs, because weft still has it open"
                        );
                    }
                }
                return Ok(());
            }
            end = survey.len.max(survey.sum_end);
            let bytes = piece.intersect(ByteRange::new(0, end)).len();
            record.bytes_done += bytes;
            for range in survey.damaged {
                match member {
                    Some((groups, replica)) => {
                        self.request_repair(record, groups, replica, ino, range).await?
                    }
                    // The store has logged it.
                    None => record.damaged += 1,
                }
            }
            at = piece.end;
            self.throttle(record, bytes, began_ns).await?;
        }
        Ok(())
    }

    /// Requests the repair of damage that was found here.
    async fn request_repair(
        &self,
        record: &mut ScrubRecord,
        groups: &Arc<GroupService>,
        replica: &Arc<Replica>,
        ino: ChunkFileId,
        range: ByteRange,
    ) -> Result<(), Interruption> {
        match groups.request_repair(self.target, replica.group, ino, range).await {
            Ok(result) => record.add(result),
            Err(error) => {
                record.add(RepairResult { damaged: 1, repaired: 0, unclear: 0 });
                tracing::warn!(
                    group = %replica.group, target_id = %self.target, inode = %ino, %range, %error,
                    "damage isn't repaired yet"
                );
            }
        }
        Ok(())
    }

    /// Compares the replicas of a group's files, if its primary is here: existence, lengths, and
    /// checksums.
    async fn compare(
        &self,
        record: &mut ScrubRecord,
        groups: &Arc<GroupService>,
        replica: &Arc<Replica>,
    ) -> Result<(), Interruption> {
        let mut from = Some(record.position.unwrap_or_default().ino);
        while let Some(at) = from {
            if !groups.is_primary(replica) {
                return Ok(());
            }
            self.update_position(record, at).await;
            let page = groups.files_of_all(replica, at).await?;
            for ino in page.files {
                let began_ns = rt::monotonic_ns();
                let compared = self.compare_file(groups, replica, ino).await;
                match compared {
                    Ok((result, is_missing)) => {
                        record.missing += u64::from(is_missing);
                        record.add(result);
                    }
                    Err(error) if error.errno == Refusal::GroupVersionMismatch => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
                self.throttle(record, COMPARISON_BYTES, began_ns).await?;
            }
            from = page.next;
        }
        Ok(())
    }

    async fn compare_file(
        &self,
        groups: &Arc<GroupService>,
        replica: &Arc<Replica>,
        ino: ChunkFileId,
    ) -> Result<(RepairResult, bool)> {
        groups.view(replica.group).scheme()?.compare(groups, replica, ino).await
    }

    /// Updates the position and stores the record.
    async fn update_position(&self, record: &mut ScrubRecord, ino: ChunkFileId) {
        if let Some(position) = &mut record.position {
            position.ino = ino;
        }
        self.store_record(record).await;
    }

    /// Waits as long as the rate requires, longer while the target has requests. Ends the scrub
    /// when the settings say so.
    async fn throttle(&self, record: &ScrubRecord, bytes: u64, began_ns: u64) -> Result<(), Interruption> {
        self.service.scrubs.publish(record.progress(self.target, true, None));
        let settings = settings(self.map);
        if settings.stopped || settings.asked > record.asked {
            return Err(Interruption::Settings);
        }
        let rate = settings.rate.unwrap_or(DEFAULT_RATE).max(1);
        let due_ns = u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let before = self.served()?.counters.counters().requests;
        let spent_ns = rt::monotonic_ns() - began_ns;
        rt::sleep(Duration::from_nanos(due_ns.saturating_sub(spent_ns))).await;
        if self.served()?.counters.counters().requests != before {
            rt::sleep(Duration::from_nanos(due_ns) * (BUSY_SLOWDOWN - 1)).await;
        }
        Ok(())
    }
}

fn phase(record: &ScrubRecord) -> Phase {
    record.position.unwrap_or_default().phase
}
