//! Finds the blocks of a piece that a member lacks. The intent log records regions of 1 MiB, of
//! which an application may have changed one block. So the member sends a digest of each block, and
//! receives the blocks that differ.
//!
//! The checksums of chunk files aren't sufficient here. They have 32 bits, so in a large cluster
//! some differing blocks would permanently look equal. This module computes a 64-bit digest of the
//! content instead, which also finds damage by the disk.

use super::resync::ReplicaResync;
use crate::group::replica::Replica;
use chunkstore::{IoPath, Store};
use rt::IoBuf;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use types::{BLOCK_SIZE, ByteRange, ChunkFileId, MemberState};
use wire::{ReplicaState, StorageOp, StorageReply};

/// Bytes that a member digests at a time: its answer has two sums for each block.
const MAX_DIGEST_BYTES: u64 = (wire::MAX_SURVEYED / 2 * BLOCK_SIZE) as u64;

/// Returns the digest of each block of a range that begins on a block, in halves; bytes beyond the
/// end of the data aren't part of it.
fn digests(ino: ChunkFileId, start: u64, data: &[u8]) -> Vec<u32> {
    let digest = |(at, block): (usize, &[u8])| {
        // Equal blocks in different places have different digests, so a digest doesn't reveal which
        // blocks are equal.
        let mut hasher = SipHasher13::new_with_keys(ino.0, start + (at * BLOCK_SIZE) as u64);
        hasher.write(block);
        let digest = hasher.finish();
        [digest as u32, (digest >> 32) as u32]
    };
    data.chunks(BLOCK_SIZE).enumerate().flat_map(digest).collect()
}

/// Returns the digests of a resynced member's content; none for what it can't read.
pub(super) async fn member_digests(replica: &Replica, ino: ChunkFileId, range: ByteRange) -> StorageReply {
    let mut survey = ReplicaState::default();
    let range = ByteRange::new(range.start, range.end.min(range.start.saturating_add(MAX_DIGEST_BYTES)));
    if let Some(data) = content(&replica.store, ino, range).await {
        (survey.exists, survey.sums) = (true, digests(ino, range.start, data.as_slice()));
    }
    StorageReply::Survey(survey)
}

async fn content(store: &Store, ino: ChunkFileId, range: ByteRange) -> Option<IoBuf> {
    let len = store.stat(ino).await.ok()?.len;
    let range = range.intersect(ByteRange::new(0, len));
    if range.is_empty() {
        return None;
    }
    let buf = IoBuf::alloc(range.len() as usize);
    store.read(ino, range.start, &buf, IoPath::Direct).await.ok()?;
    Some(buf)
}

/// Returns the blocks whose digests differ, adjacent ones merged; the whole range if the numbers of
/// digests differ.
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

impl ReplicaResync<'_> {
    /// Returns the parts of a piece that the member must be sent. The piece is locked against
    /// changes.
    pub(super) async fn differing_blocks(
        &self,
        ino: ChunkFileId,
        piece: ByteRange,
        data: &IoBuf,
    ) -> Vec<ByteRange> {
        // A member that is rebuilt had nothing.
        if self.resync.state == MemberState::Rebuilding || !piece.start.is_multiple_of(BLOCK_SIZE as u64) {
            return vec![piece];
        }
        let op = StorageOp::Digests { range: piece };
        match self.resync.call_member(ino, op, None).await {
            Ok(StorageReply::Survey(survey)) => {
                differing(&digests(ino, piece.start, data.as_slice()), &survey.sums, piece)
            }
            // The member can't answer, or has an earlier version of weft. If it is gone, sending
            // fails as well.
            _ => vec![piece],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_SIZE as u64;

    #[test]
    fn differing_blocks_are_listed_and_merged() {
        let ino = ChunkFileId(9);
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
