//! Files that are to be kept in groups of another pool or scheme: the note of one, from its
//! beginning until no stripe of it is elsewhere.
//!
//! The stripes move one by one ([`crate::begin_move`]); in between a file has stripes in groups of
//! either kind, and is as good as any.

use crate::keys::{self, Key};
use crate::record::{self, Inode, Migrating};
use crate::{ReadError, Reader, Step, Writes};
use prost::Message;
use types::{InodeId, Layout, PartitionId, PoolId, Scheme, StripePattern};

/// Where a file is to be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Goal {
    /// Of its groups.
    pub pool: PoolId,
    /// Of its groups.
    pub scheme: Scheme,
}

/// A file as whoever moves it needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// What its pattern says: where it is kept if it hasn't a layout yet.
    pub goal: Goal,
    /// Where its chunks are.
    pub layout: Option<Layout>,
    /// Bytes.
    pub size: u64,
    /// The content is beside the inode, and nothing in chunks counts.
    pub inline: bool,
}

/// A regular file; `None` when it is gone.
pub fn placed(reader: &dyn Reader, ino: InodeId) -> Result<Option<Placed>, ReadError> {
    let Some(inode) = inode_of(reader, ino)? else { return Ok(None) };
    if !inode.is_regular() {
        return Ok(None);
    }
    let pattern = pattern_of(&inode)?;
    Ok(Some(Placed {
        goal: Goal { pool: pattern.pool, scheme: pattern.scheme },
        layout: inode.layout.as_ref().map(Layout::try_from).transpose()?,
        size: inode.size,
        inline: inode.inline,
    }))
}

/// Notes where a file goes. Stripes that it gets from now on are there already.
pub fn begin_migration(reader: &dyn Reader, ino: InodeId, goal: Goal) -> Result<Step, ReadError> {
    let Some(mut writes) = with_pattern(reader, ino, goal)? else { return Ok(Step::Changed) };
    writes.push((keys::migrating(ino).to_vec(), Some(Migrating::from(goal).encode_to_vec().into())));
    Ok(Step::Writes(writes))
}

/// Takes the note back when all stripes are where they should be. `is_there`: whether a group is
/// one of those.
pub fn finish_migration(
    reader: &dyn Reader,
    (ino, goal): (InodeId, Goal),
    is_there: impl Fn(types::GroupId) -> bool,
) -> Result<Step, ReadError> {
    let layout = crate::layout_of(reader, ino)?;
    if !layout.is_none_or(|layout| layout.groups.into_iter().all(is_there)) {
        return Ok(Step::Changed);
    }
    let Some(mut writes) = with_pattern(reader, ino, goal)? else { return Ok(Step::Changed) };
    writes.extend(forget_migration(reader, ino)?);
    Ok(Step::Writes(writes))
}

/// Takes the note back, wherever the stripes are.
pub fn forget_migration(reader: &dyn Reader, ino: InodeId) -> Result<Writes, ReadError> {
    let key = keys::migrating(ino);
    Ok(reader.get(&key)?.map(|_| (key.to_vec(), None)).into_iter().collect())
}

/// Files of a partition above `after` that are on their way, at most `limit`.
pub fn migrating(
    reader: &dyn Reader,
    partition: PartitionId,
    after: InodeId,
    limit: usize,
) -> Result<Vec<(InodeId, Goal)>, ReadError> {
    let range = keys::migrating_after(partition, after);
    let mut found = Vec::new();
    for (key, value) in reader.scan(&range.from, &range.to, limit)? {
        if let Some(Key::Migrating(ino)) = keys::decode_key(&key) {
            found.push((ino, Goal::try_from(record::decode::<Migrating>(&key, value)?)?));
        }
    }
    Ok(found)
}

/// The write by which the file's own pattern says the goal; none if it does. `None` when the file
/// is gone.
fn with_pattern(reader: &dyn Reader, ino: InodeId, goal: Goal) -> Result<Option<Writes>, ReadError> {
    let Some(mut inode) = inode_of(reader, ino)? else { return Ok(None) };
    if !inode.is_regular() {
        return Ok(None);
    }
    let old = pattern_of(&inode)?;
    let new = StripePattern { pool: goal.pool, scheme: goal.scheme, ..old };
    if old == new {
        return Ok(Some(Writes::new()));
    }
    inode.pattern = Some((&new).into());
    Ok(Some(vec![(keys::inode(ino).to_vec(), Some(inode.encode_to_vec().into()))]))
}

fn inode_of(reader: &dyn Reader, ino: InodeId) -> Result<Option<Inode>, ReadError> {
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else { return Ok(None) };
    Ok(Some(record::decode(&key, value)?))
}

fn pattern_of(inode: &Inode) -> Result<StripePattern, ReadError> {
    Ok(inode.pattern.as_ref().map_or(Ok(StripePattern::default()), StripePattern::try_from)?)
}
