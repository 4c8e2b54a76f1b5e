//! The life cycle of a mount: start, stop, persistence over a restart, read-only mode,
//! administrative commands.

use super::disk::{Disk, DiskKind, SMALLEST_XFS_BYTES};
use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno, skip};
use super::rig::{COMMAND_DEADLINE, Rig, RigOptions, Transport};
use super::stage::{Stage, Subject};
use super::{Rng, Scope, TestCase, mounts};
use crate::{process, sys};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "handles_outlive_a_restart", scope: Scope::Mounted, minutes: 2, run: handles },
    TestCase { name: "everything_outlives_a_restart", scope: Scope::Mounted, minutes: 2, run: restart_keeps },
    TestCase { name: "remount_read_only", scope: Scope::Mounted, minutes: 2, run: remount_read_only },
    TestCase { name: "detached_up_and_down", scope: Scope::Own, minutes: 3, run: detached },
    TestCase { name: "umount_stops_the_process", scope: Scope::Own, minutes: 3, run: umount_stops },
    TestCase { name: "files_are_striped", scope: Scope::Own, minutes: 3, run: striped },
    TestCase { name: "ten_restarts", scope: Scope::Own, minutes: 5, run: ten_restarts },
    TestCase { name: "strict_durability", scope: Scope::Own, minutes: 3, run: strict },
    TestCase { name: "targets_on_xfs", scope: Scope::Own, minutes: 3, run: on_xfs },
];

fn handles(stage: &Stage) -> TestResult {
    if !sys::is_root() {
        return skip("opening by handle needs root");
    }
    let dir = stage.folder("handles")?;
    let names = ["plain", "sub/deep", "sub"];
    fs::create_dir(dir.join("sub")).at("sub")?;
    fs::write(dir.join("plain"), "plain content").at("plain")?;
    fs::write(dir.join("sub/deep"), "deep content").at("deep")?;
    fs::write(dir.join("gone"), "gone").at("gone")?;
    let handles = names.map(|name| (name, sys::handle_of(&dir.join(name))));
    let gone = sys::handle_of(&dir.join("gone")).at("name_to_handle_at")?;
    fs::remove_file(dir.join("gone")).at("unlink")?;
    stage.restart()?;
    // Nothing below the root has been looked up since the restart.
    let root = File::open(stage.root()?).at("the mount's root")?;
    for (name, handle) in handles {
        let handle = handle.at("name_to_handle_at")?;
        let mut file = sys::open_handle(&root, &handle).at(format!("open_by_handle_at of {name}"))?;
        let inode = fs::metadata(dir.join(name)).at(name)?.ino();
        ensure_eq!(file.metadata().at("fstat")?.ino(), inode, "the inode that the handle of {name} opens");
        let mut content = String::new();
        if name != "sub" {
            file.read_to_string(&mut content).at(name)?;
            ensure_eq!(content, fs::read_to_string(dir.join(name)).at(name)?, "content by handle");
        }
    }
    expect_errno(sys::open_handle(&root, &gone), libc::ESTALE, "the handle of a removed file")
}

fn restart_keeps(stage: &Stage) -> TestResult {
    let dir = stage.folder("restart_keeps")?;
    fill(&dir).at("filling")?;
    let before = snapshot(&dir).at("looking")?;
    stage.restart()?;
    let after = snapshot(&dir).at("looking after the restart")?;
    ensure_eq!(after, before, "the tree after a restart");
    Ok(())
}

/// Creates a small tree with one object of each stored kind.
fn fill(dir: &Path) -> std::io::Result<()> {
    let mut rng = Rng::new(11);
    for (number, length) in [0usize, 1, 4096, 4097, 1 << 20, 5 << 20].into_iter().enumerate() {
        fs::create_dir(dir.join(number.to_string()))?;
        let path = dir.join(format!("{number}/file"));
        fs::write(&path, rng.bytes(length))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + number as u32))?;
        sys::set_xattr(&path, "user.number", &[number as u8], 0)?;
        fs::hard_link(&path, dir.join(format!("link-{number}")))?;
        symlink(format!("{number}/file"), dir.join(format!("symlink-{number}")))?;
    }
    sys::mknod(&dir.join("fifo"), libc::S_IFIFO | 0o644, 0)?;
    let sparse = File::create(dir.join("sparse"))?;
    sparse.set_len(1 << 30)
}

/// Describes a tree as sorted text.
fn snapshot(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        let content = match meta.is_file() && meta.len() < 1 << 29 {
            true => Rng::new(
                fs::read(&path)?.iter().fold(7, |sum, byte| sum * 31 % 0xffff_ffff_ffff + *byte as u64),
            )
            .next(),
            false => 0,
        };
        let times =
            (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), sys::birth_time(&path)?);
        let xattrs = if meta.is_symlink() { Vec::new() } else { sys::list_xattrs(&path)? };
        let numbers = (meta.ino(), meta.mode(), meta.nlink(), meta.uid(), meta.gid(), meta.rdev());
        lines.push(format!("{path:?} {numbers:?} {} {times:?} {xattrs:?} {content:x}", meta.size()));
        if meta.is_dir() {
            lines.extend(snapshot(&path)?);
        }
    }
    lines.sort();
    Ok(lines)
}

fn remount_read_only(stage: &Stage) -> TestResult {
    if let Subject::Directory(_) = &stage.subject {
        return skip("needs a mount of its own");
    }
    let (root, dir) = (stage.root()?, stage.folder("remount")?);
    fs::write(dir.join("file"), "before").at("file")?;
    // The helper of other FUSE file systems, if it is installed, would search for weft in the path.
    let remount = |option: &str| {
        process::run_ok(Command::new("mount").args(["-i", "-o", option]).arg(&root), COMMAND_DEADLINE)
    };
    remount("remount,ro")?;
    let checked = (|| {
        ensure_eq!(fs::read(dir.join("file")).at("file")?, b"before", "content while read-only");
        expect_errno(fs::write(dir.join("file"), "x"), libc::EROFS, "write")?;
        expect_errno(fs::create_dir(dir.join("new")), libc::EROFS, "mkdir")?;
        expect_errno(fs::remove_file(dir.join("file")), libc::EROFS, "unlink")
    })();
    // Back to writable for the following tests, whatever the result.
    remount("remount,rw")?;
    checked?;
    fs::write(dir.join("file"), "after").at("write after remount,rw")
}

fn detached(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("detached", RigOptions::new(stage.transport()?))?;
    rig.down()?;
    let mut up = rig.up_command();
    up.arg("--detach");
    process::run_ok(&mut up, COMMAND_DEADLINE)?;
    // Its successful exit means that it is mounted.
    ensure!(mounts::is_weft(&rig.mount()), "weft up --detach ended before it had mounted");
    let checked = (|| {
        fs::write(rig.mount().join("file"), "content").at("write")?;
        let dir = rig.dir().to_string_lossy().into_owned();
        let status = rig.json(&["status", "--dir", &dir])?;
        ensure!(status.is_object(), "weft status --json reports {status}");
        for command in [["target", "list"].as_slice(), &["pool", "list"], &["df"]] {
            rig.json(&[command, &["--dir", &dir]].concat())?;
        }
        Ok(())
    })();
    let down = rig.weft(&["down", "--dir", &rig.dir().to_string_lossy()])?;
    if !down.status.success() {
        mounts::force_unmount(&rig.mount());
    }
    checked?;
    ensure!(down.status.success(), "weft down: {}", down.tail());
    ensure!(mounts::find(&rig.mount()).is_none(), "weft down left the mount");
    let again = rig.weft(&["down", "--dir", &rig.dir().to_string_lossy()])?;
    ensure!(!again.status.success(), "a second weft down has nothing to stop, and yet succeeds");
    Ok(())
}

fn umount_stops(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("umount_stops", RigOptions::new(stage.transport()?))?;
    fs::write(rig.mount().join("file"), "content").at("write")?;
    mounts::unmount(&rig.mount())?;
    ensure!(process::eventually(COMMAND_DEADLINE, || !rig.is_running()), "weft runs on after umount");
    rig.kill();
    rig.up()?;
    ensure_eq!(fs::read(rig.mount().join("file")).at("read")?, b"content", "content after umount and up");
    for round in 0..5u8 {
        let large = vec![round; 8 << 20];
        fs::write(rig.mount().join("large"), &large).at("write")?;
        rig.unmount_and_up()?;
        ensure!(fs::read(rig.mount().join("large")).at("read")? == large, "round {round}: other content");
    }
    rig.down()
}

fn striped(stage: &Stage) -> TestResult {
    let base = stage.base("striped-targets")?;
    let target_dirs = (0..4).map(|number| base.join(format!("t{number}"))).collect();
    let mut rig =
        stage.start_rig("striped", RigOptions { target_dirs, ..RigOptions::new(stage.transport()?) })?;
    let dir = rig.mount().join("wide");
    fs::create_dir(&dir).at("mkdir")?;
    let folder = dir.to_string_lossy().into_owned();
    let set = rig.weft(&["entry", "set-pattern", &folder, "--chunk-size", "64K", "--stripe-count", "3"])?;
    ensure!(set.status.success(), "weft entry set-pattern: {}", set.tail());
    let content = Rng::new(5).bytes(1 << 20);
    fs::write(dir.join("file"), &content).at("write")?;
    File::open(dir.join("file")).and_then(|file| file.sync_all()).at("fsync")?;
    let info = rig.entry(&dir.join("file"))?;
    ensure_eq!(info["layout"]["chunk_size"].as_u64(), Some(65_536), "chunk size of the file");
    ensure_eq!(info["layout"]["groups"].as_array().map(Vec::len), Some(3), "groups of the file");
    let chunks = info["chunks"].as_array().cloned().unwrap_or_default();
    ensure_eq!(chunks.len(), 16, "chunks of the file");
    for (index, chunk) in chunks.iter().enumerate() {
        ensure_eq!(chunk["group"], chunks[index % 3]["group"], "group of chunk {index}");
        let file = chunk["chunk_file"].as_str().unwrap_or_default();
        ensure!(Path::new(file).is_file(), "chunk {index} names the chunk file {file:?}, which isn't there");
    }
    let bad = rig.weft(&["entry", "set-pattern", &folder, "--chunk-size", "65537"])?;
    ensure!(!bad.status.success() && bad.stderr.contains("hint:"), "a bad chunk size: {}", bad.tail());
    rig.restart()?;
    ensure!(fs::read(dir.join("file")).at("read")? == content, "content differs after a restart");
    rig.down()?;
    rig.fsck()
}

fn ten_restarts(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("ten_restarts", RigOptions::new(stage.transport()?))?;
    for round in 0..10u64 {
        for earlier in 0..round {
            let path = rig.mount().join(earlier.to_string());
            let expected = Rng::new(earlier).bytes(10_000 * earlier as usize);
            ensure!(fs::read(&path).at("read")? == expected, "file {earlier} changed before round {round}");
        }
        fs::write(rig.mount().join(round.to_string()), Rng::new(round).bytes(10_000 * round as usize))
            .at("write")?;
        rig.restart()?;
    }
    rig.down()?;
    rig.fsck()
}

fn strict(stage: &Stage) -> TestResult {
    let options = RigOptions { durability: "strict", ..RigOptions::new(stage.transport()?) };
    let mut rig = stage.start_rig("strict", options)?;
    fs::create_dir(rig.mount().join("dir")).at("mkdir")?;
    fill(&rig.mount().join("dir")).at("filling")?;
    let before = snapshot(&rig.mount()).at("looking")?;
    rig.kill();
    rig.unmount()?;
    rig.up()?;
    ensure_eq!(snapshot(&rig.mount()).at("looking again")?, before, "the tree after a crash");
    rig.down()
}

fn on_xfs(stage: &Stage) -> TestResult {
    let transport: Transport = stage.transport()?;
    let folder = stage.scratch("on-xfs")?;
    let disk = Disk::new(&folder, "xfs", DiskKind::Xfs, 4 * SMALLEST_XFS_BYTES)?;
    let mut rig = Rig::start(stage.binary()?, disk.path(), RigOptions::new(transport))?;
    fill(&rig.mount()).at("filling")?;
    let before = snapshot(&rig.mount()).at("looking")?;
    rig.restart()?;
    ensure_eq!(snapshot(&rig.mount()).at("looking again")?, before, "the tree after a restart");
    rig.down()?;
    rig.fsck()
}
