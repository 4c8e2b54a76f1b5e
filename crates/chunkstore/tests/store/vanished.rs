//! A store whose directory was replaced answers nothing: neither that something exists nor that it
//! doesn't.

use crate::common::{INO, buf, identity, open, read, with_target};
use chunkstore::{Durability, IfAbsent, IoPath, Kind, Store, StoreError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{ByteRange, ChunkFileId, GroupId, TargetId};

const GROUP: GroupId = GroupId(7);
/// A file that is in the store and not open.
const CLOSED: ChunkFileId = ChunkFileId(0x1_0000_0002);
/// A file that isn't in the store.
const ABSENT: ChunkFileId = ChunkFileId(0x1_0000_0003);
const BLOCK: u64 = 4096;

/// Path of the directory while something else is in its place.
fn away(dir: &Path) -> PathBuf {
    dir.with_extension("away")
}

/// Acts like `umount -l`: the path shows the empty directory below the mount point.
fn unmount(dir: &Path) {
    fs::rename(dir, away(dir)).unwrap();
    fs::create_dir(dir).unwrap();
}

/// Mounts the disk again; nothing may have been written to the mount point meanwhile.
fn mount(dir: &Path) {
    fs::remove_dir(dir).unwrap();
    fs::rename(away(dir), dir).unwrap();
}

async fn write(store: &Store, ino: ChunkFileId) -> chunkstore::Result<()> {
    store.write(ino, 0, &buf(&[7; BLOCK as usize]), IoPath::Cached, Durability::Now).await
}

/// Returns a store with files of which only one is open.
async fn filled(dir: &Path) -> Arc<Store> {
    let (store, _) = open(dir).await;
    write(&store, CLOSED).await.unwrap();
    store.close().await.unwrap();
    let (store, _) = open(dir).await;
    write(&store, INO).await.unwrap();
    store.sync(INO).await.unwrap();
    store
}

fn require_vanished<T>(what: &str, answer: chunkstore::Result<T>) -> StoreError {
    let Err(error) = answer else { panic!("{what} was answered by what isn't the store") };
    assert_eq!(error.kind(), Kind::Vanished, "{what}: {error}");
    error
}

/// Checks all operations that depend on lookups below the directory.
async fn require_all_fail(store: &Arc<Store>) {
    for ino in [CLOSED, ABSENT] {
        require_vanished("a read", read(store, ino, 0, BLOCK as usize, IoPath::Cached).await);
        require_vanished("a look at a file", store.stat(ino).await);
        let all = ByteRange::new(0, BLOCK);
        require_vanished("a survey", store.survey(ino, all, BLOCK, true).await);
        require_vanished("a search for damage", store.verify(ino).await);
        require_vanished("a write", write(store, ino).await);
        require_vanished("a removal", store.delete(ino).await);
        require_vanished("a new length", store.truncate(ino, 1).await);
        require_vanished("a sync", store.sync(ino).await);
        require_vanished("an expectation", store.expect_sums(ino, 0, &[1], BLOCK).await);
        require_vanished("existence", store.has_chunk_file(ino).await);
        require_vanished("a missing file", store.is_missing(ino).await);
    }
    // The open file is the store's, but whether it still has its name is unknown.
    require_vanished("a removal of an open file", store.delete(INO).await);
    require_vanished("a replaced file", store.is_replaced(INO).await);
    require_vanished("a list", store.list().await);
    require_vanished("a part of a list", store.files(ChunkFileId(0), 10).await);
    require_vanished("missing files", store.missing().await);
    require_vanished("the groups", store.groups().await);
    require_vanished("room", store.space().await);
    let error = require_vanished("a proof", store.verify_dir().await);
    assert!(error.message().contains("target 3 is offline") && error.hint().contains("mount"), "{error}");
    require_vanished("a quick proof", store.check_dir());
    require_vanished("a copy of a group", Store::open_group(store, GROUP, IfAbsent::Create).await);
    require_vanished("the removal of a group", store.remove_group(GROUP).await);
}

#[test]
fn an_empty_directory_in_its_place_is_no_store_without_files() {
    with_target(|dir| async move {
        let store = filled(&dir).await;
        store.verify_dir().await.unwrap();
        unmount(&dir);
        require_all_fail(&store).await;
        mount(&dir);
        store.verify_dir().await.unwrap();
        assert_eq!(store.list().await.unwrap(), [INO, CLOSED]);
        assert_eq!(read(&store, CLOSED, 0, 1, IoPath::Cached).await.unwrap(), [7]);
        assert_eq!(store.stat(ABSENT).await.unwrap().len, 0);
        store.close().await.unwrap();
    });
}

#[test]
fn a_file_in_place_of_its_chunk_folder_is_no_empty_list() {
    with_target(|dir| async move {
        let store = filled(&dir).await;
        unmount(&dir);
        fs::write(dir.join("chunks"), "").unwrap();
        require_vanished("a list", store.list().await);
        fs::remove_file(dir.join("chunks")).unwrap();
        mount(&dir);
        assert_eq!(store.list().await.unwrap(), [INO, CLOSED]);
        store.close().await.unwrap();
    });
}

#[test]
fn nothing_at_its_path_is_no_store_without_files() {
    with_target(|dir| async move {
        let store = filled(&dir).await;
        fs::rename(&dir, away(&dir)).unwrap();
        require_all_fail(&store).await;
        fs::rename(away(&dir), &dir).unwrap();
        store.close().await.unwrap();
    });
}

/// Also where that one has files of the same names: they are intact, so that only the identity
/// differs.
#[test]
fn another_store_in_its_place_is_not_taken_for_it() {
    with_target(|dir| async move {
        let store = filled(&dir).await;
        fs::rename(&dir, away(&dir)).unwrap();
        let other = chunkstore::Identity { target: TargetId(4), ..identity() };
        Store::format_with_log(&dir, &other, crate::common::LOG_BYTES).await.unwrap();
        let (swapped, _) = Store::open(&dir, &other, chunkstore::Options::default()).await.unwrap();
        for ino in [CLOSED, ABSENT] {
            write(&swapped, ino).await.unwrap();
        }
        swapped.close().await.unwrap();
        require_all_fail(&store).await;
        let (swapped, _) = Store::open(&dir, &other, chunkstore::Options::default()).await.unwrap();
        assert_eq!(swapped.list().await.unwrap(), [CLOSED, ABSENT], "files of another store were removed");
        swapped.close().await.unwrap();
        fs::remove_dir_all(&dir).unwrap();
        fs::rename(away(&dir), &dir).unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_group_whose_folder_has_gone_is_no_group_without_files() {
    with_target(|dir| async move {
        let (target, _) = open(&dir).await;
        let (group, _) = Store::open_group(&target, GROUP, IfAbsent::Create).await.unwrap().unwrap();
        write(&group, INO).await.unwrap();
        let folder = Store::group_dir(&dir, GROUP);
        unmount(&folder);
        require_vanished("a read", read(&group, ABSENT, 0, 1, IoPath::Cached).await);
        require_vanished("a part of a list", group.files(ChunkFileId(0), 10).await);
        require_vanished("the verifier of what is complete", group.adopt_verifier(9).await);
        require_vanished("a quick proof", group.check_dir());
        target.verify_dir().await.unwrap();
        mount(&folder);
        group.adopt_verifier(9).await.unwrap();
        group.close().await.unwrap();
        target.close().await.unwrap();
    });
}

#[test]
fn a_superblock_that_says_something_else_is_no_proof() {
    with_target(|dir| async move {
        let (store, _) = open(&dir).await;
        let path = dir.join("target.toml");
        let text = fs::read(&path).unwrap();
        // In place: it is the same file.
        fs::write(&path, String::from_utf8_lossy(&text).replace("target = 3", "target = 4")).unwrap();
        store.check_dir().unwrap();
        require_vanished("a proof", store.verify_dir().await);
        fs::write(&path, text).unwrap();
        store.verify_dir().await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_store_without_its_chunk_folder_is_not_opened_as_an_empty_one() {
    with_target(|dir| async move {
        filled(&dir).await.close().await.unwrap();
        fs::rename(dir.join("chunks"), dir.join("elsewhere")).unwrap();
        let refused = Store::open(&dir, &identity(), chunkstore::Options::default()).await;
        let error = refused.err().expect("it must not open");
        assert!(error.kind() == Kind::Damaged && error.message().contains("chunks"), "{error}");
        fs::rename(dir.join("elsewhere"), dir.join("chunks")).unwrap();
        assert_eq!(open(&dir).await.0.list().await.unwrap(), [INO, CLOSED]);
    });
}
