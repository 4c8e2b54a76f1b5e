//! Wrong arguments and wrong directories: refused with object, cause and remedy, and without
//! changes on disk.

use super::disk::{Disk, DiskKind};
use super::outcome::{At, TestResult, ensure, ensure_eq};
use super::rig::{COMMAND_DEADLINE, Rig, RigOptions};
use super::stage::Stage;
use super::{Scope, TestCase, mounts};
use crate::process::{self, Finished};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "refuses_wrong_calls", scope: Scope::Own, minutes: 2, run: wrong_calls },
    TestCase { name: "refuses_wrong_mount_points", scope: Scope::Own, minutes: 2, run: wrong_mount_points },
    TestCase { name: "refuses_foreign_directories", scope: Scope::Own, minutes: 2, run: foreign_directories },
    TestCase { name: "refuses_a_second_process", scope: Scope::Own, minutes: 2, run: second_process },
    TestCase { name: "refuses_a_damaged_superblock", scope: Scope::Own, minutes: 2, run: damaged_superblock },
    TestCase { name: "refuses_swapped_targets", scope: Scope::Own, minutes: 2, run: swapped_targets },
    TestCase { name: "refuses_a_missing_target", scope: Scope::Own, minutes: 2, run: missing_target },
    TestCase { name: "refuses_a_full_disk", scope: Scope::Own, minutes: 2, run: full_disk },
];

/// Returns name, mode, size and content of everything below a folder.
fn fingerprint(dir: &Path) -> TestResult<Vec<String>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir).at(dir.display())? {
        let path = entry.at(dir.display())?.path();
        let meta = fs::symlink_metadata(&path).at(path.display())?;
        // The log may record the refusal.
        if path.extension().is_some_and(|end| end == "log") {
            continue;
        }
        lines.push(format!("{} {:o} {}", path.display(), meta.mode(), meta.ino()));
        if meta.is_dir() {
            lines.extend(fingerprint(&path)?);
        } else if meta.is_file() {
            let content = fs::read(&path).at(path.display())?;
            lines.push(format!("{} {:?}", content.len(), super::Content::recognise(&content)));
            lines.push(
                content.iter().fold(0u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte)).to_string(),
            );
        }
    }
    lines.sort();
    Ok(lines)
}

/// Runs a command that must fail with a message that names `object` and a remedy.
pub(super) fn refused(mut command: Command, object: &str) -> TestResult<Finished> {
    let what = process::describe(&command);
    let done = process::run(&mut command, COMMAND_DEADLINE)?;
    ensure!(!done.status.success(), "{what}: succeeded");
    ensure!(matches!(done.code(), 1 | 2 | 3 | 8 | 32 | 64), "{what}: {}", done.status);
    ensure!(done.stderr.contains("error:"), "{what}: no line starts with error: {}", done.tail());
    ensure!(done.stderr.contains(object), "{what}: the message doesn't name {object}: {}", done.tail());
    let remedy = ["hint:", "tip:", "--help"].iter().any(|word| done.stderr.contains(word));
    ensure!(remedy, "{what}: the message has no remedy: {}", done.tail());
    ensure!(!done.stderr.contains("panicked"), "{what}: {}", done.tail());
    Ok(done)
}

/// Returns the command `weft up` with a directory and a mount point.
fn up(stage: &Stage, dir: &Path, mount: &Path, more: &[&str]) -> TestResult<Command> {
    let mut command = Command::new(stage.binary()?);
    command.arg("up").arg("--dir").arg(dir).arg("--mount").arg(mount).args(more);
    Ok(command)
}

/// Runs a `weft up` that must be refused, leave the directory unchanged, and mount nothing.
fn up_refused(stage: &Stage, dir: &Path, mount: &Path, more: &[&str], object: &str) -> TestResult {
    let before = fingerprint(dir)?;
    refused(up(stage, dir, mount, more)?, object)?;
    ensure_eq!(fingerprint(dir)?, before, "the directory after weft refused it");
    ensure!(!mounts::is_weft(mount), "something is mounted after weft up refused");
    Ok(())
}

/// Returns a stopped file system that contains a file.
fn stopped(stage: &Stage, name: &str) -> TestResult<Rig> {
    let mut rig = stage.start_rig(name, RigOptions::new(stage.transport()?))?;
    fs::write(rig.mount().join("file"), vec![5; 100_000]).at("write")?;
    rig.down()?;
    Ok(rig)
}

/// Checks that it still starts and has its file.
fn still_good(mut rig: Rig) -> TestResult {
    rig.up()?;
    ensure_eq!(
        fs::read(rig.mount().join("file")).at("read")?,
        vec![5; 100_000],
        "the file after the refusal"
    );
    rig.down()
}

fn wrong_calls(stage: &Stage) -> TestResult {
    let base = stage.base("wrong_calls")?;
    let (dir, mount) = (base.join("weft"), base.join("mnt"));
    fs::create_dir(&mount).at("mnt")?;
    for (arguments, object) in [
        (["--frobnicate", "3"], "--frobnicate"),
        (["--targets", "0"], "0"),
        (["--targets", "many"], "many"),
        (["--transport", "pigeon"], "pigeon"),
        (["--durability", "maybe"], "maybe"),
    ] {
        refused(up(stage, &dir, &mount, &arguments)?, object)?;
        ensure!(!dir.exists(), "weft made {} although it was called wrongly", dir.display());
    }
    let mut unknown = Command::new(stage.binary()?);
    unknown.arg("frobnicate");
    refused(unknown, "frobnicate")?;
    for words in [["down", "--dir"], ["status", "--dir"]] {
        let mut command = Command::new(stage.binary()?);
        command.args(words).arg(&base);
        refused(command, &base.to_string_lossy())?;
    }
    fs::write(base.join("file"), "not ours").at("file")?;
    let mut info = Command::new(stage.binary()?);
    info.args(["entry", "info"]).arg(base.join("file"));
    refused(info, "file").map(drop)
}

fn wrong_mount_points(stage: &Stage) -> TestResult {
    let base = stage.base("wrong_mount_points")?;
    let dir = base.join("weft");
    let (missing, file, full) = (base.join("missing"), base.join("file"), base.join("full"));
    fs::write(&file, "").at("file")?;
    fs::create_dir(&full).and_then(|()| fs::write(full.join("inside"), "precious")).at("full")?;
    for mount in [&missing, &file, &full] {
        refused(up(stage, &dir, mount, &[])?, &mount.to_string_lossy())?;
    }
    ensure_eq!(fs::read(full.join("inside")).at("inside")?, b"precious", "what the full folder held");
    let rig = stage.start_rig("taken", RigOptions::new(stage.transport()?))?;
    refused(up(stage, &dir, &rig.mount(), &[])?, &rig.mount().to_string_lossy())?;
    // A target on a file system of another program.
    let (target, mount) = (rig.mount().join("target").to_string_lossy().into_owned(), base.join("mnt"));
    fs::create_dir(&mount).at("mnt")?;
    let done = refused(up(stage, &base.join("on weft"), &mount, &["--target-dir", &target])?, &target)?;
    ensure!(done.stderr.contains("FUSE"), "the message doesn't name the file system: {}", done.tail());
    ensure!(!base.join("on weft").exists(), "weft up made a directory, although it refused the target");
    fs::write(rig.mount().join("file"), "works").at("write to the first mount")
}

fn foreign_directories(stage: &Stage) -> TestResult {
    let base = stage.base("foreign_directories")?;
    let (mount, foreign, file) = (base.join("mnt"), base.join("foreign"), base.join("file"));
    fs::create_dir(&mount).at("mnt")?;
    fs::create_dir(&foreign).and_then(|()| fs::write(foreign.join("thesis.tex"), "years")).at("foreign")?;
    up_refused(stage, &foreign, &mount, &[], &foreign.to_string_lossy())?;
    fs::write(&file, "a file").at("file")?;
    refused(up(stage, &file, &mount, &[])?, &file.to_string_lossy())?;
    ensure_eq!(fs::read(&file).at("file")?, b"a file", "the file that was no directory");
    // A target folder with other content.
    let dir = base.join("weft");
    let target = foreign.to_string_lossy().into_owned();
    let before = fingerprint(&foreign)?;
    refused(up(stage, &dir, &mount, &["--target-dir", &target])?, &target)?;
    ensure_eq!(fingerprint(&foreign)?, before, "the foreign folder after it was refused as a target");
    Ok(())
}

fn second_process(stage: &Stage) -> TestResult {
    let rig = stage.start_rig("second_process", RigOptions::new(stage.transport()?))?;
    let mount = rig.dir().with_file_name("second");
    fs::create_dir(&mount).at("second")?;
    let pid = rig.pid().ok_or_else(|| "the rig doesn't run".to_string())?;
    refused(up(stage, &rig.dir(), &mount, &[])?, &pid.to_string())?;
    fs::write(rig.mount().join("file"), vec![5; 100_000]).at("write to the first one's mount")?;
    let mut rig = rig;
    rig.down()?;
    still_good(rig)
}

fn damaged_superblock(stage: &Stage) -> TestResult {
    let rig = stopped(stage, "damaged_superblock")?;
    let path = rig.dir().join("weft.toml");
    let good = fs::read(&path).at("the superblock")?;
    let mut flipped = good.clone();
    // A digit of a value: the file still parses, and only its checksum reveals the change.
    let digit = flipped.iter().rposition(u8::is_ascii_digit).unwrap_or(0);
    flipped[digit] ^= 1;
    for bad in [flipped, good[..good.len() / 2].to_vec(), b"\0\xff\xfe".to_vec(), Vec::new()] {
        fs::write(&path, &bad).at("the superblock")?;
        up_refused(stage, &rig.dir(), &rig.mount(), &[], "weft.toml")?;
    }
    fs::write(&path, &good).at("the superblock")?;
    still_good(rig)
}

fn swapped_targets(stage: &Stage) -> TestResult {
    let rig = stopped(stage, "swapped_targets")?;
    let targets = rig.dir().join("targets");
    let swap = || crate::sys::rename(&targets.join("t1"), &targets.join("t2"), libc::RENAME_EXCHANGE);
    swap().at("swapping two targets")?;
    up_refused(stage, &rig.dir(), &rig.mount(), &[], "t1")?;
    swap().at("swapping them back")?;
    up_refused(stage, &rig.dir(), &rig.mount(), &["--targets", "5"], "2")?;
    still_good(rig)
}

fn missing_target(stage: &Stage) -> TestResult {
    let rig = stopped(stage, "missing_target")?;
    let (target, away) = (rig.dir().join("targets/t2"), rig.dir().with_file_name("away"));
    fs::rename(&target, &away).at("moving a target away")?;
    up_refused(stage, &rig.dir(), &rig.mount(), &[], "t2")?;
    // An empty folder in its place isn't a target: an unmounted disk looks like this.
    fs::create_dir(&target).at("an empty folder")?;
    up_refused(stage, &rig.dir(), &rig.mount(), &[], "t2")?;
    fs::remove_dir(&target).and_then(|()| fs::rename(&away, &target)).at("moving the target back")?;
    still_good(rig)
}

fn full_disk(stage: &Stage) -> TestResult {
    let folder = stage.scratch("full_disk")?;
    let disk = Disk::new(&folder, "tiny", DiskKind::Ext4, 16 << 20)?;
    let mount = folder.join("mnt");
    fs::create_dir(&mount).at("mnt")?;
    let dir = disk.path().join("weft");
    fs::create_dir(&dir).at("weft")?;
    up_refused(stage, &dir, &mount, &[], &dir.to_string_lossy())
}
