//! Orphaned chunk files in a running cluster.
//!
//! A file's inode is on disk before its first chunk file is created. The inode, or the record of
//! its pending deletion, outlasts the last chunk file. So a chunk file is orphaned if it existed
//! before the metadata was read, no record refers to it, and it still exists afterwards: inode
//! numbers are never reused. This doesn't hold where records can't be read: one of them may refer
//! to it. A chunk file whose file exists and is being migrated is reported and left alone.

use crate::data::{ReplicaLocation, is_deletion_pending, replica_locations, stripe_of};
use crate::finding::{CheckReport, Finding, Kind};
use crate::metadata_age;
use crate::online::{Online, Unreachable, unreachable_reason};
use crate::targets::Discard;
use crate::tree::Tree;
use std::collections::BTreeSet;
use types::{ChunkFileId, ClusterMap, MemberState, Result};

/// Remedy for an orphaned chunk file.
pub(crate) const REMEDY: &str = "repair moves it aside, and deletes it with --delete";

/// Remedy text after a chunk file was moved aside.
const MOVED_ASIDE_REMEDY: &str =
    "it was moved aside: weft fsck --orphans list, restore or delete, on its node";

/// Remedy for a chunk file of an existing file that has no chunks at this location.
const MIGRATING_REMEDY: &str =
    "its file is migrating and may come here: repair again when no migration runs and no target is draining";

impl Online<'_> {
    /// Reports orphaned chunk files, and removes them where the orders require it.
    pub(crate) async fn check_orphans(
        &self,
        report: &mut CheckReport,
        unreachable: &Unreachable,
    ) -> Result<()> {
        let mut listed: Vec<(ReplicaLocation, BTreeSet<ChunkFileId>)> = Vec::new();
        let all = self.chunk_file_locations();
        let total = all.len() as u64;
        for (done, location) in all.into_iter().enumerate() {
            (self.progress)("listing chunk files", done as u64, total);
            // Unreachable replicas are reported already.
            if unreachable.keys().any(|unreachable_location| unreachable_location.target == location.target) {
                continue;
            }
            match self.list(location).await {
                Ok(files) => listed.push((location, files)),
                Err(error) => {
                    report.unjudged.push(format!("chunk files on {location}: {}", unreachable_reason(&error)))
                }
            }
        }
        let tree = self.read(&mut CheckReport::default(), false).await?;
        let mut all = listed.iter().flat_map(|(_, files)| files);
        let is_older = all.any(|name| metadata_age::is_unallocated(&tree, *name));
        for (location, files) in listed {
            let orphaned: Vec<ChunkFileId> =
                files.into_iter().filter(|name| !is_referenced(self.map, &tree, location, *name)).collect();
            if orphaned.is_empty() {
                continue;
            }
            if !tree.damaged.is_empty() {
                let count = orphaned.len();
                report.unjudged.push(format!(
                    "{count} chunk files on {location} seem to be orphaned, but unreadable metadata records may refer to them"
                ));
                continue;
            }
            let now = self.list(location).await.unwrap_or_default();
            for name in orphaned.into_iter().filter(|name| now.contains(name)) {
                self.report_orphan((location, name), is_older, report).await?;
            }
        }
        Ok(())
    }

    /// `is_older`: the metadata is older than the chunk files.
    async fn report_orphan(
        &self,
        (location, name): (ReplicaLocation, ChunkFileId),
        is_older: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        // Since the list was made, a file may have been migrated here, or away and back.
        let now = self.read_file(name).await?;
        if !now.damaged.is_empty() || is_referenced(self.map, &now, location, name) {
            return Ok(());
        }
        let object = format!("chunk file {:016x} on {location}", name.0);
        let found = Finding::new(Kind::StrayChunkFile, object, "no file has chunks here", REMEDY);
        let mut found = found.at(location, self.map);
        if now.inode(name.owner()).is_some() && self.may_be_migrating(name.owner()).await? {
            // The file may be migrated here at any time, or its migration may mistake the deletion
            // for its own.
            found.remedy = MIGRATING_REMEDY.into();
        } else if self.options.repair && is_older && !self.options.accept_loss {
            found.cause = format!("{}, and the metadata looks older than the chunk files", found.cause);
            found.remedy = metadata_age::REMEDY.into();
        } else if self.options.repair {
            let how = self.options.discard();
            record_discard(&mut found, how, self.targets.discard(location, name, how).await);
        }
        report.findings.push(found);
        Ok(())
    }

    /// Returns the locations of chunk files: each target, and each in-sync replica of a group.
    fn chunk_file_locations(&self) -> Vec<ReplicaLocation> {
        let targets =
            self.map.targets.iter().map(|target| ReplicaLocation { target: target.id, group: None });
        let groups = self.map.groups.iter().filter(|group| group.scheme.spans_targets());
        let replicas = groups.flat_map(|group| replica_locations(Some(group)));
        let good = replicas.filter(|(_, state)| *state == MemberState::InSync).map(|(location, _)| location);
        targets.chain(good).collect()
    }

    async fn list(&self, location: ReplicaLocation) -> Result<BTreeSet<ChunkFileId>> {
        let (mut files, mut from) = (BTreeSet::new(), Some(ChunkFileId(0)));
        while let Some(at) = from {
            let (some, next) = self.targets.list(location, at).await?;
            files.extend(some);
            from = next;
        }
        Ok(files)
    }
}

/// Records the outcome for an orphaned chunk file, or for one that is too long.
pub(crate) fn record_discard(found: &mut Finding, how: Discard, outcome: Result<()>) {
    found.repaired = outcome.is_ok();
    found.remedy = match (outcome, how) {
        (Ok(()), Discard::MoveAside) => MOVED_ASIDE_REMEDY.into(),
        (Ok(()), Discard::Delete) => String::new(),
        (Err(error), _) => {
            let hint = if error.hint.is_empty() { String::new() } else { format!("; {}", error.hint) };
            format!("it is left as it is: {}{hint}", error.message)
        }
    };
}

/// Returns whether a file has this chunk file, may be about to have it, or has its deletion
/// pending.
fn is_referenced(map: &ClusterMap, tree: &Tree, location: ReplicaLocation, name: ChunkFileId) -> bool {
    let ino = name.owner();
    // Chunk files of interrupted writes are reconciled by the service that serves the file.
    if tree.writing.contains(&ino) || tree.inode(ino).is_some_and(|inode| inode.inline) {
        return true;
    }
    let is_owned =
        tree.layout(ino).is_some_and(|layout| stripe_of(map, &layout, location, name.slot()).is_some());
    is_owned || is_deletion_pending(map, tree, location, name)
}
