//! Copies are those of GNU cp.

use crate::random_tree::{Rng, list, populate};
use rustix::fs::{Timespec, Timestamps, XattrFlags};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tree::{CopyCounts, CopyOptions, Failure, Job, copy};

const ARCHIVE: CopyOptions = CopyOptions { recursive: true, archive: true };
const PLAIN: CopyOptions = CopyOptions { recursive: true, archive: false };

/// Copies, and returns what failed.
fn cp(from: &Path, to: &Path, options: CopyOptions) -> Vec<String> {
    let (stop, failures, counts) = (AtomicBool::new(false), Mutex::new(Vec::new()), CopyCounts::default());
    let report = |failure: Failure| {
        let line = format!("{}: {}", failure.path.display(), failure.cause);
        failures.lock().unwrap().push(line);
    };
    copy(from, to, options, &counts, Job { stop: &stop, report: &report });
    failures.into_inner().unwrap()
}

/// Describes everything in a tree. `attributes`: also those that only an archive keeps.
fn describe(root: &Path, attributes: bool) -> Vec<String> {
    let mut inodes = Vec::new();
    let mut line = |path: &Path| {
        let name = if path.as_os_str().is_empty() {
            root.to_path_buf()
        } else {
            root.join(path.strip_prefix("/").unwrap())
        };
        let found = fs::symlink_metadata(&name).unwrap();
        let kind = found.file_type();
        let mut line = format!("{path:?} {:o}", found.mode());
        if kind.is_symlink() {
            line += &format!(" -> {:?}", fs::read_link(&name).unwrap());
        } else if kind.is_file() {
            let sum =
                fs::read(&name).unwrap().iter().fold(7u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
            line += &format!(" {} {} {sum:x}", found.len(), found.blocks());
        }
        if attributes {
            let times = (found.mtime(), found.mtime_nsec());
            line += &format!(" {} {} {} {times:?}", found.uid(), found.gid(), found.nlink());
            let mut value = [0; 16];
            if !kind.is_socket()
                && let Ok(length) = rustix::fs::lgetxattr(&name, c"user.test", &mut value[..])
            {
                line += &format!(" {:?}", &value[..length]);
            }
            // Which names belong together.
            if !kind.is_dir() && found.nlink() > 1 {
                let place = inodes.iter().position(|inode| *inode == found.ino());
                line += &format!(" {}", place.unwrap_or(inodes.len()));
                inodes.extend(place.is_none().then(|| found.ino()));
            }
        }
        line
    };
    list(root).iter().map(|path| line(path)).collect()
}

/// Gives the files of a tree various attributes.
fn change_attributes(rng: &mut Rng, root: &Path) {
    // The deepest first, so that changes below don't change times of directories.
    for path in list(root).iter().rev() {
        let name = root.join(path.strip_prefix("/").unwrap_or(path));
        let kind = fs::symlink_metadata(&name).unwrap().file_type();
        if !kind.is_symlink() {
            if rng.below(4) == 0 && !kind.is_socket() {
                rustix::fs::setxattr(&name, c"user.test", &[rng.below(256) as u8], XattrFlags::empty())
                    .unwrap();
            }
            if rng.below(3) == 0 && rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(&name, Some(rng.below(5) as u32), Some(rng.below(5) as u32))
                    .unwrap();
            }
            let mode = [0o644, 0o600, 0o755, 0o4755, 0o2775, 0o1777, 0o500, 0o666][rng.below(8)];
            fs::set_permissions(&name, fs::Permissions::from_mode(mode)).unwrap();
        }
        let time =
            Timespec { tv_sec: rng.below(2_000_000_000) as i64, tv_nsec: rng.below(1_000_000_000) as i64 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &name, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

#[test]
fn random_trees_are_copied_as_by_cp() {
    for seed in 1..=4 {
        // Not in memory: holes and their blocks are those of a disk's file system.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let rng = &mut Rng::new(seed);
        populate(rng, &at("tree"), 200);
        change_attributes(rng, &at("tree"));
        for (options, letter, name) in [(ARCHIVE, "-a", "archive"), (PLAIN, "-r", "plain")] {
            let theirs = at(&format!("{name} theirs"));
            let done = Command::new("cp").arg(letter).args([&at("tree"), &theirs]).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let ours = at(&format!("{name} ours"));
            assert_eq!(cp(&at("tree"), &ours, options), Vec::<String>::new(), "seed {seed}");
            let _ = Command::new("sync").arg("-f").arg(&ours).status();
            let (ours, theirs) = (describe(&ours, options.archive), describe(&theirs, options.archive));
            assert_eq!(ours.len(), theirs.len(), "seed {seed} {letter}");
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours, theirs, "seed {seed} {letter}");
            }
        }
    }
}

#[test]
fn a_second_copy_replaces_content_and_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("from/d")).unwrap();
    fs::write(at("from/d/f"), b"new").unwrap();
    fs::create_dir_all(at("to/d")).unwrap();
    fs::write(at("to/d/f"), b"older and longer").unwrap();
    fs::write(at("to/d/other"), b"other").unwrap();
    assert_eq!(cp(&at("from"), &at("to"), PLAIN), Vec::<String>::new());
    assert_eq!(fs::read(at("to/d/f")).unwrap(), b"new");
    assert_eq!(fs::read(at("to/d/other")).unwrap(), b"other");
}

#[test]
fn nothing_is_written_through_symlinks_and_a_file_is_not_copied_onto_itself() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("from/d")).unwrap();
    fs::write(at("from/d/f"), b"content").unwrap();
    fs::write(at("from/f"), b"content").unwrap();
    fs::create_dir_all(at("precious")).unwrap();
    fs::write(at("precious/f"), b"stays").unwrap();
    fs::create_dir(at("to")).unwrap();
    symlink("../precious", at("to/d")).unwrap();
    symlink("../precious/f", at("to/f")).unwrap();
    let failures = cp(&at("from"), &at("to"), PLAIN);
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert_eq!(fs::read(at("precious/f")).unwrap(), b"stays");
    assert_eq!(cp(&at("from"), &at("from"), PLAIN).len(), 1);
    assert_eq!(cp(&at("from/f"), &at("from/f"), PLAIN).len(), 1);
    assert_eq!(fs::read(at("from/f")).unwrap(), b"content");
    // A copy below the source isn't copied into itself.
    let failures = cp(&at("from"), &at("from/d/copy"), PLAIN);
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(fs::read(at("from/d/copy/d/f")).unwrap(), b"content");
    assert!(!at("from/d/copy/d/copy").exists());
}

#[test]
fn a_directory_needs_recursion() {
    let dir = tempfile::tempdir().unwrap();
    let failures = cp(dir.path(), &dir.path().join("to"), CopyOptions::default());
    assert!(failures[0].contains("Is a directory"), "{failures:?}");
    let counts = CopyCounts::default();
    assert_eq!(counts.files.load(Ordering::Relaxed), 0);
}
