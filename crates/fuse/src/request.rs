//! Decodes the kernel's bytes into a checked [`Operation`]. Pure and total: for any bytes the
//! result is an operation or an errno.

use crate::abi::{self, InHeader, Opcode, Pod};
use rt::IoBuf;
use types::{Credentials, Errno, InodeId};

/// Longest name of a directory entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest name of an extended attribute, in bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;
/// Longest target of a symlink, in bytes (`PATH_MAX` without its NUL).
pub const SYMLINK_MAX: usize = 4095;

/// Stands for the PID of a process outside this PID namespace: beyond what the kernel assigns
/// (2^22).
const FOREIGN_PID: u32 = i32::MAX as u32;

/// A request as a transport delivers it.
pub struct Request {
    /// Header with caller, operation and inode.
    pub header: InHeader,
    /// The operation's struct; empty for operations without one.
    pub args: IoBuf,
    /// Data after the struct: names, values, the data of a write.
    pub data: IoBuf,
    /// Buffer for the body of the reply, page-aligned. May overlap `args` and `data`, so it is
    /// written last.
    pub out: IoBuf,
}

impl Request {
    /// Returns the caller's credentials. A process outside this PID namespace (of a container, say)
    /// gets a PID that no process has: 0 stands for the client itself.
    pub fn credentials(&self) -> Credentials {
        let pid = if self.header.pid == 0 { FOREIGN_PID } else { self.header.pid };
        Credentials { uid: self.header.uid, gid: self.header.gid, pid }
    }

    /// Returns the inode of the request.
    pub fn ino(&self) -> InodeId {
        InodeId(self.header.nodeid)
    }

    /// Decodes the operation.
    pub fn operation(&self) -> Result<Operation<'_>, Errno> {
        Operation::decode(self.header.opcode, self.args.as_slice(), self.data.as_slice())
    }
}

/// Returns the length of the struct at the start of an operation, for the contiguous layout of
/// `/dev/fuse`.
pub fn args_len(opcode: u32) -> usize {
    use Opcode::*;
    let Some(op) = Opcode::from_number(opcode) else { return 0 };
    match op {
        Getattr => size_of::<abi::GetattrIn>(),
        Setattr => size_of::<abi::SetattrIn>(),
        Mknod => size_of::<abi::MknodIn>(),
        Mkdir => size_of::<abi::MkdirIn>(),
        Rename => size_of::<abi::RenameIn>(),
        Rename2 => size_of::<abi::Rename2In>(),
        Link => size_of::<abi::LinkIn>(),
        Open | Opendir => size_of::<abi::OpenIn>(),
        Create | Tmpfile => size_of::<abi::CreateIn>(),
        Read | Readdir | Readdirplus => size_of::<abi::ReadIn>(),
        Write => size_of::<abi::WriteIn>(),
        Release | Releasedir => size_of::<abi::ReleaseIn>(),
        Flush => size_of::<abi::FlushIn>(),
        Fsync | Fsyncdir => size_of::<abi::FsyncIn>(),
        Setxattr => size_of::<abi::SetxattrIn>(),
        Getxattr | Listxattr => size_of::<abi::GetxattrIn>(),
        Getlk | Setlk | Setlkw => size_of::<abi::LkIn>(),
        Interrupt => size_of::<abi::InterruptIn>(),
        Forget => size_of::<abi::ForgetIn>(),
        BatchForget => size_of::<abi::BatchForgetIn>(),
        Fallocate => size_of::<abi::FallocateIn>(),
        Ioctl => size_of::<abi::IoctlIn>(),
        Lseek => size_of::<abi::LseekIn>(),
        CopyFileRange | CopyFileRange64 => size_of::<abi::CopyFileRangeIn>(),
        Statx => size_of::<abi::StatxIn>(),
        Init => size_of::<abi::InitIn>(),
        Lookup | Readlink | Symlink | Unlink | Rmdir | Statfs | Removexattr | Access | Bmap | Destroy
        | Poll | NotifyReply | Setupmapping | Removemapping | Syncfs => 0,
    }
}

/// An operation with checked arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Getattr,
    Statx,
    Setattr(abi::SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: abi::MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: abi::MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        new_parent: InodeId,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        ino: InodeId,
        name: &'a [u8],
    },
    Open(abi::OpenIn),
    Create {
        args: abi::CreateIn,
        name: &'a [u8],
    },
    Tmpfile(abi::CreateIn),
    Read(abi::ReadIn),
    /// The data are the first `size` bytes of the request's data, which has at least that many.
    Write(abi::WriteIn),
    Flush(abi::FlushIn),
    Release(abi::ReleaseIn),
    Fsync(abi::FsyncIn),
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    Opendir,
    Readdir {
        args: abi::ReadIn,
        plus: bool,
    },
    Releasedir,
    Fsyncdir,
    Setxattr {
        flags: u32,
        kill_sgid: bool,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Getlk(abi::LkIn),
    Setlk {
        args: abi::LkIn,
        wait: bool,
    },
    Statfs,
    Syncfs,
    Destroy,
    /// The input is the request's data.
    Ioctl(abi::IoctlIn),
    /// Unknown or not supported.
    Unsupported,
}

impl<'a> Operation<'a> {
    /// Decodes an operation. Returns `EIO` for bytes that no kernel sends.
    pub fn decode(opcode: u32, args: &'a [u8], data: &'a [u8]) -> Result<Operation<'a>, Errno> {
        let Some(op) = Opcode::from_number(opcode) else { return Ok(Operation::Unsupported) };
        let mut rest = Strings(data);
        Ok(match op {
            Opcode::Lookup => Operation::Lookup { name: rest.entry_name()? },
            Opcode::Getattr => Operation::Getattr,
            Opcode::Statx => Operation::Statx,
            Opcode::Setattr => Operation::Setattr(get(args)?),
            Opcode::Readlink => Operation::Readlink,
            Opcode::Symlink => {
                Operation::Symlink { name: rest.entry_name()?, target: rest.next(SYMLINK_MAX)? }
            }
            Opcode::Mknod => Operation::Mknod { args: get(args)?, name: rest.entry_name()? },
            Opcode::Mkdir => Operation::Mkdir { args: get(args)?, name: rest.entry_name()? },
            Opcode::Unlink => Operation::Unlink { name: rest.entry_name()? },
            Opcode::Rmdir => Operation::Rmdir { name: rest.entry_name()? },
            Opcode::Rename => rename(get::<abi::RenameIn>(args)?.newdir, 0, rest)?,
            Opcode::Rename2 => {
                let args: abi::Rename2In = get(args)?;
                rename(args.newdir, args.flags, rest)?
            }
            Opcode::Link => Operation::Link {
                ino: InodeId(get::<abi::LinkIn>(args)?.oldnodeid),
                name: rest.entry_name()?,
            },
            Opcode::Create => Operation::Create { args: get(args)?, name: rest.entry_name()? },
            Opcode::Tmpfile => Operation::Tmpfile(get(args)?),
            Opcode::Setxattr => setxattr(args, rest)?,
            Opcode::Getxattr => Operation::Getxattr {
                size: get::<abi::GetxattrIn>(args)?.size,
                name: rest.next(XATTR_NAME_MAX)?,
            },
            Opcode::Listxattr => Operation::Listxattr { size: get::<abi::GetxattrIn>(args)?.size },
            Opcode::Removexattr => Operation::Removexattr { name: rest.next(XATTR_NAME_MAX)? },
            other => Operation::decode_file(other, args, data)?,
        })
    }

    /// Decodes operations without a name: on open files and on the file system.
    fn decode_file(op: Opcode, args: &[u8], data: &[u8]) -> Result<Operation<'a>, Errno> {
        Ok(match op {
            Opcode::Open => Operation::Open(get(args)?),
            Opcode::Read => Operation::Read(get(args)?),
            Opcode::Write => {
                let args: abi::WriteIn = get(args)?;
                if args.size as usize > data.len() {
                    return Err(Errno::EIO);
                }
                Operation::Write(args)
            }
            Opcode::Flush => Operation::Flush(get(args)?),
            Opcode::Release => Operation::Release(get(args)?),
            Opcode::Fsync => Operation::Fsync(get(args)?),
            Opcode::Fallocate => Operation::Fallocate(get(args)?),
            Opcode::Lseek => Operation::Lseek(get(args)?),
            Opcode::CopyFileRange => Operation::CopyFileRange { args: get(args)?, wide: false },
            Opcode::CopyFileRange64 => Operation::CopyFileRange { args: get(args)?, wide: true },
            Opcode::Opendir => Operation::Opendir,
            Opcode::Readdir => Operation::Readdir { args: get(args)?, plus: false },
            Opcode::Readdirplus => Operation::Readdir { args: get(args)?, plus: true },
            Opcode::Releasedir => Operation::Releasedir,
            Opcode::Fsyncdir => Operation::Fsyncdir,
            Opcode::Getlk => Operation::Getlk(get(args)?),
            Opcode::Setlk => Operation::Setlk { args: get(args)?, wait: false },
            Opcode::Setlkw => Operation::Setlk { args: get(args)?, wait: true },
            Opcode::Statfs => Operation::Statfs,
            Opcode::Syncfs => Operation::Syncfs,
            Opcode::Destroy => Operation::Destroy,
            Opcode::Ioctl => Operation::Ioctl(get(args)?),
            _ => Operation::Unsupported,
        })
    }
}

/// A request without a reply; these arrive on `/dev/fuse` with every transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OneWay {
    /// The kernel drops lookup references.
    Forget(Vec<(InodeId, u64)>),
    /// The process behind the request with this number received a signal.
    Interrupt(u64),
}

impl OneWay {
    /// Decodes the one-way request with this header and body; `None` for every request that needs a
    /// reply. Items missing from a short body are ignored.
    pub fn decode(header: &InHeader, body: &[u8]) -> Option<OneWay> {
        match Opcode::from_number(header.opcode)? {
            Opcode::Forget => {
                let count = abi::read::<abi::ForgetIn>(body).map_or(0, |f| f.nlookup);
                Some(OneWay::Forget(vec![(InodeId(header.nodeid), count)]))
            }
            Opcode::BatchForget => {
                let count = abi::read::<abi::BatchForgetIn>(body).map_or(0, |b| b.count as usize);
                let rest = body.get(size_of::<abi::BatchForgetIn>()..).unwrap_or_default();
                let items = rest.chunks_exact(size_of::<abi::ForgetOne>()).take(count);
                let items = items.filter_map(abi::read::<abi::ForgetOne>);
                Some(OneWay::Forget(items.map(|f| (InodeId(f.nodeid), f.nlookup)).collect()))
            }
            Opcode::Interrupt => {
                Some(OneWay::Interrupt(abi::read::<abi::InterruptIn>(body).map_or(0, |i| i.unique)))
            }
            _ => None,
        }
    }
}

fn get<T: Pod>(args: &[u8]) -> Result<T, Errno> {
    abi::read(args).ok_or(Errno::EIO)
}

fn rename<'a>(new_parent: u64, flags: u32, mut rest: Strings<'a>) -> Result<Operation<'a>, Errno> {
    let (name, new_name) = (rest.entry_name()?, rest.entry_name()?);
    Ok(Operation::Rename { new_parent: InodeId(new_parent), flags, name, new_name })
}

fn setxattr<'a>(args: &[u8], mut rest: Strings<'a>) -> Result<Operation<'a>, Errno> {
    let short: abi::SetxattrShortIn = get(args)?;
    let extra = abi::read::<abi::SetxattrIn>(args).map_or(0, |a| a.setxattr_flags);
    let name = rest.next(XATTR_NAME_MAX)?;
    let value = rest.0.get(..short.size as usize).ok_or(Errno::EIO)?;
    let kill_sgid = extra & abi::SETXATTR_ACL_KILL_SGID != 0;
    Ok(Operation::Setxattr { flags: short.flags, kill_sgid, name, value })
}

/// NUL-terminated strings, one after another.
struct Strings<'a>(&'a [u8]);

impl<'a> Strings<'a> {
    /// Returns the next string, without its NUL, at least one byte long.
    fn next(&mut self, max: usize) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Errno::EIO)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        match string.len() {
            0 => Err(Errno::EIO),
            len if len > max => Err(Errno::ENAMETOOLONG),
            _ => Ok(string),
        }
    }

    fn entry_name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.next(NAME_MAX)?;
        if name.contains(&b'/') { Err(Errno::EIO) } else { Ok(name) }
    }
}

#[cfg(test)]
mod tests;
