//! A target's replica of a mirrored group: a separate store in a folder of the target's directory.
//!
//! So each group has its own intent log, rows and recovery, and reports about a replica concern
//! nothing else. It shares memory for checksums, statistics, and the space on the disk with the
//! target.
//!
//! Beside the store, a mark records that it was created (`made/ID`). A store that is missing
//! although it is marked was lost: an empty one in its place would be a replica that lacks
//! everything, or worse, the source of others. It is created again only for a resync that sends it
//! everything ([`IfAbsent::Recreate`]).

use crate::error::{Kind, Result, StoreError};
use crate::identity::{self, Owner};
use crate::intent::IntentLog;
use crate::paths::{CHUNKS, CREATED_MARKS, GROUPS, OVERFLOW};
use crate::recover::RecoveryReport;
use crate::store::{Options, Store, TargetShared};
use rt::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{GroupId, TargetId};

/// Default length of each intent log file of a group's store, bytes: some 43,000 entries, a quarter
/// of them active. A target has many groups, each with its share of the target's files.
pub const DEFAULT_GROUP_LOG_BYTES: u64 = 1 << 20;
/// Divisor of the target's limit of open files for the additional limit of a group's store: many
/// groups together take as many as a few targets.
const OPEN_FILES_DIVISOR: usize = 8;

/// Suffix of the folder of a group that is being removed.
const REMOVED_SUFFIX: &str = "gone";

/// What to do where a target has no store of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfAbsent {
    /// Nothing.
    Leave,
    /// Create a store.
    Create,
    /// Create a store even where one was lost. Everything counts as dirty there
    /// ([`Store::has_overflowed`]), so that the whole replica is compared with another one.
    Recreate,
}

/// Removes a folder with everything in it.
async fn remove_all(dir: PathBuf) -> io::Result<()> {
    let mut folders = vec![(dir, false)];
    while let Some((folder, is_empty)) = folders.pop() {
        if is_empty {
            rt::remove_dir(&folder).await?;
            continue;
        }
        let names = rt::read_dir(&folder).await?;
        folders.push((folder.clone(), true));
        for path in names.iter().map(|name| folder.join(name)) {
            match rt::remove_file(&path).await {
                Err(e) if e.kind() == io::ErrorKind::IsADirectory => folders.push((path, false)),
                removed => removed?,
            }
        }
    }
    Ok(())
}

/// Creates an empty marker file durably.
async fn create_mark(dir: &Path, name: &str) -> io::Result<()> {
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    File::open(&dir.join(name), options).await?.sync_data().await?;
    rt::sync_dir(dir).await
}

/// Returns the groups that a folder has entries of.
async fn groups_in(dir: &Path) -> Result<Vec<GroupId>> {
    let names = match rt::read_dir(dir).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(|e| StoreError::io(TargetId(0), "list", dir, e))?,
    };
    let number = |name: &str| name.parse().ok().filter(|n: &u32| n.to_string() == name);
    Ok(names.iter().filter_map(|name| number(name.to_str()?)).map(GroupId).collect())
}

/// Whether a mark exists.
pub(crate) async fn has_mark(target: TargetId, path: &Path) -> Result<bool> {
    match File::open(path, OpenOptions { read: true, ..OpenOptions::default() }).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::io(target, "open", path, e)),
    }
}

/// Whether a folder exists.
async fn has_folder(target: TargetId, path: &Path) -> Result<bool> {
    match rt::read_dir(path).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::io(target, "list", path, e)),
    }
}

impl Store {
    /// Returns the path of the store of a group on a target in `target_dir`.
    pub fn group_dir(target_dir: &Path, group: GroupId) -> PathBuf {
        target_dir.join(GROUPS).join(group.to_string())
    }

    /// Returns the groups of which a target in `target_dir` has, or has lost, a store, in order.
    pub async fn groups_on(target_dir: &Path) -> Result<Vec<GroupId>> {
        let mut groups = groups_in(&target_dir.join(GROUPS)).await?;
        groups.extend(groups_in(&target_dir.join(CREATED_MARKS)).await?);
        groups.sort_unstable();
        groups.dedup();
        Ok(groups)
    }

    /// Returns the groups of which this target has a store, in order.
    ///
    /// # Errors
    /// Also when the target's directory isn't the one that was opened: then there are groups that
    /// it doesn't list.
    pub async fn groups(&self) -> Result<Vec<GroupId>> {
        let groups = Store::groups_on(&self.dir).await?;
        self.check_dir()?;
        Ok(groups)
    }

    /// Opens a target's store of a group, with recovery as for a target; `None` when it doesn't
    /// exist and none should be created.
    ///
    /// The caller makes sure that it is open only once, and runs [`Store::background`]. It must be
    /// closed before the target.
    ///
    /// # Errors
    /// As [`Store::open`]; [`Kind::Damaged`] when the target has lost its store of the group.
    pub async fn open_group(
        target: &Arc<Store>,
        group: GroupId,
        if_absent: IfAbsent,
    ) -> Result<Option<(Arc<Store>, RecoveryReport)>> {
        let dir = Store::group_dir(target.dir(), group);
        let owner = Owner { identity: target.identity.clone(), group: Some(group) };
        let exists = identity::holds_store(&dir, &owner).await;
        let was_created =
            has_mark(target.target(), &target.dir.join(CREATED_MARKS).join(group.to_string())).await;
        let has_chunks = has_folder(target.target(), &dir.join(CHUNKS)).await;
        target.check_dir()?;
        let (exists, was_created, has_chunks) = (exists?, was_created?, has_chunks?);
        let is_lost = was_created && !(exists && has_chunks);
        if is_lost && if_absent != IfAbsent::Recreate {
            return Err(target.report_lost_group(group, &dir));
        }
        if !exists {
            if if_absent == IfAbsent::Leave {
                return Ok(None);
            }
            target.create_group(&dir, &owner, is_lost).await?;
        } else if !has_chunks {
            // If power failed during its creation, only this is missing.
            target.create_chunk_folder(&dir, is_lost).await?;
        }
        if !was_created {
            target.mark_created(group).await?;
        }
        let options = Options {
            max_open_files: target.options.max_open_files.div_ceil(OPEN_FILES_DIVISOR),
            lock: None,
            ..target.options.clone()
        };
        let shared = TargetShared {
            statistics: target.statistics.clone(),
            budget: target.budget.clone(),
            recent_reads: target.recent_reads.clone(),
            space_grant: target.space_grant.clone(),
        };
        let log_bytes = options.group_log_bytes;
        Store::open_checked(&dir, owner, options, shared, log_bytes).await.map(Some)
    }

    /// Removes this target's store of a group, which must be closed. If the removal is interrupted,
    /// [`Store::finish_group_removals`] completes it.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn remove_group(&self, group: GroupId) -> Result<()> {
        self.verify_dir().await?;
        let dir = Store::group_dir(&self.dir, group);
        let removed_dir = dir.with_extension(REMOVED_SUFFIX);
        let failed = |e| self.failed("remove", &dir, e);
        // The leftover of an earlier removal is in the way.
        if rt::read_dir(&removed_dir).await.is_ok() {
            remove_all(removed_dir.clone()).await.map_err(failed)?;
        }
        // The mark first: a crash after that leaves a store without one, which is marked again when
        // it is opened. The reverse order would leave a store that looks lost.
        self.remove_created_mark(group).await?;
        match self.store_dir.confirm(rt::rename(&dir, &removed_dir).await) {
            // It was lost, or never existed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(failed)?,
        }
        rt::sync_dir(&self.dir.join(GROUPS)).await.map_err(failed)?;
        remove_all(removed_dir).await.map_err(failed)
    }

    /// Completes interrupted removals of groups.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn finish_group_removals(&self) -> Result<()> {
        self.check_dir()?;
        let dir = self.dir.join(GROUPS);
        let Ok(names) = rt::read_dir(&dir).await else { return Ok(()) };
        for path in names.iter().map(|name| dir.join(name)) {
            if path.extension().is_some_and(|extension| extension == REMOVED_SUFFIX) {
                remove_all(path.clone()).await.map_err(|e| self.failed("remove", &path, e))?;
            }
        }
        Ok(())
    }

    /// The group that this is a store of; `None` for a target itself.
    pub fn group(&self) -> Option<GroupId> {
        self.group
    }

    /// Creates an empty store of a group; begins again if a crash has interrupted an earlier
    /// attempt. If `was_lost`, everything counts as dirty.
    async fn create_group(&self, dir: &Path, owner: &Owner, was_lost: bool) -> Result<()> {
        let failed = |e| self.failed("make", dir, e);
        rt::create_dir_all(dir).await.map_err(failed)?;
        // The chunk folder comes last, so where it exists there was a superblock.
        if rt::read_dir(dir).await.map_err(failed)?.iter().any(|name| name == CHUNKS) {
            return Err(StoreError::new(
                Kind::Damaged,
                format!("target {}: the superblock in {} is missing", self.target(), dir.display()),
                "restore it from a copy, and check the disk",
            ));
        }
        IntentLog::format(self.target(), dir, self.options.group_log_bytes).await?;
        // Before the superblock, so that a store with one is found again.
        rt::sync_dir(&self.dir.join(GROUPS)).await.map_err(failed)?;
        rt::sync_dir(&self.dir).await.map_err(failed)?;
        identity::write(dir, owner).await?;
        self.create_chunk_folder(dir, was_lost).await
    }

    async fn create_chunk_folder(&self, dir: &Path, was_lost: bool) -> Result<()> {
        let failed = |e| self.failed("make", dir, e);
        if was_lost {
            create_mark(dir, OVERFLOW).await.map_err(failed)?;
        }
        rt::create_dir_all(&dir.join(CHUNKS)).await.map_err(failed)?;
        rt::sync_dir(dir).await.map_err(failed)
    }

    /// Marks that a store of a group exists, once it does and before it gets any content.
    async fn mark_created(&self, group: GroupId) -> Result<()> {
        let marks_dir = self.dir.join(CREATED_MARKS);
        let mark = async {
            rt::create_dir_all(&marks_dir).await?;
            create_mark(&marks_dir, &group.to_string()).await?;
            self.store_dir.confirm(rt::sync_dir(&self.dir).await)
        };
        mark.await.map_err(|e| self.failed("write", &marks_dir, e))
    }

    /// Removes the mark.
    async fn remove_created_mark(&self, group: GroupId) -> Result<()> {
        let marks_dir = self.dir.join(CREATED_MARKS);
        let mark = marks_dir.join(group.to_string());
        match self.store_dir.confirm(rt::remove_file(&mark).await) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => {
                let removed = async { removed.and(rt::sync_dir(&marks_dir).await) };
                removed.await.map_err(|e| self.failed("remove", &mark, e))
            }
        }
    }

    #[cold]
    fn report_lost_group(&self, group: GroupId, dir: &Path) -> StoreError {
        let target = self.target();
        StoreError::new(
            Kind::Damaged,
            format!("target {target}: its replica of group {group} is missing: {}", dir.display()),
            "look for it in lost+found and move it back, and check the disk; without it, the group continues with \
             another member that is in sync",
        )
    }

    /// From here on everything counts as dirty; on disk before any entry is dropped.
    pub(crate) async fn mark_overflow(&self, invalidate_holds: bool) -> Result<()> {
        let _marking = self.mark_lock.write().await;
        if !self.overflowed.load(Ordering::SeqCst) {
            self.write_mark().await?;
        }
        if let Some(log) = &self.intents {
            log.holds().set_release_all(true);
            if invalidate_holds {
                log.holds().invalidate_holds();
            }
        }
        Ok(())
    }

    async fn write_mark(&self) -> Result<()> {
        let marked = create_mark(&self.dir, OVERFLOW).await;
        self.store_dir.confirm(marked).map_err(|e| self.failed("write", &self.dir.join(OVERFLOW), e))?;
        self.overflowed.store(true, Ordering::SeqCst);
        tracing::warn!(
            target_id = %self.target(),
            group_id = %self.group.unwrap_or_default(),
            "more changed while a replica was missing than the intent log can list, or the log is lost: this replica is compared with the others as a whole",
        );
        Ok(())
    }

    /// Removes the mark of [`Store::has_overflowed`]: all replicas are equal, except for held
    /// entries and later changes. The mark stays while an invalidated hold exists; call this again
    /// then.
    pub async fn clear_overflow(&self) -> Result<()> {
        let _marking = self.mark_lock.write().await;
        let has_invalidated = self.intents.as_ref().is_some_and(|log| log.holds().has_invalidated());
        if !self.overflowed.load(Ordering::SeqCst) || has_invalidated {
            return Ok(());
        }
        // First, so that entries made from here on are retained again.
        if let Some(log) = &self.intents {
            log.holds().set_release_all(false);
        }
        let path = self.dir.join(OVERFLOW);
        let removed = async {
            crate::chunk_file::absent_is_fine(self.store_dir.confirm(rt::remove_file(&path).await))?;
            rt::sync_dir(&self.dir).await
        };
        removed.await.map_err(|e| self.failed("remove", &path, e))?;
        self.overflowed.store(false, Ordering::SeqCst);
        Ok(())
    }
}
