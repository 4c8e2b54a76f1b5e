//! Files that would lose content with a target, and what the metadata has in some groups.
//!
//! Both go by the metadata alone: a file with a part in one of the groups counts, also where that
//! part is a hole or where nothing was written yet, since it could not be written any more.

use crate::finding::Report;
use crate::online::Online;
use crate::tree::{PAGE, unreadable};
use bytes::Bytes;
use kv::Engine;
use namespace::keys::{self, KeyRange};
use namespace::record::{self, Inode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use types::{
    Errno, Error, GroupId, GroupUsage, InodeId, Layout, MemberState, PartitionId, Result, Scheme, TargetId,
};

/// Files that [`Losses`] names: it is sent as one message.
const MAX_NAMED: usize = 1000;

/// A file that would lose content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostFile {
    /// A path of the file.
    pub path: String,
    /// Its inode.
    pub ino: InodeId,
    /// Its length, bytes.
    pub size: u64,
    /// How much of that would be lost, bytes.
    pub lost: u64,
}

/// A group whose content would be lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostGroup {
    /// Which.
    pub group: GroupId,
    /// How it keeps data.
    pub scheme: Scheme,
    /// A member that has missed something and could go on with what it has (`weft group recover`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_on: Option<TargetId>,
}

/// What would be lost if a target were removed that is offline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Losses {
    /// The target.
    pub target: TargetId,
    /// Groups of which it alone has everything.
    pub groups: Vec<LostGroup>,
    /// Files with a part there.
    pub files: u64,
    /// Bytes of these parts.
    pub bytes: u64,
    /// The files, as far as one message holds them.
    pub named: Vec<LostFile>,
}

/// What would be lost with a target; `tell` is called with each file.
///
/// # Errors
/// `ENOENT` for a target that isn't there. A metadata store that can't be read. What `tell` says.
pub fn losses(
    cluster: &Online<'_>,
    target: TargetId,
    tell: &mut dyn FnMut(&LostFile) -> Result<()>,
) -> Result<Losses> {
    if cluster.map.target(target).is_none() {
        return Err(Error::new(Errno::ENOENT, format!("there is no target {target}"))
            .hint("weft target list shows all"));
    }
    let groups = lost_groups(cluster, target);
    let ids: BTreeSet<GroupId> = groups.iter().map(|lost| lost.group).collect();
    let mut losses = Losses { target, groups, files: 0, bytes: 0, named: Vec::new() };
    let tree = cluster.read(&mut Report::default(), false)?;
    let mut inodes: Vec<InodeId> = tree.inodes.keys().copied().collect();
    inodes.sort_unstable();
    for ino in inodes {
        let Some(inode) = tree.inode(ino) else { continue };
        // A layout that can't be read is damage, which the check tells of.
        let Ok(Some(part)) = Part::of(inode, &ids) else { continue };
        let file = LostFile { path: tree.path(ino), ino, size: inode.size, lost: part.bytes };
        tell(&file)?;
        losses.files += 1;
        losses.bytes += part.bytes;
        if losses.named.len() < MAX_NAMED {
            losses.named.push(file);
        }
    }
    Ok(losses)
}

fn lost_groups(cluster: &Online<'_>, target: TargetId) -> Vec<LostGroup> {
    let has_missed = |state| matches!(state, MemberState::NeedsResync | MemberState::Resyncing);
    let alone = cluster.map.groups.iter().filter(|group| group.is_only_on(target));
    let lost = |group: &types::Group| LostGroup {
        group: group.id,
        scheme: group.scheme,
        older_on: group.with_states().find(|(_, state)| has_missed(*state)).map(|(id, _)| id),
    };
    alone.map(lost).collect()
}

/// What the metadata has in some groups, as it is in a store that doesn't change. Lets other tasks
/// of the core run meanwhile.
///
/// # Errors A store that can't be read, also where a single record can't be: it may be about one of
/// these groups.
pub async fn usage(engine: &dyn Engine, partitions: u16, groups: &BTreeSet<GroupId>) -> Result<GroupUsage> {
    let mut usage = GroupUsage::default();
    for partition in (0..partitions).map(PartitionId) {
        let mut take_inode = |key: &Bytes, value: Bytes| {
            let inode: Inode = record::decode(key, value)?;
            if let Some(part) = Part::of(&inode, groups)? {
                usage.files += 1;
                usage.bytes += part.bytes;
                usage.used.extend(part.groups);
            }
            Ok(())
        };
        each(engine, keys::inodes_after(partition, InodeId(0)), &mut take_inode).await?;
        let mut take_doomed = |key: &Bytes, value: Bytes| {
            let layout: record::Layout = record::decode(key, value)?;
            let layout = Layout::try_from(&layout)?;
            usage.used.extend(layout.groups.into_iter().filter(|group| groups.contains(group)));
            Ok(())
        };
        each(engine, keys::doomed_after(partition, InodeId(0)), &mut take_doomed).await?;
    }
    Ok(usage)
}

/// What a file has in some groups.
struct Part {
    groups: BTreeSet<GroupId>,
    bytes: u64,
}

impl Part {
    /// `None` for a file that has nothing there.
    fn of(inode: &Inode, groups: &BTreeSet<GroupId>) -> Result<Option<Part>> {
        let Some(stored) = &inode.layout else { return Ok(None) };
        let layout = Layout::try_from(stored)?;
        let mut part = Part { groups: BTreeSet::new(), bytes: 0 };
        for (stripe, group) in layout.groups.iter().enumerate().filter(|(_, id)| groups.contains(id)) {
            part.groups.insert(*group);
            part.bytes += if inode.inline { 0 } else { layout::local_len(&layout, stripe, inode.size) };
        }
        Ok((!part.groups.is_empty()).then_some(part))
    }
}

async fn each(
    engine: &dyn Engine,
    range: KeyRange,
    take: &mut dyn FnMut(&Bytes, Bytes) -> Result<()>,
) -> Result<()> {
    let mut from = range.from;
    loop {
        let page = engine.scan(&from, &range.to, PAGE).map_err(unreadable)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        from = [last.as_ref(), &[0]].concat();
        for (key, value) in page {
            take(&key, value)?;
        }
        rt::yield_now().await;
    }
}
