//! Writing a backup.

use crate::error::{Error, Result};
use crate::format::{
    Attached, AttachedHead, BLOCK_BYTES, BLOCK_HEADER_BYTES, DELETED, FILE, FOOT, Footer, HEAD, Header, KEYS,
    MAGIC, PUT, block_checksum,
};
use crate::state_checksum::StateChecksum;
use rustix::fs::{RenameFlags, renameat_with};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Suffix of a file that is not complete yet.
pub(crate) const DRAFT: &str = "draft";

/// A backup that is being written. Dropped before [`Writer::finish`], it leaves no file.
pub(crate) struct Writer {
    path: PathBuf,
    draft: PathBuf,
    file: BufWriter<File>,
    block: Vec<u8>,
    foot: Footer,
    is_done: bool,
}

impl Writer {
    /// Begins a backup that will be at `path`.
    pub fn create(path: &Path, head: &Header, files: &[Attached]) -> Result<Writer> {
        if path.exists() {
            return Err(Error::Exists { path: path.to_path_buf() });
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.{DRAFT}", head.id));
        let draft = PathBuf::from(draft);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
        let file = file.map_err(|error| Error::io("make", &draft, error))?;
        let mut writer = Writer {
            path: path.to_path_buf(),
            draft,
            file: BufWriter::with_capacity(BLOCK_BYTES, file),
            block: Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 4),
            foot: Footer::default(),
            is_done: false,
        };
        writer.raw(MAGIC)?;
        writer.write_block(HEAD, &json(head))?;
        for file in files {
            writer.write_block(FILE, &file_body(file))?;
            writer.foot.files += 1;
        }
        Ok(writer)
    }

    /// Adds the next key with its value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.foot.puts += 1;
        self.record(PUT, key, value)
    }

    /// Adds the next key as deleted.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.foot.gone += 1;
        self.record(DELETED, key, &[])
    }

    fn record(&mut self, op: u8, key: &[u8], value: &[u8]) -> Result<()> {
        put_record(&mut self.block, op, key, value);
        if self.block.len() >= BLOCK_BYTES { self.flush_block() } else { Ok(()) }
    }

    fn flush_block(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let body = std::mem::take(&mut self.block);
        self.write_block(KEYS, &body)?;
        self.block = body;
        self.block.clear();
        Ok(())
    }

    fn write_block(&mut self, kind: [u8; 4], body: &[u8]) -> Result<()> {
        let sum = block_checksum(self.foot.blocks, kind, body);
        self.foot.blocks += 1;
        self.raw(&block_header(kind, body))?;
        self.raw(body)?;
        self.raw(&sum.to_le_bytes())
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::io("write", &self.draft, error))
    }

    /// Syncs the backup to disk and gives it its name. `state`: the content of the store.
    pub fn finish(mut self, state: &StateChecksum) -> Result<Footer> {
        self.flush_block()?;
        let foot = Footer { keys: state.keys(), bytes: state.bytes(), sum: state.sum(), ..self.foot.clone() };
        self.write_block(FOOT, &json(&foot))?;
        let on_disk = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        on_disk.map_err(|error| Error::io("write", &self.draft, error))?;
        let here = rustix::fs::CWD;
        match renameat_with(here, &self.draft, here, &self.path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(Error::Exists { path: self.path.clone() }),
            Err(error) => return Err(Error::io("name", &self.path, error.into())),
        }
        self.is_done = true;
        sync_parent_directory(&self.path)?;
        Ok(foot)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_done {
            // A draft that stays doesn't have the name of a backup.
            let _ = fs::remove_file(&self.draft);
        }
    }
}

/// Syncs the directory that contains `path`.
pub(crate) fn sync_parent_directory(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::io("sync", folder, error))
}

/// Returns the kind and length before a block's body.
pub(crate) fn block_header(kind: [u8; 4], body: &[u8]) -> [u8; BLOCK_HEADER_BYTES] {
    let mut before = [0; BLOCK_HEADER_BYTES];
    before[..4].copy_from_slice(&kind);
    before[4..].copy_from_slice(&(body.len() as u32).to_le_bytes());
    before
}

/// Returns the body of a block with a file.
pub(crate) fn file_body(file: &Attached) -> Vec<u8> {
    let head = json(&AttachedHead { name: file.name.clone(), mode: file.mode });
    [&(head.len() as u32).to_le_bytes()[..], &head, &file.content].concat()
}

/// Adds a record to the body of a block of keys.
pub(crate) fn put_record(body: &mut Vec<u8>, op: u8, key: &[u8], value: &[u8]) {
    body.push(op);
    body.extend_from_slice(&(key.len() as u16).to_le_bytes());
    body.extend_from_slice(&(value.len() as u32).to_le_bytes());
    body.extend_from_slice(key);
    body.extend_from_slice(value);
}

pub(crate) fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialize")
}
