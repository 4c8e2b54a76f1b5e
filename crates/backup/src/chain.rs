//! A backup with its bases.

use crate::error::{Error, Result};
use crate::format::{Footer, Header};
use crate::reader::{Reader, Record};
use crate::state_checksum::StateChecksum;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most backups in a chain: all files of a chain are open and read at the same time.
const MAX_DEPTH: usize = 512;

/// A backup and its bases.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The backup first, the full one last.
    backups: Vec<(PathBuf, Header)>,
}

impl Chain {
    /// Finds the bases of a backup in its own directory.
    ///
    /// # Errors
    /// [`Error::MissingBase`] when one is missing there.
    pub fn find(path: &Path) -> Result<Chain> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut head = Reader::read_header(path)?;
        let mut backups = vec![(path.to_path_buf(), head.clone())];
        let mut others: Option<BTreeMap<String, (PathBuf, Header)>> = None;
        while let Some(base) = head.base.clone() {
            let others = match &mut others {
                Some(others) => others,
                None => others.insert(headers_in(&folder)?),
            };
            let found = others.remove(&base).filter(|_| backups.len() < MAX_DEPTH);
            let Some((base_path, base_head)) = found else {
                let path = backups.last().map_or(path, |(path, _)| path).to_path_buf();
                return Err(Error::MissingBase { path, base, folder });
            };
            if base_head.cluster != head.cluster {
                return Err(Error::WrongCluster {
                    path: base_path,
                    found: base_head.cluster,
                    wanted: head.cluster,
                });
            }
            backups.push((base_path, base_head.clone()));
            head = base_head;
        }
        Ok(Chain { backups })
    }

    /// Returns the header of the backup.
    pub fn header(&self) -> &Header {
        &self.backups[0].1
    }

    /// Returns the path of the backup.
    pub fn path(&self) -> &Path {
        &self.backups[0].0
    }

    /// Returns the paths of the backup and its bases, the full one last.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.backups.iter().map(|(path, _)| path.as_path())
    }

    /// Returns the whole content of the store, in ascending order of keys.
    pub fn merge(&self) -> Result<Merged> {
        let mut sources = Vec::with_capacity(self.backups.len());
        for (path, head) in &self.backups {
            let mut reader = Reader::open(path)?;
            if reader.header() != head {
                return Err(Error::damaged(path, "another file replaced it meanwhile"));
            }
            let next = reader.next_record()?;
            sources.push(Source { reader, next });
        }
        Ok(Merged { sources, state: StateChecksum::default() })
    }

    /// Reads the whole chain and returns the footer of the backup.
    ///
    /// # Errors
    /// Any fault of the files or of their combination.
    pub fn verify(&self) -> Result<Footer> {
        let mut merged = self.merge()?;
        while merged.next_pair()?.is_some() {}
        Ok(merged.footer().clone())
    }
}

fn headers_in(folder: &Path) -> Result<BTreeMap<String, (PathBuf, Header)>> {
    let entries = crate::directory::list(folder)?;
    let usable = entries.into_iter().filter_map(|entry| {
        let head = entry.header.ok()?;
        Some((head.id.clone(), (entry.path, head)))
    });
    Ok(usable.collect())
}

/// A merge of a chain in progress.
pub struct Merged {
    /// The newest first.
    sources: Vec<Source>,
    state: StateChecksum,
}

struct Source {
    reader: Reader,
    next: Option<Record>,
}

impl Merged {
    /// Returns the next key with its value; `None` at the end, when everything has been verified.
    pub fn next_pair(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            let next =
                self.sources.iter().filter_map(|source| source.next.as_ref().map(|(key, _)| key)).min();
            let Some(key) = next.cloned() else { return self.end().map(|()| None) };
            let mut newest = None;
            for source in &mut self.sources {
                if source.next.as_ref().is_some_and(|(other, _)| *other == key) {
                    let record = source.next.take();
                    source.next = source.reader.next_record()?;
                    newest = newest.or(record);
                }
            }
            if let Some((key, Some(value))) = newest {
                self.state.add(&key, &value);
                return Ok(Some((key, value)));
            }
        }
    }

    /// Returns the footer of the backup. Call it at the end.
    pub fn footer(&self) -> &Footer {
        self.sources[0].reader.footer().expect("it was read to its end")
    }

    /// Returns the number of keys so far.
    pub fn keys(&self) -> u64 {
        self.state.keys()
    }

    fn end(&self) -> Result<()> {
        let (foot, path) = (self.footer(), self.sources[0].reader.path());
        let is_whole =
            (foot.keys, foot.bytes, foot.sum) == (self.state.keys(), self.state.bytes(), self.state.sum());
        if is_whole {
            return Ok(());
        }
        let cause = format!(
            "with its bases it contains {} keys of {} bytes, but its footer counts {} of {} bytes",
            self.state.keys(),
            self.state.bytes(),
            foot.keys,
            foot.bytes
        );
        Err(Error::damaged(path, cause))
    }
}
