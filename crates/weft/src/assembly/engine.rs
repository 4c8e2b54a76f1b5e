//! Opening the store of metadata, or saying why not and what to do.

use super::copies::newest_usable;
use super::stop::Stop;
use crate::output::os_error;
use kv::{Embedded, Engine, KvError, at_rest};
use mgmt::{StatePaths, Superblock};
use std::fs;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;
use types::{Errno, Error, Result};

/// How often it is looked whether the store has met damage.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Opens the store of a state directory, or makes it the first time.
///
/// # Errors
/// A store that is damaged, or missing, is refused: by the name of the file, and with the command that puts a copy in its place.
pub fn open_engine(paths: &StatePaths, superblock: &Superblock) -> Result<Embedded> {
    let meta = paths.meta();
    if paths.meta_made().exists() && !at_rest::is_there(&meta) {
        let missing = KvError::Corrupt { path: meta.display().to_string(), cause: "it is missing".into() };
        return Err(refusal(paths, superblock, missing));
    }
    Embedded::open(&meta).map_err(|error| refusal(paths, superblock, error))
}

/// Notes that the store is there, and has been given its first content.
pub fn note_engine(paths: &StatePaths) -> Result<()> {
    let path = paths.meta_made();
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

/// What is said of a store that can't be opened.
pub fn refusal(paths: &StatePaths, superblock: &Superblock, error: KvError) -> Error {
    match &error {
        KvError::Corrupt { .. } => {
            Error::new(Errno::EIO, error.to_string()).hint(restore_hint(paths, superblock))
        }
        _ => mgmt::Error::from(error).into(),
    }
}

fn restore_hint(paths: &StatePaths, superblock: &Superblock) -> String {
    let dir = paths.root().display();
    match newest_usable(paths, &superblock.uuid) {
        Some((path, created_s)) => {
            let age_s = rt::now().secs.saturating_sub(created_s);
            let age = crate::output::age(age_s);
            let path = path.display();
            format!(
                "weft meta restore {path} --dir {dir} puts the copy of {age} ago in its place, and keeps what is there beside"
            )
        }
        None => format!(
            "there is no copy in {}; weft meta restore FILE --dir {dir} takes one from elsewhere",
            paths.backups().display()
        ),
    }
}

/// Ends the process when its store meets damage: what else is wrong isn't known, and the next start looks at all of it.
pub fn watch(
    engine: &Arc<dyn Engine>,
    paths: &StatePaths,
    superblock: &Superblock,
    stop: Sender<Stop>,
) -> Result<()> {
    let engine: Weak<dyn Engine> = Arc::downgrade(engine);
    let (paths, superblock) = (paths.clone(), superblock.clone());
    let look = move || {
        while let Some(engine) = engine.upgrade() {
            if let Some(error) = engine.damage() {
                // Nobody listens once the end has begun.
                let _ = stop.send(Stop::Outcast(refusal(&paths, &superblock, error)));
                return;
            }
            drop(engine);
            std::thread::sleep(WATCH_INTERVAL);
        }
    };
    let started = Builder::new().name("weft-watch".into()).spawn(look);
    started.map(drop).map_err(|e| os_error("can't start a thread", &e))
}
