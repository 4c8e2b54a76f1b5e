//! A naive file system: a vector of nodes; all counts are computed on demand.

use super::INLINE_LIMIT;
use super::action::{Action, Pick};
use crate::support::bytes;
use std::collections::BTreeMap;
use types::mode::{S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_IXGRP};
use types::{Errno, InodeFlags, InodeId, ProjectId, SetAttr};
use wire::{MetaOp, RenameMode, XattrMode};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const XATTRS: [&str; 4] = ["user.a", "user.b", "trusted.c", "security.d"];
const TARGET: &str = "where/it/leads";
const UID: u32 = 1000;
const GID: u32 = 100;
const IMMUTABLE: u32 = 1;
const APPEND: u32 = 2;
const NODUMP: u32 = 4;
const INHERIT: u32 = 8;

pub enum Content {
    Directory { entries: BTreeMap<&'static str, usize>, parent: usize, removed: bool },
    File(Vec<u8>),
    Symlink(&'static str),
    Fifo,
}

pub struct Node {
    pub ino: InodeId,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub flags: u32,
    pub project: u32,
    pub mtime: i64,
    pub ctime: i64,
    pub xattrs: BTreeMap<&'static str, Vec<u8>>,
    pub content: Content,
    /// Created without a name and never given one.
    nameless: bool,
    pub reclaimed: bool,
}

pub struct Model {
    pub nodes: Vec<Node>,
}

/// The kind of inode to remove.
#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Directory,
    NoDirectory,
}

/// The result of an action: the index of a new node, if any.
type Made = Result<Option<usize>, Errno>;

impl Model {
    pub fn new(now: i64) -> Model {
        let content = Content::Directory { entries: BTreeMap::new(), parent: 0, removed: false };
        let root = Node {
            ino: InodeId::ROOT,
            mode: S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            flags: 0,
            project: 0,
            mtime: 1,
            ctime: now,
            xattrs: BTreeMap::new(),
            content,
            nameless: false,
            reclaimed: false,
        };
        Model { nodes: vec![root] }
    }

    fn pick(&self, pick: Pick) -> usize {
        match pick {
            Pick::Any(index) => index as usize % self.nodes.len(),
            Pick::Directory(index) => {
                let directories: Vec<usize> =
                    (0..self.nodes.len()).filter(|&node| self.is_directory(node)).collect();
                directories[index as usize % directories.len()]
            }
        }
    }

    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].content, Content::Directory { .. })
    }

    /// The number of names of a node; for a directory, 2 plus its subdirectories.
    pub fn links(&self, node: usize) -> u32 {
        if let Content::Directory { entries, removed, .. } = &self.nodes[node].content {
            let subdirectories = entries.values().filter(|&&child| self.is_directory(child)).count() as u32;
            return if *removed { 0 } else { 2 + subdirectories };
        }
        let named = |directory: &Node| match &directory.content {
            Content::Directory { entries, .. } => entries.values().filter(|&&child| child == node).count(),
            _ => 0,
        };
        self.nodes.iter().map(named).sum::<usize>() as u32
    }

    /// The command of an action.
    pub fn command(&self, action: &Action) -> MetaOp {
        let ino = |pick: Pick| self.nodes[self.pick(pick)].ino;
        let named = |name: u8| bytes(NAMES[name as usize]);
        match action {
            &Action::Create { dir, name, mode, exclusive } => MetaOp::Create {
                parent: ino(dir),
                name: named(name),
                mode: created_type(mode) | mode,
                umask: 0o022,
                rdev: 0,
                exclusive,
                requested_lease: None,
            },
            &Action::Mkdir { dir, name, mode } => {
                MetaOp::Mkdir { parent: ino(dir), name: named(name), mode: mode & 0o1777, umask: 0o022 }
            }
            &Action::Symlink { dir, name } => {
                MetaOp::Symlink { parent: ino(dir), name: named(name), target: bytes(TARGET) }
            }
            &Action::Tmpfile { dir } => MetaOp::Tmpfile { parent: ino(dir), mode: 0o666, umask: 0o022 },
            &Action::Link { of, dir, name } => {
                MetaOp::Link { ino: ino(of), parent: ino(dir), name: named(name) }
            }
            &Action::Unlink { dir, name } => {
                MetaOp::Unlink { parent: ino(dir), name: named(name), ino: None }
            }
            &Action::Rmdir { dir, name } => MetaOp::Rmdir { parent: ino(dir), name: named(name) },
            &Action::Rename { dir, name, new_dir, new_name, mode } => MetaOp::Rename {
                parent: ino(dir),
                name: named(name),
                new_parent: ino(new_dir),
                new_name: named(new_name),
                mode,
            },
            &Action::SetMode { of, permissions } => {
                let set = SetAttr { mode: Some(permissions), ..SetAttr::default() };
                MetaOp::Setattr { ino: ino(of), set }
            }
            &Action::SetOwner { of, uid, gid } => {
                MetaOp::Setattr { ino: ino(of), set: SetAttr { uid, gid, ..SetAttr::default() } }
            }
            &Action::SetFlags { of, flags, project } => {
                let (flags, project) = (Some(InodeFlags(flags)), project.map(ProjectId));
                MetaOp::Setattr { ino: ino(of), set: SetAttr { flags, project, ..SetAttr::default() } }
            }
            Action::WriteInline { of, offset, data, kill } => MetaOp::WriteInline {
                ino: ino(*of),
                offset: *offset as u64,
                data: data.clone().into(),
                kill_suid_sgid: *kill,
                at_end: false,
            },
            &Action::Truncate { of, size } => {
                MetaOp::Truncate { ino: ino(of), size: size as u64, kill_suid_sgid: false }
            }
            Action::SetXattr { of, name, value, mode } => MetaOp::SetXattr {
                ino: ino(*of),
                name: bytes(XATTRS[*name as usize]),
                value: value.clone().into(),
                mode: *mode,
                kill_sgid: false,
            },
            &Action::RemoveXattr { of, name } => {
                MetaOp::RemoveXattr { ino: ino(of), name: bytes(XATTRS[name as usize]) }
            }
            &Action::Reclaim { of } => MetaOp::Reclaim { ino: ino(of), others: Vec::new() },
            &Action::Lookup { dir, name } => MetaOp::Lookup { parent: ino(dir), name: named(name) },
        }
    }

    /// Executes an action at time `now`.
    pub fn apply(&mut self, action: &Action, now: i64) -> Made {
        let named = |name: u8| NAMES[name as usize];
        match action {
            &Action::Create { dir, name, mode, exclusive } => {
                let dir = self.pick(dir);
                match self.existing(dir, named(name))? {
                    Some(_) if exclusive => Err(Errno::EEXIST),
                    Some(_) => Ok(None),
                    None => {
                        self.may_add(dir)?;
                        let (kind, content) = match created_type(mode) {
                            S_IFIFO => (S_IFIFO, Content::Fifo),
                            _ => (S_IFREG, Content::File(Vec::new())),
                        };
                        self.make(dir, Some(named(name)), kind | mode & !0o022, content, now)
                    }
                }
            }
            &Action::Mkdir { dir, name, mode } => {
                let dir = self.pick(dir);
                self.must_be_free(dir, named(name))?;
                let setgid = self.nodes[dir].mode & S_ISGID;
                let content = Content::Directory { entries: BTreeMap::new(), parent: dir, removed: false };
                self.make(dir, Some(named(name)), S_IFDIR | mode & 0o1755 | setgid, content, now)
            }
            &Action::Symlink { dir, name } => {
                let dir = self.pick(dir);
                self.must_be_free(dir, named(name))?;
                self.make(dir, Some(named(name)), S_IFLNK | 0o777, Content::Symlink(TARGET), now)
            }
            &Action::Tmpfile { dir } => {
                let dir = self.pick(dir);
                self.live_entries(dir)?;
                self.may_add(dir)?;
                self.make(dir, None, S_IFREG | 0o644, Content::File(Vec::new()), now)
            }
            &Action::Link { of, dir, name } => self.link(self.pick(of), self.pick(dir), named(name), now),
            &Action::Unlink { dir, name } => {
                self.remove(self.pick(dir), named(name), now, Victim::NoDirectory)
            }
            &Action::Rmdir { dir, name } => self.remove(self.pick(dir), named(name), now, Victim::Directory),
            &Action::Rename { dir, name, new_dir, new_name, mode } => {
                let from = (self.pick(dir), named(name));
                let to = (self.pick(new_dir), named(new_name));
                self.rename(from, to, mode, now)
            }
            &Action::Reclaim { of } => {
                let of = self.pick(of);
                self.nodes[of].reclaimed = self.nodes[of].reclaimed || self.links(of) == 0;
                Ok(None)
            }
            &Action::Lookup { dir, name } => {
                let found = self.entries(self.pick(dir))?.contains_key(named(name));
                if found { Ok(None) } else { Err(Errno::ENOENT) }
            }
            change => self.change(change, now).map(|()| None),
        }
    }

    /// Executes an action on one inode.
    fn change(&mut self, action: &Action, now: i64) -> Result<(), Errno> {
        match action {
            &Action::SetMode { of, permissions } => {
                let node = self.live(of)?;
                node.may_change()?;
                node.mode = node.mode & S_IFMT | permissions;
                node.ctime = now;
            }
            &Action::SetOwner { of, uid, gid } => {
                let node = self.live(of)?;
                if uid.is_some() || gid.is_some() {
                    node.may_change()?;
                }
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
                if node.mode & S_IFMT != S_IFDIR && (uid.is_some() || gid.is_some()) {
                    node.drop_privileges();
                }
                node.ctime = now;
            }
            &Action::SetFlags { of, flags, project } => {
                let node = self.live(of)?;
                let is_directory = matches!(node.content, Content::Directory { .. });
                if !is_directory && !matches!(node.content, Content::File(_)) {
                    return Err(Errno::EOPNOTSUPP);
                }
                node.flags = if is_directory { flags } else { flags & !INHERIT };
                node.project = project.unwrap_or(node.project);
                node.ctime = now;
            }
            Action::WriteInline { of, offset, data, kill } => {
                let node = self.live(*of)?;
                let content = node.file()?;
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if end as u64 > INLINE_LIMIT {
                    return Err(Errno::ERANGE);
                }
                if data.is_empty() {
                    return Ok(());
                }
                content.resize(content.len().max(end), 0);
                content[start..end].copy_from_slice(data);
                (node.mtime, node.ctime) = (now, now);
                if *kill {
                    node.drop_privileges();
                }
            }
            &Action::Truncate { of, size } => {
                let node = self.live(of)?;
                node.file()?;
                node.may_change()?;
                node.file()?.resize(size as usize, 0);
                (node.mtime, node.ctime) = (now, now);
            }
            Action::SetXattr { of, name, value, mode } => {
                let node = self.live(*of)?;
                node.may_change()?;
                let name = XATTRS[*name as usize];
                match (mode, node.xattrs.contains_key(name)) {
                    (XattrMode::Create, true) => return Err(Errno::EEXIST),
                    (XattrMode::Replace, false) => return Err(Errno::ENODATA),
                    _ => {}
                }
                node.xattrs.insert(name, value.clone());
                node.ctime = now;
            }
            &Action::RemoveXattr { of, name } => {
                let node = self.live(of)?;
                node.may_change()?;
                node.xattrs.remove(XATTRS[name as usize]).ok_or(Errno::ENODATA)?;
                node.ctime = now;
            }
            action => panic!("{action:?} is no change of one inode"),
        }
        Ok(())
    }

    fn live(&mut self, pick: Pick) -> Result<&mut Node, Errno> {
        let index = self.pick(pick);
        let node = &mut self.nodes[index];
        if node.reclaimed { Err(Errno::ESTALE) } else { Ok(node) }
    }

    fn entries(&self, dir: usize) -> Result<&BTreeMap<&'static str, usize>, Errno> {
        match &self.nodes[dir] {
            Node { reclaimed: true, .. } => Err(Errno::ENOENT),
            Node { content: Content::Directory { entries, .. }, .. } => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn live_entries(&self, dir: usize) -> Result<&BTreeMap<&'static str, usize>, Errno> {
        let entries = self.entries(dir)?;
        if self.links(dir) == 0 { Err(Errno::ENOENT) } else { Ok(entries) }
    }

    fn entries_mut(&mut self, dir: usize) -> &mut BTreeMap<&'static str, usize> {
        match &mut self.nodes[dir].content {
            Content::Directory { entries, .. } => entries,
            _ => panic!("node {dir} is no directory"),
        }
    }

    fn existing(&self, dir: usize, name: &str) -> Result<Option<usize>, Errno> {
        Ok(self.live_entries(dir)?.get(name).copied())
    }

    fn must_be_free(&self, dir: usize, name: &str) -> Result<(), Errno> {
        if self.existing(dir, name)?.is_some() { Err(Errno::EEXIST) } else { self.may_add(dir) }
    }

    fn may_add(&self, dir: usize) -> Result<(), Errno> {
        if self.nodes[dir].flags & IMMUTABLE != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn may_remove(&self, dir: usize, node: usize) -> Result<(), Errno> {
        self.nodes[dir].may_change().and(self.nodes[node].may_change())
    }

    fn may_enter(&self, dir: usize, node: usize) -> Result<(), Errno> {
        let (dir, node) = (&self.nodes[dir], &self.nodes[node]);
        if dir.flags & INHERIT != 0 && dir.project != node.project { Err(Errno::EXDEV) } else { Ok(()) }
    }

    fn stamp_directory(&mut self, dir: usize, now: i64) {
        (self.nodes[dir].mtime, self.nodes[dir].ctime) = (now, now);
    }

    fn make(
        &mut self,
        dir: usize,
        name: Option<&'static str>,
        mode: u32,
        content: Content,
        now: i64,
    ) -> Made {
        let new = self.nodes.len();
        let parent = &self.nodes[dir];
        let handed_down = match content {
            Content::Directory { .. } => NODUMP | INHERIT,
            Content::File(_) => NODUMP,
            _ => 0,
        };
        self.nodes.push(Node {
            ino: InodeId(0),
            mode,
            uid: UID,
            gid: if parent.mode & S_ISGID != 0 { parent.gid } else { GID },
            flags: parent.flags & handed_down,
            project: if parent.flags & INHERIT != 0 { parent.project } else { 0 },
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            content,
            nameless: name.is_none(),
            reclaimed: false,
        });
        if let Some(name) = name {
            self.entries_mut(dir).insert(name, new);
            self.stamp_directory(dir, now);
        }
        Ok(Some(new))
    }

    fn link(&mut self, of: usize, dir: usize, name: &'static str, now: i64) -> Made {
        self.must_be_free(dir, name)?;
        let links = self.links(of);
        let node = &mut self.nodes[of];
        if node.reclaimed {
            return Err(Errno::ENOENT);
        }
        node.may_change()?;
        if matches!(node.content, Content::Directory { .. }) {
            return Err(Errno::EPERM);
        }
        if links == 0 && !node.nameless {
            return Err(Errno::ENOENT);
        }
        self.may_enter(dir, of)?;
        let node = &mut self.nodes[of];
        node.nameless = false;
        node.ctime = now;
        self.entries_mut(dir).insert(name, of);
        self.stamp_directory(dir, now);
        Ok(None)
    }

    fn remove(&mut self, dir: usize, name: &'static str, now: i64, victim: Victim) -> Made {
        let node = *self.entries(dir)?.get(name).ok_or(Errno::ENOENT)?;
        self.may_remove(dir, node)?;
        match (victim == Victim::Directory, self.is_directory(node)) {
            (false, true) => return Err(Errno::EISDIR),
            (true, false) => return Err(Errno::ENOTDIR),
            (true, true) if !self.entries(node)?.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.entries_mut(dir).remove(name);
        self.drop_name(node, now);
        self.stamp_directory(dir, now);
        Ok(None)
    }

    fn drop_name(&mut self, node: usize, now: i64) {
        self.nodes[node].ctime = now;
        if let Content::Directory { removed, .. } = &mut self.nodes[node].content {
            *removed = true;
        }
    }

    /// Whether `node` is `above` or somewhere below it.
    fn is_within(&self, node: usize, above: usize) -> bool {
        let mut at = node;
        loop {
            match self.nodes[at].content {
                _ if at == above => return true,
                Content::Directory { parent, .. } if at != 0 => at = parent,
                _ => return false,
            }
        }
    }

    fn rename(
        &mut self,
        (dir, name): (usize, &'static str),
        (new_dir, new_name): (usize, &'static str),
        mode: RenameMode,
        now: i64,
    ) -> Made {
        self.entries(dir)?;
        self.live_entries(new_dir)?;
        let moving = *self.entries(dir)?.get(name).ok_or(Errno::ENOENT)?;
        let target = self.existing(new_dir, new_name)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.is_directory(moving) && self.is_within(new_dir, moving) {
            return Err(Errno::EINVAL);
        }
        if target == Some(moving) {
            return Ok(None);
        }
        self.may_remove(dir, moving)?;
        match target {
            Some(target) => self.may_remove(new_dir, target)?,
            None => self.may_add(new_dir)?,
        }
        if dir != new_dir {
            self.may_enter(new_dir, moving)?;
            target
                .filter(|_| mode == RenameMode::Exchange)
                .map_or(Ok(()), |target| self.may_enter(dir, target))?;
        }
        if let Some(target) = target {
            self.check_target(moving, target, dir, mode)?;
        }
        self.entries_mut(dir).remove(name);
        self.place(new_dir, new_name, moving, now);
        match (mode, target) {
            (RenameMode::Exchange, Some(other)) => self.place(dir, name, other, now),
            (_, Some(replaced)) => self.drop_name(replaced, now),
            _ => {}
        }
        self.stamp_directory(dir, now);
        self.stamp_directory(new_dir, now);
        Ok(None)
    }

    fn check_target(&self, moving: usize, target: usize, dir: usize, mode: RenameMode) -> Result<(), Errno> {
        if mode == RenameMode::Exchange {
            let inside = self.is_directory(target) && self.is_within(dir, target);
            return if inside { Err(Errno::EINVAL) } else { Ok(()) };
        }
        match (self.is_directory(moving), self.is_directory(target)) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) if !self.entries(target)?.is_empty() => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Adds the name of a node that has moved.
    fn place(&mut self, dir: usize, name: &'static str, node: usize, now: i64) {
        self.entries_mut(dir).insert(name, node);
        self.nodes[node].ctime = now;
        if let Content::Directory { parent, .. } = &mut self.nodes[node].content {
            *parent = dir;
        }
    }
}

impl Node {
    fn file(&mut self) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.content {
            Content::File(content) => Ok(content),
            Content::Directory { .. } => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    fn may_change(&self) -> Result<(), Errno> {
        if self.flags & (IMMUTABLE | APPEND) != 0 { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn drop_privileges(&mut self) {
        self.mode &= !S_ISUID;
        if self.mode & S_IXGRP != 0 {
            self.mode &= !S_ISGID;
        }
    }
}

/// One of the modes makes fifos, so that not all nodes are files.
fn created_type(mode: u32) -> u32 {
    if mode == 0o644 { S_IFIFO } else { S_IFREG }
}
