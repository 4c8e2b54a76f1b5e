//! A directory beside a plain map: after each operation of a client, every client sees what the map
//! contains.

use super::async_creates::{close, create_is_async, lookup_or_absent, names, open};
use super::cluster::{Application, RDONLY, ROOT};
use client::{Client, Found, Handle};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Errno, InodeId, Result};
use wire::RenameMode;

pub struct ReferenceDirectory {
    dir: InodeId,
    there: BTreeMap<String, Vec<u8>>,
    open_files: Vec<(Arc<Client>, Arc<Handle>)>,
    /// Number of files that were created without a request.
    pub async_creates: u64,
}

impl ReferenceDirectory {
    /// An empty directory that all clients may use.
    pub async fn new(client: &Arc<Client>) -> ReferenceDirectory {
        let dir = client.mkdir(ROOT, InodeId::ROOT, b"d", 0o777, 0).await.unwrap().ino;
        ReferenceDirectory { dir, there: BTreeMap::new(), open_files: Vec::new(), async_creates: 0 }
    }

    /// Creates a file or opens it, and writes to its beginning; it stays open.
    pub async fn make(&mut self, client: &Arc<Client>, name: &str, (len, byte): (usize, u8)) {
        lookup_or_absent(client, self.dir, name).await;
        let (at_once, file) = create_is_async(client, self.dir, name).await;
        self.async_creates += u64::from(at_once);
        let content = self.there.entry(name.to_string()).or_default();
        if len > 0 {
            client.fill(&file, 0, len, byte).await;
            content.resize(content.len().max(len), 0);
            content[..len].fill(byte);
        }
        self.open_files.push((client.clone(), file));
    }

    /// Closes one of the open files, if there is one.
    pub async fn close_one(&mut self, draw: u64) {
        if !self.open_files.is_empty() {
            let one = draw as usize % self.open_files.len();
            let (client, file) = self.open_files.swap_remove(one);
            close(&client, file).await.unwrap();
        }
    }

    fn fails_rightly(&self, name: &str, error: &types::Error) {
        assert!(error.errno == Errno::ENOENT && !self.there.contains_key(name), "{name}: {error}");
    }

    pub async fn remove(&mut self, client: &Arc<Client>, name: &str) {
        match client.unlink(ROOT, self.dir, name.as_bytes()).await {
            Ok(()) => assert!(self.there.remove(name).is_some(), "{name}"),
            Err(error) => self.fails_rightly(name, &error),
        }
    }

    pub async fn list(&self, client: &Arc<Client>) {
        let known: Vec<String> = self.there.keys().cloned().collect();
        assert_eq!(names(client, self.dir).await, known);
    }

    pub async fn find(&self, client: &Arc<Client>, name: &str) {
        let found = client.find(ROOT, self.dir, name.as_bytes()).await.unwrap();
        assert_eq!(matches!(found, Found::Known(_)), self.there.contains_key(name), "{name}");
    }

    pub async fn read(&self, client: &Arc<Client>, name: &str) {
        match open(client, self.dir, name, RDONLY).await {
            Ok(file) => {
                assert_eq!(Some(&client.read_all(&file).await), self.there.get(name), "{name}");
                client.release(file).await;
            }
            Err(error) => self.fails_rightly(name, &error),
        }
    }

    pub async fn rename(&mut self, client: &Arc<Client>, from: &str, to: &str) {
        let (dir, mode) = (self.dir, RenameMode::Replace);
        let renamed: Result<()> = client.rename(ROOT, dir, from.as_bytes(), dir, to.as_bytes(), mode).await;
        match (renamed, self.there.remove(from)) {
            (Ok(()), Some(content)) => drop(self.there.insert(to.to_string(), content)),
            (Err(error), None) => self.fails_rightly(from, &error),
            (renamed, before) => panic!("{from} to {to}: {renamed:?}, {before:?}"),
        }
    }

    /// Closes all, and has every client read all files.
    pub async fn finish(mut self, clients: &[Arc<Client>]) -> u64 {
        while !self.open_files.is_empty() {
            self.close_one(0).await;
        }
        for client in clients {
            for name in self.there.keys() {
                self.read(client, name).await;
            }
        }
        self.async_creates
    }
}
