//! Inode flags and project ids, tested with the standard programs.

use super::outcome::{At, Failure, TestResult, ensure, ensure_eq, expect_errno, skip};
use super::stage::{Stage, Subject};
use super::{Scope, TestCase, tools};
use crate::{process, sys};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "immutable_files", scope: Scope::Mounted, minutes: 1, run: immutable_files },
    TestCase { name: "append_only_files", scope: Scope::Mounted, minutes: 1, run: append_only_files },
    TestCase { name: "marked_folders", scope: Scope::Mounted, minutes: 1, run: marked_folders },
    TestCase { name: "who_may_mark_files", scope: Scope::Mounted, minutes: 1, run: who_may_mark_files },
    TestCase { name: "projects_of_files", scope: Scope::Mounted, minutes: 1, run: projects_of_files },
];

/// A regular user that exists on every Debian.
const OTHER_USER: u32 = 1;

/// Deadline of one small program.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs an installed program, and returns its output.
fn output_of(arguments: &[&str], path: &Path) -> TestResult<String> {
    let program = tools::find(arguments[0])?;
    Ok(process::run_ok(Command::new(program).args(&arguments[1..]).arg(path), DEADLINE)?.stdout)
}

fn chattr(change: &str, path: &Path) -> TestResult {
    output_of(&["chattr", change], path).map(drop)
}

/// Returns the letters that lsattr(1) shows.
fn letters(path: &Path) -> TestResult<String> {
    let line = output_of(&["lsattr", "-d"], path)?;
    Ok(line.split_whitespace().next().unwrap_or_default().replace('-', ""))
}

fn project(path: &Path) -> TestResult<u32> {
    let line = output_of(&["lsattr", "-dp"], path)?;
    let number = line.split_whitespace().next().and_then(|word| word.parse().ok());
    number.ok_or_else(|| format!("lsattr -p says {line:?}").into())
}

fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).open(path)
}

/// Clears the flags when dropped, so that the folder can be removed after any test result.
struct FlaggedFiles<'a>(&'a Path);

impl Drop for FlaggedFiles<'_> {
    fn drop(&mut self) {
        if let Ok(chattr) = tools::find("chattr") {
            let _ = process::run(Command::new(chattr).args(["-R", "-ia"]).arg(self.0), DEADLINE);
        }
    }
}

fn only_root() -> TestResult {
    if sys::is_root() { Ok(()) } else { skip("needs root") }
}

fn immutable_files(stage: &Stage) -> TestResult {
    only_root()?;
    let dir = stage.folder("immutable_files")?;
    let _marked = FlaggedFiles(&dir);
    let file = dir.join("file");
    fs::write(&file, "kept").at("file")?;
    ensure_eq!(letters(&file)?, "", "flags of a new file");
    let before = fs::metadata(&file).at("stat")?;
    let mut open = append(&file).at("open")?;
    chattr("+i", &file)?;
    ensure_eq!(letters(&file)?, "i", "flags");
    let changed = |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec());
    ensure!(changed(&fs::metadata(&file).at("stat")?) > changed(&before), "the file's ctime is the old one");
    let eperm = |what: &str, outcome: io::Result<()>| expect_errno(outcome, libc::EPERM, what);
    eperm("open for writing", File::options().write(true).open(&file).map(drop))?;
    eperm("open for appending", append(&file).map(drop))?;
    eperm("open and cut", File::create(&file).map(drop))?;
    eperm("cut", sys::truncate(&file, 1))?;
    eperm("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600)))?;
    eperm("chown", chown(&file, Some(OTHER_USER), None))?;
    eperm("setxattr", sys::set_xattr(&file, "user.a", b"1", 0))?;
    eperm("unlink", fs::remove_file(&file))?;
    eperm("link", fs::hard_link(&file, dir.join("link")))?;
    eperm("rename", fs::rename(&file, dir.join("moved")))?;
    fs::write(dir.join("other"), "").at("other")?;
    eperm("rename over it", fs::rename(dir.join("other"), &file))?;
    ensure_eq!(fs::read(&file).at("read")?, b"kept", "content");
    open.write_all(b" on").at("what was open is written as before")?;
    drop(open);
    chattr("-i", &file)?;
    ensure_eq!(letters(&file)?, "", "flags without");
    append(&file).and_then(|mut file| file.write_all(b"!")).at("open for writing again")?;
    ensure_eq!(fs::read(&file).at("read")?, b"kept on!", "content at the end");
    fs::remove_file(&file).at("unlink at the end")
}

fn append_only_files(stage: &Stage) -> TestResult {
    only_root()?;
    let dir = stage.folder("append_only_files")?;
    let _marked = FlaggedFiles(&dir);
    let file = dir.join("log");
    fs::write(&file, "one\n").at("file")?;
    chattr("+a", &file)?;
    ensure_eq!(letters(&file)?, "a", "flags");
    let eperm = |what: &str, outcome: io::Result<()>| expect_errno(outcome, libc::EPERM, what);
    eperm("open for writing", File::options().write(true).open(&file).map(drop))?;
    eperm("cut", sys::truncate(&file, 0))?;
    eperm("unlink", fs::remove_file(&file))?;
    eperm("rename", fs::rename(&file, dir.join("moved")))?;
    eperm("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600)))?;
    let mut log = append(&file).at("open for appending")?;
    log.write_all(b"two\n").at("append")?;
    eperm("ftruncate", log.set_len(0))?;
    // A local file system already refuses this.
    let without = sys::set_status_flags(&log, 0).and_then(|()| log.write_all(b"over"));
    eperm("write without O_APPEND", without)?;
    drop(log);
    let touched = process::run(Command::new("touch").arg("-c").arg(&file), DEADLINE)?;
    ensure!(touched.status.success(), "its times can't be set to now: {}", touched.stderr);
    ensure_eq!(fs::read_to_string(&file).at("read")?, "one\ntwo\n", "content");
    chattr("-a", &file)?;
    fs::remove_file(&file).at("unlink at the end")
}

fn marked_folders(stage: &Stage) -> TestResult {
    only_root()?;
    let dir = stage.folder("marked_folders")?;
    let _marked = FlaggedFiles(&dir);
    let (closed, growing) = (dir.join("closed"), dir.join("growing"));
    for folder in [&closed, &growing] {
        fs::create_dir(folder).at("folder")?;
        // Many in a row: the client then creates files under a delegation.
        for number in 0..20 {
            fs::write(folder.join(format!("file-{number}")), "content").at("file")?;
        }
    }
    chattr("+i", &closed)?;
    chattr("+a", &growing)?;
    let eperm = |what: &str, outcome: io::Result<()>| expect_errno(outcome, libc::EPERM, what);
    eperm("create", File::create_new(closed.join("new")).map(drop))?;
    eperm("mkdir", fs::create_dir(closed.join("new")))?;
    eperm("unlink", fs::remove_file(closed.join("file-1")))?;
    eperm("rename", fs::rename(closed.join("file-1"), closed.join("file-1b")))?;
    eperm("rename out of it", fs::rename(closed.join("file-1"), dir.join("file-1")))?;
    eperm("rename into it", fs::rename(growing.join("file-1"), closed.join("new")))?;
    eperm("rmdir", fs::remove_dir(&closed))?;
    fs::write(closed.join("file-1"), "changed").at("a file in it may be changed")?;
    fs::write(growing.join("new"), "new").at("create in an append-only folder")?;
    eperm("unlink in an append-only folder", fs::remove_file(growing.join("new")))?;
    eperm("rename in an append-only folder", fs::rename(growing.join("new"), growing.join("newer")))?;
    ensure_eq!(fs::read_dir(&closed).at("list")?.count(), 20, "files in the immutable folder");
    ensure_eq!(fs::read_dir(&growing).at("list")?.count(), 21, "files in the append-only folder");
    chattr("-i", &closed)?;
    chattr("+d", &closed)?;
    fs::create_dir(closed.join("below")).at("mkdir")?;
    ensure_eq!(letters(&closed.join("below"))?, "d", "nodump is inherited");
    fs::remove_file(closed.join("file-1")).at("unlink at the end")
}

fn who_may_mark_files(stage: &Stage) -> TestResult {
    only_root()?;
    let dir = stage.folder("who_may_mark_files")?;
    let _marked = FlaggedFiles(&dir);
    let file = dir.join("file");
    fs::write(&file, "").at("file")?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).at("chmod")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).at("chmod")?;
    let by = |user: u32, change: &str| {
        let chattr = tools::find("chattr")?;
        let done = process::run(Command::new(chattr).arg(change).arg(&file).uid(user).gid(user), DEADLINE)?;
        Ok::<bool, Failure>(done.status.success())
    };
    ensure!(!by(OTHER_USER, "+d")?, "another user marks a file");
    chown(&file, Some(OTHER_USER), Some(OTHER_USER)).at("chown")?;
    ensure!(by(OTHER_USER, "+d")?, "the owner can't mark a file");
    ensure!(!by(OTHER_USER, "+i")? && !by(OTHER_USER, "+a")?, "a user makes a file immutable");
    ensure_eq!(letters(&file)?, "d", "flags");
    chattr("+i", &file)?;
    ensure!(!by(OTHER_USER, "-i")?, "a user makes a file mutable");
    ensure_eq!(letters(&file)?, "id", "flags at the end");
    Ok(())
}

fn projects_of_files(stage: &Stage) -> TestResult {
    only_root()?;
    if let Subject::Directory(_) = stage.subject {
        return skip("not every file system has projects");
    }
    let dir = stage.folder("projects_of_files")?;
    let (tree, outside) = (dir.join("tree"), dir.join("outside"));
    fs::create_dir(&tree).at("tree")?;
    fs::write(&outside, "outside").at("outside")?;
    ensure_eq!(project(&tree)?, 0, "project of a new folder");
    output_of(&["xfs_io", "-c", "chproj 4711"], &tree)?;
    let shown = output_of(&["xfs_io", "-c", "lsproj"], &tree)?;
    ensure!(shown.contains("4711"), "lsproj says {shown:?}");
    fs::write(tree.join("before"), "").at("before")?;
    ensure_eq!(project(&tree.join("before"))?, 0, "project in a folder that hands none down");
    chattr("+P", &tree)?;
    ensure_eq!(letters(&tree)?, "P", "flags of the folder");
    fs::create_dir(tree.join("sub")).at("sub")?;
    fs::write(tree.join("sub/file"), "").at("file")?;
    ensure_eq!(project(&tree.join("sub"))?, 4711, "project of a folder below");
    ensure_eq!(project(&tree.join("sub/file"))?, 4711, "project of a file below");
    ensure_eq!(letters(&tree.join("sub"))?, "P", "flags of a folder below");
    ensure_eq!(letters(&tree.join("sub/file"))?, "", "flags of a file below");
    expect_errno(fs::rename(&outside, tree.join("in")), libc::EXDEV, "rename into another project")?;
    expect_errno(fs::hard_link(&outside, tree.join("in")), libc::EXDEV, "link into another project")?;
    fs::rename(tree.join("sub/file"), tree.join("file")).at("rename within a project")?;
    fs::rename(tree.join("file"), dir.join("file")).at("rename out of a project")?;
    ensure_eq!(project(&dir.join("file"))?, 4711, "project of what has left");
    // mv(1) copies if it can't rename.
    process::run_ok(Command::new("mv").arg(&outside).arg(tree.join("in")), DEADLINE)?;
    ensure_eq!(project(&tree.join("in"))?, 4711, "project of a copy");
    Ok(())
}
