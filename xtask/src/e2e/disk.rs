//! Small local file systems on loop devices: targets of a chosen kind and size.

use super::cleanup::{self, Resource};
use super::mounts;
use super::outcome::{At, TestResult, skip};
use crate::process;
use crate::sys;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Deadline of one `losetup`, `mkfs` or `mount`.
const DEADLINE: Duration = Duration::from_secs(60);

/// The least that mkfs.xfs accepts is 300 MiB.
pub const SMALLEST_XFS_BYTES: u64 = 320 << 20;

/// Names of files that take room begin so, and the sizes of the largest and smallest of them, as
/// powers of two.
const BALLAST: &str = "ballast.";
const MOST_PIECE_BITS: u32 = 29;
const LEAST_PIECE_BITS: u32 = 12;

/// Kind of a local file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// What targets normally stand on.
    Xfs,
    /// The other one that is supported; can be very small.
    Ext4,
}

/// A file system on a loop device over a sparse file; unmounted and removed when dropped.
pub struct Disk {
    image: PathBuf,
    device: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Makes the image `folder/name.img`, formats it and mounts it at `folder/name`. Skips the test
    /// where that can't be done.
    pub fn new(folder: &Path, name: &str, kind: DiskKind, bytes: u64) -> TestResult<Disk> {
        if !sys::is_root() {
            return skip("loop devices need root");
        }
        let image = folder.join(format!("{name}.img"));
        let mount = folder.join(name);
        File::create(&image).and_then(|file| file.set_len(bytes)).at(image.display())?;
        fs::create_dir_all(&mount).at(mount.display())?;
        let device =
            match process::run_ok(Command::new("losetup").args(["-f", "--show"]).arg(&image), DEADLINE) {
                Ok(done) => PathBuf::from(done.stdout.trim()),
                Err(error) => return skip(format!("no loop device: {error}")),
            };
        cleanup::hold(Resource::Loop(device.clone()));
        let disk = Disk { image, device, mount };
        let format = match kind {
            DiskKind::Xfs => ["mkfs.xfs", "-q", "-f"],
            // No reserved blocks, so that the last byte can be used up by a test.
            DiskKind::Ext4 => ["mkfs.ext4", "-qF", "-m0"],
        };
        process::run_ok(Command::new(format[0]).args(&format[1..]).arg(&disk.device), DEADLINE)?;
        process::run_ok(Command::new("mount").arg(&disk.device).arg(&disk.mount), DEADLINE)?;
        cleanup::hold(Resource::Disk(disk.mount.clone()));
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Takes so much room, as somebody else's file would.
    pub fn take(&self, bytes: u64) -> TestResult {
        let path = self.mount.join(format!("{BALLAST}taken"));
        process::run_ok(Command::new("fallocate").args(["-l", &bytes.to_string()]).arg(&path), DEADLINE)?;
        Ok(())
    }

    /// Takes all the room that is left.
    pub fn fill(&self) -> TestResult {
        // In pieces that get smaller, each kind until there is no room for another one.
        for bits in (LEAST_PIECE_BITS..=MOST_PIECE_BITS).rev() {
            let mut piece = 0;
            loop {
                let path = self.mount.join(format!("{BALLAST}{bits}.{piece}"));
                let size = (1_u64 << bits).to_string();
                let asked = process::run(Command::new("fallocate").arg("-l").arg(size).arg(&path), DEADLINE)?;
                if !asked.status.success() {
                    drop(fs::remove_file(&path));
                    break;
                }
                piece += 1;
            }
        }
        Ok(())
    }

    /// Gives back the room that [`Disk::fill`] took.
    pub fn relieve(&self) -> TestResult {
        for entry in fs::read_dir(&self.mount).at(self.mount.display())?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(BALLAST) {
                fs::remove_file(entry.path()).at(entry.path().display())?;
            }
        }
        Ok(())
    }

    /// From now on everything fails with EIO, and what isn't on disk yet never will be. XFS only.
    pub fn shut_down(&self) -> TestResult {
        process::run_ok(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Takes it away from its path, whoever uses it: what is open stays open.
    pub fn unmount_lazily(&self) -> TestResult {
        process::run_ok(Command::new("umount").arg("--lazy").arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Mounts it where it was.
    pub fn mount_again(&self) -> TestResult {
        process::run_ok(Command::new("mount").arg(&self.device).arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Mounts it anew, as after a power cut. Nobody uses it any more; the rings of a process that
    /// was killed let go of its files a moment after its end.
    pub fn remount(&self) -> TestResult {
        let mut last = None;
        let umount = || process::run_ok(Command::new("umount").arg(&self.mount), DEADLINE);
        process::eventually(DEADLINE, || last.insert(umount()).is_ok());
        last.unwrap_or_else(umount)?;
        process::run_ok(Command::new("mount").arg(&self.device).arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Cuts the backing file, so that reads and writes beyond `bytes` fail with EIO from now on.
    pub fn lose_everything_after(&self, bytes: u64) -> TestResult {
        let at = self.image.display();
        let image = File::options().write(true).open(&self.image).at(&at)?;
        image.set_len(bytes).at(&at)?;
        // Otherwise reads would go on being answered from memory.
        fs::write("/proc/sys/vm/drop_caches", "3").at("drop_caches")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        mounts::force_unmount(&self.mount);
        cleanup::released(&Resource::Disk(self.mount.clone()));
        cleanup::detach_loop(&self.device);
        cleanup::released(&Resource::Loop(self.device.clone()));
        drop(fs::remove_file(&self.image));
    }
}
