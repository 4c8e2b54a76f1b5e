//! Flags and project ids of inodes. The kernel's own code sends these ioctls (`fuse_fileattr_get`
//! and `fuse_fileattr_set` of Linux's `fs/fuse/ioctl.c`). It first checks that the caller owns the
//! inode and has `CAP_LINUX_IMMUTABLE` where that is required (`fileattr_set_prepare` of
//! `fs/file_attr.c`).

use crate::abi::{self, FsXattr, IoctlIn, IoctlOut, MINOR_FILE_ATTRIBUTES, bytes_of};
use crate::reply::put;
use crate::request::Request;
use crate::transport::Core;
use types::{Errno, Error, InodeFlags, ProjectId, Result};

/// Numbers from `include/uapi/linux/fs.h`, for 64-bit machines.
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;

/// Each flag with its bits in `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR`.
const FLAG_BITS: [(InodeFlags, u32, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x10, 0x8),
    (InodeFlags::APPEND, 0x20, 0x10),
    (InodeFlags::NODUMP, 0x40, 0x80),
    (InodeFlags::PROJECT_INHERIT, 0x2000_0000, 0x200),
];

/// Applications probe files with other ioctls and expect this answer.
const UNKNOWN_IOCTL: Errno = Errno::Number(libc::ENOTTY);

pub(super) async fn ioctl(core: &Core, rq: &Request, args: IoctlIn) -> Result<usize> {
    if core.shared.features.minor < MINOR_FILE_ATTRIBUTES {
        // An older kernel passes on ioctls of applications without any check.
        return Err(UNKNOWN_IOCTL.into());
    }
    let (client, input) = (&core.shared.client, rq.data.as_slice());
    match args.cmd {
        GETFLAGS => {
            let attr = client.getattr(rq.ino()).await?;
            answer(rq, args, &to_kernel_flags(attr.flags, |(_, number, _)| *number).to_ne_bytes())
        }
        FSGETXATTR => {
            let attr = client.getattr(rq.ino()).await?;
            let xflags = to_kernel_flags(attr.flags, |(_, _, number)| *number);
            let found = FsXattr { xflags, projid: attr.project.0, ..FsXattr::default() };
            answer(rq, args, bytes_of(&found))
        }
        SETFLAGS => {
            let wanted = input.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)?;
            let flags = from_kernel_flags(wanted, |(_, number, _)| *number)?;
            client.set_flags(rq.credentials(), rq.ino(), flags, None).await?;
            answer(rq, args, &[])
        }
        FSSETXATTR => {
            let wanted: FsXattr = abi::read(input).ok_or(Errno::EINVAL)?;
            let flags = from_kernel_flags(wanted.xflags, |(_, _, number)| *number)?;
            if wanted.extsize != 0 || wanted.cowextsize != 0 {
                let message = format!("inode {}: weft has no extent size", rq.ino());
                return Err(Error::new(Errno::EOPNOTSUPP, message)
                    .hint("weft entry set-pattern sets the chunk size of new files of a directory"));
            }
            let project = Some(ProjectId(wanted.projid));
            client.set_flags(rq.credentials(), rq.ino(), flags, project).await?;
            answer(rq, args, &[])
        }
        _ => Err(UNKNOWN_IOCTL.into()),
    }
}

fn answer(rq: &Request, args: IoctlIn, found: &[u8]) -> Result<usize> {
    if found.len() > args.out_size as usize {
        return Err(Errno::EINVAL.into());
    }
    let at = put(&rq.out, 0, &IoctlOut::default());
    rq.out.copy_from(at, found);
    Ok(at + found.len())
}

type FlagBits = (InodeFlags, u32, u32);

/// Returns the flags as the kernel's bits.
fn to_kernel_flags(flags: InodeFlags, number: impl Fn(&FlagBits) -> u32) -> u32 {
    FLAG_BITS.iter().filter(|row| flags.intersects(row.0)).map(number).fold(0, |all, one| all | one)
}

/// Returns the flags for the kernel's bits.
///
/// # Errors
/// `EOPNOTSUPP` for a flag that weft doesn't support.
fn from_kernel_flags(wanted: u32, number: impl Fn(&FlagBits) -> u32) -> Result<InodeFlags> {
    let found = FLAG_BITS.iter().filter(|row| wanted & number(row) != 0);
    let (flags, numbers) =
        found.fold((InodeFlags::NONE, 0), |(flags, all), row| (flags | row.0, all | number(row)));
    match wanted & !numbers {
        0 => Ok(flags),
        unknown => {
            let message = format!("weft doesn't support the inode flags {unknown:#x}");
            Err(Error::new(Errno::EOPNOTSUPP, message).hint("use only the flags a, d, i and P of chattr(1)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_its_numbers() {
        assert_eq!(FLAG_BITS.iter().fold(InodeFlags::NONE, |all, row| all | row.0), InodeFlags::ALL);
        let both = InodeFlags::APPEND | InodeFlags::PROJECT_INHERIT;
        assert_eq!(to_kernel_flags(both, |row| row.1), 0x2000_0020);
        assert_eq!(to_kernel_flags(both, |row| row.2), 0x210);
        assert_eq!(from_kernel_flags(0x2000_0020, |row| row.1), Ok(both));
        assert_eq!(from_kernel_flags(0x210, |row| row.2), Ok(both));
        assert_eq!(to_kernel_flags(InodeFlags::NONE, |row| row.1), 0);
    }

    #[test]
    fn other_flags_are_refused() {
        // Compressed, and a directory with encrypted names.
        for unknown in [0x4, 0x10 | 0x800] {
            assert_eq!(from_kernel_flags(unknown, |row| row.1).unwrap_err().errno, Errno::EOPNOTSUPP);
        }
    }

    #[test]
    fn numbers_are_those_of_64_bit_machines() {
        let number = |read: bool, group: u8, nr: u8, size: u32| {
            let direction = if read { 2 } else { 1 };
            direction << 30 | size << 16 | u32::from(group) << 8 | u32::from(nr)
        };
        assert_eq!([number(true, b'f', 1, 8), number(false, b'f', 2, 8)], [GETFLAGS, SETFLAGS]);
        let size = size_of::<FsXattr>() as u32;
        assert_eq!([number(true, b'X', 31, size), number(false, b'X', 32, size)], [FSGETXATTR, FSSETXATTR]);
    }
}
