//! Repairs faults in the content of files from an intact replica. Content that no replica has is
//! given up only if the caller requests it.

use crate::data::{ReplicaLocation, replica_locations};
use crate::finding::{CheckReport, Finding, Kind};
use crate::online::Online;
use crate::plan::{Lengths, ReplicaState, Step, steps};
use crate::targets::{Targets, read_replica};
use crate::tree::file_ranges;
use crate::{CheckOptions, Loss};
use std::collections::{BTreeMap, BTreeSet};
use types::{ByteRange, ClusterMap, Error, InodeId, Layout, MemberState, Result, TargetId};

/// Most passes over a chunk file: differences within pieces that no replica has as a whole appear
/// only when the blocks are repaired.
const MAX_PASSES: usize = 5;

/// State that a file's content depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileContent {
    pub(crate) layout: Layout,
    pub(crate) size: u64,
    /// It has as much allocated space as bytes, so that all its chunk files must exist.
    pub(crate) is_dense: bool,
    /// Lower bounds of the lengths of its chunk files, in stripe order; empty when none is known.
    pub(crate) known: Vec<u64>,
}

impl FileContent {
    /// Returns the most bytes that the chunk file of a stripe may have.
    pub(crate) fn max_len(&self, stripe: usize) -> u64 {
        layout::local_len(&self.layout, stripe, self.size)
    }

    /// Returns the fewest bytes that it is known to have.
    pub(crate) fn known_len(&self, stripe: usize) -> u64 {
        layout::length_bounds::of_stripe(&self.known, stripe)
    }

    /// Returns the bytes that must exist, by either rule.
    pub(crate) fn required_len(&self, stripe: usize) -> u64 {
        if self.is_dense { self.max_len(stripe) } else { self.known_len(stripe) }
    }
}

/// Repairs the content that findings are about.
pub(crate) struct ContentRepair<'a> {
    pub(crate) targets: &'a dyn Targets,
    pub(crate) map: &'a ClusterMap,
    pub(crate) options: &'a CheckOptions<'a>,
    /// The running cluster, whose files may change; `None` if no process serves them.
    pub(crate) online: Option<&'a Online<'a>>,
}

/// State of a chunk file after the repair.
#[derive(Default)]
struct RepairOutcome {
    /// Ranges that are still wrong.
    remaining: Vec<ByteRange>,
    /// Of these, ranges that no replica has.
    lost: Vec<ByteRange>,
    /// Ranges that were given up.
    given_up: Vec<ByteRange>,
    /// A replica is still longer than the file: if all of them are, none can serve as the source.
    is_long: bool,
    /// Why it isn't repaired.
    error: Option<Error>,
    /// The file has changed: findings about it are void.
    has_changed: bool,
}

/// Result of one step.
enum StepResult {
    /// Done, with the ranges that it gave up.
    Done(Vec<ByteRange>),
    /// Not allowed.
    NotAllowed,
    /// The file has changed.
    Outdated,
}

impl ContentRepair<'_> {
    /// Repairs the chunk files that findings are about. Withdraws findings about files that have
    /// changed since, and counts these files as pending.
    pub(crate) async fn run(
        &self,
        contents: &BTreeMap<InodeId, FileContent>,
        report: &mut CheckReport,
    ) -> Result<()> {
        let found = report.findings.iter().filter(|finding| is_of_content(finding.kind) && !finding.repaired);
        let places: BTreeSet<(InodeId, usize)> = found.filter_map(|finding| finding.place).collect();
        let mut changed = BTreeSet::new();
        for (ino, stripe) in places {
            let Some(content) = contents.get(&ino) else { continue };
            if changed.contains(&ino) {
                continue;
            }
            let path = report
                .findings
                .iter()
                .find(|finding| finding.place == Some((ino, stripe)))
                .map_or_else(String::new, |finding| finding.object.clone());
            let outcome = self.repair_chunk_file(content, (ino, stripe), &path).await?;
            if outcome.has_changed {
                changed.insert(ino);
            }
            record_outcome(report, content, (ino, stripe), &outcome);
        }
        report.pending += changed.len() as u64;
        let is_outdated = |finding: &Finding| {
            let is_of_one = finding.place.is_some_and(|(ino, _)| changed.contains(&ino));
            is_of_one && is_of_content(finding.kind) && !finding.repaired && !finding.lost
        };
        report.findings.retain(|finding| !is_outdated(finding));
        Ok(())
    }

    /// Returns whether a file's content still depends on the same state as when the fault was
    /// found, and no client writes it.
    async fn is_unchanged(&self, ino: InodeId, content: &FileContent) -> Result<bool> {
        match self.online {
            Some(online) => online.is_unchanged(ino, content).await,
            None => Ok(true),
        }
    }

    async fn repair_chunk_file(
        &self,
        content: &FileContent,
        (ino, stripe): (InodeId, usize),
        path: &str,
    ) -> Result<RepairOutcome> {
        let mut outcome = RepairOutcome::default();
        let whole = ByteRange::new(0, layout::local_len(&content.layout, stripe, content.size));
        for round in 0..MAX_PASSES {
            if !self.is_unchanged(ino, content).await? {
                return Ok(RepairOutcome { has_changed: true, lost: Vec::new(), ..outcome });
            }
            let planned = match self.plan_steps(content, (ino, stripe)).await {
                Ok((planned, is_long)) => {
                    outcome.is_long = is_long;
                    planned
                }
                Err(error) => {
                    outcome.remaining = vec![whole];
                    outcome.error = Some(error);
                    return Ok(outcome);
                }
            };
            outcome.remaining = planned.iter().map(|step| step.range(whole)).collect();
            let is_lost = |step: &&Step| matches!(step, Step::GiveUp { .. });
            outcome.lost = planned.iter().filter(is_lost).map(|step| step.range(whole)).collect();
            if planned.is_empty() || round + 1 == MAX_PASSES {
                break;
            }
            let mut made_progress = false;
            for step in planned {
                match self.execute_step(content, (ino, stripe), path, &step).await {
                    Ok(StepResult::Done(lost)) => {
                        made_progress = true;
                        outcome.given_up.extend(lost);
                    }
                    Ok(StepResult::NotAllowed) => {}
                    Ok(StepResult::Outdated) => {
                        return Ok(RepairOutcome { has_changed: true, lost: Vec::new(), ..outcome });
                    }
                    Err(error) => {
                        outcome.error.get_or_insert(error);
                    }
                }
            }
            if !made_progress {
                break;
            }
            outcome.error = None;
        }
        Ok(outcome)
    }

    /// Returns the next steps for a chunk file, and whether a replica is longer than the file.
    async fn plan_steps(
        &self,
        content: &FileContent,
        (ino, stripe): (InodeId, usize),
    ) -> Result<(Vec<Step>, bool)> {
        let name = content.layout.chunk_file(ino, stripe);
        let (expected, needed) = (content.max_len(stripe), content.required_len(stripe));
        let mut replicas: Vec<(TargetId, ReplicaState)> = Vec::new();
        for (location, _) in self.in_sync_replicas(content, stripe) {
            replicas.push((location.target, read_replica(self.targets, location, name, needed).await?));
        }
        let is_long = replicas.iter().any(|(_, copy)| copy.len > expected);
        let lengths = Lengths { expected, needed, known: content.known_len(stripe) };
        Ok((steps(&replicas, lengths), is_long))
    }

    fn in_sync_replicas(
        &self,
        content: &FileContent,
        stripe: usize,
    ) -> impl Iterator<Item = (ReplicaLocation, MemberState)> {
        let group = self.map.group(content.layout.groups[stripe]);
        replica_locations(group).filter(|(_, state)| *state == MemberState::InSync)
    }

    /// Executes one step.
    async fn execute_step(
        &self,
        content: &FileContent,
        (ino, stripe): (InodeId, usize),
        path: &str,
        step: &Step,
    ) -> Result<StepResult> {
        let name = content.layout.chunk_file(ino, stripe);
        let Some((location, _)) = self.in_sync_replicas(content, stripe).next() else {
            return Ok(StepResult::NotAllowed);
        };
        match step {
            Step::Copy { from, to, range } => {
                self.targets.repair(ReplicaLocation { target: *from, ..location }, *to, name, *range).await?;
                Ok(StepResult::Done(Vec::new()))
            }
            Step::GiveUp { range } => {
                let Some(record_loss) = self.options.loss_recorder else { return Ok(StepResult::NotAllowed) };
                if !self.is_unchanged(ino, content).await? {
                    return Ok(StepResult::Outdated);
                }
                // Recorded before it is lost.
                for range in file_ranges(&content.layout, stripe, *range, content.size) {
                    record_loss(&Loss { path: path.to_owned(), ino, range })?;
                }
                self.targets.give_up(location, name, *range).await.map(StepResult::Done)
            }
        }
    }
}

fn is_of_content(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::DamagedContent
            | Kind::MissingChunkFile
            | Kind::ShortChunkFile
            | Kind::CopiesDiffer
            | Kind::LongChunkFile
    )
}

/// Writes the outcome of a chunk file's repair into its findings.
fn record_outcome(
    report: &mut CheckReport,
    content: &FileContent,
    (ino, stripe): (InodeId, usize),
    outcome: &RepairOutcome,
) {
    let ranges = |local: &[ByteRange]| -> Vec<ByteRange> {
        local.iter().flat_map(|local| file_ranges(&content.layout, stripe, *local, content.size)).collect()
    };
    let (left, lost, given_up) =
        (ranges(&outcome.remaining), ranges(&outcome.lost), ranges(&outcome.given_up));
    let of_it = report
        .findings
        .iter_mut()
        .filter(|finding| finding.place == Some((ino, stripe)) && is_of_content(finding.kind));
    for finding in of_it {
        let meets = |ranges: &[ByteRange]| match finding.range {
            Some(own) => ranges.iter().any(|range| range.overlaps(own)),
            None => !ranges.is_empty(),
        };
        finding.lost = meets(&lost) || meets(&given_up);
        if finding.lost {
            finding.remedy = LOST_REMEDY.into();
        }
        if let Some(error) = &outcome.error {
            let why = if error.hint.is_empty() { String::new() } else { format!("; {}", error.hint) };
            finding.remedy = format!("it could not be repaired: {}{why}", error.message);
        } else if !outcome.has_changed {
            let is_long = finding.kind == Kind::LongChunkFile && outcome.is_long;
            finding.repaired = !meets(&left) && !is_long;
            if finding.repaired && finding.kind == Kind::LongChunkFile {
                finding.remedy.clear();
            }
        }
    }
}

/// Remedy for content that no replica has.
const LOST_REMEDY: &str = "no replica has it: restore the file from a backup; or weft fsck --repair --forget FILE lists the lost ranges in FILE and replaces them by zeros";

impl Step {
    /// Returns the affected range; the whole chunk file for a step that only truncates.
    fn range(&self, whole: ByteRange) -> ByteRange {
        match self {
            Step::Copy { range, .. } if range.is_empty() => whole,
            Step::Copy { range, .. } | Step::GiveUp { range } => *range,
        }
    }
}
