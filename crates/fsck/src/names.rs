//! Checks names against inodes.

use crate::finding::{CheckReport, Kind};
use crate::tree::{EntryRecord, InodeRecords, Tree};
use namespace::keys;
use namespace::record::{Inode, PartitionCounters};
use std::collections::BTreeMap;
use types::{HashMap, HashSet, InodeId, PartitionId, mode};

/// A change that repairs one finding.
pub(crate) struct Fix {
    /// Index of the finding in the report.
    pub(crate) finding: usize,
    pub(crate) change: Change,
}

/// The change to write.
pub(crate) enum Change {
    Delete(Vec<u8>),
    /// Store the entry again under its right key.
    Rekey {
        name: EntryRecord,
        ino: InodeId,
        mode: u32,
    },
    Links {
        ino: InodeId,
        nlink: u32,
    },
    Parent {
        ino: InodeId,
        parent: InodeId,
    },
    /// Create an entry for it in `/lost+found`.
    NameInLostAndFound {
        ino: InodeId,
        subdirectories: u32,
    },
    PartitionCounters {
        partition: PartitionId,
        counters: PartitionCounters,
    },
}

struct Checker<'a> {
    report: &'a mut CheckReport,
    fixes: Vec<Fix>,
}

impl Checker<'_> {
    fn add_fixable(&mut self, kind: Kind, object: String, cause: String, remedy: &str, change: Change) {
        self.report.add(kind, object, cause, remedy);
        self.fixes.push(Fix { finding: self.report.findings.len() - 1, change });
    }
}

/// Checks all names and records; returns the fixes.
pub(crate) fn check(hash_key: (u64, u64), tree: &mut Tree, report: &mut CheckReport) -> Vec<Fix> {
    let damaged: Vec<Fix> = tree
        .damaged
        .iter()
        .enumerate()
        .map(|(finding, key)| Fix { finding, change: Change::Delete(key.clone()) })
        .collect();
    let mut checker = Checker { report, fixes: damaged };
    let reachable = reachable(tree);
    let mut inodes: Vec<InodeId> = tree.inodes.keys().copied().collect();
    inodes.sort();
    for ino in inodes {
        let known = &tree.inodes[&ino];
        match &known.inode {
            None => dangling(tree, known, ino, &mut checker),
            Some(inode) => {
                names(hash_key, tree, known, ino, inode, &mut checker);
                links(tree, known, ino, inode, &reachable, &mut checker);
            }
        }
    }
    records(tree, &mut checker);
    numbers(tree, &mut checker);
    checker.report.pending = (tree.orphans.len() + tree.writing.len() + tree.pending_deletions.len()) as u64;
    checker.fixes
}

/// Returns every directory reachable from the root, or that will be once directories without a name
/// have one.
fn reachable(tree: &Tree) -> HashSet<InodeId> {
    let mut children: HashMap<InodeId, Vec<InodeId>> = HashMap::default();
    for (&ino, known) in &tree.inodes {
        if known.inode.as_ref().is_some_and(Inode::is_directory) {
            for name in &known.names {
                children.entry(name.dir).or_default().push(ino);
            }
        }
    }
    let nameless =
        tree.inodes.iter().filter(|(_, known)| known.inode.is_some() && tree.live_names(known) == 0);
    let mut pending: Vec<InodeId> = nameless.map(|(&ino, _)| ino).chain([InodeId::ROOT]).collect();
    let mut reachable: HashSet<InodeId> = pending.iter().copied().collect();
    while let Some(dir) = pending.pop() {
        for &child in children.get(&dir).map_or(&[][..], |list| list) {
            if reachable.insert(child) {
                pending.push(child);
            }
        }
    }
    reachable
}

fn dangling(tree: &Tree, known: &InodeRecords, ino: InodeId, checker: &mut Checker<'_>) {
    for name in &known.names {
        let path =
            format!("{}/{}", tree.path(name.dir).trim_end_matches('/'), String::from_utf8_lossy(&name.name));
        let cause = format!("it names inode {ino}, which does not exist");
        checker.add_fixable(
            Kind::DanglingName,
            path,
            cause,
            "repair removes the name",
            Change::Delete(name.key.clone()),
        );
    }
}

fn names(
    hash_key: (u64, u64),
    tree: &Tree,
    known: &InodeRecords,
    ino: InodeId,
    inode: &Inode,
    checker: &mut Checker<'_>,
) {
    for name in &known.names {
        let hash = keys::name_hash(hash_key, &name.name);
        let misfiled = keys::entry(name.dir, hash, &name.name) != name.key;
        let wrong_type = name.kind != inode.mode & mode::S_IFMT;
        if misfiled || wrong_type {
            let cause =
                if misfiled { "it is stored under a wrong hash" } else { "its type is not the inode's" };
            let change = Change::Rekey { name: name.clone(), ino, mode: inode.mode };
            checker.add_fixable(
                Kind::MisfiledName,
                tree.path(ino),
                cause.into(),
                "repair stores it again",
                change,
            );
        }
        if tree.inode(name.dir).is_none_or(|dir| !dir.is_directory()) {
            let cause = format!("its directory, inode {}, does not exist", name.dir);
            let change = Change::Delete(name.key.clone());
            checker.add_fixable(Kind::DanglingName, tree.path(ino), cause, "repair removes the name", change);
        }
    }
}

fn links(
    tree: &Tree,
    known: &InodeRecords,
    ino: InodeId,
    inode: &Inode,
    reachable: &HashSet<InodeId>,
    checker: &mut Checker<'_>,
) {
    let names = tree.live_names(known);
    let orphan = tree.orphans.contains(&ino);
    let directory = inode.is_directory();
    if names == 0 && ino != InodeId::ROOT {
        if !orphan {
            let cause = "it has no name and is not marked as an orphan".to_owned();
            let object = format!("inode {ino}");
            let change = Change::NameInLostAndFound { ino, subdirectories: known.subdirectories };
            checker.add_fixable(Kind::Unreachable, object, cause, "repair names it in /lost+found", change);
        } else if inode.nlink != 0 {
            link_count(tree, ino, inode.nlink, 0, checker);
        }
        return;
    }
    if orphan {
        let cause = "it is marked as an orphan but has a name".to_owned();
        let change = Change::Delete(keys::orphan(ino).to_vec());
        checker.add_fixable(Kind::StrayRecord, tree.path(ino), cause, "repair removes the mark", change);
    }
    let expected = if directory { 2 + known.subdirectories } else { names };
    if inode.nlink != expected {
        link_count(tree, ino, inode.nlink, expected, checker);
    }
    if !directory || ino == InodeId::ROOT {
        return;
    }
    if names > 1 {
        let remedy = "rename or remove all but one of its names";
        checker.report.add(Kind::Parent, tree.path(ino), format!("a directory has {names} names"), remedy);
    } else if inode.parent_id() != known.names[0].dir {
        let (parent, is) = (known.names[0].dir, inode.parent_id());
        let cause = format!("its .. refers to inode {is}, but its name is in inode {parent}");
        checker.add_fixable(
            Kind::Parent,
            tree.path(ino),
            cause,
            "repair sets ..",
            Change::Parent { ino, parent },
        );
    }
    if !reachable.contains(&ino) {
        let object = format!("inode {ino}");
        checker.report.add(
            Kind::Unreachable,
            object,
            "this directory is not reachable from the root",
            "restore the metadata from a backup",
        );
    }
}

fn link_count(tree: &Tree, ino: InodeId, is: u32, nlink: u32, checker: &mut Checker<'_>) {
    let cause = format!("its link count is {is}, but its names require {nlink}");
    checker.add_fixable(
        Kind::LinkCount,
        tree.path(ino),
        cause,
        "repair sets the count",
        Change::Links { ino, nlink },
    );
}

/// Checks records that refer to a missing inode, or contradict their inode.
fn records(tree: &Tree, checker: &mut Checker<'_>) {
    const REMEDY: &str = "repair removes it";
    let mut stray = |object: String, cause: &str, key: Vec<u8>| {
        checker.add_fixable(Kind::StrayRecord, object, cause.to_owned(), REMEDY, Change::Delete(key));
    };
    for (key, ino) in tree.attributes.iter().filter(|(_, ino)| tree.inode(*ino).is_none()) {
        stray(format!("inode {ino}"), "an attribute is stored for an inode that does not exist", key.clone());
    }
    for &ino in &tree.inline {
        let key = keys::inline(ino).to_vec();
        match tree.inode(ino) {
            None => stray(format!("inode {ino}"), "content is stored for an inode that does not exist", key),
            Some(inode) if !inode.inline => {
                stray(tree.path(ino), "content is stored beside an inode whose content is in chunks", key);
            }
            Some(_) => {}
        }
    }
    for &ino in tree.orphans.iter().filter(|&&ino| tree.inode(ino).is_none()) {
        let cause = "an orphan mark refers to an inode that does not exist";
        stray(format!("inode {ino}"), cause, keys::orphan(ino).to_vec());
    }
    // Chunk files that a migrated stripe has left behind are not part of the file.
    for (&name, doomed) in &tree.pending_deletions {
        let ino = name.owner();
        let Some(layout) = tree.layout(ino) else { continue };
        let in_use = (0..doomed.groups.len()).any(|stripe| {
            let slot = namespace::doomed_chunk_file(name, doomed, stripe).slot();
            layout.stripe_of_slot(doomed.groups[stripe], slot).is_some()
        });
        if in_use {
            let cause = "its chunks are marked for deletion, but it exists";
            stray(tree.path(ino), cause, keys::doomed(name).to_vec());
        }
    }
}

/// Checks for inode numbers that a partition would allocate twice, and for wrong inode counts.
fn numbers(tree: &Tree, checker: &mut Checker<'_>) {
    /// First number that a partition without a record allocates: 1 is the root's.
    const FIRST: PartitionCounters = PartitionCounters { sequence: 2, inodes: Some(0) };
    /// Existing inodes of a partition.
    #[derive(Default)]
    struct Found {
        largest: u64,
        inodes: u64,
    }
    let mut partitions: BTreeMap<PartitionId, Found> =
        tree.counters.keys().map(|partition| (*partition, Found::default())).collect();
    let stored = tree.inodes.iter().filter(|(_, known)| known.inode.is_some());
    for (ino, inodes) in stored
        .map(|(&ino, _)| (ino, u64::from(ino != InodeId::ROOT)))
        .chain(tree.pending_deletions.keys().map(|name| (name.owner(), 0)))
    {
        let found = partitions.entry(ino.partition()).or_default();
        found.largest = found.largest.max(ino.sequence());
        found.inodes += inodes;
    }
    // A missing, damaged or superfluous record is reported already; then the count is set with that
    // repair. A finding that repair leaves must not count as repaired because of this.
    let explains_counts = checker.fixes.last().map(|fix| fix.finding);
    for (partition, Found { largest, inodes }) in partitions {
        let next = tree.counters.get(&partition).copied().unwrap_or(FIRST);
        // An earlier version didn't count them.
        let inodes = next.inodes.map(|_| inodes);
        let change = PartitionCounters { sequence: next.sequence.max(largest + 1), inodes };
        if next == change {
            continue;
        }
        let change = Change::PartitionCounters { partition, counters: change };
        let object = format!("partition {partition}");
        if next.sequence <= largest {
            let cause = format!("the next inode number is {}, but {largest} is in use", next.sequence);
            checker.add_fixable(Kind::NextNumber, object, cause, "repair sets it", change);
        } else if let Some(finding) = explains_counts {
            checker.fixes.push(Fix { finding, change });
        } else {
            let [counted, there] = [next.inodes, inodes].map(Option::unwrap_or_default);
            let cause = format!("the recorded number of inodes is {counted}, but there are {there}");
            checker.add_fixable(Kind::InodeCount, object, cause, "repair sets it", change);
        }
    }
}
