//! Measures a drive, in a file of a separate directory. It does I/O like the storage service, past
//! the page cache and through the ring of the calling core, but without checksums and without the
//! file system.
//!
//! Invariant: the directory is removed when the measurement is over, however it ends;
//! [`remove_leftovers`] removes that of a killed process.

use crate::{BestRate, Limit, per_second};
use rt::{File, IoBuf, OpenOptions};
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Name of the directory in a target's directory.
pub const FOLDER: &str = "bench";

/// Bytes of sequential transfers.
const LARGE: u64 = 1 << 20;

/// Bytes of random transfers.
const SMALL: u64 = 4096;

/// Numbers of transfers in flight to try, largest first: the highest rate is reported. One core's
/// ring has room for many times the largest.
const LARGE_DEPTHS: [u32; 3] = [16, 4, 1];
const SMALL_DEPTHS: [u32; 3] = [128, 32, 8];

/// Parameters of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrivePlan {
    /// Bytes of the file; rounded up to whole megabytes.
    pub size: u64,
    /// Duration of each of the four kinds of transfer, all depths together.
    pub each: Duration,
}

/// Removes the directory when dropped, also when the measurement is cancelled.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Synchronously and not by the ring: no task can wait for it any more.
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "{} could not be removed: remove it", self.0.display());
        }
    }
}

/// Measures sequential and random writes and reads in the directory of a target. The caller ensures
/// that there is space, and that no other measurement runs there.
///
/// # Errors
/// Errors of the drive; `EINVAL` where its file system has no direct I/O.
pub async fn measure(directory: &Path, plan: DrivePlan) -> io::Result<Vec<BestRate>> {
    let folder = Folder(directory.join(FOLDER));
    rt::create_dir_all(&folder.0).await?;
    let options =
        OpenOptions { read: true, write: true, create: true, exclusive: false, truncate: true, direct: true };
    let file = Rc::new(File::open(&folder.0.join("data"), options).await?);
    let size = plan.size.max(LARGE).div_ceil(LARGE) * LARGE;
    let each_ns = plan.each.as_nanos() as u64 / 3;
    let mut best = Vec::new();
    best.push(best_of(LARGE_DEPTHS, Limit::StorageWrite, &file, Work::large(size, each_ns)).await?);
    // What is read must have been written: reading a hole costs nothing.
    fill(&file, size).await?;
    best.push(best_of(LARGE_DEPTHS, Limit::StorageRead, &file, Work::large(size, each_ns)).await?);
    let small = Work { record: SMALL, ..Work::large(size, each_ns) };
    best.push(best_of(SMALL_DEPTHS, Limit::StorageRandomWrite, &file, small).await?);
    best.push(best_of(SMALL_DEPTHS, Limit::StorageRandomRead, &file, small).await?);
    Ok(best)
}

/// Removes the directory that a process killed during a measurement has left.
pub fn remove_leftovers(directory: &Path) {
    drop(Folder(directory.join(FOLDER)));
}

/// One kind of transfer.
#[derive(Clone, Copy)]
struct Work {
    record: u64,
    size: u64,
    nanoseconds: u64,
}

impl Work {
    fn large(size: u64, nanoseconds: u64) -> Work {
        Work { record: LARGE, size, nanoseconds }
    }
}

async fn best_of(depths: [u32; 3], limit: Limit, file: &Rc<File>, work: Work) -> io::Result<BestRate> {
    let mut best = BestRate { limit, rate: 0.0, streams: 0 };
    for depth in depths {
        let rate = at_depth(depth, limit, file, work).await?;
        if rate > best.rate {
            best = BestRate { limit, rate, streams: depth };
        }
    }
    Ok(best)
}

/// Returns transfers per second, or bytes per second for sequential ones; written data is on disk
/// at the end of the time. However short the time is, each stream makes one transfer.
async fn at_depth(depth: u32, limit: Limit, file: &Rc<File>, work: Work) -> io::Result<f64> {
    // Before the clock starts: it takes as long as several transfers.
    let buffers: Vec<_> = (0..depth).map(|_| noise(work.record as usize)).collect();
    let (began_ns, next, done) = (rt::monotonic_ns(), Cell::new(0), Cell::new(0));
    let broken = Cell::new(false);
    let writes = matches!(limit, Limit::StorageWrite | Limit::StorageRandomWrite);
    let stream = async |buffer: IoBuf| -> io::Result<()> {
        let mut is_time = true;
        while is_time && !broken.get() {
            let records = work.size / work.record;
            let record = match work.record {
                LARGE => next.replace(next.get() + 1) % records,
                _ => rt::random_u64() % records,
            };
            let moved = match writes {
                true => file.write_at(buffer.clone(), record * work.record).await,
                false => file.read_at(buffer.clone(), record * work.record).await,
            };
            // The other streams need not continue.
            let moved = moved.inspect_err(|_| broken.set(true))?;
            if moved as u64 != work.record {
                broken.set(true);
                return Err(io::Error::other(format!(
                    "{moved} bytes were transferred instead of {}",
                    work.record
                )));
            }
            done.set(done.get() + 1);
            is_time = rt::monotonic_ns() - began_ns < work.nanoseconds;
        }
        Ok(())
    };
    let streams: Vec<_> = buffers.into_iter().map(|buffer| Box::pin(stream(buffer))).collect();
    rt::join_all(streams).await.into_iter().collect::<io::Result<()>>()?;
    if writes {
        file.sync_data().await?;
    }
    let unit = if work.record == LARGE { LARGE } else { 1 };
    Ok(per_second(done.get() * unit, rt::monotonic_ns() - began_ns))
}

/// Writes the whole file.
async fn fill(file: &Rc<File>, size: u64) -> io::Result<()> {
    let next = Cell::new(0);
    let stream = async || -> io::Result<()> {
        let buffer = noise(LARGE as usize);
        while next.get() < size {
            let at = next.replace(next.get() + LARGE);
            file.write_at(buffer.clone(), at).await?;
        }
        Ok(())
    };
    let streams: Vec<_> = (0..LARGE_DEPTHS[1]).map(|_| Box::pin(stream())).collect();
    rt::join_all(streams).await.into_iter().collect::<io::Result<()>>()?;
    file.sync_data().await
}

/// Returns incompressible content.
fn noise(len: usize) -> IoBuf {
    let buffer = IoBuf::alloc(len);
    for at in (0..len).step_by(8) {
        buffer.copy_from(at, &rt::random_u64().to_le_bytes());
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: DrivePlan = DrivePlan { size: 3 << 20, each: Duration::from_millis(30) };

    fn is_empty(directory: &Path) -> bool {
        std::fs::read_dir(directory).unwrap().next().is_none()
    }

    #[test]
    fn four_figures_come_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let found = rt::block_on(async move { measure(&path, PLAN).await }).unwrap().unwrap();
        let kinds: Vec<_> = found.iter().map(|best| best.limit).collect();
        let expected =
            [Limit::StorageWrite, Limit::StorageRead, Limit::StorageRandomWrite, Limit::StorageRandomRead];
        assert_eq!(kinds, expected);
        assert!(found.iter().all(|best| best.rate > 0.0 && best.streams > 0), "{found:?}");
        assert!(is_empty(dir.path()));
    }

    #[test]
    fn there_are_figures_also_when_there_is_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let plan = DrivePlan { each: Duration::ZERO, ..PLAN };
        let found = rt::block_on(async move { measure(&path, plan).await }).unwrap().unwrap();
        assert!(found.iter().all(|best| best.rate > 0.0), "{found:?}");
    }

    #[test]
    fn a_cancelled_measurement_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let stopped = rt::block_on(async move {
            let plan = DrivePlan { each: Duration::from_secs(3600), ..PLAN };
            rt::timeout(Duration::from_millis(100), measure(&path, plan)).await.is_none()
        });
        assert!(stopped.unwrap(), "an hour's measurement has ended");
        assert!(is_empty(dir.path()));
    }

    #[test]
    fn leftovers_of_a_killed_process_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FOLDER)).unwrap();
        std::fs::write(dir.path().join(FOLDER).join("data"), "left").unwrap();
        remove_leftovers(dir.path());
        assert!(is_empty(dir.path()));
        remove_leftovers(dir.path());
    }
}
