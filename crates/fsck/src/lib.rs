//! The offline check of a file system: names against inodes, link counts, orphans, chunk files against layouts, checksums.
//!
//! Works on a metadata store and targets that nobody serves. What a restart settles by itself (orphans, files that were being
//! written, chunks that are yet to be deleted) is no damage and is left to it. Each finding says what it is about,
//! the cause and the remedy. With repair, what can be put right without guessing about content is put right;
//! damaged content never is.
//!
//! Copies of mirrored groups are checked each for itself, and against each other where nothing is noted that may differ. One that isn't good by the
//! cluster map is brought in step when the cluster runs: that is no damage either, but said.

mod copies;
mod data;
mod finding;
mod names;
mod online;
mod repair;
mod tree;

pub use data::Seat;
pub use finding::{Finding, Kind, Report, Verdict};
pub use online::{Freeze, Later, Online, Targets, check_online};

use chunkstore::Store;
use kv::Engine;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{ClusterMap, GroupId, Result, TargetId};

/// What to check.
pub struct Subject<'a> {
    /// The metadata store.
    pub engine: &'a dyn Engine,
    /// Number of partitions of the inode space.
    pub partitions: u16,
    /// Key of the name hash.
    pub hash_key: (u64, u64),
    /// Groups and targets.
    pub map: &'a ClusterMap,
    /// The opened targets.
    pub stores: &'a BTreeMap<TargetId, Arc<Store>>,
    /// What they have of mirrored groups, opened.
    pub copies: &'a Copies,
}

/// Stores of mirrored groups, by target and group.
pub type Copies = BTreeMap<(TargetId, GroupId), Arc<Store>>;

/// Opens what targets have of mirrored groups. To be closed before the targets are.
///
/// # Errors
/// What can't be opened at all; those that are open already are left so.
pub async fn open_copies(stores: &BTreeMap<TargetId, Arc<Store>>) -> Result<Copies> {
    let mut copies = Copies::new();
    for (&target, store) in stores {
        for group in Store::groups_on(store.dir()).await.map_err(data::unreadable)? {
            if let Some((copy, _)) = Store::open_group(store, group, false).await.map_err(data::unreadable)? {
                copies.insert((target, group), copy);
            }
        }
    }
    Ok(copies)
}

/// Told now and then how far the check is.
pub type Progress<'a> = &'a dyn Fn(&str, u64, u64);

/// Checks everything; with `repair`, mends what can be mended.
///
/// # Errors
/// A store or target that can't be read at all. Damage is no error: it is in the report.
pub async fn check(subject: &Subject<'_>, repair: bool, progress: Progress<'_>) -> Result<Report> {
    let mut report = Report::default();
    let mut tree = tree::Tree::read(subject, &mut report, progress)?;
    let fixes = names::check(subject, &mut tree, &mut report);
    if repair {
        repair::apply(subject, &fixes, &mut report)?;
    }
    data::check(subject, &tree, repair, &mut report, progress).await?;
    copies::check(subject, &tree, &mut report, progress).await?;
    report.files = tree.files();
    report.directories = tree.directories();
    Ok(report)
}
