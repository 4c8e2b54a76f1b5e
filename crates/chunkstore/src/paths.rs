//! Paths within a target's directory.

use std::path::{Path, PathBuf};
use types::ChunkFileId;

/// The superblock.
pub(crate) const SUPERBLOCK: &str = "target.toml";
/// The two files of the intent log.
pub(crate) const INTENT_FILES: [&str; 2] = ["intent.0", "intent.1"];
/// The rows of the duplicate request cache.
pub(crate) const DRC_ROWS: &str = "recent";
/// The verifier of unsynced content.
pub(crate) const VERIFIER: &str = "verifier";
/// Ended sessions.
pub(crate) const FENCES: &str = "fences";
/// The root of the hashed folders.
pub(crate) const CHUNKS: &str = "chunks";
/// The stores of mirrored groups, each in a folder named by the group's number.
pub(crate) const GROUPS: &str = "groups";
/// A mark for each mirrored group of which the target has a store, named by the group's number.
pub(crate) const CREATED_MARKS: &str = "made";
/// The superblock of a group's store.
pub(crate) const GROUP_SUPERBLOCK: &str = "group.toml";
/// Exists while everything in a group's store counts as dirty.
pub(crate) const OVERFLOW: &str = "overflow";
/// Suffix of the name of a checksum file.
pub(crate) const SUM_SUFFIX: &str = ".sum";

/// The two folders of a chunk file, 0..256 each.
///
/// Part of the stored format: this is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators, 2014), whose every output bit depends on every input
/// bit, so that consecutive inode numbers spread evenly.
pub(crate) fn folders(ino: ChunkFileId) -> (u8, u8) {
    let mut hash = ino.0;
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    ((hash >> 8) as u8, hash as u8)
}

/// Returns the folder of a chunk file.
pub(crate) fn folder(dir: &Path, ino: ChunkFileId) -> PathBuf {
    let (outer, inner) = folders(ino);
    dir.join(format!("{CHUNKS}/{outer:02x}/{inner:02x}"))
}

/// Returns the path of a chunk file.
pub(crate) fn chunk_file(dir: &Path, ino: ChunkFileId) -> PathBuf {
    let (outer, inner) = folders(ino);
    dir.join(format!("{CHUNKS}/{outer:02x}/{inner:02x}/{:016x}", ino.0))
}

/// Returns the path of the checksums of a chunk file, beside it.
pub(crate) fn sum_file(dir: &Path, ino: ChunkFileId) -> PathBuf {
    let mut path = chunk_file(dir, ino).into_os_string();
    path.push(SUM_SUFFIX);
    PathBuf::from(path)
}

/// Returns the inode whose chunk file has this name; `None` for checksum files and foreign files.
pub(crate) fn inode_of(name: &str) -> Option<ChunkFileId> {
    let plain = name.len() == 16 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u64::from_str_radix(name, 16).ok().map(ChunkFileId)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_frozen() {
        let place = |ino| chunk_file(Path::new("t"), ChunkFileId(ino)).display().to_string();
        assert_eq!(place(0), "t/chunks/00/00/0000000000000000");
        assert_eq!(place(1), "t/chunks/05/e5/0000000000000001");
        assert_eq!(place(0x0001_0000_0000_0002), "t/chunks/eb/d8/0001000000000002");
        assert_eq!(
            sum_file(Path::new("t"), ChunkFileId(0)).display().to_string(),
            "t/chunks/00/00/0000000000000000.sum"
        );
    }

    #[test]
    fn names_lead_back_to_inodes() {
        assert_eq!(inode_of("00000000000000ff"), Some(ChunkFileId(255)));
        assert_eq!(inode_of("00000000000000ff.sum"), None);
        assert_eq!(inode_of("00000000000000FF"), None);
        assert_eq!(inode_of("ff"), None);
    }
}
