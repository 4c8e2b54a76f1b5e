//! The cluster of a measured directory: the ceilings that its management stores, and how to measure
//! them.

use super::ceilings::{ceiling, measured};
use crate::cmd::entry_info;
use crate::cmd::manage::{ask, unexpected};
use crate::control::{Control, MeasureOrder, Request};
use crate::mountpoint;
use bench::{Ceiling, Limit};
use mgmt::FIRST_NODE;
use std::path::{Path, PathBuf};
use types::{Errno, Error, Result, TargetId};
use wire::{MgmtReply, MgmtRequest};

/// Duration of each measurement before a characterization, in seconds: short, so that the load
/// starts soon.
const SECONDS: u64 = 1;

/// Bytes of the file for measuring a drive then.
const DRIVE_BYTES: u64 = 256 << 20;

/// Most drives that are measured without a request: more take too long.
const MAX_UNASKED_DRIVES: usize = 8;

/// Access to the cluster of a directory.
pub(super) enum Cluster {
    /// One process serves the cluster and the mount; this is its state directory.
    Here(PathBuf),
    /// A client's mount, whose process forwards requests to management.
    Mount(PathBuf),
}

/// Whether to measure ceilings before the load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Never; use the stored ones.
    Kept,
    /// If none are stored, and measuring doesn't take long.
    IfMissing,
    /// Always; a failure is an error.
    Anew,
}

impl Cluster {
    /// Returns the cluster of the weft mount that contains a path; `None` elsewhere.
    pub(super) fn of(place: &Path) -> Result<Option<Cluster>> {
        let Some((mountpoint, source)) = mountpoint::holding(place)? else { return Ok(None) };
        // The source of a mount in one process is its state directory; others name their cluster
        // file.
        Ok(Some(match source.is_absolute() && Control::connect(&source).is_ok_and(|found| found.is_some()) {
            true => Cluster::Here(source),
            false => Cluster::Mount(mountpoint),
        }))
    }

    fn asked(&self, request: MgmtRequest) -> Result<MgmtReply> {
        match self {
            Cluster::Here(dir) => ask(dir, request),
            Cluster::Mount(mountpoint) => match Control::of_mount(mountpoint)? {
                Some(mut control) => control.exchange(Request::Manage { request }),
                None => {
                    let text = format!("the mount at {} has no control socket", mountpoint.display());
                    Err(Error::new(Errno::ENOTCONN, text).hint("its log says why"))
                }
            },
        }
    }

    /// Returns the stored ceilings, and the online targets grouped by drive.
    fn all(&self) -> Result<(Vec<Ceiling>, Vec<Vec<TargetId>>)> {
        match self.asked(MgmtRequest::ListCeilings)? {
            MgmtReply::Ceilings { ceilings, drives } => {
                Ok((ceilings.iter().filter_map(ceiling).collect(), drives))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the stored ceilings. Targets that are known to share a drive count once, with the
    /// best result.
    fn kept(&self) -> Result<Vec<Ceiling>> {
        self.all().map(|(all, drives)| of_drives(all, &drives))
    }

    /// Measures each drive once, and the processors.
    fn measure(&self, wanted: Wanted, is_over: &dyn Fn() -> bool) -> Result<()> {
        let Cluster::Here(dir) = self else { return Err(not_from_a_mount()) };
        let (_, drives) = self.all()?;
        if wanted == Wanted::IfMissing && drives.len() > MAX_UNASKED_DRIVES {
            return Err(Error::new(Errno::E2BIG, format!("{} drives take too long", drives.len()))
                .hint("--ceilings measures them all the same"));
        }
        let milliseconds = SECONDS * 1000;
        let first = |targets: &Vec<TargetId>| targets.first().copied();
        let drive = |target| MeasureOrder::Drive { target, size: DRIVE_BYTES, milliseconds };
        let mut orders: Vec<MeasureOrder> = drives.iter().filter_map(first).map(drive).collect();
        orders.push(MeasureOrder::Cpu { node: FIRST_NODE, milliseconds });
        measured(dir, SECONDS, &orders, is_over).map(drop)
    }
}

/// Checks that ceilings can be measured from a place.
///
/// # Errors
/// The place isn't on weft, or its mount is a separate process from the cluster.
pub(super) fn require_measurable(place: &Path) -> Result<()> {
    match Cluster::of(place)? {
        Some(Cluster::Here(_)) => Ok(()),
        Some(Cluster::Mount(_)) => Err(not_from_a_mount()),
        None => {
            let text =
                format!("{} is not on a weft file system: nobody measures its ceilings", place.display());
            Err(Error::new(Errno::EOPNOTSUPP, text).hint("leave --ceilings out"))
        }
    }
}

fn not_from_a_mount() -> Error {
    Error::new(Errno::EOPNOTSUPP, "a mount can't measure the cluster's nodes")
        .hint("run weft bench storage, net and cpu on a node; they are kept, and used here")
}

/// Returns the ceilings of the cluster behind a place, none where there is no weft; and a note for
/// the reader if they are missing.
///
/// # Errors
/// Only if `wanted` demands a measurement and that fails.
pub(super) fn ceilings(
    place: &Path,
    wanted: Wanted,
    is_over: &dyn Fn() -> bool,
) -> Result<(Vec<Ceiling>, Option<String>)> {
    let cluster = match Cluster::of(place) {
        Ok(Some(cluster)) => cluster,
        Ok(None) => return Ok((Vec::new(), None)),
        Err(error) => return Ok((Vec::new(), Some(format!("ceilings aren't known: {error}")))),
    };
    let kept = if wanted == Wanted::Anew { Ok(Vec::new()) } else { cluster.kept() };
    let found = match kept {
        Ok(kept) if kept.is_empty() && wanted != Wanted::Kept => {
            cluster.measure(wanted, is_over).and_then(|()| cluster.kept())
        }
        kept => kept,
    };
    match found {
        Err(error) if wanted == Wanted::Anew => Err(error),
        Err(error) => Ok((Vec::new(), Some(format!("ceilings aren't known: {error}")))),
        Ok(found) if found.is_empty() => Ok((found, Some(missing(&cluster)))),
        Ok(found) => Ok((found, None)),
    }
}

fn missing(cluster: &Cluster) -> String {
    let how = match cluster {
        Cluster::Here(dir) => {
            let dir = dir.display();
            format!("weft bench storage --dir {dir} and weft bench cpu --dir {dir} do it")
        }
        Cluster::Mount(_) => "weft bench storage, net and cpu do it on a node of the cluster".into(),
    };
    format!("ceilings were never measured: {how}")
}

/// Returns one ceiling of each kind for each drive: the best of its targets, since each was
/// measured alone.
fn of_drives(all: Vec<Ceiling>, drives: &[Vec<TargetId>]) -> Vec<Ceiling> {
    use Limit::{StorageRandomRead, StorageRandomWrite, StorageRead, StorageWrite};
    let is_of_drive =
        |c: &Ceiling| matches!(c.limit, StorageWrite | StorageRead | StorageRandomWrite | StorageRandomRead);
    let (of_targets, mut kept): (Vec<Ceiling>, Vec<Ceiling>) = all.into_iter().partition(is_of_drive);
    for targets in drives {
        let places: Vec<String> = targets.iter().map(|target| format!("target {target}")).collect();
        for limit in [StorageWrite, StorageRead, StorageRandomWrite, StorageRandomRead] {
            let ours = of_targets.iter().filter(|c| c.limit == limit && places.contains(&c.place));
            kept.extend(ours.max_by(|a, b| a.rate.total_cmp(&b.rate)).cloned());
        }
    }
    kept
}

/// Returns the number of replicas of new files in a directory; 1 if it isn't on weft.
pub(super) fn copies(place: &Path) -> u32 {
    let scheme = entry_info::describe(place).ok().map(|value| value["pattern"]["scheme"].clone());
    let count = scheme.and_then(|scheme| scheme.as_str()?.strip_prefix("mirror:")?.parse().ok());
    count.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_one_drive_count_once_with_the_best() {
        let ceiling = |limit, place: &str, rate| Ceiling {
            limit,
            place: place.into(),
            rate,
            streams: 1,
            measured: "2026-11-23T01:45:00Z".into(),
        };
        let all = vec![
            ceiling(Limit::StorageRead, "target 1", 100.0),
            ceiling(Limit::StorageRead, "target 2", 120.0),
            ceiling(Limit::StorageRead, "target 3", 50.0),
            ceiling(Limit::StorageRead, "target 9", 999.0),
            ceiling(Limit::Checksum, "node 1", 7.0),
        ];
        let drives = [vec![TargetId(1), TargetId(2)], vec![TargetId(3)]];
        let mut rates: Vec<f64> = of_drives(all, &drives).iter().map(|c| c.rate).collect();
        rates.sort_by(f64::total_cmp);
        assert_eq!(rates, [7.0, 50.0, 120.0], "a target that is gone counts no more");
    }

    #[test]
    fn elsewhere_nothing_is_known_and_only_who_insists_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let none = ceilings(dir.path(), Wanted::IfMissing, &|| false).unwrap();
        assert_eq!(none, (Vec::new(), None));
        let error = require_measurable(dir.path()).unwrap_err();
        assert!(error.message.contains("not on a weft file system"), "{error}");
    }
}
