//! The POSIX suites on two mounts of one cluster: changes on one mount are checked through the
//! other.

use super::super::content::Rng;
use super::super::outcome::{At, Failure, TestResult, ensure};
use super::super::stage::Stage;
use super::super::{Scope, TestCase, mounts, suites};
use super::Cluster;
use crate::helper::TURNS_CONTENT;
use crate::process;
use crate::sys;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "pjdfstest_of_two_mounts", scope: Scope::Own, minutes: 6, run: pjdfstest },
    TestCase { name: "fsx_of_two_mounts", scope: Scope::Own, minutes: 5, run: fsx },
    TestCase { name: "two_mounts_take_turns", scope: Scope::Own, minutes: 5, run: turns },
];

/// Deadline of one program.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Maximum number of bytes compared per file; some tests of pjdfstest create files of exabytes.
const COMPARED_BYTES: u64 = 64 << 10;

/// Tests of pjdfstest in the short form: everything about names and links, where a mount's caches
/// most easily become stale, and some of each other kind.
const SHORT_PATTERNS: &[&str] = &["unlink::", "symlink::", "ftruncate", "utimensat"];

/// Number of system calls shown before a difference.
const SHOWN_CALLS: usize = 12;

/// System calls that may change visible state.
const CHANGES: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_bind,
    libc::SYS_close,
];

/// Those that exist only on some architectures.
#[cfg(target_arch = "x86_64")]
const OLD_CHANGES: &[i64] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CHANGES: &[i64] = &[];

/// The visible state of one file.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    inode: u64,
    mode: u32,
    links: u64,
    owner: (u32, u32),
    device: u64,
    size: u64,
    /// The number of blocks isn't stable: a local file system preallocates beyond the end for a
    /// limited time.
    has_blocks: bool,
    changed: (i64, i64),
    modified: (i64, i64),
    born: Option<(i64, u32)>,
    attributes: Vec<(String, Vec<u8>)>,
    target: Option<PathBuf>,
    /// The compared length, and a hash of that content.
    content: Option<(usize, u64)>,
}

/// Reads the state of a folder and of everything below it.
fn read_state(folder: &Path) -> io::Result<BTreeMap<PathBuf, FileState>> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(place) = waiting.pop() {
        let path = folder.join(&place);
        let at = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
        let meta = fs::symlink_metadata(&path).map_err(at)?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path).map_err(at)? {
                waiting.push(place.join(entry.map_err(at)?.file_name()));
            }
        }
        let seen = see(&path, &meta).map_err(at)?;
        all.insert(place, seen);
    }
    Ok(all)
}

fn see(path: &Path, meta: &Metadata) -> io::Result<FileState> {
    let kind = meta.file_type();
    let special = kind.is_symlink()
        || kind.is_fifo()
        || kind.is_socket()
        || kind.is_block_device()
        || kind.is_char_device();
    let names = if special { Vec::new() } else { sys::list_xattrs(path)? };
    let value = |name: String| sys::get_xattr(path, &name).map(|value| (name, value));
    let content = |path| {
        let mut bytes = Vec::new();
        File::open(path)?.take(COMPARED_BYTES).read_to_end(&mut bytes)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        io::Result::Ok((bytes.len(), hasher.finish()))
    };
    Ok(FileState {
        inode: meta.ino(),
        mode: meta.mode(),
        links: meta.nlink(),
        owner: (meta.uid(), meta.gid()),
        device: meta.rdev(),
        size: meta.size(),
        has_blocks: meta.blocks() > 0,
        changed: (meta.ctime(), meta.ctime_nsec()),
        modified: (meta.mtime(), meta.mtime_nsec()),
        born: if kind.is_symlink() { None } else { sys::birth_time(path)? },
        attributes: names.into_iter().map(value).collect::<io::Result<_>>()?,
        target: if kind.is_symlink() { Some(fs::read_link(path)?) } else { None },
        content: if kind.is_file() { Some(content(path)?) } else { None },
    })
}

/// Returns the differences between two mounts.
pub(super) fn differences(here: &Path, there: &Path) -> io::Result<Vec<String>> {
    // Read the passive mount first: requests of the active mount must not refresh it.
    let (there, here) = (read_state(there)?, read_state(here)?);
    let paths: std::collections::BTreeSet<_> = here.keys().chain(there.keys()).collect();
    let differ = paths.into_iter().filter(|path| here.get(*path) != there.get(*path));
    Ok(differ
        .map(|path| format!("{}: done {:?}, seen {:?}", path.display(), here.get(path), there.get(path)))
        .collect())
}

/// pjdfstest runs unmodified on one mount. After each system call that may change something it is
/// stopped, and everything that the two mounts show of its folder is compared: names, attributes,
/// link counts, extended attributes, link targets, content.
fn pjdfstest(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "pjd", 2, 2)?;
    let folders = cluster.shared_folder("pjd")?;
    // The suite needs a short path, which a mount in a node's folder doesn't have.
    let short = stage.scratch("s")?;
    let mounts: Vec<PathBuf> = ["1", "2"].iter().map(|name| short.join(name)).collect();
    for (folder, link) in folders.iter().zip(&mounts) {
        symlink(folder, link).at(link.display())?;
    }
    let suite = suites::Pjdfstest::prepare(stage, &mounts[0])?;
    let there = mounts[1].join(suite.dir.file_name().expect("it is below the first"));
    let patterns = if stage.full { &[][..] } else { SHORT_PATTERNS };
    let (mut command, output) = suite.command(patterns)?;
    let (here, mut compared, mut recent) = (suite.dir.clone(), 0u64, [0; SHOWN_CALLS]);
    // Some tests mount a file system on a folder, which is visible only on this mount.
    let real = suite.dir.canonicalize().at(suite.dir.display())?;
    let compare = move |number: i64| -> Result<u64, String> {
        let changes = CHANGES.contains(&number) || OLD_CHANGES.contains(&number);
        if changes && !mounts::any_below(&real) {
            let different = differences(&here, &there).map_err(|error| format!("comparing: {error}"))?;
            if !different.is_empty() {
                let again =
                    differences(&here, &there).map_err(|error| format!("comparing again: {error}"))?;
                let before = recent.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                return Err(format!(
                    "after system calls {before} {number}: {}\n    a moment later: {again:?}",
                    different.join("\n    ")
                ));
            }
            recent.rotate_left(1);
            recent[SHOWN_CALLS - 1] = number;
            compared += 1;
        }
        Ok(compared)
    };
    // A separate thread: it waits for all of its children, so it must not have others.
    let run = move || {
        let (mut compare, mut times) = (compare, 0);
        let status = sys::trace(&mut command, |number| {
            times = compare(number)?;
            Ok(())
        });
        status.map(|status| (status, times))
    };
    let traced =
        thread::spawn(run).join().map_err(|_| Failure::Failed("the tracing thread panicked".into()))?;
    let said = fs::read_to_string(&output).unwrap_or_default();
    let (status, times) =
        traced.map_err(|error| format!("{error}\n{}", super::super::rig::last_lines(&said)))?;
    suite.judge(&said, status == 0, stage.full)?;
    ensure!(times >= 1000, "only {times} comparisons");
    println!("pjdfstest: the two mounts were compared {times} times");
    cluster.stop()
}

/// Two concurrent runs of fsx, each on its own file; the other mount then shows the final content.
fn fsx(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "fsx", 2, 2)?;
    let folders = cluster.shared_folder("fsx")?;
    let operations = if stage.full { 100_000 } else { 2_000 };
    for round in stage.rounds((1, suites::FSX_SEEDS.len() as u64)) {
        let running: Vec<_> = folders
            .iter()
            .enumerate()
            .map(|(mount, folder)| {
                let seed = suites::FSX_SEEDS[(round as usize + mount) % suites::FSX_SEEDS.len()];
                suites::fsx_command(stage, &folder.join(format!("file-{round}-{mount}")), seed, operations)
            })
            .collect::<TestResult<Vec<_>>>()?
            .into_iter()
            .map(|mut command| thread::spawn(move || process::run_ok(&mut command, DEADLINE)))
            .collect();
        for (mount, run) in running.into_iter().enumerate() {
            let done = run.join().map_err(|_| Failure::Failed("fsx's thread panicked".into()))??;
            ensure!(
                format!("{}{}", done.stdout, done.stderr).contains("A-OK"),
                "fsx on mount {mount} doesn't say that all is well: {}",
                done.tail()
            );
        }
        let different = differences(&folders[0], &folders[1]).at("comparing")?;
        if !different.is_empty() {
            thread::sleep(Duration::from_millis(300));
            let again = differences(&folders[0], &folders[1]).at("comparing again")?;
            return Err(Failure::Failed(format!(
                "fsx has left different files on both mounts: {}\n    a moment later: {again:?}",
                different.join("\n    ")
            )));
        }
    }
    cluster.stop()
}

/// Programs on both mounts modify one file in turns under one lock, and each checks what the other
/// has left: by reading, by mapping, and by its length.
fn turns(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "turns", 2, 2)?;
    let folders = cluster.shared_folder("turns")?;
    let turns = if stage.full { 20_000u64 } else { 120 };
    for kind in ["flock", "fcntl"] {
        let outside = stage.scratch(&format!("turns-{kind}"))?;
        fs::write(outside.join(TURNS_CONTENT), "").at("the expected content")?;
        fs::write(folders[0].join(kind), "").at("the file")?;
        let running: Vec<_> = folders
            .iter()
            .enumerate()
            .map(|(mount, folder)| {
                let mut command = Command::new(process::this_program());
                command.args(["helper", "turns"]).arg(folder.join(kind)).arg(&outside);
                command.args(["--kind", kind, "--turns", &turns.to_string()]);
                command.args(["--seed", &(mount as u64 + Rng::new(turns).below(1000)).to_string()]);
                command.stdin(Stdio::null());
                thread::spawn(move || process::run_ok(&mut command, DEADLINE))
            })
            .collect();
        for run in running {
            run.join().map_err(|_| Failure::Failed("a helper's thread panicked".into()))??;
        }
    }
    cluster.stop()
}
