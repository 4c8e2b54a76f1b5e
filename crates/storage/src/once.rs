//! Changes that are done once, however often they are sent.
//!
//! A client repeats a request when its connection breaks before the answer is there. Done twice, a
//! write of one client can undo what another wrote after having seen the first. So clients number
//! the writes that they make beside others ([`wire::Number`]), and a target remembers of each lane
//! the last number and how it ended. A repeated one is answered from that. Writes of a file that
//! has one writer carry no number and cost nothing here.
//!
//! A target has to remember across the death of its process, too, since it takes the memory and
//! leaves the data. Each change has a row in a file ([`chunkstore::Rows`]): *begun* is written
//! before the data, *done* after the data and before anybody can read it. So for any number that is
//! repeated after a start:
//! - *done*: its effect may have been seen, and overwritten. It is answered and not done again.
//! - *begun*: nobody has seen its effect while the former process lived, but it may be on disk,
//!   where the next reader would see it. So the file is closed to everybody until the change has
//!   been repeated (which may be any time now, as nothing came after it), or its session has been
//!   ended. After [`REPEAT_LIMIT`] the file opens all the same, and the change is *abandoned*: a
//!   repetition that comes later fails, and its program learns that nobody knows whether the write
//!   took place.
//! - no row: it has never begun here. It is done as if it came for the first time.
//!
//! The power may take rows that weren't synced; with them go the data that wasn't. Rows are synced
//! with every sync of data, so that whatever a sync promised to keep is not undone by a change that
//! came before it.
//!
//! A lane's row is used by the lane's next change, whose coming says that the one before was
//! answered. Rows of lanes that nobody used for [`KEEP`] may be given to others when there are too
//! many.

use chunkstore::{ROW_BYTES, Row as Bytes, Rows, Store};
use parking_lot::Mutex;
use rt::sync::Event;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::{Errno, Error, HashSet, InodeId, Result, SessionId};
use wire::{Number, StorageReply};

use crate::convert;

/// How long a file stays closed after a start for the sake of changes that were begun before.
/// Clients come back within a second or two; what others ask meanwhile must be answered within the
/// shortest time-outs that people choose.
const REPEAT_LIMIT: Duration = Duration::from_secs(5);

/// How long a lane is remembered for sure after its last change: longer than any request is
/// repeated.
const KEEP: Duration = Duration::from_secs(3600);

/// Rows of a target: each writer of shared files has as many lanes as it has such writes in flight.
/// 4 MiB of file.
const MAX_ROWS: u32 = 65_536;

/// How often who waits for a closed file looks whether the time is over.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

type Lane = (SessionId, u32);

/// What one target remembers.
pub(crate) struct Once {
    lanes: Mutex<Lanes>,
    /// Changes that were begun by the process before and haven't been repeated. Looked at by every
    /// request, without a lock.
    unsettled: AtomicUsize,
    /// Set and taken back whenever a change has ended or been given up.
    changed: Event,
}

struct Lanes {
    last: BTreeMap<Lane, Change>,
    /// Places of rows that were used and aren't any more, and the first that never was.
    free: Vec<u32>,
    fresh: u32,
    /// When the wait for changes that were begun before is over; set when clients are let in.
    deadline_ns: u64,
}

/// The last change of a lane.
struct Change {
    sequence: u32,
    place: u32,
    ino: InodeId,
    stage: Stage,
    /// It was begun by the process before, and its file is closed to others.
    inherited: bool,
    /// Its row was there at the start.
    found: bool,
    used_ns: u64,
}

#[derive(Clone)]
enum Stage {
    /// It was begun by the process before and hasn't been repeated.
    Begun,
    Running,
    Done(Result<()>),
    /// Nobody knows whether it was done, and it won't be done any more.
    Abandoned,
}

/// By whose word a change begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// What is remembered here holds.
    Own,
    /// It holds what the primary says, who has done the change.
    Primary,
}

/// What is to be done about a change.
pub(crate) enum Turn<'a> {
    /// It is to be done.
    Do(Doing<'a>),
    /// It was done before, with this answer.
    Answered(Result<()>),
    /// The disk doesn't take the row. Nothing has begun, and it may be tried again.
    Unwritten(chunkstore::StoreError),
}

/// A change that is being done. Dropped without an end it is abandoned.
pub(crate) struct Doing<'a> {
    once: &'a Once,
    rows: &'a Rows,
    lane: Lane,
    sequence: u32,
    place: u32,
    ino: InodeId,
}

impl Once {
    /// What the process before has left, but for sessions that were ended.
    pub(crate) fn of(store: &Store, is_ended: impl Fn(SessionId) -> bool) -> Once {
        let mut lanes = Lanes { last: BTreeMap::new(), free: Vec::new(), fresh: 0, deadline_ns: u64::MAX };
        let now_ns = rt::monotonic_ns();
        for (place, row) in store.recent().take_found() {
            let Some((lane, change)) = decoded(place, &row, now_ns) else { continue };
            lanes.fresh = lanes.fresh.max(place + 1);
            // A row that was given away and not used again may be older than the lane's own.
            let is_newest = lanes.last.get(&lane).is_none_or(|other| other.sequence < change.sequence);
            if is_newest && !is_ended(lane.0) {
                lanes.last.insert(lane, change);
            }
        }
        let used: HashSet<u32> = lanes.last.values().map(|change| change.place).collect();
        lanes.free = (0..lanes.fresh).filter(|place| !used.contains(place)).collect();
        let unsettled = AtomicUsize::new(lanes.last.values().filter(|change| change.inherited).count());
        Once { lanes: Mutex::new(lanes), unsettled, changed: Event::new() }
    }

    /// Clients are let in: those whose changes were begun before have [`REPEAT_LIMIT`] from now.
    pub(crate) fn open(&self) {
        self.lanes.lock().deadline_ns = rt::monotonic_ns() + REPEAT_LIMIT.as_nanos() as u64;
    }

    /// Whether requests have to ask [`Once::wait_for`].
    pub(crate) fn has_closed_files(&self) -> bool {
        self.unsettled.load(Ordering::Acquire) > 0
    }

    /// Waits until a file is open to a request. `own`: the number by which it may be what the file
    /// waits for.
    pub(crate) async fn wait_for(
        &self,
        rows: &Rows,
        session: SessionId,
        ino: InodeId,
        own: Option<Number>,
    ) -> Result<()> {
        loop {
            let overdue = {
                let mut lanes = self.lanes.lock();
                if own.is_some_and(|number| lanes.expects(session, number)) || !lanes.is_closed(ino) {
                    return Ok(());
                }
                // Cleared under the lock under which a change ends.
                self.changed.clear();
                if rt::monotonic_ns() < lanes.deadline_ns { Vec::new() } else { lanes.abandon(ino) }
            };
            for (lane, change) in &overdue {
                tracing::warn!(
                    session = lane.0.0, %ino,
                    "a client hasn't repeated a write that was under way when this service ended; it will be told so"
                );
                let row = encoded(*lane, change.sequence, ino, &Stage::Abandoned);
                rows.write(change.place, &row).await.map_err(|e| convert::error(&e))?;
            }
            if overdue.is_empty() {
                // The time is looked at now and then.
                rt::timeout(LOOK_INTERVAL, self.changed.wait()).await;
            } else {
                self.settled(overdue.len());
            }
        }
    }

    /// What a change was answered that was done before.
    pub(crate) fn answer(&self, session: SessionId, number: Number) -> Option<Result<()>> {
        let lanes = self.lanes.lock();
        let last = lanes.last.get(&(session, number.lane)).filter(|last| last.sequence == number.sequence)?;
        if let Stage::Done(answer) = &last.stage { Some(answer.clone()) } else { None }
    }

    /// What a change is answered that was done before: by the process before, the power may have
    /// taken its data and left its row.
    pub(crate) fn again(&self, store: &Store, session: SessionId, number: Number) -> StorageReply {
        let lanes = self.lanes.lock();
        let is_found = lanes.last.get(&(session, number.lane)).is_some_and(|last| last.found);
        StorageReply::Done { verifier: if is_found { store.past_verifier() } else { store.verifier() } }
    }

    /// Begins a change, or finds that it was done before. The row is written when this returns.
    pub(crate) async fn begin<'a>(
        &'a self,
        rows: &'a Rows,
        session: SessionId,
        number: Number,
        ino: InodeId,
    ) -> Result<Turn<'a>> {
        self.begin_by(Word::Own, rows, session, number, ino).await
    }

    async fn begin_by<'a>(
        &'a self,
        word: Word,
        rows: &'a Rows,
        session: SessionId,
        number: Number,
        ino: InodeId,
    ) -> Result<Turn<'a>> {
        let lane = (session, number.lane);
        let place = loop {
            let waiting = {
                let mut lanes = self.lanes.lock();
                match lanes.last.get(&lane).map(|change| (change.sequence, change.stage.clone())) {
                    Some((sequence, stage)) if sequence == number.sequence => match stage {
                        Stage::Begun => break lanes.begin(lane, number, ino)?,
                        Stage::Abandoned | Stage::Done(Err(_)) if word == Word::Primary => {
                            break lanes.begin(lane, number, ino)?;
                        }
                        Stage::Done(answer) => return Ok(Turn::Answered(answer)),
                        Stage::Abandoned => return Err(unknown_outcome()),
                        // The copy that came before over a connection that is ended.
                        Stage::Running => {
                            self.changed.clear();
                            self.changed.wait()
                        }
                    },
                    Some((sequence, _)) if sequence > number.sequence => return Err(outdated()),
                    _ => break lanes.begin(lane, number, ino)?,
                }
            };
            // Another waiter may have taken the event back.
            rt::timeout(LOOK_INTERVAL, waiting).await;
        };
        let doing = Doing { once: self, rows, lane, sequence: number.sequence, place, ino };
        match doing.write(&Stage::Running).await {
            Ok(()) => Ok(Turn::Do(doing)),
            Err(error) => {
                doing.withdraw();
                Ok(Turn::Unwritten(error))
            }
        }
    }

    /// A session has been ended, and none of its requests runs: what it began won't be repeated.
    pub(crate) fn forget(&self, session: SessionId) {
        let mut lanes = self.lanes.lock();
        let ended: Vec<Lane> = lanes.last.keys().filter(|lane| lane.0 == session).copied().collect();
        let mut inherited = 0;
        for lane in ended {
            let Some(change) = lanes.last.remove(&lane) else { continue };
            lanes.free.push(change.place);
            inherited += usize::from(change.inherited);
        }
        drop(lanes);
        self.settled(inherited);
    }

    /// What is remembered here holds no more: this copy has missed something, and who brings it in
    /// step says what was done.
    pub(crate) fn forget_all(&self) {
        let mut lanes = self.lanes.lock();
        let over: Vec<Lane> = lanes
            .last
            .iter()
            .filter(|(_, change)| !matches!(change.stage, Stage::Running))
            .map(|(lane, _)| *lane)
            .collect();
        let mut inherited = 0;
        for lane in over {
            let Some(change) = lanes.last.remove(&lane) else { continue };
            lanes.free.push(change.place);
            inherited += usize::from(change.inherited);
        }
        drop(lanes);
        self.settled(inherited);
    }

    /// The last changes of all lanes that were done and may be repeated yet.
    pub(crate) fn done(&self) -> Vec<(SessionId, Number, InodeId)> {
        let (now_ns, keep_ns) = (rt::monotonic_ns(), KEEP.as_nanos() as u64);
        let lanes = self.lanes.lock();
        let is_done = |change: &Change| {
            matches!(change.stage, Stage::Done(Ok(()))) && now_ns.saturating_sub(change.used_ns) <= keep_ns
        };
        let done = lanes.last.iter().filter(|(_, change)| is_done(change));
        done.map(|((session, lane), change)| {
            (*session, Number { lane: *lane, sequence: change.sequence }, change.ino)
        })
        .collect()
    }

    /// Remembers a change as done that was done elsewhere, unless a later one of its lane is known.
    /// What became of it here doesn't matter: it may have been given up, or have failed, when this
    /// copy had missed something already.
    pub(crate) async fn adopt(
        &self,
        rows: &Rows,
        session: SessionId,
        number: Number,
        ino: InodeId,
    ) -> Result<()> {
        match self.begin_by(Word::Primary, rows, session, number, ino).await {
            Ok(Turn::Do(doing)) => {
                doing.note_done().await.map_err(|e| convert::error(&e))?;
                doing.end(Ok(())).await
            }
            Ok(Turn::Answered(_)) => Ok(()),
            Ok(Turn::Unwritten(error)) => Err(convert::error(&error)),
            Err(error) if error.errno == OUTDATED => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// So many of the changes that were begun before are settled; others look how it stands.
    fn settled(&self, inherited: usize) {
        self.unsettled.fetch_sub(inherited, Ordering::AcqRel);
        self.changed.set();
    }
}

impl Lanes {
    fn is_closed(&self, ino: InodeId) -> bool {
        self.last.values().any(|change| change.inherited && change.ino == ino)
    }

    /// Whether a number is one that a file is closed for.
    fn expects(&self, session: SessionId, number: Number) -> bool {
        self.last
            .get(&(session, number.lane))
            .is_some_and(|change| change.inherited && change.sequence <= number.sequence)
    }

    /// Gives up what was begun before in a file and isn't being repeated.
    fn abandon(&mut self, ino: InodeId) -> Vec<(Lane, Overdue)> {
        let mut abandoned = Vec::new();
        for (lane, change) in &mut self.last {
            if change.inherited && change.ino == ino && matches!(change.stage, Stage::Begun) {
                change.stage = Stage::Abandoned;
                change.inherited = false;
                abandoned.push((*lane, Overdue { sequence: change.sequence, place: change.place }));
            }
        }
        abandoned
    }

    /// Notes that a change runs; gives the place of its row.
    fn begin(&mut self, lane: Lane, number: Number, ino: InodeId) -> Result<u32> {
        let now_ns = rt::monotonic_ns();
        let known = self.last.get(&lane).map(|change| (change.place, change.inherited));
        let (place, inherited) = match known {
            Some(known) => known,
            None => (self.place(now_ns)?, false),
        };
        let (sequence, stage) = (number.sequence, Stage::Running);
        let change = Change { sequence, place, ino, stage, inherited, found: false, used_ns: now_ns };
        self.last.insert(lane, change);
        Ok(place)
    }

    fn place(&mut self, now_ns: u64) -> Result<u32> {
        if let Some(place) = self.free.pop() {
            return Ok(place);
        }
        if self.fresh < MAX_ROWS {
            self.fresh += 1;
            return Ok(self.fresh - 1);
        }
        let keep_ns = KEEP.as_nanos() as u64;
        let is_old = |change: &Change| {
            matches!(change.stage, Stage::Done(_) | Stage::Abandoned)
                && now_ns.saturating_sub(change.used_ns) > keep_ns
        };
        let old: Vec<Lane> =
            self.last.iter().filter(|(_, change)| is_old(change)).map(|(lane, _)| *lane).collect();
        for lane in old {
            self.free.extend(self.last.remove(&lane).map(|change| change.place));
        }
        self.free.pop().ok_or_else(|| {
            let message = format!("{MAX_ROWS} writes to shared files were made side by side within an hour");
            Error::new(Errno::EBUSY, message).hint("let fewer clients write the same files at a time")
        })
    }
}

/// A change that nobody repeats.
struct Overdue {
    sequence: u32,
    place: u32,
}

impl Doing<'_> {
    /// To be done when the data is written, before anybody can read it.
    pub(crate) async fn note_done(&self) -> chunkstore::Result<()> {
        self.write(&Stage::Done(Ok(()))).await
    }

    /// Remembers how it ended.
    pub(crate) async fn end(self, answer: Result<()>) -> Result<()> {
        if answer.is_err() {
            // What it left may be seen, so it must not be tried again after a start either. A row
            // that can't be written leaves it as begun.
            let noted = self.write(&Stage::Done(answer.clone())).await;
            noted.unwrap_or_else(|e| tracing::warn!(ino = %self.ino, "a failed write can't be noted: {e}"));
        }
        self.finish(Stage::Done(answer.clone()));
        answer
    }

    /// It hasn't begun: whoever sends it again begins it.
    fn withdraw(self) {
        let mut lanes = self.once.lanes.lock();
        if let Some(change) = lanes.last.get_mut(&self.lane).filter(|last| last.sequence == self.sequence) {
            if change.inherited {
                change.stage = Stage::Begun;
            } else {
                lanes.last.remove(&self.lane);
                lanes.free.push(self.place);
            }
        }
        drop(lanes);
        self.once.changed.set();
    }

    /// Another one is the primary by now, and decides whether it takes place: nothing of it is
    /// remembered here, as of what had ended when this copy went out of step.
    pub(crate) fn leave(self) {
        let mut lanes = self.once.lanes.lock();
        let is_it = |last: &Change| last.sequence == self.sequence && matches!(last.stage, Stage::Running);
        let mut inherited = 0;
        if lanes.last.get(&self.lane).is_some_and(is_it)
            && let Some(change) = lanes.last.remove(&self.lane)
        {
            lanes.free.push(change.place);
            inherited = usize::from(change.inherited);
        }
        drop(lanes);
        self.once.settled(inherited);
    }

    async fn write(&self, stage: &Stage) -> chunkstore::Result<()> {
        self.rows.write(self.place, &encoded(self.lane, self.sequence, self.ino, stage)).await
    }

    fn finish(&self, stage: Stage) {
        let mut lanes = self.once.lanes.lock();
        let Some(change) = lanes.last.get_mut(&self.lane) else { return };
        if change.sequence != self.sequence || !matches!(change.stage, Stage::Running) {
            return;
        }
        change.stage = stage;
        let inherited = usize::from(std::mem::take(&mut change.inherited));
        drop(lanes);
        self.once.settled(inherited);
    }
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        self.finish(Stage::Abandoned);
    }
}

fn unknown_outcome() -> Error {
    Error::new(Errno::EIO, "the storage service was started anew during a write that was repeated too late")
        .hint("nobody knows whether the data was written: write it again, or look")
}

/// Not `ESTALE`: by that a client knows that its session has been ended.
const OUTDATED: Errno = Errno::EPROTO;

fn outdated() -> Error {
    Error::new(OUTDATED, "a change was sent again after its client had gone on to a later one")
        .hint("this is a mistake in weft, or somebody sends recorded requests")
}

// A row: session 8, lane 4, sequence 4, inode 8, stage 4, errno 4.

const BEGUN: u32 = 1;
const DONE: u32 = 2;
const ABANDONED: u32 = 3;

fn encoded((session, lane): Lane, sequence: u32, ino: InodeId, stage: &Stage) -> Bytes {
    let (stage, errno) = match stage {
        Stage::Begun | Stage::Running => (BEGUN, 0),
        Stage::Done(Ok(())) => (DONE, 0),
        Stage::Done(Err(error)) => (DONE, error.errno.0),
        Stage::Abandoned => (ABANDONED, 0),
    };
    let mut row = [0; ROW_BYTES];
    row[0..8].copy_from_slice(&session.0.to_le_bytes());
    row[8..12].copy_from_slice(&lane.to_le_bytes());
    row[12..16].copy_from_slice(&sequence.to_le_bytes());
    row[16..24].copy_from_slice(&ino.0.to_le_bytes());
    row[24..28].copy_from_slice(&stage.to_le_bytes());
    row[28..32].copy_from_slice(&errno.to_le_bytes());
    row
}

fn decoded(place: u32, row: &Bytes, now_ns: u64) -> Option<(Lane, Change)> {
    fn field<const N: usize>(row: &Bytes, at: usize) -> [u8; N] {
        row[at..at + N].try_into().expect("fields lie within the row")
    }
    let word = |at| u32::from_le_bytes(field(row, at));
    let long = |at| u64::from_le_bytes(field(row, at));
    let stage = match (word(24), word(28) as i32) {
        (BEGUN, _) => Stage::Begun,
        (DONE, 0) => Stage::Done(Ok(())),
        (DONE, errno) => {
            Stage::Done(Err(Error::new(Errno(errno), "the write failed when it was sent first")))
        }
        (ABANDONED, _) => Stage::Abandoned,
        _ => return None,
    };
    let inherited = matches!(stage, Stage::Begun);
    let (sequence, ino) = (word(12), InodeId(long(16)));
    let change = Change { sequence, place, ino, stage, inherited, found: true, used_ns: now_ns };
    Some(((SessionId(long(0)), word(8)), change))
}

#[cfg(test)]
mod tests;
