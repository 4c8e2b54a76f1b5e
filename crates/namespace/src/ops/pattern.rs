//! Stripe patterns.

use super::data::{inline_content, pattern_of};
use crate::migrate::Goal;
use crate::record::{self, Inode, Migrating};
use crate::tx::{Outcome, Tx};
use crate::{ReadError, Reader, flags, keys};
use types::{ClusterMap, Errno, Error, Group, InodeId, Layout, PoolId, Scheme, StripePattern};
use wire::{EntryDescription, MetaReply, Migration, PatternChange};

/// Returns all metadata of an inode.
pub(crate) fn describe(tx: &Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    let inode = tx.inode(ino)?;
    description(tx, ino, &inode)
}

/// Changes the pattern that a directory gives to new files. Existing files and directories keep
/// theirs.
pub(crate) fn set_pattern(tx: &mut Tx<'_>, dir: InodeId, change: &PatternChange) -> Outcome<MetaReply> {
    let mut directory = tx.directory(dir)?;
    flags::may_change((dir, &directory))?;
    let pattern = apply_change(&pattern_of(&directory)?, change, tx.env.map)?;
    directory.pattern = Some((&pattern).into());
    directory.touch(tx.env.now);
    tx.put_inode(dir, &directory);
    description(tx, dir, &directory)
}

/// Checks the new pool and scheme of a file's chunk files. The metadata service migrates the
/// existing ones.
pub(crate) fn migrate(
    tx: &Tx<'_>,
    ino: InodeId,
    pool: &Option<String>,
    scheme: &Option<String>,
) -> Outcome<MetaReply> {
    let inode = tx.regular(ino)?;
    let change = PatternChange { pool: pool.clone(), scheme: scheme.clone(), ..PatternChange::default() };
    let StripePattern { pool, scheme, .. } = apply_change(&pattern_of(&inode)?, &change, tx.env.map)?;
    Ok(migration_reply(Goal { pool, scheme }))
}

/// The recorded goal of a file's migration. The metadata service that migrates it adds the
/// progress.
pub(crate) fn migration_of(tx: &Tx<'_>, ino: InodeId) -> Outcome<MetaReply> {
    tx.inode(ino)?;
    Ok(match tx.get::<Migrating>(&keys::migrating(ino))? {
        Some(note) => migration_reply(note.try_into()?),
        None => MetaReply::Migration(None),
    })
}

fn migration_reply(Goal { pool, scheme }: Goal) -> MetaReply {
    let migration = Migration { pool, scheme, bytes: 0, bytes_moved: 0, error: None, given_up: false };
    MetaReply::Migration(Some(Box::new(migration)))
}

fn apply_change(
    old: &StripePattern,
    change: &PatternChange,
    map: &ClusterMap,
) -> Result<StripePattern, Error> {
    let mut pattern = *old;
    if let Some(name) = &change.pool {
        pattern.pool = map.pool_named(name).map(|pool| pool.id).ok_or_else(|| no_such_pool(name, map))?;
    }
    if let Some(bytes) = change.chunk_size {
        pattern.chunk_size = layout::pattern::chunk_size(bytes)?;
    }
    if let Some(count) = change.stripe_count {
        pattern.stripe_count = layout::pattern::stripe_count(count)?;
    }
    if let Some(bytes) = change.inline_limit {
        pattern.inline_limit = layout::pattern::inline_limit(bytes)?;
    }
    if let Some(chooser) = change.chooser {
        pattern.chooser = chooser;
    }
    if let Some(scheme) = &change.scheme {
        pattern.scheme = scheme.parse().map_err(|cause: String| Error::new(Errno::EINVAL, cause))?;
    }
    let concerns_groups = change.pool.is_some() || change.scheme.is_some();
    if concerns_groups && lacks_groups(&pattern, map) {
        let (pool, scheme) = (pool_name(pattern.pool, map), pattern.scheme);
        return Err(Error::new(Errno::ENODEV, format!("pool {pool} has no groups of scheme {scheme}")).hint(
            format!(
                "weft group create --pool {pool} --scheme {scheme} creates them, or reports why it can't"
            ),
        ));
    }
    Ok(pattern)
}

/// Mirrored groups are created on demand; each target is a group of its own anyhow.
fn lacks_groups(pattern: &StripePattern, map: &ClusterMap) -> bool {
    let fits =
        |group: &Group| group.pool == pattern.pool && group.scheme == pattern.scheme && !group.is_lost();
    pattern.scheme.spans_targets() && !map.groups.iter().any(fits)
}

/// Pool name and scheme of groups that a change of a pattern needs and that don't exist yet.
pub fn missing_groups(
    reader: &dyn Reader,
    map: &ClusterMap,
    ino: InodeId,
    change: &PatternChange,
) -> Result<Option<(String, Scheme)>, ReadError> {
    let key = keys::inode(ino);
    let Some(value) = reader.get(&key)? else { return Ok(None) };
    let inode: Inode = record::decode(&key, value)?;
    let mut pattern = match &inode.pattern {
        Some(pattern) => pattern.try_into()?,
        None => StripePattern::default(),
    };
    if let Some(pool) = change.pool.as_ref().and_then(|name| map.pool_named(name)) {
        pattern.pool = pool.id;
    }
    if let Some(scheme) = change.scheme.as_ref().and_then(|scheme| scheme.parse().ok()) {
        pattern.scheme = scheme;
    }
    Ok(lacks_groups(&pattern, map).then(|| (pool_name(pattern.pool, map), pattern.scheme)))
}

fn no_such_pool(name: &str, map: &ClusterMap) -> Error {
    let known: Vec<&str> = map.pools.iter().map(|pool| pool.name.as_str()).collect();
    Error::new(Errno::EINVAL, format!("there is no pool {name}"))
        .hint(format!("the pools are: {}", known.join(", ")))
}

fn description(tx: &Tx<'_>, ino: InodeId, inode: &Inode) -> Outcome<MetaReply> {
    let pattern = pattern_of(inode)?;
    let inline = if inode.inline { Some(inline_content(tx, ino, inode)?.len() as u64) } else { None };
    Ok(MetaReply::Description(Box::new(EntryDescription {
        attr: inode.attr(ino),
        pattern,
        pool: pool_name(pattern.pool, tx.env.map),
        layout: inode.layout.as_ref().map(Layout::try_from).transpose()?,
        inline,
    })))
}

/// The name of a pool; a pool that the map doesn't have is shown by its number.
fn pool_name(id: PoolId, map: &ClusterMap) -> String {
    map.pool(id).map_or_else(|| format!("pool {id}"), |pool| pool.name.clone())
}
