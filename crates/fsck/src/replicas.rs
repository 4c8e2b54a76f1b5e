//! Compares the replicas of mirrored groups.

use crate::data::{self, ReplicaLocation, replica_locations, store_error, stripe_of};
use crate::finding::{CheckReport, Finding, Kind};
use crate::tree::{Tree, file_ranges};
use crate::{Progress, Subject};
use chunkstore::{IoPath, Store};
use rt::IoBuf;
use std::collections::{BTreeMap, BTreeSet};
use types::{ByteRange, ChunkFileId, Error, Group, HashSet, InodeId, MemberState, Result};

/// Bytes that are compared at a time.
const PIECE: u64 = 1 << 20;

/// Dirty regions that are read at a time.
const REGIONS_AT_ONCE: usize = 4096;

const REMEDY: &str =
    "repair uses the content of the majority of replicas; with two, that of the group's primary";

/// Reports which replicas aren't checked, and compares the others of each group, file by file.
pub(crate) async fn check(
    subject: &Subject<'_>,
    tree: &Tree,
    below: Option<&HashSet<InodeId>>,
    report: &mut CheckReport,
    progress: Progress<'_>,
) -> Result<()> {
    for (&(target, group), error) in subject.unopened {
        report_unopened(subject, ReplicaLocation { target, group: Some(group) }, error, report);
    }
    for group in subject.map.groups.iter().filter(|group| group.scheme.is_redundant()) {
        report_states(subject, group, report);
        Comparison::of(subject, tree, group).await?.run(below, report, progress).await?;
    }
    Ok(())
}

/// Reports a replica that can't be opened: damage if it should be in sync. Any other member is
/// resynced when the cluster runs, and is not checked anyway.
fn report_unopened(
    subject: &Subject<'_>,
    location: ReplicaLocation,
    error: &Error,
    report: &mut CheckReport,
) {
    match data::state_of(subject, location) {
        Some(MemberState::InSync) => {
            let object =
                location.group.map_or_else(|| location.to_string(), |group| format!("group {group}"));
            let found = Finding::new(Kind::UnknownTarget, object, &*error.message, &*error.hint);
            report.findings.push(found.at(location, subject.map));
        }
        Some(_) => {}
        None => report.unjudged.push(format!("content of a former member, {location}: {}", error.message)),
    }
}

/// Reports each member that isn't in sync, and each that isn't here.
fn report_states(subject: &Subject<'_>, group: &Group, report: &mut CheckReport) {
    for (location, state) in replica_locations(Some(group)) {
        if state != MemberState::InSync {
            let state = state.name();
            report.unjudged.push(format!(
                "the replica of group {} on target {} is {state}: it is resynced when the cluster runs",
                group.id, location.target
            ));
        } else if !subject.stores.contains_key(&location.target) {
            report
                .unjudged
                .push(format!("the replica of group {} on target {} is not here", group.id, location.target));
        }
    }
}

/// The in-sync replicas of one group that are here.
struct Comparison<'a> {
    subject: &'a Subject<'a>,
    tree: &'a Tree,
    group: &'a Group,
    stores: Vec<(ReplicaLocation, &'a Store)>,
    /// Files that may differ: a restart of the cluster resyncs them.
    may_differ: BTreeSet<ChunkFileId>,
    /// All files may differ.
    overflowed: bool,
}

impl<'a> Comparison<'a> {
    async fn of(subject: &'a Subject<'a>, tree: &'a Tree, group: &'a Group) -> Result<Comparison<'a>> {
        let mut comparison = Comparison {
            subject,
            tree,
            group,
            stores: Vec::new(),
            may_differ: BTreeSet::new(),
            overflowed: false,
        };
        for (location, state) in replica_locations(Some(group)) {
            let store = subject.replicas.get(&(location.target, group.id));
            if let (MemberState::InSync, Some(store)) = (state, store) {
                comparison.may_differ.extend(dirty_files(store).await?);
                comparison.overflowed |= store.has_overflowed();
                comparison.stores.push((location, store));
            }
        }
        Ok(comparison)
    }

    async fn run(
        &self,
        below: Option<&HashSet<InodeId>>,
        report: &mut CheckReport,
        progress: Progress<'_>,
    ) -> Result<()> {
        let Some(((first, reference), others)) = self.stores.split_first() else { return Ok(()) };
        if others.is_empty() {
            return Ok(());
        }
        if self.overflowed {
            let group = self.group.id;
            report.unjudged.push(format!(
                "the replicas of group {group} were not compared: they are resynced completely when the cluster runs"
            ));
            return Ok(());
        }
        let mut files: BTreeSet<ChunkFileId> =
            reference.list().await.map_err(store_error)?.into_iter().collect();
        for (_, other) in others {
            files.extend(other.list().await.map_err(store_error)?);
        }
        files.retain(|name| below.is_none_or(|below| below.contains(&name.owner())));
        let total = files.len() as u64;
        for (done, &name) in files.iter().enumerate() {
            progress(&format!("comparing replicas of group {}", self.group.id), done as u64, total);
            for (location, other) in others {
                self.compare(name, (*first, reference), (*location, other), report).await?;
            }
        }
        Ok(())
    }

    async fn compare(
        &self,
        name: ChunkFileId,
        (first, reference): (ReplicaLocation, &Store),
        (second, other): (ReplicaLocation, &Store),
        report: &mut CheckReport,
    ) -> Result<()> {
        let ino = name.owner();
        let layout = self.tree.layout(ino);
        let owned = layout.and_then(|layout| {
            let stripe = stripe_of(self.subject.map, &layout, first, name.slot())?;
            Some((layout, stripe))
        });
        // Orphaned chunk files are reported as such.
        let Some((layout, stripe)) = owned else { return Ok(()) };
        if self.may_differ.contains(&name) || self.tree.writing.contains(&ino) {
            report.pending += 1;
            return Ok(());
        }
        let lens =
            [reference.stat(name).await.map_err(store_error)?, other.stat(name).await.map_err(store_error)?];
        let lens = lens.map(|stat| stat.len);
        let object = format!("chunk file {:016x}", name.0);
        let size = self.tree.inode(ino).map_or(0, |inode| inode.size);
        // A missing or short chunk file is reported as such.
        let needs =
            self.tree.content(ino).map(|content| (content.required_len(stripe), content.known_len(stripe)));
        let (needed, known) = needs.unwrap_or_default();
        let is_reported_missing = lens.iter().any(|&len| (len == 0 && needed > 0) || len < known);
        if lens[0] != lens[1] && !is_reported_missing {
            let cause = format!("{object} has {} bytes on {first} and {} on {second}", lens[0], lens[1]);
            let found = Finding::new(Kind::CopiesDiffer, self.tree.path(ino), cause, REMEDY);
            report.findings.push(found.at(second, self.subject.map).of(ino, stripe));
        }
        let mut differing: Vec<ByteRange> = Vec::new();
        let (end, mut at) = (lens[0].min(lens[1]), 0);
        while at < end {
            let range = ByteRange::new(at, (at + PIECE).min(end));
            at = range.end;
            // A piece that can't be read is reported as damaged.
            let [Some(one), Some(two)] = [read(reference, name, range).await, read(other, name, range).await]
            else {
                continue;
            };
            differing.extend(differences(one.as_slice(), two.as_slice(), range.start));
        }
        let cause = format!("{object} differs between {first} and {second}");
        for range in differing.iter().flat_map(|local| file_ranges(&layout, stripe, *local, size)) {
            let found = Finding::new(Kind::CopiesDiffer, self.tree.path(ino), cause.clone(), REMEDY);
            report.findings.push(found.over(range).at(second, self.subject.map).of(ino, stripe));
        }
        Ok(())
    }
}

async fn read(store: &Store, name: ChunkFileId, range: ByteRange) -> Option<IoBuf> {
    let buf = IoBuf::alloc((range.end - range.start) as usize);
    store.read(name, range.start, &buf, IoPath::Cached).await.ok().map(|_| buf)
}

/// Returns the blocks that differ, with adjacent ones joined.
fn differences(one: &[u8], two: &[u8], start: u64) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    let blocks = one.chunks(types::BLOCK_SIZE).zip(two.chunks(types::BLOCK_SIZE)).enumerate();
    for (at, (one, _)) in blocks.filter(|(_, (one, two))| one != two) {
        let at = start + (at * types::BLOCK_SIZE) as u64;
        let range = ByteRange::at(at, one.len() as u64);
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

/// Returns the files with dirty regions.
async fn dirty_files(store: &Store) -> Result<BTreeSet<ChunkFileId>> {
    let (mut noted, mut from) = (BTreeSet::new(), Some(ChunkFileId(0)));
    while let Some(start) = from {
        let (regions, next) = store.dirty_ranges(start, REGIONS_AT_ONCE).await.map_err(store_error)?;
        noted.extend(regions.into_iter().map(|(ino, _)| ino));
        from = next;
    }
    Ok(noted)
}

/// Files that may differ between the replicas of each group.
pub(crate) type DifferingFiles = BTreeMap<types::GroupId, BTreeSet<ChunkFileId>>;

/// Returns the files with dirty regions in the in-sync replicas that are here, by group.
pub(crate) async fn all_differing_files(subject: &Subject<'_>) -> Result<DifferingFiles> {
    let mut all = DifferingFiles::new();
    for ((target, group), store) in subject.replicas {
        let is_good = |known: &Group| known.state_of(*target) == Some(MemberState::InSync);
        if subject.map.group(*group).is_some_and(is_good) {
            all.entry(*group).or_default().extend(dirty_files(store).await?);
        }
    }
    Ok(all)
}
