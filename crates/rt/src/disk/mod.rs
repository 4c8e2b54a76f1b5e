//! Files: on the machine's file systems, or on the simulated machine's disk.

mod path_guard;
mod real;
mod unallocated_ranges;

pub use path_guard::PathGuard;

use crate::buf::IoBuf;
use crate::context::{self, Runtime};
use crate::sim::{self, SimFile};
use real::RealFile;
use std::ffi::{CStr, OsString};
use std::io;
use std::ops::Range;
use std::path::Path;
use types::Timestamp;
pub use unallocated_ranges::UnallocatedRanges;

/// Longest value of an attribute that is read, bytes: weft stores a few numbers in one.
pub const MAX_ATTRIBUTE_BYTES: usize = 64;

/// How a file is opened.
#[derive(Clone, Copy, Default, Debug)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Create the file if it doesn't exist.
    pub create: bool,
    /// With `create`: fail if it exists.
    pub exclusive: bool,
    /// Truncate to length 0.
    pub truncate: bool,
    /// Bypass the page cache; buffers, lengths and offsets must be aligned to 4 KiB.
    pub direct: bool,
}

/// Attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStat {
    /// Length in bytes.
    pub len: u64,
    /// Allocated 512-byte units.
    pub blocks: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes, which can't be set.
    pub ctime: Timestamp,
    /// Inode number in its file system.
    pub inode: u64,
}

/// An operation on a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Reserve space; content and length stay.
    Reserve,
    /// Free the space; the range reads as zeros, the length stays.
    Punch,
    /// Zeros with space reserved; the length grows to the range's end.
    Zero,
}

/// When a write must be on disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// After the next sync.
    Later,
    /// When it completes.
    Now,
}

/// An open file. Its operations run on the core that calls them, which may be any core.
#[derive(Debug)]
pub struct File {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Real(RealFile),
    Sim(SimFile),
}

impl File {
    /// Opens a file.
    pub async fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
        let inner = match context::require()? {
            Runtime::Core(_) => Inner::Real(RealFile::open(path, options).await?),
            Runtime::Sim(world) => Inner::Sim(SimFile::open(&world, path, options).await?),
        };
        Ok(File { inner })
    }

    /// Fills `buf` from `offset` and returns the number of bytes read: fewer than its length only
    /// at the end of the file.
    pub async fn read_at(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        buf.discard_checksums();
        match &self.inner {
            Inner::Real(file) => file.read_at(buf, offset).await,
            Inner::Sim(file) => file.read_at(buf, offset).await,
        }
    }

    /// Whether some of a range may be in the page cache: `false` only if the kernel reports that
    /// none of it is (`cachestat(2)`, Linux 6.5 and later).
    pub fn may_be_cached(&self, offset: u64, len: u64) -> bool {
        match &self.inner {
            Inner::Real(file) => file.may_be_cached(offset, len),
            Inner::Sim(file) => file.may_be_cached(),
        }
    }

    /// Writes all of `buf` at `offset` and returns its length.
    pub async fn write_at(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        match &self.inner {
            Inner::Real(file) => file.write_at(buf, offset, Durability::Later).await,
            Inner::Sim(file) => file.write_at(buf, offset, Durability::Later).await,
        }
    }

    /// As [`File::write_at`], and the bytes are on disk when it returns.
    pub async fn write_at_durable(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        match &self.inner {
            Inner::Real(file) => file.write_at(buf, offset, Durability::Now).await,
            Inner::Sim(file) => file.write_at(buf, offset, Durability::Now).await,
        }
    }

    /// Makes everything written before durable, with the length and whatever else is needed to read
    /// it.
    pub async fn sync_data(&self) -> io::Result<()> {
        match &self.inner {
            Inner::Real(file) => file.sync_data().await,
            Inner::Sim(file) => file.sync_data().await,
        }
    }

    /// Truncates the file, or extends it with a hole.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.inner {
            Inner::Real(file) => file.set_len(len),
            Inner::Sim(file) => file.set_len(len).await,
        }
    }

    /// Reserves, frees or zeroes a range.
    pub async fn allocate(&self, how: Fallocate, offset: u64, len: u64) -> io::Result<()> {
        match &self.inner {
            Inner::Real(file) => file.allocate(how, offset, len).await,
            Inner::Sim(file) => file.allocate(how, offset, len).await,
        }
    }

    /// The unallocated parts of a range, also beyond the end of the file: their total size, and the
    /// first `most` of them.
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `ENOTTY` if the local file system doesn't list extents (XFS and ext4 do).
    pub async fn unallocated_ranges(&self, range: Range<u64>, most: usize) -> io::Result<UnallocatedRanges> {
        match &self.inner {
            Inner::Real(file) => file.unallocated_ranges(range, most),
            Inner::Sim(file) => file.unallocated_ranges(range, most).await,
        }
    }

    /// Length, allocated space, times and inode number.
    pub async fn stat(&self) -> io::Result<FileStat> {
        match &self.inner {
            Inner::Real(file) => file.stat(),
            Inner::Sim(file) => file.stat().await,
        }
    }

    /// Sets the time of the last change of the content.
    pub async fn set_time(&self, time: Timestamp) -> io::Result<()> {
        match &self.inner {
            Inner::Real(file) => file.set_time(time),
            Inner::Sim(file) => file.set_time(time).await,
        }
    }

    /// Stores a value with the file, under a name (an extended attribute). Fails with `EOPNOTSUPP`
    /// if the local file system has no such attributes.
    pub async fn set_attribute(&self, name: &CStr, value: Vec<u8>) -> io::Result<()> {
        match &self.inner {
            Inner::Real(file) => file.set_attribute(name, &value),
            Inner::Sim(file) => file.set_attribute(name, value).await,
        }
    }

    /// The value stored under a name; `None` if there is none, or it is longer than
    /// [`MAX_ATTRIBUTE_BYTES`].
    pub async fn attribute(&self, name: &CStr) -> io::Result<Option<Vec<u8>>> {
        match &self.inner {
            Inner::Real(file) => file.attribute(name),
            Inner::Sim(file) => file.attribute(name).await,
        }
    }

    /// The first byte at or after `from` that holds data; `None` if there is none.
    pub async fn seek_data(&self, from: u64) -> io::Result<Option<u64>> {
        match &self.inner {
            Inner::Real(file) => file.seek_data(from),
            Inner::Sim(file) => file.seek_data(from).await,
        }
    }

    /// The first hole at or after `from`; the end of the file is one. Fails with `ENXIO` beyond the
    /// end.
    pub async fn seek_hole(&self, from: u64) -> io::Result<u64> {
        match &self.inner {
            Inner::Real(file) => file.seek_hole(from),
            Inner::Sim(file) => file.seek_hole(from).await,
        }
    }
}

/// Makes a directory and its missing parents; succeeds if it exists.
pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    match context::require()? {
        Runtime::Core(_) => std::fs::create_dir_all(path),
        Runtime::Sim(world) => sim::create_dir_all(&world, path).await,
    }
}

/// The names in a directory, in no particular order.
pub async fn read_dir(path: &Path) -> io::Result<Vec<OsString>> {
    match context::require()? {
        Runtime::Core(_) => std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect(),
        Runtime::Sim(world) => sim::read_dir(&world, path).await,
    }
}

/// Renames a file, replacing a file with the new name.
pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match context::require()? {
        Runtime::Core(_) => real::rename(from, to).await,
        Runtime::Sim(world) => sim::rename(&world, from, to).await,
    }
}

/// Removes a file.
pub async fn remove_file(path: &Path) -> io::Result<()> {
    match context::require()? {
        Runtime::Core(_) => real::remove_file(path).await,
        Runtime::Sim(world) => sim::remove_file(&world, path).await,
    }
}

/// Removes an empty directory.
pub async fn remove_dir(path: &Path) -> io::Result<()> {
    match context::require()? {
        Runtime::Core(_) => real::remove_dir(path).await,
        Runtime::Sim(world) => sim::remove_file(&world, path).await,
    }
}

/// Makes the entries of a directory durable.
pub async fn sync_dir(path: &Path) -> io::Result<()> {
    match context::require()? {
        Runtime::Core(_) => real::sync_dir(path).await,
        Runtime::Sim(world) => sim::sync_dir(&world, path).await,
    }
}

/// Makes everything on the file system that holds `path` durable.
pub async fn sync_filesystem(path: &Path) -> io::Result<()> {
    match context::require()? {
        Runtime::Core(_) => real::sync_filesystem(path).await,
        Runtime::Sim(world) => sim::sync_filesystem(&world).await,
    }
}

/// Verifier of the file system that holds `path`: as long as it is the same, no unsynced content
/// was lost. It changes when the machine reboots, and when the file system is mounted again, as
/// after a failure of its disk.
pub async fn unsynced_data_verifier(path: &Path) -> io::Result<String> {
    match context::require()? {
        Runtime::Core(_) => real::unsynced_data_verifier(path),
        Runtime::Sim(world) => sim::unsynced_data_verifier(&world).await,
    }
}

/// The same for code without a runtime; always of the real machine, never of a simulated one.
pub fn unsynced_data_verifier_of_machine(path: &Path) -> io::Result<String> {
    real::unsynced_data_verifier(path)
}

/// Total bytes, and free bytes available, of the file system that holds `path`.
pub async fn file_system_space(path: &Path) -> io::Result<(u64, u64)> {
    match context::require()? {
        Runtime::Core(_) => real::space(path),
        Runtime::Sim(world) => sim::space(&world).await,
    }
}

/// A number that identifies the file system that holds `path` among those mounted on this machine.
pub fn file_system_id(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    match context::require()? {
        Runtime::Core(_) => Ok(std::fs::metadata(path)?.dev()),
        // A simulated host has one disk.
        Runtime::Sim(_) => Ok(1),
    }
}
