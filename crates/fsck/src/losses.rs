//! Files that would lose content with a target, and usage of groups by the metadata.
//!
//! Both are computed from the metadata alone. A file with a part in one of the groups counts, even
//! if that part is a hole or nothing was written yet, since it could not be written any more.

use crate::finding::CheckReport;
use crate::online::Online;
use crate::tree::{PAGE, metadata_store_error};
use bytes::Bytes;
use kv::{Pages, Readable};
use namespace::keys::{self, KeyRange};
use namespace::record::{self, Inode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use types::{
    ChunkFileId, Errno, Error, GroupId, GroupUsage, InodeId, Layout, MemberState, PartitionId, Result,
    Scheme, TargetId,
};

/// Most files that [`Losses`] names: it is sent as one message.
const MAX_NAMED: usize = 1000;

/// A file that would lose content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostFile {
    /// A path of the file.
    pub path: String,
    /// Its inode.
    pub ino: InodeId,
    /// Its length in bytes.
    pub size: u64,
    /// Bytes of it that would be lost.
    pub lost: u64,
}

/// A group whose content would be lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostGroup {
    /// Its id.
    pub group: GroupId,
    /// Its redundancy scheme.
    pub scheme: Scheme,
    /// A member that has missed changes and could continue with its content (`weft group recover`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_on: Option<TargetId>,
}

/// What the removal of an offline target would lose.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Losses {
    /// The target.
    pub target: TargetId,
    /// Groups whose only in-sync member it is.
    pub groups: Vec<LostGroup>,
    /// Files with a part there.
    pub files: u64,
    /// Bytes of these parts.
    pub bytes: u64,
    /// The files, as many as fit into one message.
    pub named: Vec<LostFile>,
}

/// Returns what would be lost with a target; calls `tell` with each file.
///
/// # Errors
/// `ENOENT` for an unknown target. A metadata store that can't be read. Errors of `tell`.
pub async fn losses(
    cluster: &Online<'_>,
    target: TargetId,
    on_file: &mut dyn FnMut(&LostFile) -> Result<()>,
) -> Result<Losses> {
    if cluster.map.target(target).is_none() {
        return Err(Error::new(Errno::ENOENT, format!("there is no target {target}"))
            .hint("weft target list shows all"));
    }
    let groups = lost_groups(cluster, target);
    let ids: BTreeSet<GroupId> = groups.iter().map(|lost| lost.group).collect();
    let mut losses = Losses { target, groups, files: 0, bytes: 0, named: Vec::new() };
    let tree = cluster.read(&mut CheckReport::default(), false).await?;
    let mut inodes: Vec<InodeId> = tree.inodes.keys().copied().collect();
    inodes.sort_unstable();
    for ino in inodes {
        let Some(inode) = tree.inode(ino) else { continue };
        // A layout that can't be read is damage, which the check reports.
        let Ok(Some(part)) = Part::of(inode, &ids) else { continue };
        let file = LostFile { path: tree.path(ino), ino, size: inode.size, lost: part.bytes };
        on_file(&file)?;
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
    let unreplicated = cluster.map.groups.iter().filter(|group| group.is_sole_in_sync_member(target));
    let lost = |group: &types::Group| LostGroup {
        group: group.id,
        scheme: group.scheme,
        older_on: group.members_with_states().find(|(_, state)| has_missed(*state)).map(|(id, _)| id),
    };
    unreplicated.map(lost).collect()
}

/// Returns the usage of some groups by the metadata, from a snapshot of a store. Yields to other
/// tasks of the core meanwhile.
///
/// # Errors
/// A store or a single record that can't be read: the record may refer to one of these groups.
pub async fn usage(
    metadata: &dyn Readable,
    partitions: u16,
    groups: &BTreeSet<GroupId>,
) -> Result<GroupUsage> {
    let mut usage = GroupUsage::default();
    for partition in (0..partitions).map(PartitionId) {
        let mut take_inode = |key: &Bytes, value: Bytes| {
            let inode: Inode = record::decode(key, value)?;
            if let Some(part) = Part::of(&inode, groups)? {
                usage.files += 1;
                usage.bytes += part.bytes;
                usage.referenced.extend(part.groups);
            }
            Ok(())
        };
        each(metadata, keys::inodes_after(partition, InodeId(0)), &mut take_inode).await?;
        let mut take_deletion = |key: &Bytes, value: Bytes| {
            let layout: record::Layout = record::decode(key, value)?;
            let layout = Layout::try_from(&layout)?;
            usage.referenced.extend(layout.groups.into_iter().filter(|group| groups.contains(group)));
            Ok(())
        };
        each(metadata, keys::doomed_after(partition, ChunkFileId(0)), &mut take_deletion).await?;
    }
    Ok(usage)
}

/// A file's part in some groups.
struct Part {
    groups: BTreeSet<GroupId>,
    bytes: u64,
}

impl Part {
    /// Returns `None` for a file without a part there.
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
    metadata: &dyn Readable,
    range: KeyRange,
    take: &mut dyn FnMut(&Bytes, Bytes) -> Result<()>,
) -> Result<()> {
    let mut pages = Pages::new(metadata, &range.from, &range.to, PAGE);
    while let Some(page) = pages.next().await.map_err(metadata_store_error)? {
        for (key, value) in page {
            take(&key, value)?;
        }
        rt::yield_now().await;
    }
    Ok(())
}
