//! Metadata backups: restores of a cluster, and handling of damaged metadata.

use super::cluster::ClusterRig;
use super::disk::{Disk, DiskKind};
use super::outcome::{At, Failure, TestResult, ensure, ensure_eq};
use super::rig::{COMMAND_DEADLINE, Rig, RigOptions};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::process;
use crate::sys;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "metadata_goes_back_in_time", scope: Scope::Own, minutes: 8, run: restores },
    TestCase { name: "damaged_metadata_is_refused", scope: Scope::Own, minutes: 8, run: damaged },
    TestCase { name: "lost_journal_is_refused", scope: Scope::Own, minutes: 8, run: lost_journal },
    TestCase { name: "damage_met_in_use_ends_weft", scope: Scope::Own, minutes: 8, run: damaged_in_use },
    TestCase {
        name: "cluster_metadata_goes_back_in_time",
        scope: Scope::Own,
        minutes: 10,
        run: cluster_restores,
    },
    TestCase { name: "cluster_store_loses_power", scope: Scope::Own, minutes: 10, run: store_loses_power },
];

/// Longest time until a client has detected the end of its session and started another one.
const RETURN_DEADLINE: Duration = Duration::from_secs(120);

/// Longest time until the store has flushed its memory, and until a process ends.
const STORE_DEADLINE: Duration = Duration::from_secs(90);

/// Returns bytes that are unique to the seed.
fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed).collect()
}

fn write(path: &Path, content: &[u8]) -> TestResult {
    let mut file = File::create(path).at(path.display())?;
    file.write_all(content).at(path.display())?;
    file.sync_all().at(path.display())
}

/// Creates the state to back up.
fn create_backup_state(mount: &Path) -> TestResult {
    fs::create_dir(mount.join("dir")).at("mkdir")?;
    // First, so that no file is open when the backup is made: the kernel reports a close with a
    // delay.
    write(&mount.join("grows"), &content(2, 1_000_000))?;
    write(&mount.join("goes"), &content(3, 2_000_000))?;
    for number in 0..100u8 {
        write(&mount.join(format!("dir/f{number}")), &content(number, 300))?;
    }
    write(&mount.join("stays"), &content(1, 3_000_000))
}

/// Makes changes after the backup. Returns the largest inode number used.
fn change_after_backup(mount: &Path) -> TestResult<u64> {
    let mut largest = 0;
    for number in 0..50u8 {
        let path = mount.join(format!("dir/later{number}"));
        write(&path, &content(number, 100_000))?;
        largest = largest.max(path.metadata().at(path.display())?.ino());
    }
    let mut grows = OpenOptions::new().append(true).open(mount.join("grows")).at("grows")?;
    grows.write_all(&content(4, 1_000_000)).at("grows")?;
    grows.sync_all().at("grows")?;
    fs::remove_file(mount.join("goes")).at("goes")?;
    fs::remove_file(mount.join("dir/f0")).at("f0")?;
    Ok(largest)
}

/// Checks that the state of the backup is restored.
fn ensure_restored(mount: &Path) -> TestResult {
    let names = fs::read_dir(mount.join("dir")).at("dir")?.count();
    ensure_eq!(names, 100, "names in the directory");
    for number in 0..100u8 {
        let found = fs::read(mount.join(format!("dir/f{number}"))).at("dir")?;
        ensure!(found == content(number, 300), "f{number} has another content");
    }
    ensure!(fs::read(mount.join("stays")).at("stays")? == content(1, 3_000_000), "stays has changed");
    ensure!(fs::read(mount.join("grows")).at("grows")? == content(2, 1_000_000), "grows has changed");
    ensure_eq!(fs::metadata(mount.join("goes")).at("goes")?.len(), 2_000_000, "bytes of goes");
    Ok(())
}

/// Checks that a new file gets an inode number that was never used before.
fn ensure_new_inode_numbers(mount: &Path, largest: u64) -> TestResult {
    let path = mount.join("dir/new");
    write(&path, &content(9, 100_000))?;
    let number = path.metadata().at("new")?.ino();
    ensure!(number > largest, "the new file has number {number}, an earlier file had {largest}");
    ensure!(fs::read(&path).at("new")? == content(9, 100_000), "the new file shows something else");
    Ok(())
}

fn restores(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("goes-back", RigOptions::new(stage.transport()?))?;
    let dir = rig.dir().to_string_lossy().into_owned();
    create_backup_state(&rig.mount())?;
    // So that no file is open when the backup is made: the kernel reports a close with a delay.
    rig.down()?;
    rig.up()?;
    let full = rig.json(&["meta", "backup", "--dir", &dir])?;
    write(&rig.mount().join("dir/f0"), &content(0, 300))?;
    let changes = rig.json(&["meta", "backup", "--incremental", "--dir", &dir])?;
    ensure_eq!(changes["base"], full["file"], "what the changes build on");
    ensure!(changes["bytes"].as_u64() < full["bytes"].as_u64(), "changes: {changes}, all: {full}");
    let file = changes["file"].as_str().unwrap_or_default().to_string();
    let chunk_files = chunk_files_of(&rig, &rig.mount().join("goes"))?;
    let largest = change_after_backup(&rig.mount())?;
    let are_gone = || chunk_files.iter().all(|path| !path.exists());
    ensure!(
        process::eventually(STORE_DEADLINE, are_gone),
        "the chunks of a removed file stay: {chunk_files:?}"
    );
    let refused = rig.weft(&["meta", "restore", &file, "--dir", &dir])?;
    ensure!(
        refused.stderr.contains("already served by process"),
        "restored over a live one: {}",
        refused.tail()
    );
    // As in a crash: the next start reconciles files that were being changed.
    rig.kill();
    rig.unmount()?;
    // Changes before the restore are distinguished from later ones by whole seconds.
    thread::sleep(Duration::from_millis(1100));
    let restored = rig.json(&["meta", "restore", &file, "--dir", &dir])?;
    let before = restored["before"].as_str().unwrap_or_default();
    ensure!(
        Path::new(before).join("version").exists(),
        "the previous metadata is not in its place: {restored}"
    );
    let report = check(&rig, &dir)?;
    for (kind, part) in
        [("missing-chunk-file", "goes"), ("stray-chunk-file", "chunk file"), ("long-chunk-file", "grows")]
    {
        let is_reported = report.iter().any(|(k, object)| k == kind && object.contains(part));
        ensure!(is_reported, "weft fsck should report a {kind} ({part}): {report:?}");
    }
    rig.up()?;
    ensure_restored(&rig.mount())?;
    ensure_new_inode_numbers(&rig.mount(), largest)?;
    fs::remove_file(rig.mount().join("goes")).at("goes")?;
    rig.down()?;
    rig.weft(&["fsck", "--repair", "--dir", &dir])?;
    let left = check(&rig, &dir)?;
    ensure!(left.is_empty(), "after the repair: {left:?}");
    rig.up()
}

/// Returns the chunk files of a file.
fn chunk_files_of(rig: &Rig, path: &Path) -> TestResult<Vec<PathBuf>> {
    let info = rig.json(&["entry", "info", &path.to_string_lossy()])?;
    let chunks = info["chunks"].as_array().cloned().unwrap_or_default();
    let files: Vec<PathBuf> =
        chunks.iter().filter_map(|chunk| chunk["chunk_file"].as_str()).map(PathBuf::from).collect();
    ensure!(!files.is_empty(), "no chunk files: {info}");
    Ok(files)
}

/// Checks a stopped cluster. Returns kinds and objects of the findings.
fn check(rig: &Rig, dir: &str) -> TestResult<Vec<(String, String)>> {
    let done = rig.weft(&["fsck", "--json", "--dir", dir])?;
    let report: serde_json::Value = serde_json::from_str(&done.stdout)
        .map_err(|error| Failure::Failed(format!("weft fsck: {error}: {}", done.tail())))?;
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    Ok(findings.iter().map(|f| (text(&f["kind"]), text(&f["object"]))).collect())
}

/// Returns the files of the store, the largest part of the state that isn't data.
fn store_files(dir: &Path) -> TestResult<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).at(dir.display())? {
        let path = entry.at(dir.display())?.path();
        match path.is_dir() {
            true => found.extend(store_files(&path)?),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}

fn flip(path: &Path, at: u64) -> TestResult {
    let file = OpenOptions::new().read(true).write(true).open(path).at(path.display())?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).at(path.display())?;
    file.write_all_at(&[byte[0] ^ 0x20], at).at(path.display())
}

fn damaged(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("damaged", RigOptions::new(stage.transport()?))?;
    let dir = rig.dir();
    create_backup_state(&rig.mount())?;
    let copy = rig.json(&["meta", "backup", "--dir", &dir.to_string_lossy()])?;
    let copy = copy["file"].as_str().unwrap_or_default().to_string();
    rig.down()?;
    let mut tried = 0;
    for path in store_files(&dir.join("meta"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let content = fs::read(&path).at(path.display())?;
        let Some(used) = content.iter().rposition(|byte| *byte != 0).map(|last| last as u64 + 1) else {
            continue;
        };
        // Old version lists are obsolete files.
        let is_list = name.starts_with('v') && name != "version";
        // After a clean stop, another record confirms the end of a journal.
        if name == "lock" || name == "synced" || is_list {
            continue;
        }
        for at in [used / 3, used * 2 / 3] {
            flip(&path, at)?;
            let refused = process::run(&mut rig.up_command(), COMMAND_DEADLINE)?;
            let said = &refused.stderr;
            let expected = format!("weft meta restore {copy} --dir {}", dir.display());
            ensure!(
                !refused.status.success() && said.contains("is damaged") && said.contains(&expected),
                "byte {at} of {}: {}",
                path.display(),
                refused.tail()
            );
            let store = dir.join("meta").to_string_lossy().into_owned();
            ensure!(said.contains(&store) && !said.contains("panicked"), "{}", refused.tail());
            flip(&path, at)?;
            tried += 1;
        }
    }
    ensure!(tried >= 6, "only {tried} places were tried");
    let journal =
        store_files(&dir.join("meta"))?.into_iter().find(|path| path.extension().is_some_and(|e| e == "jnl"));
    let journal = journal.ok_or_else(|| Failure::Failed("the store has no journal".into()))?;
    flip(&journal, 20)?;
    rig.weft(&["meta", "restore", &copy, "--dir", &dir.to_string_lossy()])?;
    rig.up()?;
    ensure_restored(&rig.mount())?;
    rig.down()?;
    // A missing store isn't mistaken for a cluster that was never started.
    fs::rename(dir.join("meta"), dir.join("away")).at("rename")?;
    let refused = process::run(&mut rig.up_command(), COMMAND_DEADLINE)?;
    ensure!(!refused.status.success() && refused.stderr.contains("it is missing"), "{}", refused.tail());
    fs::rename(dir.join("away"), dir.join("meta")).at("rename")?;
    rig.up()
}

/// A store that lost the end of its journal after a clean stop isn't mistaken for one without that
/// content. And if it were, the file system check would retain the chunk files.
fn lost_journal(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("lost-journal", RigOptions::new(stage.transport()?))?;
    let dir = rig.dir();
    let state = dir.to_string_lossy().into_owned();
    create_backup_state(&rig.mount())?;
    rig.down()?;
    ensure!(dir.join("meta/closed").exists(), "the store was not closed cleanly");
    let journals = store_files(&dir.join("meta"))?;
    let journal = journals.into_iter().find(|path| path.extension().is_some_and(|e| e == "jnl"));
    let journal = journal.ok_or_else(|| Failure::Failed("the store has no journal".into()))?;
    let content = fs::read(&journal).at("the journal")?;
    let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let damages: [(&str, Option<Vec<u8>>); 4] = [
        ("cut", Some(content[..used / 2].to_vec())),
        ("zeroed", Some(vec![0; content.len()])),
        ("emptied", Some(Vec::new())),
        ("missing", None),
    ];
    for (name, damaged) in &damages {
        match damaged {
            Some(damaged) => fs::write(&journal, damaged).at("the journal")?,
            None => fs::remove_file(&journal).at("the journal")?,
        }
        let start = process::run(&mut rig.up_command(), COMMAND_DEADLINE)?;
        for refused in [start, rig.weft(&["fsck", "--repair", "--dir", &state])?] {
            let said = &refused.stderr;
            let is_named = said.contains("is damaged") && said.contains(&*journal.to_string_lossy());
            ensure!(
                !refused.status.success() && is_named && said.contains("weft meta restore"),
                "{name}: {}",
                refused.tail()
            );
        }
        fs::write(&journal, &content).at("the journal")?;
    }
    rig.up()?;
    ensure_restored(&rig.mount())?;
    rig.down()?;
    ensure_chunk_files_retained(&rig, &state)
}

/// Checks that chunk files are retained when the metadata doesn't refer to them.
fn ensure_chunk_files_retained(rig: &Rig, state: &str) -> TestResult {
    let dir = rig.dir();
    let chunk_files = store_files(&dir.join("targets"))?;
    let chunk_files: Vec<PathBuf> =
        chunk_files.into_iter().filter(|path| path.to_string_lossy().contains("/chunks/")).collect();
    ensure!(chunk_files.len() > 6, "only {} chunk files", chunk_files.len());
    fs::rename(dir.join("meta"), dir.join("away")).at("rename")?;
    for entry in fs::read_dir(&dir).at(dir.display())? {
        let path = entry.at(dir.display())?.path();
        if path.file_name().is_some_and(|name| name == "meta.made") {
            fs::remove_file(&path).at(path.display())?;
        }
    }
    let refused = rig.weft(&["fsck", "--repair", "--dir", state])?;
    ensure!(
        refused.code() == 8 && refused.stderr.contains("looks older than the chunk files"),
        "{}",
        refused.tail()
    );
    ensure!(chunk_files.iter().all(|path| path.exists()), "chunk files have gone");
    let accepted = rig.weft(&["fsck", "--repair", "--accept-loss", "--dir", state])?;
    ensure_eq!(accepted.code(), 1, "exit status when the loss is accepted: {}", accepted.tail());
    let listed = rig.json(&["fsck", "--orphans", "list", "--dir", state])?;
    let count = listed.as_array().map_or(0, Vec::len);
    ensure!(count > 3, "what was moved aside: {listed}");
    rig.json(&["fsck", "--orphans", "restore", "--dir", state])?;
    ensure!(chunk_files.iter().all(|path| path.exists()), "chunk files are not back");
    fs::remove_dir_all(dir.join("meta")).at("meta")?;
    fs::rename(dir.join("away"), dir.join("meta")).at("rename")?;
    let left = check(rig, state)?;
    ensure!(left.is_empty(), "with the metadata of before: {left:?}");
    Ok(())
}

/// Damage detected by a read: from then on nothing is served, and the next start reports the
/// damaged file.
fn damaged_in_use(stage: &Stage) -> TestResult {
    let mut rig = stage.start_rig("damaged-in-use", RigOptions::new(stage.transport()?))?;
    let dir = rig.dir();
    let state = dir.to_string_lossy().into_owned();
    create_backup_state(&rig.mount())?;
    let copy = rig.json(&["meta", "backup", "--dir", &state])?;
    let copy = copy["file"].as_str().unwrap_or_default().to_string();
    // More than fits in memory, so that the store writes tables.
    for number in 0..6000 {
        fs::write(rig.mount().join(format!("dir/small{number}")), content(number as u8, 3900))
            .at("small files")?;
    }
    let tables = dir.join("meta/keyspaces/1/tables");
    let has_tables = || {
        store_files(&tables)
            .is_ok_and(|tables| tables.iter().any(|t| t.metadata().is_ok_and(|m| m.len() > 1 << 20)))
    };
    ensure!(process::eventually(STORE_DEADLINE, has_tables), "the store has written no table");
    for table in store_files(&tables)? {
        let length = table.metadata().at(table.display())?.len();
        (0..length).step_by(4000).try_for_each(|at| flip(&table, at))?;
    }
    let met = rig.weft(&["meta", "backup", "--dir", &state])?;
    ensure!(!met.status.success() && met.stderr.contains("is damaged"), "{}", met.tail());
    let ended = process::eventually(STORE_DEADLINE, || !rig.is_running());
    ensure!(ended, "weft continues with a damaged store");
    let said = rig.log();
    ensure!(
        said.contains(&format!("weft meta restore {copy}")) && !said.contains("panicked"),
        "it said: {said}"
    );
    rig.kill();
    let refused = process::run(&mut rig.up_command(), COMMAND_DEADLINE)?;
    let names_table = refused.stderr.contains(&*tables.to_string_lossy());
    ensure!(!refused.status.success() && names_table, "{}", refused.tail());
    rig.json(&["meta", "restore", &copy, "--dir", &state])?;
    rig.up()?;
    ensure_restored(&rig.mount())
}

fn cluster_restores(stage: &Stage) -> TestResult {
    let mut rig = ClusterRig::start(stage, "cluster-goes-back", "tls")?;
    rig.add_node("a")?;
    rig.add_node("b")?;
    rig.join("x", "meta")?;
    let dir = rig.text(&rig.dir("m"));
    let mount = rig.mount("one")?;
    create_backup_state(&mount)?;
    let elsewhere = rig.text(&stage.scratch("copies")?);
    let copy = rig.json(&["meta", "backup", &elsewhere, "--dir", &dir])?;
    let file = copy["file"].as_str().unwrap_or_default().to_string();
    let from_x = rig.text(&rig.dir("x"));
    rig.refused(&["meta", "backup", "--dir", &from_x], "doesn't store the cluster's metadata")?;
    let largest = change_after_backup(&mount)?;
    let held = File::open(mount.join("stays")).at("stays")?;
    rig.add_node("c")?;
    rig.stop("m")?;
    rig.json(&["meta", "restore", &file, "--dir", &dir])?;
    rig.serve("m")?;
    // A restore keeps later changes of nodes and targets.
    rig.wait_for_node("c", "online")?;
    // The client learns that its session has ended, and starts another one by itself.
    let mut last = String::new();
    let is_back = process::eventually(RETURN_DEADLINE, || {
        // If `x` has written changes that the restore discarded, it ends when it detects that.
        match rig.serve_if_ended("x").and_then(|()| ensure_restored(&mount)) {
            Ok(()) => true,
            Err(error) => {
                last = format!("{error:?}");
                false
            }
        }
    });
    ensure!(is_back, "the client doesn't see what was restored: {last}");
    let refused = held.read_at(&mut [0; 4096], 0).err().and_then(|error| error.raw_os_error());
    ensure_eq!(refused, Some(libc::EIO), "a file that was open meanwhile");
    drop(held);
    ensure_new_inode_numbers(&mount, largest)?;
    rig.unmount(&mount)?;
    // On another machine, with only the backup.
    rig.serve_if_ended("x")?;
    rig.stop("x")?;
    rig.stop("m")?;
    let moved = rig.dir("m").with_extension("lost");
    fs::rename(rig.dir("m"), &moved).at("rename")?;
    rig.json(&["meta", "restore", &file, "--dir", &dir])?;
    rig.serve("m")?;
    rig.serve("x")?;
    let mount = rig.mount("two")?;
    ensure_restored(&mount)?;
    rig.unmount(&mount)
}

/// The machine of the metadata store loses power while another node executes half of the
/// partitions. The other node's later commits must not contain changes that depend on lost ones;
/// all synced changes must be present.
fn store_loses_power(stage: &Stage) -> TestResult {
    let base = stage.base("store-power")?;
    let disk = Disk::new(&base, "node-m", DiskKind::Xfs, 1 << 30)?;
    let mut rig = ClusterRig::start_below(stage, base, "plain", &["--roles", "mgmt,meta"])?;
    rig.add_node("a")?;
    rig.join("x", "meta")?;
    let mount = rig.mount("one")?;
    for round in 0..3 {
        let kept = mount.join(format!("kept{round}"));
        create_synced_tree(&kept).or_else(|_| {
            // Changes of the previous round may be lost, which is reported once.
            fs::remove_dir_all(&kept).or_else(ignore_missing).at(kept.display())?;
            create_synced_tree(&kept)
        })?;
        let lost = mount.join(format!("lost{round}"));
        fs::create_dir(&lost).at(lost.display())?;
        for number in 0..30 {
            // Some are in partitions of one node, some in those of the other.
            fs::create_dir(lost.join(number.to_string())).at("mkdir")?;
        }
        disk.shut_down()?;
        // Requests in flight are retransmitted, and must not be executed on lost directories.
        let under_way: Vec<_> = (0..30)
            .map(|number| lost.join(format!("{number}/early")))
            .map(|path| {
                thread::spawn(move || drop(sys::unshare_files().and_then(|()| fs::write(path, "early"))))
            })
            .collect();
        rig.wait_for_end("m")?;
        disk.remount()?;
        rig.serve("m")?;
        let mut last = String::new();
        let is_back = process::eventually(RETURN_DEADLINE, || {
            rig.serve_if_ended("x").is_ok()
                && fs::write(mount.join(format!("back{round}")), "back")
                    .map_err(|e| last = e.to_string())
                    .is_ok()
        });
        ensure!(is_back, "nothing can be written after round {round}: {last}");
        under_way.into_iter().for_each(|thread| drop(thread.join()));
        // This fails if the directories are lost.
        (0..30).for_each(|number| drop(fs::write(lost.join(format!("{number}/file")), "late")));
        for round in 0..=round {
            (0..20).try_for_each(|number| {
                let path = mount.join(format!("kept{round}/{number}/file"));
                ensure_eq!(fs::read(&path).at(path.display())?, content(number, 300), "{}", path.display());
                Ok(())
            })?;
        }
    }
    rig.unmount(&mount)?;
    let dir = rig.text(&rig.dir("m"));
    rig.ok(&["fsck", "--dir", &dir]).map(drop)
}

fn ignore_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Creates directories with a file each, all synced.
fn create_synced_tree(dir: &Path) -> TestResult {
    let sync = |dir: &Path| File::open(dir).and_then(|dir| dir.sync_all()).at(dir.display());
    fs::create_dir(dir).at(dir.display())?;
    for number in 0..20 {
        let below = dir.join(number.to_string());
        fs::create_dir(&below).at(below.display())?;
        write(&below.join("file"), &content(number, 300))?;
        sync(&below)?;
    }
    sync(dir)?;
    sync(dir.parent().unwrap_or(dir))
}
