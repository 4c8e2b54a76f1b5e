//! Striped transfers: which bytes go to which target, all targets at once.

use crate::Client;
use rt::IoBuf;
use types::{ByteRange, Errno, Error, GroupId, InodeId, Layout, Result, TargetId};
use wire::{Path, StorageOp, StorageReply};

impl Client {
    /// The target that serves a group.
    pub(crate) fn member(&self, group: GroupId) -> Result<TargetId> {
        let map = self.map.read().expect("nobody panics while holding the map").clone();
        map.group(group).and_then(|group| group.members.first().copied()).ok_or_else(|| {
            Error::new(Errno::EIO, format!("group {group} is not in the cluster map"))
                .hint("weft target list shows what is there")
        })
    }

    async fn transfer(&self, chunk_file: InodeId, group: GroupId, op: StorageOp, buf: IoBuf) -> Result<()> {
        self.store(self.member(group)?, chunk_file, op, Some(buf)).await.map(drop)
    }

    /// Fills `buf` from `offset` of the file.
    pub(crate) async fn read_chunks(
        &self,
        ino: InodeId,
        layout: &Layout,
        offset: u64,
        buf: IoBuf,
        path: Path,
    ) -> Result<()> {
        self.pieces(ino, layout, offset, buf, |local| StorageOp::Read { offset: local, path }).await
    }

    /// Writes `buf` at `offset` of the file.
    pub(crate) async fn write_chunks(
        &self,
        ino: InodeId,
        layout: &Layout,
        offset: u64,
        buf: IoBuf,
        path: Path,
        durable: bool,
    ) -> Result<()> {
        self.pieces(ino, layout, offset, buf, |local| StorageOp::Write { offset: local, path, durable }).await
    }

    /// One transfer for each piece of the buffer, side by side.
    async fn pieces(
        &self,
        ino: InodeId,
        layout: &Layout,
        offset: u64,
        buf: IoBuf,
        op: impl Fn(u64) -> StorageOp,
    ) -> Result<()> {
        let range = ByteRange::at(offset, buf.len() as u64);
        let mut pieces = layout::pieces(layout, range);
        let Some(first) = pieces.next() else { return Ok(()) };
        if first.file == range {
            return self
                .transfer(layout.chunk_file(ino, first.stripe), first.group, op(first.local), buf)
                .await;
        }
        let transfers = std::iter::once(first).chain(pieces).map(|piece| {
            let part = (piece.file.start - offset) as usize..(piece.file.end - offset) as usize;
            self.transfer(layout.chunk_file(ino, piece.stripe), piece.group, op(piece.local), buf.slice(part))
        });
        first_error(rt::join_all(transfers.collect()).await)
    }

    /// The same request to the target of every stripe, side by side.
    pub(crate) async fn on_every_stripe(
        &self,
        ino: InodeId,
        layout: &Layout,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<StorageReply>> {
        let calls = layout.groups.iter().enumerate().map(|(stripe, &group)| {
            let (op, chunk_file) = (op(stripe), layout.chunk_file(ino, stripe));
            async move { self.store(self.member(group)?, chunk_file, op, None).await }
        });
        rt::join_all(calls.collect()).await.into_iter().collect()
    }

    /// Allocated 512-byte units of all chunk files.
    pub(crate) async fn allocated(&self, ino: InodeId, layout: &Layout) -> Result<u64> {
        let replies = self.on_every_stripe(ino, layout, |_| StorageOp::Stat).await?;
        Ok(replies
            .into_iter()
            .map(|reply| if let StorageReply::Stat { blocks, .. } = reply { blocks } else { 0 })
            .sum())
    }
}

fn first_error(results: Vec<Result<()>>) -> Result<()> {
    results.into_iter().collect()
}
