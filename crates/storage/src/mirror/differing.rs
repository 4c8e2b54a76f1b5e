//! What of a piece a member hasn't got already. Notes speak of regions of 1 MiB, of which a program
//! may have changed one block: so the member says what it has, block by block, and is sent the
//! blocks that differ.
//!
//! Checksums of media don't do here. They have 32 bits, so that of the blocks that differ in a
//! large cluster one or the other would look equal for good. A digest of 64 bits over the content
//! is made for the occasion, which also finds what a disk has damaged.

use super::replica::Replica;
use super::step::Step;
use chunkstore::{IoPath, Store};
use rt::IoBuf;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use types::{BLOCK_SIZE, ByteRange, InodeId, MemberState};
use wire::{StorageOp, StorageReply, Survey};

/// Bytes that a member says it of at a time: its answer has two sums for each block.
const MOST_BYTES: u64 = (wire::MAX_SURVEYED / 2 * BLOCK_SIZE) as u64;

/// The digest of each block of a range that begins on a block, in halves; what is beyond the end of
/// the data isn't a part of it.
fn digests(ino: InodeId, start: u64, data: &[u8]) -> Vec<u32> {
    let digest = |(at, block): (usize, &[u8])| {
        // Blocks that are equal in different places have different digests: nobody learns from one
        // what is in another.
        let mut hasher = SipHasher13::new_with_keys(ino.0, start + (at * BLOCK_SIZE) as u64);
        hasher.write(block);
        let digest = hasher.finish();
        [digest as u32, (digest >> 32) as u32]
    };
    data.chunks(BLOCK_SIZE).enumerate().flat_map(digest).collect()
}

/// What a member that is brought in step says of what it has. Of what it can't read it says
/// nothing.
pub(super) async fn told_by_member(replica: &Replica, ino: InodeId, range: ByteRange) -> StorageReply {
    let mut survey = Survey::default();
    let range = ByteRange::new(range.start, range.end.min(range.start.saturating_add(MOST_BYTES)));
    if let Some(data) = content(&replica.store, ino, range).await {
        (survey.is_there, survey.sums) = (true, digests(ino, range.start, data.as_slice()));
    }
    StorageReply::Survey(survey)
}

async fn content(store: &Store, ino: InodeId, range: ByteRange) -> Option<IoBuf> {
    let len = store.stat(ino).await.ok()?.len;
    let range = range.intersect(ByteRange::new(0, len));
    if range.is_empty() {
        return None;
    }
    let buf = IoBuf::alloc(range.len() as usize);
    store.read(ino, range.start, &buf, IoPath::Direct).await.ok()?;
    Some(buf)
}

/// The blocks whose digests differ, joined where they touch; all if the member has told of another
/// number of them.
fn differing(ours: &[u32], theirs: &[u32], range: ByteRange) -> Vec<ByteRange> {
    if ours.len() != theirs.len() {
        return vec![range];
    }
    let mut ranges: Vec<ByteRange> = Vec::new();
    let blocks = ours.chunks(2).zip(theirs.chunks(2)).enumerate();
    for (at, _) in blocks.filter(|(_, (ours, theirs))| ours != theirs) {
        let block = ByteRange::at(range.start + (at * BLOCK_SIZE) as u64, BLOCK_SIZE as u64).intersect(range);
        match ranges.last_mut() {
            Some(last) if last.end == block.start => last.end = block.end,
            _ => ranges.push(block),
        }
    }
    ranges
}

impl Step<'_> {
    /// What the member has to be sent of a piece, which nobody changes.
    pub(super) async fn lacking(&self, ino: InodeId, piece: ByteRange, data: &IoBuf) -> Vec<ByteRange> {
        // One that is rebuilt had nothing.
        if self.state == MemberState::Rebuilding || !piece.start.is_multiple_of(BLOCK_SIZE as u64) {
            return vec![piece];
        }
        let op = StorageOp::Digests { range: piece };
        match self.ask(ino, op, None).await {
            Ok(StorageReply::Survey(survey)) => {
                differing(&digests(ino, piece.start, data.as_slice()), &survey.sums, piece)
            }
            // It can't tell, or is of an earlier version; if it is gone, sending fails as well.
            _ => vec![piece],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_SIZE as u64;

    #[test]
    fn blocks_that_differ_are_named_and_joined() {
        let ino = InodeId(9);
        let ours: Vec<u8> = (0..5 * BLOCK_SIZE + 100).map(|at| (at % 251) as u8).collect();
        let mut theirs = ours.clone();
        for changed in [BLOCK_SIZE, 2 * BLOCK_SIZE + 7, 5 * BLOCK_SIZE + 99] {
            theirs[changed] ^= 1;
        }
        let start = 7 * BLOCK;
        let range = ByteRange::at(start, ours.len() as u64);
        let found = differing(&digests(ino, start, &ours), &digests(ino, start, &theirs), range);
        let tail = ByteRange::new(start + 5 * BLOCK, range.end);
        assert_eq!(found, [ByteRange::new(start + BLOCK, start + 3 * BLOCK), tail]);
        let same = digests(ino, start, &ours);
        assert_eq!(differing(&same, &same, range), []);
        assert_eq!(differing(&same, &same[..4], range), [range], "it has less");
        assert_ne!(digests(ino, 0, &[1; BLOCK_SIZE]), digests(ino, BLOCK, &[1; BLOCK_SIZE]));
    }
}
