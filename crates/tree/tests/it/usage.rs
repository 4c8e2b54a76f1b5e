//! Measured space is what GNU du and find report.

use crate::random_tree::{Rng, populate};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use tree::{Failure, Job, Usage, UsageLine, UsageOptions, UsageScan};

/// Measures paths. Returns the lines, sorted, and the sum.
fn measure(paths: &[&Path], options: UsageOptions) -> (Vec<(PathBuf, Usage)>, Usage) {
    let (stop, lines) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let report = |failure: Failure| panic!("{failure:?}");
    let show = |line: UsageLine| lines.lock().unwrap().push((line.path, line.usage));
    let job = Job { stop: &stop, report: &report };
    let scan = UsageScan::new(options, paths.len(), &show, job);
    let sum = paths.iter().filter_map(|path| scan.measure(path)).fold(Usage::default(), Usage::plus);
    let mut lines = lines.into_inner().unwrap();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    (lines, sum)
}

/// Returns what GNU du prints: paths with their numbers, sorted.
fn du(options: &[&str], paths: &[&Path]) -> Vec<(PathBuf, u64)> {
    let out = Command::new("du").arg("--null").args(options).args(paths).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let line = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t').unwrap();
        let number = std::str::from_utf8(&line[..tab]).unwrap().parse().unwrap();
        (PathBuf::from(OsString::from_vec(line[tab + 1..].to_vec())), number)
    };
    let mut lines: Vec<_> = out.stdout.split(|byte| *byte == 0).filter(|l| !l.is_empty()).map(line).collect();
    lines.sort();
    lines
}

fn allocated(lines: Vec<(PathBuf, Usage)>) -> Vec<(PathBuf, u64)> {
    lines.into_iter().map(|(path, usage)| (path, usage.allocated)).collect()
}

#[test]
fn random_trees_have_the_space_that_du_reports() {
    for seed in 1..=10 {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        populate(&mut Rng::new(seed), &tree, 300);
        symlink(".", tree.join("loop")).unwrap();
        // Which directory gets a file with names in several of them is open: `count_links` counts
        // it in each.
        let options = UsageOptions { count_links: true, files: true, ..UsageOptions::default() };
        assert_eq!(
            allocated(measure(&[&tree], options).0),
            du(&["-B1", "-l", "-a"], &[&tree]),
            "seed {seed}"
        );
        let sum = measure(&[&tree], UsageOptions::default()).1;
        assert_eq!(sum.allocated, du(&["-B1", "-s"], &[&tree])[0].1, "seed {seed}");
        let find = Command::new("find").arg(&tree).args(["-printf", "%i %y %s\\n"]).output().unwrap();
        let stdout = String::from_utf8(find.stdout).unwrap();
        let mut files: Vec<Vec<&str>> = stdout.lines().map(|line| line.split(' ').collect()).collect();
        files.sort();
        files.dedup();
        let lengths = files.iter().filter(|file| matches!(file[1], "f" | "l"));
        assert_eq!(sum.apparent, lengths.map(|file| file[2].parse::<u64>().unwrap()).sum(), "seed {seed}");
        assert_eq!(sum.files, files.len() as u64);
    }
}

#[test]
fn overlapping_paths_are_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/f"), vec![1; 100_000]).unwrap();
    fs::hard_link(tree.join("a/b/f"), tree.join("g")).unwrap();
    let (a, g) = (tree.join("a"), tree.join("g"));
    for paths in [vec![&*tree, &*a], vec![&*a, &*tree], vec![&*a, &*g], vec![&*g, &*a, &*g]] {
        for count_links in [false, true] {
            let options = UsageOptions { count_links, ..UsageOptions::default() };
            let link_option: &[&str] = if count_links { &["-B1", "-l"] } else { &["-B1"] };
            assert_eq!(allocated(measure(&paths, options).0), du(link_option, &paths), "{paths:?}");
        }
    }
}

#[test]
fn other_file_systems_are_counted_unless_excluded() {
    // /proc has other file systems below it only as root; a path that exists on every machine.
    let options = UsageOptions { one_file_system: true, ..UsageOptions::default() };
    let (lines, _) = measure(&[Path::new("/dev")], options);
    assert_eq!(allocated(lines), du(&["-B1", "-x"], &[Path::new("/dev")]));
}
