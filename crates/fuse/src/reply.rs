//! Bodies of replies: attributes and directory entries in the kernel's format.

use crate::abi::{self, Pod, bytes_of};
use client::CachedAttr;
use rt::IoBuf;
use types::{Attr, InodeId, Timestamp};

/// Time for which the kernel may trust dentries, negative dentries and attributes under a lease, in
/// seconds: forever (136 years). It is notified when the lease ends.
pub const LEASED_VALIDITY_SECS: u64 = u32::MAX as u64;

/// Returns how long the kernel may trust an entry or attributes that are trusted here, or aren't.
fn validity(cacheable: bool) -> u64 {
    if cacheable { LEASED_VALIDITY_SECS } else { 0 }
}

/// `st_blksize`, in bytes. Applications that buffer by it (stdio) send one request per buffer;
/// below 128 KiB the allocator still serves such a buffer from its heap.
pub const PREFERRED_IO_SIZE: u32 = 64 * 1024;

/// `stx_mask`: the basic attributes and the birth time.
const STATX_BASIC_AND_BTIME: u32 = 0x7ff | 0x800;

/// Copies a struct into a reply's body at `at`; returns the offset after it.
pub fn put<T: Pod>(out: &IoBuf, at: usize, value: &T) -> usize {
    out.copy_from(at, bytes_of(value));
    at + size_of::<T>()
}

/// Returns attributes in the kernel's format. Seconds before 1970 are negative and stay so.
pub fn raw_attr(attr: &Attr) -> abi::RawAttr {
    abi::RawAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs as u64,
        mtime: attr.mtime.secs as u64,
        ctime: attr.ctime.secs as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PREFERRED_IO_SIZE,
        flags: 0,
    }
}

/// Returns the reply for an existing entry. Inode numbers are never reused, so the generation is
/// constant.
pub fn entry(known: &CachedAttr) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: known.ino.0,
        generation: 1,
        entry_valid: validity(known.name_cacheable),
        attr_valid: validity(known.cacheable),
        entry_valid_nsec: 0,
        attr_valid_nsec: 0,
        attr: raw_attr(known),
    }
}

/// Returns the reply for a missing entry: the kernel caches a negative dentry if it is trusted, and
/// drops it when it creates the entry.
pub fn absent_entry(cacheable: bool) -> abi::EntryOut {
    abi::EntryOut { entry_valid: validity(cacheable), ..Default::default() }
}

/// Returns the reply of GETATTR and SETATTR.
pub fn attr_out(known: &CachedAttr) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: validity(known.cacheable),
        attr_valid_nsec: 0,
        dummy: 0,
        attr: raw_attr(known),
    }
}

/// Returns the reply of STATX.
pub fn statx_out(attr: &CachedAttr) -> abi::StatxOut {
    let time = |t: Timestamp| abi::SxTime { sec: t.secs, nsec: t.nanos, reserved: 0 };
    let stat = abi::RawStatx {
        mask: STATX_BASIC_AND_BTIME,
        blksize: PREFERRED_IO_SIZE,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: device_major(attr.rdev),
        rdev_minor: device_minor(attr.rdev),
        ..Default::default()
    };
    abi::StatxOut { attr_valid: validity(attr.cacheable), stat, ..Default::default() }
}

/// Returns the major number of the kernel's 32-bit device encoding (`new_decode_dev`).
fn device_major(dev: u32) -> u32 {
    (dev & 0xf_ff00) >> 8
}

/// Returns the minor number of the kernel's 32-bit device encoding.
fn device_minor(dev: u32) -> u32 {
    dev & 0xff | (dev >> 12) & 0xf_ff00
}

/// A directory entry in a listing.
pub struct ListedEntry<'a> {
    /// Its inode.
    pub ino: InodeId,
    /// `st_mode`, of which the listing contains the file type.
    pub mode: u32,
    /// Its name.
    pub name: &'a [u8],
    /// Offset at which the listing continues after it.
    pub next: u64,
}

/// Fills the body of READDIR and READDIRPLUS, never beyond the requested size.
pub struct DirWriter<'a> {
    out: &'a IoBuf,
    limit: usize,
    at: usize,
    plus: bool,
}

impl<'a> DirWriter<'a> {
    /// Creates a writer of at most `size` bytes to `out`; with attributes if `plus`.
    pub fn new(out: &'a IoBuf, size: usize, plus: bool) -> DirWriter<'a> {
        DirWriter { out, limit: size.min(out.len()), at: 0, plus }
    }

    /// Adds an entry; returns false and adds nothing when it doesn't fit. READDIRPLUS includes
    /// `attr`; without it the kernel uses only the name.
    pub fn push(&mut self, listed: &ListedEntry<'_>, attr: Option<&CachedAttr>) -> bool {
        let head = if self.plus { size_of::<abi::EntryOut>() } else { 0 } + size_of::<abi::Dirent>();
        let end = self.at + (head + listed.name.len()).next_multiple_of(8);
        if end > self.limit {
            return false;
        }
        let mut at = self.at;
        if self.plus {
            at = put(self.out, at, &attr.map_or_else(abi::EntryOut::default, entry));
        }
        let dirent = abi::Dirent {
            ino: listed.ino.0,
            off: listed.next,
            namelen: listed.name.len() as u32,
            kind: (listed.mode & types::mode::S_IFMT) >> 12,
        };
        at = put(self.out, at, &dirent);
        self.out.copy_from(at, listed.name);
        at += listed.name.len();
        self.out.copy_from(at, &[0; 8][..end - at]);
        self.at = end;
        true
    }

    /// Returns the bytes written so far.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Returns true if entries include their attributes.
    pub fn includes_attributes(&self) -> bool {
        self.plus
    }

    /// Returns how many entries fit at most, to request a listing of the right length.
    pub fn capacity(size: usize, plus: bool) -> u32 {
        let head = if plus { size_of::<abi::EntryOut>() } else { 0 } + size_of::<abi::Dirent>();
        // The shortest name takes 8 bytes with its padding.
        (size / (head + 8)).max(1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::mode::{S_IFDIR, S_IFREG};

    fn known() -> CachedAttr {
        CachedAttr { attr: attr(), cacheable: true, name_cacheable: true }
    }

    fn attr() -> Attr {
        Attr {
            ino: InodeId(77),
            mode: S_IFREG | 0o640,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 0,
            size: 5000,
            blocks: 16,
            atime: Timestamp::new(-2, 999_999_999),
            mtime: Timestamp::new(1, 2),
            ctime: Timestamp::new(1 << 33, 3),
            btime: Timestamp::new(-5, 4),
            flags: types::InodeFlags::NONE,
            project: types::ProjectId(0),
            has_no_xattrs: true,
        }
    }

    #[test]
    fn times_before_1970_and_after_2038_survive() {
        let raw = raw_attr(&attr());
        assert_eq!((raw.atime as i64, raw.atimensec), (-2, 999_999_999));
        assert_eq!((raw.ctime as i64, raw.ctimensec), (1 << 33, 3));
        let stat = statx_out(&known()).stat;
        assert_eq!((stat.btime.sec, stat.btime.nsec), (-5, 4));
        assert_eq!(stat.mask & 0x800, 0x800);
    }

    #[test]
    fn device_numbers_follow_the_kernel() {
        // new_encode_dev(major 259, minor 65537) = (minor & 0xff) | major << 8 | (minor & !0xff) <<
        // 12.
        let dev = (65537 & 0xff) | 259 << 8 | (65537 & !0xff) << 12;
        assert_eq!((device_major(dev), device_minor(dev)), (259, 65537));
    }

    #[test]
    fn an_absent_name_has_no_inode_and_is_trusted_or_not() {
        let entry = absent_entry(true);
        assert_eq!((entry.nodeid, entry.entry_valid), (0, LEASED_VALIDITY_SECS));
        assert_eq!(absent_entry(false).entry_valid, 0);
    }

    #[test]
    fn names_and_attributes_are_trusted_each_by_its_own_lease() {
        let entry = |trusted, name_trusted| {
            entry(&CachedAttr { attr: attr(), cacheable: trusted, name_cacheable: name_trusted })
        };
        let valid = |entry: abi::EntryOut| (entry.entry_valid, entry.attr_valid);
        assert_eq!(valid(entry(true, false)), (0, LEASED_VALIDITY_SECS));
        assert_eq!(valid(entry(false, true)), (LEASED_VALIDITY_SECS, 0));
        let attributes = |trusted| {
            attr_out(&CachedAttr { attr: attr(), cacheable: trusted, name_cacheable: true }).attr_valid
        };
        assert_eq!((attributes(true), attributes(false)), (LEASED_VALIDITY_SECS, 0));
    }

    #[test]
    fn entries_are_packed_to_8_bytes_and_stop_at_the_limit() {
        let out = IoBuf::alloc(4096);
        let mut writer = DirWriter::new(&out, 72, false);
        let listed = |name: &'static [u8], next| ListedEntry { ino: InodeId(9), mode: S_IFDIR, name, next };
        assert!(writer.push(&listed(b"abc", 16), None));
        assert!(writer.push(&listed(b"12345678", 17), None));
        assert_eq!(writer.len(), 64);
        assert!(!writer.push(&listed(b"x", 18), None));
        assert_eq!(writer.len(), 64);
        let bytes = out.as_slice();
        let first: abi::Dirent = abi::read(bytes).unwrap();
        assert_eq!(first, abi::Dirent { ino: 9, off: 16, namelen: 3, kind: 4 });
        assert_eq!(&bytes[24..32], b"abc\0\0\0\0\0");
        let second: abi::Dirent = abi::read(&bytes[32..]).unwrap();
        assert_eq!((second.off, &bytes[56..64]), (17, b"12345678".as_slice()));
    }

    #[test]
    fn entries_with_attributes_carry_them_first() {
        let out = IoBuf::alloc(4096);
        let mut writer = DirWriter::new(&out, 4096, true);
        let listed = ListedEntry { ino: InodeId(77), mode: S_IFREG, name: b"f", next: 20 };
        assert!(writer.push(&listed, Some(&known())));
        assert!(writer.push(&listed, None));
        assert_eq!(writer.len(), 2 * 160);
        let first: abi::EntryOut = abi::read(out.as_slice()).unwrap();
        assert_eq!(first, entry(&known()));
        let second: abi::EntryOut = abi::read(&out.as_slice()[160..]).unwrap();
        assert_eq!(second.nodeid, 0);
    }

    #[test]
    fn capacity_matches_the_entries_that_fit() {
        for plus in [false, true] {
            let out = IoBuf::alloc(4096);
            let mut writer = DirWriter::new(&out, 4096, plus);
            let listed = ListedEntry { ino: InodeId(1), mode: S_IFREG, name: b"n", next: 16 };
            let mut count = 0;
            while writer.push(&listed, None) {
                count += 1;
            }
            assert_eq!(count, DirWriter::capacity(4096, plus));
        }
    }
}
