//! Lease epochs: a request that was sent under a lease that has ended is not executed any more.
//!
//! The network or a suspended service can delay a request until another client has the lease under
//! which it was sent. So requests for a chunk file carry the lease epoch
//! ([`wire::FileInfo::epoch`]). A target records the highest epoch that it has seen of each chunk
//! file and refuses lower ones. A request with a higher one begins when the running changes of
//! lower epochs have ended. So a delayed request takes effect before the first request of the next
//! epoch, or never.
//!
//! The record is bounded. Of chunk files that were not used for a long time, only a *floor* for
//! each partition remains: the highest epoch that was dropped. The target refuses a request at or
//! below the floor for a chunk file without a record, like an outdated one. A client that still has
//! the lease gets a new epoch from the metadata service, which is above the floor.
//!
//! A restart drops all records; requests in flight to the former process can't reach the new one.

use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{ChunkFileId, Error, HashMap, PartitionId, Refusal, Result};

/// Parts of the table with a lock each, so that cores rarely contend.
const SHARDS: usize = 64;

/// Recently used chunk files of a part; as many of the generation before them are recorded, too. A
/// quarter of a million per target, some 10 MiB.
const YOUNG_FILES_PER_SHARD: usize = 2048;

/// How often a request that waits for older changes checks again; as a rule it is woken.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The lease epochs of one target.
pub(crate) struct LeaseEpochs {
    shards: Vec<Mutex<Shard>>,
    /// Set and cleared when the last older change of a chunk file has ended.
    ended: Event,
}

impl Default for LeaseEpochs {
    fn default() -> LeaseEpochs {
        LeaseEpochs { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), ended: Event::new() }
    }
}

#[derive(Default)]
struct Shard {
    young: HashMap<ChunkFileId, EpochRecord>,
    /// The generation before `young`.
    old: HashMap<ChunkFileId, EpochRecord>,
    /// The highest epoch that was dropped.
    floors: BTreeMap<PartitionId, u64>,
}

/// The record of a chunk file.
#[derive(Clone, Copy)]
struct EpochRecord {
    epoch: u64,
    /// Running changes of this epoch, and of those before it.
    running: u32,
    older: u32,
}

/// An admitted request; it counts as running until this is dropped.
pub(crate) struct EpochGuard<'a> {
    epochs: &'a LeaseEpochs,
    ino: ChunkFileId,
    epoch: u64,
    is_change: bool,
}

/// The decision about a request.
enum Admission {
    Now,
    /// Wait until older changes have ended.
    Wait,
    Refused,
}

impl LeaseEpochs {
    /// Begins a request for a chunk file as soon as no change of a lower epoch runs.
    ///
    /// # Errors
    /// `RevokedLeaseEpoch` if the epoch is over.
    pub(crate) async fn enter(
        &self,
        ino: ChunkFileId,
        epoch: u64,
        is_change: bool,
    ) -> Result<EpochGuard<'_>> {
        if epoch > 0 {
            while !self.begin(ino, epoch, is_change)? {
                self.wait_for_older(ino).await;
            }
        }
        Ok(EpochGuard { epochs: self, ino, epoch, is_change })
    }

    /// Records that another member admitted a request of this epoch: lower ones are over here, too.
    pub(crate) fn observe(&self, ino: ChunkFileId, epoch: u64) {
        if epoch > 0 {
            self.shard(ino).lock().admit(ino, epoch, false);
        }
    }

    /// True when the request has begun, false when it has to wait.
    fn begin(&self, ino: ChunkFileId, epoch: u64, is_change: bool) -> Result<bool> {
        match self.shard(ino).lock().admit(ino, epoch, is_change) {
            Admission::Now => Ok(true),
            Admission::Wait => Ok(false),
            Admission::Refused => Err(revoked(ino)),
        }
    }

    /// Waits until a change of an older epoch has ended.
    #[cold]
    async fn wait_for_older(&self, ino: ChunkFileId) {
        let ended = {
            // Under the lock under which changes end.
            let mut shard = self.shard(ino).lock();
            if shard.find(ino).is_none_or(|record| record.older == 0) {
                return;
            }
            self.ended.clear();
            self.ended.wait()
        };
        // Another waiter may have cleared the event.
        rt::timeout(RECHECK_INTERVAL, ended).await;
    }

    fn shard(&self, ino: ChunkFileId) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

impl Shard {
    fn admit(&mut self, ino: ChunkFileId, epoch: u64, is_change: bool) -> Admission {
        let Some(record) = self.find(ino) else {
            if self.floors.get(&partition(ino)).is_some_and(|floor| epoch <= *floor) {
                return Admission::Refused;
            }
            self.insert(ino, EpochRecord { epoch, running: u32::from(is_change), older: 0 });
            return Admission::Now;
        };
        if epoch < record.epoch {
            return Admission::Refused;
        }
        if epoch > record.epoch {
            *record = EpochRecord { epoch, running: 0, older: record.older + record.running };
        }
        if record.older > 0 {
            return Admission::Wait;
        }
        record.running += u32::from(is_change);
        Admission::Now
    }

    /// Finds the record of a chunk file and makes it young again.
    fn find(&mut self, ino: ChunkFileId) -> Option<&mut EpochRecord> {
        if !self.young.contains_key(&ino) {
            let record = self.old.remove(&ino)?;
            self.insert(ino, record);
        }
        self.young.get_mut(&ino)
    }

    fn insert(&mut self, ino: ChunkFileId, record: EpochRecord) {
        if self.young.len() >= YOUNG_FILES_PER_SHARD {
            self.rotate_generations();
        }
        self.young.insert(ino, record);
    }

    /// Drops the old generation, except for chunk files with running changes, and makes the young
    /// generation old.
    fn rotate_generations(&mut self) {
        let dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        for (ino, record) in dropped {
            if record.running + record.older > 0 {
                self.young.insert(ino, record);
            } else {
                let floor = self.floors.entry(partition(ino)).or_default();
                *floor = record.epoch.max(*floor);
            }
        }
    }
}

impl EpochGuard<'_> {
    /// Checks the epoch again after a request that changes nothing: a later lease holder may have
    /// written the content that it read.
    ///
    /// # Errors
    /// `RevokedLeaseEpoch` when its epoch is over.
    pub(crate) fn check(&self) -> Result<()> {
        if self.epoch == 0 || self.is_change {
            return Ok(());
        }
        let mut shard = self.epochs.shard(self.ino).lock();
        let is_over = match shard.find(self.ino) {
            Some(record) => record.epoch > self.epoch,
            None => shard.floors.get(&partition(self.ino)).is_some_and(|floor| *floor > self.epoch),
        };
        if is_over { Err(revoked(self.ino)) } else { Ok(()) }
    }
}

impl Drop for EpochGuard<'_> {
    fn drop(&mut self) {
        if self.epoch == 0 || !self.is_change {
            return;
        }
        let mut shard = self.epochs.shard(self.ino).lock();
        // A record with running changes is never dropped.
        let Some(record) = shard.find(self.ino) else { return };
        if record.epoch == self.epoch {
            record.running -= 1;
        } else {
            record.older -= 1;
            if record.older == 0 {
                self.epochs.ended.set();
            }
        }
    }
}

fn partition(ino: ChunkFileId) -> PartitionId {
    ino.partition()
}

fn revoked(ino: ChunkFileId) -> Error {
    let message = format!("the lease of the request for chunk file {:016x} has ended", ino.0);
    Error::new(Refusal::RevokedLeaseEpoch, message).hint("repeat the operation")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const NAME: ChunkFileId = ChunkFileId(5);

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        poll(pin!(future)).expect("nothing is in the way")
    }

    fn is_revoked<T>(result: Result<T>) -> bool {
        result.is_err_and(|error| error.errno == Refusal::RevokedLeaseEpoch)
    }

    #[test]
    fn requests_of_old_epochs_are_refused_unless_they_have_none() {
        let epochs = LeaseEpochs::default();
        drop(now(epochs.enter(NAME, 7, true)).unwrap());
        drop(now(epochs.enter(NAME, 7, true)).unwrap());
        // A reader also gets the later epoch.
        drop(now(epochs.enter(NAME, 8, false)).unwrap());
        assert!(
            is_revoked(now(epochs.enter(NAME, 7, true))) && is_revoked(now(epochs.enter(NAME, 7, false)))
        );
        assert!(now(epochs.enter(NAME, 0, true)).is_ok(), "an older client sends none");
        assert!(now(epochs.enter(ChunkFileId(6), 7, true)).is_ok(), "another chunk file");
    }

    #[test]
    fn a_new_epoch_waits_for_changes_of_the_old_one() {
        rt::block_on(async {
            let epochs = LeaseEpochs::default();
            let older =
                [now(epochs.enter(NAME, 1, true)).unwrap(), now(epochs.enter(NAME, 1, true)).unwrap()];
            let mut newer = pin!(epochs.enter(NAME, 2, false));
            assert!(poll(newer.as_mut()).is_none());
            assert!(is_revoked(now(epochs.enter(NAME, 1, true))), "but no more of them");
            let [first, second] = older;
            drop(first);
            assert!(poll(newer.as_mut()).is_none());
            let mut newest = pin!(epochs.enter(NAME, 3, true));
            assert!(poll(newest.as_mut()).is_none());
            drop(second);
            assert!(is_revoked(newer.await), "it was overtaken while it waited");
            let newest = newest.await.unwrap();
            assert!(poll(pin!(epochs.enter(NAME, 4, false))).is_none(), "its own changes count");
            drop(newest);
            assert!(now(epochs.enter(NAME, 4, true)).is_ok());
        })
        .unwrap();
    }

    #[test]
    fn a_read_fails_when_a_later_epoch_began_meanwhile() {
        let epochs = LeaseEpochs::default();
        let read = now(epochs.enter(NAME, 1, false)).unwrap();
        assert!(read.check().is_ok());
        // Changes don't wait for reads.
        let change = now(epochs.enter(NAME, 2, true)).unwrap();
        assert!(is_revoked(read.check()) && change.check().is_ok());
    }

    #[test]
    fn dropped_records_leave_a_floor_and_used_ones_stay() {
        let epochs = LeaseEpochs::default();
        let of_shard = |n: u64| ChunkFileId(NAME.0 + n * SHARDS as u64);
        let running = now(epochs.enter(of_shard(1), 11, true)).unwrap();
        drop(now(epochs.enter(of_shard(2), 12, true)).unwrap());
        drop(now(epochs.enter(of_shard(3), 13, true)).unwrap());
        let elsewhere = ChunkFileId(of_shard(4).0 | 1 << 40);
        assert_ne!(elsewhere.partition(), NAME.partition());
        for n in 10..10 + 3 * YOUNG_FILES_PER_SHARD as u64 {
            drop(now(epochs.enter(of_shard(n), 20 + n, true)).unwrap());
            drop(now(epochs.enter(of_shard(3), 13, true)).unwrap());
        }
        assert!(is_revoked(now(epochs.enter(of_shard(2), 12, true))), "it was forgotten");
        assert!(is_revoked(now(epochs.enter(of_shard(5), 20, true))), "it might have been");
        assert!(now(epochs.enter(of_shard(2), 1 << 20, true)).is_ok());
        assert!(now(epochs.enter(of_shard(1), 11, true)).is_ok(), "it runs");
        assert!(now(epochs.enter(elsewhere, 1, true)).is_ok(), "another partition counts for itself");
        drop(running);
        let shard = epochs.shard(NAME).lock();
        assert!(shard.young.len() <= YOUNG_FILES_PER_SHARD && shard.old.len() <= YOUNG_FILES_PER_SHARD);
    }
}
