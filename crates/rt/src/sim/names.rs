//! The names on the simulated disk: those that programs see, those that survive a crash, and the
//! changes between the two.

use super::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// Unsynced name changes. Above this the oldest are written to disk, as by the journal's commits.
const MAX_UNSYNCED_CHANGES: usize = 4096;

/// The object that a name refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    Dir,
    File(u64),
}

type Tree = BTreeMap<PathBuf, Node>;

/// A change of names. It contains the node, so that it keeps its meaning after earlier changes were
/// lost.
#[derive(Clone)]
enum Edit {
    Add { path: PathBuf, node: Node },
    Remove { path: PathBuf, node: Node },
    Rename { from: PathBuf, to: PathBuf, node: Node },
}

impl Edit {
    fn paths(&self) -> Vec<&Path> {
        match self {
            Edit::Add { path, .. } | Edit::Remove { path, .. } => vec![path],
            Edit::Rename { from, to, .. } => vec![from, to],
        }
    }

    fn node(&self) -> Node {
        match self {
            Edit::Add { node, .. } | Edit::Remove { node, .. } | Edit::Rename { node, .. } => *node,
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        self.paths().iter().any(|path| path.parent() == Some(dir))
    }

    fn apply(&self, tree: &mut Tree) {
        match self {
            Edit::Add { path, node } => add(tree, path, *node),
            Edit::Remove { path, node } => {
                if tree.get(path) == Some(node) {
                    tree.remove(path);
                }
            }
            Edit::Rename { to, node, .. } => {
                // An earlier rename that was lost may have left the file elsewhere: a file has one
                // name.
                tree.retain(|_, other| other != node);
                add(tree, to, *node);
            }
        }
    }
}

/// Adds a name with the directories above it: the journal that contains the name contains them too.
fn add(tree: &mut Tree, path: &Path, node: Node) {
    for dir in path.ancestors().skip(1).filter(|dir| !is_root(dir)) {
        tree.entry(dir.to_path_buf()).or_insert(Node::Dir);
    }
    tree.insert(path.to_path_buf(), node);
}

fn is_root(path: &Path) -> bool {
    path.parent().is_none()
}

/// All names.
#[derive(Default)]
pub(super) struct Names {
    visible: Tree,
    durable: Tree,
    /// Changes with their sequence numbers, oldest first: applied to `durable` they result in
    /// `visible`.
    unsynced: Vec<(u64, Edit)>,
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<Node> {
        if is_root(path) { Some(Node::Dir) } else { self.visible.get(path).copied() }
    }

    /// The file with a name.
    pub(super) fn file(&self, path: &Path) -> io::Result<u64> {
        match self.get(path) {
            Some(Node::File(ino)) => Ok(ino),
            Some(Node::Dir) => Err(errno(libc::EISDIR)),
            None => Err(errno(libc::ENOENT)),
        }
    }

    /// Checks that a path is a directory.
    pub(super) fn directory(&self, path: &Path) -> io::Result<()> {
        match self.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(errno(libc::ENOTDIR)),
            None => Err(errno(libc::ENOENT)),
        }
    }

    /// The paths in a directory.
    pub(super) fn list<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        // Paths are ordered by their components, so the contents of a directory follow it.
        let below = self.visible.range::<Path, _>((Bound::Excluded(dir), Bound::Unbounded));
        let below = below.take_while(move |(path, _)| path.starts_with(dir));
        below.map(|(path, _)| path.as_path()).filter(move |path| path.parent() == Some(dir))
    }

    /// Adds a name whose directory exists.
    pub(super) fn add(&mut self, sequence: u64, path: &Path, node: Node) -> io::Result<()> {
        self.directory(path.parent().ok_or_else(|| errno(libc::EEXIST))?)?;
        self.change(sequence, Edit::Add { path: path.to_path_buf(), node });
        Ok(())
    }

    /// Removes a file's name and returns the file.
    pub(super) fn remove(&mut self, sequence: u64, path: &Path) -> io::Result<u64> {
        let ino = self.file(path)?;
        self.change(sequence, Edit::Remove { path: path.to_path_buf(), node: Node::File(ino) });
        Ok(ino)
    }

    /// Renames a file and returns the one that it replaces, if any.
    pub(super) fn rename(&mut self, sequence: u64, from: &Path, to: &Path) -> io::Result<Option<u64>> {
        let ino = self.file(from)?;
        self.directory(to.parent().ok_or_else(|| errno(libc::EISDIR))?)?;
        let replaced = match self.get(to) {
            Some(Node::Dir) => return Err(errno(libc::EISDIR)),
            Some(Node::File(other)) => Some(other),
            None => None,
        };
        if from != to {
            let (from, to) = (from.to_path_buf(), to.to_path_buf());
            self.change(sequence, Edit::Rename { from, to, node: Node::File(ino) });
        }
        Ok(replaced.filter(|other| *other != ino))
    }

    /// Makes the names in a directory durable as they were at `up_to`.
    pub(super) fn sync_dir(&mut self, dir: &Path, up_to: u64) {
        self.sync(|sequence, edit| sequence <= up_to && edit.is_in(dir));
    }

    /// Makes the name under which a file was created durable, as a sync of the file does on XFS and
    /// ext4. Renames are not made durable: those file systems don't promise it.
    pub(super) fn sync_file(&mut self, ino: u64) {
        self.sync(|_, edit| matches!(edit, Edit::Add { .. }) && edit.node() == Node::File(ino));
    }

    /// Makes all names durable as they were at `up_to`.
    pub(super) fn sync_all(&mut self, up_to: u64) {
        self.sync(|sequence, _| sequence <= up_to);
    }

    /// Simulates a power failure: each unsynced change is retained or lost.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        for (_, edit) in std::mem::take(&mut self.unsynced) {
            if rng.coin() {
                edit.apply(&mut self.durable);
            }
        }
        self.visible = self.durable.clone();
    }

    /// Files that programs see, or might see after a crash.
    pub(super) fn reachable(&self) -> BTreeSet<u64> {
        let nodes = self.visible.values().chain(self.durable.values()).copied();
        let files = nodes.chain(self.unsynced.iter().map(|(_, edit)| edit.node()));
        files.filter_map(|node| if let Node::File(ino) = node { Some(ino) } else { None }).collect()
    }

    fn change(&mut self, sequence: u64, edit: Edit) {
        edit.apply(&mut self.visible);
        self.unsynced.push((sequence, edit));
        if self.unsynced.len() > MAX_UNSYNCED_CHANGES {
            let (_, oldest) = self.unsynced.remove(0);
            oldest.apply(&mut self.durable);
        }
    }

    /// Makes the chosen changes durable, and with them earlier ones of the same names: those must
    /// not undo them after a crash.
    fn sync(&mut self, chosen: impl Fn(u64, &Edit) -> bool) {
        let mut names: BTreeSet<PathBuf> = BTreeSet::new();
        let mut taken = Vec::new();
        let mut left = Vec::new();
        for (sequence, edit) in std::mem::take(&mut self.unsynced).into_iter().rev() {
            if chosen(sequence, &edit) || edit.paths().into_iter().any(|path| names.contains(path)) {
                names.extend(edit.paths().into_iter().map(Path::to_path_buf));
                taken.push(edit);
            } else {
                left.push((sequence, edit));
            }
        }
        left.reverse();
        self.unsynced = left;
        taken.into_iter().rev().for_each(|edit| edit.apply(&mut self.durable));
    }
}

pub(super) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_after_crash(seed: u64, prepare: impl Fn(&mut Names)) -> Vec<(PathBuf, Node)> {
        let mut names = Names::default();
        prepare(&mut names);
        names.crash(&mut Rng::new(seed));
        names.visible.into_iter().collect()
    }

    #[test]
    fn a_synced_name_survives_changes_that_preceded_it() {
        for seed in 0..64 {
            let left = names_after_crash(seed, |names| {
                names.add(1, Path::new("/a"), Node::File(1)).unwrap();
                names.sync_all(1);
                names.remove(2, Path::new("/a")).unwrap();
                names.add(3, Path::new("/x"), Node::File(2)).unwrap();
                names.rename(4, Path::new("/x"), Path::new("/a")).unwrap();
                names.remove(5, Path::new("/a")).unwrap();
                names.add(6, Path::new("/a"), Node::File(3)).unwrap();
                names.sync_file(3);
            });
            assert_eq!(left, [(PathBuf::from("/a"), Node::File(3))], "seed {seed}");
        }
    }

    #[test]
    fn a_file_never_has_two_names() {
        for seed in 0..64 {
            let left = names_after_crash(seed, |names| {
                names.add(1, Path::new("/a"), Node::File(1)).unwrap();
                names.rename(2, Path::new("/a"), Path::new("/b")).unwrap();
                names.rename(3, Path::new("/b"), Path::new("/c")).unwrap();
            });
            assert!(left.len() <= 1, "seed {seed}: {left:?}");
        }
    }

    #[test]
    fn a_name_keeps_the_directories_above_it() {
        let mut names = Names::default();
        names.add(1, Path::new("/d"), Node::Dir).unwrap();
        names.add(2, Path::new("/d/f"), Node::File(1)).unwrap();
        names.sync_file(1);
        names.unsynced.clear();
        names.crash(&mut Rng::new(0));
        assert_eq!(names.get(Path::new("/d")), Some(Node::Dir));
        assert_eq!(names.list(Path::new("/d")).collect::<Vec<_>>(), [Path::new("/d/f")]);
    }
}
