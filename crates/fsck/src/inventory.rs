//! The inventory of a running cluster: compares the chunk files that exist, and their lengths, with
//! what the metadata says. It reads no content and keeps one page of inodes in memory, so that it
//! can run beside clients in a cluster of any size.
//!
//! A scrub of a target finds what is wrong with the chunk files that the target knows. It can't
//! know of a chunk file that was lost together with its checksums: only the metadata does.

use crate::data::{ReplicaLocation, replica_locations};
use crate::finding::Kind;
use crate::online::{Online, ReplicaFile};
use crate::plan::ReplicaState;
use crate::tree::{Tree, metadata_store_error};
use namespace::keys::{self, Key};
use std::collections::BTreeSet;
use types::{InodeId, MemberState, PartitionId, Result, TargetId};

/// Inodes that are read at a time.
const PAGE: usize = 1024;

/// The part of the inode space that an inventory has still to cover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InventoryPosition {
    partition: u16,
    after: InodeId,
}

impl InventoryPosition {
    /// The start of the inode space.
    pub const START: InventoryPosition = InventoryPosition { partition: 0, after: InodeId(0) };
}

/// What an inventory found in one page of inodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InventoryPage {
    /// Files with content in chunk files.
    pub files: u64,
    /// Chunk files that are missing or too short.
    pub missing: Vec<MissingChunkFile>,
    /// Targets that could not be asked for a chunk file.
    pub unreachable: BTreeSet<TargetId>,
}

/// A chunk file that is missing or too short.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MissingChunkFile {
    /// The inode of its file.
    pub ino: InodeId,
    /// Its target.
    pub target: TargetId,
}

/// Checks the next page of inodes of a running cluster, and returns the position after it; `None`
/// at the end. The result holds for the cluster's map: a caller whose map has changed meanwhile
/// repeats the page before it believes that something is missing.
///
/// # Errors
/// A metadata store that can't be read.
pub async fn inventory_page(
    cluster: &Online<'_>,
    position: &InventoryPosition,
) -> Result<Option<(InventoryPage, InventoryPosition)>> {
    let mut position = position.clone();
    while position.partition < cluster.partitions {
        let range = keys::inodes_after(PartitionId(position.partition), position.after);
        let scanned = cluster.metadata.scan(&range.from, &range.to, PAGE).await;
        let found = scanned.map_err(metadata_store_error)?;
        let inode = |key: &[u8]| match keys::decode_key(key) {
            Some(Key::Inode(ino)) => Some(ino),
            _ => None,
        };
        let inodes: Vec<InodeId> = found.iter().filter_map(|(key, _)| inode(key)).collect();
        if let Some(&last) = inodes.last() {
            position.after = last;
            return Ok(Some((cluster.check_page(&inodes).await?, position)));
        }
        position = InventoryPosition { partition: position.partition + 1, after: InodeId(0) };
    }
    Ok(None)
}

impl Online<'_> {
    /// Finds the missing chunk files of these inodes.
    async fn check_page(&self, inodes: &[InodeId]) -> Result<InventoryPage> {
        let mut page = InventoryPage::default();
        let mut suspects = Vec::new();
        for &ino in inodes {
            let tree = self.read_file(ino.first_chunk_file()).await?;
            let is_at_rest = tree.layout(ino).is_some() && !tree.writing.contains(&ino);
            page.files += u64::from(tree.layout(ino).is_some());
            if is_at_rest && !self.missing_of(&tree, ino, &mut page.unreachable).await.is_empty() {
                suspects.push(ino);
            }
        }
        if suspects.is_empty() {
            return Ok(page);
        }
        // A write, a truncation or a migration may have been under way.
        self.targets.pause().await?;
        for ino in suspects {
            let before = self.read_file(ino.first_chunk_file()).await?;
            if before.writing.contains(&ino) {
                continue;
            }
            let missing = self.missing_of(&before, ino, &mut page.unreachable).await;
            let after = self.read_file(ino.first_chunk_file()).await?;
            if after.writing.contains(&ino) || after.content(ino) != before.content(ino) {
                continue;
            }
            page.missing.extend(missing.into_iter().map(|target| MissingChunkFile { ino, target }));
        }
        Ok(page)
    }

    /// Returns the targets of a file's chunk files that are missing or too short, one entry each.
    async fn missing_of(
        &self,
        tree: &Tree,
        ino: InodeId,
        unreachable: &mut BTreeSet<TargetId>,
    ) -> Vec<TargetId> {
        let mut missing = Vec::new();
        let Some(content) = tree.content(ino) else { return missing };
        for (stripe, &group) in content.layout.groups.iter().enumerate() {
            // Nothing is required of the chunk files of a hole.
            if content.required_len(stripe) == 0 {
                continue;
            }
            let name = content.layout.chunk_file(ino, stripe);
            let members = replica_locations(self.map.group(group));
            for (location, _) in members.filter(|(_, state)| *state == MemberState::InSync) {
                let ReplicaLocation { target, .. } = location;
                // Each request to a node that is down may wait for a time-out.
                if unreachable.contains(&target) {
                    continue;
                }
                let Ok(len) = self.targets.len(location, name).await else {
                    unreachable.insert(target);
                    continue;
                };
                let state = ReplicaState { len, ..ReplicaState::default() };
                let fault = ReplicaFile { location, name, stripe, content: &content }.fault(&state);
                let is_missing = |kind: Kind| matches!(kind, Kind::MissingChunkFile | Kind::ShortChunkFile);
                missing.extend(fault.filter(|fault| is_missing(fault.kind)).map(|_| target));
            }
        }
        missing
    }
}
