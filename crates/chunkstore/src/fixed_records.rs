//! Small records of a fixed length in a file of their own, each overwritten in place.
//!
//! They hold what the service of a target must know again after its process died: the duplicate
//! request cache and the ended sessions. A written row survives the death of the process; a power
//! failure takes unsynced ones. A row is far smaller than a sector, so that either its old or its
//! new content is on disk; an incomplete one doesn't count.

use crate::error::{Result, StoreError};
use parking_lot::Mutex;
use rt::{File, IoBuf, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use types::{TargetId, crc32c};

/// Content of a row, bytes.
pub const ROW_BYTES: usize = 60;
/// A row with its checksum, bytes: divides a sector.
pub(crate) const STORED_BYTES: usize = 64;
/// Unit of reading, bytes.
const BULK_BYTES: usize = 1 << 20;

/// Content of a row.
pub type Row = [u8; ROW_BYTES];

/// The rows of one kind of a target.
pub struct Rows {
    target: TargetId,
    path: PathBuf,
    file: File,
    /// Rows that existed when the file was opened; taken once.
    found: Mutex<Vec<(u32, Row)>>,
    /// Something was written since the last sync.
    dirty: AtomicBool,
    /// Held during a sync.
    syncing: rt::sync::RwLock,
}

impl Rows {
    /// Opens the file; creates it if absent.
    pub(crate) async fn open(target: TargetId, path: PathBuf) -> Result<Rows> {
        let failed = |e| StoreError::io(target, "open", &path, e);
        let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
        let file = File::open(&path, options).await.map_err(failed)?;
        let found = read_all(&file).await.map_err(failed)?;
        let (found, dirty) = (Mutex::new(found), AtomicBool::new(false));
        Ok(Rows { target, path, file, found, dirty, syncing: rt::sync::RwLock::new() })
    }

    /// Takes the rows that existed at the start, with their places. Returned once.
    pub fn take_found(&self) -> Vec<(u32, Row)> {
        std::mem::take(&mut *self.found.lock())
    }

    /// Writes a row. It survives the death of the process when this returns, and a power failure
    /// after a sync.
    pub async fn write(&self, place: u32, row: &Row) -> Result<()> {
        let stored = stored(row);
        let at = u64::from(place) * STORED_BYTES as u64;
        let written = self.file.write_at(IoBuf::from_slice(&stored), at).await;
        // Afterwards, so that a sync that began before doesn't count for it.
        self.dirty.store(true, Ordering::Release);
        written.map(drop).map_err(|e| self.failed("write", e))
    }

    /// Everything written before is on disk when this returns.
    pub async fn sync(&self) -> Result<()> {
        // A concurrent sync may cover the caller's rows, so the caller waits for it.
        let _exclusive = self.syncing.write().await;
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let synced = self.file.sync_data().await;
        synced.map_err(|e| {
            self.dirty.store(true, Ordering::Release);
            self.failed("sync", e)
        })
    }

    fn failed(&self, doing: &str, error: io::Error) -> StoreError {
        StoreError::io(self.target, doing, &self.path, error)
    }
}

async fn read_all(file: &File) -> io::Result<Vec<(u32, Row)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    let buf = IoBuf::alloc(BULK_BYTES);
    loop {
        let got = file.read_at(buf.clone(), at).await?;
        let first = at / STORED_BYTES as u64;
        let rows = buf.as_slice()[..got].chunks_exact(STORED_BYTES).zip(first..);
        found.extend(rows.filter_map(|(stored, place)| Some((u32::try_from(place).ok()?, whole(stored)?))));
        at += got as u64;
        if got < BULK_BYTES {
            return Ok(found);
        }
    }
}

/// A row with its checksum.
pub(crate) fn stored(row: &Row) -> [u8; STORED_BYTES] {
    let mut stored = [0; STORED_BYTES];
    stored[..ROW_BYTES].copy_from_slice(row);
    stored[ROW_BYTES..].copy_from_slice(&crc32c(row).to_le_bytes());
    stored
}

/// Returns the content of a stored row, if it is complete. An unwritten row consists of zeros,
/// which is incomplete.
pub(crate) fn whole(stored: &[u8]) -> Option<Row> {
    let (row, sum) = stored.split_first_chunk::<ROW_BYTES>()?;
    (crc32c(row).to_le_bytes() == sum).then_some(*row)
}
