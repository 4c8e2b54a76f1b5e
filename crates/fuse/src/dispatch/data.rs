//! Reading and writing file content. The request's payload buffer is passed to the client core
//! without a copy.

use crate::abi::{
    self, CopyFileRangeIn, CopyFileRangeOut, FallocateIn, FsyncIn, LseekIn, LseekOut, ReadIn, WriteIn,
    WriteOut,
};
use crate::reply::put;
use crate::request::Request;
use crate::transport::Core;
use client::{ReadOptions, WriteOptions};
use std::sync::atomic::Ordering;
use types::{ByteRange, Errno, Result};

/// Largest length that COPY_FILE_RANGE can return in its 32 bits, in whole pages.
const MAX_NARROW_COPY: u64 = (u32::MAX - 0xfff) as u64;

pub(super) async fn read(core: &Core, rq: &Request, args: ReadIn) -> Result<usize> {
    let size = args.size as usize;
    if size > rq.out.len() {
        return Err(Errno::EIO.into());
    }
    let open = core.shared.handles.get(args.fh)?;
    let buf = rq.out.slice(0..size);
    let len = open.file.read(args.offset, buf, read_options(&args)).await?;
    Ok(len.min(size))
}

pub(super) async fn write(core: &Core, rq: &Request, args: WriteIn) -> Result<usize> {
    let open = core.shared.handles.get(args.fh)?;
    let buf = rq.data.slice(0..args.size as usize);
    let how = write_options(&args, core.shared.is_shared);
    let may_be_cut = core.shared.is_shared && how.direct && !how.written_back;
    let written = open.file.write(args.offset, buf, how).await;
    if may_be_cut && written.is_err() {
        let end = args.offset.saturating_add(u64::from(args.size));
        open.failed_write_end.fetch_max(end, Ordering::Relaxed);
    }
    let len = written?;
    Ok(put(&rq.out, 0, &WriteOut { size: len.min(args.size as usize) as u32, padding: 0 }))
}

fn is_direct(flags: u32) -> bool {
    flags & libc::O_DIRECT as u32 != 0
}

fn read_options(args: &ReadIn) -> ReadOptions {
    ReadOptions {
        direct: is_direct(args.flags),
        cached: args.read_flags & abi::READ_LOCKOWNER == 0,
        no_atime: args.flags & libc::O_NOATIME as u32 != 0,
    }
}

fn write_options(args: &WriteIn, shared: bool) -> WriteOptions {
    let written_back = args.write_flags & abi::WRITE_CACHE != 0;
    let o_append = args.flags & libc::O_APPEND as u32 != 0;
    // O_SYNC contains O_DSYNC's bit.
    WriteOptions {
        // Without other writers the kernel knows the end of the file.
        append: shared && !written_back && o_append,
        o_append: o_append && !written_back,
        written_back,
        direct: is_direct(args.flags),
        durable: args.flags & (libc::O_DSYNC | libc::O_SYNC) as u32 != 0,
        kill_suid_sgid: args.write_flags & abi::WRITE_KILL_SUIDGID != 0,
    }
}

pub(super) async fn fsync(core: &Core, args: FsyncIn) -> Result<usize> {
    let open = core.shared.handles.get(args.fh)?;
    let data_only = args.fsync_flags & abi::FSYNC_FDATASYNC != 0;
    open.file.fsync(data_only).await.map(|()| 0)
}

pub(super) async fn fallocate(core: &Core, rq: &Request, args: FallocateIn) -> Result<usize> {
    let open = core.shared.handles.get(args.fh)?;
    let range = ByteRange::at(args.offset, args.length);
    open.file.fallocate(rq.credentials(), args.mode, range).await.map(|()| 0)
}

pub(super) async fn lseek(core: &Core, rq: &Request, args: LseekIn) -> Result<usize> {
    let open = core.shared.handles.get(args.fh)?;
    let offset = open.file.lseek(args.offset, args.whence).await?;
    Ok(put(&rq.out, 0, &LseekOut { offset }))
}

pub(super) async fn copy_file_range(
    core: &Core,
    rq: &Request,
    args: CopyFileRangeIn,
    wide: bool,
) -> Result<usize> {
    if args.flags != 0 {
        return Err(Errno::EINVAL.into());
    }
    let from = core.shared.handles.get(args.fh_in)?;
    let to = core.shared.handles.get(args.fh_out)?;
    let len = if wide { args.len } else { args.len.min(MAX_NARROW_COPY) };
    let (who, place) = (rq.credentials(), (&to.file, args.off_out));
    let copied = from.file.copy_file_range(who, args.off_in, place, len).await?.min(len);
    Ok(if wide {
        put(&rq.out, 0, &CopyFileRangeOut { bytes_copied: copied })
    } else {
        put(&rq.out, 0, &WriteOut { size: copied as u32, padding: 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_options_follow_the_flags() {
        let how = |flags: i32, write_flags| {
            write_options(&WriteIn { flags: flags as u32, write_flags, ..Default::default() }, true)
        };
        let plain = how(libc::O_WRONLY, 0);
        assert!(!plain.direct && !plain.durable && !plain.kill_suid_sgid);
        assert!(how(libc::O_DIRECT, 0).direct);
        assert!(how(libc::O_SYNC, 0).durable && how(libc::O_DSYNC, 0).durable);
        assert!(how(0, abi::WRITE_KILL_SUIDGID).kill_suid_sgid);
        assert!(!plain.append && how(libc::O_APPEND, 0).append);
        let back = how(libc::O_APPEND, abi::WRITE_CACHE);
        assert!(back.written_back && !back.append, "pages have their place");
        let alone = WriteIn { flags: libc::O_APPEND as u32, ..Default::default() };
        let alone = write_options(&alone, false);
        assert!(!alone.append && alone.o_append && !back.o_append);
    }

    #[test]
    fn reads_of_the_page_cache_are_marked() {
        let how = |read_flags| read_options(&ReadIn { read_flags, ..Default::default() });
        assert!(how(0).cached && !how(abi::READ_LOCKOWNER).cached);
    }
}
