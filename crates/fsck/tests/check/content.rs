//! Faults of chunk files.

use crate::support::on_a_core;
use chunkstore::{Durability, IoPath};
use fsck::Kind;
use rt::IoBuf;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use types::{ByteRange, GroupId, InodeId};

const CHUNK: u64 = 1024 * 1024;

#[test]
fn damaged_bytes_are_found_with_path_and_range_and_left() {
    on_a_core(async |fs| {
        let dir = fs.mkdir(InodeId::ROOT, "d");
        let ino = fs.chunked(dir, "big", 3 * CHUNK as usize + 5000).await;
        let file = OpenOptions::new().write(true).open(fs.chunk_file(ino, 1)).unwrap();
        file.write_all_at(b"flipped", 8192 + 10).unwrap();
        let finding = fs.finds_and_leaves(Kind::DamagedContent).await;
        assert_eq!(finding.object, "/d/big");
        assert_eq!(finding.range, Some(ByteRange::at(CHUNK + 8192, 4096)));
        // In the last block the range ends with the file.
        file.write_all_at(&[0; 10], 8192 + 10).unwrap();
        let file = OpenOptions::new().write(true).open(fs.chunk_file(ino, 3)).unwrap();
        file.write_all_at(b"flipped", 4500).unwrap();
        let report = fs.check(true).await;
        let last = report.findings.last().unwrap();
        assert_eq!(last.range, Some(ByteRange::at(3 * CHUNK + 4096, 5000 - 4096)));
    });
}

#[test]
fn a_chunk_file_of_nobody_is_deleted() {
    on_a_core(async |fs| {
        let store = fs.stores.values().next().unwrap();
        let stray = InodeId(4242);
        store.write(stray, 0, &IoBuf::from_slice(b"who?"), IoPath::Cached, Durability::Later).await.unwrap();
        assert_eq!(fs.finds_and_repairs(Kind::StrayChunkFile).await.len(), 1);
        assert_eq!(store.stat(stray).await.unwrap().len, 0);
    });
}

#[test]
fn a_chunk_file_on_a_target_that_is_not_the_files_is_deleted() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 100_000).await;
        fs.edit_inode(ino, |inode| inode.layout.as_mut().unwrap().groups.truncate(1));
        let other = fs
            .stores
            .values()
            .find(|store| !std::path::Path::new(&fs.chunk_file(ino, 0)).starts_with(store.dir()));
        let other = other.unwrap();
        other.write(ino, 0, &IoBuf::from_slice(b"x"), IoPath::Cached, Durability::Later).await.unwrap();
        fs.finds_and_repairs(Kind::StrayChunkFile).await;
    });
}

#[test]
fn a_chunk_file_that_is_too_long_is_cut() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 100_000).await;
        fs.edit_inode(ino, |inode| inode.size = 60_000);
        let findings = fs.finds_and_repairs(Kind::LongChunkFile).await;
        assert_eq!((findings.len(), findings[0].object.as_str()), (1, "/big"));
        let layout = fs.layout(ino);
        assert_eq!(fs.store_of(&layout, 0).stat(ino).await.unwrap().len, 60_000);
    });
}

#[test]
fn a_missing_chunk_file_is_found_and_left() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 2 * CHUNK as usize).await;
        fs.store_of(&fs.layout(ino), 1).delete(ino).await.unwrap();
        let finding = fs.finds_and_leaves(Kind::MissingChunkFile).await;
        assert_eq!(finding.object, "/big");
    });
}

#[test]
fn a_hole_is_no_missing_chunk_file() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "sparse", 1000).await;
        fs.edit_inode(ino, |inode| inode.size = 3 * CHUNK);
        assert_eq!(fs.check(false).await.findings, []);
    });
}

#[test]
fn a_layout_that_names_an_unknown_group_is_found_and_left() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 1000).await;
        assert!(fs.map.group(GroupId(77)).is_none());
        fs.edit_inode(ino, |inode| inode.layout.as_mut().unwrap().groups[3] = 77);
        fs.finds_and_leaves(Kind::UnknownTarget).await;
    });
}
