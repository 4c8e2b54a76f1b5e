//! Signatures only; replaced by the real modules.
#![allow(missing_docs, unused_variables, clippy::todo)]
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;
use types::Timestamp;

#[derive(Clone)]
pub struct IoBuf;
impl IoBuf {
    pub fn alloc(len: usize) -> IoBuf {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    pub fn is_aligned(&self) -> bool {
        todo!()
    }
    pub fn slice(&self, range: std::ops::Range<usize>) -> IoBuf {
        todo!()
    }
    pub fn as_slice(&self) -> &[u8] {
        todo!()
    }
    pub fn copy_from(&self, at: usize, data: &[u8]) {
        todo!()
    }
    pub fn zero(&self, range: std::ops::Range<usize>) {
        todo!()
    }
}

pub fn now() -> Timestamp {
    todo!()
}
pub fn monotonic_ns() -> u64 {
    todo!()
}
pub fn random_u64() -> u64 {
    todo!()
}
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    todo!()
}
pub async fn sleep(d: Duration) {
    todo!()
}
pub fn block_on<T: 'static>(f: impl Future<Output = T> + 'static) -> io::Result<T> {
    todo!()
}

#[derive(Clone, Copy, Default)]
pub struct OpenOptions {
    pub read: bool,
    pub write: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub direct: bool,
}
pub struct File;
pub struct FileStat {
    pub len: u64,
    pub blocks: u64,
    pub mtime: Timestamp,
}
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    Reserve,
    Punch,
    Zero,
}
impl File {
    pub async fn open(path: &Path, o: OpenOptions) -> io::Result<File> {
        todo!()
    }
    pub async fn read_at(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        todo!()
    }
    pub async fn write_at(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        todo!()
    }
    pub async fn write_at_durable(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        todo!()
    }
    pub async fn sync_data(&self) -> io::Result<()> {
        todo!()
    }
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        todo!()
    }
    pub async fn allocate(&self, how: Fallocate, offset: u64, len: u64) -> io::Result<()> {
        todo!()
    }
    pub async fn stat(&self) -> io::Result<FileStat> {
        todo!()
    }
    pub async fn seek_data(&self, from: u64) -> io::Result<Option<u64>> {
        todo!()
    }
    pub async fn seek_hole(&self, from: u64) -> io::Result<u64> {
        todo!()
    }
}
pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    todo!()
}
pub async fn read_dir(path: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    todo!()
}
pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    todo!()
}
pub async fn remove_file(path: &Path) -> io::Result<()> {
    todo!()
}
pub async fn sync_dir(path: &Path) -> io::Result<()> {
    todo!()
}
pub async fn sync_filesystem(path: &Path) -> io::Result<()> {
    todo!()
}
pub async fn space(path: &Path) -> io::Result<(u64, u64)> {
    todo!()
}

pub mod sync {
    /// FIFO async lock, usable across cores.
    pub struct RwLock;
    pub struct ReadGuard<'a>(std::marker::PhantomData<&'a ()>);
    pub struct WriteGuard<'a>(std::marker::PhantomData<&'a ()>);
    impl RwLock {
        pub const fn new() -> RwLock {
            RwLock
        }
        pub async fn read(&self) -> ReadGuard<'_> {
            todo!()
        }
        pub async fn write(&self) -> WriteGuard<'_> {
            todo!()
        }
    }
}
pub mod ring {
    use std::os::fd::RawFd;
    /// # Safety
    /// `addr..` must stay valid until the completion.
    pub async unsafe fn uring_cmd(fd: RawFd, cmd_op: u32, cmd: [u8; 80], addr: u64, len: u32) -> i32 { todo!() }
    pub async fn readable(fd: RawFd) -> std::io::Result<()> { todo!() }
}
impl IoBuf {
    /// # Safety
    /// The memory must live as long as the process.
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> IoBuf { todo!() }
    pub fn as_ptr(&self) -> *mut u8 { todo!() }
}
pub struct CoreConfig { pub name: String, pub cpu: Option<usize>, pub batch: bool }
/// Starts a thread with its own runtime that ends when `main`'s future ends.
pub fn start_core<F: Future<Output = ()> + 'static>(config: CoreConfig, main: impl FnOnce() -> F + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> { todo!() }
