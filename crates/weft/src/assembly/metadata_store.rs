//! Opens the metadata store, or reports why that failed and what to do.

use super::backups::newest_usable_backup;
use super::stop_reasons::Stop;
use crate::output::os_error;
use kv::{Embedded, Engine, KvError, Writer, at_rest};
use mgmt::{StatePaths, Superblock};
use std::fs;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Interval of checks whether the store has found damage.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Longest time that the previous process may take to close the store, and the interval at which a
/// start tries again.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Opens the store of a state directory, or creates it the first time.
///
/// # Errors
/// A damaged or missing store is refused. The error names the file, and the hint has the command
/// that restores a backup.
pub fn open_engine(paths: &StatePaths, superblock: &Superblock) -> Result<Embedded> {
    let meta = paths.meta();
    if paths.meta_created_marker().exists() && !at_rest::engine_exists(&meta) {
        let missing = KvError::Corrupt { path: meta.display().to_string(), cause: "it is missing".into() };
        return Err(open_error(paths, superblock, missing));
    }
    let began = Instant::now();
    loop {
        match Embedded::open(&meta) {
            // The caller has locked the state directory, so the previous process is exiting: the
            // kernel closes its descriptors one after the other.
            Err(KvError::Locked { .. }) if began.elapsed() < LOCK_TIMEOUT => sleep(LOCK_POLL_INTERVAL),
            opened => return opened.map_err(|error| open_error(paths, superblock, error)),
        }
    }
}

/// Records that the store exists and has its initial content.
pub fn mark_store_created(paths: &StatePaths) -> Result<()> {
    let path = paths.meta_created_marker();
    if path.exists() {
        return Ok(());
    }
    let note = || -> std::io::Result<()> {
        let file = fs::File::create(&path)?;
        file.sync_all()?;
        fs::File::open(paths.root())?.sync_all()
    };
    note().map_err(|e| os_error(format_args!("can't write {}", path.display()), &e))
}

/// Converts an error of opening the store, with a hint.
pub fn open_error(paths: &StatePaths, superblock: &Superblock, error: KvError) -> Error {
    match &error {
        KvError::Corrupt { .. } => {
            Error::new(Errno::EIO, error.to_string()).hint(restore_hint(paths, superblock))
        }
        _ => mgmt::Error::from(error).into(),
    }
}

fn restore_hint(paths: &StatePaths, superblock: &Superblock) -> String {
    let dir = paths.root().display();
    match newest_usable_backup(paths, &superblock.uuid) {
        Some((path, created_s)) => {
            let age_s = rt::now().secs.saturating_sub(created_s);
            let age = crate::output::format_age(age_s);
            let path = path.display();
            format!(
                "weft meta restore {path} --dir {dir} restores the backup of {age} ago, and sets the present metadata aside"
            )
        }
        None => format!(
            "there is no backup in {}; weft meta restore FILE --dir {dir} restores one from elsewhere",
            paths.backups().display()
        ),
    }
}

/// Ends the process when its store finds damage: other damage may be undetected, and the next start
/// checks everything.
pub fn watch(
    engine: &Arc<dyn Engine>,
    paths: &StatePaths,
    superblock: &Superblock,
    stop: Sender<Stop>,
) -> Result<()> {
    let engine: Weak<dyn Engine> = Arc::downgrade(engine);
    stop_on_fault(move || engine.upgrade().map(|engine| engine.damage()), paths, superblock, stop)
}

/// Like [`watch`], and also ends the process when the store doesn't accept writes any more. It
/// accepts them after a restart at the earliest, and changes of services on other nodes wait for
/// that.
pub fn watch_writer(
    writer: &Arc<Writer>,
    paths: &StatePaths,
    superblock: &Superblock,
    stop: Sender<Stop>,
) -> Result<()> {
    let writer = Arc::downgrade(writer);
    let fault = move || writer.upgrade().map(|writer| writer.engine().damage().or_else(|| writer.failure()));
    stop_on_fault(fault, paths, superblock, stop)
}

/// Ends the process with the first error of `fault`. `fault` returns `None` when there is nothing
/// left to watch.
fn stop_on_fault(
    fault: impl Fn() -> Option<Option<KvError>> + Send + 'static,
    paths: &StatePaths,
    superblock: &Superblock,
    stop: Sender<Stop>,
) -> Result<()> {
    let (paths, superblock) = (paths.clone(), superblock.clone());
    let poll = move || {
        while let Some(found) = fault() {
            if let Some(error) = found {
                // The channel has no receiver once the process is shutting down.
                let _ = stop.send(Stop::Fatal(open_error(&paths, &superblock, error)));
                return;
            }
            std::thread::sleep(WATCH_INTERVAL);
        }
    };
    let started = Builder::new().name("weft-watch".into()).spawn(poll);
    started.map(drop).map_err(|e| os_error("can't start a thread", &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{Batch, Durability, Memory};
    use std::sync::mpsc::channel;

    #[test]
    fn a_store_that_takes_no_writes_ends_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let paths = StatePaths::new(dir.path());
        let superblock = Superblock::random("test");
        let memory = Arc::new(Memory::new());
        let writer = Arc::new(Writer::new(memory.clone(), Durability::Process));
        let (stop, reasons) = channel();
        watch_writer(&writer, &paths, &superblock, stop).unwrap();
        let commit = || {
            let writer = writer.clone();
            let batch = Batch { guards: vec![], writes: vec![("k".into(), None)] };
            rt::block_on(async move { writer.commit(batch).await }).unwrap()
        };
        commit().unwrap();
        assert!(reasons.recv_timeout(3 * WATCH_INTERVAL).is_err());
        memory.fail_with(Memory::no_space());
        commit().unwrap_err();
        let Stop::Fatal(error) = reasons.recv().unwrap() else { panic!("another end") };
        assert_eq!(error.errno, Errno::ENOSPC);
    }
}
