//! Checks before anything is written.

use super::directory::failed;
use crate::experiment::{Caching, Experiment, IoExperiment, MetaExperiment, Operation};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Most threads of one client: more would wait for processors rather than for the file system.
const MAX_THREADS: u32 = 1024;

/// Most transfers in flight of one thread: many times below the usual limit of locked memory for
/// rings.
const MAX_DEPTH: u32 = 1024;

/// Granularity of direct transfers, in bytes.
const BLOCK: u64 = 4096;

/// How to wait for free space after a removal, which file systems complete in the background.
const SPACE_WAIT: SpaceWait = SpaceWait {
    interval: Duration::from_millis(200),
    max_stall: Duration::from_secs(5),
    max_wait: Duration::from_secs(120),
};

/// Limits of a wait for free space.
struct SpaceWait {
    interval: Duration,
    /// Time without growth after which the space counts as final.
    max_stall: Duration,
    /// Longest total wait.
    max_wait: Duration,
}

/// Checks the parameters of an experiment, whatever the directory.
///
/// # Errors
/// `EINVAL`: invalid threads, operations, records or sizes.
pub fn check_parameters(experiment: &Experiment) -> Result<()> {
    needs(experiment).map(|_| ())
}

/// Checks whether an experiment can run in a directory.
///
/// # Errors
/// Invalid threads, records or sizes; a path that isn't a writable directory, or that has too
/// little space.
pub fn check(experiment: &Experiment, place: &Path) -> Result<()> {
    check_for(experiment, place, 1)
}

/// Like [`check`], for `clients` clients that all run it.
///
/// # Errors
/// The same as those of [`check`].
pub fn check_for(experiment: &Experiment, place: &Path, clients: u32) -> Result<()> {
    let (need_bytes, need_files) = needs(experiment)?;
    let shown = place.display();
    let found = fs::metadata(place).map_err(|error| {
        failed(format!("can't measure {shown}"), error)
            .hint("give a directory that exists, such as the mount")
    })?;
    if !found.is_dir() {
        return Err(Error::new(Errno::ENOTDIR, format!("{shown} is not a directory"))
            .hint("give a directory, such as the mount"));
    }
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).map_err(
        |errno| {
            failed(format!("can't create files in {shown}"), errno.into())
                .hint("give a directory that you may write to")
        },
    )?;
    let need_bytes = need_bytes.saturating_mul(clients.into());
    let need_files = need_files.saturating_mul(clients.into());
    let (free, space) = wait_for_free_space(place, need_bytes)?;
    if need_bytes > free {
        let text = format!("{need_bytes} bytes are needed in {shown}, and {free} are free");
        return Err(Error::new(Errno::ENOSPC, text)
            .hint("use fewer threads, or fewer bytes or files per thread (--size, --files)"));
    }
    if space.f_files > 0 && need_files > space.f_favail {
        let text = format!("{need_files} files are needed in {shown}, and {} can be created", space.f_favail);
        return Err(
            Error::new(Errno::ENOSPC, text).hint("use fewer threads, or fewer files per thread (--files)")
        );
    }
    Ok(())
}

/// Returns the bytes and the files that an experiment creates on one client.
fn needs(experiment: &Experiment) -> Result<(u64, u64)> {
    let (threads, need_bytes, need_files) = match experiment {
        Experiment::Io(io) => (io.threads, check_io(io)?, 1 + u64::from(io.threads)),
        Experiment::Meta(meta) => {
            (meta.threads, check_meta(meta)?, u64::from(meta.threads).saturating_mul(meta.thread_files))
        }
    };
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(invalid(format!("{threads} threads"), "use 1 to 1024 of them"));
    }
    Ok((need_bytes, need_files))
}

/// Returns the free bytes with the rest of `statvfs`. Waits until there are `need_bytes` or the
/// space stops growing: the removal of an earlier experiment may still be in progress.
fn wait_for_free_space(place: &Path, need_bytes: u64) -> Result<(u64, rustix::fs::StatVfs)> {
    let query_space = || {
        let space = rustix::fs::statvfs(place).map_err(|errno| {
            failed(format!("can't read the free space of {}", place.display()), errno.into())
        })?;
        Ok::<_, Error>((space.f_bavail.saturating_mul(space.f_frsize), space))
    };
    let first = query_space()?;
    // If the file system can never hold it, there is no point in waiting.
    let can_fit = need_bytes <= first.1.f_blocks.saturating_mul(first.1.f_frsize);
    if can_fit { wait_for_growth(need_bytes, first, query_space, &SPACE_WAIT) } else { Ok(first) }
}

/// Returns the first answer with at least `need`, or the largest one.
fn wait_for_growth<T>(
    need: u64,
    first: (u64, T),
    query_space: impl Fn() -> Result<(u64, T)>,
    limits: &SpaceWait,
) -> Result<(u64, T)> {
    let mut most = first;
    let (began, mut grew) = (Instant::now(), Instant::now());
    while need > most.0 && grew.elapsed() < limits.max_stall && began.elapsed() < limits.max_wait {
        thread::sleep(limits.interval);
        let now = query_space()?;
        if now.0 > most.0 {
            (most, grew) = (now, Instant::now());
        }
    }
    Ok(most)
}

fn check_io(io: &IoExperiment) -> Result<u64> {
    check_operations(
        &io.operations,
        &[Operation::Write, Operation::Read, Operation::Mixed],
        "write, read and mixed",
    )?;
    if io.record_bytes == 0 || io.record_bytes > 1 << 30 {
        return Err(invalid(
            format!("records of {} bytes", io.record_bytes),
            "use 1 byte to 1 GiB (--record)",
        ));
    }
    if io.record_bytes > io.thread_bytes {
        let text = format!(
            "a record of {} bytes is more than each thread's {} bytes",
            io.record_bytes, io.thread_bytes
        );
        return Err(invalid(text, "use a smaller record or a larger size (--record, --size)"));
    }
    if io.caching == Caching::Direct && !io.record_bytes.is_multiple_of(BLOCK) {
        let text =
            format!("direct transfers of {} bytes, which is not a multiple of {BLOCK}", io.record_bytes);
        return Err(invalid(text, "use --buffered, or a record that is a multiple of 4096"));
    }
    if !(1..=MAX_DEPTH).contains(&io.queue_depth) {
        return Err(invalid(format!("{} transfers at once", io.queue_depth), "use 1 to 1024 (--depth)"));
    }
    Ok(u64::from(io.threads).saturating_mul(io.thread_bytes))
}

fn check_meta(meta: &MetaExperiment) -> Result<u64> {
    let allowed = [Operation::Create, Operation::Stat, Operation::ReadFile, Operation::Remove];
    check_operations(&meta.operations, &allowed, "create, stat, read-file and remove")?;
    if meta.thread_files == 0 {
        return Err(invalid("0 files per thread".to_string(), "use at least 1 (--files)"));
    }
    let each = meta.file_bytes.div_ceil(BLOCK).saturating_mul(BLOCK);
    Ok(u64::from(meta.threads).saturating_mul(meta.thread_files).saturating_mul(each))
}

fn check_operations(operations: &[Operation], allowed: &[Operation], names: &str) -> Result<()> {
    if operations.is_empty() {
        return Err(invalid("no operation".to_string(), format!("name some of {names} (--operations)")));
    }
    match operations.iter().find(|operation| !allowed.contains(operation)) {
        None => Ok(()),
        Some(other) => {
            Err(invalid(format!("{other:?} is not an operation of this kind"), format!("use {names}")))
        }
    }
}

fn invalid(text: String, hint: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Errno::EINVAL, text).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn space_is_awaited_until_it_stops_growing() {
        let limits = SpaceWait {
            interval: Duration::ZERO,
            max_stall: Duration::from_millis(20),
            max_wait: Duration::from_secs(60),
        };
        let waited_for = |need| {
            let asked = Cell::new(0);
            let query_space = || {
                asked.set(asked.get() + 1);
                // It drops once, and ends at 100.
                let free = if asked.get() == 3 { 0 } else { 100.min(20 * asked.get()) };
                Ok((free, asked.get()))
            };
            wait_for_growth(need, (10, 0), query_space, &limits).unwrap()
        };
        assert_eq!(waited_for(10), (10, 0), "enough is there");
        assert_eq!(waited_for(70), (80, 4));
        assert_eq!(waited_for(101), (100, 5), "that is all");
        let failure = || Err(Error::new(Errno::EIO, "gone"));
        assert_eq!(wait_for_growth(1, (0, 0), failure, &limits).unwrap_err().errno, Errno::EIO);
    }
}
