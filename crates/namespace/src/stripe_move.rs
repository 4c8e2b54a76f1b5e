//! Moving a stripe of a file to another group.
//!
//! 1. [`begin_move`] records the new chunk file as doomed: if the move is given up, or its process
//!    dies, the chunk file is deleted.
//! 2. The bytes are copied.
//! 3. [`finish_move`] changes the layout, removes the doomed record of the new chunk file and adds
//!    one of the old chunk file, in one commit.
//!
//! So at any time exactly one of the two belongs to the file, and the other will be deleted.

use crate::keys;
use crate::record::{self, Inode};
use crate::{ReadError, Reader, Writes};
use prost::Message;
use std::collections::BTreeMap;
use types::{ChunkFileId, ChunkSlot, GroupId, InodeId, Layout, PoolId, Scheme};

/// A stripe that moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeMove {
    /// The file.
    pub ino: InodeId,
    /// Its old layout.
    pub from: Layout,
    /// Number of the stripe.
    pub stripe: usize,
    /// Destination: the group, and the slot of the chunk file there.
    pub to: (GroupId, ChunkSlot),
    /// Pool and scheme of that group.
    pub kind: (PoolId, Scheme),
}

impl StripeMove {
    /// The old group and slot.
    pub fn source(&self) -> (GroupId, ChunkSlot) {
        (self.from.groups[self.stripe], self.from.slot(self.stripe))
    }

    /// The new layout of the file.
    pub fn after(&self) -> Layout {
        let (pool, scheme) = self.kind;
        Layout { pool, scheme, ..self.from.with_moved_stripe(self.stripe, self.to.0, self.to.1) }
    }
}

/// Whether a step of a move is possible now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MoveStep {
    /// Yes, by these writes.
    Writes(Writes),
    /// The file is gone, or has another layout by now.
    Changed,
    /// A session has a write record of the file: the chunk files may differ from the inode, and
    /// size recovery expects them at their old location.
    BeingWritten,
}

/// The groups in which the chunk file of a slot is doomed although the inode may exist.
pub fn doomed_in(reader: &dyn Reader, ino: InodeId, slot: ChunkSlot) -> Result<Vec<GroupId>, ReadError> {
    let found = stored(reader, ino.chunk_file(slot))?;
    Ok(found.map_or(Vec::new(), |layout| layout.groups))
}

/// Records that a chunk file is about to be created that doesn't belong to the file yet.
pub fn begin_move(reader: &dyn Reader, moved: &StripeMove) -> Result<MoveStep, ReadError> {
    if layout_of(reader, moved.ino)?.as_ref() != Some(&moved.from) {
        return Ok(MoveStep::Changed);
    }
    let mut doomed = DoomedRecords::new(reader, moved);
    doomed.doom(moved.to)?;
    Ok(MoveStep::Writes(doomed.writes()))
}

/// Completes a move whose bytes are copied and synced.
pub fn finish_move(reader: &dyn Reader, moved: &StripeMove) -> Result<MoveStep, ReadError> {
    if layout_of(reader, moved.ino)?.as_ref() != Some(&moved.from) {
        return Ok(MoveStep::Changed);
    }
    let write_records = keys::writing_of(moved.ino);
    if !reader.scan(&write_records.from, &write_records.to, 1)?.is_empty() {
        return Ok(MoveStep::BeingWritten);
    }
    let mut doomed = DoomedRecords::new(reader, moved);
    doomed.undoom(moved.to)?;
    doomed.doom(moved.source())?;
    let mut writes = doomed.writes();
    let key = keys::inode(moved.ino);
    let Some(value) = reader.get(&key)? else { return Ok(MoveStep::Changed) };
    let mut inode: Inode = record::decode(&key, value)?;
    inode.layout = Some((&moved.after()).into());
    writes.push((key.to_vec(), Some(inode.encode_to_vec().into())));
    Ok(MoveStep::Writes(writes))
}

/// The chunk files of one name that are still to be deleted.
pub fn doomed_layout(reader: &dyn Reader, name: ChunkFileId) -> Result<Option<Layout>, ReadError> {
    stored(reader, name)
}

/// The name of the chunk file of a stripe of a doomed record. Records of deleted files have the
/// inode's name and the slots of the layout; those of moved stripes have the slot in their name.
pub fn doomed_chunk_file(record: ChunkFileId, layout: &Layout, stripe: usize) -> ChunkFileId {
    match record.slot() {
        ChunkSlot(0) => layout.chunk_file(record.owner(), stripe),
        _ => record,
    }
}

/// The writes that end the deletion of chunk files: none if more of them were added meanwhile.
pub fn forget_doomed(reader: &dyn Reader, name: ChunkFileId, deleted: &Layout) -> Result<Writes, ReadError> {
    let as_before = stored(reader, name)?.as_ref() == Some(deleted);
    Ok(if as_before { vec![(keys::doomed(name).to_vec(), None)] } else { Vec::new() })
}

/// The chunk files of a deleted file, together with those of its name that were doomed before.
pub(crate) fn doomed_with(earlier: Option<record::Layout>, layout: &record::Layout) -> record::Layout {
    let mut all = layout.clone();
    for (stripe, &group) in earlier.iter().flat_map(|earlier| earlier.groups.iter().enumerate()) {
        let slot = earlier.as_ref().and_then(|earlier| earlier.slots.get(stripe)).copied().unwrap_or(0);
        all.slots.resize(all.groups.len(), 0);
        all.groups.push(group);
        all.slots.push(slot);
    }
    if all.slots.iter().all(|&slot| slot == 0) {
        all.slots.clear();
    }
    all
}

fn stored(reader: &dyn Reader, name: ChunkFileId) -> Result<Option<Layout>, ReadError> {
    let key = keys::doomed(name);
    let Some(value) = reader.get(&key)? else { return Ok(None) };
    let layout: record::Layout = record::decode(&key, value)?;
    Ok(Some(Layout::try_from(&layout)?))
}

/// The layout of a file that exists and has one.
pub fn layout_of(reader: &dyn Reader, ino: InodeId) -> Result<Option<Layout>, ReadError> {
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else { return Ok(None) };
    let inode: Inode = record::decode(&key, value)?;
    Ok(inode.layout.as_ref().map(Layout::try_from).transpose()?)
}

/// Changes of the doomed records of an inode. The record of a slot has the name of its chunk file
/// as key, and contains groups.
struct DoomedRecords<'a> {
    reader: &'a dyn Reader,
    moved: &'a StripeMove,
    groups: BTreeMap<ChunkSlot, Vec<GroupId>>,
}

impl<'a> DoomedRecords<'a> {
    fn new(reader: &'a dyn Reader, moved: &'a StripeMove) -> DoomedRecords<'a> {
        DoomedRecords { reader, moved, groups: BTreeMap::new() }
    }

    fn of(&mut self, slot: ChunkSlot) -> Result<&mut Vec<GroupId>, ReadError> {
        if !self.groups.contains_key(&slot) {
            let groups = doomed_in(self.reader, self.moved.ino, slot)?;
            self.groups.insert(slot, groups);
        }
        Ok(self.groups.entry(slot).or_default())
    }

    fn doom(&mut self, (group, slot): (GroupId, ChunkSlot)) -> Result<(), ReadError> {
        let groups = self.of(slot)?;
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    fn undoom(&mut self, (group, slot): (GroupId, ChunkSlot)) -> Result<(), ReadError> {
        self.of(slot)?.retain(|&other| other != group);
        Ok(())
    }

    fn writes(self) -> Writes {
        let write = |(slot, groups): (ChunkSlot, Vec<GroupId>)| {
            let layout = Layout { groups, slots: Vec::new(), ..self.moved.from.clone() };
            let value =
                (!layout.groups.is_empty()).then(|| record::Layout::from(&layout).encode_to_vec().into());
            (keys::doomed(self.moved.ino.chunk_file(slot)).to_vec(), value)
        };
        self.groups.into_iter().map(write).collect()
    }
}
