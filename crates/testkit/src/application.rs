//! Operations of applications on a client.

use client::{Client, Handle, ReadOptions, WriteOptions};
use rt::IoBuf;
use std::sync::Arc;
use types::{Credentials, InodeId, Result, SetAttr};

/// Flags of `open(2)`: read-only.
pub const RDONLY: u32 = 0;
/// Flags of `open(2)`: read and write.
pub const RDWR: u32 = 2;
/// The user root.
pub const ROOT: Credentials = Credentials { uid: 0, gid: 0, pid: 1 };

/// Bytes per read.
const READ_BYTES: usize = 256 * 1024;

/// An application of the user root, with its files in the root directory.
#[allow(async_fn_in_trait, reason = "all of it stays on one core")]
pub trait Application {
    /// Creates a file and opens it for reading and writing.
    async fn create_file(&self, name: &str) -> Arc<Handle>;
    /// Opens a file.
    async fn open_named(&self, name: &str, flags: u32) -> Arc<Handle>;
    /// Writes `len` bytes of the value `byte`.
    async fn try_fill(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) -> Result<usize>;
    /// Like `try_fill`, but panics on failure.
    async fn fill(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8);
    /// Appends to a file.
    async fn append(&self, file: &Arc<Handle>, data: &[u8]);
    /// Reads a file to its end. Panics on failure.
    async fn read_all(&self, file: &Arc<Handle>) -> Vec<u8>;
    /// Reads a file to its end.
    async fn try_read_all(&self, file: &Arc<Handle>) -> Result<Vec<u8>>;
    /// Returns the size of a file.
    async fn size(&self, ino: InodeId) -> u64;
    /// Truncates or extends a file.
    async fn set_size(&self, ino: InodeId, size: usize);
}

impl Application for Arc<Client> {
    async fn create_file(&self, name: &str) -> Arc<Handle> {
        self.create(ROOT, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap().1
    }

    async fn open_named(&self, name: &str, flags: u32) -> Arc<Handle> {
        let found = self.lookup(ROOT, InodeId::ROOT, name.as_bytes()).await.unwrap();
        self.open(ROOT, found.ino, flags).await.unwrap()
    }

    async fn try_fill(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) -> Result<usize> {
        let data = IoBuf::from_slice(&vec![byte; len]);
        self.write(file, offset as u64, data, WriteOptions::default()).await
    }

    async fn fill(&self, file: &Arc<Handle>, offset: usize, len: usize, byte: u8) {
        assert_eq!(self.try_fill(file, offset, len, byte).await.unwrap(), len);
    }

    async fn append(&self, file: &Arc<Handle>, data: &[u8]) {
        let how = WriteOptions { append: true, ..WriteOptions::default() };
        assert_eq!(self.write(file, 0, IoBuf::from_slice(data), how).await.unwrap(), data.len());
    }

    async fn read_all(&self, file: &Arc<Handle>) -> Vec<u8> {
        self.try_read_all(file).await.unwrap()
    }

    async fn try_read_all(&self, file: &Arc<Handle>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let buf = IoBuf::alloc(READ_BYTES);
            let got = self.read(file, bytes.len() as u64, buf.clone(), ReadOptions::default()).await?;
            if got == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&buf.as_slice()[..got]);
        }
    }

    async fn size(&self, ino: InodeId) -> u64 {
        self.getattr(ino).await.unwrap().size
    }

    async fn set_size(&self, ino: InodeId, size: usize) {
        self.setattr(ROOT, ino, SetAttr::default(), Some(size as u64)).await.unwrap();
    }
}

/// Returns bytes as runs of equal values: `(byte, length)`.
pub fn run_lengths(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}
