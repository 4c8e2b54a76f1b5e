//! Checks chunk files against layouts and checksums.

use crate::content_repair::FileContent;
use crate::finding::{CheckReport, Finding, Kind};
use crate::local::{discard, truncate};
use crate::orphans::{REMEDY, record_discard};
use crate::replicas::all_differing_files;
use crate::tree::{Tree, file_ranges};
use crate::{CheckOptions, Progress, Subject};
use chunkstore::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{
    ByteRange, ChunkFileId, ChunkSlot, ClusterMap, Errno, Error, Group, GroupId, HashSet, InodeId, Layout,
    MemberState, Result, TargetId,
};

/// Checks every chunk file, and every layout for missing chunk files.
pub(crate) async fn check(
    subject: &Subject<'_>,
    tree: &Tree,
    (options, below): (&CheckOptions<'_>, Option<&HashSet<InodeId>>),
    report: &mut CheckReport,
    progress: Progress<'_>,
) -> Result<()> {
    let mut present = Present::new();
    for (location, store) in all_stores(subject) {
        check_store(subject, tree, (location, store), &mut present, ((options, below), report), progress)
            .await?;
    }
    check_missing(subject, tree, (&present, below), report).await
}

/// Returns all stores whose chunk files are checked. A replica that is not in sync has outdated
/// chunk files, which the resync replaces, so it is left out.
pub(crate) fn all_stores<'a>(
    subject: &'a Subject<'_>,
) -> impl Iterator<Item = (ReplicaLocation, &'a Arc<Store>)> {
    let targets =
        subject.stores.iter().map(|(&target, store)| (ReplicaLocation { target, group: None }, store));
    let replicas = subject.replicas.iter();
    let replicas =
        replicas.map(|(&(target, group), store)| (ReplicaLocation { target, group: Some(group) }, store));
    let is_checked = move |location| {
        state_of(subject, location) == Some(MemberState::InSync) || is_orphaned_replica(subject, location)
    };
    targets.chain(replicas.filter(move |(location, _)| is_checked(*location)))
}

/// Replica location: a name space of chunk files, either a target's own or that of its replica of a
/// mirrored group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaLocation {
    /// The target.
    pub target: TargetId,
    /// The mirrored group; `None` for the target's own chunk files.
    pub group: Option<GroupId>,
}

impl std::fmt::Display for ReplicaLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group {
            Some(group) => write!(f, "target {} (group {group})", self.target),
            None => write!(f, "target {}", self.target),
        }
    }
}

/// The existing chunk files by location.
type Present = BTreeMap<ReplicaLocation, BTreeSet<ChunkFileId>>;

async fn check_store(
    subject: &Subject<'_>,
    tree: &Tree,
    (location, store): (ReplicaLocation, &Store),
    present: &mut Present,
    ((orders, below), report): ((&CheckOptions<'_>, Option<&HashSet<InodeId>>), &mut CheckReport),
    progress: Progress<'_>,
) -> Result<()> {
    let files = store.list().await.map_err(store_error)?;
    let total = files.len() as u64;
    for (done, &name) in files.iter().enumerate() {
        progress(&format!("reading {location}"), done as u64, total);
        let ino = name.owner();
        if below.is_some_and(|below| !below.contains(&ino)) {
            continue;
        }
        ChunkFile { subject, tree, location, store, name, ino }.check(orders, report).await?;
    }
    present.insert(location, files.into_iter().collect());
    Ok(())
}

/// Returns the state of a replica in the cluster map; `None` for a target that is not a member of
/// the group.
pub(crate) fn state_of(subject: &Subject<'_>, location: ReplicaLocation) -> Option<MemberState> {
    subject.map.group(location.group?)?.state_of(location.target)
}

/// Returns whether a replica belongs to no group, so that no file has chunks in it.
fn is_orphaned_replica(subject: &Subject<'_>, location: ReplicaLocation) -> bool {
    location.group.is_some() && state_of(subject, location).is_none()
}

/// Remedy for a chunk file that is longer than its file.
const REMEDY_OF_LENGTH: &str = "repair truncates it and moves a copy aside, or none with --delete; if the metadata was restored from an old backup, restore a newer one first";

struct ChunkFile<'a> {
    subject: &'a Subject<'a>,
    tree: &'a Tree,
    location: ReplicaLocation,
    store: &'a Store,
    name: ChunkFileId,
    /// Inode of its file.
    ino: InodeId,
}

impl ChunkFile<'_> {
    async fn check(&self, options: &CheckOptions<'_>, report: &mut CheckReport) -> Result<()> {
        if is_deletion_pending(self.subject.map, self.tree, self.location, self.name) {
            return Ok(());
        }
        let layout = self.tree.layout(self.ino);
        let owned = layout.and_then(|layout| {
            let stripe = stripe_of(self.subject.map, &layout, self.location, self.name.slot())?;
            Some((layout, stripe))
        });
        match owned {
            Some((layout, stripe)) => {
                self.length(&layout, stripe, options, report).await?;
                self.content(&layout, stripe, report).await
            }
            // A write that moves a file from inline to chunks was interrupted; the restart removes
            // the chunks.
            None if self.tree.writing.contains(&self.ino) => Ok(()),
            None => self.stray(options, report).await,
        }
    }

    fn object(&self) -> String {
        format!("chunk file {:016x} on {}", self.name.0, self.location)
    }

    async fn stray(&self, options: &CheckOptions<'_>, report: &mut CheckReport) -> Result<()> {
        let found = Finding::new(Kind::StrayChunkFile, self.object(), "no file has chunks here", REMEDY);
        let mut found = found.at(self.location, self.subject.map);
        if options.repair {
            let how = options.discard();
            let outcome = discard(self.store, self.name, how).await.map_err(store_error);
            record_discard(&mut found, how, outcome);
        }
        report.findings.push(found);
        Ok(())
    }

    async fn length(
        &self,
        layout: &Layout,
        stripe: usize,
        options: &CheckOptions<'_>,
        report: &mut CheckReport,
    ) -> Result<()> {
        if self.tree.writing.contains(&self.ino) {
            return Ok(());
        }
        let size = self.tree.inode(self.ino).map_or(0, |inode| inode.size);
        let expected = layout::local_len(layout, stripe, size);
        let len = self.store.stat(self.name).await.map_err(store_error)?.len;
        if len <= expected {
            return Ok(());
        }
        let cause = format!("{} has {len} bytes, but the file only {expected} of them", self.object());
        let found = Finding::new(Kind::LongChunkFile, self.tree.path(self.ino), cause, REMEDY_OF_LENGTH);
        let mut found = found.at(self.location, self.subject.map);
        if options.repair {
            let how = options.discard();
            let outcome = truncate(self.store, self.name, expected, how).await.map_err(store_error);
            record_discard(&mut found, how, outcome);
        }
        report.findings.push(found);
        Ok(())
    }

    async fn content(&self, layout: &Layout, stripe: usize, report: &mut CheckReport) -> Result<()> {
        let size = self.tree.inode(self.ino).map_or(0, |inode| inode.size);
        let stat = self.store.stat(self.name).await.map_err(store_error)?;
        report.chunk_files += 1;
        report.bytes += stat.len;
        let damaged = match self.store.verify(self.name).await {
            Ok(damaged) => damaged,
            Err(error) => {
                let remedy = "check the target's device; restore the file from a backup";
                let path = self.tree.path(self.ino);
                let found = Finding::new(Kind::DamagedContent, path, error.message(), remedy);
                let found = found.at(self.location, self.subject.map).of(self.ino, stripe);
                report.findings.push(found);
                return Ok(());
            }
        };
        for local in damaged {
            self.damaged(layout, stripe, local, size, report);
        }
        Ok(())
    }

    fn remedy_of_damage(&self) -> &'static str {
        let is_good = |(target, state): (TargetId, MemberState)| {
            state == MemberState::InSync && target != self.location.target
        };
        let group = self.location.group.and_then(|group| self.subject.map.group(group));
        match group.is_some_and(|group| group.members_with_states().any(is_good)) {
            true => "repair takes them from another replica, unless that is reported too",
            false => "restore the file from a backup, or delete it: there is no other replica to repair from",
        }
    }

    fn damaged(&self, layout: &Layout, stripe: usize, local: ByteRange, size: u64, report: &mut CheckReport) {
        for range in file_ranges(layout, stripe, local, size) {
            let cause = format!("bytes {local} of {} do not match their checksums", self.object());
            let path = self.tree.path(self.ino);
            let found = Finding::new(Kind::DamagedContent, path, cause, self.remedy_of_damage());
            report.findings.push(found.over(range).at(self.location, self.subject.map).of(self.ino, stripe));
        }
    }
}

/// Returns the stripe of the layout that the chunk file with this slot at this location contains.
pub(crate) fn stripe_of(
    map: &ClusterMap,
    layout: &Layout,
    location: ReplicaLocation,
    slot: ChunkSlot,
) -> Option<usize> {
    (0..layout.groups.len())
        .find(|&stripe| layout.slot(stripe) == slot && holds(map, layout.groups[stripe], location))
}

pub(crate) fn holds(map: &ClusterMap, group: GroupId, location: ReplicaLocation) -> bool {
    replica_locations(map.group(group)).any(|(other, _)| other == location)
}

/// Returns whether a record requires the deletion of a chunk file. A record under the name of a
/// deleted file contains slots.
pub(crate) fn is_deletion_pending(
    map: &ClusterMap,
    tree: &Tree,
    location: ReplicaLocation,
    name: ChunkFileId,
) -> bool {
    [name, name.owner().first_chunk_file()].iter().any(|noted| {
        tree.pending_deletions.get(noted).is_some_and(|doomed| {
            let mut names =
                (0..doomed.groups.len()).filter(|&s| namespace::doomed_chunk_file(*noted, doomed, s) == name);
            names.any(|s| holds(map, doomed.groups[s], location))
        })
    })
}

/// Returns the locations of a group's chunk files, with the states of the replicas.
pub(crate) fn replica_locations(
    group: Option<&Group>,
) -> impl Iterator<Item = (ReplicaLocation, MemberState)> + '_ {
    let members =
        group.into_iter().flat_map(|group| group.members_with_states().map(move |member| (group, member)));
    members.map(|(group, (target, state))| {
        let is_mirrored = group.scheme.spans_targets();
        (ReplicaLocation { target, group: is_mirrored.then_some(group.id) }, state)
    })
}

/// Remedy for a file in a lost group.
pub(crate) const LOST_GROUP_REMEDY: &str = "delete the file, or restore it from a backup";

/// Returns why content of a file in a lost group can't be read.
pub(crate) fn in_lost_group(group: GroupId) -> String {
    format!("group {group} of its layout is lost: its target was removed")
}

/// Reports files whose chunk files are missing, or end before the data that was written to them. A
/// chunk file may be absent where the file has a hole. It must exist if its length is known, or if
/// the file has no holes (as much space allocated as it has bytes).
async fn check_missing(
    subject: &Subject<'_>,
    tree: &Tree,
    (present, below): (&Present, Option<&HashSet<InodeId>>),
    report: &mut CheckReport,
) -> Result<()> {
    const REMEDY: &str =
        "repair takes it from another replica; if there is none, restore the file from a backup";
    let may_differ = all_differing_files(subject).await?;
    let mut files: Vec<InodeId> = tree.inodes.keys().copied().collect();
    files.retain(|ino| below.is_none_or(|below| below.contains(ino)));
    files.sort();
    for ino in files {
        let Some(content) = tree.content(ino) else { continue };
        for (stripe, &group) in content.layout.groups.iter().enumerate() {
            let known = subject.map.group(group);
            if known.is_some_and(Group::is_lost) {
                let cause = in_lost_group(group);
                let found = Finding::new(Kind::LostGroup, tree.path(ino), cause, LOST_GROUP_REMEDY);
                report.findings.push(Finding { lost: true, ..found });
                continue;
            }
            // A replica that can't be opened is reported only once, as that.
            let here = |location: &ReplicaLocation| subject.is_open(*location);
            if !replica_locations(known).any(|(location, _)| here(&location)) {
                let cause = format!("group {group} of its layout has no replica here that can be opened");
                report.add(Kind::UnknownTarget, tree.path(ino), cause, REMEDY);
                continue;
            }
            let needed = content.required_len(stripe);
            if needed == 0 || tree.writing.contains(&ino) {
                continue;
            }
            let name = content.layout.chunk_file(ino, stripe);
            let has =
                |location: &ReplicaLocation| present.get(location).is_some_and(|files| files.contains(&name));
            let good = replica_locations(known)
                .filter(|(location, state)| *state == MemberState::InSync && here(location));
            for (location, _) in good {
                let lack =
                    missing_content(subject, location, name, (has(&location), &content, stripe)).await?;
                let Some((kind, lack)) = lack else { continue };
                let cause = match location.group {
                    Some(group) if may_differ.get(&group).is_some_and(|noted| noted.contains(&name)) => {
                        report.pending += 1;
                        continue;
                    }
                    Some(_) => format!("its chunk file of {needed} bytes on {location} {lack}"),
                    None => format!("its chunk file of {needed} bytes in group {group} {lack}"),
                };
                let found = Finding::new(kind, tree.path(ino), cause, REMEDY);
                report.findings.push(found.at(location, subject.map).of(ino, stripe));
            }
        }
    }
    Ok(())
}

/// Returns what a replica of a chunk file lacks. If only the known length shows it, a crash that
/// the cluster hasn't reconciled yet explains it.
async fn missing_content(
    subject: &Subject<'_>,
    location: ReplicaLocation,
    name: ChunkFileId,
    (is_there, content, stripe): (bool, &FileContent, usize),
) -> Result<Option<(Kind, String)>> {
    let store = match location.group {
        Some(group) => subject.replicas.get(&(location.target, group)),
        None => subject.stores.get(&location.target),
    };
    let was_changing = store.is_some_and(|store| store.was_changing(name));
    if !is_there {
        let is_damage = content.is_dense || !was_changing;
        return Ok(is_damage.then(|| (Kind::MissingChunkFile, "is missing".into())));
    }
    let known = content.known_len(stripe);
    let Some(store) = store.filter(|_| known > 0 && !was_changing) else { return Ok(None) };
    // If its checksums show that there was more, it is reported as damaged content.
    let len = store.stat(name).await.map_err(store_error)?.len;
    let is_short = len < known && store.require_not_truncated(name).await.is_ok();
    Ok(is_short.then(|| (Kind::ShortChunkFile, format!("ends after {len}"))))
}

pub(crate) fn store_error(error: StoreError) -> Error {
    Error::new(Errno::EIO, error.message().to_owned()).hint(error.hint().to_owned())
}
