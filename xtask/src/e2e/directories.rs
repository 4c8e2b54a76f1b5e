//! Large and changing directories.

use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno};
use super::stage::Stage;
use super::{Scope, TestCase};
use crate::process;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "directory_of_100000", scope: Scope::Mounted, minutes: 5, run: huge },
    TestCase { name: "delete_during_readdir", scope: Scope::Mounted, minutes: 2, run: delete_during_readdir },
    TestCase { name: "create_during_readdir", scope: Scope::Mounted, minutes: 2, run: create_during_readdir },
    TestCase { name: "deep_tree", scope: Scope::Mounted, minutes: 1, run: deep_tree },
    TestCase { name: "parallel_creates", scope: Scope::Mounted, minutes: 2, run: parallel_creates },
];

/// Number of entries in the huge directory.
const HUGE: usize = 100_000;

/// Deadline of listing it.
const LIST_DEADLINE: Duration = Duration::from_secs(120);

fn names(dir: &Path) -> TestResult<Vec<OsString>> {
    let entries = fs::read_dir(dir).at(dir.display())?;
    entries.map(|entry| Ok(entry.at("readdir")?.file_name())).collect()
}

fn huge(stage: &Stage) -> TestResult {
    let dir = stage.folder("huge")?;
    for number in 0..HUGE {
        File::create(dir.join(format!("entry-{number}"))).at("create")?;
    }
    let listed = process::run_ok(Command::new("ls").arg("-f").arg(&dir), LIST_DEADLINE)?.stdout;
    let listed: Vec<&str> = listed.lines().filter(|name| !name.starts_with('.')).collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    ensure_eq!((listed.len(), unique.len()), (HUGE, HUGE), "entries listed, and different ones among them");
    let missing = (0..HUGE).find(|number| !unique.contains(format!("entry-{number}").as_str()));
    ensure_eq!(missing, None, "an entry that isn't listed");
    for number in (0..HUGE).step_by(997) {
        fs::metadata(dir.join(format!("entry-{number}"))).at("stat")?;
    }
    expect_errno(fs::remove_dir(&dir), libc::ENOTEMPTY, "rmdir of a full directory")?;
    process::run_ok(Command::new("rm").arg("-rf").arg(&dir), LIST_DEADLINE)?;
    ensure!(!dir.exists(), "rm -rf left the directory");
    Ok(())
}

fn delete_during_readdir(stage: &Stage) -> TestResult {
    const ENTRIES: usize = 5000;
    let dir = stage.folder("delete_during_readdir")?;
    for number in 0..ENTRIES {
        File::create(dir.join(number.to_string())).at("create")?;
    }
    // Like `rm -r`: each entry is removed as soon as it has been seen.
    let mut seen = 0;
    for entry in fs::read_dir(&dir).at("opendir")? {
        fs::remove_file(entry.at("readdir")?.path()).at("unlink")?;
        seen += 1;
    }
    ensure_eq!(seen, ENTRIES, "entries seen while they were deleted");
    ensure_eq!(names(&dir)?.len(), 0, "entries left");
    Ok(())
}

fn create_during_readdir(stage: &Stage) -> TestResult {
    const OLD: usize = 3000;
    let dir = stage.folder("create_during_readdir")?;
    for number in 0..OLD {
        File::create(dir.join(format!("old-{number}"))).at("create")?;
    }
    let mut seen = Vec::new();
    for (number, entry) in fs::read_dir(&dir).at("opendir")?.enumerate() {
        let name = entry.at("readdir")?.file_name();
        if number < OLD {
            // New entries are created, and every second old one that has been seen is removed.
            File::create(dir.join(format!("new-{number}"))).at("create")?;
            if number % 2 == 0 {
                fs::remove_file(dir.join(&name)).at("unlink")?;
            }
        }
        seen.push(name);
    }
    let old = seen.iter().filter(|name| name.to_string_lossy().starts_with("old-"));
    ensure_eq!(old.count(), OLD, "old entries seen");
    let unique: BTreeSet<_> = seen.iter().collect();
    ensure_eq!(unique.len(), seen.len(), "entries seen twice");
    Ok(())
}

fn deep_tree(stage: &Stage) -> TestResult {
    const DEPTH: usize = 300;
    let top = stage.folder("deep_tree")?;
    let mut dir = top.clone();
    for _ in 0..DEPTH {
        dir.push("d");
        fs::create_dir(&dir).at("mkdir")?;
    }
    fs::write(dir.join("file"), "deep").at("file")?;
    ensure_eq!(fs::metadata(&dir).at("stat")?.nlink(), 2, "links of the lowest folder");
    // A directory can't move below itself.
    expect_errno(fs::rename(top.join("d"), dir.join("d")), libc::EINVAL, "rename below itself")?;
    fs::rename(top.join("d"), top.join("moved")).at("rename")?;
    let moved = top.join("moved").join(dir.strip_prefix(top.join("d")).expect("dir lies below d"));
    ensure_eq!(fs::read(moved.join("file")).at("file")?, b"deep", "content below the moved tree");
    fs::remove_dir_all(top.join("moved")).at("rm -r")
}

fn parallel_creates(stage: &Stage) -> TestResult {
    const THREADS: usize = 4;
    const EACH: usize = 1000;
    let dir = stage.folder("parallel_creates")?;
    let make = |thread: usize| {
        for number in 0..EACH {
            // Two threads try to create each name; exactly one may succeed.
            let name = format!("{}-{number}", thread / 2);
            match File::create_new(dir.join(&name)) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            fs::rename(dir.join(&name), dir.join(format!("done-{thread}-{name}")))?;
            File::create(dir.join(&name))?;
        }
        Ok(())
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || make(thread))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for outcome in outcomes {
        outcome.map_err(|_| "a thread panicked".to_string())?.at("create")?;
    }
    let listed = names(&dir)?;
    let unique: BTreeSet<_> = listed.iter().collect();
    ensure_eq!(unique.len(), listed.len(), "entries listed twice");
    let plain = listed.iter().filter(|name| !name.to_string_lossy().starts_with("done")).count();
    ensure_eq!(plain, THREADS / 2 * EACH, "names made");
    Ok(())
}
