//! Failed targets: full, broken, damaged. The application gets the correct error, others continue,
//! and the log names the target.

use super::disk::{Disk, DiskKind, SMALLEST_XFS_BYTES};
use super::outcome::{At, Failure, TestResult, ensure, ensure_eq, expect_errno};
use super::rig::{Rig, RigOptions, last_lines};
use super::stage::Stage;
use super::{Content, Rng, Scope, TestCase};
use crate::{process, sys};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "full_target", scope: Scope::Own, minutes: 5, run: full_target },
    TestCase {
        name: "full_disk_shared_with_metadata",
        scope: Scope::Own,
        minutes: 5,
        run: full_disk_shared_with_metadata,
    },
    TestCase {
        name: "fallocate_takes_all_or_nothing",
        scope: Scope::Own,
        minutes: 5,
        run: fallocate_takes_all_or_nothing,
    },
    TestCase { name: "start_on_a_full_disk", scope: Scope::Own, minutes: 5, run: start_on_a_full_disk },
    TestCase { name: "failing_target", scope: Scope::Own, minutes: 5, run: failing_target },
    TestCase { name: "truncated_chunk_file", scope: Scope::Own, minutes: 3, run: truncated_chunk_file },
    TestCase { name: "flipped_bit", scope: Scope::Own, minutes: 3, run: flipped_bit },
];

/// Longest time until the space of removed files is free again.
const RECLAIM_DEADLINE: Duration = Duration::from_secs(60);

const MIB: u64 = 1 << 20;

/// Writes and syncs a file; returns the first error.
fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn full_target(stage: &Stage) -> TestResult {
    let folder = stage.scratch("full_target")?;
    let disk = Disk::new(&folder, "small", DiskKind::Xfs, SMALLEST_XFS_BYTES)?;
    let target = disk.path().join("target");
    let target_dirs = vec![target.clone()];
    let mut rig =
        stage.start_rig("full", RigOptions { target_dirs, ..RigOptions::new(stage.transport()?) })?;
    let dir = rig.mount().join("dir");
    fs::create_dir(&dir).at("mkdir")?;
    let content = |id| Content { id, version: 0, length: 8 * MIB };
    let mut written = 0;
    let error = loop {
        match write_synced(&dir.join(written.to_string()), &content(written).bytes()) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        ensure!(written * 8 * MIB <= SMALLEST_XFS_BYTES, "more was written than the target holds");
    };
    ensure_eq!(error.raw_os_error(), Some(libc::ENOSPC), "the error of a full target ({error})");
    ensure!(written > 3, "full after {written} files of 8 MiB");
    ensure_logged(&rig, 1)?;
    ensure_class(&rig, "emergency")?;
    // Names, attributes and existing data are still accessible.
    fs::create_dir(dir.join("sub")).at("mkdir on a full target")?;
    for id in 0..written {
        let read = fs::read(dir.join(id.to_string())).at(format!("file {id} on a full target"))?;
        ensure_eq!(Content::recognise(&read), Some(content(id)), "file {id} on a full target");
    }
    for id in 0..=written {
        drop(fs::remove_file(dir.join(id.to_string())));
    }
    let again = || write_synced(&dir.join("again"), &content(99).bytes());
    ensure!(
        process::eventually(RECLAIM_DEADLINE, || again().is_ok()),
        "still full after everything was removed"
    );
    for id in 0..written - 1 {
        write_synced(&dir.join(id.to_string()), &content(id).bytes()).at("filling it again")?;
    }
    fs::remove_dir_all(&dir).at("removing everything again")?;
    ensure_class(&rig, "normal")?;
    rig.down()?;
    rig.fsck()
}

/// Checks that the only target gets this capacity class within a short time.
fn ensure_class(rig: &Rig, class: &str) -> TestResult {
    let mut seen = serde_json::Value::Null;
    let is_reported = process::eventually(RECLAIM_DEADLINE, || {
        let list = rig.json(&["target", "list", "--dir", &rig.dir().to_string_lossy()]);
        seen = list.unwrap_or_default();
        seen[0]["class"] == class
    });
    ensure!(is_reported, "the target isn't in class {class}: {seen}");
    Ok(())
}

/// Creates numbered files until there is no space. Returns the number of files.
fn fill(dir: &Path, name: &str, most: usize, make: impl Fn(&Path) -> io::Result<()>) -> TestResult<usize> {
    for number in 0..most {
        let path = dir.join(format!("{name}{number}"));
        if let Err(error) = make(&path) {
            ensure_eq!(error.raw_os_error(), Some(libc::ENOSPC), "the error of a full disk ({error})");
            return Ok(number);
        }
    }
    Err(format!("{most} files {name} fit on the disk").into())
}

fn full_disk_shared_with_metadata(stage: &Stage) -> TestResult {
    const DISK_BYTES: u64 = 640 * MIB;
    let folder = stage.scratch("full_disk")?;
    let disk = Disk::new(&folder, "shared", DiskKind::Xfs, DISK_BYTES)?;
    let mut rig = Rig::start(stage.binary()?, disk.path(), RigOptions::new(stage.transport()?))?;
    let dir = rig.mount().join("dir");
    let large = Rng::new(31).bytes(8 * MIB as usize);
    // Stored in the metadata store, and incompressible.
    let small = Rng::new(32).bytes(3000);
    // The second round verifies that no space was lost permanently.
    for round in 0..2 {
        // A full disk frees the space of removed files with a delay.
        let made = || fs::create_dir(&dir).is_ok();
        ensure!(process::eventually(RECLAIM_DEADLINE, made), "round {round}: no space for a directory");
        let first = || write_synced(&dir.join("first"), &large).is_ok();
        ensure!(process::eventually(RECLAIM_DEADLINE, first), "round {round}: still full after the removal");
        let many = fill(&dir, "large", (DISK_BYTES / (8 * MIB)) as usize, |path| write_synced(path, &large))?;
        ensure!(many > 20, "round {round}: full after {many} files of 8 MiB");
        let more = fill(&dir, "small", DISK_BYTES as usize / small.len(), |path| fs::write(path, &small))?;
        ensure!(more > 100, "round {round}: no space for metadata next to full targets: {more} files");
        for number in 0..more {
            let read = fs::read(dir.join(format!("small{number}"))).at("a small file on a full disk")?;
            ensure!(read == small, "round {round}: small file {number} holds something else");
        }
        let read = fs::read(dir.join(format!("large{}", many - 1))).at("a large file on a full disk")?;
        ensure!(read == large, "round {round}: the last large file holds something else");
        let health = rig.weft(&["health", "--dir", &rig.dir().to_string_lossy()])?;
        let is_reported = health.stdout.contains("the disk of the metadata at");
        ensure!(is_reported, "round {round}: weft health of a full disk says: {}", health.tail());
        fs::rename(dir.join("large0"), dir.join("renamed")).at("rename on a full disk")?;
        fs::remove_dir_all(&dir).at("removing everything from a full disk")?;
    }
    let log = rig.log();
    ensure!(
        !log.contains("accepts no writes until it is reopened"),
        "the store gave up:\n    {}",
        last_lines(&log)
    );
    rig.down()?;
    rig.fsck()
}

/// Concurrent reservations of more space than the disk has, by several programs, while others work.
fn fallocate_takes_all_or_nothing(stage: &Stage) -> TestResult {
    const DISK_BYTES: u64 = 640 * MIB;
    const PROGRAMS: usize = 3;
    let folder = stage.scratch("fallocate")?;
    let disk = Disk::new(&folder, "shared", DiskKind::Xfs, DISK_BYTES)?;
    let mut rig = Rig::start(stage.binary()?, disk.path(), RigOptions::new(stage.transport()?))?;
    let dir = rig.mount().join("dir");
    fs::create_dir(&dir).at("mkdir")?;
    fs::write(dir.join("kept"), vec![7; 4 * MIB as usize]).at("a file that is there before")?;
    reserve(&dir.join("kept"), 16 * MIB)?.at("a reservation that fits")?;
    let before = sys::space(disk.path()).at("statvfs")?.0;
    for round in 0..3 {
        let reserved = std::thread::scope(|scope| {
            let ask = |program| reserve(&dir.join(format!("large{program}")), 2 * DISK_BYTES);
            let asked: Vec<_> = (0..PROGRAMS).map(|program| scope.spawn(move || ask(program))).collect();
            let small =
                fs::write(dir.join("small"), "small").and_then(|()| fs::remove_file(dir.join("small")));
            small.at(format!("round {round}: a small file beside a reservation"))?;
            asked
                .into_iter()
                .map(|asked| asked.join().expect("it doesn't panic"))
                .collect::<TestResult<Vec<_>>>()
        })?;
        for reserved in reserved {
            let error = reserved.err().and_then(|error| error.raw_os_error());
            ensure_eq!(error, Some(libc::ENOSPC), "round {round}: twice the disk was reserved");
        }
        // Half of it fits on each of the two targets.
        let error = reserve(&dir.join("wide"), before / 4 * 5)?.err().and_then(|e| e.raw_os_error());
        ensure_eq!(error, Some(libc::ENOSPC), "round {round}: more than the disk has was reserved");
        let free = sys::space(disk.path()).at("statvfs")?.0;
        ensure!(free + 8 * MIB >= before, "round {round}: {free} of {before} bytes are free after a refusal");
        // Each program's reservation fits alone; both together would need the reserve.
        let half = (before - DISK_BYTES / 8) * 3 / 4;
        let pair: Vec<_> = std::thread::scope(|scope| {
            let ask = |name: &'static str| reserve(&dir.join(name), half);
            let asked = ["one", "two"].map(|name| scope.spawn(move || ask(name)));
            asked
                .map(|asked| asked.join().expect("it doesn't panic"))
                .into_iter()
                .collect::<TestResult<Vec<_>>>()
        })?;
        let taken = pair.iter().filter(|reserved| reserved.is_ok()).count() as u64 * half;
        let free = sys::space(disk.path()).at("statvfs")?.0;
        ensure!(free + 8 * MIB >= DISK_BYTES / 8, "round {round}: {free} bytes are left of the reserve");
        ensure!(
            process::eventually(RECLAIM_DEADLINE, || {
                sys::space(disk.path()).is_ok_and(|(free, _)| free + taken + 8 * MIB >= before)
            }),
            "round {round}: {before} bytes were free before, {taken} are reserved, and too few are left"
        );
        for name in ["one", "two", "wide", "large0", "large1", "large2"] {
            fs::remove_file(dir.join(name)).at(format!("round {round}: removing {name}"))?;
        }
        let given_back = || sys::space(disk.path()).is_ok_and(|(free, _)| free + 8 * MIB >= before);
        ensure!(process::eventually(RECLAIM_DEADLINE, given_back), "round {round}: space is lost");
    }
    // Earlier reservations are unaffected.
    let blocks = fs::metadata(dir.join("kept")).at("stat")?.blocks();
    ensure!(blocks * 512 >= 16 * MIB, "{blocks} blocks of 512 bytes are left of an earlier reservation");
    rig.down()?;
    rig.fsck()
}

/// Calls `fallocate(2)` on a file from its start.
fn reserve(path: &Path, bytes: u64) -> TestResult<io::Result<()>> {
    let file = File::options().create(true).truncate(false).write(true).open(path).at(path.display())?;
    Ok(sys::fallocate(&file, 0, 0, bytes))
}

/// Another program uses the last byte of the disk, and the process crashes.
fn start_on_a_full_disk(stage: &Stage) -> TestResult {
    let folder = stage.scratch("full_start")?;
    let disk = Disk::new(&folder, "shared", DiskKind::Xfs, 640 * MIB)?;
    let mut rig = Rig::start(stage.binary()?, disk.path(), RigOptions::new(stage.transport()?))?;
    let dir = rig.mount().join("dir");
    fs::create_dir(&dir).at("mkdir")?;
    for number in 0..8 {
        write_synced(&dir.join(number.to_string()), &vec![1; 4 * MIB as usize]).at("a file")?;
    }
    rig.kill();
    rig.unmount()?;
    disk.fill()?;
    let free = sys::space(disk.path()).at("statvfs")?.0;
    ensure!(free < MIB, "{free} bytes are free on a full disk");
    rig.up()?;
    for number in 0..8 {
        fs::remove_file(dir.join(number.to_string())).at("removing a file on a full disk")?;
    }
    let freed = || sys::space(disk.path()).is_ok_and(|(free, _)| free > 24 * MIB);
    ensure!(process::eventually(RECLAIM_DEADLINE, freed), "removed files give no space back");
    rig.down()?;
    rig.fsck()?;
    disk.free_space()?;
    rig.up()?;
    let reserve = rig.dir().join("start-reserve");
    ensure!(reserve.exists(), "no space is reserved for another start");
    rig.down()
}

/// Checks that the log has a warning or error about this target.
fn ensure_logged(rig: &Rig, target: u32) -> TestResult {
    let log = rig.log();
    let names = |line: &str| {
        line.split(&format!("target {target}"))
            .nth(1)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_problem = |line: &&str| names(line) && (line.contains("ERROR") || line.contains("WARN"));
    ensure!(
        log.lines().any(|line| is_problem(&line)),
        "no line of the log names target {target}:\n    {}",
        last_lines(&log)
    );
    Ok(())
}

/// Returns the chunk file that contains the start of a file.
fn first_chunk_file(rig: &Rig, path: &Path) -> TestResult<PathBuf> {
    let info = rig.entry(path)?;
    let chunk_file = info["chunks"][0]["chunk_file"].as_str().map(PathBuf::from);
    chunk_file.ok_or_else(|| Failure::Failed(format!("weft entry info names no chunk file: {info}")))
}

fn failing_target(stage: &Stage) -> TestResult {
    const FILES: u64 = 24;
    let folder = stage.scratch("failing_target")?;
    let disk = Disk::new(&folder, "bad", DiskKind::Ext4, 256 * MIB)?;
    let (good, bad) = (folder.join("good"), disk.path().join("target"));
    let target_dirs = vec![good, bad.clone()];
    let mut rig =
        stage.start_rig("failing", RigOptions { target_dirs, ..RigOptions::new(stage.transport()?) })?;
    let dir = rig.mount().join("dir");
    fs::create_dir(&dir).at("mkdir")?;
    rig.one_target_per_file(&dir)?;
    let content = |id| Content { id, version: 0, length: 4 * MIB };
    let path = |id: u64| dir.join(id.to_string());
    let mut on_bad = Vec::new();
    for id in 0..FILES {
        write_synced(&path(id), &content(id).bytes()).at("write")?;
        on_bad.push(first_chunk_file(&rig, &path(id))?.starts_with(&bad));
    }
    let count = on_bad.iter().filter(|bad| **bad).count();
    ensure!(count > 0 && count < FILES as usize, "{count} of {FILES} files are on the second target");

    // Cuts in the middle of the space that the files occupy.
    disk.lose_everything_after(MIB * 4 * count as u64 / 2)?;
    let mut failed = 0;
    for id in 0..FILES {
        match fs::read(path(id)) {
            Ok(read) => ensure_eq!(Content::recognise(&read), Some(content(id)), "file {id}"),
            Err(error) => {
                ensure_eq!(error.raw_os_error(), Some(libc::EIO), "the error of file {id} ({error})");
                ensure!(on_bad[id as usize], "file {id} is on the good target and can't be read: {error}");
                failed += 1;
            }
        }
    }
    ensure!(failed > 0, "every file can be read although its disk is cut off");
    ensure_logged(&rig, 2)?;
    for (id, _) in (0..).zip(&on_bad).filter(|(_, bad)| !**bad) {
        write_synced(&path(id), &content(id + 1000).bytes()).at("write to the good target")?;
        let read = fs::read(path(id)).at("read from the good target")?;
        ensure_eq!(Content::recognise(&read), Some(content(id + 1000)), "a file on the good target");
    }
    // Inline, so in the metadata store: in `dir` it would be on one of the two targets.
    fs::write(rig.mount().join("small"), "metadata goes on").at("a new small file")?;
    // Its stop may report, correctly, that a target can't be synced; it only has to end.
    drop(rig.down());
    Ok(())
}

/// Runs a stopped file system with two files on one target each, one of them damaged by `damage`.
/// The other must be intact; the damaged one must return EIO and never wrong bytes; and fsck must
/// report it.
fn with_damage(stage: &Stage, name: &str, damage: fn(&File) -> io::Result<()>) -> TestResult {
    let mut rig = stage.start_rig(name, RigOptions::new(stage.transport()?))?;
    let dir = rig.mount().join("dir");
    fs::create_dir(&dir).at("mkdir")?;
    rig.one_target_per_file(&dir)?;
    let (victim, other) = (dir.join("victim"), dir.join("other"));
    let content = Rng::new(21).bytes(3 * MIB as usize);
    write_synced(&victim, &content).at("victim")?;
    write_synced(&other, &content).at("other")?;
    let chunk_file = first_chunk_file(&rig, &victim)?;
    rig.down()?;
    let file = File::options().read(true).write(true).open(&chunk_file).at(chunk_file.display())?;
    damage(&file).at(chunk_file.display())?;
    rig.up()?;
    ensure!(fs::read(&other).at("other")? == content, "the other file is damaged too");
    expect_errno(fs::read(&victim), libc::EIO, "reading the damaged file")?;
    // Block by block: readable blocks must be correct.
    let open = File::open(&victim).at("victim")?;
    let mut lost = 0;
    for (number, expected) in content.chunks(65_536).enumerate() {
        let mut piece = vec![0; expected.len()];
        match open.read_exact_at(&mut piece, number as u64 * 65_536) {
            Ok(()) => ensure!(piece == expected, "wrong bytes from {} on", number * 65_536),
            Err(_) => lost += 1,
        }
    }
    ensure!(lost > 0, "every piece can be read, although the whole can't");
    let number = (1..=2).find(|number| chunk_file.starts_with(rig.dir().join(format!("targets/t{number}"))));
    ensure_logged(&rig, number.ok_or_else(|| format!("{} lies in no target", chunk_file.display()))?)?;
    rig.down()?;
    ensure!(rig.fsck().is_err(), "fsck finds nothing wrong");
    given_up(stage, &mut rig, &victim, &content)
}

/// Data without a second replica can't be repaired. It is given up only on request, then listed,
/// and reads as zeros.
fn given_up(stage: &Stage, rig: &mut Rig, victim: &Path, content: &[u8]) -> TestResult {
    let dir = rig.dir().to_string_lossy().into_owned();
    let list = stage.scratch("lost")?.join("list");
    let list = list.to_string_lossy();
    let kept = rig.weft(&["fsck", "--dir", &dir, "--repair"])?;
    ensure_eq!(kept.code(), 4, "exit status of a repair without a second replica: {}", kept.tail());
    ensure!(kept.stdout.contains("lost: ") && kept.stdout.contains("--forget"), "{}", kept.stdout);
    let done = rig.weft(&["fsck", "--dir", &dir, "--repair", "--forget", &list])?;
    ensure_eq!(done.code(), 1, "exit status when it is given up: {}", done.tail());
    rig.fsck()?;
    let mut expected = content.to_vec();
    for line in fs::read_to_string(&*list).at("the list")?.lines() {
        let loss: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
        let at = |end: &str| loss["range"][end].as_u64().unwrap_or(0) as usize;
        ensure!(
            loss["path"].as_str().is_some_and(|path| victim.ends_with(path.trim_start_matches('/'))),
            "{line}"
        );
        ensure!(at("start") < at("end") && at("end") <= expected.len(), "{line}");
        expected[at("start")..at("end")].fill(0);
    }
    ensure!(expected != content, "the list is empty");
    rig.up()?;
    ensure!(fs::read(victim).at("victim")? == expected, "something else than what was listed has changed");
    rig.down()
}

fn truncated_chunk_file(stage: &Stage) -> TestResult {
    with_damage(stage, "truncated", |file| file.set_len(file.metadata()?.len() / 2))
}

fn flipped_bit(stage: &Stage) -> TestResult {
    with_damage(stage, "flipped", |file| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, MIB + 77)?;
        byte[0] ^= 0x10;
        file.write_all_at(&byte, MIB + 77)
    })
}
