//! Gives bytes to every decoder. Also the whole of the fuzz target `decode`.

use std::fmt::Debug;
use types::{Error, crc32c};
use wire::frame::{HEADER_BYTES, Header, Hello, Welcome};
use wire::{KvReply, KvRequest, Message, MetaRequest, MetaResponse, StorageReply, StorageRequest};

/// No decoder panics, and what one of them takes means the same when it is written and read again.
pub fn feed(bytes: &[u8]) {
    message::<MetaRequest>(bytes);
    message::<MetaResponse>(bytes);
    message::<StorageRequest>(bytes);
    message::<StorageReply>(bytes);
    message::<KvRequest>(bytes);
    message::<KvReply>(bytes);
    message::<Error>(bytes);
    message::<Hello>(bytes);
    message::<Welcome>(bytes);
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

/// As it is, and with magic, version and checksum made right, which no mutation finds by itself.
fn header(mut bytes: [u8; HEADER_BYTES]) {
    drop(Header::decode(&bytes));
    bytes[..5].copy_from_slice(b"WEFT\x01");
    let sum = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}
