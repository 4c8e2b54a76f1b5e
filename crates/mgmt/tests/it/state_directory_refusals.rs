//! A refused directory is unchanged, to the byte; the message names object, cause and remedy.

use mgmt::{Error, StateDir, StatePaths};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Every path below `root` with its content.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            found.insert(path, None);
        } else {
            let content = fs::read(&path).unwrap();
            found.insert(path, Some(content));
        }
    }
    found
}

/// Opens `dir`, which must be refused and unchanged; returns the refusal.
fn refused(dir: &Path, watched: &Path) -> Error {
    let before = snapshot(watched);
    let error = StateDir::open_or_create(dir, "weft").unwrap_err();
    assert_eq!(snapshot(watched), before, "{error}");
    assert!(error.to_string().contains(&*dir.to_string_lossy()), "names no object: {error}");
    assert!(!error.hint().is_empty(), "names no remedy: {error}");
    error
}

fn made() -> (tempfile::TempDir, PathBuf) {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("state");
    drop(StateDir::open_or_create(&dir, "weft").unwrap());
    (base, dir)
}

#[test]
fn a_new_directory_becomes_a_cluster_and_stays_the_same_one() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("deep/state");
    let first = StateDir::open_or_create(&dir, "weft").unwrap().superblock.clone();
    let second = StateDir::open_or_create(&dir, "other name").unwrap().superblock.clone();
    assert_eq!(first, second);
    assert_eq!(first.partitions, 64);
}

#[test]
fn two_clusters_differ() {
    let (_a, a) = made();
    let (_b, b) = made();
    let uuid = |dir: &Path| StateDir::open_or_create(dir, "weft").unwrap().superblock.uuid.clone();
    assert_ne!(uuid(&a), uuid(&b));
}

#[test]
fn an_empty_file_system_and_a_first_start_cut_short_are_taken() {
    let base = tempfile::tempdir().unwrap();
    fs::create_dir(base.path().join("lost+found")).unwrap();
    fs::write(base.path().join("lock"), "").unwrap();
    fs::write(base.path().join("weft.draft"), "magi").unwrap();
    StateDir::open_or_create(base.path(), "weft").unwrap();
}

#[test]
fn a_foreign_directory() {
    let base = tempfile::tempdir().unwrap();
    fs::write(base.path().join("thesis.tex"), "years of work").unwrap();
    let error = refused(base.path(), base.path());
    assert!(matches!(&error, Error::Foreign { example, .. } if example == "thesis.tex"), "{error}");
}

#[test]
fn a_path_that_is_no_directory() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(refused(&file, base.path()), Error::NotADirectory { .. }));
    assert!(matches!(refused(&file.join("below"), base.path()), Error::NotADirectory { .. }));
}

#[test]
fn a_newer_format() {
    let (base, dir) = made();
    let path = StatePaths::new(&dir).superblock();
    let text = fs::read_to_string(&path).unwrap().replace("format = 1\n", "format = 7\n");
    fs::write(&path, text).unwrap();
    assert!(matches!(refused(&dir, base.path()), Error::NewerFormat { found: 7, .. }));
}

#[test]
fn a_damaged_superblock() {
    let (base, dir) = made();
    let path = StatePaths::new(&dir).superblock();
    let whole = fs::read(&path).unwrap();
    let changed: Vec<u8> = whole.iter().map(|b| if *b == b'6' { b'5' } else { *b }).collect();
    for damaged in [&b""[..], &whole[..whole.len() / 2], &[0xff; 300], &changed] {
        fs::write(&path, damaged).unwrap();
        assert!(matches!(refused(&dir, base.path()), Error::CorruptSuperblock { .. }));
    }
}

#[test]
fn a_cluster_that_is_being_served() {
    let (base, dir) = made();
    let serving = StateDir::open_or_create(&dir, "weft").unwrap();
    let error = refused(&dir, base.path());
    assert!(matches!(&error, Error::InUse { pid, .. } if *pid == std::process::id().to_string()), "{error}");
    drop(serving);
    StateDir::open_or_create(&dir, "weft").unwrap();
}
