//! The file system check of a stopped cluster, and the options of both offline and online checks.

use super::background_core::ProcessServices;
use super::metadata_store::open_engine;
use super::services::{Services, ServicesPlan};
use crate::control::{CheckParameters, CheckProgress};
use crate::output::os_error;
use kv::{Durability, Store, Writer};
use mgmt::StateDir;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use types::{Errno, Error, Result};

/// Opens the services, which recovers from a crash if there was one; checks everything, and closes
/// them.
///
/// # Errors
/// What prevents the check. Damage is in the report.
pub fn check(
    state: &StateDir,
    orders: CheckParameters,
    progress: impl Fn(&str, u64, u64) + 'static,
) -> Result<fsck::CheckReport> {
    let plan = ServicesPlan::existing(state)?;
    let checked = rt::block_on(async move {
        let services = Services::open(&plan).await?;
        let note = |loss: &fsck::Loss| record_loss(orders.forget.as_deref(), loss);
        let orders = check_options(&orders, &note);
        let report = services.check(&plan, &orders, &progress).await;
        let closed = services.close().await;
        report.and_then(|report| closed.map(|()| report))
    });
    checked.map_err(|e| os_error("io_uring", &e))?
}

/// Checks the name space of a cluster of several nodes whose management node is stopped. It doesn't
/// check chunk files: they are on nodes that may be running.
///
/// # Errors
/// What prevents the check. Damage is in the report.
pub fn check_names(
    state: &StateDir,
    orders: CheckParameters,
    progress: impl Fn(&str, u64, u64) + 'static,
) -> Result<fsck::CheckReport> {
    let engine = Arc::new(open_engine(&state.paths, &state.superblock)?);
    let of_store = (state.superblock.partitions, state.superblock.hash_key);
    let checked = rt::block_on(async move {
        let metadata = Writer::new(engine, Durability::Process);
        let unused = |_: &fsck::Loss| Ok(());
        check_names_in(&metadata, of_store, &check_options(&orders, &unused), &progress).await
    });
    let mut report = checked.map_err(|e| os_error("io_uring", &e))??;
    report.unjudged.push("chunk files: weft fsck checks them while the nodes run".into());
    Ok(report)
}

/// Nodes with metadata services may still run, and would overwrite repairs with their cached state.
/// So their partitions are revoked before the first repair: a check that fails or is interrupted
/// keeps the repairs before that.
async fn check_names_in(
    metadata: &dyn Store,
    of_store: (u16, (u64, u64)),
    orders: &fsck::CheckOptions<'_>,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<fsck::CheckReport> {
    if orders.repair {
        meta::release_partitions(metadata).await?;
    }
    fsck::check_names(metadata, of_store, orders, progress).await
}

/// Converts the options of a command to those of the check.
pub(super) fn check_options<'a>(
    orders: &'a CheckParameters,
    note: &'a dyn Fn(&fsck::Loss) -> Result<()>,
) -> fsck::CheckOptions<'a> {
    fsck::CheckOptions {
        repair: orders.repair,
        loss_recorder: orders.forget.as_ref().map(|_| note),
        below: orders.path.as_deref(),
        delete: orders.delete,
        accept_loss: orders.accept_loss,
    }
}

/// Records data that is about to be given up, one line of JSON per range, and syncs it.
pub(super) fn record_loss(file: Option<&Path>, loss: &fsck::Loss) -> Result<()> {
    let Some(file) = file else {
        return Err(Error::new(Errno::EINVAL, "no file for the list of losses was given"));
    };
    let mut line = serde_json::to_vec(loss).map_err(|e| Error::new(Errno::EIO, e.to_string()))?;
    line.push(b'\n');
    let write = || {
        let mut list = OpenOptions::new().append(true).open(file)?;
        list.write_all(&line)?;
        list.sync_data()
    };
    write().map_err(|e| os_error(format_args!("can't write {}", file.display()), &e))
}

/// A file with one line of JSON for each file that would be lost.
pub(super) struct LossList {
    path: PathBuf,
    file: BufWriter<File>,
}

impl LossList {
    /// Opens an existing file to append to it.
    pub fn open(path: &Path) -> Result<LossList> {
        let opened = OpenOptions::new().append(true).open(path);
        let file = opened.map_err(|e| os_error(format_args!("can't write {}", path.display()), &e))?;
        Ok(LossList { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    pub fn add(&mut self, lost: &fsck::LostFile) -> Result<()> {
        let mut line = serde_json::to_vec(lost).map_err(|e| Error::new(Errno::EIO, e.to_string()))?;
        line.push(b'\n');
        let path = &self.path;
        self.file.write_all(&line).map_err(|e| os_error(format_args!("can't write {}", path.display()), &e))
    }

    /// Closes the list; all of it is on disk when this returns.
    pub fn close(mut self) -> Result<()> {
        let path = &self.path;
        let written = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        written.map_err(|e| os_error(format_args!("can't write {}", path.display()), &e))
    }
}

/// Checks of a running process. At most one repairs at a time, so that two don't repair the same
/// object.
#[derive(Default)]
pub struct OnlineChecks {
    is_repairing: AtomicBool,
    progress: Mutex<CheckProgress>,
}

/// Permission to repair, given back on drop.
pub struct RepairPermit<'a>(&'a AtomicBool);

impl Drop for RepairPermit<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl OnlineChecks {
    /// Reserves the right to repair.
    ///
    /// # Errors
    /// `EBUSY` if another check repairs already.
    pub fn acquire_repair_permit(&self) -> Result<RepairPermit<'_>> {
        match self.is_repairing.swap(true, Ordering::AcqRel) {
            false => Ok(RepairPermit(&self.is_repairing)),
            true => {
                Err(Error::new(Errno::EBUSY, "another repair is under way").hint("try again when it is done"))
            }
        }
    }

    /// Records the progress of the check.
    pub fn set_progress(&self, what: &str, done: u64, total: u64) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        *progress = CheckProgress { what: what.to_owned(), done, total };
    }

    /// Returns the progress of the check.
    pub fn progress(&self) -> CheckProgress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{Engine, Memory};
    use namespace::keys;
    use types::{ClusterMap, InodeId, PartitionId, Timestamp};

    #[test]
    fn one_repair_at_a_time() {
        let checks = OnlineChecks::default();
        let first = checks.acquire_repair_permit().unwrap();
        assert!(matches!(checks.acquire_repair_permit(), Err(error) if error.errno == Errno::EBUSY));
        drop(first);
        assert!(checks.acquire_repair_permit().is_ok());
    }

    #[test]
    fn running_services_lose_their_partitions_before_the_first_repair() {
        const PARTITION: PartitionId = PartitionId(1);
        let (hash_key, partitions, map) = ((1, 2), 4, ClusterMap::default());
        let env = namespace::Env {
            now: Timestamp::new(1_700_000_000, 0),
            session: types::SessionId(1),
            credentials: types::Credentials::default(),
            hash_key,
            partitions,
            seed: 0,
            map: &map,
        };
        // A directory without a name. It can't be given one, because the root is missing.
        let nameless = keys::inode(InodeId::new(PARTITION, 9)).to_vec();
        let mut writes = namespace::format(&env, &types::StripePattern::default());
        writes.retain(|(key, _)| key[..] == keys::inode(InodeId::ROOT)[..]);
        writes[0].0 = nameless;
        // A damaged record, which is repaired before that, and an owner record: node 3 with
        // ownership epoch 7.
        let damaged = keys::inode(InodeId::new(PARTITION, 5)).to_vec();
        let owner = keys::owner(PARTITION).to_vec();
        writes.push((damaged.clone(), Some(vec![0xff; 9].into())));
        writes.push((owner.clone(), Some(vec![0x08, 3, 0x10, 7].into())));
        let engine = Arc::new(Memory::new());
        let store = Arc::new(Writer::new(engine.clone(), Durability::Process));
        engine.apply(&[kv::Batch { guards: Vec::new(), writes }]).unwrap();
        let check = |repair| {
            let store = store.clone();
            let check = async move {
                let orders = fsck::CheckOptions { repair, ..fsck::CheckOptions::default() };
                check_names_in(&*store, (partitions, hash_key), &orders, &|_, _, _| ()).await
            };
            rt::block_on(check).unwrap()
        };
        let epoch_and_more = || engine.get(&owner).unwrap().unwrap()[2..].to_vec();
        check(false).unwrap();
        assert_eq!(epoch_and_more(), [0x10, 7], "who only looks takes nothing");
        check(true).unwrap_err();
        assert_eq!(engine.get(&damaged).unwrap(), None, "something is repaired");
        assert_eq!(epoch_and_more(), [0x10, 8, 0x18, 1]);
    }

    #[test]
    fn losses_are_recorded_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lost");
        let loss = |path: &str| fsck::Loss {
            path: path.into(),
            ino: types::InodeId(5),
            range: types::ByteRange::new(0, 4096),
        };
        assert!(record_loss(Some(&file), &loss("/a")).is_err(), "nobody has made the list");
        std::fs::write(&file, "").unwrap();
        for path in ["/a", "/with\nnewline"] {
            record_loss(Some(&file), &loss(path)).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let losses: Vec<fsck::Loss> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(losses, [loss("/a"), loss("/with\nnewline")]);
        assert!(record_loss(None, &loss("/a")).is_err());
    }
}
