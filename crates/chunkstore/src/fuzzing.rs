//! Feeds arbitrary bytes to the readers of a target's files: for the fuzz targets and their short
//! form in `tests/`.
//!
//! Each function takes the bytes as they are, and again with corrected checksums, which no random
//! change finds. It panics when accepted input isn't the same after it was written and read again.

use crate::block_sums::{PAGE_BYTES, SUM_BYTES, stored_sums};
use crate::identity::{self, Parsed};
use crate::intent::{Header, Records};
use crate::{ROW_BYTES, fixed_records, verifier};
use types::{BLOCK_SIZE, crc32c};

/// Inodes that a recovery looks for because of one span.
const SPAN_LIMIT: usize = 1024;

/// One of the two files of an intent log: a header, then blocks of records.
pub fn intent_log(bytes: &[u8]) {
    read_log(bytes);
    let mut corrected = bytes.to_vec();
    let blocks = corrected.as_chunks_mut::<BLOCK_SIZE>().0;
    let sequence = blocks.first().map(|header| header[16..24].to_vec()).unwrap_or_default();
    for (index, block) in blocks.iter_mut().enumerate() {
        if index > 0 {
            block[16..24].copy_from_slice(&sequence);
            block[24..32].copy_from_slice(&(index as u64).to_le_bytes());
        }
        crate::intent::seal(block);
    }
    read_log(&corrected);
}

fn read_log(bytes: &[u8]) {
    let mut blocks = bytes.chunks_exact(BLOCK_SIZE);
    let Some(header) = blocks.next().and_then(Header::decode) else { return };
    assert_eq!(Header::decode(&header.encode()), Some(header));
    let mut records = Records::default();
    for (index, block) in (1..).zip(blocks) {
        if !records.decode(header.sequence, index, block) {
            break;
        }
    }
    let records = records.merged();
    // A recovery looks for each of them.
    for span in &records.spans {
        assert!(span.inodes().take(SPAN_LIMIT + 1).count() <= SPAN_LIMIT, "{span:?}");
    }
    let mut again = Records::default();
    for (index, block) in (1..).zip(records.encode(header.sequence, 1)) {
        assert!(again.decode(header.sequence, index, &block), "block {index}");
    }
    assert_eq!(again.merged(), records);
}

/// A file of block checksums.
pub fn block_sums(bytes: &[u8]) {
    for page in bytes.chunks(PAGE_BYTES) {
        let sums = stored_sums(page);
        let again: Vec<u8> = sums.iter().flat_map(|sum| sum.0.to_le_bytes()).collect();
        let whole = page.len() / SUM_BYTES * SUM_BYTES;
        assert_eq!(again[..whole], page[..whole]);
        // Blocks without a stored checksum are holes.
        assert!(again[whole..].iter().all(|byte| *byte == 0));
    }
}

/// The superblock of a target, or of a group's store on one.
pub fn superblock(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for text in [text.to_string(), identity::with_checksum(text)] {
        if let Parsed::Ours(owner) = identity::parse(&text) {
            assert_eq!(identity::parse(&identity::render(&owner)), Parsed::Ours(owner));
        }
    }
}

/// A file of rows.
pub fn rows(bytes: &[u8]) {
    let mut corrected = bytes.to_vec();
    for stored in corrected.as_chunks_mut::<{ fixed_records::STORED_BYTES }>().0 {
        let sum = crc32c(&stored[..ROW_BYTES]);
        stored[ROW_BYTES..].copy_from_slice(&sum.to_le_bytes());
    }
    for bytes in [bytes, &corrected] {
        for stored in bytes.chunks(fixed_records::STORED_BYTES) {
            let row = fixed_records::whole(stored);
            assert!(row.is_none_or(|row| fixed_records::stored(&row) == stored));
        }
    }
}

/// The record of the verifier.
pub fn verifier(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(record) = verifier::parse(&text) {
        assert_eq!(verifier::parse(&verifier::render(&record)), Some(record));
    }
}
