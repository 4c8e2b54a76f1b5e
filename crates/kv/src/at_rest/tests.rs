use super::*;
use crate::{Batch, Embedded, Engine};
use bytes::Bytes;
use std::os::unix::fs::FileExt;

/// Pairs of the sample, and bytes of a value: they fill several tables and part of the journals.
const PAIRS: u32 = 2500;
const VALUE_BYTES: usize = 6000;

pub(super) fn key(number: u32) -> Vec<u8> {
    format!("key {number:08}").into_bytes()
}

/// No zeros and no repetition.
pub(super) fn value(number: u32, length: usize) -> Bytes {
    let mut state = number as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8 | 1
    };
    (0..length).map(|_| next()).collect()
}

fn write(engine: &Embedded, numbers: std::ops::Range<u32>, length: usize) {
    for from in numbers.clone().step_by(10) {
        let writes = (from..(from + 10).min(numbers.end)).map(|n| (key(n), Some(value(n, length)))).collect();
        engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
    }
    engine.persist().unwrap();
}

fn sample() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    write(&engine, 0..PAIRS, VALUE_BYTES);
    // Tables are written in the background.
    let tables = dir.path().join("keyspaces/1/tables");
    let is_large = |name: &PathBuf| tables.join(name).metadata().is_ok_and(|meta| meta.len() > 4 << 20);
    while !tables.exists() || !names(&tables).unwrap().iter().any(is_large) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Until no write is in progress, and all tables are in the list.
    drop(engine);
    drop(Embedded::open(dir.path()).unwrap());
    let examined = verify(dir.path(), VerifyDepth::Everything).unwrap();
    assert!(examined.table_bytes > 4 << 20, "{examined:?}");
    dir
}

/// Returns the files with their used lengths.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(folder) = open.pop() {
        for name in names(&folder).unwrap() {
            let path = folder.join(name);
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_old_list = name.strip_prefix('v').is_some_and(|n| n.parse::<u64>().is_ok()) && {
                let current = fs::read(folder.join("current")).unwrap();
                name != format!("v{}", u64::from_le_bytes(current[..8].try_into().unwrap()))
            };
            if !["lock", "verifier", "settled", "synced"].contains(&name) && !is_old_list {
                let used = fs::read(&path).unwrap().iter().rposition(|byte| *byte != 0);
                // The last byte of `current` is a zero.
                let all = path.metadata().unwrap().len();
                found.push((path, if all < 1 << 20 { all } else { used.map_or(0, |last| last as u64 + 1) }));
            }
        }
    }
    found.sort();
    found
}

fn flip(path: &Path, at: u64, bits: u8) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ bits], at).unwrap();
}

/// Returns positions all over a file: its first and last bytes, and some between.
fn places(length: u64) -> Vec<u64> {
    let spread = (0..12).map(|i| length * i / 12);
    let mut places: Vec<u64> =
        (0..length.min(8)).chain(spread).chain(length.saturating_sub(8)..length).collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[test]
fn a_flipped_byte_anywhere_is_found_and_its_file_named() {
    let dir = sample();
    // The only constraint on the sequence number of a batch is that numbers ascend.
    let is_number_of_batch = |path: &Path, at: u64| {
        let bytes = fs::read(path).unwrap();
        path.extension().is_some_and(|ending| ending == "jnl") && {
            let mut begin = 0;
            while let Some(length) =
                journal::batch_len(&bytes[begin..]).filter(|len| begin + len <= at as usize)
            {
                begin += length;
            }
            (5..13).contains(&(at as usize - begin))
        }
    };
    let mut kinds = 0;
    for (path, length) in files(dir.path()) {
        kinds += 1;
        for at in places(length) {
            if is_number_of_batch(&path, at) {
                continue;
            }
            flip(&path, at, 0x10);
            match verify(dir.path(), VerifyDepth::Everything) {
                Err(KvError::Corrupt { path: named, .. }) => {
                    let is_tree_of_it =
                        path.ends_with("current") && Path::new(&named).parent() == path.parent();
                    assert!(is_tree_of_it || Path::new(&named) == path, "{}: {named}", path.display());
                }
                other => panic!("byte {at} of {} of {length}: {other:?}", path.display()),
            }
            flip(&path, at, 0x10);
        }
    }
    assert!(kinds > 6, "{kinds}");
    let engine = Embedded::open(dir.path()).unwrap();
    for number in 0..PAIRS {
        assert_eq!(engine.get(&key(number)).unwrap().unwrap(), value(number, VALUE_BYTES));
    }
}

#[test]
fn a_damaged_engine_is_refused_every_time() {
    let dir = sample();
    for (path, length) in files(dir.path()) {
        let at = length / 2;
        flip(&path, at, 1);
        for _ in 0..2 {
            let refused = Embedded::open(dir.path()).err().unwrap_or_else(|| panic!("{}", path.display()));
            assert!(matches!(refused, KvError::Corrupt { .. }), "{refused}");
        }
        flip(&path, at, 1);
    }
    assert!(Embedded::open(dir.path()).is_ok());
}

#[test]
fn damage_found_in_use_ends_the_use_and_is_verified_at_the_next_start() {
    let dir = sample();
    let tables = dir.path().join("keyspaces/1/tables");
    for name in names(&tables).unwrap() {
        let table = tables.join(name);
        flip(&table, table.metadata().unwrap().len() / 3, 4);
    }
    let engine = Embedded::open_verifying(dir.path(), 0).unwrap();
    let met = (0..PAIRS).find_map(|number| match engine.get(&key(number)) {
        Ok(found) => {
            assert_eq!(found.unwrap(), value(number, VALUE_BYTES));
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(met, Some(KvError::Corrupt { .. })), "{met:?}");
    assert!(engine.damage().is_some());
    assert!(engine.get(b"any").is_err() && engine.scan(b"a", b"b", 1).is_err());
    assert!(engine.apply(&[Batch::default()]).is_err());
    assert!(engine.snapshot().unwrap().get(b"any").is_err());
    drop(engine);
    match Embedded::open_verifying(dir.path(), 0).err() {
        Some(KvError::Corrupt { path, .. }) => assert_eq!(Path::new(&path).parent(), Some(tables.as_path())),
        other => panic!("{other:?}"),
    }
    for name in names(&tables).unwrap() {
        let table = tables.join(name);
        flip(&table, table.metadata().unwrap().len() / 3, 4);
    }
    // If the damage was on the path to the disk, everything is intact now, and the marker is
    // removed.
    assert!(Embedded::open_verifying(dir.path(), 0).is_ok());
    assert!(!has_damage_marker(dir.path()));
}

#[test]
fn a_missing_file_is_named() {
    let dir = sample();
    let table = dir.path().join("keyspaces/1/tables");
    let table = table.join(&names(&table).unwrap()[0]);
    fs::remove_file(&table).unwrap();
    let refused = Embedded::open(dir.path()).err().unwrap().to_string();
    assert!(refused.contains(&format!("{} is damaged: it is missing", table.display())), "{refused}");
}

/// fjall takes a tree without a list of tables for an unfinished one and removes it.
#[test]
fn a_tree_that_has_lost_its_list_of_tables_is_not_taken_for_an_empty_one() {
    let (small, ..) = with_large_batch();
    for dir in [sample(), small] {
        let (current, away) = (dir.path().join("keyspaces/1/current"), dir.path().join("away"));
        fs::rename(&current, &away).unwrap();
        let refused = Embedded::open(dir.path()).err().unwrap().to_string();
        assert!(refused.contains(&format!("{} is damaged: it is missing", current.display())), "{refused}");
        fs::rename(&away, &current).unwrap();
        assert!(Embedded::open(dir.path()).unwrap().get(&key(3)).unwrap().is_some());
    }
    // A tree whose creation was really interrupted: fjall gives the next attempt another number.
    let dir = tempfile::tempdir().unwrap();
    drop(Embedded::open(dir.path()).unwrap());
    fs::remove_file(dir.path().join("keyspaces/1/current")).unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    write(&engine, 0..20, 100);
    drop(engine);
    assert!(Embedded::open(dir.path()).unwrap().get(&key(3)).unwrap().is_some());
}

/// fjall creates a missing tree again, and then it is empty.
#[test]
fn a_tree_that_is_gone_is_not_taken_for_one_that_was_never_made() {
    let (dir, ..) = with_large_batch();
    let (tree, away) = (dir.path().join("keyspaces/1"), dir.path().join("away"));
    fs::rename(&tree, &away).unwrap();
    let refused = Embedded::open(dir.path()).err().unwrap().to_string();
    let cause = format!("{} is damaged: it is missing", tree.join("current").display());
    assert!(refused.contains(&cause), "{refused}");
    fs::rename(&away, &tree).unwrap();
    assert!(Embedded::open(dir.path()).unwrap().get(&key(3)).unwrap().is_some());
}

/// Creates an engine whose journal has one large batch after others; returns where the batch begins
/// and ends.
fn with_large_batch() -> (tempfile::TempDir, PathBuf, usize, usize) {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    write(&engine, 0..20, 100);
    let journal = dir.path().join("0.jnl");
    let used = || fs::read(&journal).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let begin = used();
    // Not synced: the batch may be lost.
    let writes = (20..30).map(|n| (key(n), Some(value(n, 5000)))).collect();
    engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
    let end = used();
    drop(engine);
    (dir, journal.clone(), begin, end)
}

fn is_as_before_the_large_batch(dir: &Path) {
    for _ in 0..2 {
        let engine = Embedded::open(dir).unwrap();
        for number in 0..30 {
            let expected = (number < 20).then(|| value(number, 100));
            assert_eq!(engine.get(&key(number)).unwrap(), expected, "{number}");
        }
        write(&engine, 50..60, 10);
    }
    assert_eq!(Embedded::open(dir).unwrap().get(&key(55)).unwrap().unwrap(), value(55, 10));
}

#[test]
fn a_batch_torn_by_a_process_death_is_truncated() {
    for keep in [1, 5, 13, 14, 40, 4096, 30_000, 50_000] {
        let (dir, journal, begin, end) = with_large_batch();
        let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
        assert!(begin + keep < end);
        file.write_all_at(&vec![0; end - begin - keep], (begin + keep) as u64).unwrap();
        is_as_before_the_large_batch(dir.path());
    }
}

#[test]
fn a_batch_torn_by_a_power_failure_is_truncated() {
    let pages =
        |begin: usize, end: usize| (begin.next_multiple_of(4096)..end).step_by(4096).collect::<Vec<_>>();
    for which in 0..8 {
        let (dir, journal, begin, end) = with_large_batch();
        let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
        let page = pages(begin, end)[which];
        file.write_all_at(&vec![0; 4096.min(end - page)], page as u64).unwrap();
        is_as_before_the_large_batch(dir.path());
    }
    let (dir, journal, begin, _) = with_large_batch();
    fs::OpenOptions::new().write(true).open(&journal).unwrap().set_len(begin as u64 + 700).unwrap();
    is_as_before_the_large_batch(dir.path());
}
