//! Small local file systems on loop devices: targets of a given kind and size.

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

/// Size of the smallest XFS in tests; mkfs.xfs accepts 300 MiB or more.
pub const SMALLEST_XFS_BYTES: u64 = 320 << 20;

/// Prefix of files that occupy space, and the largest and smallest of their sizes as powers of two.
const BALLAST: &str = "ballast.";
const MOST_PIECE_BITS: u32 = 29;
const LEAST_PIECE_BITS: u32 = 12;

/// Kind of a local file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// The default file system of targets.
    Xfs,
    /// The other supported file system; it can be very small.
    Ext4,
}

/// A file system on a loop device over a sparse file; unmounted and removed when dropped.
pub struct Disk {
    image: PathBuf,
    device: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Creates the image `folder/name.img`, formats it and mounts it at `folder/name`. Skips the
    /// test if that isn't possible.
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
        cleanup::register(Resource::Loop(device.clone()));
        let disk = Disk { image, device, mount };
        let format = match kind {
            DiskKind::Xfs => ["mkfs.xfs", "-q", "-f"],
            // No reserved blocks, so that a test can use the last byte.
            DiskKind::Ext4 => ["mkfs.ext4", "-qF", "-m0"],
        };
        process::run_ok(Command::new(format[0]).args(&format[1..]).arg(&disk.device), DEADLINE)?;
        process::run_ok(Command::new("mount").arg(&disk.device).arg(&disk.mount), DEADLINE)?;
        cleanup::register(Resource::Disk(disk.mount.clone()));
        Ok(disk)
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Occupies space, like other users' files.
    pub fn take(&self, bytes: u64) -> TestResult {
        let path = self.mount.join(format!("{BALLAST}taken"));
        process::run_ok(Command::new("fallocate").args(["-l", &bytes.to_string()]).arg(&path), DEADLINE)?;
        Ok(())
    }

    /// Occupies all remaining space.
    pub fn fill(&self) -> TestResult {
        // In files of decreasing size; each size until none fits any more.
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

    /// Frees the space that [`Disk::fill`] occupied.
    pub fn free_space(&self) -> TestResult {
        for entry in fs::read_dir(&self.mount).at(self.mount.display())?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(BALLAST) {
                fs::remove_file(entry.path()).at(entry.path().display())?;
            }
        }
        Ok(())
    }

    /// Makes all later I/O fail with EIO; unsynced data is lost. XFS only.
    pub fn shut_down(&self) -> TestResult {
        process::run_ok(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Unmounts it lazily, even if in use: open files stay open.
    pub fn unmount_lazily(&self) -> TestResult {
        process::run_ok(Command::new("umount").arg("--lazy").arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Mounts it at its former path.
    pub fn mount_again(&self) -> TestResult {
        process::run_ok(Command::new("mount").arg(&self.device).arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Remounts it, as after a power failure. No process uses it any more; the io_uring instances
    /// of a killed process release its files some time after its end.
    pub fn remount(&self) -> TestResult {
        let mut last = None;
        let umount = || process::run_ok(Command::new("umount").arg(&self.mount), DEADLINE);
        process::eventually(DEADLINE, || last.insert(umount()).is_ok());
        last.unwrap_or_else(umount)?;
        process::run_ok(Command::new("mount").arg(&self.device).arg(&self.mount), DEADLINE)?;
        Ok(())
    }

    /// Truncates the backing file, so that reads and writes beyond `bytes` fail with EIO from now
    /// on.
    pub fn lose_everything_after(&self, bytes: u64) -> TestResult {
        let at = self.image.display();
        let image = File::options().write(true).open(&self.image).at(&at)?;
        image.set_len(bytes).at(&at)?;
        // Otherwise reads would still be served from memory.
        fs::write("/proc/sys/vm/drop_caches", "3").at("drop_caches")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        mounts::force_unmount(&self.mount);
        cleanup::unregister(&Resource::Disk(self.mount.clone()));
        cleanup::detach_loop(&self.device);
        cleanup::unregister(&Resource::Loop(self.device.clone()));
        drop(fs::remove_file(&self.image));
    }
}
