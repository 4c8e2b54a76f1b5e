//! Migration of files to groups of another pool or scheme: the migration record, from the beginning
//! until all stripes have moved.
//!
//! The stripes move one by one ([`crate::begin_move`]). In between, a file has stripes in both
//! kinds of groups, which is a valid state.

use crate::keys::{self, Key};
use crate::record::{self, Inode, Migrating};
use crate::{MoveStep, ReadError, Reader, Writes};
use prost::Message;
use types::{InodeId, Layout, PartitionId, PoolId, Scheme, StripePattern};

/// Pool and scheme that a file should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Goal {
    /// Pool of its groups.
    pub pool: PoolId,
    /// Scheme of its groups.
    pub scheme: Scheme,
}

/// The attributes of a file that a migration needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePlacement {
    /// Pool and scheme of its pattern, which apply if it has no layout yet.
    pub goal: Goal,
    /// Location of its chunk files.
    pub layout: Option<Layout>,
    /// Size in bytes.
    pub size: u64,
    /// The content is inline; chunk files don't count.
    pub inline: bool,
}

/// The placement of a regular file; `None` if it doesn't exist.
pub fn file_placement(reader: &dyn Reader, ino: InodeId) -> Result<Option<FilePlacement>, ReadError> {
    let Some(inode) = inode_of(reader, ino)? else { return Ok(None) };
    if !inode.is_regular() {
        return Ok(None);
    }
    let pattern = pattern_of(&inode)?;
    Ok(Some(FilePlacement {
        goal: Goal { pool: pattern.pool, scheme: pattern.scheme },
        layout: inode.layout.as_ref().map(Layout::try_from).transpose()?,
        size: inode.size,
        inline: inode.inline,
    }))
}

/// Records the goal of a file. New stripes of the file are created there from now on.
pub fn begin_migration(reader: &dyn Reader, ino: InodeId, goal: Goal) -> Result<MoveStep, ReadError> {
    let Some(mut writes) = with_pattern(reader, ino, goal)? else { return Ok(MoveStep::Changed) };
    writes.push((keys::migrating(ino).to_vec(), Some(Migrating::from(goal).encode_to_vec().into())));
    Ok(MoveStep::Writes(writes))
}

/// Deletes the record when all stripes have moved. `is_there`: whether a group has the goal's pool
/// and scheme.
pub fn finish_migration(
    reader: &dyn Reader,
    (ino, goal): (InodeId, Goal),
    is_there: impl Fn(types::GroupId) -> bool,
) -> Result<MoveStep, ReadError> {
    let layout = crate::layout_of(reader, ino)?;
    if !layout.is_none_or(|layout| layout.groups.into_iter().all(is_there)) {
        return Ok(MoveStep::Changed);
    }
    let Some(mut writes) = with_pattern(reader, ino, goal)? else { return Ok(MoveStep::Changed) };
    writes.extend(forget_migration(reader, ino)?);
    Ok(MoveStep::Writes(writes))
}

/// Deletes the record, wherever the stripes are.
pub fn forget_migration(reader: &dyn Reader, ino: InodeId) -> Result<Writes, ReadError> {
    let key = keys::migrating(ino);
    Ok(reader.get(&key)?.map(|_| (key.to_vec(), None)).into_iter().collect())
}

/// Migrating files of a partition above `after`, at most `limit`.
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

/// The write that puts the goal into the file's own pattern; none if the pattern has it already.
/// `None` if the file doesn't exist.
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
