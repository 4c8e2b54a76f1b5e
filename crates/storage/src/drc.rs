//! The duplicate request cache: the service executes each numbered change once, however often the
//! client sends it.
//!
//! A client repeats a request when its connection breaks before the answer arrives. A write that is
//! executed twice can undo a write that another client made after it saw the first. So clients
//! number the writes that they make beside other clients ([`wire::SlotSequence`]). For each session
//! slot, a target records the last sequence id and the outcome, and answers a retransmission from
//! that record. Writes of a file with one writer carry no number and cost nothing here.
//!
//! The record must survive the death of the process, because the data survives it, too. Each change
//! has a row in a file ([`chunkstore::Rows`]). The service writes *begun* before the data, and
//! *done* after the data and before any client can read it. So for each number that is repeated
//! after a restart:
//! - *done*: clients may have seen the effect and overwritten it. The service answers the request
//!   and doesn't execute it again.
//! - *begun*: no client saw the effect while the former process ran, but it may be on disk, where
//!   the next reader would see it. So the file is closed to all clients until the change is
//!   repeated or its session has ended. The repetition may execute at any time, because nothing
//!   followed the change. After [`RETRANSMISSION_LIMIT`] the file opens all the same, and the
//!   change is *abandoned*: a later repetition fails, and the application learns that the outcome
//!   of its write is unknown.
//! - no row: the change never began here. The service executes it as a new one.
//!
//! A power failure may take rows that weren't synced, together with the data that wasn't. Every
//! sync of data syncs the rows, too, so that an earlier change can't undo synced content.
//!
//! The slot's next change reuses its row: its arrival confirms that the client has the previous
//! answer. When there are too many rows, slots that weren't used for [`RETENTION`] lose theirs.

use chunkstore::{ROW_BYTES, Row as Bytes, Rows, Store};
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::{ChunkFileId, Errno, Error, HashSet, Result, SessionId};
use wire::{Service, SlotSequence, StorageReply};

use crate::convert;

/// How long a file stays closed after a start for changes that the former process began. Clients
/// reconnect within a second or two, and requests of other clients must be answered within the
/// shortest time-outs that applications choose.
const RETRANSMISSION_LIMIT: Duration = Duration::from_secs(5);

/// How long the record of a slot is guaranteed to exist after its last change: longer than any
/// client repeats a request.
const RETENTION: Duration = Duration::from_secs(3600);

/// Rows of a target: each writer of shared files has as many slots as such writes in flight. A file
/// of 4 MiB.
const MAX_ROWS: u32 = 65_536;

/// How often a request that waits for a closed file checks the deadline.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

type SlotKey = (SessionId, u32);

/// The duplicate request cache of one target.
pub(crate) struct DuplicateRequestCache {
    slots: Mutex<SlotTable>,
    /// Changes that the former process began and that haven't been repeated. Every request reads
    /// this, without a lock.
    unrepeated: AtomicUsize,
    /// Set and cleared whenever a change has ended or been abandoned.
    changed_event: Event,
}

struct SlotTable {
    last: BTreeMap<SlotKey, SlotRecord>,
    /// Places of rows that are free again; `next_unused` is the first place that was never used.
    free: Vec<u32>,
    next_unused: u32,
    /// When requests stop waiting for changes that the former process began; set when the target
    /// opens to clients.
    deadline_ns: u64,
}

/// The last change of a slot.
struct SlotRecord {
    sequence: u32,
    row: u32,
    ino: ChunkFileId,
    stage: Stage,
    /// The former process began it, and its file is closed to other requests.
    inherited: bool,
    /// Its row existed at the start.
    existed_at_start: bool,
    used_ns: u64,
}

#[derive(Clone)]
enum Stage {
    /// The former process began it, and it hasn't been repeated.
    Begun,
    Running,
    Done(Result<()>),
    /// The outcome is unknown, and the change won't be executed any more.
    Abandoned,
}

/// Which record decides whether a change begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Authority {
    /// The record of this replica.
    Own,
    /// The primary, which has executed the change.
    Primary,
}

/// How to handle a numbered change.
pub(crate) enum DrcLookup<'a> {
    /// Execute it.
    Execute(Execution<'a>),
    /// It was executed before, with this answer.
    Cached(Result<()>),
    /// The row can't be written. The change hasn't begun, and the client may try again.
    RowFailed(chunkstore::StoreError),
}

/// A change that runs. If dropped without [`Execution::end`], it becomes abandoned.
pub(crate) struct Execution<'a> {
    drc: &'a DuplicateRequestCache,
    rows: &'a Rows,
    slot: SlotKey,
    sequence: u32,
    place: u32,
    ino: ChunkFileId,
}

impl DuplicateRequestCache {
    /// Loads the rows of the former process, except those of sessions that have ended.
    pub(crate) fn load(store: &Store, is_ended: impl Fn(SessionId) -> bool) -> DuplicateRequestCache {
        let mut table =
            SlotTable { last: BTreeMap::new(), free: Vec::new(), next_unused: 0, deadline_ns: u64::MAX };
        let now_ns = rt::monotonic_ns();
        for (place, row) in store.drc_rows().take_found() {
            let Some((slot_key, change)) = decoded(place, &row, now_ns) else { continue };
            table.next_unused = table.next_unused.max(place + 1);
            // A freed row that wasn't used again may be older than the slot's current row.
            let is_newest = table.last.get(&slot_key).is_none_or(|other| other.sequence < change.sequence);
            if is_newest && !is_ended(slot_key.0) {
                table.last.insert(slot_key, change);
            }
        }
        let used: HashSet<u32> = table.last.values().map(|change| change.row).collect();
        table.free = (0..table.next_unused).filter(|place| !used.contains(place)).collect();
        let unrepeated = AtomicUsize::new(table.last.values().filter(|change| change.inherited).count());
        DuplicateRequestCache { slots: Mutex::new(table), unrepeated, changed_event: Event::new() }
    }

    /// Opens the target to clients: changes that the former process began can be repeated for
    /// [`RETRANSMISSION_LIMIT`] from now.
    pub(crate) fn set_open(&self) {
        self.slots.lock().deadline_ns = rt::monotonic_ns() + RETRANSMISSION_LIMIT.as_nanos() as u64;
    }

    /// Whether requests have to call [`DuplicateRequestCache::wait_until_open`].
    pub(crate) fn has_closed_files(&self) -> bool {
        self.unrepeated.load(Ordering::Acquire) > 0
    }

    /// Waits until a file is open to a request. `own`: the request's number, which may be the one
    /// that the file waits for.
    pub(crate) async fn wait_until_open(
        &self,
        rows: &Rows,
        session: SessionId,
        ino: ChunkFileId,
        own: Option<SlotSequence>,
    ) -> Result<()> {
        loop {
            let overdue = {
                let mut table = self.slots.lock();
                if own.is_some_and(|number| table.expects(session, number)) || !table.is_closed(ino) {
                    return Ok(());
                }
                // Cleared under the lock under which a change ends.
                self.changed_event.clear();
                if rt::monotonic_ns() < table.deadline_ns { Vec::new() } else { table.abandon(ino) }
            };
            for (slot_key, change) in &overdue {
                tracing::warn!(
                    session = slot_key.0.0, %ino,
                    "a client hasn't repeated a write that was in progress when this service ended; its outcome is reported as unknown"
                );
                let row = encoded(*slot_key, change.sequence, ino, &Stage::Abandoned);
                rows.write(change.place, &row).await.map_err(|e| convert::error(&e))?;
            }
            if overdue.is_empty() {
                // The time-out also bounds the wait for the deadline.
                rt::timeout(RECHECK_INTERVAL, self.changed_event.wait()).await;
            } else {
                self.count_repeated(overdue.len());
            }
        }
    }

    /// Returns the answer to a change that was executed before.
    pub(crate) fn cached_answer(&self, session: SessionId, number: SlotSequence) -> Option<Result<()>> {
        let table = self.slots.lock();
        let last = table.last.get(&(session, number.slot)).filter(|last| last.sequence == number.sequence)?;
        if let Stage::Done(answer) = &last.stage { Some(answer.clone()) } else { None }
    }

    /// Returns the reply to a change that was executed before. For a change of the former process
    /// it has the past verifier: a power failure may have taken the data and left the row.
    pub(crate) fn cached_reply(
        &self,
        store: &Store,
        session: SessionId,
        number: SlotSequence,
    ) -> StorageReply {
        let table = self.slots.lock();
        let existed_at_start =
            table.last.get(&(session, number.slot)).is_some_and(|last| last.existed_at_start);
        StorageReply::Done {
            verifier: if existed_at_start { store.past_verifier() } else { store.verifier() },
        }
    }

    /// Begins a change, or finds that it was executed before. The row is written when this returns.
    pub(crate) async fn begin<'a>(
        &'a self,
        rows: &'a Rows,
        session: SessionId,
        number: SlotSequence,
        ino: ChunkFileId,
    ) -> Result<DrcLookup<'a>> {
        self.begin_with(Authority::Own, rows, session, number, ino).await
    }

    async fn begin_with<'a>(
        &'a self,
        authority: Authority,
        rows: &'a Rows,
        session: SessionId,
        number: SlotSequence,
        ino: ChunkFileId,
    ) -> Result<DrcLookup<'a>> {
        let slot_key = (session, number.slot);
        let place = loop {
            let waiting = {
                let mut table = self.slots.lock();
                match table.last.get(&slot_key).map(|change| (change.sequence, change.stage.clone())) {
                    Some((sequence, stage)) if sequence == number.sequence => match stage {
                        Stage::Begun => break table.begin(slot_key, number, ino)?,
                        Stage::Abandoned | Stage::Done(Err(_)) if authority == Authority::Primary => {
                            break table.begin(slot_key, number, ino)?;
                        }
                        Stage::Done(answer) => return Ok(DrcLookup::Cached(answer)),
                        Stage::Abandoned => return Err(unknown_outcome()),
                        // The same request, received over a connection that has ended.
                        Stage::Running => {
                            self.changed_event.clear();
                            self.changed_event.wait()
                        }
                    },
                    Some((sequence, _)) if sequence > number.sequence => return Err(out_of_sequence()),
                    _ => break table.begin(slot_key, number, ino)?,
                }
            };
            // Another waiter may have cleared the event.
            rt::timeout(RECHECK_INTERVAL, waiting).await;
        };
        let execution = Execution { drc: self, rows, slot: slot_key, sequence: number.sequence, place, ino };
        match execution.write(&Stage::Running).await {
            Ok(()) => Ok(DrcLookup::Execute(execution)),
            Err(error) => {
                execution.withdraw();
                Ok(DrcLookup::RowFailed(error))
            }
        }
    }

    /// Drops the changes of a session that has ended and whose requests don't run any more: they
    /// won't be repeated.
    pub(crate) fn drop_session(&self, session: SessionId) {
        let mut table = self.slots.lock();
        let ended: Vec<SlotKey> =
            table.last.keys().filter(|slot_key| slot_key.0 == session).copied().collect();
        let mut inherited = 0;
        for slot_key in ended {
            let Some(change) = table.last.remove(&slot_key) else { continue };
            table.free.push(change.row);
            inherited += usize::from(change.inherited);
        }
        drop(table);
        self.count_repeated(inherited);
    }

    /// Drops all records: this replica has missed changes, and the member that resyncs it will
    /// report what was executed.
    pub(crate) fn clear(&self) {
        let mut table = self.slots.lock();
        let ended: Vec<SlotKey> = table
            .last
            .iter()
            .filter(|(_, change)| !matches!(change.stage, Stage::Running))
            .map(|(slot_key, _)| *slot_key)
            .collect();
        let mut inherited = 0;
        for slot_key in ended {
            let Some(change) = table.last.remove(&slot_key) else { continue };
            table.free.push(change.row);
            inherited += usize::from(change.inherited);
        }
        drop(table);
        self.count_repeated(inherited);
    }

    /// Returns the last changes of all slots that were executed and may still be repeated.
    pub(crate) fn completed(&self) -> Vec<(SessionId, SlotSequence, ChunkFileId)> {
        let (now_ns, keep_ns) = (rt::monotonic_ns(), RETENTION.as_nanos() as u64);
        let table = self.slots.lock();
        let is_done = |change: &SlotRecord| {
            matches!(change.stage, Stage::Done(Ok(()))) && now_ns.saturating_sub(change.used_ns) <= keep_ns
        };
        let done = table.last.iter().filter(|(_, change)| is_done(change));
        done.map(|((session, slot_key), change)| {
            (*session, SlotSequence { slot: *slot_key, sequence: change.sequence }, change.ino)
        })
        .collect()
    }

    /// Records a change as done that the primary executed, unless a later one of its slot is known.
    /// Its outcome here doesn't matter: it may have been abandoned or have failed when this replica
    /// was already out of sync.
    pub(crate) async fn adopt_completed(
        &self,
        rows: &Rows,
        session: SessionId,
        number: SlotSequence,
        ino: ChunkFileId,
    ) -> Result<()> {
        match self.begin_with(Authority::Primary, rows, session, number, ino).await {
            Ok(DrcLookup::Execute(execution)) => {
                execution.write_done_row().await.map_err(|e| convert::error(&e))?;
                execution.end(Ok(())).await
            }
            Ok(DrcLookup::Cached(_)) => Ok(()),
            Ok(DrcLookup::RowFailed(error)) => Err(convert::error(&error)),
            Err(error) if error.errno == OUT_OF_SEQUENCE => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Counts down the unsettled changes of the former process and wakes the waiters.
    fn count_repeated(&self, inherited: usize) {
        self.unrepeated.fetch_sub(inherited, Ordering::AcqRel);
        self.changed_event.set();
    }
}

impl SlotTable {
    fn is_closed(&self, ino: ChunkFileId) -> bool {
        self.last.values().any(|change| change.inherited && change.ino == ino)
    }

    /// Whether a file is closed for this number.
    fn expects(&self, session: SessionId, number: SlotSequence) -> bool {
        self.last
            .get(&(session, number.slot))
            .is_some_and(|change| change.inherited && change.sequence <= number.sequence)
    }

    /// Abandons the changes of a file that the former process began and that no client is repeating
    /// now.
    fn abandon(&mut self, ino: ChunkFileId) -> Vec<(SlotKey, AbandonedChange)> {
        let mut abandoned = Vec::new();
        for (slot_key, change) in &mut self.last {
            if change.inherited && change.ino == ino && matches!(change.stage, Stage::Begun) {
                change.stage = Stage::Abandoned;
                change.inherited = false;
                abandoned.push((*slot_key, AbandonedChange { sequence: change.sequence, place: change.row }));
            }
        }
        abandoned
    }

    /// Records that a change runs; returns the place of its row.
    fn begin(&mut self, slot_key: SlotKey, number: SlotSequence, ino: ChunkFileId) -> Result<u32> {
        let now_ns = rt::monotonic_ns();
        let known = self.last.get(&slot_key).map(|change| (change.row, change.inherited));
        let (place, inherited) = match known {
            Some(known) => known,
            None => (self.place(now_ns)?, false),
        };
        let (sequence, stage) = (number.sequence, Stage::Running);
        let change = SlotRecord {
            sequence,
            row: place,
            ino,
            stage,
            inherited,
            existed_at_start: false,
            used_ns: now_ns,
        };
        self.last.insert(slot_key, change);
        Ok(place)
    }

    fn place(&mut self, now_ns: u64) -> Result<u32> {
        if let Some(place) = self.free.pop() {
            return Ok(place);
        }
        if self.next_unused < MAX_ROWS {
            self.next_unused += 1;
            return Ok(self.next_unused - 1);
        }
        let keep_ns = RETENTION.as_nanos() as u64;
        let is_old = |change: &SlotRecord| {
            matches!(change.stage, Stage::Done(_) | Stage::Abandoned)
                && now_ns.saturating_sub(change.used_ns) > keep_ns
        };
        let old: Vec<SlotKey> =
            self.last.iter().filter(|(_, change)| is_old(change)).map(|(slot_key, _)| *slot_key).collect();
        for slot_key in old {
            self.free.extend(self.last.remove(&slot_key).map(|change| change.row));
        }
        self.free.pop().ok_or_else(|| {
            let message = format!("{MAX_ROWS} concurrent writes to shared files were made within an hour");
            Error::new(Errno::EBUSY, message).hint("let fewer clients write to the same files concurrently")
        })
    }
}

/// A change that wasn't repeated in time.
struct AbandonedChange {
    sequence: u32,
    place: u32,
}

impl Execution<'_> {
    /// Writes the *done* row. Must be called after the data is written and before any client can
    /// read it.
    pub(crate) async fn write_done_row(&self) -> chunkstore::Result<()> {
        self.write(&Stage::Done(Ok(()))).await
    }

    /// Records the outcome.
    pub(crate) async fn end(self, answer: Result<()>) -> Result<()> {
        if answer.is_err() {
            // Its partial effect may be visible, so it must not be executed after a restart either.
            // If the row can't be written, it stays *begun*.
            let written = self.write(&Stage::Done(answer.clone())).await;
            written
                .unwrap_or_else(|e| tracing::warn!(ino = %self.ino, "a failed write can't be recorded: {e}"));
        }
        self.finish(Stage::Done(answer.clone()));
        answer
    }

    /// Removes a change that hasn't begun: the next request with its number begins it.
    fn withdraw(self) {
        let mut table = self.drc.slots.lock();
        if let Some(change) = table.last.get_mut(&self.slot).filter(|last| last.sequence == self.sequence) {
            if change.inherited {
                change.stage = Stage::Begun;
            } else {
                table.last.remove(&self.slot);
                table.free.push(self.place);
            }
        }
        drop(table);
        self.drc.changed_event.set();
    }

    /// Removes a change because another member is the primary now and decides its outcome. No
    /// record stays here, as for changes that had ended when this replica went out of sync.
    pub(crate) fn discard(self) {
        let mut table = self.drc.slots.lock();
        let is_it =
            |last: &SlotRecord| last.sequence == self.sequence && matches!(last.stage, Stage::Running);
        let mut inherited = 0;
        if table.last.get(&self.slot).is_some_and(is_it)
            && let Some(change) = table.last.remove(&self.slot)
        {
            table.free.push(change.row);
            inherited = usize::from(change.inherited);
        }
        drop(table);
        self.drc.count_repeated(inherited);
    }

    async fn write(&self, stage: &Stage) -> chunkstore::Result<()> {
        self.rows.write(self.place, &encoded(self.slot, self.sequence, self.ino, stage)).await
    }

    fn finish(&self, stage: Stage) {
        let mut table = self.drc.slots.lock();
        let Some(change) = table.last.get_mut(&self.slot) else { return };
        if change.sequence != self.sequence || !matches!(change.stage, Stage::Running) {
            return;
        }
        change.stage = stage;
        let inherited = usize::from(std::mem::take(&mut change.inherited));
        drop(table);
        self.drc.count_repeated(inherited);
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.finish(Stage::Abandoned);
    }
}

fn unknown_outcome() -> Error {
    Error::new(Errno::EIO, "the storage service restarted during a write, which was repeated too late")
        .hint("the outcome of the write is unknown: read the data, or write it again")
}

/// Not `ESTALE`: that errno tells a client that its session has ended.
const OUT_OF_SEQUENCE: Errno = Errno::EPROTO;

fn out_of_sequence() -> Error {
    Error::new(
        OUT_OF_SEQUENCE,
        "a request was retransmitted after its client had sent a later one in the same session slot",
    )
    .hint("this is a bug in weft, or an attacker replays recorded requests")
}

// A row: session 8, slot 4, sequence 4, inode 8, stage 4, errno 4.

const BEGUN: u32 = 1;
const DONE: u32 = 2;
const ABANDONED: u32 = 3;

fn encoded((session, slot_key): SlotKey, sequence: u32, ino: ChunkFileId, stage: &Stage) -> Bytes {
    let (stage, errno) = match stage {
        Stage::Begun | Stage::Running => (BEGUN, 0),
        Stage::Done(Ok(())) => (DONE, 0),
        Stage::Done(Err(error)) => (DONE, wire::error_number(error.errno)),
        Stage::Abandoned => (ABANDONED, 0),
    };
    let mut row = [0; ROW_BYTES];
    row[0..8].copy_from_slice(&session.0.to_le_bytes());
    row[8..12].copy_from_slice(&slot_key.to_le_bytes());
    row[12..16].copy_from_slice(&sequence.to_le_bytes());
    row[16..24].copy_from_slice(&ino.0.to_le_bytes());
    row[24..28].copy_from_slice(&stage.to_le_bytes());
    row[28..32].copy_from_slice(&errno.to_le_bytes());
    row
}

fn decoded(place: u32, row: &Bytes, now_ns: u64) -> Option<(SlotKey, SlotRecord)> {
    fn field<const N: usize>(row: &Bytes, at: usize) -> [u8; N] {
        row[at..at + N].try_into().expect("fields lie within the row")
    }
    let word = |at| u32::from_le_bytes(field(row, at));
    let long = |at| u64::from_le_bytes(field(row, at));
    let stage = match (word(24), word(28) as i32) {
        (BEGUN, _) => Stage::Begun,
        (DONE, 0) => Stage::Done(Ok(())),
        (DONE, number) => {
            let errno = wire::errno_of(Service::Storage, number);
            Stage::Done(Err(Error::new(errno, "the write failed when it was sent first")))
        }
        (ABANDONED, _) => Stage::Abandoned,
        _ => return None,
    };
    let inherited = matches!(stage, Stage::Begun);
    let (sequence, ino) = (word(12), ChunkFileId(long(16)));
    let change =
        SlotRecord { sequence, row: place, ino, stage, inherited, existed_at_start: true, used_ns: now_ns };
    Some(((SessionId(long(0)), word(8)), change))
}

#[cfg(test)]
mod tests;
