//! The check of a file system that is being used.
//!
//! Names and inodes are checked as they were at one moment, so that nothing is half done there. Chunk files are asked for one after the
//! other meanwhile, and go on changing. What looks wrong is only suspected, therefore: it counts when it still is after a second look,
//! before and after which the file's record was the same and nobody was writing. A file that is never found at rest is counted as pending.
//!
//! Nothing is changed. Chunk files that belong to no file are not looked for.

use crate::data::{Seat, seats};
use crate::finding::{Finding, Kind, Report};
use crate::tree::{Tree, file_ranges};
use crate::{Subject, names};
use kv::Engine;
use namespace::record::Inode;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use types::{ByteRange, ClusterMap, Errno, GroupId, InodeId, Layout, MemberState, Result};

/// Bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// How often a suspect is looked at again.
const LOOKS: usize = 5;

/// Findings that a report tells; it is sent as one message.
const MAX_FINDINGS: usize = 1000;

/// Where content that is in order ends for good.
const BLOCK: u64 = types::BLOCK_SIZE as u64;

/// What comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// The targets of a cluster, wherever they are.
pub trait Targets {
    /// Length of a chunk file; 0 for one that isn't there.
    fn len(&self, seat: Seat, ino: InodeId) -> Later<'_, u64>;
    /// Reads a range of a chunk file, which checks it against its checksums; a sum of what there is.
    fn read(&self, seat: Seat, ino: InodeId, range: ByteRange) -> Later<'_, u32>;
    /// Waits a moment.
    fn rest(&self) -> Later<'_, ()>;
}

/// Shows the metadata store as it is at the moment of the call.
pub type Freeze<'a> = &'a dyn Fn() -> Result<Arc<dyn Engine>>;

/// A cluster that is served.
pub struct Online<'a> {
    /// The metadata store.
    pub freeze: Freeze<'a>,
    /// Number of partitions of the inode space.
    pub partitions: u16,
    /// Key of the name hash.
    pub hash_key: (u64, u64),
    /// Groups and targets.
    pub map: &'a ClusterMap,
    /// The targets.
    pub targets: &'a dyn Targets,
}

/// Where it was of no use to ask, and why.
type Unreachable = BTreeMap<Seat, String>;

/// What a copy of a chunk file looks like.
struct Looked {
    len: u64,
    /// Of each [`READ_BYTES`] of it; none for those that can't be read.
    sums: Vec<Option<u32>>,
    wrong: Option<Wrong>,
}

/// What looks wrong about one file.
struct Wrong {
    kind: Kind,
    cause: String,
    ranges: Vec<ByteRange>,
}

/// Checks a cluster that is served, without changing anything.
///
/// # Errors
/// A metadata store that can't be read. Damage, and targets that don't answer, are in the report.
pub async fn check_online(cluster: &Online<'_>) -> Result<Report> {
    let mut report = Report::default();
    let tree = cluster.read(&mut report, true)?;
    (report.files, report.directories) = (tree.files(), tree.directories());
    let mut unreachable = BTreeMap::new();
    let mut suspects = BTreeSet::new();
    for ino in files(&tree) {
        match cluster.look(&tree, ino, &mut report, &mut unreachable).await {
            wrong if wrong.is_empty() => {}
            _ => drop(suspects.insert(ino)),
        }
    }
    drop(tree);
    for _ in 0..LOOKS {
        if suspects.is_empty() {
            break;
        }
        cluster.targets.rest().await?;
        cluster.look_again(&mut suspects, &mut report, &mut unreachable).await?;
    }
    report.pending += suspects.len() as u64;
    cluster.tell_unreachable(unreachable, &mut report);
    shorten(&mut report);
    Ok(report)
}

/// Files with content in chunks that nobody writes.
fn files(tree: &Tree) -> Vec<InodeId> {
    let mut files: Vec<InodeId> = tree.inodes.keys().copied().collect();
    files.sort();
    files.retain(|ino| tree.layout(*ino).is_some() && !tree.writing.contains(ino));
    files
}

fn shorten(report: &mut Report) {
    let more = report.findings.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        report.findings.truncate(MAX_FINDINGS);
        let kind = report.findings[0].kind;
        report.add(
            kind,
            "the cluster",
            format!("{more} more findings are not told"),
            "mend these, and check again",
        );
    }
}

impl Online<'_> {
    /// Everything that the store holds now; its findings go to the report when they are wanted.
    fn read(&self, report: &mut Report, wanted: bool) -> Result<Tree> {
        let (engine, stores) = ((self.freeze)()?, BTreeMap::new());
        let subject = Subject {
            engine: &*engine,
            partitions: self.partitions,
            hash_key: self.hash_key,
            map: self.map,
            stores: &stores,
            copies: &crate::Copies::new(),
        };
        if !wanted {
            return Tree::read(&subject, &mut Report::default(), &|_, _, _| {});
        }
        let mut tree = Tree::read(&subject, report, &|_, _, _| {})?;
        drop(names::check(&subject, &mut tree, report));
        Ok(tree)
    }

    /// Looks again at what was suspected: those that are in order leave, and so do those whose fault is certain now.
    async fn look_again(
        &self,
        suspects: &mut BTreeSet<InodeId>,
        report: &mut Report,
        unreachable: &mut Unreachable,
    ) -> Result<()> {
        let before = self.read(report, false)?;
        let mut found = Vec::new();
        let mut unused = Report::default();
        for &ino in suspects.iter().filter(|ino| is_at_rest(&before, **ino)) {
            found.push((ino, self.look(&before, ino, &mut unused, unreachable).await));
        }
        let after = self.read(report, false)?;
        // Those that have gone meanwhile have no content any more that could be wrong.
        suspects.retain(|ino| before.inode(*ino).is_some() && after.inode(*ino).is_some());
        for (ino, wrong) in found {
            let same = is_at_rest(&after, ino) && record(&before, ino) == record(&after, ino);
            if !same || !suspects.contains(&ino) {
                continue;
            }
            suspects.remove(&ino);
            for Wrong { kind, cause, ranges } in wrong {
                tell(report, kind, &after.path(ino), &cause, ranges);
            }
        }
        Ok(())
    }

    /// What looks wrong about the chunk files of a file.
    async fn look(
        &self,
        tree: &Tree,
        ino: InodeId,
        report: &mut Report,
        unreachable: &mut Unreachable,
    ) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        let (Some(layout), Some(inode)) = (tree.layout(ino), tree.inode(ino)) else { return wrong };
        for (stripe, &group) in layout.groups.iter().enumerate() {
            let members: Vec<(Seat, MemberState)> = seats(self.map.group(group)).collect();
            if members.is_empty() {
                let cause = format!("group {group} of its layout has no target");
                wrong.push(Wrong { kind: Kind::UnknownTarget, cause, ranges: vec![] });
            }
            let mut copies: Vec<(Seat, Looked)> = Vec::new();
            for (seat, _) in members.into_iter().filter(|(_, state)| *state == MemberState::Good) {
                if unreachable.contains_key(&seat) {
                    continue;
                }
                match self.look_at(seat, ino, inode, &layout, stripe).await {
                    Ok(mut looked) => {
                        report.chunk_files += u64::from(looked.len > 0);
                        report.bytes += looked.len;
                        wrong.extend(looked.wrong.take());
                        copies.push((seat, looked));
                    }
                    Err(error) => drop(unreachable.insert(seat, said(&error))),
                }
            }
            wrong.extend(differing(&copies, &layout, stripe, inode.size));
        }
        wrong
    }

    /// Tells what could not be looked at: of a mirrored group whose other copies could, it is no damage.
    fn tell_unreachable(&self, unreachable: Unreachable, report: &mut Report) {
        let remedy = "start its node (weft node list), and check again";
        let mut told: BTreeSet<GroupId> = BTreeSet::new();
        for (seat, cause) in &unreachable {
            let Some(group) = seat.group else {
                report.add(Kind::UnknownTarget, seat.to_string(), cause.clone(), remedy);
                continue;
            };
            report.unjudged.push(format!("the copy of group {group} on target {}: {cause}", seat.target));
            let is_lost = |(seat, state): (Seat, MemberState)| {
                state != MemberState::Good || unreachable.contains_key(&seat)
            };
            if seats(self.map.group(group)).all(is_lost) && told.insert(group) {
                let hint = "weft group show tells what is missing";
                report.add(
                    Kind::UnknownTarget,
                    format!("group {group}"),
                    "no copy of it could be looked at",
                    hint,
                );
            }
        }
        for group in self.map.groups.iter().filter(|group| group.is_degraded()) {
            for (target, state) in group.with_states().filter(|(_, state)| *state != MemberState::Good) {
                let state = state.name();
                report.unjudged.push(format!("the copy of group {} on target {target} is {state}", group.id));
            }
        }
    }

    /// One chunk file, and what is wrong with it. An error means that the target can't be asked.
    async fn look_at(
        &self,
        seat: Seat,
        ino: InodeId,
        inode: &Inode,
        layout: &Layout,
        stripe: usize,
    ) -> Result<Looked> {
        let name = layout.chunk_file(ino, stripe);
        let object = format!("chunk file {:016x} on {seat}", name.0);
        let (len, expected) =
            (self.targets.len(seat, name).await?, layout::local_len(layout, stripe, inode.size));
        let none = |wrong| Ok(Looked { len: 0, sums: Vec::new(), wrong: Some(wrong) });
        let dense = inode.blocks.saturating_mul(512) >= inode.size;
        if len == 0 && expected > 0 && dense {
            let cause = format!("{object} of {expected} bytes is gone");
            return none(Wrong { kind: Kind::MissingChunkFile, cause, ranges: vec![] });
        }
        if len > expected {
            let cause = format!("{object} has {len} bytes, {expected} belong to the file");
            return none(Wrong { kind: Kind::LongChunkFile, cause, ranges: vec![] });
        }
        let (sums, damaged) = self.read_all(seat, name, len).await?;
        let ranges: Vec<ByteRange> =
            damaged.iter().flat_map(|local| file_ranges(layout, stripe, *local, inode.size)).collect();
        let cause = format!("{object} does not match its checksums");
        let wrong = (!ranges.is_empty()).then_some(Wrong { kind: Kind::DamagedContent, cause, ranges });
        Ok(Looked { len, sums, wrong })
    }

    /// Reads a chunk file: sums of its pieces, and the blocks that can't be read.
    async fn read_all(
        &self,
        seat: Seat,
        name: InodeId,
        len: u64,
    ) -> Result<(Vec<Option<u32>>, Vec<ByteRange>)> {
        let (mut sums, mut damaged): (Vec<Option<u32>>, Vec<ByteRange>) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < len {
            let piece = ByteRange::new(at, (at + READ_BYTES).min(len));
            at = piece.end;
            sums.push(self.sum(seat, name, piece).await?);
            if matches!(sums.last(), Some(Some(_))) {
                continue;
            }
            let mut block = piece.start;
            while block < piece.end {
                let range = ByteRange::new(block, (block + BLOCK).min(piece.end));
                block = range.end;
                if self.sum(seat, name, range).await?.is_some() {
                    continue;
                }
                match damaged.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => damaged.push(range),
                }
            }
        }
        Ok((sums, damaged))
    }

    /// The sum of a range; `None` when it can't be read.
    async fn sum(&self, seat: Seat, name: InodeId, range: ByteRange) -> Result<Option<u32>> {
        match self.targets.read(seat, name, range).await {
            Ok(sum) => Ok(Some(sum)),
            Err(error) if error.errno == Errno::EIO => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Why a target could not be asked.
fn said(error: &types::Error) -> String {
    match error.errno {
        Errno::EREMCHG => "it can't be asked for what it has now".into(),
        _ => format!("it doesn't answer: {}", error.message),
    }
}

/// What isn't the same in copies that can be read.
fn differing(copies: &[(Seat, Looked)], layout: &Layout, stripe: usize, size: u64) -> Option<Wrong> {
    let ((first, reference), others) = copies.split_first()?;
    let (other, differs) = others.iter().find_map(|(seat, looked)| {
        // What is missing altogether is told as that.
        let both = looked.len > 0 && reference.len > 0;
        let pieces = reference.sums.iter().zip(&looked.sums).enumerate();
        let differs = pieces.filter(|(_, (one, two))| one.is_some() && two.is_some() && one != two);
        let mut differs: Vec<u64> = differs.map(|(at, _)| at as u64 * READ_BYTES).collect();
        if both && looked.len != reference.len && differs.is_empty() {
            differs.push(looked.len.min(reference.len).saturating_sub(1) / READ_BYTES * READ_BYTES);
        }
        (both && !differs.is_empty()).then_some((seat, differs))
    })?;
    let end = |at: u64| (at + READ_BYTES).min(layout::local_len(layout, stripe, size));
    let ranges = differs.into_iter().map(|at| ByteRange::new(at, end(at)));
    let ranges = ranges.flat_map(|local| file_ranges(layout, stripe, local, size)).collect();
    let cause = format!("it is not the same on {first} and {other}");
    Some(Wrong { kind: Kind::CopiesDiffer, cause, ranges })
}

fn is_at_rest(tree: &Tree, ino: InodeId) -> bool {
    tree.layout(ino).is_some() && !tree.writing.contains(&ino)
}

/// What a file's content depends on.
fn record(tree: &Tree, ino: InodeId) -> Option<(u64, u64, Option<Layout>)> {
    tree.inode(ino).map(|inode| (inode.size, inode.blocks, tree.layout(ino)))
}

fn tell(report: &mut Report, kind: Kind, path: &str, cause: &str, ranges: Vec<ByteRange>) {
    let remedy = match kind {
        Kind::LongChunkFile => "stop the cluster; weft fsck --repair cuts it",
        Kind::CopiesDiffer => {
            "see which copy is right, and write the file anew from it (cp, then mv over the old one)"
        }
        _ => "restore the file from a copy, or delete it",
    };
    if ranges.is_empty() {
        return report.add(kind, path, cause, remedy);
    }
    report.findings.extend(ranges.into_iter().map(|range| Finding {
        kind,
        object: path.to_owned(),
        range: Some(range),
        cause: cause.to_owned(),
        remedy: remedy.to_owned(),
        repaired: false,
    }));
}
