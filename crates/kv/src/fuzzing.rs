//! Entry points for fuzz targets and their short form in `tests/`: arbitrary bytes for the decoders
//! that read the embedded engine's files before it is opened.
//!
//! Each function panics when accepted content changes after it is written and read again.

use crate::at_rest::sync_records;
use crate::{at_rest, verifier};

/// A journal.
pub fn journal(bytes: &[u8]) {
    at_rest::journal::fuzz(bytes);
}

/// The section of a list of tables that names them.
pub fn table_list(bytes: &[u8]) {
    at_rest::tables::fuzz(bytes);
}

/// The records of required journals and trees.
pub fn sync_records(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(closed) = sync_records::parse_closed(text) {
        assert_eq!(sync_records::parse_closed(&sync_records::render_closed(&closed)), Some(closed));
    }
    if let Some(batch) = sync_records::parse_synced(text) {
        assert_eq!(sync_records::parse_synced(&sync_records::render_synced(batch)), Some(batch));
    }
}

/// The record of the verifier.
pub fn verifier(bytes: &[u8]) {
    let Some(record) = std::str::from_utf8(bytes).ok().and_then(verifier::parse) else { return };
    assert_eq!(verifier::parse(&verifier::render(&record)), Some(record));
}
