//! Several cores at once.

use crate::support;
use crate::support::{Client, Store, errno, on_cores, open};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use types::{Errno, InodeId};
use wire::{MetaOp, MetaReply};

const CORES: usize = 4;

#[test]
fn creates_of_several_cores_in_one_directory_are_all_there() {
    let store = Store::new();
    let writer = store.writer();
    let meta = rt::block_on(open(writer.clone())).unwrap();
    let inos = Arc::new(parking_lot::Mutex::new(BTreeSet::new()));
    {
        let (meta, inos) = (meta.clone(), inos.clone());
        on_cores(CORES, move |core| {
            let (client, inos) = (Client::new(&meta, core as u64 + 1), inos.clone());
            async move {
                for i in 0..250 {
                    let attr = client.create(InodeId::ROOT, &format!("{core}-{i}")).await.unwrap();
                    assert!(inos.lock().insert(attr.ino), "an inode number was given twice");
                    // An acknowledged create is visible to all clients.
                    assert_eq!(
                        client.lookup(InodeId::ROOT, &format!("{core}-{i}")).await.unwrap().ino,
                        attr.ino
                    );
                }
            }
        });
    }
    let stats = meta.stats();
    assert_eq!(stats.commands, (CORES * 500) as u64);
    assert_eq!(stats.refused, 0);
    drop(meta);
    drop(writer);
    let names = rt::block_on(async move {
        let client = Client::new(&open(store.writer()).await, 9);
        client.list(InodeId::ROOT).await
    });
    assert_eq!(names.unwrap().len(), CORES * 250);
}

#[test]
fn one_of_several_exclusive_creates_wins() {
    let store = Store::new();
    let meta = rt::block_on(open(store.writer())).unwrap();
    let won = Arc::new(AtomicUsize::new(0));
    {
        let won = won.clone();
        on_cores(CORES, move |core| {
            let (client, won) = (Client::new(&meta, core as u64 + 1), won.clone());
            async move {
                for i in 0..200 {
                    match client.create(InodeId::ROOT, &i.to_string()).await {
                        Ok(_) => _ = won.fetch_add(1, Relaxed),
                        Err(error) => assert_eq!(error.errno, Errno::EEXIST),
                    }
                }
            }
        });
    }
    assert_eq!(won.load(Relaxed), 200);
}

#[test]
fn renames_across_partitions_lose_and_double_nothing() {
    let store = Store::new();
    let writer = store.writer();
    let (meta, dirs) = rt::block_on(async move {
        let meta = open(writer).await;
        let client = Client::new(&meta, 1);
        let mut dirs = Vec::new();
        for i in 0..6 {
            dirs.push(client.mkdir(InodeId::ROOT, &format!("dir {i}")).await.unwrap().ino);
        }
        for core in 0..CORES {
            for file in 0..5 {
                client.create(dirs[file % dirs.len()], &format!("{core}-{file}")).await.unwrap();
            }
        }
        (meta, dirs)
    })
    .unwrap();
    let partitions: BTreeSet<_> = dirs.iter().map(|dir| dir.partition()).collect();
    assert!(partitions.len() > 1, "the names above hash to one partition");
    {
        let (meta, dirs) = (meta.clone(), dirs.clone());
        // Every core moves its own files in cycles, in another direction than its neighbours.
        on_cores(CORES, move |core| {
            let (client, dirs) = (Client::new(&meta, core as u64 + 1), dirs.clone());
            async move {
                let mut at: Vec<usize> = (0..5).map(|file| file % dirs.len()).collect();
                for step in 0..60 {
                    let file = step % at.len();
                    let name = format!("{core}-{file}");
                    let to = (at[file] + 1 + core + step / 7) % dirs.len();
                    client.rename(dirs[at[file]], &name, dirs[to], &name).await.unwrap();
                    at[file] = to;
                }
            }
        });
    }
    rt::block_on(async move {
        let client = Client::new(&meta, 1);
        let mut all = Vec::new();
        for dir in dirs {
            for name in client.list(dir).await {
                assert_eq!(client.lookup(dir, &name).await.unwrap().nlink, 1);
                all.push(name);
            }
        }
        all.sort();
        let mut expected: Vec<String> =
            (0..CORES).flat_map(|core| (0..5).map(move |file| format!("{core}-{file}"))).collect();
        expected.sort();
        assert_eq!(all, expected);
    })
    .unwrap();
}

#[test]
fn directories_made_and_removed_by_several_cores_keep_link_counts() {
    let store = Store::new();
    let meta = rt::block_on(open(store.writer())).unwrap();
    {
        let meta = meta.clone();
        on_cores(CORES, move |core| {
            let client = Client::new(&meta, core as u64 + 1);
            async move {
                for i in 0..60 {
                    let name = format!("{core}-{i}");
                    let dir = client.mkdir(InodeId::ROOT, &name).await.unwrap().ino;
                    client.mkdir(dir, "below").await.unwrap();
                    let rmdir = |parent, name: &str| MetaOp::Rmdir { parent, name: support::bytes(name) };
                    assert_eq!(errno(client.call(rmdir(InodeId::ROOT, &name)).await), Errno::ENOTEMPTY);
                    client.call(rmdir(dir, "below")).await.unwrap();
                    if i % 2 == 0 {
                        client.call(rmdir(InodeId::ROOT, &name)).await.unwrap();
                    }
                }
            }
        });
    }
    rt::block_on(async move {
        let client = Client::new(&meta, 1);
        let left = client.list(InodeId::ROOT).await.len();
        assert_eq!(left, CORES * 30);
        assert_eq!(client.getattr(InodeId::ROOT).await.unwrap().nlink as usize, 2 + left);
        assert!(matches!(client.call(MetaOp::Sync).await.unwrap(), MetaReply::Unit));
    })
    .unwrap();
}
