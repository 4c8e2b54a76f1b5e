//! The whole content of the metadata store, read once.

use crate::Progress;
use crate::content_repair::FileContent;
use crate::finding::{CheckReport, Kind};
use bytes::Bytes;
use kv::{Pages, Readable};
use namespace::keys::{self, Key, KeyRange};
use namespace::record::{self, Entry, Inode, PartitionCounters};
use std::collections::{BTreeMap, BTreeSet};
use types::{ByteRange, ChunkFileId, Errno, Error, HashMap, HashSet, InodeId, Layout, PartitionId, Result};

/// Pairs of one scan.
pub(crate) const PAGE: usize = 4096;

/// A directory entry.
#[derive(Clone, Debug)]
pub(crate) struct EntryRecord {
    pub(crate) dir: InodeId,
    pub(crate) name: Bytes,
    pub(crate) key: Vec<u8>,
    pub(crate) kind: u32,
}

/// Records of one inode.
#[derive(Default)]
pub(crate) struct InodeRecords {
    pub(crate) inode: Option<Inode>,
    pub(crate) names: Vec<EntryRecord>,
    /// Doesn't count entries in directories that don't exist.
    pub(crate) subdirectories: u32,
}

/// All records, by inode.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) inodes: HashMap<InodeId, InodeRecords>,
    pub(crate) orphans: BTreeSet<InodeId>,
    /// Files whose chunk files may differ from the inode.
    pub(crate) writing: BTreeSet<InodeId>,
    /// Chunk files whose deletion is pending, by their names.
    pub(crate) pending_deletions: BTreeMap<ChunkFileId, Layout>,
    /// Keys of attributes, with their inode.
    pub(crate) attributes: Vec<(Vec<u8>, InodeId)>,
    /// Inodes with inline content.
    pub(crate) inline: BTreeSet<InodeId>,
    pub(crate) counters: BTreeMap<PartitionId, PartitionCounters>,
    /// Keys whose value can't be decoded.
    pub(crate) damaged: Vec<Vec<u8>>,
}

impl Tree {
    /// Reads all partitions of a metadata store or of its snapshot.
    pub(crate) async fn read(
        metadata: &dyn Readable,
        partitions: u16,
        report: &mut CheckReport,
        progress: Progress<'_>,
    ) -> Result<Tree> {
        let mut tree = Tree::default();
        for partition in 0..partitions {
            progress("reading metadata", partition as u64, partitions as u64);
            tree.read_range(metadata, &keys::all_of(PartitionId(partition)), Tree::take, report).await?;
        }
        let beyond = KeyRange {
            from: keys::all_of(PartitionId(partitions)).from,
            to: keys::all_of(keys::GLOBAL).from,
        };
        tree.read_range(metadata, &beyond, |_, _, _| Err("no such partition exists".into()), report).await?;
        tree.read_range(metadata, &keys::all_of(keys::GLOBAL), Tree::take_global, report).await?;
        tree.count_subdirectories();
        Ok(tree)
    }

    /// Reads the records of one file, and of pending deletions under the name of one of its chunk
    /// files.
    ///
    /// # Errors
    /// A store that can't be read. Records that can't be decoded are in `damaged`.
    pub(crate) async fn read_file(metadata: &dyn Readable, name: ChunkFileId) -> Result<Tree> {
        let (mut tree, ino) = (Tree::default(), name.owner());
        let notes = keys::writing_of(ino);
        let scanned = metadata.scan(&notes.from, &notes.to, usize::MAX).await;
        let mut found = scanned.map_err(metadata_store_error)?;
        for key in [keys::inode(ino), keys::doomed(name)] {
            let value = metadata.get(&key).await.map_err(metadata_store_error)?;
            found.extend(value.map(|value| (Bytes::copy_from_slice(&key), value)));
        }
        for (key, value) in found {
            if tree.take(&key, value).is_err() {
                tree.damaged.push(key.to_vec());
            }
        }
        Ok(tree)
    }

    async fn read_range(
        &mut self,
        metadata: &dyn Readable,
        range: &KeyRange,
        take: impl Fn(&mut Tree, &Bytes, Bytes) -> Result<(), String>,
        report: &mut CheckReport,
    ) -> Result<()> {
        const REMEDY: &str = "restore the metadata from a backup, or repair to drop the record";
        let mut pages = Pages::new(metadata, &range.from, &range.to, PAGE);
        while let Some(page) = pages.next().await.map_err(metadata_store_error)? {
            for (key, value) in page {
                if let Err(cause) = take(self, &key, value) {
                    report.add(
                        Kind::DamagedRecord,
                        format!("metadata key {:02x?}", key.as_ref()),
                        cause,
                        REMEDY,
                    );
                    self.damaged.push(key.to_vec());
                }
            }
        }
        Ok(())
    }

    /// Checks a record of the partition without inodes. Records of other components there are not
    /// checked.
    fn take_global(&mut self, key: &Bytes, _value: Bytes) -> Result<(), String> {
        match keys::decode_key(key) {
            None | Some(Key::Owner(_) | Key::Operation { .. } | Key::Session(_)) => Ok(()),
            Some(_) => Err("it is in the partition that has no inodes".into()),
        }
    }

    fn take(&mut self, key: &Bytes, value: Bytes) -> Result<(), String> {
        let decoded = keys::decode_key(key).ok_or("weft writes no such key")?;
        let failed = |error: Error| error.to_string();
        match decoded {
            Key::Inode(ino) => {
                let inode: Inode = record::decode(key, value).map_err(failed)?;
                inode.kind().ok_or_else(|| format!("mode {:o} has no known file type", inode.mode))?;
                self.inodes.entry(ino).or_default().inode = Some(inode);
            }
            Key::Entry { dir, name, .. } => {
                let entry: Entry = record::decode(key, value).map_err(failed)?;
                let name = EntryRecord { dir, name, key: key.to_vec(), kind: entry.kind };
                self.inodes.entry(entry.id()).or_default().names.push(name);
            }
            Key::Xattr { ino, .. } => {
                record::decode::<record::Xattr>(key, value).map_err(failed)?;
                self.attributes.push((key.to_vec(), ino));
            }
            Key::Inline(ino) => {
                record::decode::<record::Inline>(key, value).map_err(failed)?;
                self.inline.insert(ino);
            }
            Key::Orphan(ino) => drop(self.orphans.insert(ino)),
            Key::Writing { ino, .. } => {
                let record: record::Writing = record::decode(key, value).map_err(failed)?;
                if record.writing || record.truncate_to.is_some() {
                    self.writing.insert(ino);
                }
            }
            Key::Doomed(name) => {
                let layout: record::Layout = record::decode(key, value).map_err(failed)?;
                self.pending_deletions.insert(name, Layout::try_from(&layout).map_err(failed)?);
            }
            Key::Migrating(_) => {
                // A migration resumes where it was, and ends at once if its file is deleted.
                record::decode::<record::Migrating>(key, value).map_err(failed)?;
            }
            Key::PartitionCounters(partition) => {
                let counters: PartitionCounters = record::decode(key, value).map_err(failed)?;
                self.counters.insert(partition, counters);
            }
            Key::Owner(_) | Key::Operation { .. } | Key::Session(_) => {
                return Err("it is in the wrong partition".into());
            }
        }
        Ok(())
    }

    fn count_subdirectories(&mut self) {
        let parents: Vec<InodeId> = self
            .inodes
            .values()
            .filter(|known| known.inode.as_ref().is_some_and(Inode::is_directory))
            .flat_map(|known| known.names.iter().map(|name| name.dir))
            .collect();
        for parent in parents {
            if let Some(known) = self.inodes.get_mut(&parent) {
                known.subdirectories += 1;
            }
        }
    }

    /// Returns the inode, if it is stored.
    pub(crate) fn inode(&self, ino: InodeId) -> Option<&Inode> {
        self.inodes.get(&ino).and_then(|known| known.inode.as_ref())
    }

    /// Returns the number of entries in existing directories.
    pub(crate) fn live_names(&self, known: &InodeRecords) -> u32 {
        let live = |name: &&EntryRecord| self.inode(name.dir).is_some_and(Inode::is_directory);
        known.names.iter().filter(live).count() as u32
    }

    /// Returns a path to an inode, for messages.
    pub(crate) fn path(&self, ino: InodeId) -> String {
        const DEEPEST: usize = 4096;
        let (mut names, mut at) = (Vec::new(), ino);
        while at != InodeId::ROOT && names.len() < DEEPEST {
            let Some(name) = self.inodes.get(&at).and_then(|known| known.names.first()) else {
                names.push(format!("<inode {at}>"));
                break;
            };
            names.push(String::from_utf8_lossy(&name.name).into_owned());
            at = name.dir;
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }

    /// Returns whether a file has as much allocated space as bytes, so that it has no holes in
    /// which chunk files may be absent.
    pub(crate) fn is_dense(&self, ino: InodeId) -> bool {
        self.inode(ino).is_some_and(|inode| inode.blocks.saturating_mul(512) >= inode.size)
    }

    /// Returns the state that a file's content depends on.
    pub(crate) fn content(&self, ino: InodeId) -> Option<FileContent> {
        let (layout, inode) = (self.layout(ino)?, self.inode(ino)?);
        let known = inode.length_bounds(&layout);
        Some(FileContent { layout, size: inode.size, is_dense: self.is_dense(ino), known })
    }

    /// Returns the inodes at and below a path.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn below(&self, path: &str) -> Result<HashSet<InodeId>> {
        let mut children: HashMap<InodeId, Vec<(&[u8], InodeId)>> = HashMap::default();
        for (&ino, known) in &self.inodes {
            for name in &known.names {
                children.entry(name.dir).or_default().push((&name.name, ino));
            }
        }
        let in_dir = |dir: &InodeId| children.get(dir).map_or(&[][..], |list| list);
        let mut at = InodeId::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let found = in_dir(&at).iter().find(|(name, _)| *name == part.as_bytes());
            at = found.map(|(_, ino)| *ino).ok_or_else(|| {
                Error::new(Errno::ENOENT, format!("{path} does not exist in the file system"))
                    .hint("the path begins at the root of the file system, wherever that is mounted")
            })?;
        }
        let (mut below, mut waiting) = (HashSet::default(), vec![at]);
        while let Some(ino) = waiting.pop() {
            if below.insert(ino) {
                waiting.extend(in_dir(&ino).iter().map(|(_, child)| *child));
            }
        }
        Ok(below)
    }

    /// Returns the number of inodes that aren't directories.
    pub(crate) fn files(&self) -> u64 {
        self.inodes
            .values()
            .filter(|known| known.inode.as_ref().is_some_and(|inode| !inode.is_directory()))
            .count() as u64
    }

    /// Returns the number of directories.
    pub(crate) fn directories(&self) -> u64 {
        self.inodes.values().filter(|known| known.inode.as_ref().is_some_and(Inode::is_directory)).count()
            as u64
    }

    /// Returns the layout of a file whose content is in chunks.
    pub(crate) fn layout(&self, ino: InodeId) -> Option<Layout> {
        let inode = self.inode(ino).filter(|inode| inode.is_regular() && !inode.inline)?;
        Layout::try_from(inode.layout.as_ref()?)
            .ok()
            .filter(|layout| !layout.groups.is_empty() && layout.chunk_size > 0)
    }
}

/// Returns the ranges of a file that a range of one of its chunk files contains, in file order,
/// without bytes beyond the file's end.
pub(crate) fn file_ranges(layout: &Layout, stripe: usize, local: ByteRange, size: u64) -> Vec<ByteRange> {
    let chunk_size = layout.chunk_size as u64;
    let mut ranges: Vec<ByteRange> = Vec::new();
    let mut at = local.start;
    while at < local.end {
        let end = ((at / chunk_size + 1) * chunk_size).min(local.end);
        let start = layout::file_offset(layout, stripe, at);
        let range = ByteRange::at(start, end - at).intersect(ByteRange::new(0, size));
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => ranges.push(range),
        }
        at = end;
    }
    ranges
}

pub(crate) fn metadata_store_error(error: kv::KvError) -> Error {
    Error::new(Errno::EIO, error.to_string()).hint("restore the metadata store from a backup")
}
