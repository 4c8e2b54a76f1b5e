//! The cluster of a measured directory: the ceilings that its management stores, and how to measure
//! them.

use super::ceilings::{ceiling, measured};
use crate::cli::PlaceOption;
use crate::cmd::entry_info;
use crate::cmd::manage::{ask, unexpected_reply};
use crate::control::{Control, MeasurementRequest, Request};
use crate::mountpoint;
use crate::progress::Progress;
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
const MAX_DRIVES_BY_DEFAULT: usize = 8;

/// Access to the cluster of a directory.
pub(super) enum MeasuredCluster {
    /// One process serves the cluster and the mount; this is its state directory.
    Local(PathBuf),
    /// A client's mount, whose process forwards requests to management.
    Mount(PathBuf),
}

/// Whether to measure ceilings before the load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CeilingPolicy {
    /// Never; use the stored ones.
    Stored,
    /// If none are stored, and measuring doesn't take long.
    IfMissing,
    /// Always; a failure is an error.
    Always,
}

impl MeasuredCluster {
    /// Returns the cluster of the weft mount that contains a path; `None` elsewhere.
    pub(super) fn of(place: &Path) -> Result<Option<MeasuredCluster>> {
        let Some((mountpoint, source)) = mountpoint::containing_mount(place)? else { return Ok(None) };
        // The source of a mount in one process is its state directory; others name their cluster
        // file.
        Ok(Some(match source.is_absolute() && Control::connect(&source).is_ok_and(|found| found.is_some()) {
            true => MeasuredCluster::Local(source),
            false => MeasuredCluster::Mount(mountpoint),
        }))
    }

    fn ask_management(&self, request: MgmtRequest) -> Result<MgmtReply> {
        match self {
            MeasuredCluster::Local(dir) => ask(&PlaceOption::at(dir), request),
            MeasuredCluster::Mount(mountpoint) => match Control::of_mount(mountpoint)? {
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
        match self.ask_management(MgmtRequest::ListCeilings)? {
            MgmtReply::Ceilings { ceilings, drives } => {
                Ok((ceilings.iter().filter_map(ceiling).collect(), drives))
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Returns the stored ceilings. Targets that are known to share a drive count once, with the
    /// best result.
    fn stored_ceilings(&self) -> Result<Vec<Ceiling>> {
        self.all().map(|(all, drives)| ceilings_per_drive(all, &drives))
    }

    /// Measures each drive once, and the processors.
    fn measure(&self, wanted: CeilingPolicy, is_over: &dyn Fn() -> bool) -> Result<()> {
        let MeasuredCluster::Local(dir) = self else { return Err(not_from_a_mount()) };
        let (_, drives) = self.all()?;
        if wanted == CeilingPolicy::IfMissing && drives.len() > MAX_DRIVES_BY_DEFAULT {
            return Err(Error::new(Errno::E2BIG, format!("{} drives take too long", drives.len()))
                .hint("--ceilings measures them anyway"));
        }
        let milliseconds = SECONDS * 1000;
        let first = |targets: &Vec<TargetId>| targets.first().copied();
        let drive = |target| MeasurementRequest::Drive { target, size: DRIVE_BYTES, milliseconds };
        let mut orders: Vec<MeasurementRequest> = drives.iter().filter_map(first).map(drive).collect();
        orders.push(MeasurementRequest::Cpu { node: FIRST_NODE, milliseconds });
        let progress = Progress::start_stoppable("measuring ceilings");
        measured(&PlaceOption::at(dir), SECONDS, &orders, (&progress, is_over)).map(drop)
    }
}

/// Checks that ceilings can be measured from a place.
///
/// # Errors
/// The place isn't on weft, or its mount is a separate process from the cluster.
pub(super) fn require_measurable(place: &Path) -> Result<()> {
    match MeasuredCluster::of(place)? {
        Some(MeasuredCluster::Local(_)) => Ok(()),
        Some(MeasuredCluster::Mount(_)) => Err(not_from_a_mount()),
        None => {
            let text =
                format!("{} is not on a weft file system: its ceilings can't be measured", place.display());
            Err(Error::new(Errno::EOPNOTSUPP, text).hint("leave --ceilings out"))
        }
    }
}

fn not_from_a_mount() -> Error {
    Error::new(Errno::EOPNOTSUPP, "a mount can't measure the cluster's nodes")
        .hint("run weft bench storage, net and cpu on a node; the results are stored, and used here")
}

/// Returns the ceilings of the cluster behind a place, none where there is no weft; and a note for
/// the reader if they are missing.
///
/// # Errors
/// Only if `wanted` demands a measurement and that fails.
pub(super) fn ceilings(
    place: &Path,
    wanted: CeilingPolicy,
    is_over: &dyn Fn() -> bool,
) -> Result<(Vec<Ceiling>, Option<String>)> {
    let cluster = match MeasuredCluster::of(place) {
        Ok(Some(cluster)) => cluster,
        Ok(None) => return Ok((Vec::new(), None)),
        Err(error) => return Ok((Vec::new(), Some(format!("ceilings are unknown: {error}")))),
    };
    let kept = if wanted == CeilingPolicy::Always { Ok(Vec::new()) } else { cluster.stored_ceilings() };
    let found = match kept {
        Ok(kept) if kept.is_empty() && wanted != CeilingPolicy::Stored => {
            cluster.measure(wanted, is_over).and_then(|()| cluster.stored_ceilings())
        }
        kept => kept,
    };
    match found {
        Err(error) if wanted == CeilingPolicy::Always => Err(error),
        Err(error) => Ok((Vec::new(), Some(format!("ceilings are unknown: {error}")))),
        Ok(found) if found.is_empty() => Ok((found, Some(missing(&cluster)))),
        Ok(found) => Ok((found, None)),
    }
}

fn missing(cluster: &MeasuredCluster) -> String {
    let how = match cluster {
        MeasuredCluster::Local(dir) => {
            let dir = dir.display();
            format!("weft bench storage --dir {dir} and weft bench cpu --dir {dir} do it")
        }
        MeasuredCluster::Mount(_) => "weft bench storage, net and cpu do it on a node of the cluster".into(),
    };
    format!("ceilings were never measured: {how}")
}

/// Returns one ceiling of each kind for each drive: the best of its targets, since each was
/// measured alone.
fn ceilings_per_drive(all: Vec<Ceiling>, drives: &[Vec<TargetId>]) -> Vec<Ceiling> {
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
pub(super) fn replica_count(place: &Path) -> u32 {
    let scheme = entry_info::read_entry_info(place).ok().map(|value| value["pattern"]["scheme"].clone());
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
        let mut rates: Vec<f64> = ceilings_per_drive(all, &drives).iter().map(|c| c.rate).collect();
        rates.sort_by(f64::total_cmp);
        assert_eq!(rates, [7.0, 50.0, 120.0], "a target that is gone counts no more");
    }

    #[test]
    fn outside_weft_ceilings_are_unknown_and_measuring_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let none = ceilings(dir.path(), CeilingPolicy::IfMissing, &|| false).unwrap();
        assert_eq!(none, (Vec::new(), None));
        let error = require_measurable(dir.path()).unwrap_err();
        assert!(error.message.contains("not on a weft file system"), "{error}");
    }
}
