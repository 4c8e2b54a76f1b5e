//! Orphaned chunk files that were set aside, and copies of chunk files that are longer than their
//! files.
//!
//! The file system check doesn't delete what may be valuable data after all. It moves orphaned
//! chunk files into a folder of the target, where they are no chunk files any more. They stay there
//! until an administrator restores or deletes them. Before the check truncates a chunk file, it
//! copies all of it there. Listing, restoring and deleting need no open store.

use crate::chunk_file::{ChunkFile, absent_is_fine};
use crate::error::{Kind, Result, StoreError};
use crate::paths;
use crate::range_lock::WritePath;
use crate::reserve::STAT_BLOCK_BYTES;
use crate::store::Store;
use rt::{File, IoBuf, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use types::{ByteRange, ChunkFileId, GroupId, reserved_space};

/// The folder in a target's directory; replicas of a mirrored group that were set aside are in a
/// folder of the group in it.
const ORPHANS: &str = "orphans";

/// Prefix of the name of such a folder.
const GROUP: &str = "group-";

/// Suffix of the name of an incomplete copy.
const PART: &str = "part";

/// Bytes that are copied or compared at a time.
const PIECE_BYTES: u64 = 1 << 20;

const READ: OpenOptions =
    OpenOptions { read: true, write: false, create: false, exclusive: false, truncate: false, direct: false };

/// A chunk file that was set aside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Orphan {
    /// The mirrored group whose replica it is; `None` for one of the target itself.
    pub group: Option<GroupId>,
    /// Its name: the inode of its former file, with the slot.
    pub ino: ChunkFileId,
    /// Its length.
    pub bytes: u64,
}

impl Store {
    /// Sets a chunk file aside, with its checksums; an absent one is no error.
    ///
    /// # Errors
    /// When the disk fails, and when one of the same name was set aside before.
    pub async fn set_aside(&self, ino: ChunkFileId) -> Result<()> {
        self.retire_entries_if_full().await?;
        let _in_progress = self.begin_change()?;
        let Some(file) = self.find(ino).await? else { return Ok(()) };
        let (folder, aside) = self.aside_paths(ino);
        let failed = |e| self.failed("move aside", &aside, e);
        if length(&aside).await.map_err(failed)?.is_some() {
            return Err(self.already_exists(&aside));
        }
        self.flush_sums(&file).await?;
        self.sync_file(&file).await?;
        self.sync_sums(&file).await?;
        drop(file);
        rt::create_dir_all(&folder).await.map_err(failed)?;
        self.remove_or_set_aside(ino, Some(&folder)).await?;
        rt::sync_dir(&folder).await.map_err(failed)
    }

    /// Copies a chunk file and its checksums into the folder, durably, so that a later truncation
    /// can be undone. An absent one is no error. One that equals the existing copy, or its
    /// beginning, isn't copied again.
    ///
    /// # Errors
    /// When the disk fails; [`Kind::NoSpace`] when it has no space for a copy beside its reserve;
    /// [`Kind::NotEmpty`] when another one of the same name exists.
    pub async fn copy_aside(&self, ino: ChunkFileId) -> Result<()> {
        let _in_progress = self.begin_change()?;
        let Some(file) = self.find(ino).await? else { return Ok(()) };
        let (folder, aside) = self.aside_paths(ino);
        let failed = |e| self.failed("copy aside", &aside, e);
        let _held = file.ranges.acquire(ByteRange::new(0, u64::MAX), WritePath::None).await;
        self.flush_sums(&file).await?;
        self.store_dir.check().map_err(failed)?;
        if length(&aside).await.map_err(failed)?.is_some() {
            return match is_prefix(&file.path, &aside).await.map_err(failed)? {
                true => Ok(()),
                false => Err(self.already_exists(&aside)),
            };
        }
        let bytes = file.cached.stat().await.map_err(failed)?.blocks.saturating_mul(STAT_BLOCK_BYTES);
        let space = self.unclaimed_space().await?;
        if space.free.saturating_sub(reserved_space(space.capacity)) < bytes {
            return Err(self.no_space(space, bytes));
        }
        rt::create_dir_all(&folder).await.map_err(failed)?;
        let copied = copy_with_sums(&file, &aside).await;
        if copied.is_err() {
            // It takes space. If it stays, the next copy replaces it.
            let _ = rt::remove_file(&aside.with_extension(PART)).await;
        }
        copied.map_err(failed)?;
        rt::sync_dir(&folder).await.map_err(failed)
    }

    /// Returns the folder of what this store has set aside, and the path of a chunk file in it.
    fn aside_paths(&self, ino: ChunkFileId) -> (PathBuf, PathBuf) {
        let target_dir: &Path = match self.group {
            Some(_) => self.dir.parent().and_then(Path::parent).unwrap_or(&self.dir),
            None => &self.dir,
        };
        let folder = folder(target_dir, self.group);
        let aside = folder.join(name(ino));
        (folder, aside)
    }

    #[cold]
    fn already_exists(&self, aside: &Path) -> StoreError {
        StoreError::new(
            Kind::NotEmpty,
            format!("target {}: {} already exists", self.target(), aside.display()),
            "restore or delete the earlier one with weft fsck --orphans",
        )
    }
}

impl Orphan {
    /// Lists everything that a target in `target_dir` has set aside, in order.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn list(target_dir: &Path) -> io::Result<Vec<Orphan>> {
        let mut groups = vec![None];
        for name in entries(&folder(target_dir, None)).await? {
            let number = name.strip_prefix(GROUP).and_then(|number| number.parse().ok());
            groups.extend(number.map(|number| Some(GroupId(number))));
        }
        let mut orphans = Vec::new();
        for group in groups {
            let folder = folder(target_dir, group);
            for ino in entries(&folder).await?.iter().filter_map(|name| paths::inode_of(name)) {
                let bytes = length(&folder.join(name(ino))).await?.unwrap_or(0);
                orphans.push(Orphan { group, ino, bytes });
            }
        }
        orphans.sort_unstable();
        Ok(orphans)
    }

    /// Makes it a chunk file of the target again. It replaces a chunk file that equals its
    /// beginning, which is the result of a truncation. False: there is another one of its name, or
    /// no store of its group.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn restore(&self, target_dir: &Path) -> io::Result<bool> {
        let store_dir = self.store_dir(target_dir);
        let (data, sums) = (paths::chunk_file(&store_dir, self.ino), paths::sum_file(&store_dir, self.ino));
        let (aside, aside_sums) = self.paths(target_dir);
        let has_store = rt::read_dir(&store_dir.join(paths::CHUNKS)).await.is_ok();
        if !has_store {
            return Ok(false);
        }
        let is_free = match length(&data).await? {
            Some(_) => is_prefix(&data, &aside).await?,
            // Without checksums beside the data that was set aside, those in the store belong to
            // it: an interrupted call has moved them.
            None => length(&sums).await?.is_none() || length(&aside_sums).await?.is_none(),
        };
        if !is_free {
            return Ok(false);
        }
        let to = paths::folder(&store_dir, self.ino);
        rt::create_dir_all(&to).await?;
        // First, since data without checksums would look damaged.
        absent_is_fine(rt::rename(&aside_sums, &sums).await)?;
        rt::rename(&aside, &data).await?;
        rt::sync_dir(&to).await?;
        Ok(true)
    }

    /// Deletes it for good.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn delete(&self, target_dir: &Path) -> io::Result<()> {
        let (aside, aside_sums) = self.paths(target_dir);
        absent_is_fine(rt::remove_file(&aside_sums).await)?;
        absent_is_fine(rt::remove_file(&aside).await)
    }

    /// Its path.
    pub fn path(&self, target_dir: &Path) -> PathBuf {
        self.paths(target_dir).0
    }

    /// Returns the chunk file that has its place in the store, with its length; `None` when there
    /// is none.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn current_chunk_file(&self, target_dir: &Path) -> io::Result<Option<(PathBuf, u64)>> {
        let data = paths::chunk_file(&self.store_dir(target_dir), self.ino);
        Ok(length(&data).await?.map(|len| (data, len)))
    }

    fn store_dir(&self, target_dir: &Path) -> PathBuf {
        match self.group {
            Some(group) => Store::group_dir(target_dir, group),
            None => target_dir.to_path_buf(),
        }
    }

    fn paths(&self, target_dir: &Path) -> (PathBuf, PathBuf) {
        let aside = folder(target_dir, self.group).join(name(self.ino));
        let sums = sums_of(&aside);
        (aside, sums)
    }
}

/// Moves a chunk file with its checksums into a folder. The checksums go first: after an
/// interruption, the next call moves the rest.
pub(crate) async fn move_into(folder: &Path, data: &Path, sums: &Path, ino: ChunkFileId) -> io::Result<()> {
    let aside = folder.join(name(ino));
    absent_is_fine(rt::rename(sums, &sums_of(&aside)).await)?;
    absent_is_fine(rt::rename(data, &aside).await)
}

/// Copies a chunk file with its checksums. The data gets its name last: without it, nothing is
/// listed.
async fn copy_with_sums(file: &ChunkFile, aside: &Path) -> io::Result<()> {
    let part = aside.with_extension(PART);
    match file.sum_file().await? {
        Some(sums) => {
            copy(sums, &part).await?;
            rt::rename(&part, &sums_of(aside)).await?;
        }
        // Checksums left from other data don't match.
        None => absent_is_fine(rt::remove_file(&sums_of(aside)).await)?,
    }
    copy(&file.cached, &part).await?;
    rt::rename(&part, aside).await
}

/// Copies a file with its holes and its mtime; the copy is on disk when this returns.
async fn copy(from: &File, to: &Path) -> io::Result<()> {
    let options = OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() };
    let copy = File::open(to, options).await?;
    let stat = from.stat().await?;
    let mut at = 0;
    while let Some(start) = from.seek_data(at).await? {
        at = (start + PIECE_BYTES).min(from.seek_hole(start).await?);
        let buf = IoBuf::alloc((at - start) as usize);
        let got = from.read_at(buf.clone(), start).await?;
        copy.write_at(buf.slice(0..got), start).await?;
    }
    copy.set_len(stat.len).await?;
    copy.set_time(stat.mtime).await?;
    copy.sync_data().await
}

/// Whether a file equals another one or its beginning.
async fn is_prefix(short: &Path, long: &Path) -> io::Result<bool> {
    let (short, long) = (File::open(short, READ).await?, File::open(long, READ).await?);
    let len = short.stat().await?.len;
    if len > long.stat().await?.len {
        return Ok(false);
    }
    let mut at = 0;
    while at < len {
        let bytes = (len - at).min(PIECE_BYTES) as usize;
        let bufs = [IoBuf::alloc(bytes), IoBuf::alloc(bytes)];
        let got = [short.read_at(bufs[0].clone(), at).await?, long.read_at(bufs[1].clone(), at).await?];
        if got != [bytes; 2] || bufs[0].as_slice() != bufs[1].as_slice() {
            return Ok(false);
        }
        at += bytes as u64;
    }
    Ok(true)
}

fn folder(target_dir: &Path, group: Option<GroupId>) -> PathBuf {
    let all = target_dir.join(ORPHANS);
    group.map_or(all.clone(), |group| all.join(format!("{GROUP}{group}")))
}

fn name(ino: ChunkFileId) -> String {
    format!("{:016x}", ino.0)
}

fn sums_of(data: &Path) -> PathBuf {
    let mut path = data.as_os_str().to_owned();
    path.push(paths::SUM_SUFFIX);
    PathBuf::from(path)
}

/// Returns the length of a file; `None` for an absent one.
async fn length(path: &Path) -> io::Result<Option<u64>> {
    match File::open(path, READ).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened?.stat().await.map(|stat| Some(stat.len)),
    }
}

/// Returns the names in a folder; none if it is absent.
async fn entries(folder: &Path) -> io::Result<Vec<String>> {
    match rt::read_dir(folder).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => Ok(listed?.into_iter().filter_map(|name| name.into_string().ok()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Identity, IoPath, Options};
    use std::sync::Arc;
    use types::TargetId;

    const INO: ChunkFileId = ChunkFileId(5);
    const ORPHAN: Orphan = Orphan { group: None, ino: INO, bytes: 0 };

    async fn open(dir: &Path) -> Result<Arc<Store>> {
        let identity = Identity { cluster: "orphans".to_string(), target: TargetId(1) };
        if rt::read_dir(&dir.join(paths::CHUNKS)).await.is_err() {
            Store::format_with_log(dir, &identity, 64 << 10).await?;
        }
        Ok(Store::open(dir, &identity, Options::default()).await?.0)
    }

    /// Creates a chunk file of some regions, without entries in the intent log.
    async fn filled(dir: &Path, content: &[u8]) -> Result<Arc<Store>> {
        let store = open(dir).await?;
        store.write(INO, 0, &IoBuf::from_slice(content), IoPath::Cached, Durability::Later).await?;
        store.close().await?;
        drop(store);
        open(dir).await
    }

    /// Nothing is lost when a move, in either direction, ends in a crash after the checksums have
    /// been moved.
    async fn are_kept_through_crashes(dir: PathBuf) -> Result<()> {
        let content = vec![7; 5 << 19];
        let store = filled(&dir, &content).await?;
        let folder = folder(&dir, None);
        let aside = folder.join(name(INO));
        // A directory under the name of the data stops it there.
        std::fs::create_dir_all(&aside).expect("a directory");
        store.remove_or_set_aside(INO, Some(&folder)).await.expect_err("the data can't be moved");
        assert!(sums_of(&aside).exists() && paths::chunk_file(&dir, INO).exists());
        drop(store);
        std::fs::remove_dir(&aside).expect("it is empty");

        let store = open(&dir).await?;
        store.set_aside(INO).await?;
        store.close().await?;
        drop(store);
        // The same on the way back.
        let sums = paths::sum_file(&dir, INO);
        std::fs::rename(sums_of(&aside), &sums).expect("they were moved aside");
        assert!(ORPHAN.restore(&dir).await.expect("the disk works"));
        assert!(!aside.exists() && sums.exists());

        let store = open(&dir).await?;
        assert_eq!(store.verify(INO).await?, []);
        let buf = IoBuf::alloc(content.len());
        store.read(INO, 0, &buf, IoPath::Cached).await?;
        assert!(buf.as_slice() == content);
        store.close().await
    }

    #[test]
    fn set_aside_and_restore_survive_crashes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        rt::block_on(are_kept_through_crashes(path)).unwrap().unwrap();
    }

    async fn is_refused_beside_another(dir: PathBuf) -> Result<()> {
        let store = filled(&dir, &[7; 100]).await?;
        store.set_aside(INO).await?;
        store.close().await?;
        drop(store);
        // Checksums of another chunk file, whose data another program has removed.
        let sums = paths::sum_file(&dir, INO);
        std::fs::write(&sums, [1_u8; 4]).expect("a file");
        assert!(!ORPHAN.restore(&dir).await.expect("the disk works"));
        std::fs::remove_file(&sums).expect("it is there");
        assert!(ORPHAN.restore(&dir).await.expect("the disk works"));
        Ok(())
    }

    #[test]
    fn checksums_of_another_chunk_file_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        rt::block_on(is_refused_beside_another(path)).unwrap().unwrap();
    }

    /// A copy with a hole is complete, replaces its own beginning, and nothing else.
    async fn is_whole_after_a_cut(dir: PathBuf) -> Result<()> {
        let (hole, len) = (3 << 20, (5 << 20) + 1000);
        let store = filled(&dir, &vec![7; 100_000]).await?;
        store.write(INO, hole, &IoBuf::from_slice(&[9; 5000]), IoPath::Cached, Durability::Later).await?;
        store.extend(INO, len).await?;
        let aside = ORPHAN.path(&dir);
        // An attempt that a crash has interrupted.
        std::fs::create_dir_all(folder(&dir, None)).expect("a directory");
        std::fs::write(aside.with_extension(PART), vec![1_u8; 9_000_000]).expect("a file");
        store.copy_aside(INO).await?;
        store.truncate(INO, 50_000).await?;
        store.copy_aside(INO).await?;
        let listed = Orphan::list(&dir).await.expect("the disk works");
        assert_eq!(listed, [Orphan { bytes: len, ..ORPHAN }], "it isn't copied again");
        store.close().await?;
        drop(store);
        assert!(ORPHAN.restore(&dir).await.expect("the disk works"));

        let store = open(&dir).await?;
        assert_eq!((store.stat(INO).await?.len, store.verify(INO).await?), (len, vec![]));
        let buf = IoBuf::alloc(len as usize);
        store.read(INO, 0, &buf, IoPath::Cached).await?;
        let mut content = vec![0_u8; len as usize];
        content[..100_000].fill(7);
        content[hole as usize..hole as usize + 5000].fill(9);
        assert!(buf.as_slice() == content);

        store.copy_aside(INO).await?;
        store.truncate(INO, 50_000).await?;
        store.write(INO, 10, &IoBuf::from_slice(b"other"), IoPath::Cached, Durability::Later).await?;
        assert_eq!(store.copy_aside(INO).await.map_err(|error| error.kind()), Err(Kind::NotEmpty));
        store.close().await?;
        drop(store);
        assert!(!ORPHAN.restore(&dir).await.expect("the disk works"));
        let place = ORPHAN.current_chunk_file(&dir).await.expect("the disk works");
        assert_eq!(place, Some((paths::chunk_file(&dir, INO), 50_000)));
        assert_eq!(length(&aside).await.expect("the disk works"), Some(len));
        Ok(())
    }

    #[test]
    fn a_copy_replaces_the_truncated_rest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        rt::block_on(is_whole_after_a_cut(path)).unwrap().unwrap();
    }
}
