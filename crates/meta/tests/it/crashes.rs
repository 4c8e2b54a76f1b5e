//! Acknowledged changes survive.

use crate::support::{Client, errno, memory_writer, open};
use kv::{Durability, Memory};
use std::sync::Arc;
use types::{Errno, InodeId};
use wire::MetaOp;

#[test]
fn a_crash_of_the_machine_takes_back_only_the_end_of_what_was_not_synced() {
    rt::block_on(async {
        for keep in [0, 1, 3, 100] {
            let memory = Arc::new(Memory::new());
            let client = Client::new(&open(memory_writer(&memory, Durability::Process)).await, 1);
            client.create(InodeId::ROOT, "synced").await.unwrap();
            client.call(MetaOp::Sync).await.unwrap();
            for i in 0..5 {
                client.create(InodeId::ROOT, &format!("{i}")).await.unwrap();
            }
            memory.crash(keep);
            let client = Client::new(&open(memory_writer(&memory, Durability::Process)).await, 1);
            let mut expected: Vec<String> = (0..keep.min(5)).map(|i| i.to_string()).collect();
            expected.push("synced".into());
            assert_eq!(client.list(InodeId::ROOT).await, expected);
        }
    })
    .unwrap();
}

#[test]
fn a_strict_service_loses_nothing() {
    rt::block_on(async {
        let memory = Arc::new(Memory::new());
        let client = Client::new(&open(memory_writer(&memory, Durability::Disk)).await, 1);
        let dir = client.mkdir(InodeId::ROOT, "d").await.unwrap().ino;
        for i in 0..20 {
            client.create(dir, &i.to_string()).await.unwrap();
        }
        memory.crash(0);
        let client = Client::new(&open(memory_writer(&memory, Durability::Disk)).await, 1);
        assert_eq!(client.list(dir).await.len(), 20);
    })
    .unwrap();
}

#[test]
fn a_full_device_is_reported_and_committed_data_stays_readable() {
    rt::block_on(async {
        let memory = Arc::new(Memory::new());
        let client = Client::new(&open(memory_writer(&memory, Durability::Process)).await, 1);
        client.create(InodeId::ROOT, "before").await.unwrap();
        client.lookup(InodeId::ROOT, "before").await.unwrap();
        memory.fail_with(Memory::no_space());
        let error = client.create(InodeId::ROOT, "after").await.unwrap_err();
        assert_eq!(error.errno, Errno::ENOSPC);
        assert!(error.message.contains("memory") && !error.hint.is_empty(), "{error}");
        // A name that could not be committed is not visible.
        assert_eq!(errno(client.lookup(InodeId::ROOT, "after").await), Errno::ENOSPC);
        client.lookup(InodeId::ROOT, "before").await.unwrap();
        assert_eq!(errno(client.create(InodeId::ROOT, "more").await), Errno::ENOSPC);
    })
    .unwrap();
}
