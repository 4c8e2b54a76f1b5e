//! How the intent log is stored.
//!
//! Two files of equal length, used in turn. Block 0 of a file is its header, the others are records in order. A record block
//! is written once and never again in the life of a header, so that a torn write can only spoil what nobody was told is durable.
//! Each block carries the sequence number of its header and its own place: leftovers of an earlier life are no records.
//! Numbers are little-endian.

use types::{BLOCK_SIZE, InodeId, block_sum};

/// What a header begins with.
const HEADER_MAGIC: [u8; 8] = *b"weftlog\x01";
/// What a record block begins with.
const RECORD_MAGIC: [u8; 8] = *b"weftnote";
/// Magic, checksum, count or state, sequence, block index.
const PREFIX_BYTES: usize = 8 + 4 + 4 + 8 + 8;
/// Inode, first region, end region.
const NOTE_BYTES: usize = 24;
/// Notes in a block.
pub(crate) const NOTES_PER_BLOCK: usize = (BLOCK_SIZE - PREFIX_BYTES) / NOTE_BYTES;

/// Regions `first..end` of a chunk file may be changing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Note {
    pub(crate) ino: InodeId,
    pub(crate) first: u64,
    pub(crate) end: u64,
}

/// Whether somebody may have changed chunk files since the header was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogState {
    InUse,
    Clean,
}

/// Which of the two files counts: the one with the higher sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) sequence: u64,
    pub(crate) state: LogState,
}

type Block = [u8; BLOCK_SIZE];

fn seal(block: &mut Block) {
    block[8..12].fill(0);
    let sum = block_sum(block).0;
    block[8..12].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(block: &[u8], magic: &[u8; 8]) -> bool {
    let Ok(mut copy) = Block::try_from(block) else { return false };
    seal(&mut copy);
    copy == block && block.starts_with(magic)
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes were cut out"))
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes were cut out"))
}

impl Header {
    pub(crate) fn encode(self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        block[..8].copy_from_slice(&HEADER_MAGIC);
        block[12..16].copy_from_slice(&u32::from(self.state == LogState::Clean).to_le_bytes());
        block[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        seal(&mut block);
        block
    }

    pub(crate) fn decode(block: &[u8]) -> Option<Header> {
        if !is_sealed(block, &HEADER_MAGIC) {
            return None;
        }
        let state = if u32_at(block, 12) == 1 { LogState::Clean } else { LogState::InUse };
        Some(Header { sequence: u64_at(block, 16), state })
    }
}

/// A record block with up to [`NOTES_PER_BLOCK`] notes.
pub(crate) fn encode_notes(sequence: u64, index: u64, notes: &[Note]) -> Block {
    assert!(notes.len() <= NOTES_PER_BLOCK, "the caller cuts notes into blocks");
    let mut block = [0; BLOCK_SIZE];
    block[..8].copy_from_slice(&RECORD_MAGIC);
    block[12..16].copy_from_slice(&(notes.len() as u32).to_le_bytes());
    block[16..24].copy_from_slice(&sequence.to_le_bytes());
    block[24..32].copy_from_slice(&index.to_le_bytes());
    for (bytes, note) in block[PREFIX_BYTES..].as_chunks_mut::<NOTE_BYTES>().0.iter_mut().zip(notes) {
        bytes[..8].copy_from_slice(&note.ino.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&note.first.to_le_bytes());
        bytes[16..].copy_from_slice(&note.end.to_le_bytes());
    }
    seal(&mut block);
    block
}

/// The notes of a record block; `None` when it isn't block `index` of the log `sequence`.
pub(crate) fn decode_notes(sequence: u64, index: u64, block: &[u8]) -> Option<Vec<Note>> {
    if !is_sealed(block, &RECORD_MAGIC) || u64_at(block, 16) != sequence || u64_at(block, 24) != index {
        return None;
    }
    let count = (u32_at(block, 12) as usize).min(NOTES_PER_BLOCK);
    let bytes = &block[PREFIX_BYTES..].as_chunks::<NOTE_BYTES>().0[..count];
    let note =
        |b: &[u8; NOTE_BYTES]| Note { ino: InodeId(u64_at(b, 0)), first: u64_at(b, 8), end: u64_at(b, 16) };
    Some(bytes.iter().map(note).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(n: u64) -> Note {
        Note { ino: InodeId(n), first: n * 3, end: n * 3 + 64 }
    }

    #[test]
    fn headers_survive_and_damage_shows() {
        for state in [LogState::InUse, LogState::Clean] {
            let header = Header { sequence: 77, state };
            let mut block = header.encode();
            assert_eq!(Header::decode(&block), Some(header));
            block[16] ^= 1;
            assert_eq!(Header::decode(&block), None);
        }
    }

    #[test]
    fn notes_survive_in_their_place_only() {
        let notes: Vec<Note> = (0..NOTES_PER_BLOCK as u64).map(note).collect();
        let block = encode_notes(5, 9, &notes);
        assert_eq!(decode_notes(5, 9, &block), Some(notes));
        assert_eq!(decode_notes(6, 9, &block), None);
        assert_eq!(decode_notes(5, 8, &block), None);
        assert_eq!(decode_notes(5, 9, &Header { sequence: 5, state: LogState::Clean }.encode()), None);
    }

    #[test]
    fn the_format_is_frozen() {
        let block = encode_notes(1, 2, &[Note { ino: InodeId(3), first: 4, end: u64::MAX }]);
        assert_eq!(&block[..8], b"weftnote");
        assert_eq!(&block[12..32], b"\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(&block[32..56], b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    }
}
