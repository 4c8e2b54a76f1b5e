//! The check of a file system: names against inodes, link counts, orphans, chunk files against
//! layouts, checksums.
//!
//! The offline check works on a metadata store and targets that no process serves. State that a
//! restart reconciles by itself (orphans, files that were being written, chunk files whose deletion
//! is pending) is no damage and is left alone. Each finding names its object, the cause and the
//! remedy.
//!
//! With repair, the check repairs names and records, removes orphaned chunk files, and replaces
//! content of which an intact replica exists (`plan` selects it). Content without an intact replica
//! is left as it is, unless the caller gives it up (`CheckOptions::loss_recorder`): then it is
//! reported first, and reads as zeros afterwards.
//!
//! Replicas of mirrored groups are checked separately, and compared with each other where no note
//! says that they may differ. A replica that is not in sync by the cluster map is resynced when the
//! cluster runs: it is no damage either, but is reported.

mod content_repair;
mod data;
mod exposure;
mod finding;
mod inventory;
mod local;
mod losses;
mod metadata_age;
mod names;
mod online;
mod orphans;
mod plan;
mod repair;
mod replicas;
mod targets;
mod tree;

pub use data::ReplicaLocation;
pub use exposure::{Amount, Domain, DomainExposure, Exposure, HeavyDirectory, exposure};
pub use finding::{CheckOutcome, CheckReport, Finding, Kind};
pub use inventory::{InventoryPage, InventoryPosition, MissingChunkFile, inventory_page};
pub use local::LocalTargets;
pub use losses::{Losses, LostFile, LostGroup, losses, usage};
pub use online::{Online, check_online};
pub use targets::{Discard, TargetFuture, Targets};

use chunkstore::{IfAbsent, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{ByteRange, ClusterMap, Error, GroupId, InodeId, Result, TargetId};

/// Input of a check.
pub struct Subject<'a> {
    /// The metadata store.
    pub metadata: &'a dyn kv::Store,
    /// Number of partitions of the inode space.
    pub partitions: u16,
    /// Key of the name hash.
    pub hash_key: (u64, u64),
    /// Groups and targets.
    pub map: &'a ClusterMap,
    /// The opened targets.
    pub stores: &'a BTreeMap<TargetId, Arc<Store>>,
    /// Their replicas of mirrored groups, opened.
    pub replicas: &'a Replicas,
    /// Their replicas of mirrored groups that can't be opened.
    pub unopened: &'a UnopenedReplicas,
}

impl Subject<'_> {
    /// Returns whether the target of a location is here, and its replica of the group could be
    /// opened.
    pub(crate) fn is_open(&self, location: ReplicaLocation) -> bool {
        let can_be = |group: GroupId| !self.unopened.contains_key(&(location.target, group));
        self.stores.contains_key(&location.target) && location.group.is_none_or(can_be)
    }
}

/// Stores of mirrored groups, by target and group.
pub type Replicas = BTreeMap<(TargetId, GroupId), Arc<Store>>;

/// Why stores of mirrored groups can't be opened, by target and group.
pub type UnopenedReplicas = BTreeMap<(TargetId, GroupId), Error>;

/// Opens the replicas of mirrored groups on targets. Close them before the targets. The check
/// reports those that can't be opened.
///
/// # Errors
/// If the groups of a target can't be listed; nothing is open then.
pub async fn open_replicas(stores: &BTreeMap<TargetId, Arc<Store>>) -> Result<(Replicas, UnopenedReplicas)> {
    let mut found = Vec::new();
    for (&target, store) in stores {
        let groups = store.groups().await.map_err(data::store_error)?;
        found.extend(groups.into_iter().map(|group| ((target, group), store)));
    }
    let (mut replicas, mut unopened) = (Replicas::new(), UnopenedReplicas::new());
    for (place, store) in found {
        match Store::open_group(store, place.1, IfAbsent::Leave).await {
            Ok(Some((copy, _))) => drop(replicas.insert(place, copy)),
            Ok(None) => {}
            Err(error) => drop(unopened.insert(place, data::store_error(error))),
        }
    }
    Ok((replicas, unopened))
}

/// Called at intervals with the phase of the check, the items done and their total.
pub type Progress<'a> = &'a dyn Fn(&str, u64, u64);

/// Called with content that is given up, before it becomes zeros; if it returns an error, the
/// content stays.
pub type LossRecorder<'a> = &'a dyn Fn(&Loss) -> Result<()>;

/// What a check does besides reading.
#[derive(Clone, Copy, Default)]
pub struct CheckOptions<'a> {
    /// Repair what can be repaired.
    pub repair: bool,
    /// Give up content that no replica has, with `repair` only: this is called with it before it
    /// becomes zeros.
    pub loss_recorder: Option<LossRecorder<'a>>,
    /// Check only what is at or below this path, which begins at the root of the file system.
    /// Orphaned chunk files are not searched then.
    pub below: Option<&'a str>,
    /// With `repair`: orphaned chunk files are deleted instead of moved aside, and truncated ones
    /// are not copied first.
    pub delete: bool,
    /// With `repair`: repair even if the metadata looks older than the chunk files.
    pub accept_loss: bool,
}

impl CheckOptions<'_> {
    /// Returns what happens to orphaned chunk files, and to data cut off others.
    pub(crate) fn discard(&self) -> Discard {
        if self.delete { Discard::Delete } else { Discard::MoveAside }
    }
}

/// Content that is given up.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Loss {
    /// A path of the file.
    pub path: String,
    /// Its inode.
    pub ino: InodeId,
    /// Bytes of the file.
    pub range: ByteRange,
}

/// Runs the check that the orders describe.
///
/// # Errors
/// A store or target that can't be read at all, a path that doesn't exist; with an order to repair,
/// metadata that looks older than the chunk files. Damage is no error: it is in the report.
pub async fn check(
    subject: &Subject<'_>,
    options: &CheckOptions<'_>,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    metadata_age::check_age(subject, options, progress).await?;
    let (tree, mut report) = names_of(subject, options, progress).await?;
    let below = options.below.map(|path| tree.below(path)).transpose()?;
    data::check(subject, &tree, (options, below.as_ref()), &mut report, progress).await?;
    replicas::check(subject, &tree, below.as_ref(), &mut report, progress).await?;
    if options.repair {
        let contents = report.findings.iter().filter_map(|finding| finding.place);
        let contents = contents.filter_map(|(ino, _)| Some((ino, tree.content(ino)?))).collect();
        let targets = local::LocalTargets(subject);
        let repair =
            content_repair::ContentRepair { targets: &targets, map: subject.map, options, online: None };
        repair.run(&contents, &mut report).await?;
    }
    report.files = tree.files();
    report.directories = tree.directories();
    Ok(report)
}

/// Checks only names and records, of a store that no process serves, where the chunk files are
/// elsewhere.
///
/// # Errors
/// The same as those of [`check`].
pub async fn check_names(
    metadata: &dyn kv::Store,
    (partitions, hash_key): (u16, (u64, u64)),
    options: &CheckOptions<'_>,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let (map, stores) = (ClusterMap::default(), BTreeMap::new());
    let (replicas, unopened) = (Replicas::new(), UnopenedReplicas::new());
    let subject = Subject {
        metadata,
        partitions,
        hash_key,
        map: &map,
        stores: &stores,
        replicas: &replicas,
        unopened: &unopened,
    };
    let (tree, mut report) = names_of(&subject, options, progress).await?;
    options.below.map(|path| tree.below(path)).transpose()?;
    (report.files, report.directories) = (tree.files(), tree.directories());
    Ok(report)
}

async fn names_of(
    subject: &Subject<'_>,
    options: &CheckOptions<'_>,
    progress: Progress<'_>,
) -> Result<(tree::Tree, CheckReport)> {
    let mut report = CheckReport::default();
    let mut tree = tree::Tree::read(subject.metadata, subject.partitions, &mut report, progress).await?;
    let fixes = names::check(subject.hash_key, &mut tree, &mut report);
    match options.below {
        // Names depend on each other: faults outside the path are neither reported nor repaired.
        Some(path) => report.findings.retain(|finding| is_below(&finding.object, path)),
        None if options.repair => repair::apply(subject, &fixes, &mut report).await?,
        None => {}
    }
    Ok((tree, report))
}

/// Returns whether the object of a finding is a path at or below `path`.
fn is_below(object: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    object.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
