//! Migration of files in one process while applications use them: the mount of `weft up` has no
//! leases, and coordinates with the migrator directly.

use super::outcome::{At, Failure, TestResult, ensure};
use super::rig::{COMMAND_DEADLINE, Rig, RigOptions};
use super::stage::Stage;
use super::{Rng, Scope, TestCase};
use crate::process;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(super) const TESTS: &[TestCase] = &[TestCase {
    name: "files_in_use_move_in_one_process",
    scope: Scope::Own,
    minutes: 4,
    run: files_in_use,
}];

/// Bytes of the file that is written during the migration.
const BYTES: usize = 24 << 20;
/// Number of targets.
const TARGETS: usize = 4;

/// Repeated migrations between redundancy schemes, and a drain of a target, while a file is written
/// and read continually.
fn files_in_use(stage: &Stage) -> TestResult {
    let base = stage.base("moves-targets")?;
    let target_dirs = (0..TARGETS).map(|number| base.join(format!("t{number}"))).collect();
    let mut rig =
        stage.start_rig("moves", RigOptions { target_dirs, ..RigOptions::new(stage.transport()?) })?;
    let folder = rig.mount().join("folder");
    fs::create_dir(&folder).at("mkdir")?;
    let still = Rng::new(3).bytes(5 << 20);
    fs::write(folder.join("still"), &still).at("write")?;
    let busy = folder.join("busy");
    fs::write(&busy, Rng::new(17).bytes(BYTES)).at("write")?;
    let is_over = AtomicBool::new(false);
    let moved = thread::scope(|scope| {
        let writer = scope.spawn(|| keep_changing(&busy, &is_over));
        let moved = migrate_repeatedly(stage, &rig, &folder);
        is_over.store(true, Ordering::Relaxed);
        let written = writer.join().map_err(|_| Failure::Failed("the writer panicked".into()))?;
        moved.and(written)
    });
    let content = moved?;
    rig.restart()?;
    ensure!(fs::read(&busy).at("read")? == content, "what was written while it moved isn't there");
    ensure!(fs::read(folder.join("still")).at("read")? == still, "an unused file differs");
    rig.down()?;
    rig.fsck()
}

fn migrate_repeatedly(stage: &Stage, rig: &Rig, folder: &Path) -> TestResult {
    for scheme in ["mirror:2", "single", "mirror:2", "single"] {
        let mut migrate = Command::new(stage.binary()?);
        migrate.args(["migrate", "--recursive", "--json", "--scheme", scheme]).arg(folder);
        let done = process::run_ok(&mut migrate, COMMAND_DEADLINE)?;
        println!("{scheme}: {}", done.stdout.trim());
        for name in ["still", "busy"] {
            let said = rig.entry(&folder.join(name))?;
            let groups = said["layout"]["groups"].as_array().cloned().unwrap_or_default();
            let are = !groups.is_empty() && groups.iter().all(|group| group["scheme"] == scheme);
            ensure!(are, "{name} isn't all {scheme}: {said}");
        }
    }
    let dir = rig.dir().to_string_lossy().into_owned();
    let drained = rig.weft(&["target", "drain", "2", "--wait", "--dir", &dir])?;
    ensure!(drained.status.success(), "weft target drain: {}", drained.tail());
    Ok(())
}

/// Rewrites parts of a file and reads others. Returns the final content.
fn keep_changing(path: &Path, is_over: &AtomicBool) -> TestResult<Vec<u8>> {
    const PIECE: usize = 70_000;
    let mut rng = Rng::new(18);
    let mut content = fs::read(path).at("read")?;
    let file = File::options().read(true).write(true).open(path).at("open")?;
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let at = rng.below((BYTES - PIECE) as u64) as usize;
        let piece = rng.bytes(PIECE);
        file.write_all_at(&piece, at as u64).at("write")?;
        content[at..at + PIECE].copy_from_slice(&piece);
        let from = rng.below((BYTES - PIECE) as u64) as usize;
        let mut found = vec![0; PIECE];
        file.read_exact_at(&mut found, from as u64).at("read")?;
        ensure!(
            found == content[from..from + PIECE],
            "round {round}: what is read at {from} isn't what was written"
        );
        if round % 64 == 0 {
            file.sync_all().at("fsync")?;
            let other = File::open(path).at("open")?;
            other.read_exact_at(&mut found, from as u64).at("read")?;
            ensure!(
                found == content[from..from + PIECE],
                "round {round}: another descriptor reads something else"
            );
        }
    }
    println!("{round} rounds of writing and reading meanwhile");
    Ok(content)
}
