//! Names: renames, links, special files, unnamed files.

use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::sys;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "rename_exchange_and_noreplace", scope: Scope::Mounted, minutes: 1, run: rename_flags },
    TestCase { name: "rename_over_open_file", scope: Scope::Mounted, minutes: 1, run: rename_over_open_file },
    TestCase { name: "unlink_while_open", scope: Scope::Mounted, minutes: 1, run: unlink_while_open },
    TestCase { name: "hard_links", scope: Scope::Mounted, minutes: 1, run: hard_links },
    TestCase { name: "tmpfile", scope: Scope::Mounted, minutes: 1, run: tmpfile },
    TestCase { name: "special_nodes", scope: Scope::Mounted, minutes: 1, run: special_nodes },
    TestCase { name: "odd_names", scope: Scope::Mounted, minutes: 1, run: odd_names },
];

fn rename_flags(stage: &Stage) -> TestResult {
    let dir = stage.folder("rename_flags")?;
    let (a, b, folder) = (dir.join("a"), dir.join("b"), dir.join("folder"));
    fs::write(&a, "a").at("a")?;
    fs::write(&b, "b").at("b")?;
    fs::create_dir(&folder).at("folder")?;
    fs::write(folder.join("inside"), "inside").at("inside")?;

    expect_errno(sys::rename(&a, &b, libc::RENAME_NOREPLACE), libc::EEXIST, "NOREPLACE onto a file")?;
    expect_errno(sys::rename(&a, &folder, libc::RENAME_NOREPLACE), libc::EEXIST, "NOREPLACE onto a folder")?;
    ensure_eq!(fs::read(&b).at("b")?, b"b", "b after a refused rename");
    sys::rename(&a, &dir.join("c"), libc::RENAME_NOREPLACE).at("NOREPLACE onto nothing")?;
    ensure!(!a.exists(), "a is still there after its rename");

    sys::rename(&dir.join("c"), &b, libc::RENAME_EXCHANGE).at("EXCHANGE of files")?;
    ensure_eq!(fs::read(&b).at("b")?, b"a", "b after the exchange");
    ensure_eq!(fs::read(dir.join("c")).at("c")?, b"b", "c after the exchange");
    expect_errno(sys::rename(&b, &a, libc::RENAME_EXCHANGE), libc::ENOENT, "EXCHANGE with nothing")?;

    let links_before = fs::metadata(&dir).at("dir")?.nlink();
    sys::rename(&b, &folder, libc::RENAME_EXCHANGE).at("EXCHANGE of a file and a folder")?;
    ensure_eq!(fs::read(b.join("inside")).at("inside")?, b"inside", "the folder under its other name");
    ensure!(folder.is_file(), "the file under the folder's name is no file");
    ensure_eq!(fs::metadata(&dir).at("dir")?.nlink(), links_before, "links of the parent folder");
    let both = (libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE) as libc::c_uint;
    expect_errno(sys::rename(&b, &folder, both), libc::EINVAL, "EXCHANGE and NOREPLACE together")
}

fn rename_over_open_file(stage: &Stage) -> TestResult {
    let dir = stage.folder("rename_over_open_file")?;
    for length in [100, 300_000] {
        let (old, new) = (vec![b'o'; length], vec![b'n'; length]);
        fs::write(dir.join("file"), &old).at("file")?;
        let mut open = File::options().read(true).write(true).open(dir.join("file")).at("file")?;
        fs::write(dir.join("other"), &new).at("other")?;
        fs::rename(dir.join("other"), dir.join("file")).at("rename")?;
        ensure_eq!(open.metadata().at("fstat")?.nlink(), 0, "links of the replaced file");
        let mut read = Vec::new();
        open.read_to_end(&mut read).at("read of the replaced file")?;
        ensure!(read == old, "the open file changed when another was renamed over it");
        open.write_all(b"more").at("write to the replaced file")?;
        ensure!(fs::read(dir.join("file")).at("file")? == new, "the new file changed with the replaced one");
    }
    Ok(())
}

fn unlink_while_open(stage: &Stage) -> TestResult {
    let dir = stage.folder("unlink_while_open")?;
    for length in [10usize, 2 << 20] {
        let path = dir.join("file");
        fs::write(&path, vec![7; length]).at("file")?;
        let mut open = File::options().read(true).append(true).open(&path).at("file")?;
        fs::remove_file(&path).at("unlink")?;
        ensure!(!path.exists(), "the name is still there");
        fs::remove_dir(&dir).and_then(|()| fs::create_dir(&dir)).at("the folder is empty for rmdir")?;
        open.write_all(&[8; 5000]).at("write without a name")?;
        open.sync_all().at("fsync without a name")?;
        let mut read = Vec::new();
        open.rewind().and_then(|()| open.read_to_end(&mut read)).at("read without a name")?;
        ensure_eq!(read.len(), length + 5000, "length without a name");
        ensure!(read[..length].iter().all(|byte| *byte == 7), "content lost with the name");
        open.set_len(3).at("truncate without a name")?;
        ensure_eq!(open.metadata().at("fstat")?.len(), 3, "length after truncate");
    }
    Ok(())
}

fn hard_links(stage: &Stage) -> TestResult {
    let dir = stage.folder("hard_links")?;
    let other = dir.join("other");
    fs::create_dir(&other).at("other")?;
    fs::write(dir.join("a"), "one").at("a")?;
    fs::hard_link(dir.join("a"), other.join("b")).at("link")?;
    let (a, b) = (fs::metadata(dir.join("a")).at("a")?, fs::metadata(other.join("b")).at("b")?);
    ensure_eq!((a.ino(), a.nlink()), (b.ino(), 2), "inode and links of both names");
    fs::write(other.join("b"), "two").at("write by the other name")?;
    ensure_eq!(fs::read(dir.join("a")).at("a")?, b"two", "content by the first name");
    // Two links to one inode: POSIX specifies that this rename does nothing.
    fs::rename(dir.join("a"), other.join("b")).at("rename onto a link of itself")?;
    ensure!(dir.join("a").exists(), "a rename onto a link of itself removed a name");
    fs::remove_file(dir.join("a")).at("unlink")?;
    ensure_eq!(fs::metadata(other.join("b")).at("b")?.nlink(), 1, "links after unlink");
    expect_errno(fs::hard_link(&other, dir.join("folder")), libc::EPERM, "link of a folder")
}

fn tmpfile(stage: &Stage) -> TestResult {
    let dir = stage.folder("tmpfile")?;
    let open = |extra: i32| {
        File::options().read(true).write(true).custom_flags(libc::O_TMPFILE | extra).mode(0o640).open(&dir)
    };
    let mut file = open(0).at("O_TMPFILE")?;
    file.write_all(b"content").at("write")?;
    ensure_eq!(file.metadata().at("fstat")?.nlink(), 0, "links before it has a name");
    ensure_eq!(fs::read_dir(&dir).at("readdir")?.count(), 0, "entries before it has a name");
    sys::link_open_file(&file, &dir.join("named")).at("linkat")?;
    ensure_eq!(fs::read(dir.join("named")).at("named")?, b"content", "content under its name");
    ensure_eq!(fs::metadata(dir.join("named")).at("named")?.nlink(), 1, "links under its name");
    let never = open(libc::O_EXCL).at("O_TMPFILE with O_EXCL")?;
    expect_errno(sys::link_open_file(&never, &dir.join("never")), libc::ENOENT, "naming an O_EXCL file")
}

fn special_nodes(stage: &Stage) -> TestResult {
    let dir = stage.folder("special_nodes")?;
    let kind = |name: &str| fs::symlink_metadata(dir.join(name)).map(|meta| meta.file_type()).at(name);
    sys::mknod(&dir.join("fifo"), libc::S_IFIFO | 0o600, 0).at("mknod of a fifo")?;
    ensure!(kind("fifo")?.is_fifo(), "the fifo is none");
    // An open fifo is handled by the kernel: both ends meet through the name.
    let path = dir.join("fifo");
    let writer = std::thread::spawn(move || fs::write(path, "through"));
    ensure_eq!(fs::read(dir.join("fifo")).at("fifo")?, b"through", "what came through the fifo");
    writer.join().map_err(|_| "the writer panicked".to_string())?.at("write to the fifo")?;

    let _listener = std::os::unix::net::UnixListener::bind(dir.join("socket")).at("bind of a socket")?;
    ensure!(kind("socket")?.is_socket(), "the socket is none");
    std::os::unix::net::UnixStream::connect(dir.join("socket")).at("connect to the socket")?;

    if sys::is_root() {
        // Minor numbers beyond 8 bits need the kernel's wide encoding.
        let device = sys::device(1, 0x1_2345);
        sys::mknod(&dir.join("char"), libc::S_IFCHR | 0o600, device).at("mknod of a character device")?;
        sys::mknod(&dir.join("block"), libc::S_IFBLK | 0o600, device).at("mknod of a block device")?;
        ensure!(kind("char")?.is_char_device() && kind("block")?.is_block_device(), "the devices are none");
        for name in ["char", "block"] {
            ensure_eq!(fs::metadata(dir.join(name)).at(name)?.rdev(), device, "device number of {name}");
        }
        sys::mknod(&dir.join("null"), libc::S_IFCHR | 0o600, sys::device(1, 3)).at("mknod of null")?;
        fs::write(dir.join("null"), "gone").at("write to the null device")?;
    }
    Ok(())
}

fn odd_names(stage: &Stage) -> TestResult {
    let dir = stage.folder("odd_names")?;
    let longest = "n".repeat(255);
    let names = [" ", "...", "new\nline", "\u{fffd}ü漢", "-rf", "a\\b", "%s", longest.as_str()];
    for name in names {
        fs::write(dir.join(name), name).at(name)?;
    }
    let mut listed: Vec<_> =
        fs::read_dir(&dir).at("readdir")?.flatten().map(|entry| entry.file_name()).collect();
    let mut expected: Vec<_> = names.iter().map(std::ffi::OsString::from).collect();
    listed.sort();
    expected.sort();
    ensure_eq!(listed, expected, "names listed");
    for name in names {
        ensure_eq!(fs::read(dir.join(name)).at(name)?, name.as_bytes(), "content of {name:?}");
    }
    expect_errno(fs::write(dir.join("n".repeat(256)), ""), libc::ENAMETOOLONG, "a name of 256 bytes")?;
    // XFS limits symlinks to 1024; weft has the kernel's own limit.
    let longest = if stage.binary().is_ok() { 4095 } else { 1000 };
    for length in [1, 60, longest] {
        let (link, target) = (dir.join(format!("link{length}")), "t".repeat(length));
        symlink(&target, &link).at("symlink")?;
        ensure_eq!(fs::read_link(&link).at("readlink")?, Path::new(&target), "a link of {length} bytes");
    }
    Ok(())
}
