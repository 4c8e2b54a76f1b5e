//! Chunk files that belong to no file, moved aside.
//!
//! The check of a file system doesn't delete what may be somebody's data after all: it moves chunk files of no file into a folder of the target, where they
//! are no chunk files any more and stay until an administrator puts them back or deletes them. Listing, putting back and deleting need no open store:
//! nobody asks for the chunk files of these inodes.

use crate::chunk_file::absent_is_fine;
use crate::error::{Kind, Result, StoreError};
use crate::place;
use crate::store::Store;
use rt::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use types::{GroupId, InodeId};

/// The folder in a target's directory; what a target has moved aside of a mirrored group is in a folder of the group in it.
const ORPHANS: &str = "orphans";

/// What the name of such a folder begins with.
const GROUP: &str = "group-";

const READ: OpenOptions =
    OpenOptions { read: true, write: false, create: false, exclusive: false, truncate: false, direct: false };

/// A chunk file that was moved aside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Orphan {
    /// The mirrored group whose copy it is; `None` for one of the target itself.
    pub group: Option<GroupId>,
    /// Its name: the inode of the file that it belonged to, with the slot.
    pub ino: InodeId,
    /// Its length.
    pub bytes: u64,
}

impl Store {
    /// Moves a chunk file aside, with its checksums; an absent one is no error.
    ///
    /// # Errors
    /// When the disk fails, and when one of the same name has been moved aside before.
    pub async fn set_aside(&self, ino: InodeId) -> Result<()> {
        self.make_room_for_notes().await?;
        let _in_progress = self.begin_change()?;
        let Some(file) = self.find(ino).await? else { return Ok(()) };
        let target_dir: &Path = match self.group {
            Some(_) => self.dir.parent().and_then(Path::parent).unwrap_or(&self.dir),
            None => &self.dir,
        };
        let folder = folder(target_dir, self.group);
        let kept = folder.join(name(ino));
        let failed = |e| self.failed("move aside", &kept, e);
        if length(&kept).await.map_err(failed)?.is_some() {
            return Err(StoreError::new(
                Kind::NotEmpty,
                format!("target {}: {} is there already", self.target(), kept.display()),
                "weft fsck --orphans restore or delete sees to what was moved aside before",
            ));
        }
        self.flush_sums(&file).await?;
        self.sync_file(&file).await?;
        self.sync_sums(&file).await?;
        drop(file);
        rt::create_dir_all(&folder).await.map_err(failed)?;
        self.take_away(ino, Some(&folder)).await?;
        rt::sync_dir(&folder).await.map_err(failed)
    }
}

impl Orphan {
    /// All that a target in `target_dir` has moved aside, in order.
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
            for ino in entries(&folder).await?.iter().filter_map(|name| place::inode_of(name)) {
                let bytes = length(&folder.join(name(ino))).await?.unwrap_or(0);
                orphans.push(Orphan { group, ino, bytes });
            }
        }
        orphans.sort_unstable();
        Ok(orphans)
    }

    /// Makes it a chunk file of the target again. False: there is one of its name, or no store of its group.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn put_back(&self, target_dir: &Path) -> io::Result<bool> {
        let store_dir = match self.group {
            Some(group) => Store::group_dir(target_dir, group),
            None => target_dir.to_path_buf(),
        };
        let (data, sums) = (place::chunk_file(&store_dir, self.ino), place::sum_file(&store_dir, self.ino));
        let (kept, kept_sums) = self.places(target_dir);
        let has_store = rt::read_dir(&store_dir.join(place::CHUNKS)).await.is_ok();
        if !has_store || length(&data).await?.is_some() {
            return Ok(false);
        }
        // Without checksums beside the kept data, those in the store are its own: an earlier call has moved them and was
        // cut short.
        if length(&sums).await?.is_some() && length(&kept_sums).await?.is_some() {
            return Ok(false);
        }
        let to = place::folder(&store_dir, self.ino);
        rt::create_dir_all(&to).await?;
        // First, since data without checksums would look damaged.
        absent_is_fine(rt::rename(&kept_sums, &sums).await)?;
        rt::rename(&kept, &data).await?;
        rt::sync_dir(&to).await?;
        Ok(true)
    }

    /// Deletes it for good.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn delete(&self, target_dir: &Path) -> io::Result<()> {
        let (kept, kept_sums) = self.places(target_dir);
        absent_is_fine(rt::remove_file(&kept_sums).await)?;
        absent_is_fine(rt::remove_file(&kept).await)
    }

    fn places(&self, target_dir: &Path) -> (PathBuf, PathBuf) {
        let kept = folder(target_dir, self.group).join(name(self.ino));
        let sums = sums_of(&kept);
        (kept, sums)
    }
}

/// Moves a chunk file with its checksums into a folder. The checksums go first: whoever finds one without the other moves the rest later.
pub(crate) async fn move_into(folder: &Path, data: &Path, sums: &Path, ino: InodeId) -> io::Result<()> {
    let kept = folder.join(name(ino));
    absent_is_fine(rt::rename(sums, &sums_of(&kept)).await)?;
    absent_is_fine(rt::rename(data, &kept).await)
}

fn folder(target_dir: &Path, group: Option<GroupId>) -> PathBuf {
    let all = target_dir.join(ORPHANS);
    group.map_or(all.clone(), |group| all.join(format!("{GROUP}{group}")))
}

fn name(ino: InodeId) -> String {
    format!("{:016x}", ino.0)
}

fn sums_of(data: &Path) -> PathBuf {
    let mut path = data.as_os_str().to_owned();
    path.push(place::SUM_SUFFIX);
    PathBuf::from(path)
}

/// Length of a file; `None` for one that isn't there.
async fn length(path: &Path) -> io::Result<Option<u64>> {
    match File::open(path, READ).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened?.stat().await.map(|stat| Some(stat.len)),
    }
}

/// Names in a folder; none where it isn't there.
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
    use rt::IoBuf;
    use std::sync::Arc;
    use types::TargetId;

    const INO: InodeId = InodeId(5);
    const ORPHAN: Orphan = Orphan { group: None, ino: INO, bytes: 0 };

    async fn open(dir: &Path) -> Result<Arc<Store>> {
        let identity = Identity { cluster: "orphans".to_string(), target: TargetId(1) };
        if rt::read_dir(&dir.join(place::CHUNKS)).await.is_err() {
            Store::format_with_log(dir, &identity, 64 << 10).await?;
        }
        Ok(Store::open(dir, &identity, Options::default()).await?.0)
    }

    /// A chunk file of some regions, with nothing noted about it.
    async fn filled(dir: &Path, content: &[u8]) -> Result<Arc<Store>> {
        let store = open(dir).await?;
        store.write(INO, 0, &IoBuf::from_slice(content), IoPath::Cached, Durability::Later).await?;
        store.close().await?;
        drop(store);
        open(dir).await
    }

    /// Nothing is lost where moving ends in a crash, in either direction, after the checksums have been moved.
    async fn are_kept_through_crashes(dir: PathBuf) -> Result<()> {
        let content = vec![7; 5 << 19];
        let store = filled(&dir, &content).await?;
        let folder = folder(&dir, None);
        let kept = folder.join(name(INO));
        // A directory under the name of the data stops it there.
        std::fs::create_dir_all(&kept).expect("a directory");
        store.take_away(INO, Some(&folder)).await.expect_err("the data can't be moved");
        assert!(sums_of(&kept).exists() && place::chunk_file(&dir, INO).exists());
        drop(store);
        std::fs::remove_dir(&kept).expect("it is empty");

        let store = open(&dir).await?;
        store.set_aside(INO).await?;
        store.close().await?;
        drop(store);
        // The same on the way back.
        let sums = place::sum_file(&dir, INO);
        std::fs::rename(sums_of(&kept), &sums).expect("they were moved aside");
        assert!(ORPHAN.put_back(&dir).await.expect("the disk works"));
        assert!(!kept.exists() && sums.exists());

        let store = open(&dir).await?;
        assert_eq!(store.verify(INO).await?, []);
        let buf = IoBuf::alloc(content.len());
        store.read(INO, 0, &buf, IoPath::Cached).await?;
        assert!(buf.as_slice() == content);
        store.close().await
    }

    #[test]
    fn what_is_moved_aside_and_back_is_whole_although_crashes_cut_it_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        rt::block_on(are_kept_through_crashes(path)).unwrap().unwrap();
    }

    async fn is_refused_beside_another(dir: PathBuf) -> Result<()> {
        let store = filled(&dir, &[7; 100]).await?;
        store.set_aside(INO).await?;
        store.close().await?;
        drop(store);
        // Checksums of another one, whose data somebody has removed.
        let sums = place::sum_file(&dir, INO);
        std::fs::write(&sums, [1_u8; 4]).expect("a file");
        assert!(!ORPHAN.put_back(&dir).await.expect("the disk works"));
        std::fs::remove_file(&sums).expect("it is there");
        assert!(ORPHAN.put_back(&dir).await.expect("the disk works"));
        Ok(())
    }

    #[test]
    fn checksums_of_another_chunk_file_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        rt::block_on(is_refused_beside_another(path)).unwrap().unwrap();
    }
}
