//! Chunk files against layouts and checksums.

use crate::finding::{Finding, Kind, Report};
use crate::tree::{Tree, file_ranges};
use crate::{Progress, Subject};
use chunkstore::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use types::{ByteRange, Errno, Error, GroupId, InodeId, Layout, Result, TargetId};

/// Checks every chunk file, and every layout for chunk files that are gone.
pub(crate) async fn check(
    subject: &Subject<'_>,
    tree: &Tree,
    repair: bool,
    report: &mut Report,
    progress: Progress<'_>,
) -> Result<()> {
    let mut present: BTreeMap<TargetId, BTreeSet<InodeId>> = BTreeMap::new();
    for (&target, store) in subject.stores {
        let files = store.list().await.map_err(unreadable)?;
        let total = files.len() as u64;
        for (done, &ino) in files.iter().enumerate() {
            progress(&format!("reading target {target}"), done as u64, total);
            let (name, ino) = (ino, ino.of_chunk_file());
            ChunkFile { subject, tree, target, store, name, ino }.check(repair, report).await?;
        }
        present.insert(target, files.into_iter().collect());
    }
    missing(subject, tree, &present, report).await
}

struct ChunkFile<'a> {
    subject: &'a Subject<'a>,
    tree: &'a Tree,
    target: TargetId,
    store: &'a Store,
    name: InodeId,
    /// Whose it is.
    ino: InodeId,
}

impl ChunkFile<'_> {
    async fn check(&self, repair: bool, report: &mut Report) -> Result<()> {
        if self.is_doomed() {
            return Ok(());
        }
        let layout = self.tree.layout(self.ino);
        let owned = layout.and_then(|layout| {
            let stripe = stripe_of(self.subject, &layout, self.target, self.name.slot())?;
            Some((layout, stripe))
        });
        match owned {
            Some((layout, stripe)) => {
                self.length(&layout, stripe, repair, report).await?;
                self.content(&layout, stripe, report).await
            }
            // A write that moves a file from inline to chunks was interrupted; the restart removes the chunks.
            None if self.tree.writing.contains(&self.ino) => Ok(()),
            None => self.stray(repair, report).await,
        }
    }

    /// Whether it is on record that it is to be deleted. A note under the name of a file that is gone has slots in it.
    fn is_doomed(&self) -> bool {
        [self.name, self.ino].iter().any(|noted| {
            self.tree.doomed.get(noted).is_some_and(|doomed| {
                let names = (0..doomed.groups.len()).filter(|&s| doomed.chunk_file(*noted, s) == self.name);
                names.into_iter().any(|s| holds(self.subject, doomed.groups[s], self.target))
            })
        })
    }

    fn object(&self) -> String {
        format!("chunk file {:016x} on target {}", self.name.0, self.target)
    }

    async fn stray(&self, repair: bool, report: &mut Report) -> Result<()> {
        report.add(Kind::StrayChunkFile, self.object(), "no file has chunks here", "repair deletes it");
        if repair {
            self.store.delete(self.name).await.map_err(unreadable)?;
            mark_repaired(report);
        }
        Ok(())
    }

    async fn length(&self, layout: &Layout, stripe: usize, repair: bool, report: &mut Report) -> Result<()> {
        if self.tree.writing.contains(&self.ino) {
            return Ok(());
        }
        let size = self.tree.inode(self.ino).map_or(0, |inode| inode.size);
        let expected = layout::local_len(layout, stripe, size);
        let len = self.store.stat(self.name).await.map_err(unreadable)?.len;
        if len <= expected {
            return Ok(());
        }
        let cause = format!("{} has {len} bytes, {expected} belong to the file", self.object());
        report.add(Kind::LongChunkFile, self.tree.path(self.ino), cause, "repair cuts it");
        if repair {
            self.store.truncate(self.name, expected).await.map_err(unreadable)?;
            mark_repaired(report);
        }
        Ok(())
    }

    async fn content(&self, layout: &Layout, stripe: usize, report: &mut Report) -> Result<()> {
        let size = self.tree.inode(self.ino).map_or(0, |inode| inode.size);
        let stat = self.store.stat(self.name).await.map_err(unreadable)?;
        report.chunk_files += 1;
        report.bytes += stat.len;
        let damaged = match self.store.verify(self.name).await {
            Ok(damaged) => damaged,
            Err(error) => {
                let remedy = "check the target's device; restore the file from a copy";
                report.add(
                    Kind::DamagedContent,
                    self.tree.path(self.ino),
                    error.message().to_owned(),
                    remedy,
                );
                return Ok(());
            }
        };
        for local in damaged {
            self.damaged(layout, stripe, local, size, report);
        }
        Ok(())
    }

    fn damaged(&self, layout: &Layout, stripe: usize, local: ByteRange, size: u64, report: &mut Report) {
        for range in file_ranges(layout, stripe, local, size) {
            report.findings.push(Finding {
                kind: Kind::DamagedContent,
                object: self.tree.path(self.ino),
                range: Some(range),
                cause: format!("bytes {local} of {} do not match their checksums", self.object()),
                remedy: "restore the file from a copy, or delete it: there is no second copy to repair from"
                    .into(),
                repaired: false,
            });
        }
    }
}

fn mark_repaired(report: &mut Report) {
    if let Some(finding) = report.findings.last_mut() {
        finding.repaired = true;
    }
}

/// Which stripe of the layout a target holds in the chunk file of a slot.
fn stripe_of(subject: &Subject<'_>, layout: &Layout, target: TargetId, slot: u8) -> Option<usize> {
    (0..layout.groups.len())
        .find(|&stripe| layout.slot(stripe) == slot && holds(subject, layout.groups[stripe], target))
}

fn holds(subject: &Subject<'_>, group: GroupId, target: TargetId) -> bool {
    subject.map.group(group).is_some_and(|group| group.members.contains(&target))
}

/// Files whose chunk files are gone. A chunk file may rightly be absent where the file has a hole, so only files that
/// have no holes (as much space allocated as they have bytes) are judged.
async fn missing(
    subject: &Subject<'_>,
    tree: &Tree,
    present: &BTreeMap<TargetId, BTreeSet<InodeId>>,
    report: &mut Report,
) -> Result<()> {
    const REMEDY: &str = "restore the file from a copy, or delete it";
    let mut files: Vec<InodeId> = tree.inodes.keys().copied().collect();
    files.sort();
    for ino in files {
        let (Some(layout), Some(inode)) = (tree.layout(ino), tree.inode(ino)) else { continue };
        for (stripe, &group) in layout.groups.iter().enumerate() {
            let target = subject.map.group(group).and_then(|group| group.members.first());
            let Some(files) = target.and_then(|target| present.get(target)) else {
                report.add(
                    Kind::UnknownTarget,
                    tree.path(ino),
                    format!("group {group} of its layout has no target here"),
                    REMEDY,
                );
                continue;
            };
            let expected = layout::local_len(&layout, stripe, inode.size);
            let dense = inode.blocks.saturating_mul(512) >= inode.size && !tree.writing.contains(&ino);
            if expected > 0 && dense && !files.contains(&layout.chunk_file(ino, stripe)) {
                let cause = format!("its chunk file of {expected} bytes in group {group} is gone");
                report.add(Kind::MissingChunkFile, tree.path(ino), cause, REMEDY);
            }
        }
    }
    Ok(())
}

fn unreadable(error: StoreError) -> Error {
    Error::new(Errno::EIO, error.message().to_owned()).hint(error.hint().to_owned())
}
