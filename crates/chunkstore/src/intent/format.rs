//! The stored format of the intent log.
//!
//! Two files of equal length, used in turn. Block 0 of a file is its header, the others are records
//! in order. A record block is written once and never again under the same header, so that a torn
//! write can only spoil records that weren't reported as durable. Each block carries the sequence
//! number of its header and its own position: leftovers of an earlier header are no records.
//! Numbers are little-endian.
//!
//! A record block holds entries or spans; its magic says which. A version that doesn't know spans
//! takes a block of them for the end of the log: a downgrade to such a version needs a finished
//! shutdown.

use types::{BLOCK_SIZE, ChunkFileId, block_sum};

/// First bytes of a header.
const HEADER_MAGIC: [u8; 8] = *b"weftlog\x01";
/// First bytes of a block of entries.
const ENTRY_MAGIC: [u8; 8] = *b"weftnote";
/// First bytes of a block of spans.
const SPAN_MAGIC: [u8; 8] = *b"weftspan";
/// Magic, checksum, count or state, sequence, block index.
const PREFIX_BYTES: usize = 8 + 4 + 4 + 8 + 8;
/// Inode, first region, end region.
const ENTRY_BYTES: usize = 24;
/// First inode, end inode.
const SPAN_BYTES: usize = 16;
/// Entries in a block.
pub(crate) const ENTRIES_PER_BLOCK: usize = (BLOCK_SIZE - PREFIX_BYTES) / ENTRY_BYTES;
/// Spans in a block.
const SPANS_PER_BLOCK: usize = (BLOCK_SIZE - PREFIX_BYTES) / SPAN_BYTES;

/// Entry: regions `first..end` of a chunk file may be changing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DirtyRegions {
    pub(crate) ino: ChunkFileId,
    pub(crate) first: u64,
    pub(crate) end: u64,
}

/// Region 0 of the chunk files of inodes `first..end` may be changing, including those that don't
/// exist yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Span {
    pub(crate) first: ChunkFileId,
    pub(crate) end: ChunkFileId,
}

impl Span {
    pub(crate) fn contains(self, ino: ChunkFileId) -> bool {
        self.first <= ino && ino < self.end
    }

    /// Whether a recovery can look for all of its inodes.
    fn is_within_limit(self) -> bool {
        self.end.0.saturating_sub(self.first.0) <= super::SPAN_INODES
    }

    pub(crate) fn inodes(self) -> impl Iterator<Item = ChunkFileId> {
        (self.first.0..self.end.0).map(ChunkFileId)
    }
}

/// The records of a log.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Records {
    pub(crate) entries: Vec<DirtyRegions>,
    pub(crate) spans: Vec<Span>,
}

/// Whether chunk files may have changed since the header was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogState {
    InUse,
    Clean,
    /// They haven't, but there are records for other replicas.
    CleanWithEntries,
}

impl LogState {
    fn code(self) -> u32 {
        match self {
            LogState::InUse => 0,
            LogState::Clean => 1,
            LogState::CleanWithEntries => 2,
        }
    }
}

/// The file with the higher sequence is the current one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) sequence: u64,
    pub(crate) state: LogState,
}

pub(crate) type Block = [u8; BLOCK_SIZE];

/// Sets a block's checksum.
pub(crate) fn seal(block: &mut Block) {
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
        block[12..16].copy_from_slice(&self.state.code().to_le_bytes());
        block[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        seal(&mut block);
        block
    }

    pub(crate) fn decode(block: &[u8]) -> Option<Header> {
        if !is_sealed(block, &HEADER_MAGIC) {
            return None;
        }
        let code = u32_at(block, 12);
        let known =
            [LogState::Clean, LogState::CleanWithEntries].into_iter().find(|state| state.code() == code);
        let state = known.unwrap_or(LogState::InUse);
        Some(Header { sequence: u64_at(block, 16), state })
    }
}

impl Records {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.spans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks that they take in a log.
    pub(crate) fn blocks(&self) -> u64 {
        (self.entries.len().div_ceil(ENTRIES_PER_BLOCK) + self.spans.len().div_ceil(SPANS_PER_BLOCK)) as u64
    }

    pub(crate) fn extend(&mut self, other: &Records) {
        self.entries.extend(&other.entries);
        self.spans.extend(&other.spans);
    }

    /// Returns the same regions in as few records as possible, in order.
    pub(crate) fn merged(self) -> Records {
        let mut spans = self.spans;
        spans.sort_unstable();
        spans.dedup();
        Records { entries: merged(self.entries), spans }
    }

    /// Encodes the record blocks from block `first` of the log `sequence` on.
    pub(crate) fn encode(&self, sequence: u64, first: u64) -> Vec<Block> {
        let entries = self.entries.chunks(ENTRIES_PER_BLOCK).map(|part| {
            let bytes = part.iter().flat_map(|entry| encode_entry(*entry)).collect::<Vec<u8>>();
            (&ENTRY_MAGIC, part.len(), bytes)
        });
        let spans = self.spans.chunks(SPANS_PER_BLOCK).map(|part| {
            let bytes = part.iter().flat_map(|span| encode_span(*span)).collect::<Vec<u8>>();
            (&SPAN_MAGIC, part.len(), bytes)
        });
        let all = entries.chain(spans).zip(first..);
        all.map(|((magic, count, bytes), index)| record_block(magic, count, sequence, index, &bytes))
            .collect()
    }

    /// Adds the records of a block; false, and nothing is added, when it isn't block `index` of the
    /// log `sequence`.
    #[must_use]
    pub(crate) fn decode(&mut self, sequence: u64, index: u64, block: &[u8]) -> bool {
        let holds =
            |magic| is_sealed(block, magic) && u64_at(block, 16) == sequence && u64_at(block, 24) == index;
        if holds(&ENTRY_MAGIC) {
            let entries = block[PREFIX_BYTES..].as_chunks::<ENTRY_BYTES>().0.iter().map(decode_entry);
            self.entries.extend(entries.take(u32_at(block, 12) as usize));
            true
        } else if holds(&SPAN_MAGIC) {
            let spans = block[PREFIX_BYTES..].as_chunks::<SPAN_BYTES>().0.iter().map(decode_span);
            let spans = spans.take(u32_at(block, 12) as usize).collect::<Vec<Span>>();
            let is_possible = spans.iter().all(|span| span.is_within_limit());
            if is_possible {
                self.spans.extend(spans);
            }
            is_possible
        } else {
            false
        }
    }
}

/// Returns the same regions in as few entries as possible, in order.
pub(crate) fn merged(mut entries: Vec<DirtyRegions>) -> Vec<DirtyRegions> {
    entries.sort_unstable();
    let mut merged: Vec<DirtyRegions> = Vec::with_capacity(entries.len());
    for entry in entries {
        match merged.last_mut() {
            Some(last) if last.ino == entry.ino && entry.first <= last.end => {
                last.end = last.end.max(entry.end)
            }
            _ => merged.push(entry),
        }
    }
    merged
}

fn record_block(magic: &[u8; 8], count: usize, sequence: u64, index: u64, records: &[u8]) -> Block {
    let mut block = [0; BLOCK_SIZE];
    block[..8].copy_from_slice(magic);
    block[12..16].copy_from_slice(&(count as u32).to_le_bytes());
    block[16..24].copy_from_slice(&sequence.to_le_bytes());
    block[24..32].copy_from_slice(&index.to_le_bytes());
    block[PREFIX_BYTES..PREFIX_BYTES + records.len()].copy_from_slice(records);
    seal(&mut block);
    block
}

fn encode_entry(entry: DirtyRegions) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..8].copy_from_slice(&entry.ino.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&entry.first.to_le_bytes());
    bytes[16..].copy_from_slice(&entry.end.to_le_bytes());
    bytes
}

fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> DirtyRegions {
    DirtyRegions { ino: ChunkFileId(u64_at(bytes, 0)), first: u64_at(bytes, 8), end: u64_at(bytes, 16) }
}

fn encode_span(span: Span) -> [u8; SPAN_BYTES] {
    let mut bytes = [0; SPAN_BYTES];
    bytes[..8].copy_from_slice(&span.first.0.to_le_bytes());
    bytes[8..].copy_from_slice(&span.end.0.to_le_bytes());
    bytes
}

fn decode_span(bytes: &[u8; SPAN_BYTES]) -> Span {
    Span { first: ChunkFileId(u64_at(bytes, 0)), end: ChunkFileId(u64_at(bytes, 8)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u64) -> DirtyRegions {
        DirtyRegions { ino: ChunkFileId(n), first: n * 3, end: n * 3 + 64 }
    }

    #[test]
    fn headers_survive_and_damage_shows() {
        for state in [LogState::InUse, LogState::Clean, LogState::CleanWithEntries] {
            let header = Header { sequence: 77, state };
            let mut block = header.encode();
            assert_eq!(Header::decode(&block), Some(header));
            block[16] ^= 1;
            assert_eq!(Header::decode(&block), None);
        }
    }

    fn span(n: u64) -> Span {
        Span { first: ChunkFileId(n), end: ChunkFileId(n + 1024) }
    }

    fn decoded(sequence: u64, index: u64, block: &[u8]) -> Option<Records> {
        let mut records = Records::default();
        records.decode(sequence, index, block).then_some(records)
    }

    #[test]
    fn records_survive_in_their_place_only() {
        let entries =
            Records { entries: (0..ENTRIES_PER_BLOCK as u64).map(entry).collect(), ..Records::default() };
        let spans = Records { spans: (0..SPANS_PER_BLOCK as u64).map(span).collect(), ..Records::default() };
        for records in [entries, spans] {
            let blocks = records.encode(5, 9);
            assert_eq!((blocks.len(), records.blocks()), (1, 1));
            assert_eq!(decoded(5, 9, &blocks[0]), Some(records));
            assert_eq!(decoded(6, 9, &blocks[0]), None);
            assert_eq!(decoded(5, 8, &blocks[0]), None);
            let mut damaged = blocks[0];
            damaged[100] ^= 1;
            assert_eq!(decoded(5, 9, &damaged), None);
        }
        assert_eq!(decoded(5, 9, &Header { sequence: 5, state: LogState::Clean }.encode()), None);
    }

    #[test]
    fn many_records_take_blocks_in_order() {
        let records = Records {
            entries: (0..ENTRIES_PER_BLOCK as u64 + 1).map(entry).collect(),
            spans: (0..SPANS_PER_BLOCK as u64 + 1).map(span).collect(),
        };
        let blocks = records.encode(1, 7);
        assert_eq!((blocks.len(), records.blocks()), (4, 4));
        let mut found = Records::default();
        for (index, block) in (7..).zip(&blocks) {
            assert!(found.decode(1, index, block));
        }
        assert_eq!(found, records);
    }

    #[test]
    fn the_format_of_notes_is_frozen() {
        let records = Records {
            entries: vec![DirtyRegions { ino: ChunkFileId(3), first: 4, end: u64::MAX }],
            ..Records::default()
        };
        let block = records.encode(1, 2)[0];
        assert_eq!(&block[..12], b"weftnote\xbb\x55\xab\x03");
        assert_eq!(&block[12..32], b"\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(&block[32..56], b"\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
        assert!(block[56..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_format_of_spans_is_frozen() {
        let records = Records {
            spans: vec![Span {
                first: ChunkFileId(0x0001_0000_0000_0002),
                end: ChunkFileId(0x0001_0000_0000_0402),
            }],
            ..Records::default()
        };
        let block = records.encode(1, 2)[0];
        assert_eq!(&block[..12], b"weftspan\x4e\xe5\xf5\x68");
        assert_eq!(&block[12..32], b"\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(&block[32..48], b"\x02\0\0\0\0\0\x01\0\x02\x04\0\0\0\0\x01\0");
        assert!(block[48..].iter().all(|byte| *byte == 0));
    }
}
