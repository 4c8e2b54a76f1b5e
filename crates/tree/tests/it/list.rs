//! Listings have the files that GNU find has.

use crate::random_tree::{Rng, populate};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tree::{Failure, Found, Job, ListOptions, list};

/// Lists a tree: `depth inode type path`, sorted. Each directory is checked to precede its entries.
fn listed(path: &Path, options: ListOptions) -> Vec<Vec<u8>> {
    let (stop, files, lines) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Vec::new()));
    let report = |failure: Failure| panic!("{failure:?}");
    let show = |found: &Found<'_>| {
        let path = found.path();
        assert!(path.as_os_str().as_bytes().ends_with(found.name));
        let letter = match found.kind {
            kind if kind.is_dir() => "d",
            kind if kind.is_symlink() => "l",
            kind if kind.is_socket() => "s",
            _ => "f",
        };
        let mut line = format!("{} {} {letter} ", found.depth, found.attributes()?.stx_ino).into_bytes();
        line.extend(path.as_os_str().as_bytes());
        if found.kind.is_symlink() {
            line.extend(found.target()?.as_bytes());
        }
        lines.lock().unwrap().push((path, line));
        Ok(())
    };
    list(path, options, &files, &show, Job { stop: &stop, report: &report });
    let lines = lines.into_inner().unwrap();
    assert_eq!(files.load(Ordering::Relaxed), lines.len() as u64);
    let mut seen = std::collections::BTreeSet::new();
    for (path, _) in &lines {
        assert!(seen.is_empty() || seen.contains(path.parent().unwrap()), "{path:?} precedes its directory");
        seen.insert(path.clone());
    }
    let mut lines: Vec<Vec<u8>> = lines.into_iter().map(|(_, line)| line).collect();
    lines.sort();
    lines
}

fn find(path: &Path, options: &[&str]) -> Vec<Vec<u8>> {
    let mut find = Command::new("find");
    find.arg(path).args(options).args(["-printf", "%d %i %y %p%l\\0"]);
    let out = find.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut lines: Vec<_> = out.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    lines.retain(|line| !line.is_empty());
    lines.sort();
    lines
}

#[test]
fn random_trees_have_the_files_that_find_lists() {
    for seed in 1..=10 {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        populate(&mut Rng::new(seed), &tree, 300);
        symlink(".", tree.join("loop")).unwrap();
        assert_eq!(listed(&tree, ListOptions::default()), find(&tree, &[]), "seed {seed}");
        for depth in 0..3 {
            let options = ListOptions { max_depth: Some(depth), ..ListOptions::default() };
            assert_eq!(listed(&tree, options), find(&tree, &["-maxdepth", &depth.to_string()]));
        }
        // A symlink that is named isn't followed.
        let link = tree.join("loop");
        assert_eq!(listed(&link, ListOptions::default()), find(&link, &[]));
    }
}
