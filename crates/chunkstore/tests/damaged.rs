//! Damaged files of a target: whatever their content, reading them ends, takes little memory, and
//! returns nothing that can't be written again.

use chunkstore::fuzzing;
use types::{BLOCK_SIZE, crc32c};

/// Random changes of each image.
const ROUNDS: usize = 2000;

/// Returns a block of the intent log with its checksum.
fn block(magic: &[u8; 8], count_or_state: u32, sequence: u64, index: u64, records: &[[u64; 3]]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_SIZE];
    block[..8].copy_from_slice(magic);
    block[12..16].copy_from_slice(&count_or_state.to_le_bytes());
    block[16..24].copy_from_slice(&sequence.to_le_bytes());
    block[24..32].copy_from_slice(&index.to_le_bytes());
    let width = if magic == b"weftspan" { 2 } else { 3 };
    let numbers = records.iter().flat_map(|record| &record[..width]);
    for (place, number) in block[32..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    block
}

/// Returns a log of a header, some entries and some spans. [`fuzzing::intent_log`] sets its
/// checksums.
fn intent_log() -> Vec<u8> {
    let notes = block(b"weftnote", 3, 7, 1, &[[5, 0, 1], [5, 1, 9], [1 << 48, 3, u64::MAX]]);
    let spans = block(b"weftspan", 2, 7, 2, &[[1 << 48, (1 << 48) + 1024, 0], [900, 901, 0]]);
    [block(b"weftlog\x01", 0, 7, 0, &[]), notes, spans].concat()
}

#[test]
fn damaged_intent_logs_are_read_up_to_the_damage() {
    mutate::confined(|| mutate::damage(&intent_log(), ROUNDS, fuzzing::intent_log));
}

#[test]
fn a_span_of_more_inodes_than_can_be_looked_for_ends_the_log() {
    mutate::confined(|| {
        let spans = block(b"weftspan", 1, 7, 1, &[[0, u64::MAX, 0]]);
        fuzzing::intent_log(&[block(b"weftlog\x01", 0, 7, 0, &[]), spans].concat());
    });
}

#[test]
fn any_block_sums_are_read() {
    mutate::confined(|| {
        let sums: Vec<u8> = (0..1500u32).flat_map(|n| crc32c(&n.to_le_bytes()).to_le_bytes()).collect();
        mutate::damage(&sums, ROUNDS, fuzzing::block_sums);
    });
}

#[test]
fn damaged_superblocks_are_refused() {
    mutate::confined(|| {
        let target = "# Superblock of a weft storage target. Nothing in it may be changed.\nmagic = \"weft target\"\n\
             format = 1\ncluster = \"8f1c0f5e-0000-4000-8000-000000000001\"\ntarget = 12\nchecksum = \"7f8f5ad0\"\n";
        let group = target.replace("weft target", "weft group").replace("= 12\n", "= 12\ngroup = 7\n");
        for text in [target, &group] {
            mutate::damage(text.as_bytes(), ROUNDS, fuzzing::superblock);
        }
    });
}

#[test]
fn damaged_rows_do_not_count() {
    mutate::confined(|| {
        let rows: Vec<u8> = (0..4u8).flat_map(|n| [n; 64]).collect();
        mutate::damage(&rows, ROUNDS, fuzzing::rows);
    });
}

#[test]
fn damaged_verifiers_say_nothing() {
    mutate::confined(|| {
        let text = "verifier = 7312038754\nmemory = \"6f9c3bd2-40a1-4ad9-a0a7-a30d6a1c4f2e 8:1 27\"\n";
        mutate::damage(text.as_bytes(), ROUNDS, fuzzing::verifier);
    });
}
