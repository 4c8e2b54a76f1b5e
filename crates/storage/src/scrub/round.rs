//! One scrub of one target.

use super::record::{Phase, Position, Record};
use super::{RATE, settings};
use crate::mirror::{Mirrors, Replica};
use crate::service::{Served, StorageService};
use chunkstore::{IfAbsent, Store};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{ByteRange, Errno, Error, GroupId, InodeId, MapHandle, MemberState, Result, TargetId};
use wire::Healed;

/// Size of one read, bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// Files that are listed at a time; after each batch the record is stored.
const FILES_AT_ONCE: usize = 256;

/// Bytes of reading that count for the comparison of two replicas of a file.
const COMPARISON_BYTES: u64 = 64 << 10;

/// Factor by which the scrub slows down while the target has requests.
const BACK_OFF: u32 = 4;

/// Why a scrub pauses.
enum Pause {
    /// It was stopped, or a new one was requested.
    Settings,
    Failed(Error),
}

impl From<Error> for Pause {
    fn from(error: Error) -> Pause {
        Pause::Failed(error)
    }
}

/// A scrub under way.
pub(super) struct Round<'a> {
    pub(super) service: &'a StorageService,
    pub(super) map: &'a MapHandle,
    pub(super) target: TargetId,
    pub(super) dir: &'a Path,
}

impl Round<'_> {
    /// Continues at the recorded position, to the end or until the settings say otherwise.
    pub(super) async fn run(&self, record: &mut Record) -> Result<()> {
        match self.search(record).await {
            Ok(()) => {
                record.end(rt::now().secs);
                let Record { bytes_done, files_done, damaged, mended, missing, .. } = *record;
                tracing::info!(
                    target_id = %self.target, bytes_done, files_done, damaged, mended, missing,
                    "target {} was searched for damage", self.target
                );
                Ok(())
            }
            Err(Pause::Settings) => Ok(()),
            Err(Pause::Failed(error)) => Err(error),
        }
    }

    fn served(&self) -> Result<&Served> {
        self.service.find(self.target).ok_or_else(|| Error::new(Errno::ENODEV, "the target isn't served"))
    }

    async fn search(&self, record: &mut Record) -> Result<(), Pause> {
        let mut groups: Vec<Option<GroupId>> = vec![None];
        let store = self.served()?.store.clone();
        store.prove_home().await.map_err(|e| self.failed(&e))?;
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
                None => self.own(record).await?,
                Some(group) => self.of_group(record, group).await?,
            }
        }
        // Confirms that the scrubbed directory is this target.
        Ok(store.prove_home().await.map_err(|e| self.failed(&e))?)
    }

    fn failed(&self, error: &chunkstore::StoreError) -> Error {
        match self.served() {
            Ok(served) => served.failed(error),
            Err(error) => error,
        }
    }

    /// Scrubs the target's own chunk files, which have no other replica.
    async fn own(&self, record: &mut Record) -> Result<(), Pause> {
        let store = self.served()?.store.clone();
        if phase(record) == Phase::Read {
            self.read(record, &store, None).await?;
            self.turn_to(record, Phase::Missing).await;
        }
        if phase(record) == Phase::Missing {
            for ino in store.missing().await.map_err(|e| self.failed(&e))? {
                tracing::error!(
                    target_id = %self.target, inode = %ino,
                    "the chunk file of inode {ino} is gone from target {}; hint: weft fsck names the file; restore it from a backup",
                    self.target
                );
                record.missing += 1;
            }
        }
        Ok(())
    }

    /// Scrubs the target's replica of a mirrored group, if it is in sync.
    async fn of_group(&self, record: &mut Record, group: GroupId) -> Result<(), Pause> {
        let Some(mirrors) = self.service.mirrors.get() else { return Ok(()) };
        let is_good = || {
            let map = self.map.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            let state = map.group(group).and_then(|group| group.state_of(self.target));
            state == Some(MemberState::Good)
        };
        // Resync verifies what changed on a member that is out of sync; the next scrub covers the
        // rest.
        if !is_good() {
            return Ok(());
        }
        let served = self.served()?;
        let replica = mirrors.replica(&served.store, &served.tally, group, IfAbsent::Make).await?;
        if replica.is_unclean() {
            return Ok(());
        }
        if phase(record) == Phase::Read {
            self.read(record, &replica.store, Some((mirrors, &replica))).await?;
            self.turn_to(record, Phase::Missing).await;
        }
        if phase(record) == Phase::Missing {
            for ino in replica.store.missing().await.map_err(|e| self.failed(&e))? {
                record.missing += 1;
                self.heal(record, mirrors, &replica, ino, ByteRange::new(0, 1)).await?;
            }
            self.turn_to(record, Phase::Compare).await;
        }
        self.compare(record, mirrors, &replica).await
    }

    async fn turn_to(&self, record: &mut Record, phase: Phase) {
        let group = record.position.unwrap_or_default().group;
        record.position = Some(Position { group, phase, ino: InodeId(0) });
        self.keep(record).await;
    }

    /// Stores the record in the target's directory, but not in another one that may be in its
    /// place.
    pub(super) async fn keep(&self, record: &Record) {
        if self.service.is_proven(self.target) {
            record.store(self.dir, self.target).await;
        }
    }

    /// Reads all files from the position on.
    async fn read(
        &self,
        record: &mut Record,
        store: &Arc<Store>,
        mirror: Option<(&Arc<Mirrors>, &Arc<Replica>)>,
    ) -> Result<(), Pause> {
        let mut from = Some(record.position.unwrap_or_default().ino);
        while let Some(at) = from {
            self.note(record, at).await;
            let (files, next) = store.files(at, FILES_AT_ONCE).await.map_err(|e| self.failed(&e))?;
            for ino in files {
                self.read_one(record, store, mirror, ino).await?;
                record.files_done += 1;
            }
            from = next;
        }
        Ok(())
    }

    async fn read_one(
        &self,
        record: &mut Record,
        store: &Arc<Store>,
        mirror: Option<(&Arc<Mirrors>, &Arc<Replica>)>,
        ino: InodeId,
    ) -> Result<(), Pause> {
        let (mut at, mut end) = (0, 1);
        while at < end {
            let began_ns = rt::monotonic_ns();
            let piece = ByteRange::at(at, PIECE_BYTES);
            let survey = store.survey(ino, piece, PIECE_BYTES, true).await.map_err(|e| self.failed(&e))?;
            if !survey.is_there {
                let is_replaced = store.is_replaced(ino).await.map_err(|e| self.failed(&e))?;
                match mirror {
                    // It may just have been deleted.
                    _ if !is_replaced => {}
                    Some((mirrors, replica)) => {
                        record.missing += 1;
                        self.heal(record, mirrors, replica, ino, ByteRange::new(0, 1)).await?;
                    }
                    None => {
                        record.missing += 1;
                        tracing::error!(
                            target_id = %self.target, inode = %ino,
                            "another file is where the chunk file of inode {ino} was; hint: weft fsck names the file: copy it while weft runs, which has it open"
                        );
                    }
                }
                return Ok(());
            }
            end = survey.len.max(survey.sum_end);
            let looked = piece.intersect(ByteRange::new(0, end)).len();
            record.bytes_done += looked;
            for range in survey.damaged {
                match mirror {
                    Some((mirrors, replica)) => self.heal(record, mirrors, replica, ino, range).await?,
                    // The store has logged it.
                    None => record.damaged += 1,
                }
            }
            at = piece.end;
            self.rest(record, looked, began_ns).await?;
        }
        Ok(())
    }

    /// Requests the repair of damage that was found here.
    async fn heal(
        &self,
        record: &mut Record,
        mirrors: &Arc<Mirrors>,
        replica: &Arc<Replica>,
        ino: InodeId,
        range: ByteRange,
    ) -> Result<(), Pause> {
        match mirrors.ask_to_heal(self.target, replica.group, ino, range).await {
            Ok(healed) => record.add(healed),
            Err(error) => {
                record.add(Healed { damaged: 1, mended: 0, unclear: 0 });
                tracing::warn!(
                    group = %replica.group, target_id = %self.target, inode = %ino, %range, %error,
                    "damage isn't mended yet"
                );
            }
        }
        Ok(())
    }

    /// Compares the replicas of a group's files, if its primary is here: existence, lengths, and
    /// checksums.
    async fn compare(
        &self,
        record: &mut Record,
        mirrors: &Arc<Mirrors>,
        replica: &Arc<Replica>,
    ) -> Result<(), Pause> {
        let mut from = Some(record.position.unwrap_or_default().ino);
        while let Some(at) = from {
            if !mirrors.is_primary(replica) {
                return Ok(());
            }
            self.note(record, at).await;
            let page = mirrors.files_of_all(replica, at).await?;
            for ino in page.files {
                let began_ns = rt::monotonic_ns();
                let compared = mirrors.compare(replica, ino).await;
                match compared {
                    Ok((healed, is_missing)) => {
                        record.missing += u64::from(is_missing);
                        record.add(healed);
                    }
                    Err(error) if error.errno == Errno::EREMCHG => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
                self.rest(record, COMPARISON_BYTES, began_ns).await?;
            }
            from = page.next;
        }
        Ok(())
    }

    /// Updates the position and stores the record.
    async fn note(&self, record: &mut Record, ino: InodeId) {
        if let Some(position) = &mut record.position {
            position.ino = ino;
        }
        self.keep(record).await;
    }

    /// Waits as long as the rate requires, longer while the target has requests. Ends the scrub
    /// when the settings say so.
    async fn rest(&self, record: &Record, bytes: u64, began_ns: u64) -> Result<(), Pause> {
        self.service.scrubs.tell(record.progress(self.target, true, None));
        let settings = settings(self.map);
        if settings.stopped || settings.asked > record.asked {
            return Err(Pause::Settings);
        }
        let rate = settings.rate.unwrap_or(RATE).max(1);
        let due_ns = u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let before = self.served()?.tally.counters().requests;
        let spent_ns = rt::monotonic_ns() - began_ns;
        rt::sleep(Duration::from_nanos(due_ns.saturating_sub(spent_ns))).await;
        if self.served()?.tally.counters().requests != before {
            rt::sleep(Duration::from_nanos(due_ns) * (BACK_OFF - 1)).await;
        }
        Ok(())
    }
}

fn phase(record: &Record) -> Phase {
    record.position.unwrap_or_default().phase
}
