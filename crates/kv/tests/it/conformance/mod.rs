//! Behaviour that every engine must show, tested for each of them.

mod suite;

use crate::support::{delete, put};
use kv::{Embedded, Engine, KvError, Memory};
use suite::value;

fn every_engine(test: impl Fn(&dyn Engine)) {
    test(&Memory::new());
    let dir = tempfile::tempdir().unwrap();
    test(&Embedded::open(dir.path()).unwrap());
}

#[test]
fn embedded_keeps_everything_when_it_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let engine = Embedded::open(dir.path()).unwrap();
        for earlier in 0..round {
            assert_eq!(value(&engine, &format!("k{earlier}")).as_deref(), Some("v"));
        }
        engine.apply(&[put(&format!("k{round}"), "v")]).unwrap();
        engine.persist().unwrap();
    }
}

#[test]
fn embedded_persists_across_journals_and_memtables() {
    let dir = tempfile::tempdir().unwrap();
    {
        let engine = Embedded::open(dir.path()).unwrap();
        // 160 MB: several memtables are flushed, and the journal is rotated at 64 MB.
        let value = "0123456789abcdef".repeat(4096);
        for batch in 0..40 {
            let batches: Vec<_> = (0..64).map(|i| put(&format!("{batch:02}/{i:02}"), &value)).collect();
            engine.apply(&batches).unwrap();
            engine.persist().unwrap();
        }
    }
    let engine = Embedded::open(dir.path()).unwrap();
    assert_eq!(engine.scan(b"", b"\xff", 10_000).unwrap().len(), 40 * 64);
}

#[test]
fn embedded_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = Embedded::open(dir.path()).unwrap();
    let error = Embedded::open(dir.path()).err().unwrap();
    assert!(
        matches!(&error, KvError::Locked { path } if *path == dir.path().display().to_string()),
        "{error}"
    );
    drop(first);
    Embedded::open(dir.path()).unwrap();
}

#[test]
fn memory_loses_the_end_of_what_was_not_persisted_and_nothing_else() {
    let engine = Memory::new();
    engine.apply(&[put("a", "1")]).unwrap();
    engine.persist().unwrap();
    engine.apply(&[put("a", "2"), put("b", "2")]).unwrap();
    engine.apply(&[put("a", "3")]).unwrap();
    engine.kill();
    assert_eq!(value(&engine, "a").as_deref(), Some("3"));
    engine.crash(1);
    assert_eq!(value(&engine, "a").as_deref(), Some("2"));
    assert_eq!(value(&engine, "b").as_deref(), Some("2"));
    engine.apply(&[delete("b")]).unwrap();
    engine.crash(0);
    assert_eq!(value(&engine, "b").as_deref(), Some("2"));
}
