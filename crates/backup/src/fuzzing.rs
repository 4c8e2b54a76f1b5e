//! Bytes of anybody's making to the reader of copies: for the fuzz target and its short form in
//! `tests/`.

use crate::format::{
    BEFORE_BYTES, FILE, FOOT, Foot, GONE, HEAD, KEYS, MAGIC, MAX_BODY_BYTES, PUT, block_sum,
};
use crate::reader::{Reader, Record};
use crate::writer::{before, file_body, json, put_record};
use std::io::Cursor;
use std::path::Path;

/// Reads a copy as it is, and again with the sums of its blocks made right, which no random change
/// finds. What was accepted must be the same after it was written and read again.
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
    assert_eq!(again.head(), reader.head());
    assert_eq!(again.files(), reader.files());
    assert!(records_again == records);
}

/// The whole of a copy, if nothing is wrong with it.
fn contents(bytes: &[u8]) -> Option<(Reader, Vec<Record>)> {
    let mut reader = Reader::of(Path::new("copy"), Box::new(Cursor::new(bytes.to_vec()))).ok()?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().ok()? {
        records.push(record);
    }
    reader.foot()?;
    Some((reader, records))
}

/// The same as a copy with one block of keys at most.
fn written(reader: &Reader, records: &[Record]) -> Vec<u8> {
    let mut blocks = vec![(HEAD, json(reader.head()))];
    blocks.extend(reader.files().iter().map(|file| (FILE, file_body(file))));
    let mut keys = Vec::new();
    for (key, value) in records {
        let op = if value.is_some() { PUT } else { GONE };
        put_record(&mut keys, op, key, value.as_deref().unwrap_or_default());
    }
    if !keys.is_empty() {
        blocks.push((KEYS, keys));
    }
    let foot = reader.foot().cloned().unwrap_or_default();
    blocks.push((FOOT, json(&Foot { blocks: blocks.len() as u64, ..foot })));
    let mut copy = MAGIC.to_vec();
    for (number, (kind, body)) in (0..).zip(&blocks) {
        copy.extend(before(*kind, body));
        copy.extend(body);
        copy.extend(block_sum(number, *kind, body).to_le_bytes());
    }
    copy
}

/// The bytes with the magic of a copy, and each block that is there as a whole with its sum.
fn with_right_sums(bytes: &[u8]) -> Vec<u8> {
    let mut right = bytes.to_vec();
    if let Some(magic) = right.first_chunk_mut() {
        *magic = *MAGIC;
    }
    let (mut at, mut number) = (MAGIC.len(), 0);
    while let Some(before) = right.get(at..at + BEFORE_BYTES) {
        let kind = before[..4].try_into().expect("four bytes");
        let length = u32::from_le_bytes(before[4..].try_into().expect("four bytes")) as usize;
        let body = at + BEFORE_BYTES..at + BEFORE_BYTES + length.min(MAX_BODY_BYTES);
        let end = body.end + 4;
        if end > right.len() {
            break;
        }
        let sum = block_sum(number, kind, &right[body.clone()]);
        right[body.end..end].copy_from_slice(&sum.to_le_bytes());
        (at, number) = (end, number + 1);
    }
    right
}
