//! Files and names of the simulated disk, with the interface of this crate's functions.

use super::content::PAGE;
use super::names::{Node, errno};
use super::simulation::{DroppedObject, Simulation, Speed};
use crate::buf::{Access, Borrowed, IO_ALIGNMENT, IoBuf};
use crate::context::{self, Runtime};
use crate::disk::{Durability, Fallocate, FileStat, OpenOptions, UnallocatedRanges};
use std::ffi::{CStr, OsString};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use types::Timestamp;

/// Unit of `FileStat::blocks`, bytes.
const UNIT: u64 = 512;

/// An open file of a simulated host.
#[derive(Debug)]
pub(crate) struct SimFile {
    ino: u64,
    /// The host's boot in which it was opened; it is invalid in any other.
    boot: u64,
    options: OpenOptions,
}

impl SimFile {
    pub(crate) async fn open(world: &Simulation, path: &Path, options: OpenOptions) -> io::Result<SimFile> {
        let boot = world.boot();
        let path = path.to_path_buf();
        let opened = world.submit(Speed::Quick, move |disk, now_ns| {
            let ino = disk.open(&path, options, now_ns)?;
            Ok(SimFile { ino, boot, options })
        });
        opened.await
    }

    pub(crate) async fn read_at(&self, buf: IoBuf, offset: u64) -> io::Result<usize> {
        let world = self.world()?;
        if !self.options.read && self.options.write {
            return Err(errno(libc::EBADF));
        }
        self.check_alignment(&buf, offset)?;
        let ino = self.ino;
        let borrowed = Borrowed::new(buf, Access::Write);
        let read = world.submit(Speed::Quick, move |disk, _| {
            let mut bytes = vec![0; borrowed.len()];
            let got = disk.read(ino, offset, &mut bytes)?;
            borrowed.fill(&bytes[..got]);
            Ok(got)
        });
        read.await
    }

    /// Always false: cached reads are as fast as others on a simulated disk, and so both code paths
    /// of callers are exercised.
    pub(crate) fn may_be_cached(&self) -> bool {
        false
    }

    pub(crate) async fn write_at(
        &self,
        buf: IoBuf,
        offset: u64,
        durability: Durability,
    ) -> io::Result<usize> {
        let world = self.writable()?;
        self.check_alignment(&buf, offset)?;
        let ino = self.ino;
        let speed = match durability {
            Durability::Later => Speed::Quick,
            Durability::Now => Speed::Sync,
        };
        let borrowed = Borrowed::new(buf, Access::Read);
        let write = world.submit(speed, move |disk, now_ns| {
            disk.write(ino, offset, borrowed.as_slice(), now_ns)?;
            if durability == Durability::Now {
                disk.sync_last_write(ino)?;
            }
            Ok(borrowed.len())
        });
        write.await
    }

    pub(crate) async fn sync_data(&self) -> io::Result<()> {
        let world = self.world()?;
        let ino = self.ino;
        let up_to = world.with_disk(|disk| disk.sequence());
        world.submit(Speed::Sync, move |disk, _| disk.sync(ino, up_to)).await
    }

    pub(crate) async fn set_len(&self, len: u64) -> io::Result<()> {
        let ino = self.ino;
        self.writable()?.submit(Speed::Quick, move |disk, now_ns| disk.set_len(ino, len, now_ns)).await
    }

    pub(crate) async fn allocate(&self, how: Fallocate, offset: u64, len: u64) -> io::Result<()> {
        let ino = self.ino;
        let end = offset.checked_add(len).ok_or_else(|| errno(libc::EFBIG))?;
        let world = self.writable()?;
        world.submit(Speed::Quick, move |disk, now_ns| disk.allocate(ino, how, offset..end, now_ns)).await
    }

    pub(crate) async fn unallocated_ranges(
        &self,
        range: Range<u64>,
        most: usize,
    ) -> io::Result<UnallocatedRanges> {
        let ino = self.ino;
        let found = self.world()?.submit(Speed::Quick, move |disk, _| {
            Ok(disk.inode(ino)?.visible.unallocated_ranges(range, most))
        });
        found.await
    }

    pub(crate) async fn stat(&self) -> io::Result<FileStat> {
        let ino = self.ino;
        let stat = self.world()?.submit(Speed::Quick, move |disk, _| {
            let inode = disk.inode(ino)?;
            Ok(FileStat {
                len: inode.visible.len(),
                blocks: inode.visible.allocated() * (PAGE / UNIT),
                mtime: Timestamp::from_nanos(inode.mtime_ns as i64),
                ctime: Timestamp::from_nanos(inode.ctime_ns as i64),
                inode: ino,
            })
        });
        stat.await
    }

    pub(crate) async fn set_time(&self, time: Timestamp) -> io::Result<()> {
        let ino = self.ino;
        let set = self.world()?.submit(Speed::Quick, move |disk, now_ns| {
            let inode = disk.inode_mut(ino)?;
            (inode.mtime_ns, inode.ctime_ns) = (time.as_nanos().max(0) as u64, now_ns);
            Ok(())
        });
        set.await
    }

    pub(crate) async fn set_attribute(&self, name: &CStr, value: Vec<u8>) -> io::Result<()> {
        let (ino, name) = (self.ino, name.to_owned());
        let set = self.world()?.submit(Speed::Quick, move |disk, now_ns| {
            let inode = disk.inode_mut(ino)?;
            inode.attributes.insert(name, value);
            inode.ctime_ns = now_ns;
            Ok(())
        });
        set.await
    }

    pub(crate) async fn attribute(&self, name: &CStr) -> io::Result<Option<Vec<u8>>> {
        let (ino, name) = (self.ino, name.to_owned());
        let get = self
            .world()?
            .submit(Speed::Quick, move |disk, _| Ok(disk.inode(ino)?.attributes.get(&name).cloned()));
        get.await
    }

    pub(crate) async fn seek_data(&self, from: u64) -> io::Result<Option<u64>> {
        let ino = self.ino;
        let seek =
            self.world()?.submit(Speed::Quick, move |disk, _| Ok(disk.inode(ino)?.visible.seek_data(from)));
        seek.await
    }

    pub(crate) async fn seek_hole(&self, from: u64) -> io::Result<u64> {
        let ino = self.ino;
        let seek = self.world()?.submit(Speed::Quick, move |disk, _| {
            disk.inode(ino)?.visible.seek_hole(from).ok_or_else(|| errno(libc::ENXIO))
        });
        seek.await
    }

    /// The world that it was opened in, if the caller runs on the same host, in the same boot.
    fn world(&self) -> io::Result<Rc<Simulation>> {
        match context::current() {
            Some(Runtime::Sim(world)) if world.boot() == self.boot => Ok(world),
            _ => Err(errno(libc::EBADF)),
        }
    }

    fn writable(&self) -> io::Result<Rc<Simulation>> {
        if self.options.write { self.world() } else { Err(errno(libc::EBADF)) }
    }

    /// Checks alignment for direct I/O as strictly as a real disk.
    fn check_alignment(&self, buf: &IoBuf, offset: u64) -> io::Result<()> {
        let aligned = buf.is_aligned() && offset.is_multiple_of(IO_ALIGNMENT as u64);
        if self.options.direct && !aligned { Err(errno(libc::EINVAL)) } else { Ok(()) }
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        context::with_sim(|world| world.close(DroppedObject::File { boot: self.boot, ino: self.ino }));
    }
}

/// The file or directory that a path led to when this was made.
#[derive(Debug)]
pub(crate) struct SimPathGuard {
    node: Node,
}

impl SimPathGuard {
    pub(crate) fn new(world: &Simulation, path: &Path) -> io::Result<SimPathGuard> {
        Ok(SimPathGuard { node: world.with_disk(|disk| disk.node(path))? })
    }

    pub(crate) fn leads_to_same_file(&self, path: &Path) -> io::Result<bool> {
        let node = context::with_sim(|world| world.with_disk(|disk| disk.node(path)));
        Ok(node.unwrap_or_else(|| Err(errno(libc::EBADF)))? == self.node)
    }
}

pub(crate) async fn create_dir_all(world: &Simulation, path: &Path) -> io::Result<()> {
    let path = path.to_path_buf();
    world.submit(Speed::Quick, move |disk, _| disk.create_dir_all(&path)).await
}

pub(crate) async fn read_dir(world: &Simulation, path: &Path) -> io::Result<Vec<OsString>> {
    let path = path.to_path_buf();
    world.submit(Speed::Quick, move |disk, _| disk.read_dir(&path)).await
}

pub(crate) async fn rename(world: &Simulation, from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (from.to_path_buf(), to.to_path_buf());
    world.submit(Speed::Quick, move |disk, _| disk.rename(&from, &to)).await
}

pub(crate) async fn remove_file(world: &Simulation, path: &Path) -> io::Result<()> {
    let path = path.to_path_buf();
    world.submit(Speed::Quick, move |disk, _| disk.remove(&path)).await
}

pub(crate) async fn sync_dir(world: &Simulation, path: &Path) -> io::Result<()> {
    let path = path.to_path_buf();
    let up_to = world.with_disk(|disk| disk.sequence());
    world.submit(Speed::Sync, move |disk, _| disk.sync_dir(&path, up_to)).await
}

pub(crate) async fn sync_filesystem(world: &Simulation) -> io::Result<()> {
    let up_to = world.with_disk(|disk| disk.sequence());
    let sync = world.submit(Speed::Sync, move |disk, _| {
        disk.sync_all(up_to);
        Ok(())
    });
    sync.await
}

pub(crate) async fn unsynced_data_verifier(world: &Simulation) -> io::Result<String> {
    world.submit(Speed::Quick, |disk, _| Ok(disk.crashes().to_string())).await
}

pub(crate) async fn space(world: &Simulation) -> io::Result<(u64, u64)> {
    world.submit(Speed::Quick, |disk, _| Ok(disk.space())).await
}
