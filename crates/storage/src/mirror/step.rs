//! Bringing a member in step: what may differ is sent to it, each piece while nobody changes it.

use super::pace::Pace;
use super::primary::{WHOLE, fallen};
use super::progress::Tracked;
use super::ranges::Hold;
use super::replica::Replica;
use super::{Mirrors, turns};
use chunkstore::{IoPath, Seek, Store};
use rt::IoBuf;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{BLOCK_SIZE, ByteRange, Epoch, Errno, Error, InodeId, MemberState, Result, TargetId};
use wire::{Allocate, InGroup, MAX_REGIONS, Part, Path, Regions, StorageOp, StorageReply, StorageRequest};

/// Data sent at a time, bytes: as long as this takes, writes of the piece wait.
const PIECE_BYTES: u64 = 1 << 20;

/// Pieces on their way at a time: so that the disk of one side works while the other's does.
const PIECES_AT_ONCE: usize = 4;

/// How often it is looked whether the settings are others, while nothing may be sent.
const SETTINGS_POLL: Duration = Duration::from_millis(200);

/// Why nothing is sent, for people.
const PAUSED: &str = "it is paused (weft group resync resume)";

/// Files looked at at a time that may be gone here.
const FILES_AT_ONCE: usize = 64;

/// Numbers of changes told at a time.
const NUMBERS_AT_ONCE: usize = 64;

/// What is to be sent, by file.
type Work = BTreeMap<InodeId, Vec<ByteRange>>;

/// One member that is brought in step.
pub(super) struct Step<'a> {
    pub(super) mirrors: &'a Arc<Mirrors>,
    pub(super) replica: &'a Replica,
    pub(super) member: TargetId,
    /// The version of the group in which that began, and what the member is since then.
    since: Epoch,
    state: MemberState,
    tracked: Tracked<'a>,
    pace: Pace,
    sent: std::cell::Cell<u64>,
}

/// Brings a member in step, from telling management so to its being good.
pub(super) async fn run(mirrors: &Arc<Mirrors>, replica: &Replica, member: TargetId) -> Result<()> {
    let before = mirrors.primary_view(replica)?;
    let Some(state) = before.group()?.state_of(member) else {
        return Err(turns::another_version(replica.group));
    };
    let to = match state {
        MemberState::Good => return Ok(()),
        MemberState::NeedsResync | MemberState::Resyncing => MemberState::Resyncing,
        MemberState::Bad | MemberState::Rebuilding => MemberState::Rebuilding,
    };
    let mut since = before.group()?.since;
    if state == to {
        // An attempt was given up. What it sent may come late yet: only under another version it is refused.
        mirrors.decide(replica, since, member, fallen(to), "bringing it in step was cut short").await;
        since = mirrors.since(replica.group);
    }
    mirrors.decide(replica, since, member, to, "its primary brings it in step").await;
    let view = mirrors.primary_view(replica)?;
    let group = view.group()?;
    if group.since <= before.group()?.since || group.state_of(member) != Some(to) {
        return Err(turns::another_version(replica.group));
    }
    let now_ns = rt::monotonic_ns();
    let step = Step {
        mirrors,
        replica,
        member,
        since: group.since,
        state: to,
        tracked: mirrors.progress.begin(replica.group, member, now_ns),
        pace: Pace::new(now_ns),
        sent: std::cell::Cell::new(0),
    };
    let outcome = step.send_everything(to == MemberState::Rebuilding).await;
    let (state, reason) = match &outcome {
        Ok(()) => (MemberState::Good, "it is in step".to_string()),
        Err(error) => (fallen(to), error.message.to_string()),
    };
    // Unless it is somebody else's by now, or out already.
    let view = mirrors.primary_view(replica)?;
    let group = view.group()?;
    if group.state_of(member) == Some(to) {
        mirrors.decide(replica, group.since, member, state, &reason).await;
    }
    outcome
}

impl Step<'_> {
    async fn send_everything(&self, is_rebuilt: bool) -> Result<()> {
        // Changes that don't go to the member have ended then, and are noted here.
        self.replica.sequences.older_ended(self.since).await;
        let work = self.work(is_rebuilt).await?;
        let bytes = self.count(&work).await?;
        self.tracked.counted(work.len() as u64, bytes);
        tracing::info!(
            group = %self.replica.group, target_id = %self.member, files = work.len(), bytes,
            "a member of a group is brought in step"
        );
        let mut here = Vec::new();
        for some in work.into_iter().collect::<Vec<_>>().chunks(FILES_AT_ONCE) {
            here.extend(self.only_here(some).await?);
        }
        for (ino, ranges) in here {
            self.file(ino, ranges).await?;
        }
        self.numbers().await?;
        self.ask(InodeId(0), StorageOp::SyncTarget, None).await?;
        tracing::info!(
            group = %self.replica.group, target_id = %self.member, bytes_moved = self.sent.get(),
            "a member of a group is in step"
        );
        Ok(())
    }

    /// What may differ, by the notes of both or because nobody has notes.
    async fn work(&self, is_rebuilt: bool) -> Result<Work> {
        let store = &self.replica.store;
        let mut which = if is_rebuilt || store.notes_overflowed() { Regions::All } else { Regions::Noted };
        let mut work = Work::new();
        if which == Regions::Noted {
            match self.theirs(which, &mut work).await {
                Err(error) if error.errno == Errno::EOVERFLOW => which = Regions::All,
                told => told?,
            }
        }
        if which == Regions::All {
            self.theirs(which, &mut work).await?;
        }
        self.ours(which, &mut work).await?;
        if which == Regions::Noted && store.notes_overflowed() {
            // While it was asked for: what is missing is in neither list.
            self.theirs(Regions::All, &mut work).await?;
            self.ours(Regions::All, &mut work).await?;
        }
        work.values_mut().for_each(|ranges| *ranges = merged(std::mem::take(ranges)));
        Ok(work)
    }

    async fn ours(&self, which: Regions, work: &mut Work) -> Result<()> {
        let store = &self.replica.store;
        let mut from = Some(InodeId(0));
        while let Some(at) = from {
            let (regions, next) = match which {
                Regions::Noted => store.noted(at, MAX_REGIONS).await,
                Regions::All => store
                    .files(at, MAX_REGIONS)
                    .await
                    .map(|(files, next)| (files.into_iter().map(|ino| (ino, WHOLE)).collect(), next)),
            }
            .map_err(|error| self.replica.failed(&error))?;
            add(work, regions);
            from = next;
        }
        Ok(())
    }

    async fn theirs(&self, which: Regions, work: &mut Work) -> Result<()> {
        let mut from = Some(InodeId(0));
        while let Some(at) = from {
            let op = StorageOp::Regions { from: at, which };
            let StorageReply::Regions { regions, next } = self.ask(InodeId(0), op, None).await? else {
                return Err(Error::new(Errno::EPROTO, "a member answered out of turn")
                    .hint("install the same version of weft on all machines"));
            };
            add(work, regions);
            from = next;
        }
        Ok(())
    }

    /// Bytes that there are to send, at most.
    async fn count(&self, work: &Work) -> Result<u64> {
        let mut bytes = 0;
        for (ino, ranges) in work {
            let len = self.len(*ino).await?;
            bytes += ranges.iter().map(|range| range.intersect(ByteRange::new(0, len)).len()).sum::<u64>();
        }
        Ok(bytes)
    }

    async fn len(&self, ino: InodeId) -> Result<u64> {
        let stat = self.replica.store.stat(ino).await;
        stat.map(|stat| stat.len).map_err(|error| self.replica.failed(&error))
    }

    /// Removes there what isn't here, and gives the rest. After a crash the notes name many files that have never been.
    async fn only_here(&self, some: &[(InodeId, Vec<ByteRange>)]) -> Result<Work> {
        let mut here = Work::new();
        let mut gone = Vec::new();
        for (ino, ranges) in some {
            if self.is_here(*ino).await? {
                here.insert(*ino, ranges.clone());
            } else {
                gone.push(self.file(*ino, ranges.clone()));
            }
        }
        rt::join_all(gone).await.into_iter().collect::<Result<()>>()?;
        Ok(here)
    }

    async fn is_here(&self, ino: InodeId) -> Result<bool> {
        let path = Store::chunk_file_path(self.replica.store.dir(), ino);
        match rt::File::open(&path, rt::OpenOptions { read: true, ..Default::default() }).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                let message =
                    format!("target {}: can't open {}: {error}", self.replica.target, path.display());
                Err(Error::new(Errno::EIO, message)
                    .hint("look for disk errors in the kernel log of its node"))
            }
        }
    }

    /// One file: that it is there or not, its length, and what is in the ranges.
    async fn file(&self, ino: InodeId, ranges: Vec<ByteRange>) -> Result<()> {
        let replica = self.replica;
        self.rest().await?;
        let is_there = {
            let _held = replica.ranges.acquire(ino, WHOLE, Hold::Alone).await;
            let is_there = self.is_here(ino).await?;
            let op = match is_there {
                true => StorageOp::Truncate { len: self.len(ino).await? },
                false => StorageOp::Delete,
            };
            self.ask(ino, op, None).await?;
            is_there
        };
        if is_there {
            for range in ranges {
                self.range(ino, range).await?;
            }
        }
        self.tracked.file_done(0);
        Ok(())
    }

    /// A range of a file, piece by piece.
    async fn range(&self, ino: InodeId, range: ByteRange) -> Result<()> {
        let mut at = range.start;
        loop {
            let end = range.end.min(self.len(ino).await?);
            if at >= end {
                return Ok(());
            }
            at = self.hole(ino, ByteRange::new(at, end)).await?;
            let mut pieces = Vec::new();
            while at < end && pieces.len() < PIECES_AT_ONCE {
                // On borders of pieces, so that all but the first are whole.
                let next = (at / PIECE_BYTES + 1) * PIECE_BYTES;
                pieces.push(ByteRange::new(at, next.min(end)));
                at = next.min(end);
            }
            let sent = rt::join_all(pieces.iter().map(|piece| self.piece(ino, *piece)).collect()).await;
            sent.into_iter().collect::<Result<()>>()?;
            self.rest().await?;
        }
    }

    /// Makes a hole there where there is one here at the beginning of a range, however long it is; gives its end.
    async fn hole(&self, ino: InodeId, range: ByteRange) -> Result<u64> {
        let data = async |from| {
            let found = self.replica.store.seek(ino, from, Seek::Data).await;
            let found = found.map_err(|error| self.replica.failed(&error))?;
            Ok::<u64, Error>(found.unwrap_or(u64::MAX).min(range.end))
        };
        let block = BLOCK_SIZE as u64;
        // In whole blocks; what is less is sent as the zeros that it is.
        let end = |data: u64| if data == range.end { data } else { data / block * block };
        let seen = end(data(range.start).await?);
        if seen < range.start + PIECE_BYTES && seen < range.end {
            return Ok(range.start);
        }
        let hole = ByteRange::new(range.start, seen);
        let _held = self.replica.ranges.acquire(ino, hole, Hold::Shared).await;
        if end(data(range.start).await?) < hole.end {
            return Ok(range.start);
        }
        self.ask(ino, StorageOp::Allocate { range: hole, how: Allocate::Punch }, None).await?;
        self.tracked.moved(0, hole.len(), rt::monotonic_ns());
        Ok(hole.end)
    }

    /// Sends a piece while nobody changes it.
    async fn piece(&self, ino: InodeId, piece: ByteRange) -> Result<()> {
        let replica = self.replica;
        let _held = replica.ranges.acquire(ino, piece, Hold::Shared).await;
        let now = piece.intersect(ByteRange::new(0, self.len(ino).await?));
        if !now.is_empty() {
            let buf = IoBuf::alloc(now.len() as usize);
            let read = replica.store.read(ino, now.start, &buf, IoPath::Direct).await;
            read.map_err(|error| replica.failed(&error))?;
            let op = StorageOp::Write { offset: now.start, path: Path::Direct, durable: false };
            self.ask(ino, op, Some(buf)).await?;
        }
        self.sent.set(self.sent.get() + now.len());
        self.pace.sent(now.len());
        self.tracked.moved(now.len(), piece.len(), rt::monotonic_ns());
        Ok(())
    }

    /// Waits until what was sent is no more than the settings allow, and while they say that nothing is sent.
    async fn rest(&self) -> Result<()> {
        loop {
            let map = self.mirrors.map();
            let (settings, now_ns) = (&map.settings.resync, rt::monotonic_ns());
            if settings.paused {
                self.tracked.hindered(Some(PAUSED));
                self.require_wanted()?;
                rt::sleep(SETTINGS_POLL).await;
                self.pace.pass(rt::monotonic_ns());
                continue;
            }
            self.tracked.hindered(None);
            let rate = self.pace.rate(settings, self.tracked.bytes_left(), now_ns);
            match self.pace.rest_ns(rate, now_ns) {
                0 => return Ok(()),
                ns => rt::sleep(Duration::from_nanos(ns).min(SETTINGS_POLL)).await,
            }
        }
    }

    /// Refuses to go on with a member that is to be brought in step otherwise by now, or not at all.
    fn require_wanted(&self) -> Result<()> {
        let view = self.mirrors.primary_view(self.replica)?;
        match view.group()?.state_of(self.member) == Some(self.state) {
            true => Ok(()),
            false => Err(turns::another_version(self.replica.group)),
        }
    }

    /// Tells which numbered changes were done, so that the member doesn't do them again if it is the primary one day.
    async fn numbers(&self) -> Result<()> {
        let done = self.replica.once.done();
        for some in done.chunks(NUMBERS_AT_ONCE) {
            let tell = |(session, number, ino): &(types::SessionId, wire::Number, InodeId)| {
                let op = StorageOp::Write { offset: 0, path: Path::Cached, durable: false };
                let request = StorageRequest {
                    number: Some(*number),
                    group: Some(self.in_group()),
                    ..StorageRequest::new(*session, self.member, *ino, op)
                };
                self.mirrors.send(request, Some(IoBuf::alloc(0)))
            };
            let told = rt::join_all(some.iter().map(tell).collect()).await;
            told.into_iter().collect::<Result<Vec<_>>>()?;
        }
        Ok(())
    }

    /// Another member's going makes a new version, in which this one is brought in step as before. When it has gone itself, the old version is refused.
    fn in_group(&self) -> InGroup {
        let view = self.mirrors.view(self.replica.group);
        let now = view.map.group(self.replica.group).filter(|group| {
            group.primary() == Some(self.replica.target) && group.state_of(self.member) == Some(self.state)
        });
        let since = now.map_or(self.since, |group| group.since);
        InGroup { group: self.replica.group, since, part: Part::Resync }
    }

    async fn ask(&self, ino: InodeId, op: StorageOp, payload: Option<IoBuf>) -> Result<StorageReply> {
        self.mirrors.ask_member(self.member, (ino, op), self.in_group(), payload).await
    }
}

fn add(work: &mut Work, regions: Vec<(InodeId, ByteRange)>) {
    for (ino, range) in regions {
        work.entry(ino).or_default().push(range);
    }
}

/// The same bytes as ranges that don't touch, in order.
fn merged(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<ByteRange> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sent_once() {
        let range = |start, end| ByteRange::new(start, end);
        assert_eq!(
            merged(vec![range(5, 9), range(0, 5), range(20, 30), range(7, 8)]),
            [range(0, 9), range(20, 30)]
        );
    }
}
