//! Commits that another core led before the command that enqueued them continued.

use crate::support::{Client, memory_writer, on_cores, open};
use kv::{Durability, Memory};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::InodeId;

const CORES: usize = 4;
const FILES: usize = 5_000;

/// The store takes no time, so that commits complete about as soon as they are queued.
#[test]
fn commits_led_by_other_cores_give_no_inode_number_twice() {
    let meta = rt::block_on(open(memory_writer(&Arc::new(Memory::new()), Durability::Process))).unwrap();
    let inos = Arc::new(parking_lot::Mutex::new(BTreeSet::new()));
    {
        let (meta, inos) = (meta.clone(), inos.clone());
        on_cores(CORES, move |core| {
            let (client, inos) = (Client::new(&meta, core as u64 + 1), inos.clone());
            async move {
                let mut made = Vec::with_capacity(FILES);
                for i in 0..FILES {
                    let name = format!("{core}-{i}");
                    let ino = client.create(InodeId::ROOT, &name).await.unwrap().ino;
                    // A cached negative entry must not outlive the create.
                    assert_eq!(client.lookup(InodeId::ROOT, &name).await.unwrap().ino, ino);
                    made.push(ino);
                }
                inos.lock().extend(made);
            }
        });
    }
    assert_eq!(inos.lock().len(), CORES * FILES, "an inode number was given twice");
    let names = rt::block_on(async move { Client::new(&meta, 9).list(InodeId::ROOT).await }).unwrap();
    assert_eq!(names.len(), CORES * FILES);
}
