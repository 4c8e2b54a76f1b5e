//! A target's replicas of mirrored groups: separate stores, and the dirty regions that they retain
//! for other replicas.

use crate::common::{LOG_BYTES, buf, chunk_files, open, open_with, read, with_target};
use chunkstore::{Allocate, Durability, IfAbsent, IoPath, Kind, Options, Store};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, GroupId, InodeId, PartitionId};

const GROUP: GroupId = GroupId(7);
const MIB: u64 = 1 << 20;

fn ino(sequence: u64) -> ChunkFileId {
    InodeId::new(PartitionId(1), sequence).first_chunk_file()
}

async fn open_group(target: &Arc<Store>) -> Arc<Store> {
    Store::open_group(target, GROUP, IfAbsent::Create).await.unwrap().expect("it is made").0
}

/// The mark that a store of the group exists.
fn created_mark(dir: &Path) -> PathBuf {
    dir.join("made").join(GROUP.to_string())
}

async fn write(store: &Store, ino: ChunkFileId, offset: u64, len: usize) {
    store.write(ino, offset, &buf(&vec![7; len]), IoPath::Cached, Durability::Later).await.unwrap();
}

async fn dirty_ranges(store: &Store) -> Vec<(ChunkFileId, ByteRange)> {
    let (noted, next) = store.dirty_ranges(ChunkFileId(0), 10_000).await.unwrap();
    assert_eq!(next, None);
    noted
}

async fn reopen(target: &Arc<Store>) -> Arc<Store> {
    Store::open_group(target, GROUP, IfAbsent::Leave).await.unwrap().expect("it was made").0
}

/// Returns the files with dirty regions, fetched in parts.
async fn named(store: &Store) -> Vec<ChunkFileId> {
    let (mut named, mut from) = (Vec::new(), Some(ChunkFileId(0)));
    while let Some(at) = from {
        let (part, next) = store.dirty_ranges(at, 100).await.unwrap();
        assert!(part.len() <= 101, "{}", part.len());
        named.extend(part.into_iter().map(|(ino, _)| ino));
        from = next;
    }
    named
}

/// Runs background passes in which every entry that may retire does.
async fn retire_entries(store: &Store) {
    for _ in 0..3 {
        store.maintain(0).await.unwrap();
    }
}

#[test]
fn a_group_has_files_and_rows_of_its_own() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        assert_eq!(Store::groups_on(&dir).await.unwrap(), []);
        assert!(Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().is_none());
        let group = open_group(&target).await;
        assert_eq!((group.group(), target.group()), (Some(GROUP), None));
        write(&target, ino(1), 0, 100).await;
        write(&group, ino(1), 0, 9000).await;
        group.drc_rows().write(3, &[1; chunkstore::ROW_BYTES]).await.unwrap();
        assert_eq!(target.stat(ino(1)).await.unwrap().len, 100);
        assert_eq!(group.stat(ino(1)).await.unwrap().len, 9000);
        for store in [&group, &target] {
            store.close().await.unwrap();
        }
        drop((group, target));

        assert_eq!(Store::groups_on(&dir).await.unwrap(), [GROUP]);
        let group_dir = Store::group_dir(&dir, GROUP);
        assert_eq!((chunk_files(&dir).len(), chunk_files(&group_dir).len()), (1, 1));
        let (target, _) = open(&dir).await;
        let (group, report) = Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().unwrap();
        assert!(!report.was_needed);
        assert_eq!(read(&group, ino(1), 0, 9000, IoPath::Cached).await.unwrap(), [7; 9000]);
        assert_eq!(group.drc_rows().take_found().len(), 1);
        assert_eq!(target.drc_rows().take_found().len(), 0);
    });
}

#[test]
fn another_groups_store_is_refused() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        open_group(&target).await.close().await.unwrap();
        let (here, there) = (Store::group_dir(&dir, GROUP), Store::group_dir(&dir, GroupId(8)));
        std::fs::rename(&here, &there).unwrap();
        let refused = Store::open_group(&target, GroupId(8), IfAbsent::Create).await.err().unwrap();
        assert_eq!(refused.kind(), Kind::WrongIdentity);
        assert!(refused.message().contains("group 7 on target 3"), "{refused}");
        // Chunks without a superblock aren't taken for a new group.
        std::fs::remove_file(there.join("group.toml")).unwrap();
        let refused = Store::open_group(&target, GroupId(8), IfAbsent::Create).await.err().unwrap();
        assert_eq!(refused.kind(), Kind::Damaged);
    });
}

#[test]
fn entries_stay_while_they_are_held() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        write(&group, ino(1), 5 * MIB, 100).await;
        retire_entries(&group).await;
        assert_eq!(dirty_ranges(&group).await, []);
        let hold = group.hold_entries();
        write(&group, ino(2), 9 * MIB + 1, 100).await;
        retire_entries(&group).await;
        let left = [(ino(2), ByteRange::new(0, MIB)), (ino(2), ByteRange::new(9 * MIB, 10 * MIB))];
        assert_eq!(dirty_ranges(&group).await, left);
        drop(hold);
        retire_entries(&group).await;
        assert_eq!(dirty_ranges(&group).await, []);
    });
}

#[test]
fn everything_can_be_kept_over_restarts() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        group.retain_all_entries(true);
        write(&group, ino(1), 0, 100).await;
        write(&group, ino(1), 3 * MIB, 100).await;
        retire_entries(&group).await;
        group.close().await.unwrap();
        drop(group);
        let (group, report) = Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().unwrap();
        assert!(report.was_needed, "what is noted has to be found again");
        retire_entries(&group).await;
        let known: Vec<ByteRange> =
            dirty_ranges(&group).await.iter().filter(|n| n.0 == ino(1)).map(|n| n.1).collect();
        assert_eq!(known, [ByteRange::new(0, MIB), ByteRange::new(3 * MIB, 4 * MIB)]);
        group.retain_all_entries(false);
        retire_entries(&group).await;
        assert_eq!(dirty_ranges(&group).await, []);
        group.close().await.unwrap();
        drop(group);
        let (_, report) = Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().unwrap();
        assert!(!report.was_needed);
    });
}

#[test]
fn what_changes_after_a_shutdown_is_damage_though_notes_were_kept() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        group.retain_all_entries(true);
        for sequence in 1..=4 {
            write(&group, ino(sequence), 0, 10_000).await;
        }
        group.close().await.unwrap();
        drop(group);
        let group_dir = Store::group_dir(&dir, GROUP);
        let path = |sequence| Store::chunk_file_path(&group_dir, ino(sequence));
        File::options().write(true).open(path(1)).unwrap().write_all_at(b"other", 5000).unwrap();
        File::options().write(true).open(path(2)).unwrap().set_len(4096).unwrap();
        std::fs::remove_file(path(3)).unwrap();
        // Repeatedly, as long as the entries are retained.
        for _ in 0..2 {
            let group = reopen(&target).await;
            assert_eq!(named(&group).await.len(), 1024, "other copies may not have it");
            let bad = ByteRange::new(4096, 8192);
            let error = read(&group, ino(1), 0, 10_000, IoPath::Cached).await.expect_err("damage");
            assert_eq!(error.kind(), Kind::Corrupt { ino: ino(1), range: bad });
            assert_eq!(group.verify(ino(2)).await.unwrap(), [ByteRange::new(4096, 12288)]);
            assert!(group.is_missing(ino(3)).await.unwrap());
            assert_eq!(read(&group, ino(4), 0, 10_000, IoPath::Cached).await.unwrap(), [7; 10_000]);
            assert_eq!(group.take_changing_at_crash(), [], "what the metadata service knows of is on disk");
            group.close().await.unwrap();
        }
    });
}

#[test]
fn all_of_a_deleted_file_is_noted() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        write(&group, ino(1), 100 * MIB, 100).await;
        retire_entries(&group).await;
        let hold = group.hold_entries();
        group.delete(ino(1)).await.unwrap();
        write(&group, ino(1), 200 * MIB, 100).await;
        retire_entries(&group).await;
        let noted = dirty_ranges(&group).await;
        let (file, range) = noted[0];
        assert!(file == ino(1) && range.start == 0 && range.end >= 101 * MIB, "{noted:?}");
        drop(hold);
    });
}

#[test]
fn inodes_of_a_span_are_named_after_a_crash() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        for sequence in 1..=3 {
            write(&group, ino(sequence), 0, 100).await;
        }
        for sequence in 1..=3 {
            group.delete(ino(sequence)).await.unwrap();
        }
        assert_eq!(dirty_ranges(&group).await.len(), 3, "nothing but what was changed");
        drop(group);
        let mut group = reopen(&target).await;
        assert_eq!(named(&group).await, (1..=1024).map(ino).collect::<Vec<_>>());
        // Neither time nor a shutdown tells what the other replicas have.
        retire_entries(&group).await;
        group.close().await.unwrap();
        drop(group);
        group = reopen(&target).await;
        assert_eq!(named(&group).await, (1..=1024).map(ino).collect::<Vec<_>>());
        group.retain_all_entries(false);
        retire_entries(&group).await;
        assert_eq!(dirty_ranges(&group).await, []);
    });
}

#[test]
fn an_overflow_of_entries_is_recorded() {
    with_target(|dir| async move {
        let options = Options { group_log_bytes: LOG_BYTES, ..Options::default() };
        let (target, _) = open_with(&dir, options).await;
        let group = open_group(&target).await;
        group.retain_all_entries(true);
        let mut files = 0;
        while !group.has_overflowed() {
            files += 1;
            assert!(files < 1000, "the log takes everything");
            // Regions apart from each other, so that each has an entry of its own.
            let writes = (0..64).map(|i| write(&group, ino(files), (10 + 2 * i) * MIB, 1));
            rt::join_all(writes.collect()).await;
        }
        drop(group);
        let (group, _) = Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().unwrap();
        assert!(group.has_overflowed());
        let whole = ByteRange::new(0, u64::MAX);
        let noted = dirty_ranges(&group).await;
        assert!(noted.len() as u64 == files && noted.iter().all(|(_, range)| *range == whole));
        group.retain_all_entries(false);
        group.clear_overflow().await.unwrap();
        assert!(!group.has_overflowed());
        retire_entries(&group).await;
        assert_eq!(self::dirty_ranges(&group).await, []);
        drop(group);
        let (group, _) = Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().unwrap();
        assert!(!group.has_overflowed());
    });
}

#[test]
fn a_lost_log_leaves_everything_noted() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        write(&group, ino(1), 0, 100).await;
        group.close().await.unwrap();
        drop(group);
        std::fs::remove_file(Store::group_dir(&dir, GROUP).join("intent.1")).unwrap();
        let (group, report) = Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().unwrap();
        assert!(report.log_was_missing && group.has_overflowed());
    });
}

#[test]
fn files_are_listed_in_parts() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        for sequence in 1..=100 {
            write(&group, ino(sequence), 0, 1).await;
        }
        for max in [1, 7, 100, 1000] {
            let (mut listed, mut from) = (Vec::new(), Some(ChunkFileId(0)));
            while let Some(at) = from {
                let (part, next) = group.files(at, max).await.unwrap();
                assert!(part.len() <= max);
                listed.extend(part);
                from = next;
            }
            listed.sort_unstable();
            assert_eq!(listed, (1..=100).map(ino).collect::<Vec<_>>(), "{max} at a time");
        }
    });
}

#[test]
fn a_length_is_set_exactly() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let group = open_group(&target).await;
        let len = async |at| group.stat(at).await.unwrap().len;
        group.set_len(ino(1), 10_000).await.unwrap();
        assert_eq!(len(ino(1)).await, 10_000);
        write(&group, ino(2), 0, 5000).await;
        group.set_len(ino(2), 3 * MIB + 1).await.unwrap();
        assert_eq!(len(ino(2)).await, 3 * MIB + 1);
        group.set_len(ino(2), 4500).await.unwrap();
        assert_eq!(len(ino(2)).await, 4500);
        group.set_len(ino(2), 8000).await.unwrap();
        let mut expected = vec![7; 4500];
        expected.resize(8000, 0);
        assert_eq!(read(&group, ino(2), 0, 8000, IoPath::Cached).await.unwrap(), expected);
        for file in [ino(1), ino(2)] {
            assert_eq!(group.verify(file).await.unwrap(), []);
        }
        group.set_len(ino(3), 0).await.unwrap();
        assert_eq!(group.files(ChunkFileId(0), 10).await.unwrap().0.len(), 3);
        let refused = group.set_len(ino(1), u64::MAX).await.err().unwrap();
        assert_eq!(refused.kind(), Kind::TooLarge);
        group.allocate(ino(2), ByteRange::new(0, 4096), Allocate::Punch).await.unwrap();
        assert_eq!(group.verify(ino(2)).await.unwrap(), []);
    });
}

#[test]
fn a_target_without_groups_has_no_folder_for_them() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        write(&target, ino(1), 0, 10).await;
        target.close().await.unwrap();
        assert!(!Path::new(&dir).join("groups").exists());
    });
}

#[test]
fn a_store_whose_making_was_cut_short_is_made_whole() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        open_group(&target).await.close().await.unwrap();
        rt::remove_dir(&Store::group_dir(&dir, GROUP).join("chunks")).await.unwrap();
        rt::remove_file(&created_mark(&dir)).await.unwrap();
        let group = reopen(&target).await;
        assert_eq!(group.files(ChunkFileId(0), 10).await.unwrap().0, []);
        assert!(rt::read_dir(&Store::group_dir(&dir, GROUP).join("chunks")).await.is_ok());
    });
}

#[test]
fn a_lost_store_is_recreated_only_for_a_full_resync() {
    for lost in ["groups", "groups/7", "groups/7/chunks"] {
        with_target(move |dir| async move {
            let (target, _) = open(&dir).await;
            let group = open_group(&target).await;
            assert!(!group.has_overflowed());
            write(&group, ino(1), 0, 100).await;
            for store in [&group, &target] {
                store.close().await.unwrap();
            }
            drop((group, target));
            std::fs::rename(dir.join(lost), dir.join("lost+found")).unwrap();
            let (target, _) = open(&dir).await;
            assert_eq!(target.groups().await.unwrap(), [GROUP]);
            for if_absent in [IfAbsent::Leave, IfAbsent::Create] {
                let refused = Store::open_group(&target, GROUP, if_absent).await.err().unwrap();
                assert_eq!(refused.kind(), Kind::Damaged, "{lost}");
                assert!(refused.message().contains("group 7 is missing"), "{refused}");
            }
            let made = Store::open_group(&target, GROUP, IfAbsent::Recreate).await.unwrap().unwrap().0;
            assert!(made.has_overflowed(), "{lost}: everything has to be compared");
            assert_eq!(made.files(ChunkFileId(0), 10).await.unwrap().0, []);
            // As after any other crash.
            drop(made);
            let group = reopen(&target).await;
            assert!(group.has_overflowed(), "{lost}");
        });
    }
}

#[test]
fn a_store_that_was_forgotten_is_not_lost() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        open_group(&target).await.close().await.unwrap();
        target.remove_group(GROUP).await.unwrap();
        assert_eq!(target.groups().await.unwrap(), []);
        open_group(&target).await.close().await.unwrap();
        // Power fails during the removal: the mark goes first.
        let here = Store::group_dir(&dir, GROUP);
        std::fs::remove_file(created_mark(&dir)).unwrap();
        reopen(&target).await.close().await.unwrap();
        assert!(created_mark(&dir).exists(), "it is not forgotten after all");
        std::fs::remove_file(created_mark(&dir)).unwrap();
        std::fs::rename(&here, here.with_extension("gone")).unwrap();
        assert_eq!(target.groups().await.unwrap(), []);
        assert!(Store::open_group(&target, GROUP, IfAbsent::Leave).await.unwrap().is_none());
        target.finish_group_removals().await.unwrap();
        assert_eq!(target.groups().await.unwrap(), []);
        assert!(!here.with_extension("gone").exists());
        open_group(&target).await.close().await.unwrap();
        // A lost store can be removed, too.
        std::fs::remove_dir_all(&here).unwrap();
        target.remove_group(GROUP).await.unwrap();
        assert_eq!(target.groups().await.unwrap(), []);
    });
}

/// A store is removed, created again before the rest of the first one is gone, and then lost.
#[test]
fn leftovers_of_a_removed_store_do_not_hide_a_later_loss() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        open_group(&target).await.close().await.unwrap();
        let here = Store::group_dir(&dir, GROUP);
        std::fs::rename(&here, here.with_extension("gone")).unwrap();
        target.finish_group_removals().await.unwrap();
        assert!(!here.with_extension("gone").exists());
        assert_eq!(target.groups().await.unwrap(), [GROUP]);
        let refused = Store::open_group(&target, GROUP, IfAbsent::Create).await.err().unwrap();
        assert_eq!(refused.kind(), Kind::Damaged);
    });
}

/// A store of a group isn't lost, whichever step of its removal fails.
#[test]
fn a_store_whose_removal_fails_half_way_is_not_lost() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        open_group(&target).await.close().await.unwrap();
        // A file under the name of what is being removed: the store can't be renamed to it.
        let gone = Store::group_dir(&dir, GROUP).with_extension("gone");
        std::fs::write(&gone, "").unwrap();
        target.remove_group(GROUP).await.unwrap_err();
        reopen(&target).await.close().await.unwrap();
        std::fs::remove_file(&gone).unwrap();
        target.remove_group(GROUP).await.unwrap();
        assert_eq!(target.groups().await.unwrap(), []);
    });
}
