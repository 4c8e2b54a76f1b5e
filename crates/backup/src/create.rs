//! Making a backup from a snapshot of a store.

use crate::chain::{Chain, Merged};
use crate::error::Result;
use crate::format::{Attached, FORMAT, Footer, Header};
use crate::state_checksum::StateChecksum;
use crate::writer::Writer;
use bytes::Bytes;
use kv::{Pages, Readable};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys that are read at a time.
const PAGE_KEYS: usize = 512;

/// Above every key: the longest possible key begins differently.
const ABOVE_ALL: [u8; 512] = [0xFF; 512];

/// Parameters of a backup.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its path.
    pub path: PathBuf,
    /// Its random id.
    pub id: String,
    /// The cluster's UUID.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Number of its partitions.
    pub partitions: u16,
    /// Time of the snapshot, in seconds since 1970.
    pub created_s: i64,
    /// Version of weft that makes it.
    pub version: String,
    /// Its base; `None` for a full backup.
    pub base: Option<Chain>,
    /// Files to attach.
    pub files: Vec<Attached>,
}

/// Progress of making or restoring a backup.
#[derive(Debug, Default)]
pub struct Progress {
    /// Keys read.
    pub keys: AtomicU64,
    /// Bytes of them and their values.
    pub bytes: AtomicU64,
}

/// Writes a backup of a snapshot. It is on disk when this returns; after an error there is no file.
/// Blocks the calling core while it reads and writes files, so it needs a core of its own.
///
/// # Errors
/// Those of the store and of writing; damage of the base.
pub async fn create(snapshot: &dyn Readable, plan: &Plan, progress: &Progress) -> Result<Footer> {
    let head = Header {
        format: FORMAT,
        id: plan.id.clone(),
        base: plan.base.as_ref().map(|base| base.header().id.clone()),
        depth: plan.base.as_ref().map_or(0, |base| base.header().depth + 1),
        cluster: plan.cluster.clone(),
        name: plan.name.clone(),
        partitions: plan.partitions,
        created_s: plan.created_s,
        version: plan.version.clone(),
    };
    let mut writer = Writer::create(&plan.path, &head, &plan.files)?;
    let mut base = plan.base.as_ref().map(BaseReader::begin).transpose()?;
    let mut state = StateChecksum::default();
    let mut pages = Pages::new(snapshot, &[], &ABOVE_ALL, PAGE_KEYS);
    while let Some(page) = pages.next().await? {
        for (key, value) in page {
            state.add(&key, &value);
            match &mut base {
                None => writer.put(&key, &value)?,
                Some(base) => {
                    if base.value_in_base(&key, &mut writer)? != Some(value.clone()) {
                        writer.put(&key, &value)?;
                    }
                }
            }
        }
        progress.keys.store(state.keys(), Relaxed);
        progress.bytes.store(state.bytes(), Relaxed);
    }
    if let Some(base) = &mut base {
        base.end(&mut writer)?;
    }
    writer.finish(&state)
}

/// The content of the base.
struct BaseReader {
    merged: Merged,
    next: Option<(Bytes, Bytes)>,
}

impl BaseReader {
    fn begin(base: &Chain) -> Result<BaseReader> {
        let mut merged = base.merge()?;
        Ok(BaseReader { next: merged.next_pair()?, merged })
    }

    /// Returns the value that a key had in the base. Writes the keys before it that the snapshot
    /// lacks as deleted.
    fn value_in_base(&mut self, key: &Bytes, writer: &mut Writer) -> Result<Option<Bytes>> {
        while let Some((before, value)) = &self.next {
            match before.cmp(key) {
                Ordering::Less => writer.delete(before)?,
                Ordering::Equal => {
                    let value = value.clone();
                    self.next = self.merged.next_pair()?;
                    return Ok(Some(value));
                }
                Ordering::Greater => break,
            }
            self.next = self.merged.next_pair()?;
        }
        Ok(None)
    }

    /// Writes all remaining keys as deleted. Reads the base to its end, which verifies it.
    fn end(&mut self, writer: &mut Writer) -> Result<()> {
        while let Some((before, _)) = &self.next {
            writer.delete(before)?;
            self.next = self.merged.next_pair()?;
        }
        Ok(())
    }
}
