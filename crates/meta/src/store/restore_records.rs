//! Restoring the store from a backup: which records of the backup have to change.
//!
//! Between the backup and the restore the file system went on, and traces of that remain: chunk
//! files, clients with caches, targets that have seen epochs, and processes that still believe to
//! own partitions. So that none of it meets the restored store under an old number:
//!
//! - Inode numbers continue far above all that can have been used since ([`SEQUENCES_PER_S`],
//!   [`SPARE_SEQUENCES`]). The skipped numbers are recorded ([`RestoreRecord`]): a chunk file with
//!   one of them belongs to a file that the backup doesn't have, and is left to the file check. The
//!   same holds for chunk file content beyond the end of a file that wasn't changed since.
//! - Every partition has an owner record with a higher epoch ([`SPARE_EPOCHS`]), which is released.
//!   So the previous owner can't commit any more, and lease epochs, which contain it, are above all
//!   that targets have seen.
//! - Sessions are ended: their clients' caches and open files belong to another time. The clients
//!   register new sessions. Cached answers to earlier requests are dropped.
//! - Pending deletions and migrations are dropped: a migration may have ended since, so that a
//!   doomed chunk file is now the only one of its file. Orphaned chunk files are left to the file
//!   check.
//! - A pending truncation of a file is dropped: the file may have been rewritten since. Size
//!   recovery takes its size from the chunk files.

use crate::store::record::{Owner, StoredSession};
use crate::store::transaction_view::store_error;
use bytes::Bytes;
use kv::{Batch, Outcome, Store};
use namespace::record::{PartitionCounters, Writing};
use namespace::{Key, decode_key, keys};
use prost::Message;
use std::collections::BTreeSet;
use types::{Errno, Error, InodeId, PartitionId, Result, Timestamp};

/// Inode numbers that a partition uses in a second, at most: several times what one executor
/// creates.
const SEQUENCES_PER_S: u64 = 200_000;

/// Inode numbers that are skipped whatever the clocks say: as many as can be used in an hour and a
/// half.
const SPARE_SEQUENCES: u64 = 1 << 30;

/// Takeovers of a partition since the backup, at most, whatever the clocks say. An epoch has 20
/// bits.
const SPARE_EPOCHS: u64 = 4096;

/// Seconds since the backup for each additional epoch: so a second restore of the same backup
/// usually gets above what came after the first one.
const SECONDS_PER_EPOCH: u64 = 4;

/// The most that this adds, so that several restores of old backups are possible.
const MAX_EXTRA_EPOCHS: u64 = 1 << 16;

/// The largest ownership epoch.
const LAST_EPOCH: u64 = (1 << 20) - 1;

/// Key of the record of restores: above all partitions, among the global keys.
const KEY: &[u8] = b"\xff\xffrestored";

/// The record of a restored store.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RestoreRecord {
    /// Skipped inode numbers, of this and of earlier restores.
    #[prost(message, repeated, tag = "1")]
    pub gaps: Vec<Gap>,
    /// When the last restore was, in seconds since 1970.
    #[prost(int64, tag = "2")]
    pub restored_s: i64,
}

/// Inode numbers of a partition from `from` to below `to`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Gap {
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    #[prost(uint64, tag = "2")]
    pub from: u64,
    #[prost(uint64, tag = "3")]
    pub to: u64,
}

impl RestoreRecord {
    /// Reads the record; empty if the store was never restored.
    pub async fn read(store: &dyn Store) -> Result<RestoreRecord> {
        let stored = store.get(RestoreRecord::KEY).await.map_err(|error| store_error(&error))?;
        stored.map_or(Ok(RestoreRecord::default()), |value| {
            namespace::record::decode(RestoreRecord::KEY, value)
        })
    }

    /// Key of the record.
    pub const KEY: &'static [u8] = KEY;

    /// Whether a file existed in the backup and wasn't changed since the restore: targets may hold
    /// more of it.
    pub fn existed_at_backup(&self, ino: InodeId, changed: Timestamp) -> bool {
        let (partition, sequence) = (u32::from(ino.partition().0), ino.sequence());
        changed.secs < self.restored_s
            && self.gaps.iter().any(|gap| gap.partition == partition && sequence < gap.from)
    }

    /// Whether an inode's number was skipped: if it exists, it was created between the backup and
    /// the restore.
    pub fn is_skipped(&self, ino: InodeId) -> bool {
        let (partition, sequence) = (u32::from(ino.partition().0), ino.sequence());
        self.gaps.iter().any(|gap| gap.partition == partition && (gap.from..gap.to).contains(&sequence))
    }
}

/// Rewrites the records of a backup, one after the other.
pub struct RestoreRewriter {
    partitions: u16,
    now_s: i64,
    /// By how much ownership epochs increase.
    spare_epochs: u64,
    /// Inode numbers that each partition skips.
    skipped: u64,
    restore_record: RestoreRecord,
    /// Partitions without a next inode number, and without an owner, in the backup.
    without_next: BTreeSet<PartitionId>,
    without_owner: BTreeSet<PartitionId>,
}

impl RestoreRewriter {
    /// For a backup made at `created_s` of a store with `partitions`, restored at `now_s`, in
    /// seconds since 1970.
    pub fn new(partitions: u16, created_s: i64, now_s: i64) -> RestoreRewriter {
        let elapsed_s = now_s.saturating_sub(created_s).max(0) as u64;
        let all = || (0..partitions).map(PartitionId).collect();
        RestoreRewriter {
            partitions,
            now_s,
            spare_epochs: SPARE_EPOCHS + (elapsed_s / SECONDS_PER_EPOCH).min(MAX_EXTRA_EPOCHS),
            skipped: elapsed_s.saturating_mul(SEQUENCES_PER_S).saturating_add(SPARE_SEQUENCES),
            restore_record: RestoreRecord::default(),
            without_next: all(),
            without_owner: all(),
        }
    }

    /// The rewritten record; `None` if it is dropped.
    ///
    /// # Errors
    /// A record that can't be decoded, and numbers that are exhausted.
    pub fn record(&mut self, key: &[u8], value: Bytes) -> Result<Option<Bytes>> {
        if key == KEY {
            self.restore_record.gaps.extend(decoded::<RestoreRecord>(key, value)?.gaps);
            return Ok(None);
        }
        Ok(match decode_key(key) {
            Some(Key::PartitionCounters(partition)) if partition.0 < self.partitions => {
                let next: PartitionCounters = decoded(key, value)?;
                self.without_next.remove(&partition);
                Some(self.next(partition, next)?)
            }
            Some(Key::Owner(partition)) => {
                let owner: Owner = decoded(key, value)?;
                self.without_owner.remove(&partition);
                Some(released_owner(partition, owner, self.spare_epochs)?)
            }
            Some(Key::Session(_)) => {
                let session: StoredSession = decoded(key, value)?;
                let ended = if session.is_ended() { session } else { StoredSession::ended_at(self.now_s) };
                Some(ended.encode_to_vec().into())
            }
            Some(Key::Operation { .. } | Key::Doomed(_) | Key::Migrating(_)) => None,
            Some(Key::Writing { .. }) => {
                decoded::<Writing>(key, value)?;
                Some(Writing { writing: true, truncate_to: None }.encode_to_vec().into())
            }
            _ => Some(value),
        })
    }

    /// Additional records, once all records were rewritten.
    ///
    /// # Errors
    /// As [`RestoreRewriter::record`].
    pub fn additional_records(&mut self) -> Result<Vec<(Vec<u8>, Bytes)>> {
        let mut rest = Vec::new();
        for partition in std::mem::take(&mut self.without_next) {
            let first = PartitionCounters { sequence: namespace::FIRST_SEQUENCE, inodes: Some(0) };
            rest.push((keys::partition_counters(partition).to_vec(), self.next(partition, first)?));
        }
        for partition in std::mem::take(&mut self.without_owner) {
            let no_owner = Owner { node: 0, epoch: 0, released: true };
            rest.push((
                keys::owner(partition).to_vec(),
                released_owner(partition, no_owner, self.spare_epochs)?,
            ));
        }
        self.restore_record.restored_s = self.now_s;
        rest.push((KEY.to_vec(), self.restore_record.encode_to_vec().into()));
        Ok(rest)
    }

    fn next(&mut self, partition: PartitionId, next: PartitionCounters) -> Result<Bytes> {
        let from = next.sequence;
        let to = from.saturating_add(self.skipped);
        if to >= 1 << InodeId::SEQUENCE_BITS {
            let message = format!(
                "partition {partition} has too few inode numbers left: it is at {from}, and {} more may have been used since the backup",
                self.skipped
            );
            return Err(Error::new(Errno::EOVERFLOW, message)
                .hint("use a newer backup; check the clock of this machine"));
        }
        self.restore_record.gaps.push(Gap { partition: partition.0.into(), from, to });
        Ok(PartitionCounters { sequence: to, ..next }.encode_to_vec().into())
    }
}

/// Releases all partitions in a store that no service uses and that was changed by hand: a service
/// that still runs elsewhere can't commit anything based on its cached state, and has to adopt them
/// again.
///
/// # Errors
/// Those of the store, and numbers that are exhausted.
pub async fn release_partitions(store: &dyn Store) -> Result<()> {
    let range = keys::all_owners();
    let mut writes = Vec::new();
    let owners = store.scan(&range.from, &range.to, usize::MAX).await;
    for (key, value) in owners.map_err(|e| store_error(&e))? {
        // A record that can't be decoded keeps its owner from committing, too; the file check drops
        // it.
        if let Some(Key::Owner(partition)) = decode_key(&key)
            && let Ok(owner) = decoded(&key, value)
        {
            writes.push((key.to_vec(), Some(released_owner(partition, owner, 1)?)));
        }
    }
    let outcome = store.commit(Batch { guards: Vec::new(), writes }).await.map_err(|e| store_error(&e))?;
    if outcome != Outcome::Applied {
        return Err(Error::new(
            Errno::EIO,
            format!("the owner records of partitions could not be written: {outcome:?}"),
        ));
    }
    store.sync().await.map_err(|e| store_error(&e))
}

fn released_owner(partition: PartitionId, owner: Owner, spare_epochs: u64) -> Result<Bytes> {
    let epoch = owner.epoch.saturating_add(spare_epochs);
    if epoch > LAST_EPOCH {
        let message =
            format!("partition {partition} has had {} owners, and can't be restored any more", owner.epoch);
        return Err(
            Error::new(Errno::EOVERFLOW, message).hint("create a new cluster, and copy the files to it")
        );
    }
    Ok(Owner { epoch, released: true, ..owner }.encode_to_vec().into())
}

fn decoded<M: Message + Default>(key: &[u8], value: Bytes) -> Result<M> {
    namespace::record::decode(key, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{Blocking, Durability, Engine, Memory, Writer};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use types::ChunkSlot;
    use types::SessionId;

    const P: PartitionId = PartitionId(1);

    fn after(rewriter: &mut RestoreRewriter, key: &[u8], value: impl Message) -> Option<Bytes> {
        rewriter.record(key, value.encode_to_vec().into()).unwrap()
    }

    #[test]
    fn numbers_go_on_above_all_that_may_have_been_given_away() {
        let mut rewriter = RestoreRewriter::new(2, 1000, 1010);
        let next = after(
            &mut rewriter,
            &keys::partition_counters(P),
            PartitionCounters { sequence: 50, inodes: Some(7) },
        )
        .unwrap();
        let PartitionCounters { sequence: next, inodes } = PartitionCounters::decode(next).unwrap();
        assert_eq!(inodes, Some(7), "the copy has all of them");
        assert_eq!(next, 50 + (1 << 30) + 2_000_000);
        let rest: BTreeMap<_, _> = rewriter.additional_records().unwrap().into_iter().collect();
        // The other partition had used none by then.
        let other =
            PartitionCounters::decode(rest[&keys::partition_counters(PartitionId(0)).to_vec()].clone())
                .unwrap()
                .sequence;
        assert!(other > 1 << 30 && !rest.contains_key(keys::partition_counters(P).as_slice()));
        let rewound = RestoreRecord::decode(rest[KEY].clone()).unwrap();
        for (sequence, expected) in [(49, false), (50, true), (next - 1, true), (next, false)] {
            assert_eq!(rewound.is_skipped(InodeId::new(P, sequence)), expected, "{sequence}");
        }
        let at = |secs| Timestamp::new(secs, 0);
        for (sequence, changed, expected) in
            [(49, at(1009), true), (49, at(1010), false), (50, at(1009), false)]
        {
            assert_eq!(rewound.existed_at_backup(InodeId::new(P, sequence), changed), expected, "{sequence}");
        }
        // A second restore, with the clock set back.
        let mut again = RestoreRewriter::new(2, 1010, 0);
        assert_eq!(again.record(KEY, rest[KEY].clone()).unwrap(), None);
        let later = after(
            &mut again,
            &keys::partition_counters(P),
            PartitionCounters { sequence: next, inodes: Some(7) },
        )
        .unwrap();
        assert_eq!(PartitionCounters::decode(later).unwrap().sequence, next + (1 << 30));
        let rewound = RestoreRecord::decode(again.additional_records().unwrap().pop().unwrap().1).unwrap();
        assert!(rewound.is_skipped(InodeId::new(P, 50)) && rewound.is_skipped(InodeId::new(P, next)));
    }

    #[test]
    fn numbers_that_are_at_their_end_are_refused() {
        let mut rewriter = RestoreRewriter::new(2, 0, 0);
        let next = PartitionCounters { sequence: (1 << 40) - 5, inodes: None }.encode_to_vec();
        assert_eq!(
            rewriter.record(&keys::partition_counters(P), next.into()).unwrap_err().errno,
            Errno::EOVERFLOW
        );
        let owner = Owner { node: 1, epoch: LAST_EPOCH - 1, released: false }.encode_to_vec();
        assert_eq!(rewriter.record(&keys::owner(P), owner.into()).unwrap_err().errno, Errno::EOVERFLOW);
        assert!(rewriter.record(&keys::partition_counters(P), Bytes::from_static(b"\xff")).is_err());
    }

    #[test]
    fn nobody_of_before_goes_on() {
        let mut rewriter = RestoreRewriter::new(2, 1000, 2000);
        let owner =
            after(&mut rewriter, &keys::owner(P), Owner { node: 3, epoch: 7, released: false }).unwrap();
        assert_eq!(Owner::decode(owner).unwrap(), Owner { node: 3, epoch: 4353, released: true });
        let session = SessionId(9);
        let living = after(&mut rewriter, &keys::session(session), StoredSession::ACTIVE).unwrap();
        assert_eq!(StoredSession::decode(living).unwrap(), StoredSession::ended_at(2000));
        let ended = after(&mut rewriter, &keys::session(session), StoredSession::ended_at(5)).unwrap();
        assert_eq!(StoredSession::decode(ended).unwrap(), StoredSession::ended_at(5));
        assert_eq!(rewriter.record(&keys::operation(session, 1), Bytes::new()).unwrap(), None);
        let ino = InodeId::new(P, 4);
        let cutting = Writing { writing: false, truncate_to: Some(0) };
        let note = after(&mut rewriter, &keys::writing(ino, session), cutting).unwrap();
        assert_eq!(Writing::decode(note).unwrap(), Writing { writing: true, truncate_to: None });
        let rest: BTreeMap<_, _> = rewriter.additional_records().unwrap().into_iter().collect();
        let nobody = Owner::decode(rest[&keys::owner(PartitionId(0)).to_vec()].clone()).unwrap();
        assert_eq!(nobody, Owner { node: 0, epoch: 4346, released: true });
    }

    #[test]
    fn files_stay_as_they_are() {
        let mut rewriter = RestoreRewriter::new(2, 0, 0);
        let anything = Bytes::from_static(b"anything");
        for key in [keys::inode(InodeId::ROOT).to_vec(), b"\xff\xffmap".to_vec()] {
            assert_eq!(rewriter.record(&key, anything.clone()).unwrap(), Some(anything.clone()));
        }
    }

    /// The migration that recorded them may have ended since.
    #[test]
    fn nothing_is_deleted_or_moved_by_a_note_of_then() {
        let mut rewriter = RestoreRewriter::new(2, 0, 0);
        let ino = InodeId::new(P, 4);
        for key in [keys::doomed(ino.chunk_file(ChunkSlot(1))).to_vec(), keys::migrating(ino).to_vec()] {
            assert_eq!(rewriter.record(&key, Bytes::from_static(b"anything")).unwrap(), None);
        }
    }

    #[test]
    fn partitions_of_a_changed_store_have_to_be_taken_over_again() {
        let engine = Arc::new(Memory::new());
        let owner = Owner { node: 3, epoch: 7, released: false };
        let key = keys::owner(P).to_vec();
        let damaged = keys::owner(PartitionId(P.0 + 1)).to_vec();
        let value = Bytes::from_static(&[0xff; 9]);
        let writes =
            vec![(key.clone(), Some(owner.encode_to_vec().into())), (damaged.clone(), Some(value.clone()))];
        engine.apply(&[Batch { guards: Vec::new(), writes }]).unwrap();
        let store = Writer::with_blocking(engine.clone(), Durability::Process, Blocking::Inline);
        rt::block_on(async move { release_partitions(&store).await }).unwrap().unwrap();
        let now = Owner::decode(engine.get(&key).unwrap().unwrap()).unwrap();
        assert_eq!(now, Owner { node: 3, epoch: 8, released: true });
        assert_eq!(engine.get(&damaged).unwrap(), Some(value), "the check sees to it");
    }
}
