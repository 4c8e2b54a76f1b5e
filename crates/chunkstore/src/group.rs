//! What a target has of a mirrored group: a store of its own in a folder of the target's directory.
//!
//! So each group has its own notes, rows and recovery, and what is said of one copy is said of
//! nothing else. Memory for checksums, the count of what was done, and the room on the disk are
//! shared with the target.
//!
//! Beside the store there is a mark that it was made (`made/ID`). A store that is gone although it
//! is marked was lost: an empty one in its place would be a copy that lacks everything, or worse,
//! the one from which others are made. It is made again only for who sends it everything
//! ([`IfAbsent::MakeAnew`]).

use crate::error::{Kind, Result, StoreError};
use crate::identity::{self, Owner};
use crate::intent::IntentLog;
use crate::place::{CHUNKS, GROUPS, MADE, OVERFLOW};
use crate::recover::RecoveryReport;
use crate::store::{Options, Shared, Store};
use rt::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::{GroupId, TargetId};

/// Length of each intent log file of a group's store by default, bytes: some 43,000 notes, a
/// quarter of them in force. A target has many groups, each with its share of the target's files.
pub const DEFAULT_GROUP_LOG_BYTES: u64 = 1 << 20;
/// The part of the target's open files that a group's store may keep open besides: many groups
/// together take as many as a few targets.
const OPEN_FILES_DIVISOR: usize = 8;

/// What the folder of a group that is being removed ends with.
const FORGOTTEN: &str = "gone";

/// What is done where a target has nothing of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfAbsent {
    /// Nothing.
    Leave,
    /// A store is made.
    Make,
    /// A store is made also where there was one that is lost. Everything counts as noted there
    /// ([`Store::notes_overflowed`]), so that the copy is compared with another one as a whole.
    MakeAnew,
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

/// Makes an empty file whose being there says something, durably.
async fn make_mark(dir: &Path, name: &str) -> io::Result<()> {
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    File::open(&dir.join(name), options).await?.sync_data().await?;
    rt::sync_dir(dir).await
}

/// The groups that a folder has entries of.
async fn numbered_in(dir: &Path) -> Result<Vec<GroupId>> {
    let names = match rt::read_dir(dir).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(|e| StoreError::io(TargetId(0), "list", dir, e))?,
    };
    let number = |name: &str| name.parse().ok().filter(|n: &u32| n.to_string() == name);
    Ok(names.iter().filter_map(|name| number(name.to_str()?)).map(GroupId).collect())
}

/// Whether a mark is there.
pub(crate) async fn has_mark(target: TargetId, path: &Path) -> Result<bool> {
    match File::open(path, OpenOptions { read: true, ..OpenOptions::default() }).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::io(target, "open", path, e)),
    }
}

/// Whether a folder is there.
async fn has_folder(target: TargetId, path: &Path) -> Result<bool> {
    match rt::read_dir(path).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(StoreError::io(target, "list", path, e)),
    }
}

impl Store {
    /// Where a target in `target_dir` keeps what it has of a group.
    pub fn group_dir(target_dir: &Path, group: GroupId) -> PathBuf {
        target_dir.join(GROUPS).join(group.to_string())
    }

    /// The groups that a target in `target_dir` has something of, or has lost what it had, in
    /// order.
    pub async fn groups_on(target_dir: &Path) -> Result<Vec<GroupId>> {
        let mut groups = numbered_in(&target_dir.join(GROUPS)).await?;
        groups.extend(numbered_in(&target_dir.join(MADE)).await?);
        groups.sort_unstable();
        groups.dedup();
        Ok(groups)
    }

    /// The groups that this target has something of, in order.
    ///
    /// # Errors
    /// Also when the target's directory isn't the one that was opened: then it has groups that
    /// aren't seen.
    pub async fn groups(&self) -> Result<Vec<GroupId>> {
        let groups = Store::groups_on(&self.dir).await?;
        self.check_home()?;
        Ok(groups)
    }

    /// Opens what a target has of a group, with the recovery that a target has; `None` when there
    /// is nothing and nothing was to be made.
    ///
    /// Whoever opens makes sure that nobody else has it open, and runs [`Store::background`]. It is
    /// closed before the target is.
    ///
    /// # Errors
    /// As [`Store::open`]; [`Kind::Damaged`] when the target has lost what it had of the group.
    pub async fn open_group(
        target: &Arc<Store>,
        group: GroupId,
        if_absent: IfAbsent,
    ) -> Result<Option<(Arc<Store>, RecoveryReport)>> {
        let dir = Store::group_dir(target.dir(), group);
        let owner = Owner { identity: target.identity.clone(), group: Some(group) };
        let is_there = identity::is_there(&dir, &owner).await;
        let was_made = has_mark(target.target(), &target.dir.join(MADE).join(group.to_string())).await;
        let has_chunks = has_folder(target.target(), &dir.join(CHUNKS)).await;
        target.check_home()?;
        let (is_there, was_made, has_chunks) = (is_there?, was_made?, has_chunks?);
        let is_lost = was_made && !(is_there && has_chunks);
        if is_lost && if_absent != IfAbsent::MakeAnew {
            return Err(target.report_lost_group(group, &dir));
        }
        if !is_there {
            if if_absent == IfAbsent::Leave {
                return Ok(None);
            }
            target.make_group(&dir, &owner, is_lost).await?;
        } else if !has_chunks {
            // Where the power went while it was made, everything is there but this.
            target.make_chunk_folder(&dir, is_lost).await?;
        }
        if !was_made {
            target.mark_made(group).await?;
        }
        let options = Options {
            max_open_files: target.options.max_open_files.div_ceil(OPEN_FILES_DIVISOR),
            lock: None,
            ..target.options.clone()
        };
        let shared = Shared {
            statistics: target.statistics.clone(),
            budget: target.budget.clone(),
            seen: target.seen.clone(),
            room: target.room.clone(),
        };
        let log_bytes = options.group_log_bytes;
        Store::open_checked(&dir, owner, options, shared, log_bytes).await.map(Some)
    }

    /// Removes what this target has of a group, whose store must be closed. Should it be cut short,
    /// the rest goes with [`Store::remove_forgotten_groups`].
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn forget_group(&self, group: GroupId) -> Result<()> {
        self.prove_home().await?;
        let dir = Store::group_dir(&self.dir, group);
        let gone = dir.with_extension(FORGOTTEN);
        let failed = |e| self.failed("remove", &dir, e);
        // One of before that is in the way goes first.
        if rt::read_dir(&gone).await.is_ok() {
            remove_all(gone.clone()).await.map_err(failed)?;
        }
        // The mark first: a crash after that leaves a store without one, which is marked again when
        // it is opened. The other way round it would leave a store that looks lost.
        self.unmark_made(group).await?;
        match self.home.confirm(rt::rename(&dir, &gone).await) {
            // It has been lost, or has never been.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(failed)?,
        }
        rt::sync_dir(&self.dir.join(GROUPS)).await.map_err(failed)?;
        remove_all(gone).await.map_err(failed)
    }

    /// Removes what is left of groups whose removal was cut short.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn remove_forgotten_groups(&self) -> Result<()> {
        self.check_home()?;
        let dir = self.dir.join(GROUPS);
        let Ok(names) = rt::read_dir(&dir).await else { return Ok(()) };
        for path in names.iter().map(|name| dir.join(name)) {
            if path.extension().is_some_and(|extension| extension == FORGOTTEN) {
                remove_all(path.clone()).await.map_err(|e| self.failed("remove", &path, e))?;
            }
        }
        Ok(())
    }

    /// The group that this is a store of; `None` for a target itself.
    pub fn group(&self) -> Option<GroupId> {
        self.group
    }

    /// Makes an empty store of a group. One that a crash kept from being finished is made anew.
    /// Where one `was_lost`, everything counts as noted.
    async fn make_group(&self, dir: &Path, owner: &Owner, was_lost: bool) -> Result<()> {
        let failed = |e| self.failed("make", dir, e);
        rt::create_dir_all(dir).await.map_err(failed)?;
        // Chunks come last, so where there are some there was a superblock.
        if rt::read_dir(dir).await.map_err(failed)?.iter().any(|name| name == CHUNKS) {
            return Err(StoreError::new(
                Kind::Damaged,
                format!("target {}: the superblock in {} is missing", self.target(), dir.display()),
                "restore it from a copy, and check the disk",
            ));
        }
        IntentLog::format(self.target(), dir, self.options.group_log_bytes).await?;
        // Before the superblock, so that what has one is found again.
        rt::sync_dir(&self.dir.join(GROUPS)).await.map_err(failed)?;
        rt::sync_dir(&self.dir).await.map_err(failed)?;
        identity::write(dir, owner).await?;
        self.make_chunk_folder(dir, was_lost).await
    }

    async fn make_chunk_folder(&self, dir: &Path, was_lost: bool) -> Result<()> {
        let failed = |e| self.failed("make", dir, e);
        if was_lost {
            make_mark(dir, OVERFLOW).await.map_err(failed)?;
        }
        rt::create_dir_all(&dir.join(CHUNKS)).await.map_err(failed)?;
        rt::sync_dir(dir).await.map_err(failed)
    }

    /// Notes that there is a store of a group, once there is one and before anything comes into it.
    async fn mark_made(&self, group: GroupId) -> Result<()> {
        let made = self.dir.join(MADE);
        let mark = async {
            rt::create_dir_all(&made).await?;
            make_mark(&made, &group.to_string()).await?;
            self.home.confirm(rt::sync_dir(&self.dir).await)
        };
        mark.await.map_err(|e| self.failed("write", &made, e))
    }

    /// Notes that there is none any more.
    async fn unmark_made(&self, group: GroupId) -> Result<()> {
        let made = self.dir.join(MADE);
        let mark = made.join(group.to_string());
        match self.home.confirm(rt::remove_file(&mark).await) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => {
                let removed = async { removed.and(rt::sync_dir(&made).await) };
                removed.await.map_err(|e| self.failed("remove", &mark, e))
            }
        }
    }

    #[cold]
    fn report_lost_group(&self, group: GroupId, dir: &Path) -> StoreError {
        let target = self.target();
        StoreError::new(
            Kind::Damaged,
            format!("target {target}: what it had of group {group} is gone: {}", dir.display()),
            "look for it in lost+found and put it back, and check the disk; without it, the group goes on from \
             another member that is in sync",
        )
    }

    /// From here on everything counts as noted; on disk before any note goes.
    pub(crate) async fn mark_overflow(&self, let_go_of_held: bool) -> Result<()> {
        let _marking = self.marking.write().await;
        if !self.overflowed.load(Ordering::SeqCst) {
            self.write_mark().await?;
        }
        if let Some(log) = &self.intents {
            log.holds().let_go(true);
            if let_go_of_held {
                log.holds().break_holds();
            }
        }
        Ok(())
    }

    async fn write_mark(&self) -> Result<()> {
        let marked = make_mark(&self.dir, OVERFLOW).await;
        self.home.confirm(marked).map_err(|e| self.failed("write", &self.dir.join(OVERFLOW), e))?;
        self.overflowed.store(true, Ordering::SeqCst);
        tracing::warn!(
            target_id = %self.target(),
            group_id = %self.group.unwrap_or_default(),
            "more changed while a copy was missing than the intent log takes, or the log is lost: all of this copy is compared with the others",
        );
        Ok(())
    }

    /// Takes the mark of [`Store::notes_overflowed`] away: all copies are equal, but for what is
    /// held and what changes from here on. It stays as long as somebody holds notes that were let
    /// go; ask again then.
    pub async fn forget_overflow(&self) -> Result<()> {
        let _marking = self.marking.write().await;
        let has_broken = self.intents.as_ref().is_some_and(|log| log.holds().has_broken());
        if !self.overflowed.load(Ordering::SeqCst) || has_broken {
            return Ok(());
        }
        // First, so that what is noted from here on is kept again.
        if let Some(log) = &self.intents {
            log.holds().let_go(false);
        }
        let path = self.dir.join(OVERFLOW);
        let removed = async {
            crate::chunk_file::absent_is_fine(self.home.confirm(rt::remove_file(&path).await))?;
            rt::sync_dir(&self.dir).await
        };
        removed.await.map_err(|e| self.failed("remove", &path, e))?;
        self.overflowed.store(false, Ordering::SeqCst);
        Ok(())
    }
}
