//! Walks the directories of a tree with several threads.
//!
//! A task is to open one directory, or to read the next entries of an open one. Tasks are on a
//! stack: directories that were found last are walked first. A directory with more entries goes
//! back to the stack below its subdirectories, so that the stack has at most one buffer of names
//! per open directory. The position in a directory is that of its descriptor.

use crate::THREADS;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of directory entries that a thread reads at once: some hundred names. Other threads take
/// the next ones meanwhile.
const ENTRIES_BYTES: usize = 32 << 10;

/// What is done with the directories and files of a tree. Several threads call it.
pub trait Visitor: Sync {
    /// State of an open directory.
    type State: Send + Sync;

    /// A directory has been opened. `None` skips what is in it.
    fn enter(&self, dir: &Position<'_, Self::State>, fd: BorrowedFd<'_>) -> Option<Self::State>;

    /// A directory could not be opened.
    fn not_opened(&self, dir: &Position<'_, Self::State>, cause: Errno);

    /// An entry of a directory. `kind` is what the directory says, possibly unknown.
    fn entry(&self, dir: &Dir<Self::State>, name: &CStr, kind: FileType) -> Next;

    /// The entries of a directory can't be read. The ones that were read are processed.
    fn not_read(&self, dir: &Dir<Self::State>, cause: Errno);

    /// Everything below a directory has been processed.
    fn leave(&self, dir: &Dir<Self::State>);
}

/// What follows after an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing.
    Done,
    /// It is a directory to walk.
    Descend,
}

/// Which directories belong to a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mounts {
    /// Also those on file systems that are mounted below the root.
    Cross,
    /// Not those behind a mount point: opening them fails with `EXDEV`.
    Refuse,
}

/// Place of a directory in the tree: its name in the directory above, or the path of the root.
pub struct Position<'a, S> {
    pub parent: Option<&'a Arc<Dir<S>>>,
    pub name: &'a CStr,
}

impl<S> Position<'_, S> {
    /// The path, beginning with the path of the root.
    pub fn path(&self) -> PathBuf {
        join(self.parent.map(|parent| &**parent), self.name)
    }
}

/// An open directory.
pub struct Dir<S> {
    parent: Option<Arc<Dir<S>>>,
    name: CString,
    fd: OwnedFd,
    /// Tasks in this directory and directories in it that aren't completed.
    unfinished: AtomicUsize,
    pub state: S,
}

impl<S> Dir<S> {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn parent(&self) -> Option<&Dir<S>> {
        self.parent.as_deref()
    }

    /// The descriptor and the name under which system calls find this directory.
    pub fn place(&self) -> (BorrowedFd<'_>, &CStr) {
        (self.parent.as_ref().map_or(CWD, |parent| parent.fd.as_fd()), &self.name)
    }

    /// The path, beginning with the path of the root.
    pub fn path(&self) -> PathBuf {
        join(self.parent(), &self.name)
    }

    /// The path of an entry.
    pub fn path_of(&self, name: &CStr) -> PathBuf {
        join(Some(self), name)
    }
}

/// Drops the directories above without recursion: a tree may be deeper than the thread's stack.
impl<S> Drop for Dir<S> {
    fn drop(&mut self) {
        let mut above = self.parent.take();
        while let Some(dir) = above.and_then(Arc::into_inner) {
            above = { dir }.parent.take();
        }
    }
}

fn join<S>(parent: Option<&Dir<S>>, name: &CStr) -> PathBuf {
    let mut names = vec![name];
    let mut above = parent;
    while let Some(dir) = above {
        names.push(&dir.name);
        above = dir.parent();
    }
    names.into_iter().rev().map(|name| OsStr::from_bytes(name.to_bytes())).collect()
}

/// Work for a thread.
enum Task<S> {
    Open { parent: Option<Arc<Dir<S>>>, name: CString },
    Read(Arc<Dir<S>>),
}

/// Tasks and the number of threads that may add others.
struct Tasks<S> {
    stack: Vec<Task<S>>,
    busy: usize,
}

struct Walk<'a, V: Visitor> {
    visitor: &'a V,
    mounts: Mounts,
    stop: &'a AtomicBool,
    tasks: Mutex<Tasks<V::State>>,
    changed: Condvar,
}

/// Walks the directory at `root`, which isn't followed if it is a symlink. Returns when everything
/// has been processed, or soon after `stop` became true.
pub fn walk<V: Visitor>(root: CString, mounts: Mounts, visitor: &V, stop: &AtomicBool) {
    let tasks = Tasks { stack: vec![Task::Open { parent: None, name: root }], busy: 0 };
    let walk = Walk { visitor, mounts, stop, tasks: Mutex::new(tasks), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 1..THREADS {
            let spawned = std::thread::Builder::new().spawn_scoped(scope, || walk.work());
            // The threads that there are do the work.
            if spawned.is_err() {
                break;
            }
        }
        walk.work();
    });
}

/// A task that a thread works on. Its end wakes the others if nothing is left to do.
struct Busy<'a, 'b, V: Visitor>(&'a Walk<'b, V>);

impl<V: Visitor> Drop for Busy<'_, '_, V> {
    fn drop(&mut self) {
        let mut tasks = self.0.tasks();
        tasks.busy -= 1;
        // After a panic, the others end, too.
        if std::thread::panicking() {
            tasks.stack.clear();
        }
        if tasks.busy == 0 && tasks.stack.is_empty() {
            self.0.changed.notify_all();
        }
    }
}

impl<V: Visitor> Walk<'_, V> {
    fn tasks(&self) -> MutexGuard<'_, Tasks<V::State>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn work(&self) {
        let mut buffer = Vec::with_capacity(ENTRIES_BYTES);
        while let Some(task) = self.next() {
            let _busy = Busy(self);
            match task {
                Task::Open { parent, name } => self.open(parent, name, &mut buffer),
                Task::Read(dir) => self.read(dir, &mut buffer),
            }
        }
    }

    /// Waits for a task. `None` at the end.
    fn next(&self) -> Option<Task<V::State>> {
        let mut tasks = self.tasks();
        loop {
            if self.is_over() {
                tasks.stack.clear();
                self.changed.notify_all();
                return None;
            }
            if let Some(task) = tasks.stack.pop() {
                tasks.busy += 1;
                return Some(task);
            }
            if tasks.busy == 0 {
                return None;
            }
            tasks = self.changed.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn open(&self, parent: Option<Arc<Dir<V::State>>>, name: CString, buffer: &mut Vec<u8>) {
        let position = Position { parent: parent.as_ref(), name: &name };
        let at = parent.as_ref().map_or(CWD, |parent| parent.fd.as_fd());
        let opened = match open_directory(at, &name, self.mounts_of(parent.is_none())) {
            Ok(fd) => self.visitor.enter(&position, fd.as_fd()).map(|state| (fd, state)),
            Err(cause) => {
                self.visitor.not_opened(&position, cause);
                None
            }
        };
        match opened {
            Some((fd, state)) => {
                let unfinished = AtomicUsize::new(1);
                self.read(Arc::new(Dir { parent, name, fd, unfinished, state }), buffer);
            }
            None => self.finish(parent),
        }
    }

    /// The root itself may be a mount point.
    fn mounts_of(&self, is_root: bool) -> Mounts {
        if is_root { Mounts::Cross } else { self.mounts }
    }

    /// Processes some entries of a directory.
    fn read(&self, dir: Arc<Dir<V::State>>, buffer: &mut Vec<u8>) {
        let (entries, is_end) = self.read_entries(&dir, buffer);
        let (directories, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(_, kind)| kind.is_dir());
        // Other threads begin with the directories while this one processes the files.
        self.push(&dir, !is_end, directories);
        let mut unknown = Vec::new();
        for (name, kind) in others {
            if self.is_over() {
                return;
            }
            if self.visitor.entry(&dir, &name, kind) == Next::Descend {
                unknown.push((name, FileType::Unknown));
            }
        }
        self.push_found(&dir, unknown);
        self.finish(Some(dir));
    }

    /// Adds tasks: the rest of a directory, above it the directories that were found in it.
    fn push(&self, dir: &Arc<Dir<V::State>>, has_more: bool, directories: Vec<(CString, FileType)>) {
        if has_more {
            dir.unfinished.fetch_add(1, Ordering::Relaxed);
            self.tasks().stack.push(Task::Read(dir.clone()));
            self.changed.notify_one();
        }
        let descends = |(name, kind): &(CString, FileType)| {
            !self.is_over() && self.visitor.entry(dir, name, *kind) == Next::Descend
        };
        self.push_found(dir, directories.into_iter().filter(descends).collect());
    }

    fn push_found(&self, dir: &Arc<Dir<V::State>>, directories: Vec<(CString, FileType)>) {
        if directories.is_empty() {
            return;
        }
        dir.unfinished.fetch_add(directories.len(), Ordering::Relaxed);
        let mut tasks = self.tasks();
        let open = |(name, _)| Task::Open { parent: Some(dir.clone()), name };
        tasks.stack.extend(directories.into_iter().map(open));
        self.changed.notify_all();
    }

    /// Returns the entries of one buffer, and whether they are the last ones.
    fn read_entries(&self, dir: &Dir<V::State>, buffer: &mut Vec<u8>) -> (Vec<(CString, FileType)>, bool) {
        let mut reader = RawDir::new(dir.fd.as_fd(), buffer.spare_capacity_mut());
        let mut entries = Vec::new();
        loop {
            match reader.next() {
                None => return (entries, true),
                Some(Err(cause)) => {
                    self.visitor.not_read(dir, cause);
                    return (entries, true);
                }
                Some(Ok(entry)) if !matches!(entry.file_name().to_bytes(), b"." | b"..") => {
                    entries.push((entry.file_name().to_owned(), entry.file_type()));
                }
                Some(Ok(_)) => (),
            }
            if reader.is_buffer_empty() {
                return (entries, false);
            }
        }
    }

    /// Ends one task of a directory, and what is completed by that above it.
    fn finish(&self, dir: Option<Arc<Dir<V::State>>>) {
        let mut done = dir;
        while let Some(dir) = done {
            if dir.unfinished.fetch_sub(1, Ordering::AcqRel) != 1 || self.is_over() {
                return;
            }
            self.visitor.leave(&dir);
            done = dir.parent.clone();
        }
    }
}

/// Opens a directory without following a symlink.
fn open_directory(at: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match mounts {
        Mounts::Cross => rustix::fs::openat(at, name, flags, Mode::empty()),
        Mounts::Refuse => {
            let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
            rustix::fs::openat2(at, name, flags, Mode::empty(), resolve)
        }
    }
}

/// Returns the attributes of an open file.
pub fn attributes_of(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Returns the attributes of a file itself, also if it is a symlink.
pub fn attributes(at: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(at, name, flags, StatxFlags::BASIC_STATS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Replaces the directory `victim` by a symlink between its discovery and its opening.
    struct Replacing<'a> {
        tree: &'a std::path::Path,
        refused: AtomicUsize,
    }

    impl Visitor for Replacing<'_> {
        type State = ();

        fn enter(&self, dir: &Position<'_, ()>, _: BorrowedFd<'_>) -> Option<()> {
            assert!(dir.parent.is_none(), "{} was entered", dir.path().display());
            Some(())
        }

        fn not_opened(&self, dir: &Position<'_, ()>, cause: Errno) {
            assert_eq!((dir.name, matches!(cause, Errno::NOTDIR | Errno::LOOP)), (c"victim", true));
            self.refused.fetch_add(1, Ordering::Relaxed);
        }

        fn entry(&self, _: &Dir<()>, name: &CStr, kind: FileType) -> Next {
            assert_eq!((name, kind), (c"victim", FileType::Directory));
            fs::remove_dir(self.tree.join("victim")).unwrap();
            symlink("..", self.tree.join("victim")).unwrap();
            Next::Descend
        }

        fn not_read(&self, _: &Dir<()>, cause: Errno) {
            panic!("{cause}");
        }

        fn leave(&self, _: &Dir<()>) {}
    }

    #[test]
    fn a_directory_that_became_a_symlink_is_not_entered() {
        for mounts in [Mounts::Cross, Mounts::Refuse] {
            let dir = tempfile::tempdir().unwrap();
            let tree = dir.path().join("tree");
            fs::create_dir_all(tree.join("victim")).unwrap();
            let visitor = Replacing { tree: &tree, refused: AtomicUsize::new(0) };
            let root = CString::new(tree.as_os_str().as_bytes()).unwrap();
            walk(root, mounts, &visitor, &AtomicBool::new(false));
            assert_eq!(visitor.refused.into_inner(), 1);
        }
    }
}
