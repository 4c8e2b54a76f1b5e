//! An application that syncs after a power failure has destroyed its writes must get an error.

use super::super::outcome::{At, TestResult, ensure};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase};
use super::disks::{self, STORAGE};
use super::{Cluster, Part};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(in super::super) const TESTS: &[TestCase] = &[TestCase {
    name: "fsync_reports_lost_data",
    scope: Scope::Own,
    minutes: 5,
    run: fsync_reports_lost_data,
}];

const BYTES: usize = 2 << 20;

/// An open file, and the data written to it.
struct Written {
    path: PathBuf,
    file: File,
    content: Vec<u8>,
}

impl Written {
    fn new(folder: &Path, name: &str) -> TestResult<Written> {
        let path = folder.join(name);
        let file = File::options().write(true).create_new(true).open(&path).at(path.display())?;
        let written = Written { path, file, content: Rng::new(name.len() as u64).bytes(BYTES) };
        written.write()?;
        Ok(written)
    }

    fn write(&self) -> TestResult {
        self.file.write_all_at(&self.content, 0).at(self.path.display())
    }

    fn sync(&self, when: &str) -> TestResult {
        self.file.sync_all().at(format!("sync of {} {when}", self.path.display()))
    }

    /// Checks that a sync fails, exactly once, and that after another write all data is present.
    fn ensure_is_reported(&self, elsewhere: &Path) -> TestResult {
        let outcome = self.file.sync_all();
        ensure!(
            outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EIO)),
            "a sync of {} returned {outcome:?} although a power failure destroyed written data",
            self.path.display()
        );
        self.write()?;
        self.sync("that was written again")?;
        self.ensure_is_there(elsewhere)
    }

    fn ensure_is_there(&self, elsewhere: &Path) -> TestResult {
        let path = elsewhere.join(self.path.file_name().unwrap_or_default());
        let seen = fs::read(&path).at(path.display())?;
        ensure!(seen == self.content, "{} isn't what was synced", path.display());
        Ok(())
    }
}

/// Files with one and two replicas, written but not synced, when all storage nodes crash, and when
/// they lose power.
fn fsync_reports_lost_data(stage: &Stage) -> TestResult {
    let mut cluster = disks::start_plain(stage, "power")?;
    let single = cluster.shared_folder("single")?;
    cluster.mirror_everything(2)?;
    let mirrored = cluster.shared_folder("mirrored")?;
    for (folders, copies) in [(&single, 1), (&mirrored, 2)] {
        let survivor = Written::new(&folders[0], "died")?;
        for node in 0..usize::from(STORAGE) {
            cluster.kill_storage(node);
            cluster.restart(Part::Storage(node))?;
        }
        cluster.wait_until_in_sync()?;
        survivor.sync("whose storage services have only died")?;
        survivor.ensure_is_there(&folders[1])?;
        let [synced, unsynced, closed] =
            ["synced", "unsynced", "closed-unsynced"].map(|name| Written::new(&folders[0], name));
        let (synced, unsynced, closed) = (synced?, unsynced?, closed?);
        synced.sync("before the power goes")?;
        let Written { path, file, content } = closed;
        drop(file);
        lose_power(&mut cluster)?;
        synced.sync("again")?;
        synced.ensure_is_there(&folders[1])?;
        unsynced.ensure_is_reported(&folders[1])?;
        let file = File::options().write(true).open(&path).at(path.display())?;
        Written { path, file, content }.ensure_is_reported(&folders[1])?;
        println!("files with {copies} replicas: loss reported");
    }
    cluster.stop()
}

fn lose_power(cluster: &mut Cluster) -> TestResult {
    for node in 0..usize::from(STORAGE) {
        cluster.fail_disk(node, disks::DiskFault::WithoutPower)?;
    }
    for node in 0..usize::from(STORAGE) {
        cluster.repair_disk(node, disks::DiskFault::WithoutPower)?;
    }
    cluster.wait_until_in_sync()
}
