//! Moving a stripe of a file to another group.
//!
//! 1. [`begin_move`] notes the new chunk file as doomed: whoever gives the move up, or dies, leaves
//!    it to be deleted.
//! 2. The bytes are copied.
//! 3. [`finish_move`] changes the layout, takes the note of the new chunk file back and notes the
//!    old one as doomed, in one commit.
//!
//! So at any time exactly one of the two is the file's, and the other is deleted some time.

use crate::keys;
use crate::record::{self, Inode};
use crate::{ReadError, Reader, Writes};
use prost::Message;
use std::collections::BTreeMap;
use types::{GroupId, InodeId, Layout, PoolId, Scheme};

/// A stripe that moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// The file.
    pub ino: InodeId,
    /// Its layout up to now.
    pub from: Layout,
    /// Which stripe.
    pub stripe: usize,
    /// Where to: the group, and the slot of the chunk file there.
    pub to: (GroupId, u8),
    /// Pool and scheme of that group.
    pub kind: (PoolId, Scheme),
}

impl Move {
    /// Group and slot up to now.
    pub fn source(&self) -> (GroupId, u8) {
        (self.from.groups[self.stripe], self.from.slot(self.stripe))
    }

    /// The layout that the file will have.
    pub fn after(&self) -> Layout {
        let (pool, scheme) = self.kind;
        Layout { pool, scheme, ..self.from.with_stripe(self.stripe, self.to.0, self.to.1) }
    }
}

/// Whether a move can be made or ended now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// By these writes.
    Writes(Writes),
    /// The file is gone, or has another layout by now.
    Changed,
    /// A session has a note on the chunks: they may differ from what the inode says, and whoever
    /// settles that looks where they have been.
    Unsettled,
}

/// The groups in which the chunk file of a slot is doomed though the inode may be there.
pub fn doomed_in(reader: &dyn Reader, ino: InodeId, slot: u8) -> Result<Vec<GroupId>, ReadError> {
    let found = stored(reader, ino.chunk_file(slot))?;
    Ok(found.map_or(Vec::new(), |layout| layout.groups))
}

/// Notes that a chunk file is about to be made which isn't the file's yet.
pub fn begin_move(reader: &dyn Reader, moved: &Move) -> Result<Step, ReadError> {
    if layout_of(reader, moved.ino)?.as_ref() != Some(&moved.from) {
        return Ok(Step::Changed);
    }
    let mut notes = Notes::new(reader, moved);
    notes.doom(moved.to)?;
    Ok(Step::Writes(notes.writes()))
}

/// Ends a move whose bytes are in place, on disk.
pub fn finish_move(reader: &dyn Reader, moved: &Move) -> Result<Step, ReadError> {
    if layout_of(reader, moved.ino)?.as_ref() != Some(&moved.from) {
        return Ok(Step::Changed);
    }
    let notes_of_writers = keys::writing_of(moved.ino);
    if !reader.scan(&notes_of_writers.from, &notes_of_writers.to, 1)?.is_empty() {
        return Ok(Step::Unsettled);
    }
    let mut notes = Notes::new(reader, moved);
    notes.spare(moved.to)?;
    notes.doom(moved.source())?;
    let mut writes = notes.writes();
    let key = keys::inode(moved.ino);
    let Some(value) = reader.get(&key)? else { return Ok(Step::Changed) };
    let mut inode: Inode = record::decode(&key, value)?;
    inode.layout = Some((&moved.after()).into());
    writes.push((key.to_vec(), Some(inode.encode_to_vec().into())));
    Ok(Step::Writes(writes))
}

/// The chunk files under one name that are still to be deleted.
pub fn doomed_layout(reader: &dyn Reader, name: InodeId) -> Result<Option<Layout>, ReadError> {
    stored(reader, name)
}

/// The writes that end the deletion of chunk files: none when meanwhile there are more of them.
pub fn forget_doomed(reader: &dyn Reader, name: InodeId, deleted: &Layout) -> Result<Writes, ReadError> {
    let as_before = stored(reader, name)?.as_ref() == Some(deleted);
    Ok(if as_before { vec![(keys::doomed(name).to_vec(), None)] } else { Vec::new() })
}

/// The chunk files of a file that is gone, together with those under its name that were doomed
/// before.
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

fn stored(reader: &dyn Reader, name: InodeId) -> Result<Option<Layout>, ReadError> {
    let key = keys::doomed(name);
    let Some(value) = reader.get(&key)? else { return Ok(None) };
    let layout: record::Layout = record::decode(&key, value)?;
    Ok(Some(Layout::try_from(&layout)?))
}

/// The layout of a file that is there and has one.
pub fn layout_of(reader: &dyn Reader, ino: InodeId) -> Result<Option<Layout>, ReadError> {
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else { return Ok(None) };
    let inode: Inode = record::decode(&key, value)?;
    Ok(inode.layout.as_ref().map(Layout::try_from).transpose()?)
}

/// Changes of the notes of doomed chunk files of an inode. The note of a slot is under the name of
/// its chunk file; what it names are groups.
struct Notes<'a> {
    reader: &'a dyn Reader,
    moved: &'a Move,
    groups: BTreeMap<u8, Vec<GroupId>>,
}

impl<'a> Notes<'a> {
    fn new(reader: &'a dyn Reader, moved: &'a Move) -> Notes<'a> {
        Notes { reader, moved, groups: BTreeMap::new() }
    }

    fn of(&mut self, slot: u8) -> Result<&mut Vec<GroupId>, ReadError> {
        if !self.groups.contains_key(&slot) {
            let groups = doomed_in(self.reader, self.moved.ino, slot)?;
            self.groups.insert(slot, groups);
        }
        Ok(self.groups.entry(slot).or_default())
    }

    fn doom(&mut self, (group, slot): (GroupId, u8)) -> Result<(), ReadError> {
        let groups = self.of(slot)?;
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    fn spare(&mut self, (group, slot): (GroupId, u8)) -> Result<(), ReadError> {
        self.of(slot)?.retain(|&other| other != group);
        Ok(())
    }

    fn writes(self) -> Writes {
        let write = |(slot, groups): (u8, Vec<GroupId>)| {
            let layout = Layout { groups, slots: Vec::new(), ..self.moved.from.clone() };
            let value =
                (!layout.groups.is_empty()).then(|| record::Layout::from(&layout).encode_to_vec().into());
            (keys::doomed(self.moved.ino.chunk_file(slot)).to_vec(), value)
        };
        self.groups.into_iter().map(write).collect()
    }
}
