//! Making a copy of a store as it is at one moment.

use crate::chain::{Chain, Merged};
use crate::error::Result;
use crate::format::{Attached, FORMAT, Foot, Head};
use crate::state::StateSum;
use crate::writer::Writer;
use bytes::Bytes;
use kv::{Engine, Pair};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys that are read at a time.
const PAGE_KEYS: usize = 512;

/// Above every key: the longest key that there can be begins otherwise.
const ABOVE_ALL: [u8; 512] = [0xFF; 512];

/// What copy is to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it is to be.
    pub path: PathBuf,
    /// A random number for it.
    pub id: String,
    /// The cluster's UUID.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Number of its partitions.
    pub partitions: u16,
    /// The moment, seconds since 1970.
    pub created_s: i64,
    /// The weft that makes it.
    pub version: String,
    /// What it builds on; a full copy builds on nothing.
    pub base: Option<Chain>,
    /// Files that belong to it.
    pub files: Vec<Attached>,
}

/// How far the making or restoring of a copy is.
#[derive(Debug, Default)]
pub struct Progress {
    /// Keys that were read.
    pub keys: AtomicU64,
    /// Bytes of them and their values.
    pub bytes: AtomicU64,
}

/// Writes a copy of what a snapshot shows. What it says is on disk when this returns; when it fails
/// there is no file.
///
/// # Errors
/// The engine's, and those of writing; damage of the base.
pub fn copy(snapshot: &dyn Engine, plan: &Plan, progress: &Progress) -> Result<Foot> {
    let head = Head {
        format: FORMAT,
        id: plan.id.clone(),
        base: plan.base.as_ref().map(|base| base.head().id.clone()),
        depth: plan.base.as_ref().map_or(0, |base| base.head().depth + 1),
        cluster: plan.cluster.clone(),
        name: plan.name.clone(),
        partitions: plan.partitions,
        created_s: plan.created_s,
        version: plan.version.clone(),
    };
    let mut writer = Writer::create(&plan.path, &head, &plan.files)?;
    let mut base = plan.base.as_ref().map(Before::begin).transpose()?;
    let mut state = StateSum::default();
    let mut pages = Pages { snapshot, from: Vec::new(), is_last: false };
    while let Some(page) = pages.next()? {
        for (key, value) in page {
            state.add(&key, &value);
            match &mut base {
                None => writer.put(&key, &value)?,
                Some(base) => {
                    if base.catch_up(&key, &mut writer)? != Some(value.clone()) {
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

/// A snapshot, page by page.
struct Pages<'a> {
    snapshot: &'a dyn Engine,
    from: Vec<u8>,
    is_last: bool,
}

impl Pages<'_> {
    fn next(&mut self) -> Result<Option<Vec<Pair>>> {
        if self.is_last {
            return Ok(None);
        }
        let page = self.snapshot.scan(&self.from, &ABOVE_ALL, PAGE_KEYS)?;
        self.is_last = page.len() < PAGE_KEYS;
        if let Some((last, _)) = page.last() {
            // The next key that there can be.
            self.from = [last, &[0][..]].concat();
        }
        Ok(Some(page))
    }
}

/// What the base held.
struct Before {
    merged: Merged,
    next: Option<(Bytes, Bytes)>,
}

impl Before {
    fn begin(base: &Chain) -> Result<Before> {
        let mut merged = base.merge()?;
        Ok(Before { next: merged.next_pair()?, merged })
    }

    /// The value that a key had. Keys before it that are still to come are gone now.
    fn catch_up(&mut self, key: &Bytes, writer: &mut Writer) -> Result<Option<Bytes>> {
        while let Some((before, value)) = &self.next {
            match before.cmp(key) {
                Ordering::Less => writer.gone(before)?,
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

    /// All keys that are left are gone. Reads on to the end of the base, which proves that it is
    /// whole.
    fn end(&mut self, writer: &mut Writer) -> Result<()> {
        while let Some((before, _)) = &self.next {
            writer.gone(before)?;
            self.next = self.merged.next_pair()?;
        }
        Ok(())
    }
}
