//! Striped transfers: assigns bytes to targets and transfers to all targets concurrently.

use super::ChunkFiles;
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::content::LengthBounds;
use rt::IoBuf;
use std::time::Duration;
use types::{
    ByteRange, ChunkFileId, Errno, Error, Group, GroupId, InodeId, Layout, Result, Scheme, TargetId,
    TargetState, Timestamp,
};
use wire::{DataPath, LeaseMode, StorageOp, StorageReply};

/// Longest wait for a group that isn't in the map yet. A file may migrate to a group that was just
/// created, and all clients get a map within seconds. A request to a removed group fails after this
/// time.
const MAP_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the map is checked meanwhile.
const MAP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Options of a write to chunks.
#[derive(Clone, Copy)]
pub(crate) struct ChunkWrite {
    pub(crate) path: DataPath,
    pub(crate) durable: bool,
    /// The lease that covers the write.
    pub(crate) lease: LeaseMode,
}

/// A file's layout, and the known lengths of its chunk files.
#[derive(Clone, Copy)]
pub(crate) struct Chunked<'a> {
    pub(crate) layout: &'a Layout,
    length_bounds: &'a [u64],
}

impl<'a> Chunked<'a> {
    pub(crate) fn new(layout: &'a Layout, known: &'a LengthBounds) -> Chunked<'a> {
        Chunked { layout, length_bounds: known.as_ref().map_or(&[], |known| known.as_slice()) }
    }

    /// For chunk files of unknown length.
    pub(crate) fn unknown(layout: &'a Layout) -> Chunked<'a> {
        Chunked { layout, length_bounds: &[] }
    }

    /// Returns `under` for a request about the chunk file of a stripe.
    fn under(&self, under: LeaseContext, stripe: usize) -> LeaseContext {
        LeaseContext { known_len: layout::length_bounds::of_stripe(self.length_bounds, stripe), ..under }
    }
}

/// Allocated space and lengths of a file's chunk files.
pub(crate) struct Allocated {
    /// Blocks of 512 bytes, in total.
    pub(crate) blocks: u64,
    /// Lengths in bytes, in stripe order; 0 where unknown.
    pub(crate) lens: Vec<u64>,
}

/// What a file's chunk files report.
pub(crate) struct Measured {
    /// End of the file, as far as its chunks reach.
    pub(crate) end: u64,
    /// Allocated blocks of 512 bytes.
    pub(crate) blocks: u64,
    /// Latest mtime of the chunk files.
    pub(crate) mtime: Timestamp,
}

/// Where a chunk file is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ChunkLocation {
    /// On this target.
    Target(TargetId),
    /// On the members of this mirrored group; requests go to its current primary.
    Group(GroupId),
}

/// How often a transfer may be executed.
#[derive(Clone, Copy)]
enum Execution {
    Repeatable,
    Once,
}

impl ChunkFiles {
    /// Returns the chunk location for a group.
    ///
    /// # Errors
    /// `EIO` if the group is lost, or not in the map.
    pub(crate) fn chunk_location(&self, group: GroupId) -> Result<ChunkLocation> {
        let map = self.map.load();
        let Some(known) = map.group(group) else {
            return Err(Error::new(Errno::EIO, format!("group {group} is not in the cluster map"))
                .hint("weft target list shows the targets and groups"));
        };
        known.ensure_not_lost()?;
        Ok(match known.members[..] {
            [target, ..] if known.scheme == Scheme::Single => ChunkLocation::Target(target),
            _ => ChunkLocation::Group(group),
        })
    }

    /// Whether the content of a group is lost.
    pub(crate) fn is_lost(&self, group: GroupId) -> bool {
        let map = self.map.load();
        map.group(group).is_some_and(Group::is_lost)
    }

    /// Refuses a change of all chunk files of a file of which some are lost, before anything is
    /// changed.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn ensure_none_is_lost(&self, layout: &Layout) -> Result<()> {
        match layout.groups.iter().find(|group| self.is_lost(**group)) {
            Some(lost) => self.chunk_location(*lost).map(drop),
            None => Ok(()),
        }
    }

    /// Like [`ChunkFiles::chunk_location`], but waits for a group that isn't in the map yet.
    pub(crate) async fn location_when_known(&self, group: GroupId) -> Result<ChunkLocation> {
        let until_ns = rt::monotonic_ns() + MAP_TIMEOUT.as_nanos() as u64;
        loop {
            match self.chunk_location(group) {
                Err(error) if self.is_lost(group) => return Err(error),
                Err(_) if rt::monotonic_ns() < until_ns && self.session.end_cause().is_none() => {
                    rt::sleep(MAP_CHECK_INTERVAL).await
                }
                known => return known,
            }
        }
    }

    async fn transfer(
        &self,
        under: LeaseContext,
        (chunk_file, group): (ChunkFileId, GroupId),
        op: StorageOp,
        buf: IoBuf,
        execution: Execution,
    ) -> Result<()> {
        let destination = (self.location_when_known(group).await?, chunk_file);
        let reply = match execution {
            Execution::Repeatable => self.send(under, destination, op, Some(buf)).await,
            Execution::Once => self.send_once(under, destination, op, Some(buf)).await,
        };
        reply.map(drop)
    }

    /// Fills `buf` from `offset` of the file.
    pub(crate) async fn read_chunks(
        &self,
        under: LeaseContext,
        chunked: Chunked<'_>,
        offset: u64,
        buf: IoBuf,
        path: DataPath,
    ) -> Result<()> {
        let read = |local| StorageOp::Read { offset: local, path };
        self.pieces(under, chunked, offset, buf, read, Execution::Repeatable).await
    }

    /// Writes `buf` at `offset` of the file, under a lease.
    pub(crate) async fn write_chunks(
        &self,
        under: LeaseContext,
        chunked: Chunked<'_>,
        offset: u64,
        buf: IoBuf,
        how: ChunkWrite,
    ) -> Result<()> {
        let ChunkWrite { path, durable, lease } = how;
        // Under an exclusive lease, no other session reads the data before the lease is given back,
        // which waits for the write.
        let execution = if lease == LeaseMode::Shared { Execution::Once } else { Execution::Repeatable };
        let write = |local| StorageOp::Write { offset: local, path, durable };
        self.pieces(under, chunked, offset, buf, write, execution).await
    }

    /// Transfers each piece of the buffer, all concurrently.
    async fn pieces(
        &self,
        under: LeaseContext,
        chunked: Chunked<'_>,
        offset: u64,
        buf: IoBuf,
        op: impl Fn(u64) -> StorageOp,
        execution: Execution,
    ) -> Result<()> {
        let layout = chunked.layout;
        let range = ByteRange::at(offset, buf.len() as u64);
        let mut pieces = layout::pieces(layout, range);
        let Some(first) = pieces.next() else { return Ok(()) };
        if first.file == range {
            let destination = (layout.chunk_file(under.ino, first.stripe), first.group);
            let under = chunked.under(under, first.stripe);
            return self.transfer(under, destination, op(first.local), buf, execution).await;
        }
        let transfers = std::iter::once(first).chain(pieces).map(|piece| {
            let part = (piece.file.start - offset) as usize..(piece.file.end - offset) as usize;
            let destination = (layout.chunk_file(under.ino, piece.stripe), piece.group);
            self.transfer(
                chunked.under(under, piece.stripe),
                destination,
                op(piece.local),
                buf.slice(part),
                execution,
            )
        });
        first_error(rt::join_all(transfers.collect()).await)
    }

    /// Sends a request for the chunk file of every stripe, concurrently. Returns the answers in
    /// stripe order.
    pub(crate) async fn on_every_stripe(
        &self,
        under: LeaseContext,
        layout: &Layout,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<StorageReply>> {
        self.on_every_known_stripe(under, Chunked::unknown(layout), op).await
    }

    /// Sends a request for the chunk files of all stripes except lost ones. Returns the answers
    /// with their stripe numbers.
    pub(crate) async fn on_present_stripes(
        &self,
        under: LeaseContext,
        layout: &Layout,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<(usize, StorageReply)>> {
        self.on_present(under, layout, 0..layout.groups.len(), op).await
    }

    async fn on_present(
        &self,
        under: LeaseContext,
        layout: &Layout,
        stripes: impl Iterator<Item = usize>,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<(usize, StorageReply)>> {
        let calls = stripes.filter(|stripe| !self.is_lost(layout.groups[*stripe])).map(|stripe| {
            let (op, group) = (op(stripe), layout.groups[stripe]);
            let chunk_file = layout.chunk_file(under.ino, stripe);
            async move {
                let destination = (self.location_when_known(group).await?, chunk_file);
                let reply = self.send(under, destination, op, None).await?;
                Ok::<_, Error>((stripe, reply))
            }
        });
        rt::join_all(calls.collect()).await.into_iter().collect()
    }

    /// Like [`ChunkFiles::on_every_stripe`], with the known length of each chunk file.
    pub(crate) async fn on_every_known_stripe(
        &self,
        under: LeaseContext,
        chunked: Chunked<'_>,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<StorageReply>> {
        let layout = chunked.layout;
        let calls =
            layout.groups.iter().enumerate().map(|(stripe, &group)| {
                let (op, chunk_file) = (op(stripe), layout.chunk_file(under.ino, stripe));
                let under = chunked.under(under, stripe);
                async move {
                    self.send(under, (self.location_when_known(group).await?, chunk_file), op, None).await
                }
            });
        rt::join_all(calls.collect()).await.into_iter().collect()
    }

    /// Stats the chunk files of a file, except for lost ones.
    pub(crate) async fn measure(&self, under: LeaseContext, layout: &Layout) -> Result<Measured> {
        let replies = self.on_present_stripes(under, layout, |_| StorageOp::Stat).await?;
        let mut measured = Measured { end: 0, blocks: 0, mtime: Timestamp::default() };
        let mut lens = vec![0; layout.groups.len()];
        for (stripe, reply) in replies {
            let StorageReply::Stat { len, blocks, mtime, .. } = reply else { continue };
            lens[stripe] = len;
            measured.blocks += blocks;
            measured.mtime = measured.mtime.max(mtime);
        }
        measured.end = layout::file_end(layout, &lens);
        Ok(measured)
    }

    /// Returns the allocated space of all chunk files; lost ones count as empty. There are none beyond
    /// the chunk that contains `end`, a position in the file.
    pub(crate) async fn allocated(&self, ino: InodeId, layout: &Layout, end: u64) -> Result<Allocated> {
        let exists = |stripe: &usize| layout::local_len(layout, *stripe, end) > 0;
        let stripes = (0..layout.groups.len()).filter(exists);
        let under = LeaseContext::without_lease(ino);
        let replies = self.on_present(under, layout, stripes, |_| StorageOp::Stat).await?;
        let mut stripes = vec![(0, 0); layout.groups.len()];
        for (stripe, reply) in replies {
            if let StorageReply::Stat { len, blocks, .. } = reply {
                stripes[stripe] = (blocks, len);
            }
        }
        Ok(Allocated::of(stripes))
    }

    /// Like [`ChunkFiles::allocated`], with an estimate from the file's size for chunk files on targets
    /// that don't answer.
    ///
    /// Errors: `ESTALE` when the session has ended.
    pub(crate) async fn allocated_estimate(
        &self,
        ino: InodeId,
        layout: &Layout,
        size: u64,
    ) -> Result<Allocated> {
        let map = self.map.load();
        let calls = layout.groups.iter().enumerate().map(|(stripe, &group)| {
            let primary = map.group(group).and_then(|group| group.primary());
            let state = primary.and_then(|id| map.target(id)).map(|target| target.state);
            async move {
                let answer = match state {
                    Some(TargetState::Online) => {
                        let name = layout.chunk_file(ino, stripe);
                        let destination = (self.chunk_location(group)?, name);
                        self.send(LeaseContext::without_lease(ino), destination, StorageOp::Stat, None).await
                    }
                    _ => Err(Errno::EHOSTDOWN.into()),
                };
                match answer {
                    Ok(StorageReply::Stat { len, blocks, .. }) => Ok((blocks, len)),
                    Err(error) if error.errno == Errno::ESTALE => Err(error),
                    _ => Ok((layout::local_len(layout, stripe, size).div_ceil(512), 0)),
                }
            }
        });
        let stripes: Result<Vec<(u64, u64)>> = rt::join_all(calls.collect()).await.into_iter().collect();
        Ok(Allocated::of(stripes?))
    }
}

impl Allocated {
    fn of(stripes: impl IntoIterator<Item = (u64, u64)>) -> Allocated {
        let (blocks, lens): (Vec<u64>, Vec<u64>) = stripes.into_iter().unzip();
        Allocated { blocks: blocks.into_iter().sum(), lens }
    }
}

fn first_error(results: Vec<Result<()>>) -> Result<()> {
    results.into_iter().collect()
}
