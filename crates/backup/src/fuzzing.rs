//! Entry point for the fuzz target and its short form in `tests/`: arbitrary bytes for the reader
//! of backups.

use crate::format::{
    BLOCK_HEADER_BYTES, DELETED, FILE, FOOT, Footer, HEAD, KEYS, MAGIC, MAX_BODY_BYTES, PUT, block_checksum,
};
use crate::reader::{Reader, Record};
use crate::writer::{block_header, file_body, json, put_record};
use std::io::Cursor;
use std::path::Path;

/// Reads a backup as it is, and again with corrected checksums of its blocks, which random changes
/// don't produce. Accepted content must be the same after it is written and read again.
///
/// # Panics
/// When it isn't.
pub fn copy(bytes: &[u8]) {
    read(bytes);
    read(&with_right_sums(bytes));
}

fn read(bytes: &[u8]) {
    let Some((reader, records)) = contents(bytes) else { return };
    let (again, records_again) = contents(&written(&reader, &records)).expect("what was written is read");
    assert_eq!(again.header(), reader.header());
    assert_eq!(again.files(), reader.files());
    assert!(records_again == records);
}

/// Returns the whole content of a backup without faults.
fn contents(bytes: &[u8]) -> Option<(Reader, Vec<Record>)> {
    let mut reader = Reader::from_source(Path::new("copy"), Box::new(Cursor::new(bytes.to_vec()))).ok()?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().ok()? {
        records.push(record);
    }
    reader.footer()?;
    Some((reader, records))
}

/// Writes the same content as a backup with at most one block of keys.
fn written(reader: &Reader, records: &[Record]) -> Vec<u8> {
    let mut blocks = vec![(HEAD, json(reader.header()))];
    blocks.extend(reader.files().iter().map(|file| (FILE, file_body(file))));
    let mut keys = Vec::new();
    for (key, value) in records {
        let op = if value.is_some() { PUT } else { DELETED };
        put_record(&mut keys, op, key, value.as_deref().unwrap_or_default());
    }
    if !keys.is_empty() {
        blocks.push((KEYS, keys));
    }
    let foot = reader.footer().cloned().unwrap_or_default();
    blocks.push((FOOT, json(&Footer { blocks: blocks.len() as u64, ..foot })));
    let mut copy = MAGIC.to_vec();
    for (number, (kind, body)) in (0..).zip(&blocks) {
        copy.extend(block_header(*kind, body));
        copy.extend(body);
        copy.extend(block_checksum(number, *kind, body).to_le_bytes());
    }
    copy
}

/// Returns the bytes with the magic of a backup, and with a right checksum for each complete block.
fn with_right_sums(bytes: &[u8]) -> Vec<u8> {
    let mut corrected = bytes.to_vec();
    if let Some(magic) = corrected.first_chunk_mut() {
        *magic = *MAGIC;
    }
    let (mut at, mut number) = (MAGIC.len(), 0);
    while let Some(before) = corrected.get(at..at + BLOCK_HEADER_BYTES) {
        let kind = before[..4].try_into().expect("four bytes");
        let length = u32::from_le_bytes(before[4..].try_into().expect("four bytes")) as usize;
        let body = at + BLOCK_HEADER_BYTES..at + BLOCK_HEADER_BYTES + length.min(MAX_BODY_BYTES);
        let end = body.end + 4;
        if end > corrected.len() {
            break;
        }
        let sum = block_checksum(number, kind, &corrected[body.clone()]);
        corrected[body.end..end].copy_from_slice(&sum.to_le_bytes());
        (at, number) = (end, number + 1);
    }
    corrected
}
