//! Faults of chunk files.

use super::support::{FIRST_UNALLOCATED, Fs, PARTITIONS, on_a_core};
use chunkstore::{Durability, IoPath, Orphan, Store};
use fsck::{CheckOptions, CheckOutcome, Kind, Loss};
use namespace::keys;
use rt::IoBuf;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use testkit::targets;
use types::{ByteRange, ChunkFileId, GroupId, InodeId};

const CHUNK: u64 = 1024 * 1024;

#[test]
fn damaged_bytes_are_reported_with_path_and_range() {
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
fn lost_content_is_given_up_only_on_request_and_recorded_first() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 3 * CHUNK as usize + 5000).await;
        let gone = fs.chunked(InodeId::ROOT, "gone", 2 * CHUNK as usize).await;
        let file = OpenOptions::new().write(true).open(fs.chunk_file(ino, 1)).unwrap();
        file.write_all_at(b"flipped", 8192 + 10).unwrap();
        fs.store_of(&fs.layout(gone), 1).delete(gone.first_chunk_file()).await.unwrap();
        let left = fs.check(true).await;
        assert_eq!(left.outcome(), CheckOutcome::Damaged);
        assert!(left.findings.iter().all(|finding| finding.lost && !finding.repaired), "{:?}", left.findings);
        assert!(left.findings[0].remedy.contains("--forget"), "{}", left.findings[0].remedy);

        let refuse = |_: &Loss| Err(types::Error::new(types::Errno::ENOSPC, "the list can't be written"));
        let refused = fs
            .check_with(&CheckOptions {
                repair: true,
                loss_recorder: Some(&refuse),
                ..CheckOptions::default()
            })
            .await;
        assert!(refused.findings.iter().all(|finding| !finding.repaired), "{:?}", refused.findings);

        let losses = RefCell::new(Vec::new());
        let note = |loss: &Loss| {
            losses.borrow_mut().push((loss.path.clone(), loss.range));
            Ok(())
        };
        let forgotten = fs
            .check_with(&CheckOptions { repair: true, loss_recorder: Some(&note), ..CheckOptions::default() })
            .await;
        assert_eq!(forgotten.outcome(), CheckOutcome::Repaired, "{:?}", forgotten.findings);
        assert!(forgotten.findings.iter().all(|finding| finding.lost));
        let mut losses = losses.into_inner();
        losses.sort_by_key(|(path, _)| path.clone());
        let lost = [ByteRange::at(CHUNK + 8192, 4096), ByteRange::at(CHUNK, CHUNK)];
        assert_eq!(losses, [("/big".to_owned(), lost[0]), ("/gone".to_owned(), lost[1])]);
        assert_eq!(fs.check(false).await.findings, []);

        let found = fs.contents(ino, 1, CHUNK as usize).await.remove(0);
        let expected = |at: usize| {
            if (8192..12_288).contains(&at) { 0 } else { ((CHUNK as usize + at) / 1000) as u8 | 1 }
        };
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
        assert!(fs.contents(gone, 1, CHUNK as usize).await[0].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_chunk_file_that_was_cut_from_outside_is_given_up_from_there_on() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", CHUNK as usize).await;
        let empty = fs.chunked(InodeId::ROOT, "empty", CHUNK as usize).await;
        let cut = |ino, len| {
            OpenOptions::new().write(true).open(fs.chunk_file(ino, 0)).unwrap().set_len(len).unwrap();
        };
        cut(ino, 500_000);
        cut(empty, 0);
        let note = |_: &Loss| Ok(());
        let forgotten = fs
            .check_with(&CheckOptions { repair: true, loss_recorder: Some(&note), ..CheckOptions::default() })
            .await;
        assert_eq!(forgotten.outcome(), CheckOutcome::Repaired, "{:?}", forgotten.findings);
        assert_eq!(fs.check(false).await.findings, []);
        let found = fs.contents(ino, 0, CHUNK as usize).await.remove(0);
        let whole = 500_000 / 4096 * 4096;
        assert!(found[..whole].iter().enumerate().all(|(at, byte)| *byte == (at / 1000) as u8 | 1));
        assert!(found[whole..].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_path_limits_the_check() {
    on_a_core(async |fs| {
        let (one, two) = (fs.mkdir(InodeId::ROOT, "one"), fs.mkdir(InodeId::ROOT, "two"));
        for dir in [one, two] {
            let ino = fs.chunked(dir, "f", 1000).await;
            let file = OpenOptions::new().write(true).open(fs.chunk_file(ino, 0)).unwrap();
            file.write_all_at(b"flipped", 10).unwrap();
            fs.edit_inode(ino, |inode| inode.nlink = 7);
        }
        for below in ["/one", "/one/", "/one/f"] {
            let report = fs.check_with(&CheckOptions { below: Some(below), ..CheckOptions::default() }).await;
            let kinds: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
            assert_eq!(kinds, [Kind::LinkCount, Kind::DamagedContent], "{below}");
            assert!(report.findings.iter().all(|finding| finding.object == "/one/f"));
        }
        let subject = fs.subject();
        let orders = CheckOptions { below: Some("/three"), ..CheckOptions::default() };
        let absent = fsck::check(&subject, &orders, &|_, _, _| ()).await.unwrap_err();
        assert_eq!(absent.errno, types::Errno::ENOENT);
    });
}

async fn put(store: &Store, ino: ChunkFileId, content: &[u8]) {
    store.write(ino, 0, &IoBuf::from_slice(content), IoPath::Cached, Durability::Later).await.unwrap();
}

#[test]
fn an_orphaned_chunk_file_is_moved_aside_and_can_be_restored() {
    on_a_core(async |fs| {
        let stray = ChunkFileId(4242);
        let content = vec![7; 20_000];
        let group = fs.copies.values().next().unwrap();
        for store in [fs.stores.values().next().unwrap(), group] {
            put(store, stray, &content).await;
        }
        let target_dir = fs.stores.values().next().unwrap().dir();
        let repaired = fs.check(true).await;
        assert_eq!(repaired.outcome(), CheckOutcome::Repaired, "{:?}", repaired.findings);
        assert!(repaired.findings.iter().all(|found| found.remedy.contains("--orphans")), "{repaired:?}");
        assert_eq!(fs.check(false).await.findings, []);
        let kept = Orphan::list(target_dir).await.unwrap();
        let listed: Vec<_> = kept.iter().map(|orphan| (orphan.group, orphan.ino, orphan.bytes)).collect();
        assert_eq!(listed, [(None, stray, 20_000), (group.group(), stray, 20_000)]);
        for (orphan, store) in kept.iter().zip([fs.stores.values().next().unwrap(), group]) {
            assert_eq!(store.stat(stray).await.unwrap().len, 0);
            assert!(orphan.restore(target_dir).await.unwrap());
            assert_eq!(store.verify(stray).await.unwrap(), []);
            let buf = IoBuf::alloc(content.len());
            store.read(stray, 0, &buf, IoPath::Cached).await.unwrap();
            assert!(buf.as_slice() == content);
        }
        assert_eq!(Orphan::list(target_dir).await.unwrap(), []);
        assert_eq!(fs.check(false).await.findings.len(), 2, "they are back");
    });
}

#[test]
fn an_orphan_moved_aside_is_deleted_or_kept_as_ordered() {
    on_a_core(async |fs| {
        let store = fs.stores.values().next().unwrap();
        let stray = ChunkFileId(4242);
        put(store, stray, b"who?").await;
        fs.finds_and_repairs(Kind::StrayChunkFile).await;
        // Another orphan with the same name doesn't replace it.
        put(store, stray, b"another").await;
        let left = fs.finds_and_leaves(Kind::StrayChunkFile).await;
        assert!(left.remedy.contains("already exists"), "{left:?}");
        let orphan = Orphan::list(store.dir()).await.unwrap()[0];
        assert_eq!(orphan.bytes, 4);
        assert!(!orphan.restore(store.dir()).await.unwrap(), "its place is taken");
        orphan.delete(store.dir()).await.unwrap();
        assert_eq!(Orphan::list(store.dir()).await.unwrap(), []);
        let delete = CheckOptions { repair: true, delete: true, ..CheckOptions::default() };
        assert_eq!(fs.check_with(&delete).await.outcome(), CheckOutcome::Repaired);
        assert_eq!(Orphan::list(store.dir()).await.unwrap(), []);
        assert_eq!(store.stat(stray).await.unwrap().len, 0);
    });
}

/// As with a store that has lost the end of its journal, or was restored from an old backup.
#[test]
fn metadata_that_is_older_than_the_chunk_files_is_not_repaired_unless_the_loss_is_accepted() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 100_000).await;
        fs.edit_inode(ino, |inode| inode.size = 60_000);
        let store = fs.stores.values().next().unwrap();
        let newer = ChunkFileId(FIRST_UNALLOCATED + 500);
        put(store, newer, b"of a file that the metadata has lost").await;
        let found = fs.check(false).await;
        let kinds: Vec<Kind> = found.findings.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&Kind::StrayChunkFile) && kinds.contains(&Kind::LongChunkFile), "{kinds:?}");
        let subject = fs.subject();
        for delete in [false, true] {
            let orders = CheckOptions { repair: true, delete, ..CheckOptions::default() };
            let refused = fsck::check(&subject, &orders, &|_, _, _| ()).await.unwrap_err();
            assert!(refused.message.contains("looks older"), "{refused}");
            assert!(refused.hint.contains("weft meta restore"), "{}", refused.hint);
        }
        assert_eq!(fs.check(false).await.findings, found.findings, "nothing was changed");
        let accepting = CheckOptions { repair: true, accept_loss: true, ..CheckOptions::default() };
        assert_eq!(fs.check_with(&accepting).await.outcome(), CheckOutcome::Repaired);
        let mut kept = BTreeSet::new();
        for store in fs.stores.values() {
            kept.extend(Orphan::list(store.dir()).await.unwrap().into_iter().map(|orphan| orphan.ino));
        }
        assert_eq!(kept, BTreeSet::from([ino.first_chunk_file(), newer]), "with what was cut");
    });
}

#[test]
fn a_chunk_file_on_a_target_that_is_not_the_files_is_moved_aside() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 100_000).await;
        fs.edit_inode(ino, |inode| inode.layout.as_mut().unwrap().groups.truncate(1));
        let other = fs
            .stores
            .values()
            .find(|store| !std::path::Path::new(&fs.chunk_file(ino, 0)).starts_with(store.dir()));
        let other = other.unwrap();
        other
            .write(ino.first_chunk_file(), 0, &IoBuf::from_slice(b"x"), IoPath::Cached, Durability::Later)
            .await
            .unwrap();
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
        assert_eq!(fs.store_of(&layout, 0).stat(ino.first_chunk_file()).await.unwrap().len, 60_000);
    });
}

/// The metadata was restored from a backup that is older than the end of the file.
#[test]
fn truncated_data_is_moved_aside_and_can_be_restored() {
    on_a_core(async |mut fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 100_000).await;
        fs.edit_inode(ino, |inode| inode.size = 60_000);
        let store = fs.store_of(&fs.layout(ino), 0);
        let (target, dir) = (store.target(), store.dir().to_path_buf());
        let found = fs.check(false).await;
        assert!(found.findings[0].remedy.contains("old backup"), "{found:?}");
        let repaired = fs.check(true).await;
        assert_eq!(repaired.outcome(), CheckOutcome::Repaired, "{:?}", repaired.findings);
        assert!(repaired.findings[0].remedy.contains("--orphans"), "{repaired:?}");
        let kept = Orphan::list(&dir).await.unwrap();
        assert_eq!(kept, [Orphan { group: None, ino: ino.first_chunk_file(), bytes: 100_000 }]);

        fs.edit_inode(ino, |inode| inode.size = 100_000);
        store.close().await.unwrap();
        assert!(kept[0].restore(&dir).await.unwrap());
        fs.stores.insert(target, targets::open(&dir, target).await);
        assert_eq!(fs.check(false).await.findings, []);
        let content = fs.contents(ino, 0, 100_000).await.remove(0);
        assert!(content.iter().enumerate().all(|(at, byte)| *byte == (at / 1000) as u8 | 1));
        assert_eq!(Orphan::list(&dir).await.unwrap(), []);
    });
}

#[test]
fn a_chunk_file_is_not_truncated_without_a_copy_unless_ordered() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 100_000).await;
        fs.edit_inode(ino, |inode| inode.size = 60_000);
        let store = fs.store_of(&fs.layout(ino), 0);
        let another = Orphan { group: None, ino: ino.first_chunk_file(), bytes: 7 };
        let place = another.path(store.dir());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, "another").unwrap();
        let left = fs.finds_and_leaves(Kind::LongChunkFile).await;
        assert!(left.remedy.contains("already exists"), "{left:?}");
        assert_eq!(store.stat(ino.first_chunk_file()).await.unwrap().len, 100_000);
        let delete = CheckOptions { repair: true, delete: true, ..CheckOptions::default() };
        let repaired = fs.check_with(&delete).await;
        assert_eq!(repaired.outcome(), CheckOutcome::Repaired, "{:?}", repaired.findings);
        assert_eq!(repaired.findings[0].remedy, "");
        assert_eq!(store.stat(ino.first_chunk_file()).await.unwrap().len, 60_000);
        assert_eq!(Orphan::list(store.dir()).await.unwrap(), [another], "it stays");
    });
}

#[test]
fn a_missing_chunk_file_is_reported() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 2 * CHUNK as usize).await;
        fs.store_of(&fs.layout(ino), 1).delete(ino.first_chunk_file()).await.unwrap();
        let finding = fs.finds_and_leaves(Kind::MissingChunkFile).await;
        assert_eq!(finding.object, "/big");
    });
}

/// For a file with holes only the known lengths of its chunk files show it.
#[test]
fn a_chunk_file_of_known_length_is_missed_in_a_file_with_holes() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "sparse", 2 * CHUNK as usize).await;
        fs.edit_inode(ino, |inode| {
            (inode.size, inode.blocks, inode.known_end) = (9 * CHUNK, 8, 2 * CHUNK);
        });
        assert_eq!(fs.check(false).await.findings, []);
        let store = fs.store_of(&fs.layout(ino), 1);
        // Through the store, so that its checksums are removed too.
        store.truncate(ino.first_chunk_file(), CHUNK / 2).await.unwrap();
        assert_eq!(fs.finds_and_leaves(Kind::ShortChunkFile).await.object, "/sparse");
        let losses = RefCell::new(Vec::new());
        let note = |loss: &Loss| {
            losses.borrow_mut().push(loss.range);
            Ok(())
        };
        let forget = || CheckOptions { repair: true, loss_recorder: Some(&note), ..CheckOptions::default() };
        assert_eq!(fs.check_with(&forget()).await.outcome(), CheckOutcome::Repaired);
        assert_eq!(losses.take(), [ByteRange::new(CHUNK + CHUNK / 2, 2 * CHUNK)]);
        assert_eq!(fs.check(false).await.findings, []);
        assert_eq!(store.stat(ino.first_chunk_file()).await.unwrap().len, CHUNK);

        store.delete(ino.first_chunk_file()).await.unwrap();
        assert_eq!(fs.finds_and_leaves(Kind::MissingChunkFile).await.object, "/sparse");
        assert_eq!(fs.check_with(&forget()).await.outcome(), CheckOutcome::Repaired);
        assert_eq!(losses.take(), [ByteRange::new(CHUNK, 2 * CHUNK)]);
        assert_eq!(fs.check(false).await.findings, []);
    });
}

/// A process died, and a power failure lost what it had just written: the next start of the cluster
/// reconciles that.
#[test]
fn a_known_length_lost_in_a_crash_is_no_damage_before_reconciliation() {
    on_a_core(async |mut fs| {
        let ino = fs.chunked(InodeId::ROOT, "sparse", 2 * CHUNK as usize).await;
        fs.edit_inode(ino, |inode| {
            (inode.size, inode.blocks, inode.known_end) = (9 * CHUNK, 8, 2 * CHUNK);
        });
        let (path, store) = (fs.chunk_file(ino, 1), fs.store_of(&fs.layout(ino), 1));
        let (target, dir) = (store.target(), store.dir().to_path_buf());
        // Without a shutdown: its checksums are not on disk.
        fs.stores.remove(&target);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(CHUNK / 2).unwrap();
        let store = targets::open(&dir, target).await;
        fs.stores.insert(target, store.clone());
        assert_eq!(fs.check(false).await.findings, []);
        store.mark_reconciled();
        store.close().await.unwrap();
        fs.stores.insert(target, targets::open(&dir, target).await);
        assert_eq!(fs.finds_and_leaves(Kind::ShortChunkFile).await.object, "/sparse");
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
fn a_layout_with_an_unknown_group_is_reported() {
    on_a_core(async |fs| {
        let ino = fs.chunked(InodeId::ROOT, "big", 1000).await;
        assert!(fs.map.group(GroupId(77)).is_none());
        fs.edit_inode(ino, |inode| inode.layout.as_mut().unwrap().groups[3] = 77);
        fs.finds_and_leaves(Kind::UnknownTarget).await;
    });
}

#[test]
fn files_in_a_lost_group_are_named_listed_and_counted() {
    on_a_core(async |mut fs| {
        let (ino, other) =
            (fs.chunked(InodeId::ROOT, "big", 1000).await, fs.chunked(InodeId::ROOT, "small", 10).await);
        // One file has data only on the first target, the other one has none.
        fs.edit_inode(ino, |inode| inode.layout.as_mut().unwrap().groups = vec![1]);
        fs.edit_inode(other, |inode| inode.layout.as_mut().unwrap().groups = vec![2]);
        let groups = BTreeSet::from([GroupId(1), GroupId(3)]);
        let usage = async |fs: &Fs| fsck::usage(&*fs.snapshot().await, PARTITIONS, &groups).await.unwrap();
        let found = usage(&fs).await;
        assert_eq!((found.files, found.bytes, found.referenced), (1, 1000, [GroupId(1)].into()));

        let target = fs.map.groups[0].members[0];
        for group in fs.map.groups.iter_mut().filter(|group| group.is_sole_in_sync_member(target)) {
            group.mark_lost();
        }
        let finding = fs.check(true).await.findings.into_iter().find(|found| found.kind == Kind::LostGroup);
        let finding = finding.unwrap();
        assert!(finding.object == "/big" && finding.lost && !finding.repaired, "{finding:?}");
        assert!(finding.remedy.contains("delete the file"), "{finding:?}");

        // Deleted, with its chunk files still to be removed.
        let doomed = fs.inode(ino).layout.unwrap();
        fs.delete(&keys::inode(ino));
        fs.put(&keys::doomed(ino.first_chunk_file()), &doomed);
        let found = usage(&fs).await;
        assert_eq!((found.files, found.bytes, found.referenced), (0, 0, [GroupId(1)].into()));
        fs.delete(&keys::doomed(ino.first_chunk_file()));
        assert_eq!(usage(&fs).await, types::GroupUsage::default());
    });
}
