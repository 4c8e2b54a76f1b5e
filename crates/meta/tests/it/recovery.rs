//! Recovery after dead clients and a dead service.

use crate::support::{CHUNK_MTIME, Chunks, Client, bytes, errno, memory_writer, open_with};
use kv::{Durability, Memory};
use std::sync::Arc;
use types::{Errno, InodeId, Layout, SessionId, TargetId};
use wire::{FileInfo, MetaOp, MetaReply};

const MIB: u64 = 1 << 20;

struct Fixture {
    memory: Arc<Memory>,
    chunks: Arc<Chunks>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { memory: Arc::new(Memory::new()), chunks: Arc::default() }
    }

    /// The restarted service, with a client of `session`.
    async fn restart(&self, session: u64) -> Client {
        let writer = memory_writer(&self.memory, Durability::Process);
        Client::new(&open_with(writer, self.chunks.channels()).await, session)
    }

    /// Simulates writes of `lens` to the chunk files of a file.
    fn write(&self, ino: InodeId, layout: &Layout, lens: [u64; 3]) {
        for (group, len) in layout.groups.iter().zip(lens) {
            self.chunks.lens.lock().insert((TargetId(group.0), ino.first_chunk_file()), len);
        }
    }

    fn lens(&self, ino: InodeId, layout: &Layout) -> Vec<u64> {
        let lens = self.chunks.lens.lock();
        layout
            .groups
            .iter()
            .map(|group| lens.get(&(TargetId(group.0), ino.first_chunk_file())).copied().unwrap_or(0))
            .collect()
    }
}

async fn file(client: &Client, op: MetaOp) -> FileInfo {
    match client.call(op).await.unwrap() {
        MetaReply::File(file) => file,
        other => panic!("{other:?}"),
    }
}

/// A file that `client` has begun to write.
async fn begin(client: &Client, name: &str) -> (InodeId, Layout) {
    let ino = client.create(InodeId::ROOT, name).await.unwrap().ino;
    let layout = file(client, MetaOp::BeginWrite { ino }).await.layout.unwrap();
    assert_eq!(layout.groups.len(), 3);
    (ino, layout)
}

#[test]
fn the_size_of_a_file_whose_writer_died_comes_from_its_chunks() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let client = fixture.restart(1).await;
        let (ino, layout) = begin(&client, "a").await;
        client.call(MetaOp::DropInline { ino, size: 10, mtime: CHUNK_MTIME }).await.unwrap();
        fixture.write(ino, &layout, [MIB, 4096, 0]);
        let client = fixture.restart(2).await;
        assert_eq!(client.getattr(ino).await.unwrap().size, 10);
        let recovery = client.meta.recover().await.unwrap();
        assert_eq!((recovery.sizes_recovered, recovery.sizes_pending), (1, 0));
        let attr = client.getattr(ino).await.unwrap();
        assert_eq!((attr.size, attr.mtime), (MIB + 4096, CHUNK_MTIME));
        assert_eq!(attr.blocks, (MIB + 4096) / 512);
        assert_eq!(client.meta.recover().await.unwrap().sizes_recovered, 0);
    })
    .unwrap();
}

#[test]
fn a_pending_truncation_is_completed() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let client = fixture.restart(1).await;
        let (ino, layout) = begin(&client, "a").await;
        client.call(MetaOp::DropInline { ino, size: 3 * MIB, mtime: CHUNK_MTIME }).await.unwrap();
        fixture.write(ino, &layout, [MIB, MIB, MIB]);
        client.call(MetaOp::Truncate { ino, size: MIB + 100, kill_suid_sgid: false }).await.unwrap();
        let client = fixture.restart(2).await;
        assert_eq!(client.meta.recover().await.unwrap().sizes_recovered, 1);
        assert_eq!(fixture.lens(ino, &layout), [MIB, 100, 0]);
        assert_eq!(client.getattr(ino).await.unwrap().size, MIB + 100);
        assert_eq!(client.meta.recover().await.unwrap().sizes_recovered, 0);
    })
    .unwrap();
}

#[test]
fn an_unfinished_move_to_chunks_leaves_the_inline_content() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let client = fixture.restart(1).await;
        let ino = client.create(InodeId::ROOT, "a").await.unwrap().ino;
        let data = bytes("content");
        client
            .call(MetaOp::WriteInline { ino, offset: 0, data, kill_suid_sgid: false, at_end: false })
            .await
            .unwrap();
        let layout = file(&client, MetaOp::BeginWrite { ino }).await.layout.unwrap();
        fixture.write(ino, &layout, [4096, 0, 0]);
        let client = fixture.restart(2).await;
        client.meta.recover().await.unwrap();
        let found = file(&client, MetaOp::Open { ino, requested_lease: None }).await;
        assert_eq!((found.inline.unwrap(), found.attr.size), (bytes("content"), 7));
        assert!(fixture.chunks.lens.lock().is_empty());
    })
    .unwrap();
}

#[test]
fn size_recovery_waits_for_a_target_that_is_down() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let client = fixture.restart(1).await;
        let (ino, layout) = begin(&client, "a").await;
        client.call(MetaOp::DropInline { ino, size: 0, mtime: CHUNK_MTIME }).await.unwrap();
        fixture.write(ino, &layout, [0, 5, 0]);
        fixture.chunks.down.lock().push(TargetId(layout.groups[1].0));
        let client = fixture.restart(2).await;
        assert_eq!(client.meta.recover().await.unwrap().sizes_pending, 1);
        fixture.chunks.down.lock().clear();
        assert_eq!(client.meta.recover().await.unwrap().sizes_recovered, 1);
        assert_eq!(client.getattr(ino).await.unwrap().size, MIB + 5);
    })
    .unwrap();
}

#[test]
fn the_end_of_a_session_recovers_and_reclaims_its_files() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let one = fixture.restart(1).await;
        let two = Client::new(&one.meta, 2);
        let (written, layout) = begin(&one, "by one").await;
        one.call(MetaOp::DropInline { ino: written, size: 0, mtime: CHUNK_MTIME }).await.unwrap();
        fixture.write(written, &layout, [7, 0, 0]);
        let of_one = one.create(InodeId::ROOT, "of one").await.unwrap().ino;
        let of_two = one.create(InodeId::ROOT, "of two").await.unwrap().ino;
        one.unlink(InodeId::ROOT, "of one").await.unwrap();
        two.unlink(InodeId::ROOT, "of two").await.unwrap();
        let recovery = two.meta.end_session(SessionId(1)).await.unwrap();
        assert_eq!((recovery.reclaimed, recovery.sizes_recovered), (1, 1));
        assert_eq!(two.getattr(written).await.unwrap().size, 7);
        assert_eq!(errno(two.getattr(of_one).await), Errno::ESTALE);
        assert_eq!(two.getattr(of_two).await.unwrap().nlink, 0);
        let recovery = fixture.restart(3).await.meta.recover().await.unwrap();
        assert_eq!(recovery.reclaimed, 1);
    })
    .unwrap();
}

#[test]
fn chunks_of_reclaimed_files_are_deleted_in_the_background_once_their_target_answers() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let client = fixture.restart(1).await;
        let mut doomed = Vec::new();
        for i in 0..200 {
            let name = i.to_string();
            let (ino, layout) = begin(&client, &name).await;
            fixture.write(ino, &layout, [1, 2, 3]);
            client.unlink(InodeId::ROOT, &name).await.unwrap();
            client.call(MetaOp::Reclaim { ino, others: Vec::new() }).await.unwrap();
            doomed.push(ino);
        }
        fixture.chunks.down.lock().push(TargetId(2));
        assert_eq!(errno(client.meta.reap().await), Errno::ETIMEDOUT);
        assert!(fixture.chunks.lens.lock().keys().all(|(target, _)| *target == TargetId(2)));
        fixture.chunks.down.lock().clear();
        // A restart finds them by itself.
        let client = fixture.restart(2).await;
        client.meta.recover().await.unwrap();
        rt::spawn(client.meta.clone().background());
        while client.meta.stats().reaped < doomed.len() as u64 {
            rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(fixture.chunks.lens.lock().is_empty());
        client.meta.stop();
        assert!(client.meta.reap().await.is_ok());
        assert_eq!(client.meta.stats().reaped, doomed.len() as u64);
    })
    .unwrap();
}

#[test]
fn the_store_is_synced_periodically() {
    rt::block_on(async {
        let fixture = Fixture::new();
        let client = fixture.restart(1).await;
        rt::spawn(client.meta.clone().background());
        client.create(InodeId::ROOT, "a").await.unwrap();
        while fixture.memory.unsynced() > 0 {
            rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        client.meta.stop();
        fixture.memory.crash(0);
        assert_eq!(fixture.restart(2).await.list(InodeId::ROOT).await, ["a"]);
    })
    .unwrap();
}
