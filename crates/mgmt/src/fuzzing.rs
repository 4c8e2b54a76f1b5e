//! Feeds arbitrary bytes to the readers of state directory files: for the fuzz target and its short
//! form in `tests/`.

use crate::checked_file;
use crate::newest_version;
use crate::state_dir::StatePaths;
use crate::superblock::Superblock;
use crate::target_list::TargetList;
use std::path::Path;

/// Reads the superblock, the list of targets and the newest version as they are, and again with a
/// corrected checksum, which no random change finds. Checks that accepted content is the same after
/// it was written and read again.
///
/// # Panics
/// If it isn't.
pub fn state_files(bytes: &[u8]) {
    read(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let body = checked_file::split(text).map_or(text, |(body, _)| body);
        read(checked_file::with_checksum(body).as_bytes());
    }
}

fn read(content: &[u8]) {
    let path = Path::new("file");
    if let Ok(superblock) = Superblock::parse(path, content) {
        let again = Superblock::parse(path, checked_file::with_checksum(&superblock.render()).as_bytes());
        assert_eq!(again.ok().as_ref(), Some(&superblock));
        assert_eq!(Superblock::from_constants(&superblock.constants()).as_ref(), Some(&superblock));
    }
    if let Some(version) = newest_version::parse(content) {
        let again = checked_file::with_checksum(&newest_version::render(&version));
        assert_eq!(newest_version::parse(again.as_bytes()), Some(version));
    }
    let paths = StatePaths::new("/state");
    if let Ok(list) = TargetList::parse(&paths, content) {
        let again = TargetList::parse(&paths, checked_file::with_checksum(&list.render()).as_bytes());
        assert_eq!(again.ok().as_ref(), Some(&list));
    }
}
