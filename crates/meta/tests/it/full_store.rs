//! A store whose disk is nearly full still allows all removals.

use crate::support;
use crate::support::{Client, bytes, create, errno, open};
use bytes::Bytes;
use kv::{Batch, Durability, Engine, KvError, Memory, Outcome, Pair, Writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use types::{Errno, InodeId};
use wire::{MetaOp, XattrMode};

const ROOT: InodeId = InodeId::ROOT;

/// An engine on a disk that is full when the test sets that.
#[derive(Default)]
struct OnDisk {
    memory: Memory,
    is_full: AtomicBool,
}

impl Engine for OnDisk {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.memory.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, KvError> {
        self.memory.scan(from, to, limit)
    }

    fn apply(&self, batches: &[Batch]) -> Result<Vec<Outcome>, KvError> {
        self.memory.apply(batches)
    }

    fn persist(&self) -> Result<(), KvError> {
        self.memory.persist()
    }

    fn has_room(&self) -> bool {
        !self.is_full.load(Relaxed)
    }

    fn location(&self) -> String {
        "/the/store".into()
    }
}

fn with_disk<F: Future<Output = ()> + 'static>(test: impl FnOnce(Client, Arc<OnDisk>) -> F + 'static) {
    rt::block_on(async move {
        let disk = Arc::new(OnDisk::default());
        let writer = Arc::new(Writer::new(disk.clone(), Durability::Process));
        test(Client::new(&open(writer).await, 1), disk).await;
    })
    .unwrap();
}

fn write_inline(ino: InodeId) -> MetaOp {
    MetaOp::WriteInline { ino, offset: 0, data: bytes("content"), kill_suid_sgid: false, at_end: false }
}

fn set_xattr(ino: InodeId) -> MetaOp {
    let (name, value) = (bytes("user.a"), bytes("value"));
    MetaOp::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }
}

#[test]
fn nothing_that_grows_is_begun_on_a_full_disk() {
    with_disk(|client, disk| async move {
        let ino = client.create(ROOT, "file").await.unwrap().ino;
        disk.is_full.store(true, Relaxed);
        let growing = [
            create(ROOT, "new"),
            MetaOp::Mkdir { parent: ROOT, name: bytes("dir"), mode: 0o755, umask: 0 },
            MetaOp::Symlink { parent: ROOT, name: bytes("link"), target: bytes("file") },
            MetaOp::Tmpfile { parent: ROOT, mode: 0o100644, umask: 0 },
            MetaOp::Link { ino, parent: ROOT, name: bytes("second") },
            set_xattr(ino),
            write_inline(ino),
        ];
        for op in growing {
            let error = client.call(op.clone()).await.unwrap_err();
            assert_eq!(error.errno, Errno::ENOSPC, "{op:?}");
            assert!(error.to_string().contains("/the/store"), "{error}");
        }
        assert_eq!(client.list(ROOT).await, ["file"]);
        disk.is_full.store(false, Relaxed);
        client.create(ROOT, "new").await.unwrap();
        client.call(write_inline(ino)).await.unwrap();
    });
}

#[test]
fn what_frees_space_goes_on_on_a_full_disk() {
    with_disk(|client, disk| async move {
        let ino = client.create(ROOT, "file").await.unwrap().ino;
        client.call(write_inline(ino)).await.unwrap();
        client.call(set_xattr(ino)).await.unwrap();
        client.mkdir(ROOT, "dir").await.unwrap();
        disk.is_full.store(true, Relaxed);
        client.call(MetaOp::RemoveXattr { ino, name: bytes("user.a") }).await.unwrap();
        client.call(MetaOp::Truncate { ino, size: 0, kill_suid_sgid: false }).await.unwrap();
        client.rename(ROOT, "file", ROOT, "renamed").await.unwrap();
        client.unlink(ROOT, "renamed").await.unwrap();
        client.call(MetaOp::Reclaim { ino, others: Vec::new() }).await.unwrap();
        client.call(MetaOp::Rmdir { parent: ROOT, name: bytes("dir") }).await.unwrap();
        assert_eq!(client.list(ROOT).await, Vec::<String>::new());
        // As for every deleted inode.
        assert_eq!(errno(client.getattr(ino).await), Errno::ESTALE);
    });
}

#[test]
fn other_refusals_come_before_that_of_a_full_disk() {
    with_disk(|client, disk| async move {
        let file = client.create(ROOT, "file").await.unwrap();
        disk.is_full.store(true, Relaxed);
        assert_eq!(errno(client.create(ROOT, "file").await), Errno::EEXIST);
        // This create only opens an existing file.
        let op = MetaOp::Create {
            parent: ROOT,
            name: bytes("file"),
            mode: 0o100644,
            umask: 0,
            rdev: 0,
            exclusive: false,
            requested_lease: None,
        };
        assert_eq!(support::entry(client.call(op).await).unwrap().ino, file.ino);
    });
}
