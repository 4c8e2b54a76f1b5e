//! Common application programs.

use super::cleanup::{self, Resource};
use super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno, skip};
use super::stage::Stage;
use super::{Rng, Scope, TestCase, mounts, tools};
use crate::{build, process};
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const TESTS: &[TestCase] = &[
    TestCase { name: "git_clone_and_fsck", scope: Scope::Mounted, minutes: 3, run: git },
    TestCase { name: "tar_of_20000_files", scope: Scope::Mounted, minutes: 5, run: tar },
    TestCase { name: "build_a_c_project", scope: Scope::Mounted, minutes: 3, run: build_c },
    TestCase { name: "sqlite_with_four_writers", scope: Scope::Mounted, minutes: 5, run: sqlite },
    TestCase { name: "running_program", scope: Scope::Mounted, minutes: 1, run: running_program },
    TestCase { name: "overlay_on_top", scope: Scope::Mounted, minutes: 1, run: overlay },
    TestCase { name: "rsync_twice", scope: Scope::Mounted, minutes: 3, run: rsync },
];

/// Deadline of one program.
const DEADLINE: Duration = Duration::from_secs(150);

fn sh(script: &str, dir: &Path) -> TestResult<String> {
    Ok(process::run_ok(Command::new("sh").args(["-ec", script]).current_dir(dir), DEADLINE)?.stdout)
}

fn git(stage: &Stage) -> TestResult {
    tools::find("git")?;
    let (outside, dir) = (stage.scratch("git")?, stage.folder("git")?);
    let identity = "-c user.name=tester -c user.email=tester@localhost";
    // A repository of weft's own source with some history, so that the test doesn't depend on how
    // this tree was obtained.
    let source = build::root().join("xtask");
    let script = format!(
        "git init -q repo && cp -r '{}/src' repo/ && cd repo && git add -A && git {identity} commit -qm one
         for n in 1 2 3 4 5; do echo $n >> src/main.rs; git {identity} commit -qam $n; done",
        source.display()
    );
    sh(&script, &outside)?;
    let repo = outside.join("repo");
    let script = format!(
        "git clone -q --no-local 'file://{}' clone && cd clone && git fsck --full --strict
         git checkout -qb work && echo more > added && git add added && git {identity} commit -qm more
         git checkout -q HEAD~3 && git checkout -q work && git gc -q --aggressive && git fsck --full
         git status --porcelain",
        repo.display()
    );
    let printed = sh(&script, &dir)?;
    ensure_eq!(printed.trim(), "", "what git fsck and git status complain about");
    let (ours, theirs) = ("git -C clone rev-parse work~1", "git -C repo rev-parse HEAD");
    ensure_eq!(sh(ours, &dir)?, sh(theirs, &outside)?, "the commit that was cloned");
    Ok(())
}

/// A mounted overlay file system. It is unmounted with any test result: otherwise the weft below it
/// couldn't be unmounted.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(at: &Path, options: &str) -> TestResult<Overlay> {
        cleanup::register(Resource::Disk(at.to_path_buf()));
        let overlay = Overlay(at.to_path_buf());
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", options]).arg(at);
        process::run_ok(&mut mount, DEADLINE)?;
        Ok(overlay)
    }

    fn unmount(self) -> TestResult {
        process::run_ok(Command::new("umount").arg(&self.0), DEADLINE)?;
        Ok(())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        mounts::force_unmount(&self.0);
        cleanup::unregister(&Resource::Disk(self.0.clone()));
    }
}

/// An overlay file system, as containers use it, with its upper directory on weft. Removed or
/// renamed entries become whiteouts there, which rename(2) creates.
fn overlay(stage: &Stage) -> TestResult {
    if !fs::read_to_string("/proc/filesystems").at("/proc/filesystems")?.contains("\toverlay\n") {
        return skip("this kernel has no overlay file system");
    }
    let (outside, dir) = (stage.scratch("overlay")?, stage.folder("overlay")?);
    let merged = outside.join("merged");
    sh(
        "mkdir -p lower/tree merged && echo 1 > lower/one && echo 2 > lower/two && echo 3 > lower/tree/three",
        &outside,
    )?;
    sh("mkdir upper work", &dir)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={},redirect_dir=on,index=off",
        outside.join("lower").display(),
        dir.join("upper").display(),
        dir.join("work").display()
    );
    let expected = "./moved 1\n./renamed/three 3\n./renamed/four 4\n";
    let list = |what: &str| -> TestResult {
        let found = sh("for f in moved renamed/three renamed/four; do echo ./$f $(cat $f); done", &merged)?;
        ensure_eq!(found, expected, "{what}");
        ensure_eq!(sh("find . | wc -l", &merged)?.trim(), "5", "names {what}");
        Ok(())
    };
    let mounted = Overlay::mount(&merged, &options)?;
    sh("mv one moved && rm two && mv tree renamed && echo 4 > renamed/four", &merged)?;
    list("of the overlay")?;
    mounted.unmount()?;
    let whiteouts = sh("find . -type c | sort | tr '\\n' ' '", &dir.join("upper"))?;
    ensure_eq!(whiteouts, "./one ./tree ./two ", "whiteouts on weft");
    let mounted = Overlay::mount(&merged, &options)?;
    list("of the overlay, mounted again")?;
    mounted.unmount()
}

/// Creates a tree of many files of various sizes, with links and modes; deterministic for a given
/// count.
fn generate_tree(top: &Path, files: u64) -> std::io::Result<()> {
    let mut rng = Rng::new(files);
    for number in 0..files {
        let folder = top.join(format!("{}/{}", number % 37, number % 11));
        if number < 37 * 11 {
            fs::create_dir_all(&folder)?;
        }
        let path = folder.join(format!("file-{number}"));
        // Mostly small, as in real trees; every hundredth file is empty or has several chunks.
        let length = match number % 100 {
            0 => rng.below(1_500_000),
            1 => 0,
            _ => rng.below(6000),
        };
        fs::write(&path, rng.bytes(length as usize))?;
        if number % 50 == 0 {
            symlink(format!("file-{number}"), folder.join(format!("symlink-{number}")))?;
            fs::hard_link(&path, folder.join(format!("link-{number}")))?;
        }
    }
    Ok(())
}

fn tar(stage: &Stage) -> TestResult {
    const FILES: u64 = 20_000;
    let (outside, dir) = (stage.scratch("tar")?, stage.folder("tar")?);
    generate_tree(&outside.join("tree"), FILES).at("generating a tree")?;
    sh("tar -cf tree.tar tree", &outside)?;
    let archive = outside.join("tree.tar");
    sh(&format!("tar -xf '{}'", archive.display()), &dir)?;
    sh(&format!("diff -r --no-dereference '{}' tree", outside.join("tree").display()), &dir)?;
    // And back from the mount: tar itself compares names, modes, owners, times, links and content.
    sh("tar -cf again.tar tree && tar -df again.tar", &dir)?;
    sh(&format!("tar -df '{}'", dir.join("again.tar").display()), &outside)?;
    sh("rm -rf tree && test ! -e tree", &dir)?;
    fs::remove_dir_all(&outside).at("removing the tree")
}

fn build_c(stage: &Stage) -> TestResult {
    tools::find("make")?;
    tools::find("cc")?;
    let dir = stage.folder("build_c")?;
    demo::build_example(&dir).at("building")?;
    let up_to_date = Command::new("make").arg("-q").arg("-C").arg(&dir).status().at("make -q")?;
    ensure!(up_to_date.success(), "make would build again what it has just built");
    sh("touch part7.c && make | grep -c -- ' -c '", &dir).and_then(|compiled| {
        ensure_eq!(compiled.trim(), "1", "files compiled after one was touched");
        Ok(())
    })
}

fn sqlite(stage: &Stage) -> TestResult {
    const WRITERS: u64 = 4;
    const ROWS: u64 = 150;
    let program = tools::find("sqlite3")?;
    for journal in ["delete", "wal"] {
        let dir = stage.folder(&format!("sqlite_{journal}"))?;
        let ask = |statements: String| {
            let mut command = Command::new(&program);
            command.args(["-cmd", ".timeout 60000", "base.db"]).arg(statements).current_dir(&dir);
            process::run_ok(&mut command, DEADLINE)
        };
        ask(format!("pragma journal_mode={journal}; create table t(writer, row, filler);"))?;
        let write = |writer: u64| {
            // One transaction per row, several rows per call.
            for start in (0..ROWS).step_by(10) {
                let insert = |row| format!("insert into t values({writer}, {row}, hex(randomblob(500)));");
                ask((start..start + 10).map(insert).collect())?;
            }
            Ok::<(), String>(())
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        for outcome in outcomes {
            outcome.map_err(|_| "a writer panicked".to_string())??;
        }
        ensure_eq!(
            ask("pragma integrity_check;".into())?.stdout.trim(),
            "ok",
            "integrity with journal {journal}"
        );
        let rows = ask("select count(*), count(distinct writer * 1000000 + row) from t;".into())?.stdout;
        let all = WRITERS * ROWS;
        ensure_eq!(rows.trim(), format!("{all}|{all}"), "rows, and different ones, with journal {journal}");
    }
    Ok(())
}

/// The file of a running program can't be written or truncated, and the program continues.
fn running_program(stage: &Stage) -> TestResult {
    let dir = stage.folder("running_program")?;
    let program = dir.join("sleep");
    let original = tools::find("sleep")?;
    fs::copy(&original, &program).at("copying a program")?;
    let mut running = Command::new(&program).arg("60").spawn().at("running it")?;
    let cut = || fs::OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&program);
    let writing = fs::OpenOptions::new().write(true).open(&program);
    let refused = expect_errno(writing, libc::ETXTBSY, "writing a program that runs").and(expect_errno(
        cut(),
        libc::ETXTBSY,
        "cutting a program that runs",
    ));
    let ended = running.try_wait().at("asking after it")?;
    running.kill().at("ending it")?;
    running.wait().at("waiting for it")?;
    refused?;
    ensure!(ended.is_none(), "the program ended: {ended:?}");
    ensure!(
        fs::read(&program).at("program")? == fs::read(&original).at("original")?,
        "the program has changed"
    );
    cut().at("cutting a program that has ended")?;
    ensure_eq!(fs::metadata(&program).at("program")?.len(), 0, "bytes after the cut");
    Ok(())
}

fn rsync(stage: &Stage) -> TestResult {
    tools::find("rsync")?;
    let (outside, dir) = (stage.scratch("rsync")?, stage.folder("rsync")?);
    generate_tree(&outside.join("tree"), 2000).at("generating a tree")?;
    let copy = format!("rsync -aHAX --itemize-changes '{}/' copy/", outside.join("tree").display());
    let first = sh(&copy, &dir)?;
    ensure!(first.lines().count() >= 2000, "the first rsync copied {} things", first.lines().count());
    ensure_eq!(sh(&copy, &dir)?, "", "what the second rsync changed");
    let compare = copy.replace("-aHAX", "-aHAXcn --delete");
    ensure_eq!(sh(&compare, &dir)?, "", "what differs by checksum");
    fs::write(outside.join("tree/0/0/file-0"), "changed").at("changing a file")?;
    let third = sh(&copy, &dir)?;
    ensure!(third.contains("0/0/file-0"), "a changed file isn't copied: {third}");
    Ok(())
}
