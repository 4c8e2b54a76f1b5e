//! Attributes: times, ownership, extended attributes, access control lists.

use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno, skip};
use super::stage::{Stage, Subject};
use super::{Scope, TestCase, tools};
use crate::{process, sys};
use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "xattr_namespaces", scope: Scope::Mounted, minutes: 1, run: xattr_namespaces },
    TestCase { name: "acl_inheritance", scope: Scope::Mounted, minutes: 1, run: acl_inheritance },
    TestCase { name: "birth_time", scope: Scope::Mounted, minutes: 1, run: birth_time },
    TestCase { name: "times_far_away", scope: Scope::Mounted, minutes: 1, run: times_far_away },
    TestCase { name: "setgid_folder", scope: Scope::Mounted, minutes: 1, run: setgid_folder },
    TestCase { name: "write_clears_setuid", scope: Scope::Mounted, minutes: 1, run: write_clears_setuid },
    TestCase { name: "space_is_reported", scope: Scope::Mounted, minutes: 1, run: space_is_reported },
    TestCase { name: "inodes_are_counted", scope: Scope::Mounted, minutes: 2, run: inodes_are_counted },
    TestCase { name: "access_times", scope: Scope::Mounted, minutes: 1, run: access_times },
];

/// A regular user that exists on every Debian.
const OTHER_USER: u32 = 1;

/// Deadline of one small program.
const DEADLINE: Duration = Duration::from_secs(60);

fn xattr_namespaces(stage: &Stage) -> TestResult {
    let dir = stage.folder("xattr_namespaces")?;
    let file = dir.join("file");
    fs::write(&file, "").at("file")?;
    expect_errno(sys::get_xattr(&file, "user.none"), libc::ENODATA, "an attribute that isn't there")?;
    sys::set_xattr(&file, "user.a", b"one", 0).at("user.a")?;
    sys::set_xattr(&file, "user.empty", b"", 0).at("user.empty")?;
    sys::set_xattr(&dir, "user.on.folder", &[0, 255, 7], 0).at("user.on.folder")?;
    ensure_eq!(sys::get_xattr(&file, "user.a").at("user.a")?, b"one", "user.a");
    ensure_eq!(sys::get_xattr(&file, "user.empty").at("user.empty")?, b"", "user.empty");
    ensure_eq!(sys::get_xattr(&dir, "user.on.folder").at("folder")?, [0, 255, 7], "user.on.folder");
    let create = sys::set_xattr(&file, "user.a", b"", libc::XATTR_CREATE);
    expect_errno(create, libc::EEXIST, "XATTR_CREATE of one that is there")?;
    let replace = sys::set_xattr(&file, "user.b", b"", libc::XATTR_REPLACE);
    expect_errno(replace, libc::ENODATA, "XATTR_REPLACE of one that isn't there")?;
    sys::set_xattr(&file, "user.a", &[9; 3000], libc::XATTR_REPLACE).at("XATTR_REPLACE")?;
    ensure_eq!(sys::get_xattr(&file, "user.a").at("user.a")?, [9; 3000], "user.a, replaced");
    let mut names = vec!["user.a", "user.empty"];
    if sys::is_root() {
        for name in ["trusted.t", "security.s"] {
            sys::set_xattr(&file, name, name.as_bytes(), 0).at(name)?;
            ensure_eq!(sys::get_xattr(&file, name).at(name)?, name.as_bytes(), "{name}");
            names.insert(0, name);
        }
        names.sort_unstable();
    }
    ensure_eq!(sys::list_xattrs(&file).at("list")?, names, "names listed");
    expect_errno(sys::set_xattr(&file, "nospace.x", b"", 0), libc::EOPNOTSUPP, "an unknown namespace")?;
    sys::remove_xattr(&file, "user.a").at("remove")?;
    expect_errno(sys::get_xattr(&file, "user.a"), libc::ENODATA, "a removed attribute")?;
    expect_errno(sys::remove_xattr(&file, "user.a"), libc::ENODATA, "removing it again")?;
    fs::hard_link(&file, dir.join("link")).at("link")?;
    ensure_eq!(sys::get_xattr(&dir.join("link"), "user.empty").at("link")?, b"", "by the other name");
    Ok(())
}

/// Runs `setfacl` or `getfacl` and returns its output.
fn acl(arguments: &[&str], path: &Path) -> TestResult<String> {
    let program = tools::find(arguments[0])?;
    Ok(process::run_ok(Command::new(program).args(&arguments[1..]).arg(path), DEADLINE)?.stdout)
}

fn acl_inheritance(stage: &Stage) -> TestResult {
    let dir = stage.folder("acl_inheritance")?;
    acl(&["setfacl", "-m", "u:daemon:rwx,d:u:daemon:rwx,d:g::r-x,d:o::---"], &dir)?;
    fs::create_dir(dir.join("sub")).at("sub")?;
    fs::write(dir.join("sub/file"), "").at("file")?;
    let sub = acl(&["getfacl", "-cpn", "--default"], &dir.join("sub"))?;
    ensure!(
        sub.contains("user:1:rwx") && sub.contains("other::---"),
        "the default ACL isn't inherited: {sub}"
    );
    let file = acl(&["getfacl", "-cpn"], &dir.join("sub/file"))?;
    ensure!(file.contains("user:1:rwx"), "a file in the sub-folder lacks the entry: {file}");
    let mode = fs::metadata(dir.join("sub/file")).at("file")?.mode() & 0o777;
    ensure_eq!(mode, 0o660, "mode of the file: cut by the default ACL, not by the umask");

    fs::set_permissions(dir.join("sub/file"), fs::Permissions::from_mode(0o640)).at("chmod")?;
    let masked = acl(&["getfacl", "-cpn"], &dir.join("sub/file"))?;
    ensure!(masked.contains("mask::r--"), "chmod didn't change the mask: {masked}");
    acl(&["setfacl", "-b"], &dir.join("sub/file"))?;
    let plain = acl(&["getfacl", "-cpn"], &dir.join("sub/file"))?;
    ensure!(!plain.contains("user:1"), "setfacl -b left the entry: {plain}");
    if !sys::is_root() {
        return Ok(());
    }
    // The entry must be enforced, not only shown.
    fs::write(dir.join("secret"), "secret").at("secret")?;
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).at("chmod")?;
    let read = || {
        process::run(Command::new("cat").arg(dir.join("secret")).uid(OTHER_USER).gid(OTHER_USER), DEADLINE)
    };
    ensure!(!read()?.status.success(), "another user reads a file of mode 0600");
    acl(&["setfacl", "-m", "u:daemon:r"], &dir.join("secret"))?;
    ensure_eq!(read()?.stdout, "secret", "what the user named in the ACL reads");
    Ok(())
}

fn birth_time(stage: &Stage) -> TestResult {
    let dir = stage.folder("birth_time")?;
    let file = dir.join("file");
    fs::write(&file, "a").at("file")?;
    let Some(born) = sys::birth_time(&file).at("statx")? else {
        return Err("statx reports no birth time".to_string().into());
    };
    let made = fs::metadata(&file).at("stat")?;
    let distance = (made.mtime() - born.0).abs();
    ensure!(distance <= 60, "born {distance} s away from its first change");
    fs::write(&file, "b").at("file")?;
    fs::rename(&file, dir.join("moved")).at("rename")?;
    let past = FileTimes::new().set_modified(UNIX_EPOCH);
    File::options()
        .write(true)
        .open(dir.join("moved"))
        .and_then(|file| file.set_times(past))
        .at("set_times")?;
    ensure_eq!(sys::birth_time(&dir.join("moved")).at("statx")?, Some(born), "birth time after changes");
    Ok(())
}

fn times_far_away(stage: &Stage) -> TestResult {
    let dir = stage.folder("times_far_away")?;
    let path = dir.join("file");
    let file = File::create(&path).at("file")?;
    let set = |time: SystemTime| file.set_times(FileTimes::new().set_accessed(time).set_modified(time));
    // The last second of 32-bit time, the first beyond it, and one that ext4 and XFS can still
    // store.
    for seconds in [i32::MAX as u64, i32::MAX as u64 + 1, 7_000_000_000] {
        set(UNIX_EPOCH + Duration::new(seconds, 123_456_789)).at("set_times")?;
        let meta = fs::metadata(&path).at("stat")?;
        let expected = (seconds as i64, 123_456_789);
        ensure_eq!((meta.mtime(), meta.mtime_nsec()), expected, "mtime");
        ensure_eq!((meta.atime(), meta.atime_nsec()), expected, "atime");
    }
    // Before 1970, with a fraction: seconds round down, nanoseconds stay positive.
    set(UNIX_EPOCH - Duration::from_millis(1500)).at("set_times")?;
    let meta = fs::metadata(&path).at("stat")?;
    ensure_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 500_000_000), "mtime before 1970");
    if stage.binary().is_ok() {
        drop(file);
        stage.restart()?;
        let meta = fs::metadata(&path).at("stat")?;
        ensure_eq!((meta.mtime(), meta.mtime_nsec()), (-2, 500_000_000), "mtime after a restart");
    }
    Ok(())
}

fn setgid_folder(stage: &Stage) -> TestResult {
    if !sys::is_root() {
        return skip("giving files away needs root");
    }
    let dir = stage.folder("setgid_folder")?;
    chown(&dir, None, Some(OTHER_USER)).at("chown")?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2755)).at("chmod")?;
    fs::write(dir.join("file"), "").at("file")?;
    fs::create_dir(dir.join("sub")).at("sub")?;
    let (file, sub) = (fs::metadata(dir.join("file")).at("file")?, fs::metadata(dir.join("sub")).at("sub")?);
    ensure_eq!((file.gid(), sub.gid()), (OTHER_USER, OTHER_USER), "groups of file and folder");
    ensure_eq!(file.mode() & 0o2000, 0, "setgid bit of the file");
    ensure_eq!(sub.mode() & 0o2000, 0o2000, "setgid bit of the folder");
    Ok(())
}

fn write_clears_setuid(stage: &Stage) -> TestResult {
    if !sys::is_root() {
        return skip("writing as another user needs root");
    }
    let dir = stage.folder("write_clears_setuid")?;
    let path = dir.join("program");
    let set = || fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).at("chmod");
    File::create(&path).and_then(|mut file| file.write_all(b"text")).at("program")?;
    // With direct I/O, the file system must clear them: in an inline file and in a larger one, by a
    // write and by an open.
    let past =
        |bytes: u32| format!("dd if=/dev/zero of=program bs={bytes} count=1 oflag=direct conv=notrunc");
    let changes = [
        "echo more >> program",
        "truncate -s 2 program",
        &past(512),
        &past(1 << 20),
        &past(4096),
        ": > program",
    ];
    for change in changes {
        set()?;
        let mut shell = Command::new("sh");
        shell.args(["-c", change]).current_dir(&dir).uid(OTHER_USER).gid(OTHER_USER);
        process::run_ok(&mut shell, DEADLINE)?;
        // If only the mode is requested, the kernel uses its cached one: this is what an exec uses.
        let told = process::run_ok(Command::new("stat").args(["--format", "%a"]).arg(&path), DEADLINE)?;
        ensure_eq!(told.stdout.trim(), "777", "mode after `{change}` by another user");
    }
    Ok(())
}

fn space_is_reported(stage: &Stage) -> TestResult {
    let (free, total) = sys::space(&stage.root()?).at("statvfs")?;
    ensure!(total > 0 && free <= total, "{free} bytes free of {total}");
    let file = stage.folder("space_is_reported")?.join("file");
    fs::write(&file, vec![1; 4 << 20]).at("file")?;
    File::open(&file).and_then(|file| sys::sync_file_system(&file)).at("syncfs")?;
    let blocks = fs::metadata(&file).at("stat")?.blocks();
    ensure!(blocks >= (4 << 20) / 512, "4 MiB take {blocks} blocks of 512 bytes");
    Ok(())
}

/// Returns the number of used and of all inodes, as shown by `df -i`.
fn inodes_in_use(path: &Path) -> TestResult<(u64, u64)> {
    let said = process::run_ok(Command::new("df").arg("--output=iused,iavail").arg(path), DEADLINE)?.stdout;
    let mut numbers = said.lines().last().unwrap_or_default().split_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(used)), Some(Ok(free))) => Ok((used, free)),
        _ => Err(format!("df -i says {said:?}").into()),
    }
}

/// Waits for a number of used inodes: a count is cached for a second, and deleted files are removed
/// in the background.
fn inodes_in_use_are(path: &Path, expected: u64) -> TestResult {
    let end = Instant::now() + DEADLINE;
    loop {
        let (used, _) = inodes_in_use(path)?;
        if used == expected {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{used} inodes are in use, expected {expected}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the number of used inodes once it is stable: files deleted by earlier tests may still be
/// in removal.
fn stable_inode_count(path: &Path) -> TestResult<u64> {
    /// Number of equal consecutive counts, each a fresh one, that makes the count stable.
    const SAME: u32 = 3;
    let end = Instant::now() + DEADLINE;
    let (mut last, mut same) = (inodes_in_use(path)?.0, 0);
    while same < SAME {
        ensure!(Instant::now() < end, "{last} inodes are in use, and the number doesn't rest");
        thread::sleep(Duration::from_millis(1100));
        let now = inodes_in_use(path)?.0;
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

fn inodes_are_counted(stage: &Stage) -> TestResult {
    if let Subject::Directory(_) = stage.subject {
        return skip("other processes use the file system");
    }
    const FILES: u64 = 300;
    let dir = stage.folder("inodes_are_counted")?;
    let (used, free) = inodes_in_use(&dir)?;
    ensure!(used > 0 && free > 1000, "{used} inodes in use and {free} free");
    let before = stable_inode_count(&dir)?;
    for number in 0..FILES {
        fs::write(dir.join(format!("file-{number}")), "content").at("file")?;
    }
    fs::create_dir(dir.join("below")).at("mkdir")?;
    fs::hard_link(dir.join("file-0"), dir.join("link")).at("link")?;
    std::os::unix::fs::symlink("file-0", dir.join("symlink")).at("symlink")?;
    inodes_in_use_are(&dir, before + FILES + 2)?;
    for number in 0..FILES {
        fs::remove_file(dir.join(format!("file-{number}"))).at("unlink")?;
    }
    inodes_in_use_are(&dir, before + 3)
}

fn access_times(stage: &Stage) -> TestResult {
    let dir = stage.folder("access_times")?;
    let file = dir.join("file");
    fs::write(&file, vec![7; 8192]).at("file")?;
    File::open(&file).and_then(|file| file.sync_all()).at("fsync")?;
    // Reads from the page cache aren't visible to the file system.
    let read = || {
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", file.display())).args([
            "of=/dev/null",
            "bs=4096",
            "iflag=direct",
            "status=none",
        ]);
        process::run_ok(&mut dd, DEADLINE).map(drop)
    };
    let times = || {
        let meta = fs::metadata(&file).at("stat")?;
        Ok::<_, super::outcome::Failure>([
            (meta.atime(), meta.atime_nsec()),
            (meta.mtime(), meta.mtime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ])
    };
    let before = times()?;
    read()?;
    let after = times()?;
    ensure!(after[0] > before[0], "a read doesn't show: {before:?}, then {after:?}");
    ensure_eq!(after[1..], before[1..], "mtime and ctime after a read");
    read()?;
    ensure_eq!(times()?, after, "times after a second read");
    let given = FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    File::options().write(true).open(&file).and_then(|file| file.set_times(given)).at("set_times")?;
    ensure_eq!(times()?[0], (1_000_000_000, 0), "a time that is set");
    read()?;
    ensure!(times()?[0] > after[0], "a read after that doesn't show");
    Ok(())
}
