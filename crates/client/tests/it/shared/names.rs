//! Names that one client creates, moves and removes.

use super::cluster::{
    Application, CHUNK, RDONLY, RDWR, ROOT, run_lengths, with_cluster, with_cluster_of_seed,
};
use client::{Client, Found, Invalidate, UserPrivileges};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use types::{Attr, ByteRange, Credentials, Errno, InodeId, SetAttr};
use wire::{RenameMode, XattrMode};

#[test]
fn name_changes_of_one_client_are_seen_by_the_other() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        assert_eq!(two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap_err().errno, Errno::ENOENT);
        let file = one.create_file("f").await;
        assert_eq!(two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap().ino, file.ino());
        one.rename(ROOT, InodeId::ROOT, b"f", InodeId::ROOT, b"g", RenameMode::Replace).await.unwrap();
        assert_eq!(two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap_err().errno, Errno::ENOENT);
        assert_eq!(two.lookup(ROOT, InodeId::ROOT, b"g").await.unwrap().ino, file.ino());
        two.unlink(ROOT, InodeId::ROOT, b"g").await.unwrap();
        assert_eq!(one.lookup(ROOT, InodeId::ROOT, b"g").await.unwrap_err().errno, Errno::ENOENT);
        assert_eq!(one.getattr(file.ino()).await.unwrap().nlink, 0);
    });
}

/// The kernel takes a file that it has opened with `O_CREAT` for new, and checks no mode.
#[test]
fn the_loser_of_a_create_race_needs_permission_to_open() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        one.setattr(ROOT, InodeId::ROOT, mode, None).await.unwrap();
        let stranger = Credentials { uid: 2000, gid: 2000, pid: 7 };
        let own = async |client: &Client, name: &[u8], mode: u32, flags: u32| {
            let made = client.create(stranger, InodeId::ROOT, name, 0o100_000 | mode, 0, flags).await;
            made.map(drop).map_err(|error| error.errno)
        };
        for (name, mode) in [(b"f", 0o600), (b"g", 0o644), (b"h", 0o666)] {
            one.create(ROOT, InodeId::ROOT, name, 0o100_000 | mode, 0, RDWR).await.unwrap();
        }
        assert_eq!(own(&two, b"f", 0o644, RDONLY).await.unwrap_err(), Errno::EACCES);
        assert_eq!(own(&two, b"g", 0o644, RDWR).await.unwrap_err(), Errno::EACCES);
        own(&two, b"g", 0o644, RDONLY).await.unwrap();
        own(&two, b"h", 0o644, RDWR).await.unwrap();
        // A file that the same user has created, on another machine or by an earlier request
        // without an answer, may be opened.
        own(&one, b"i", 0o400, RDWR).await.unwrap();
        own(&two, b"i", 0o400, RDWR).await.unwrap();
    });
}

/// A kernel that reports these privileges for every user.
struct PrivilegedKernel(UserPrivileges);

impl Invalidate for PrivilegedKernel {
    fn drop_cached(&self, _: InodeId, _: Vec<ByteRange>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {})
    }

    fn privileges(&self, _: Credentials) -> Option<UserPrivileges> {
        Some(self.0.clone())
    }
}

/// Checks that the kernel leaves to the service: for a file that was found instead of created, and
/// for migrating a file.
#[test]
fn capabilities_are_checked_for_each_request() {
    const CAP_DAC_OVERRIDE: u64 = 1 << 1;
    const CAP_FOWNER: u64 = 1 << 3;
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        one.setattr(ROOT, InodeId::ROOT, mode, None).await.unwrap();
        let (made, _) = one.create(ROOT, InodeId::ROOT, b"f", 0o100_640, 0, RDWR).await.unwrap();
        let group = SetAttr { gid: Some(500), ..SetAttr::default() };
        one.setattr(ROOT, made.ino, group, None).await.unwrap();
        let stranger = Credentials { uid: 2000, gid: 2000, pid: 7 };
        let tries = async |groups: &[u32], capabilities: u64| {
            let standing = UserPrivileges { groups: groups.to_vec(), capabilities };
            let face: Arc<dyn Invalidate> = Arc::new(PrivilegedKernel(standing));
            two.set_invalidator(Arc::downgrade(&face));
            let opened = two.create(stranger, InodeId::ROOT, b"f", 0o100_644, 0, RDONLY).await;
            let wish = br#"{"scheme":"single"}"#;
            let moved = two.setxattr(stranger, made.ino, b"weft.migrate", wish, XattrMode::Any, false).await;
            [opened.map(drop), moved].map(|done| done.map_err(|error| error.errno))
        };
        let (closed, refused) = (Err(Errno::EACCES), Err(Errno::EPERM));
        assert_eq!(tries(&[], 0).await, [closed, refused]);
        assert_eq!(tries(&[], CAP_DAC_OVERRIDE).await, [Ok(()), refused]);
        assert_eq!(tries(&[], CAP_FOWNER).await, [closed, Ok(())]);
        assert_eq!(tries(&[500], 0).await, [Ok(()), refused]);
        // Another process has the pid by now.
        assert_eq!(tries(&[], 0).await, [closed, refused]);
    });
}

#[test]
fn uncontended_files_are_cacheable_and_contended_ones_are_not() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap();
        one.getattr(dir.ino).await.unwrap();
        let absent = one.find(ROOT, dir.ino, b"x").await.unwrap();
        assert_eq!(absent, Found::Absent { cacheable: true });
        let known = one.getattr(dir.ino).await.unwrap();
        assert!(known.cacheable);
        two.create(ROOT, dir.ino, b"x", 0o100_644, 0, RDONLY).await.unwrap();
        let Found::Known(known) = one.find(ROOT, dir.ino, b"x").await.unwrap() else { panic!("it is there") };
        assert!(!known.name_cacheable, "the directory was changed by another session a moment ago");
        rt::sleep(Duration::from_secs(2)).await;
        assert!(one.lookup(ROOT, dir.ino, b"x").await.unwrap().name_cacheable);
    });
}

#[test]
fn an_open_file_deleted_elsewhere_stays_until_closed() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let file = one.create_file("f").await;
        one.fill(&file, 0, 3 * CHUNK, b'x').await;
        one.release(file.clone()).await;
        one.forget(file.ino(), 1);
        let ino = file.ino();
        let open = two.open_named("f", RDONLY).await;
        one.unlink(ROOT, InodeId::ROOT, b"f").await.unwrap();
        rt::sleep(Duration::from_secs(3)).await;
        assert_eq!(run_lengths(&two.read_all(&open).await), [(b'x', 3 * CHUNK)]);
        assert_eq!(two.getattr(ino).await.unwrap().nlink, 0);
        two.release(open).await;
        two.forget(ino, 1);
        rt::sleep(Duration::from_secs(30)).await;
        assert_eq!(one.getattr(ino).await.unwrap_err().errno, Errno::ESTALE);
        for store in &cluster.stores {
            assert_eq!(store.stat(ino.first_chunk_file()).await.unwrap().len, 0);
        }
    });
}

/// An application that has a directory open, or as its working directory, may request its
/// attributes until the end.
#[test]
fn a_removed_directory_has_attributes_while_the_kernel_refers_to_it() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"d", 0o750, 0).await.unwrap().ino;
        assert_eq!(two.lookup(ROOT, InodeId::ROOT, b"d").await.unwrap().ino, dir);
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        one.setattr(ROOT, dir, owner, None).await.unwrap();
        let last = two.getattr(dir).await.unwrap().attr;
        assert_eq!((last.uid, last.nlink), (7, 2));
        one.rmdir(ROOT, InodeId::ROOT, b"d").await.unwrap();
        one.forget(dir, 1);
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(two.getattr(dir).await.unwrap_err().errno, Errno::ESTALE, "the service has it still");
        let shown = two.removed_directory(dir).unwrap();
        assert_eq!(shown.attr, Attr { nlink: 0, ..last });
        assert!(!shown.cacheable && !shown.name_cacheable);
        assert_eq!(two.errno_for_missing(ROOT, dir), Errno::ENOENT, "for anything else");
        assert_eq!(one.removed_directory(dir), None, "the first kernel has forgotten it");
        two.forget(dir, 1);
        assert_eq!(two.removed_directory(dir), None);
        let file = one.create_file("f").await;
        assert_eq!(one.removed_directory(file.ino()), None, "a file");
        one.release(file).await;
    });
}

/// `O_EXCL`.
const EXCL: u32 = 0o200;

/// Replaces `f` with another file, whose content begins with this byte.
async fn replace(client: &Arc<client::Client>, byte: u8) {
    let (_, file) = client.create(ROOT, InodeId::ROOT, b"beside", 0o100_644, 0, RDWR).await.unwrap();
    client.fill(&file, 0, 2 * CHUNK, byte).await;
    let ino = file.ino();
    client.release(file).await;
    client.rename(ROOT, InodeId::ROOT, b"beside", InodeId::ROOT, b"f", RenameMode::Replace).await.unwrap();
    client.forget(ino, 1);
}

#[test]
fn a_file_replaced_between_lookup_and_open_is_found_on_retry() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        replace(&one, b'a').await;
        let first = two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap().ino;
        replace(&one, b'b').await;
        rt::sleep(Duration::from_millis(500)).await;
        let missed = two.open(ROOT, first, RDONLY).await.err().expect("the file is gone");
        assert_eq!(missed.errno, Errno::ESTALE);
        // The kernel gets this error, and tries again.
        assert_eq!(two.errno_for_missing(ROOT, first), Errno::ESTALE);
        let second = two.lookup(ROOT, InodeId::ROOT, b"f").await.unwrap().ino;
        replace(&one, b'c').await;
        rt::sleep(Duration::from_millis(500)).await;
        let file = two.open(ROOT, second, RDONLY).await.unwrap();
        assert_eq!(run_lengths(&two.read_all(&file).await), [(b'b', 2 * CHUNK)]);
        two.release(file).await;
        [first, second].into_iter().for_each(|ino| two.forget(ino, 1));
        // It isn't kept in use for longer.
        rt::sleep(Duration::from_secs(30)).await;
        assert_eq!(one.getattr(second).await.unwrap_err().errno, Errno::ESTALE);
        for store in &cluster.stores {
            assert_eq!(store.stat(second.first_chunk_file()).await.unwrap().len, 0);
        }
    });
}

#[test]
fn a_file_removed_at_once_is_created_once() {
    for seed in 1..20 {
        with_cluster_of_seed(seed, move |cluster| async move {
            let [one, two] = cluster.clients().await;
            let done = Rc::new(Cell::new(false));
            let (remover, over) = (two.clone(), done.clone());
            rt::spawn(async move {
                while !over.get() {
                    drop(remover.unlink(ROOT, InodeId::ROOT, b"f").await);
                }
            });
            let mut made = Vec::new();
            for _ in 0..100 {
                let flags = RDWR | EXCL;
                match one.create(ROOT, InodeId::ROOT, b"f", 0o100_644, 0, flags).await {
                    Ok((_, file)) => {
                        one.fill(&file, 0, 100, b'x').await;
                        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'x', 100)]);
                        made.push(file.ino());
                        one.release(file).await;
                        one.forget(*made.last().unwrap(), 1);
                    }
                    Err(error) => {
                        assert_eq!(error.errno, Errno::EEXIST, "seed {seed}: {error}");
                        rt::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            assert!(made.len() > 10, "seed {seed}: {} files were made", made.len());
            // Nothing of them remains.
            rt::sleep(Duration::from_secs(10)).await;
            done.set(true);
            for ino in made {
                assert_eq!(two.getattr(ino).await.unwrap_err().errno, Errno::ESTALE, "seed {seed}");
            }
        });
    }
}
