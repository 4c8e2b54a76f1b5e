#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::at_rest::tests::{key, value};
use crate::{Batch, Embedded, Engine};
use std::path::PathBuf;

fn put(engine: &Embedded, numbers: std::ops::Range<u32>, length: usize) {
    for number in numbers {
        let writes = vec![(key(number), Some(value(number, length)))];
        engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
    }
}

fn has(dir: &Path, mut numbers: std::ops::Range<u32>) -> bool {
    let engine = Embedded::open(dir).unwrap();
    numbers.all(|number| engine.get(&key(number)).unwrap().is_some())
}

/// Creates an engine with 21 pairs that was closed orderly; returns its journal too.
fn closed() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    put(&engine, 0..21, 100);
    engine.sync_for_close().unwrap();
    drop(engine);
    assert!(dir.path().join(CLOSED).exists());
    let journal = dir.path().join("0.jnl");
    assert!(journal.exists());
    (dir, journal)
}

/// Returns the used bytes of the only journal.
fn used(journal: &Path) -> u64 {
    journal::read_all(journal.parent().unwrap()).unwrap()[0].end as u64
}

fn set_len(file: &Path, len: u64) {
    File::options().write(true).open(file).unwrap().set_len(len).unwrap();
}

fn zero(file: &Path, from: u64) {
    let zeros = vec![0; (used(file) - from) as usize];
    File::options().write(true).open(file).unwrap().write_all_at(&zeros, from).unwrap();
}

/// Asserts that the store is refused with the name of a file, every time.
fn is_refused(dir: &Path, file: &Path) {
    for _ in 0..2 {
        match Embedded::open(dir).err() {
            Some(KvError::Corrupt { path, .. }) => assert_eq!(Path::new(&path), file),
            other => panic!("{}: {other:?}", file.display()),
        }
    }
}

/// A change to a journal: its name and the function that makes it.
type Damage = (&'static str, fn(&Path));

fn damages() -> [Damage; 6] {
    [
        ("emptied", |journal| set_len(journal, 0)),
        ("cut in the middle", |journal| set_len(journal, used(journal) / 2)),
        ("without its last byte", |journal| set_len(journal, used(journal) - 1)),
        ("zeroed", |journal| zero(journal, 0)),
        ("its second half zeroed", |journal| zero(journal, used(journal) / 2)),
        ("removed", |journal| fs::remove_file(journal).unwrap()),
    ]
}

#[test]
fn an_engine_that_was_closed_has_all_of_its_journal_or_is_refused() {
    for (name, damage) in damages() {
        let (dir, journal) = closed();
        let mut before = vec![0; used(&journal) as usize];
        File::open(&journal).unwrap().read_exact_at(&mut before, 0).unwrap();
        damage(&journal);
        println!("{name}");
        is_refused(dir.path(), &journal);
        fs::write(&journal, before).unwrap();
        assert!(has(dir.path(), 0..21), "{name}: it is put back, and nothing was changed");
    }
}

#[test]
fn an_engine_that_was_closed_has_its_tree_or_is_refused() {
    let (dir, _) = closed();
    let (tree, away) = (dir.path().join("keyspaces/1"), dir.path().join("away"));
    fs::rename(&tree, &away).unwrap();
    is_refused(dir.path(), &tree.join("current"));
    fs::rename(&away, &tree).unwrap();
    assert!(has(dir.path(), 0..21));
}

/// A journal may only be removed after its content was flushed.
#[test]
fn a_journal_with_a_newer_one_is_missed_unless_there_is_another_list_of_tables() {
    let (dir, journal) = closed();
    fs::remove_file(&journal).unwrap();
    let newer = dir.path().join("1.jnl");
    fs::write(&newer, "").unwrap();
    is_refused(dir.path(), &journal);
    let check = || check(dir.path(), &journal::read_all(dir.path()).unwrap());
    assert!(check().is_err());
    let record = dir.path().join(CLOSED);
    let text = fs::read_to_string(&record).unwrap();
    let sum = xxh3_128(&fs::read(dir.path().join("keyspaces/1/current")).unwrap());
    let other = text.replace(&format!("{sum:032x}"), &format!("{:032x}", 7));
    assert_ne!(other, text);
    let lines = &other[..other.trim_end().rfind('\n').unwrap() + 1];
    fs::write(&record, format!("{lines}sum {:08x}\n", crc32c(lines.as_bytes()))).unwrap();
    check().unwrap();
    fs::remove_file(newer).unwrap();
    assert!(check().is_err());
}

#[test]
fn a_journal_that_is_missing_between_others_is_missed() {
    let (dir, _) = closed();
    let later = dir.path().join("2.jnl");
    fs::write(&later, "").unwrap();
    is_refused(dir.path(), &dir.path().join("1.jnl"));
    fs::remove_file(later).unwrap();
    assert!(has(dir.path(), 0..21));
}

/// A batch may be in the journal before the one that is newest at its sync.
#[test]
fn a_batch_is_recorded_only_when_its_journal_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let synced = SyncRecord::open(dir.path());
    let noted_after = |journal, committed, next| {
        synced.record_sync(dir.path(), journal, committed, next);
        read_synced(dir.path()).map(|batch| (batch.journal, batch.number))
    };
    assert_eq!(noted_after(3, 10, 11), None, "the first sync");
    assert_eq!(noted_after(3, 10, 13), None, "from before it");
    assert_eq!(noted_after(3, 13, 16), Some((3, 13)));
    assert_eq!(noted_after(4, 17, 18), Some((3, 13)), "another journal");
    assert_eq!(noted_after(4, 18, 19), Some((4, 18)));
}

#[test]
fn a_damaged_record_of_a_closed_engine_is_refused() {
    let (dir, _) = closed();
    let record = dir.path().join(CLOSED);
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replacen("journal", "journey", 1)).unwrap();
    is_refused(dir.path(), &record);
}

#[test]
fn torn_journals_are_truncated_only_after_the_synced_batch() {
    let crashed = || {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::open(dir.path()).unwrap();
        let journal = dir.path().join("0.jnl");
        let mut synced = 0;
        for round in 0..3 {
            put(&engine, round * 10..round * 10 + 10, 700);
            engine.persist().unwrap();
            synced = used(&journal);
        }
        put(&engine, 30..40, 700);
        (dir, journal, synced)
    };
    let (dir, journal, synced) = crashed();
    set_len(&journal, synced + 300);
    assert!(has(dir.path(), 0..30) && !has(dir.path(), 30..31));
    let (dir, journal, synced) = crashed();
    zero(&journal, synced);
    assert!(has(dir.path(), 0..30) && !has(dir.path(), 30..31));
    for (name, damage) in damages() {
        let (dir, journal, synced) = crashed();
        set_len(&journal, synced);
        damage(&journal);
        println!("{name}");
        is_refused(dir.path(), &journal);
    }
}

#[test]
fn a_process_killed_after_reading_leaves_an_engine_that_opens() {
    let (dir, _) = closed();
    assert!(has(dir.path(), 0..21));
    assert!(!dir.path().join(CLOSED).exists(), "it may have changed");
    assert!(has(dir.path(), 0..21));
    let engine = Embedded::open(dir.path()).unwrap();
    engine.sync_for_close().unwrap();
    put(&engine, 21..22, 100);
    drop(engine);
    // Later commits are not in the record.
    assert!(has(dir.path(), 0..22));
}

/// fjall begins another journal at 64 MB, and removes the old one when its content is in tables.
#[test]
fn a_journal_that_was_removed_in_good_order_is_not_missed() {
    for settles in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::open(dir.path()).unwrap();
        let mut count = 0;
        while dir.path().join("0.jnl").exists() {
            assert!(count < 20_000, "the first journal stays");
            put(&engine, count..count + 20, 60_000);
            engine.persist().unwrap();
            count += 20;
        }
        if settles {
            engine.sync_for_close().unwrap();
        }
        drop(engine);
        assert!(has(dir.path(), 0..count));
    }
}
