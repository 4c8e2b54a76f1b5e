//! Removal leaves what GNU rm leaves.

use crate::random_tree::{Rng, list, populate};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tree::{Failure, Job, Refusal, RemoveCounts, RemoveOptions, removal_refusal, remove};

/// Removes, and returns the paths that failed with their causes, and the number of names removed.
fn rm(path: &Path, options: RemoveOptions) -> (Vec<(PathBuf, String)>, u64) {
    let (stop, failures, counts) = (AtomicBool::new(false), Mutex::new(Vec::new()), RemoveCounts::default());
    let report = |failure: Failure| failures.lock().unwrap().push((failure.path, failure.cause.to_string()));
    remove(path, options, &counts, Job { stop: &stop, report: &report });
    let failures = failures.into_inner().unwrap();
    assert_eq!(counts.failed.load(Ordering::Relaxed), failures.len() as u64);
    (failures, counts.removed())
}

const RECURSIVE: RemoveOptions = RemoveOptions { recursive: true, force: false };

#[test]
fn random_trees_are_removed_whole_and_nothing_outside() {
    for seed in 1..=10 {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(outside.join("below")).unwrap();
        fs::write(outside.join("below/file"), b"stays").unwrap();
        populate(&mut Rng::new(seed), &tree, 300);
        symlink("../outside", tree.join("to outside")).unwrap();
        symlink(".", tree.join("loop")).unwrap();
        fs::hard_link(outside.join("below/file"), tree.join("other name")).unwrap();
        let names = list(&tree).len() as u64;
        let (failures, removed) = rm(&tree, RECURSIVE);
        assert_eq!((failures, removed), (vec![], names), "seed {seed}");
        assert!(!tree.exists());
        assert_eq!(fs::read(outside.join("below/file")).unwrap(), b"stays");
    }
}

#[test]
fn a_directory_that_becomes_a_symlink_is_not_entered() {
    let dir = tempfile::tempdir().unwrap();
    let (victim, target) = (dir.path().join("tree/victim"), dir.path().join("precious"));
    let aside = dir.path().join("aside");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("file"), b"stays").unwrap();
    for _ in 0..200 {
        fs::create_dir_all(&victim).unwrap();
        fs::write(victim.join("file"), b"goes").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| rm(&dir.path().join("tree"), RECURSIVE));
            // One of the two loses, and which one doesn't matter.
            if fs::rename(&victim, &aside).is_ok() {
                let _ = symlink(&target, &victim);
            }
        });
        assert_eq!(fs::read(target.join("file")).unwrap(), b"stays");
        let _ = fs::remove_dir_all(&aside);
        let _ = fs::remove_dir_all(dir.path().join("tree"));
    }
}

#[test]
fn deep_and_wide_trees_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (deep, wide) = (dir.path().join("deep"), dir.path().join("wide"));
    // Longer than PATH_MAX.
    let script =
        "mkdir deep && cd deep && for i in $(seq 600); do mkdir 0123456789 && cd -P 0123456789 && : >f; done";
    assert!(Command::new("sh").args(["-c", script]).current_dir(dir.path()).status().unwrap().success());
    assert_eq!(rm(&deep, RECURSIVE), (vec![], 1201));
    for number in 0..3000 {
        fs::create_dir_all(wide.join(format!("directory {number}"))).unwrap();
        fs::write(wide.join(format!("file {number}")), b"").unwrap();
    }
    assert_eq!(rm(&wide, RECURSIVE), (vec![], 6001));
}

#[test]
fn directories_need_recursion_and_missing_paths_need_force() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("f"), b"").unwrap();
    symlink("d", at("link")).unwrap();
    let plain = RemoveOptions::default();
    assert!(rm(&at("d"), plain).0[0].1.starts_with("Is a directory"));
    assert!(rm(&at("f/"), plain).0[0].1.starts_with("Not a directory"));
    assert!(rm(&at("link/"), RECURSIVE).0[0].1.starts_with("Not a directory"));
    assert!(rm(&at("gone"), RECURSIVE).0[0].1.starts_with("No such file"));
    assert_eq!(rm(&at("gone"), RemoveOptions { force: true, ..plain }), (vec![], 0));
    assert_eq!(rm(&at("f"), plain), (vec![], 1));
    assert_eq!(rm(&at("link"), RECURSIVE), (vec![], 1));
    assert_eq!(rm(&at("d//"), RECURSIVE), (vec![], 1));
}

#[test]
fn dangerous_paths_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |path: &str| removal_refusal(&dir.path().join(path));
    assert_eq!(removal_refusal(Path::new("/")), Some(Refusal::RootDirectory));
    assert_eq!(removal_refusal(Path::new("///")), Some(Refusal::RootDirectory));
    assert_eq!(removal_refusal(Path::new("/proc")), Some(Refusal::MountPoint));
    assert_eq!(removal_refusal(Path::new("")), Some(Refusal::NoPath));
    for path in [".", "..", "./", "x/..", "x/.//"] {
        assert_eq!(refusal(path), Some(Refusal::DotDirectory), "{path}");
    }
    symlink("/", dir.path().join("link")).unwrap();
    assert_eq!(refusal("link"), None);
    assert_eq!(refusal("gone"), None);
    assert_eq!(refusal(".hidden"), None);
}

/// Runs a test again as a user without privileges, if it runs as root.
fn as_user(script: &str, args: &[&Path]) -> Option<std::process::Output> {
    let is_root = rustix::process::geteuid().is_root();
    let mut command = if is_root { Command::new("setpriv") } else { Command::new("sh") };
    if is_root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
    }
    command.args(["-c", script, "sh"]).args(args).output().ok()
}

/// Runs itself as a user without privileges, with the tree to remove in the environment.
#[test]
fn what_rm_leaves_is_left() {
    if let Some(tree) = std::env::var_os("TREE_TO_REMOVE") {
        for (path, cause) in rm(Path::new(&tree), RECURSIVE).0 {
            println!("failed {} {cause}", path.display());
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let make = "umask 022; mkdir -p $1/a/locked $1/a/open $1/b/empty $1/b/full/x && : >$1/a/locked/f && : >$1/a/open/f && \
                : >$1/b/full/x/f && chmod 555 $1/a/locked && chmod 000 $1/b/empty $1/b/full";
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    for tree in [&theirs, &ours] {
        assert!(as_user(make, &[tree]).unwrap().status.success());
    }
    let rm = as_user("LC_ALL=C rm -r -f $1; true", &[&theirs]).unwrap();
    // The test program may be where others can't go.
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let script = "TREE_TO_REMOVE=$1 $2 --nocapture what_rm_leaves_is_left";
    let tree = as_user(script, &[&ours, &program]).unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let left = |tree: &Path| {
        let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(tree).status();
        list(tree)
    };
    assert_eq!(left(&theirs), left(&ours));
    // The same objects are reported.
    let stdout = String::from_utf8_lossy(&tree.stdout);
    let mut failed: Vec<String> = stdout
        .lines()
        .filter_map(|line| line.split_once("failed "))
        .map(|(_, line)| line.split(' ').next().unwrap().replace("/ours", "/theirs"))
        .collect();
    failed.sort();
    let stderr = String::from_utf8_lossy(&rm.stderr);
    let mut expected: Vec<String> =
        stderr.lines().filter_map(|line| Some(line.split('\'').nth(1)?.to_string())).collect();
    expected.sort();
    assert!(!expected.is_empty(), "rm reports failures");
    assert_eq!(failed, expected);
}

#[test]
fn a_stop_leaves_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    populate(&mut Rng::new(5), &dir.path().join("tree"), 100);
    let (stop, counts) = (AtomicBool::new(true), RemoveCounts::default());
    let report = |failure: Failure| panic!("{failure:?}");
    remove(&dir.path().join("tree"), RECURSIVE, &counts, Job { stop: &stop, report: &report });
    assert_eq!(counts.removed(), 0);
    assert!(dir.path().join("tree").exists());
}
