//! What is refused before anything is written.

use super::folder::failed;
use crate::experiment::{Caching, Experiment, IoExperiment, MetaExperiment, Operation};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Threads of one client: more wait for processors rather than for a file system.
const MAX_THREADS: u32 = 1024;

/// Transfers of one thread: the most that a ring of the kernel's usual limit of locked memory holds many times over.
const MAX_DEPTH: u32 = 1024;

/// What direct transfers have to be multiples of.
const BLOCK: u64 = 4096;

/// How often free space is looked at while it comes back after a removal, which file systems finish by and by.
const LOOKED_EVERY: Duration = Duration::from_millis(200);

/// For how long it may stay as it is, and how long all of it may take, before it counts as all there is.
const STANDSTILL: Duration = Duration::from_secs(5);
const WAITED_AT_MOST: Duration = Duration::from_secs(120);

/// Whether an experiment can be done in a directory.
///
/// # Errors
/// Threads, records and sizes that can't be, a place that is no directory or can't be written to, or that has too little room.
pub fn check(experiment: &Experiment, place: &Path) -> Result<()> {
    check_for(experiment, place, 1)
}

/// The same for so many clients that all do it.
///
/// # Errors
/// As of [`check`].
pub fn check_for(experiment: &Experiment, place: &Path, clients: u32) -> Result<()> {
    let (threads, need_bytes, need_files) = match experiment {
        Experiment::Io(io) => (io.threads, check_io(io)?, 1 + u64::from(io.threads)),
        Experiment::Meta(meta) => {
            (meta.threads, check_meta(meta)?, u64::from(meta.threads).saturating_mul(meta.thread_files))
        }
    };
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(invalid(format!("{threads} threads"), "use 1 to 1024 of them"));
    }
    let shown = place.display();
    let found = fs::metadata(place).map_err(|error| {
        failed(format!("can't measure {shown}"), error)
            .hint("give a directory that exists, such as the mount")
    })?;
    if !found.is_dir() {
        return Err(Error::new(Errno::ENOTDIR, format!("{shown} is no directory"))
            .hint("give a directory, such as the mount"));
    }
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).map_err(
        |errno| {
            failed(format!("can't make files in {shown}"), errno.into())
                .hint("give a directory that you may write to")
        },
    )?;
    let need_bytes = need_bytes.saturating_mul(clients.into());
    let need_files = need_files.saturating_mul(clients.into());
    let (free, room) = free_when_removed(place, need_bytes)?;
    if need_bytes > free {
        let text = format!("{need_bytes} bytes are needed in {shown}, and {free} are free");
        return Err(Error::new(Errno::ENOSPC, text)
            .hint("use fewer threads, or fewer bytes or files of each (--size, --files)"));
    }
    if room.f_files > 0 && need_files > room.f_favail {
        let text = format!("{need_files} files are needed in {shown}, and {} can be made", room.f_favail);
        return Err(
            Error::new(Errno::ENOSPC, text).hint("use fewer threads, or fewer files of each (--files)")
        );
    }
    Ok(())
}

/// Free bytes and what else the file system tells, when there are so many or there won't be more: an experiment before may have left its removal to be finished.
fn free_when_removed(place: &Path, need_bytes: u64) -> Result<(u64, rustix::fs::StatVfs)> {
    let ask = || {
        let room = rustix::fs::statvfs(place).map_err(|errno| {
            failed(format!("can't ask {} for its free space", place.display()), errno.into())
        })?;
        Ok::<_, Error>((room.f_bavail.saturating_mul(room.f_frsize), room))
    };
    let (mut most, mut room) = ask()?;
    let (began, mut grown) = (Instant::now(), Instant::now());
    // What the file system can't ever hold isn't waited for.
    let can_fit = need_bytes <= room.f_blocks.saturating_mul(room.f_frsize);
    while need_bytes > most && can_fit && grown.elapsed() < STANDSTILL && began.elapsed() < WAITED_AT_MOST {
        thread::sleep(LOOKED_EVERY);
        let (free, now) = ask()?;
        if free > most {
            (most, room, grown) = (free, now, Instant::now());
        }
    }
    Ok((most, room))
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
        let text = format!("direct transfers of {} bytes, no multiple of {BLOCK}", io.record_bytes);
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
        return Err(invalid("0 files of each thread".to_string(), "use at least 1 (--files)"));
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
            Err(invalid(format!("{other:?} is no operation of this kind"), format!("use {names}")))
        }
    }
}

fn invalid(text: String, hint: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Errno::EINVAL, text).hint(hint)
}
