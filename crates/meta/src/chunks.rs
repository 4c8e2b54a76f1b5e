//! What the service does to chunks: measure, cut and delete them.

use net::StorageChannels;
use std::sync::PoisonError;
use types::{Errno, Error, GroupId, InodeId, Layout, MapHandle, Result, SessionId, TargetId, Timestamp};
use wire::{StorageOp, StorageReply, StorageRequest};

/// The chunks of all files.
pub(crate) struct Chunks {
    pub map: MapHandle,
    pub channels: StorageChannels,
}

/// A file, and the lease epoch under which something is done to its chunks: targets that have seen a later one refuse it.
#[derive(Clone, Copy)]
pub(crate) struct Under {
    pub ino: InodeId,
    pub epoch: u64,
}

impl Under {
    /// Of what is no file's.
    pub const TARGET: Under = Under { ino: InodeId::ROOT, epoch: 0 };
}

/// What the chunk files of one file say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Length of the chunk file of each stripe.
    pub lens: Vec<u64>,
    /// Allocated units of 512 bytes, all together.
    pub blocks: u64,
    /// The last change of any.
    pub mtime: Timestamp,
}

impl Chunks {
    /// Removes all chunk files of a file.
    pub async fn delete(&self, file: Under, layout: &Layout) -> Result<()> {
        self.each(file, layout, |_| StorageOp::Delete).await.map(|_| ())
    }

    /// Cuts the chunk files to what a file of this size has.
    pub async fn truncate(&self, file: Under, layout: &Layout, size: u64) -> Result<()> {
        let cut = |stripe| StorageOp::Truncate { len: layout::local_len(layout, stripe, size) };
        self.each(file, layout, cut).await.map(|_| ())
    }

    /// Asks all chunk files for their length, allocation and last change.
    pub async fn measure(&self, file: Under, layout: &Layout) -> Result<Measured> {
        let mut measured = Measured { lens: vec![0; layout.groups.len()], ..Measured::default() };
        for (stripe, reply) in self.each(file, layout, |_| StorageOp::Stat).await? {
            let StorageReply::Stat { len, blocks, mtime } = reply else {
                return Err(Error::new(
                    Errno::EPROTO,
                    format!("unexpected answer to a stat of file {}", file.ino),
                ));
            };
            measured.lens[stripe] = measured.lens[stripe].max(len);
            measured.blocks += blocks;
            measured.mtime = measured.mtime.max(mtime);
        }
        Ok(measured)
    }

    /// Asks every member of every group at once; answers with the number of their stripe. The first error is told after
    /// all have answered.
    async fn each(
        &self,
        Under { ino, epoch }: Under,
        layout: &Layout,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<(usize, StorageReply)>> {
        let mut calls = Vec::new();
        for (stripe, group) in layout.groups.iter().enumerate() {
            for target in self.members(*group)? {
                let ino = layout.chunk_file(ino, stripe);
                let request =
                    StorageRequest { epoch, ..StorageRequest::new(SessionId(0), target, ino, op(stripe)) };
                let call = self.channels.call(request, None);
                calls.push(async move { call.await.map(|reply| (stripe, reply)) });
            }
        }
        rt::join_all(calls).await.into_iter().collect()
    }

    /// One request to one target, about the chunk file of this name.
    pub async fn on(&self, target: TargetId, file: Under, op: StorageOp) -> Result<StorageReply> {
        let Under { ino, epoch } = file;
        let request = StorageRequest { epoch, ..StorageRequest::new(SessionId(0), target, ino, op) };
        self.channels.call(request, None).await
    }

    /// The first stripe of a layout that a target has, of all chunk files or of those of a slot; `None` when it has none.
    pub fn stripe_on(&self, layout: &Layout, target: TargetId, slot: Option<u8>) -> Result<Option<usize>> {
        for (stripe, group) in layout.groups.iter().enumerate() {
            if slot.is_none_or(|slot| layout.slot(stripe) == slot) && self.members(*group)?.contains(&target)
            {
                return Ok(Some(stripe));
            }
        }
        Ok(None)
    }

    pub fn members(&self, group: GroupId) -> Result<Vec<TargetId>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        match map.group(group) {
            Some(group) => Ok(group.members.clone()),
            None => Err(Error::new(Errno::EIO, format!("group {group} is not in cluster map {}", map.epoch))),
        }
    }
}
