//! Damaged files of the embedded engine: examining them ends, and a truncated journal is intact.

use kv::{Batch, Embedded, Engine, fuzzing};
use std::fs;

/// Random changes of each image.
const ROUNDS: usize = 2000;

/// Returns the journal of an engine with a few batches, without the trailing zeros.
fn journal() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    for number in 0..6u8 {
        let writes = vec![
            (vec![b'k', number], Some(vec![number + 1; 40].into())),
            (vec![b'k', number.wrapping_sub(1)], None),
        ];
        engine.apply(&[Batch { writes, ..Batch::default() }]).unwrap();
    }
    engine.persist().unwrap();
    drop(engine);
    let is_journal = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "jnl");
    let mut journals =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).filter(is_journal);
    let mut bytes = fs::read(journals.next().unwrap()).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(end);
    assert!(bytes.len() > 300, "{}", bytes.len());
    bytes
}

#[test]
fn damaged_journals_are_truncated_to_intact_batches_or_refused() {
    mutate::confined(|| mutate::damage(&journal(), ROUNDS, fuzzing::journal));
}

#[test]
fn damaged_lists_of_tables_claim_no_memory() {
    mutate::confined(|| {
        let table = [&7u64.to_le_bytes()[..], &[0], &[9; 16], &3u64.to_le_bytes()].concat();
        let run = [&2u32.to_le_bytes()[..], &table, &table].concat();
        let list = [&[2, 1][..], &run, &[2], &run, &run].concat();
        mutate::damage(&list, ROUNDS, fuzzing::table_list);
    });
}

#[test]
fn damaged_sync_records_are_refused() {
    mutate::confined(|| {
        let lines = "journal 3 67000123 80011\njournal 4 0 -\ntree 0 5f\ntree 1 00ff\n";
        let closed = format!("{lines}sum {:08x}\n", types::crc32c(lines.as_bytes()));
        mutate::damage(closed.as_bytes(), ROUNDS, fuzzing::sync_records);
        let numbers = "00000000000000000004 00000000000000080011";
        let synced = format!("{numbers} {:08x}\n", types::crc32c(numbers.as_bytes()));
        mutate::damage(synced.as_bytes(), ROUNDS, fuzzing::sync_records);
    });
}

#[test]
fn damaged_verifiers_are_ignored() {
    mutate::confined(|| {
        let text = "00000000deadbeef 6f9c3bd2-40a1-4ad9-a0a7-a30d6a1c4f2e\n";
        mutate::damage(text.as_bytes(), ROUNDS, fuzzing::verifier);
    });
}
