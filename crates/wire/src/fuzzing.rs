//! Feeds arbitrary bytes to every decoder of messages and frames: for the fuzz targets and their
//! short form in `tests/`.

use crate::frame::{HEADER_BYTES, Header, Hello, Welcome};
use crate::{
    KvReply, KvRequest, Message, MetaRequest, MetaResponse, MgmtReply, MgmtRequest, PartitionsReply,
    PartitionsRequest, StorageReply, StorageRequest,
};
use std::fmt::Debug;
use types::{Error, crc32c};

/// Checks that no decoder panics, and that a decoded message is the same after encoding and
/// decoding it again.
///
/// # Panics
/// If it isn't.
pub fn messages(bytes: &[u8]) {
    message::<MetaRequest>(bytes);
    message::<MetaResponse>(bytes);
    message::<StorageRequest>(bytes);
    message::<StorageReply>(bytes);
    message::<KvRequest>(bytes);
    message::<KvReply>(bytes);
    message::<PartitionsRequest>(bytes);
    message::<PartitionsReply>(bytes);
    message::<Error>(bytes);
    message::<Hello>(bytes);
    message::<Welcome>(bytes);
    management::<MgmtRequest>(bytes);
    management::<MgmtReply>(bytes);
    if let Some(start) = bytes.first_chunk() {
        header(*start);
    }
}

fn message<M: Message + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else { return };
    let mut again = Vec::new();
    message.encode(&mut again);
    assert_eq!(M::decode(&again), Ok(message));
}

/// Checks a JSON message; numbers with a fraction may change to an adjacent value.
fn management<M: Message>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else { return };
    let mut again = Vec::new();
    message.encode(&mut again);
    assert!(M::decode(&again).is_ok());
}

/// Checks the header as it is, and with correct magic, version and checksum, which no mutation
/// finds by itself.
fn header(mut bytes: [u8; HEADER_BYTES]) {
    drop(Header::decode(&bytes));
    seal(&mut bytes);
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}

/// Sets the magic, the version and the matching checksum of a header.
pub fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    bytes[..5].copy_from_slice(b"WEFT\x01");
    let sum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
}
