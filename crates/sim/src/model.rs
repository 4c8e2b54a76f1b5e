//! A naive file system: in-memory maps, sequential operations, correct by inspection.

use std::collections::BTreeMap;
use std::rc::Rc;
use types::Errno;

/// Number of a node in the model; never reused.
pub type NodeId = u64;

/// The root directory.
pub const ROOT: NodeId = 1;

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Node {
    /// Content and link count.
    File { content: Rc<Vec<u8>>, links: u32 },
    /// Entries by name.
    Directory { entries: BTreeMap<String, NodeId> },
}

/// The whole tree. A clone is cheap enough to retain one for every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
}

/// The result of an operation as applications see it.
pub type Outcome<T> = Result<T, Errno>;

impl Default for Model {
    fn default() -> Model {
        Model {
            nodes: BTreeMap::from([(ROOT, Node::Directory { entries: BTreeMap::new() })]),
            next: ROOT + 1,
        }
    }
}

impl Model {
    /// Returns a node, if it exists.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// Resolves a path of names separated by `/`; the empty path is the root.
    pub fn walk(&self, path: &str) -> Outcome<NodeId> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(ROOT, |dir, name| self.lookup(dir, name))
    }

    fn lookup(&self, dir: NodeId, name: &str) -> Outcome<NodeId> {
        self.entries(dir)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    /// Returns the entries of a directory.
    pub fn entries(&self, dir: NodeId) -> Outcome<&BTreeMap<String, NodeId>> {
        match self.nodes.get(&dir) {
            Some(Node::Directory { entries }) => Ok(entries),
            Some(Node::File { .. }) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn entries_mut(&mut self, dir: NodeId) -> Outcome<&mut BTreeMap<String, NodeId>> {
        match self.nodes.get_mut(&dir) {
            Some(Node::Directory { entries }) => Ok(entries),
            Some(Node::File { .. }) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn parent_of(&self, path: &str) -> Outcome<(NodeId, String)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.walk(parent)?;
        self.entries(dir)?;
        Ok((dir, name.to_owned()))
    }

    fn make(&mut self, path: &str, node: Node) -> Outcome<NodeId> {
        let (dir, name) = self.parent_of(path)?;
        if self.entries(dir)?.contains_key(&name) {
            return Err(Errno::EEXIST);
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.entries_mut(dir)?.insert(name, id);
        Ok(id)
    }

    /// Creates an empty file.
    pub fn create(&mut self, path: &str) -> Outcome<NodeId> {
        self.make(path, Node::File { content: Rc::default(), links: 1 })
    }

    /// Creates a directory.
    pub fn mkdir(&mut self, path: &str) -> Outcome<NodeId> {
        self.make(path, Node::Directory { entries: BTreeMap::new() })
    }

    fn drop_link(&mut self, id: NodeId) {
        match self.nodes.get_mut(&id) {
            Some(Node::File { links, .. }) => *links -= 1,
            Some(Node::Directory { .. }) => drop(self.nodes.remove(&id)),
            None => {}
        }
    }

    /// Removes a name of a file. The node remains, since the file may be open.
    pub fn unlink(&mut self, path: &str) -> Outcome<()> {
        let (dir, name) = self.parent_of(path)?;
        let id = self.lookup(dir, &name)?;
        if matches!(self.nodes[&id], Node::Directory { .. }) {
            return Err(Errno::EISDIR);
        }
        self.entries_mut(dir)?.remove(&name);
        self.drop_link(id);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, path: &str) -> Outcome<()> {
        let (dir, name) = self.parent_of(path)?;
        let id = self.lookup(dir, &name)?;
        if !self.entries(id)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.entries_mut(dir)?.remove(&name);
        self.nodes.remove(&id);
        Ok(())
    }

    /// Adds a name to a file.
    pub fn link(&mut self, from: &str, to: &str) -> Outcome<()> {
        let id = self.walk(from)?;
        let (dir, name) = self.parent_of(to)?;
        if self.entries(dir)?.contains_key(&name) {
            return Err(Errno::EEXIST);
        }
        if matches!(self.nodes[&id], Node::Directory { .. }) {
            return Err(Errno::EPERM);
        }
        self.entries_mut(dir)?.insert(name, id);
        if let Some(Node::File { links, .. }) = self.nodes.get_mut(&id) {
            *links += 1;
        }
        Ok(())
    }

    /// Renames, and replaces an existing target as POSIX allows.
    pub fn rename(&mut self, from: &str, to: &str) -> Outcome<()> {
        let (from_dir, from_name) = self.parent_of(from)?;
        let id = self.lookup(from_dir, &from_name)?;
        let (to_dir, to_name) = self.parent_of(to)?;
        let moved_is_dir = matches!(self.nodes[&id], Node::Directory { .. });
        if moved_is_dir && self.is_within(to_dir, id) {
            return Err(Errno::EINVAL);
        }
        if let Some(&old) = self.entries(to_dir)?.get(&to_name) {
            if old == id {
                return Ok(());
            }
            match (&self.nodes[&old], moved_is_dir) {
                (Node::Directory { .. }, false) => return Err(Errno::EISDIR),
                (Node::File { .. }, true) => return Err(Errno::ENOTDIR),
                (Node::Directory { entries }, true) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => self.drop_link(old),
            }
        }
        self.entries_mut(from_dir)?.remove(&from_name);
        self.entries_mut(to_dir)?.insert(to_name, id);
        Ok(())
    }

    /// Returns true if `dir` is `top` or a descendant of it.
    fn is_within(&self, dir: NodeId, top: NodeId) -> bool {
        dir == top
            || match self.nodes.get(&top) {
                Some(Node::Directory { entries }) => {
                    entries.values().any(|&child| self.is_within(dir, child))
                }
                _ => false,
            }
    }

    /// Returns the content of a file, including an unlinked one.
    pub fn content(&self, id: NodeId) -> Rc<Vec<u8>> {
        match self.nodes.get(&id) {
            Some(Node::File { content, .. }) => content.clone(),
            _ => Rc::default(),
        }
    }

    /// Changes a file's content.
    pub fn edit(&mut self, id: NodeId, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(Node::File { content, .. }) = self.nodes.get_mut(&id) {
            change(Rc::make_mut(content));
        }
    }

    /// Returns the link count of a file.
    pub fn links(&self, id: NodeId) -> u32 {
        match self.nodes.get(&id) {
            Some(Node::File { links, .. }) => *links,
            _ => 0,
        }
    }

    /// Returns every path with its node, in path order: a directory precedes its entries.
    pub fn paths(&self) -> BTreeMap<String, NodeId> {
        let mut paths = BTreeMap::new();
        self.collect(ROOT, "", &mut paths);
        paths
    }

    fn collect(&self, dir: NodeId, prefix: &str, paths: &mut BTreeMap<String, NodeId>) {
        let Ok(entries) = self.entries(dir) else { return };
        for (name, &id) in entries {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            if matches!(self.nodes[&id], Node::Directory { .. }) {
                self.collect(id, &path, paths);
            }
            paths.insert(path, id);
        }
    }
}
