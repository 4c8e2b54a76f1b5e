//! Executes operations on the real client core, and reads the whole tree for verification.

use crate::model::Outcome;
use crate::operation::{Operation, bytes_of};
use client::{CachedAttr, Client, Handle, ReadOptions, WriteOptions};
use rt::IoBuf;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Attr, ByteRange, Credentials, Errno, FileKind, InodeId, Result, SetAttr};
use wire::RenameMode;

/// Maximum number of files that a run holds open across operations.
pub const MAX_HELD: usize = 4;

const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };
const O_EXCL_RDWR: u32 = 0o202;
const PUNCH_KEEP_SIZE: u32 = 0x03;

/// What an operation returned to the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// Success without a result.
    Done,
    /// Bytes read.
    Bytes(Vec<u8>),
    /// Size and link count of a file; `None` for a directory.
    Stat(Option<(u64, u32)>),
    /// Names in a directory, sorted.
    Names(Vec<String>),
}

/// A file or directory found after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundNode {
    /// Inode number.
    pub ino: InodeId,
    /// Content and link count; `None` for a directory.
    pub file: Option<(Vec<u8>, u32)>,
}

/// A client and the files that it holds open.
pub struct Driver {
    client: Arc<Client>,
    held: Vec<Arc<Handle>>,
}

impl Driver {
    /// Creates a driver without open files.
    pub fn new(client: Arc<Client>) -> Driver {
        Driver { client, held: Vec::new() }
    }

    /// Resolves a path like a kernel without caches.
    async fn walk(&self, path: &str) -> Result<CachedAttr> {
        let mut attr = self.client.getattr(InodeId::ROOT).await?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            attr = self.client.lookup(ROOT_USER, attr.ino, name.as_bytes()).await?;
            self.client.forget(attr.ino, 1);
        }
        Ok(attr)
    }

    async fn parent<'p>(&self, path: &'p str) -> Result<(InodeId, &'p [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let attr = self.walk(parent).await?;
        if attr.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        Ok((attr.ino, name.as_bytes()))
    }

    async fn open_file(&self, path: &str) -> Result<Arc<Handle>> {
        let attr = self.walk(path).await?;
        if attr.kind() == FileKind::Directory {
            return Err(Errno::EISDIR.into());
        }
        self.client.open(ROOT_USER, attr.ino, 0o2).await
    }

    /// Executes one operation.
    pub async fn run(&mut self, operation: &Operation) -> Outcome<OperationResult> {
        self.try_run(operation).await.map_err(|error| error.errno)
    }

    async fn try_run(&mut self, operation: &Operation) -> Result<OperationResult> {
        let client = self.client.clone();
        match operation {
            Operation::Create { path } => {
                let (dir, name) = self.parent(path).await?;
                let (attr, handle) = client.create(ROOT_USER, dir, name, 0o100644, 0, O_EXCL_RDWR).await?;
                client.release(handle).await;
                client.forget(attr.ino, 1);
            }
            Operation::Mkdir { path } => {
                let (dir, name) = self.parent(path).await?;
                let attr = client.mkdir(ROOT_USER, dir, name, 0o755, 0).await?;
                client.forget(attr.ino, 1);
            }
            Operation::Unlink { path } => {
                let (dir, name) = self.parent(path).await?;
                client.unlink(ROOT_USER, dir, name).await?;
            }
            Operation::Rmdir { path } => {
                let (dir, name) = self.parent(path).await?;
                client.rmdir(ROOT_USER, dir, name).await?;
            }
            Operation::Link { from, to } => {
                let attr = self.walk(from).await?;
                let (dir, name) = self.parent(to).await?;
                let attr = client.link(ROOT_USER, attr.ino, dir, name).await?;
                client.forget(attr.ino, 1);
            }
            Operation::Rename { from, to } => {
                let (dir, name) = self.parent(from).await?;
                self.walk(from).await?;
                let (new_dir, new_name) = self.parent(to).await?;
                client.rename(ROOT_USER, dir, name, new_dir, new_name, RenameMode::Replace).await?;
            }
            Operation::SyncAll => client.syncfs().await?,
            Operation::Sleep { ms } => rt::sleep(std::time::Duration::from_millis(*ms)).await,
            _ => return self.try_content(operation).await,
        }
        Ok(OperationResult::Done)
    }

    async fn try_content(&mut self, operation: &Operation) -> Result<OperationResult> {
        let client = self.client.clone();
        match operation {
            Operation::Write { path, range, fill, direct } => {
                let handle = self.open_file(path).await?;
                let result = self.write(&handle, *range, *fill, *direct).await;
                client.release(handle).await;
                result?;
            }
            Operation::Read { path, range } => {
                let handle = self.open_file(path).await?;
                let result = self.read(&handle, *range).await;
                client.release(handle).await;
                return result.map(OperationResult::Bytes);
            }
            Operation::Truncate { path, size } => {
                let attr = self.walk(path).await?;
                if attr.kind() == FileKind::Directory {
                    return Err(Errno::EISDIR.into());
                }
                client.setattr(ROOT_USER, attr.ino, SetAttr::default(), Some(*size)).await?;
            }
            Operation::Punch { path, range } => {
                let handle = self.open_file(path).await?;
                let result = client.fallocate(&handle, PUNCH_KEEP_SIZE, *range).await;
                client.release(handle).await;
                result?;
            }
            Operation::Fsync { path } => {
                let handle = self.open_file(path).await?;
                let result = client.fsync(&handle, false).await;
                client.release(handle).await;
                result?;
            }
            Operation::Hold { path } => self.hold(path).await?,
            Operation::UseHeld { index, range, fill } => {
                let Some(handle) = self.held.get(*index).cloned() else { return Ok(OperationResult::Done) };
                self.write(&handle, *range, *fill, false).await?;
                return self.read(&handle, *range).await.map(OperationResult::Bytes);
            }
            Operation::Stat { path } => {
                let attr = self.walk(path).await?;
                let is_file = attr.kind() == FileKind::Regular;
                return Ok(OperationResult::Stat(is_file.then_some((attr.size, attr.nlink))));
            }
            Operation::List { path } => {
                let attr = self.walk(path).await?;
                return self.names(&attr).await.map(OperationResult::Names);
            }
            _ => {}
        }
        Ok(OperationResult::Done)
    }

    async fn hold(&mut self, path: &str) -> Result<()> {
        let handle = self.open_file(path).await?;
        if self.held.len() == MAX_HELD {
            let oldest = self.held.remove(0);
            self.client.release(oldest).await;
        }
        self.held.push(handle);
        Ok(())
    }

    async fn write(&self, handle: &Arc<Handle>, range: ByteRange, fill: u64, direct: bool) -> Result<()> {
        let data = bytes_of(fill, range.len() as usize);
        let buf = IoBuf::alloc(data.len());
        buf.copy_from(0, &data);
        let how = WriteOptions { direct, ..WriteOptions::default() };
        self.client.write(handle, range.start, buf, how).await.map(drop)
    }

    async fn read(&self, handle: &Arc<Handle>, range: ByteRange) -> Result<Vec<u8>> {
        let buf = IoBuf::alloc(range.len() as usize);
        let len = self.client.read(handle, range.start, buf.clone(), ReadOptions::default()).await?;
        Ok(buf.as_slice()[..len].to_vec())
    }

    async fn names(&self, dir: &Attr) -> Result<Vec<String>> {
        if dir.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        // A small page, so that the survey exercises continuation of a listing.
        const PAGE: u32 = 2;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.client.readdir(dir.ino, cookie, PAGE, false).await?;
            for entry in page.entries {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
            }
            if page.end {
                names.sort();
                return Ok(names);
            }
        }
    }

    /// Returns everything in the tree, by path.
    pub async fn read_tree(&self) -> Result<BTreeMap<String, FoundNode>> {
        let mut found = BTreeMap::new();
        let mut pending = vec![String::new()];
        while let Some(dir) = pending.pop() {
            let attr = self.walk(&dir).await?;
            for name in self.names(&attr).await? {
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                let attr = self.walk(&path).await?;
                let file = if attr.kind() == FileKind::Directory {
                    pending.push(path.clone());
                    None
                } else {
                    let handle = self.client.open(ROOT_USER, attr.ino, 0).await?;
                    let content = self.read(&handle, ByteRange::new(0, attr.size)).await;
                    self.client.release(handle).await;
                    Some((content?, attr.nlink))
                };
                found.insert(path, FoundNode { ino: attr.ino, file });
            }
        }
        Ok(found)
    }
}
