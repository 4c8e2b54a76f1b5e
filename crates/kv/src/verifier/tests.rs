#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::{Batch, Durability, Embedded, Engine};
use std::fs;
use std::path::Path;

fn put(engine: &Embedded) {
    let writes = vec![(b"key".to_vec(), Some("value".into()))];
    engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
}

fn number(dir: &Path) -> u64 {
    Embedded::open(dir).unwrap().verifier()
}

/// Changes the record as if the machine had been restarted.
fn lose_memory(dir: &Path) {
    let text = fs::read_to_string(dir.join("verifier")).unwrap();
    let (number, _) = text.split_once(' ').unwrap();
    fs::write(dir.join("verifier"), format!("{number} another start\n")).unwrap();
}

#[test]
fn the_verifier_lasts_as_long_as_the_machines_memory() {
    let dir = tempfile::tempdir().unwrap();
    let first = number(dir.path());
    let engine = Embedded::open(dir.path()).unwrap();
    put(&engine);
    assert_eq!(engine.verifier(), first);
    drop(engine);
    assert_eq!(number(dir.path()), first, "only the process has died");
    lose_memory(dir.path());
    let second = number(dir.path());
    assert_ne!(second, first);
    assert_eq!(number(dir.path()), second);
}

#[test]
fn a_shutdown_keeps_it_until_something_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    put(&engine);
    engine.sync_for_close().unwrap();
    let first = engine.verifier();
    drop(engine);
    lose_memory(dir.path());
    assert_eq!(number(dir.path()), first, "everything was on disk");
    lose_memory(dir.path());
    let engine = Embedded::open(dir.path()).unwrap();
    assert_eq!(engine.verifier(), first, "who only looks changes nothing");
    put(&engine);
    drop(engine);
    lose_memory(dir.path());
    assert_ne!(number(dir.path()), first);
}

#[test]
fn commits_synced_before_acknowledgement_keep_the_verifier() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Embedded::open(dir.path()).unwrap().with_durability(Durability::Disk);
    let engine = open();
    put(&engine);
    engine.persist().unwrap();
    let first = engine.verifier();
    put(&engine);
    engine.persist().unwrap();
    drop(engine);
    lose_memory(dir.path());
    assert_eq!(open().verifier(), first);
}

#[test]
fn an_invalid_record_changes_the_verifier() {
    let dir = tempfile::tempdir().unwrap();
    let first = number(dir.path());
    fs::write(dir.path().join("verifier"), "none").unwrap();
    assert_ne!(number(dir.path()), first);
}
