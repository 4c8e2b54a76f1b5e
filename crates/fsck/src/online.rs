//! The check of a running file system.
//!
//! Names and inodes are checked on a snapshot, so that no operation is half done there. Chunk files
//! are read one after the other meanwhile and keep changing. So a fault is only suspected at first.
//! It counts if a second read confirms it, the file's record was the same before and after that
//! read, and no client was writing. A file that is never found at rest is counted as pending.
//!
//! The services repair content themselves: they verify again what they change, and block other
//! changes meanwhile. The record of a file is read again before each chunk file, and before content
//! is given up: a change, truncation or migration meanwhile voids the finding. Names are not
//! changed.

use crate::content_repair::{ContentRepair, FileContent};
use crate::data::{LOST_GROUP_REMEDY, ReplicaLocation, in_lost_group, replica_locations};
use crate::finding::{CheckReport, Finding, Kind};
use crate::plan::{PIECE_BYTES, ReplicaState};
use crate::targets::{Targets, read_replica};
use crate::tree::{Tree, file_ranges, metadata_store_error};
use crate::{CheckOptions, Progress, is_below, names};
use kv::{KvError, Readable};
use namespace::keys;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{
    ByteRange, ChunkFileId, ClusterMap, Errno, Error, Group, GroupId, InodeId, MemberState, Refusal, Result,
    TargetId, TargetState,
};

/// Most repeated reads of a suspect.
const MAX_REREADS: usize = 5;

/// Most pauses until a replica of every group answers: after a crash the replicas are reconciled
/// first, for which services wait for each other.
const MAX_READY_PAUSES: usize = 15;

/// Findings in a report, which is sent as one message.
const MAX_FINDINGS: usize = 1000;

/// A running cluster.
pub struct Online<'a> {
    /// The metadata store, which is read in snapshots.
    pub metadata: &'a dyn kv::Store,
    /// Number of partitions of the inode space.
    pub partitions: u16,
    /// Key of the name hash.
    pub hash_key: (u64, u64),
    /// Groups and targets.
    pub map: &'a ClusterMap,
    /// The targets.
    pub targets: &'a dyn Targets,
    /// What to do besides reading.
    pub options: CheckOptions<'a>,
    /// Called with the progress.
    pub progress: Progress<'a>,
}

/// Replicas that could not be read, and why.
pub(crate) type Unreachable = BTreeMap<ReplicaLocation, String>;

/// A suspected fault of one file.
pub(crate) struct SuspectedFault {
    pub(crate) kind: Kind,
    stripe: usize,
    location: Option<ReplicaLocation>,
    cause: String,
    ranges: Vec<ByteRange>,
}

/// Checks a running cluster. Without an order to repair nothing is changed.
///
/// # Errors
/// A metadata store that can't be read, a path that doesn't exist. Damage, and unreachable targets,
/// are in the report.
pub async fn check_online(cluster: &Online<'_>) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    cluster.wait_until_ready().await?;
    let tree = cluster.read(&mut report, true).await?;
    (report.files, report.directories) = (tree.files(), tree.directories());
    let mut unreachable = BTreeMap::new();
    let mut suspects = BTreeSet::new();
    let below = cluster.options.below.map(|path| tree.below(path)).transpose()?;
    if let Some(path) = cluster.options.below {
        report.findings.retain(|finding| is_below(&finding.object, path));
    }
    let mut files = files(&tree);
    files.retain(|ino| below.as_ref().is_none_or(|below| below.contains(ino)));
    let total = files.len() as u64;
    for (done, ino) in files.into_iter().enumerate() {
        (cluster.progress)("reading files", done as u64, total);
        match cluster.suspected_faults(&tree, ino, &mut report, &mut unreachable).await {
            wrong if wrong.is_empty() => {}
            _ => drop(suspects.insert(ino)),
        }
    }
    drop(tree);
    let mut contents = BTreeMap::new();
    for _ in 0..MAX_REREADS {
        if suspects.is_empty() {
            break;
        }
        cluster.targets.pause().await?;
        (cluster.progress)("rechecking files", 0, suspects.len() as u64);
        cluster.reread_suspects(&mut suspects, &mut contents, &mut report, &mut unreachable).await?;
    }
    report.pending += suspects.len() as u64;
    if below.is_none() {
        cluster.check_orphans(&mut report, &unreachable).await?;
    }
    if cluster.options.repair {
        (cluster.progress)("repairing files", 0, contents.len() as u64);
        let (targets, map, orders) = (cluster.targets, cluster.map, &cluster.options);
        let repair = ContentRepair { targets, map, options: orders, online: Some(cluster) };
        repair.run(&contents, &mut report).await?;
    }
    cluster.report_unreachable(unreachable, &mut report);
    truncate_findings(&mut report);
    Ok(report)
}

/// Returns files with content in chunks that no client writes.
fn files(tree: &Tree) -> Vec<InodeId> {
    let mut files: Vec<InodeId> = tree.inodes.keys().copied().collect();
    files.sort();
    files.retain(|ino| tree.layout(*ino).is_some() && !tree.writing.contains(ino));
    files
}

fn truncate_findings(report: &mut CheckReport) {
    let more = report.findings.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        report.findings.truncate(MAX_FINDINGS);
        let kind = report.findings[0].kind;
        report.add(
            kind,
            "the cluster",
            format!("{more} more findings are not listed"),
            "repair these, and check again",
        );
    }
}

impl Online<'_> {
    /// Waits until of each group a replica answers whose target is not offline; gives up after a
    /// limited time.
    async fn wait_until_ready(&self) -> Result<()> {
        let should = |(location, state): &(ReplicaLocation, MemberState)| {
            let target = self.map.target(location.target);
            *state == MemberState::InSync && target.is_some_and(|target| target.state != TargetState::Offline)
        };
        let mut waiting: Vec<Vec<ReplicaLocation>> = self
            .map
            .groups
            .iter()
            .map(|group| {
                replica_locations(Some(group)).filter(should).map(|(location, _)| location).collect()
            })
            .filter(|replicas: &Vec<ReplicaLocation>| !replicas.is_empty())
            .collect();
        let mut down = BTreeSet::new();
        for _ in 0..MAX_READY_PAUSES {
            let mut unanswered = Vec::new();
            for mut replicas in waiting {
                replicas.retain(|location| !down.contains(&location.target));
                if !self.any_answers(&replicas, &mut down).await {
                    unanswered.push(replicas);
                }
            }
            if unanswered.is_empty() {
                break;
            }
            (self.progress)("waiting for groups", 0, unanswered.len() as u64);
            waiting = unanswered;
            self.targets.pause().await?;
        }
        Ok(())
    }

    /// Takes a snapshot of the metadata store.
    async fn snapshot(&self) -> Result<Arc<dyn Readable>> {
        self.metadata.snapshot().await.map_err(|error| match error {
            KvError::NoSnapshot { .. } => {
                Error::new(Errno::EOPNOTSUPP, error.to_string()).hint("stop the cluster, then check it")
            }
            error => metadata_store_error(error),
        })
    }

    /// Reads the whole store. Adds its findings to the report if `adds_findings`.
    pub(crate) async fn read(&self, report: &mut CheckReport, adds_findings: bool) -> Result<Tree> {
        let metadata = self.snapshot().await?;
        if !adds_findings {
            let mut unused = CheckReport::default();
            return Tree::read(&*metadata, self.partitions, &mut unused, &|_, _, _| {}).await;
        }
        let mut tree = Tree::read(&*metadata, self.partitions, report, &|_, _, _| {}).await?;
        drop(names::check(self.hash_key, &mut tree, report));
        for finding in &mut report.findings {
            // The metadata services cache names in memory.
            finding.remedy =
                format!("while the management process is stopped (weft down): {}", finding.remedy);
        }
        Ok(tree)
    }

    /// Reads the records of the file that a chunk file with this name belongs to.
    pub(crate) async fn read_file(&self, name: ChunkFileId) -> Result<Tree> {
        Tree::read_file(&*self.snapshot().await?, name).await
    }

    /// Returns whether a file may be migrating.
    pub(crate) async fn may_be_migrating(&self, ino: InodeId) -> Result<bool> {
        let metadata = self.snapshot().await?;
        let wish = metadata.get(&keys::migrating(ino)).await.map_err(metadata_store_error)?;
        Ok(wish.is_some() || self.map.targets.iter().any(|target| target.drain))
    }

    /// Returns whether a file is as it was when a fault was found in its content, and no client
    /// writes it.
    pub(crate) async fn is_unchanged(&self, ino: InodeId, content: &FileContent) -> Result<bool> {
        let now = self.read_file(ino.first_chunk_file()).await?;
        Ok(is_not_written(&now, ino) && now.damaged.is_empty() && now.content(ino).as_ref() == Some(content))
    }

    /// Returns whether one of these replicas answers, or all of them are down.
    async fn any_answers(&self, replicas: &[ReplicaLocation], down: &mut BTreeSet<TargetId>) -> bool {
        let mut are_down = true;
        for location in replicas {
            match self.targets.len(*location, ChunkFileId(0)).await {
                Ok(_) => return true,
                Err(error) if matches!(error.errno, Errno::EHOSTDOWN | Errno::ETIMEDOUT) => {
                    down.insert(location.target);
                }
                Err(_) => are_down = false,
            }
        }
        are_down
    }

    /// Reads suspects again: removes those that are intact, and those whose fault is confirmed.
    async fn reread_suspects(
        &self,
        suspects: &mut BTreeSet<InodeId>,
        contents: &mut BTreeMap<InodeId, FileContent>,
        report: &mut CheckReport,
        unreachable: &mut Unreachable,
    ) -> Result<()> {
        let before = self.read(report, false).await?;
        let mut found = Vec::new();
        let mut unused = CheckReport::default();
        for &ino in suspects.iter().filter(|ino| is_not_written(&before, **ino)) {
            found.push((ino, self.suspected_faults(&before, ino, &mut unused, unreachable).await));
        }
        let after = self.read(report, false).await?;
        // Files deleted meanwhile have no content that could be wrong.
        suspects.retain(|ino| before.inode(*ino).is_some() && after.inode(*ino).is_some());
        for (ino, wrong) in found {
            let same =
                is_not_written(&after, ino) && content_record(&before, ino) == content_record(&after, ino);
            if !same || !suspects.contains(&ino) {
                continue;
            }
            suspects.remove(&ino);
            contents.extend(after.content(ino).map(|content| (ino, content)));
            for fault in wrong {
                self.report_fault(report, ino, &after.path(ino), fault);
            }
        }
        Ok(())
    }

    /// Returns suspected faults of a file's chunk files.
    async fn suspected_faults(
        &self,
        tree: &Tree,
        ino: InodeId,
        report: &mut CheckReport,
        unreachable: &mut Unreachable,
    ) -> Vec<SuspectedFault> {
        let mut faults = Vec::new();
        let Some(content) = tree.content(ino) else { return faults };
        for (stripe, &group) in content.layout.groups.iter().enumerate() {
            let members: Vec<(ReplicaLocation, MemberState)> =
                replica_locations(self.map.group(group)).collect();
            if self.map.group(group).is_none() {
                let cause = format!("group {group} of its layout is not in the cluster map");
                faults.push(SuspectedFault {
                    kind: Kind::UnknownTarget,
                    stripe,
                    location: None,
                    cause,
                    ranges: vec![],
                });
            }
            if self.map.group(group).is_some_and(Group::is_lost) {
                let cause = in_lost_group(group);
                faults.push(SuspectedFault {
                    kind: Kind::LostGroup,
                    stripe,
                    location: None,
                    cause,
                    ranges: vec![],
                });
            }
            let mut replicas: Vec<(ReplicaLocation, ReplicaState)> = Vec::new();
            let name = content.layout.chunk_file(ino, stripe);
            for (location, _) in members.into_iter().filter(|(_, state)| *state == MemberState::InSync) {
                if unreachable.contains_key(&location) {
                    continue;
                }
                match read_replica(self.targets, location, name, content.required_len(stripe)).await {
                    Ok(state) => {
                        report.chunk_files += u64::from(state.len > 0);
                        report.bytes += state.len;
                        let place = ReplicaFile { location, name, stripe, content: &content };
                        faults.extend(place.fault(&state));
                        replicas.push((location, state));
                    }
                    Err(error) => drop(unreachable.insert(location, unreachable_reason(&error))),
                }
            }
            faults.extend(differing(&replicas, &content, stripe));
        }
        faults
    }

    /// Reports replicas that could not be read: in a mirrored group with other readable replicas
    /// that is no damage.
    fn report_unreachable(&self, unreachable: Unreachable, report: &mut CheckReport) {
        let remedy = "start its node (weft node list), and check again";
        let mut reported: BTreeSet<GroupId> = BTreeSet::new();
        for (location, cause) in &unreachable {
            let Some(group) = location.group else {
                report.add(Kind::UnknownTarget, location.to_string(), cause.clone(), remedy);
                continue;
            };
            report
                .unjudged
                .push(format!("the replica of group {group} on target {}: {cause}", location.target));
            let is_lost = |(location, state): (ReplicaLocation, MemberState)| {
                state != MemberState::InSync || unreachable.contains_key(&location)
            };
            if replica_locations(self.map.group(group)).all(is_lost) && reported.insert(group) {
                let hint = "weft group show lists what is missing";
                report.add(
                    Kind::UnknownTarget,
                    format!("group {group}"),
                    "none of its replicas could be read",
                    hint,
                );
            }
        }
        for group in self.map.groups.iter().filter(|group| group.is_degraded()) {
            for (target, state) in
                group.members_with_states().filter(|(_, state)| *state != MemberState::InSync)
            {
                let state = state.name();
                report
                    .unjudged
                    .push(format!("the replica of group {} on target {target} is {state}", group.id));
            }
        }
    }

    fn report_fault(&self, report: &mut CheckReport, ino: InodeId, path: &str, fault: SuspectedFault) {
        let remedy = match fault.kind {
            Kind::LongChunkFile => {
                "if the metadata was restored from an old backup, restore a newer one. Otherwise reads of the file are right; copy it, and replace it by the copy. If the cluster is a single process, weft fsck --repair truncates it while that is stopped"
            }
            Kind::CopiesDiffer => {
                "repair uses the content of the majority of replicas; with two, that of the group's primary"
            }
            Kind::LostGroup => LOST_GROUP_REMEDY,
            _ => "repair takes it from another replica; if there is none, restore the file from a backup",
        };
        let mut found = Finding::new(fault.kind, path, fault.cause, remedy).of(ino, fault.stripe);
        found.lost = fault.kind == Kind::LostGroup;
        let found = match fault.location {
            Some(location) => found.at(location, self.map),
            None => found,
        };
        match fault.ranges.is_empty() {
            true => report.findings.push(found),
            false => {
                report.findings.extend(fault.ranges.into_iter().map(|range| found.clone().over(range)));
            }
        }
    }
}

/// A replica of a chunk file.
pub(crate) struct ReplicaFile<'a> {
    pub(crate) location: ReplicaLocation,
    pub(crate) name: ChunkFileId,
    pub(crate) stripe: usize,
    pub(crate) content: &'a FileContent,
}

impl ReplicaFile<'_> {
    /// Returns the fault of this replica alone.
    pub(crate) fn fault(&self, state: &ReplicaState) -> Option<SuspectedFault> {
        let (content, stripe) = (self.content, self.stripe);
        let (expected, needed) = (content.max_len(stripe), content.required_len(stripe));
        let object = format!("chunk file {:016x} on {}", self.name.0, self.location);
        let wrong = |kind, cause, ranges| {
            Some(SuspectedFault { kind, stripe: self.stripe, location: Some(self.location), cause, ranges })
        };
        if state.len == 0 && needed > 0 {
            let cause = format!("{object} of {needed} bytes is missing");
            return wrong(Kind::MissingChunkFile, cause, vec![]);
        }
        if state.len > expected {
            let cause = format!("{object} has {} bytes, but the file only {expected} of them", state.len);
            return wrong(Kind::LongChunkFile, cause, vec![]);
        }
        let in_file = |local: &ByteRange| file_ranges(&content.layout, stripe, *local, content.size);
        let ranges: Vec<ByteRange> = state.damaged.iter().flat_map(in_file).collect();
        if !ranges.is_empty() {
            return wrong(Kind::DamagedContent, format!("{object} does not match its checksums"), ranges);
        }
        let known = content.known_len(stripe);
        if state.len < known {
            let cause = format!("{object} has {} bytes, but had at least {known}", state.len);
            return wrong(Kind::ShortChunkFile, cause, in_file(&ByteRange::new(state.len, known)));
        }
        None
    }
}

/// Returns why a target could not be read.
pub(crate) fn unreachable_reason(error: &types::Error) -> String {
    match error.errno {
        Errno::Refusal(Refusal::GroupVersionMismatch) => "it can't report its content now".into(),
        _ => format!("it doesn't answer: {}", error.message),
    }
}

/// Returns differences between replicas that can be read.
fn differing(
    replicas: &[(ReplicaLocation, ReplicaState)],
    content: &FileContent,
    stripe: usize,
) -> Vec<SuspectedFault> {
    let (layout, size) = (&content.layout, content.size);
    let (needed, known) = (content.required_len(stripe), content.known_len(stripe));
    // Missing content is reported as such.
    let is_reported_missing = |state: &ReplicaState| (state.len == 0 && needed > 0) || state.len < known;
    let Some(((first, reference), others)) = replicas.split_first() else { return Vec::new() };
    let mut faults = Vec::new();
    for (location, state) in others {
        if is_reported_missing(state) || is_reported_missing(reference) {
            continue;
        }
        let pieces = reference.sums.iter().zip(&state.sums).enumerate();
        let differs = pieces.filter(|(_, (one, two))| one.is_some() && two.is_some() && one != two);
        let mut differs: Vec<u64> = differs.map(|(at, _)| at as u64 * PIECE_BYTES).collect();
        if state.len != reference.len && differs.is_empty() {
            differs.push(state.len.min(reference.len).saturating_sub(1) / PIECE_BYTES * PIECE_BYTES);
        }
        if differs.is_empty() {
            continue;
        }
        let end = |at: u64| (at + PIECE_BYTES).min(layout::local_len(layout, stripe, size));
        let ranges = differs.into_iter().map(|at| ByteRange::new(at, end(at)));
        let ranges = ranges.flat_map(|local| file_ranges(layout, stripe, local, size)).collect();
        let cause = format!("it differs between {first} and {location}");
        faults.push(SuspectedFault {
            kind: Kind::CopiesDiffer,
            stripe,
            location: Some(*location),
            cause,
            ranges,
        });
    }
    faults
}

fn is_not_written(tree: &Tree, ino: InodeId) -> bool {
    tree.layout(ino).is_some() && !tree.writing.contains(&ino)
}

/// Returns the state that a file's content depends on.
fn content_record(tree: &Tree, ino: InodeId) -> Option<(u64, u64, Option<FileContent>)> {
    tree.inode(ino).map(|inode| (inode.size, inode.blocks, tree.content(ino)))
}
