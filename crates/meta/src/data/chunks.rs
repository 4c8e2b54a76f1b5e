//! Requests of the service to chunk files: measure, cut and delete them.

use crate::limits::{DURABLE_TRIES, PRIMARY_TIMEOUT};
use routing::{GroupDestination, StorageChannels};
use rt::IoBuf;
use std::sync::Arc;
use types::{
    ChunkFileId, ChunkSlot, ClusterMap, Errno, Error, Group, GroupId, InodeId, Layout, MapHandle, PoolId,
    Result, Scheme, SessionId, TargetId, Timestamp,
};
use wire::{StorageOp, StorageReply, StorageRequest};

/// The chunk files of all files.
pub(crate) struct ChunkFiles {
    pub map: MapHandle,
    pub channels: StorageChannels,
}

/// A file, and the lease epoch of a request to its chunk files: targets that have seen a later
/// epoch refuse it.
#[derive(Clone, Copy)]
pub(crate) struct EpochedFile {
    pub ino: InodeId,
    pub epoch: u64,
}

/// One chunk file, with the lease epoch of a request to it.
#[derive(Clone, Copy)]
pub(crate) struct EpochedChunkFile {
    pub name: ChunkFileId,
    pub epoch: u64,
}

impl EpochedChunkFile {
    /// For requests that concern no file.
    pub const TARGET: EpochedChunkFile =
        EpochedChunkFile { name: InodeId::ROOT.first_chunk_file(), epoch: 0 };
}

/// Location of chunk files: a name space of chunk file names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ChunkLocation {
    /// On a target, outside mirrored groups.
    Target(TargetId),
    /// In a mirrored group.
    Group(GroupId),
}

impl std::fmt::Display for ChunkLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChunkLocation::Target(target) => write!(f, "target {target}"),
            ChunkLocation::Group(group) => write!(f, "group {group}"),
        }
    }
}

/// Attributes of the chunk files of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkAttributes {
    /// Length of the chunk file of each stripe.
    pub lens: Vec<u64>,
    /// Allocated units of 512 bytes, in all chunk files.
    pub blocks: u64,
    /// The latest modification time.
    pub mtime: Timestamp,
    /// A chunk file that had been on disk was lost in a crash.
    pub is_lost: bool,
}

impl ChunkFiles {
    /// Deletes the chunk files of a doomed record.
    pub async fn delete_doomed(&self, record: EpochedChunkFile, layout: &Layout) -> Result<()> {
        let name = |stripe| namespace::doomed_chunk_file(record.name, layout, stripe);
        self.each_named(layout, record.epoch, name, |_| StorageOp::Delete).await.map(drop)
    }

    /// Applies an operation to the chunk file of each stripe, and syncs it. Size recovery at the
    /// end of a session needs that, since no client repeats the operation. A power loss may undo a
    /// part that isn't on disk, and the start of that target then skips the file, since its size
    /// recovery is pending.
    ///
    /// # Errors
    /// `EAGAIN` if targets restart and lose the change each time.
    pub async fn change_durably(
        &self,
        file: EpochedFile,
        layout: &Layout,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<()> {
        for _ in 0..DURABLE_TRIES {
            let done = self.each(file, layout, &op).await?;
            let synced = self.each(file, layout, |_| StorageOp::Sync).await?;
            // A sync covers what was done under the same verifier.
            if done == synced {
                return Ok(());
            }
        }
        let message = format!(
            "the storage service restarted during each attempt to change chunk files of file {}",
            file.ino
        );
        Err(Error::new(Errno::EAGAIN, message)
            .hint("weft health shows targets that restart; the service retries by itself"))
    }

    /// Asks all chunk files for their length, allocation and modification time.
    pub async fn measure(&self, file: EpochedFile, layout: &Layout) -> Result<ChunkAttributes> {
        let mut measured =
            ChunkAttributes { lens: vec![0; layout.groups.len()], ..ChunkAttributes::default() };
        for (stripe, reply) in self.each(file, layout, |_| StorageOp::Stat).await? {
            let StorageReply::Stat { len, blocks, mtime, is_lost } = reply else {
                return Err(Error::new(
                    Errno::EPROTO,
                    format!("unexpected answer to a stat of file {}", file.ino),
                ));
            };
            measured.lens[stripe] = measured.lens[stripe].max(len);
            measured.blocks += blocks;
            measured.is_lost |= is_lost;
            measured.mtime = measured.mtime.max(mtime);
        }
        Ok(measured)
    }

    /// Sends a request to the chunk file of each stripe, to all groups at once; returns the answers
    /// with their stripe numbers. Returns the first error after all have answered.
    ///
    /// Skips stripes in lost groups: nothing there can be measured, cut or deleted, and no restart
    /// brings it back.
    async fn each(
        &self,
        EpochedFile { ino, epoch }: EpochedFile,
        layout: &Layout,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<(usize, StorageReply)>> {
        self.each_named(layout, epoch, |stripe| layout.chunk_file(ino, stripe), op).await
    }

    /// The same for chunk files with these names.
    async fn each_named(
        &self,
        layout: &Layout,
        epoch: u64,
        name: impl Fn(usize) -> ChunkFileId,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<(usize, StorageReply)>> {
        let mut calls = Vec::new();
        for (stripe, group) in layout.groups.iter().enumerate() {
            if self.is_lost(*group) {
                continue;
            }
            let file = EpochedChunkFile { name: name(stripe), epoch };
            let call = self.at_group(*group, file, op(stripe));
            calls.push(async move { call.await.map(|reply| (stripe, reply)) });
        }
        rt::join_all(calls).await.into_iter().collect()
    }

    /// Sends one request to a group, about the chunk file of this name: to its target, or to its
    /// primary, which has all members execute it.
    pub async fn at_group(
        &self,
        group: GroupId,
        file: EpochedChunkFile,
        op: StorageOp,
    ) -> Result<StorageReply> {
        let location = self.location(group)?;
        self.at(location, file, op).await
    }

    /// Sends one request about the chunk file of this name at a location.
    pub async fn at(
        &self,
        location: ChunkLocation,
        file: EpochedChunkFile,
        op: StorageOp,
    ) -> Result<StorageReply> {
        self.send(location, file, op, None).await
    }

    /// The same with data.
    pub async fn send(
        &self,
        location: ChunkLocation,
        EpochedChunkFile { name, epoch }: EpochedChunkFile,
        op: StorageOp,
        payload: Option<IoBuf>,
    ) -> Result<StorageReply> {
        let of = |target| StorageRequest { epoch, ..StorageRequest::new(SessionId(0), target, name, op) };
        match location {
            ChunkLocation::Target(target) => self.channels.call(of(target), payload).await,
            ChunkLocation::Group(group) => {
                let to = GroupDestination { map: &self.map, group, time_out: PRIMARY_TIMEOUT };
                self.channels.call_group(to, of(TargetId(0)), payload).await
            }
        }
    }

    /// The location of a group's chunk files.
    ///
    /// # Errors
    /// `EIO` for a group that is lost, or that isn't in the map.
    pub fn location(&self, id: GroupId) -> Result<ChunkLocation> {
        let known = self.group(id)?;
        known.ensure_not_lost()?;
        Ok(match known.members[..] {
            [target, ..] if !known.scheme.spans_targets() => ChunkLocation::Target(target),
            _ => ChunkLocation::Group(id),
        })
    }

    /// Bytes that each stripe of a file occupies in each replica.
    pub async fn allocated(&self, ino: InodeId, layout: &Layout) -> Result<Vec<u64>> {
        let mut bytes = vec![0; layout.groups.len()];
        for (stripe, reply) in self.each(EpochedFile { ino, epoch: 0 }, layout, |_| StorageOp::Stat).await? {
            if let StorageReply::Stat { blocks, .. } = reply {
                bytes[stripe] = blocks * 512;
            }
        }
        Ok(bytes)
    }

    /// The first stripe of a layout that has data on a target, alone or as a replica; `None` if
    /// there is none.
    pub fn stripe_on(&self, layout: &Layout, target: TargetId) -> Result<Option<usize>> {
        for (stripe, group) in layout.groups.iter().enumerate() {
            if self.group(*group)?.members.contains(&target) {
                return Ok(Some(stripe));
            }
        }
        Ok(None)
    }

    /// The stripe whose chunk file has this slot at a location.
    pub fn stripe_in(
        &self,
        layout: &Layout,
        slot: ChunkSlot,
        location: ChunkLocation,
    ) -> Result<Option<usize>> {
        for (stripe, id) in layout.groups.iter().enumerate() {
            let is_there = match location {
                ChunkLocation::Target(target) => {
                    let group = self.group(*id)?;
                    !group.scheme.spans_targets() && group.members.contains(&target)
                }
                ChunkLocation::Group(group) => *id == group,
            };
            if layout.slot(stripe) == slot && is_there {
                return Ok(Some(stripe));
            }
        }
        Ok(None)
    }

    /// Whether the content of a group is lost.
    pub fn is_lost(&self, group: GroupId) -> bool {
        self.current_map().group(group).is_some_and(Group::is_lost)
    }

    pub fn members(&self, group: GroupId) -> Result<Vec<TargetId>> {
        self.group(group).map(|group| group.members)
    }

    pub fn is_mirrored(&self, group: GroupId) -> Result<bool> {
        self.group(group).map(|group| group.scheme.spans_targets())
    }

    /// Pool and scheme of a group.
    pub fn kind(&self, group: GroupId) -> Result<(PoolId, Scheme)> {
        self.group(group).map(|group| (group.pool, group.scheme))
    }

    fn group(&self, id: GroupId) -> Result<Group> {
        let map = self.current_map();
        map.group(id)
            .cloned()
            .ok_or_else(|| Error::new(Errno::EIO, format!("group {id} is not in cluster map {}", map.epoch)))
    }

    pub fn current_map(&self) -> Arc<ClusterMap> {
        self.map.load()
    }
}
