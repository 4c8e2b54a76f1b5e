//! A service that was replaced changes nothing.

use crate::support::{Client, Store, errno, memory_writer, open};
use kv::{Durability, Memory};
use std::sync::Arc;
use types::{Errno, InodeId, Refusal};

#[test]
fn a_replaced_service_is_refused_and_the_new_one_goes_on() {
    let store = Store::new();
    rt::block_on(async move {
        let writer = store.writer();
        let first = Client::new(&open(writer.clone()).await, 1);
        first.create(InodeId::ROOT, "before").await.unwrap();
        let second = Client::new(&open(writer).await, 2);
        assert_eq!(second.list(InodeId::ROOT).await, ["before"]);
        // The first service notices it at its next change, and then refuses even reads.
        assert_eq!(errno(first.create(InodeId::ROOT, "fenced").await), Refusal::PartitionNotServed);
        assert_eq!(errno(first.lookup(InodeId::ROOT, "before").await), Refusal::PartitionNotServed);
        assert_eq!(errno(first.mkdir(InodeId::ROOT, "fenced too").await), Refusal::PartitionNotServed);
        second.create(InodeId::ROOT, "after").await.unwrap();
        assert_eq!(second.list(InodeId::ROOT).await, ["after", "before"]);
    })
    .unwrap();
}

#[test]
fn uncommitted_writes_of_a_replaced_service_are_not_visible() {
    rt::block_on(async {
        let memory = Arc::new(Memory::new());
        let first = Client::new(&open(memory_writer(&memory, Durability::Process)).await, 1);
        let second = Client::new(&open(memory_writer(&memory, Durability::Process)).await, 2);
        let (a, b) = (first.create(InodeId::ROOT, "x"), first.create(InodeId::ROOT, "x"));
        let answers = rt::join_all(vec![a, b]).await;
        // The second command saw the first one's name before its commit turned out to be lost.
        assert!(answers.into_iter().all(|answer| errno(answer) == Refusal::PartitionNotServed));
        assert_eq!(errno(second.lookup(InodeId::ROOT, "x").await), Errno::ENOENT);
    })
    .unwrap();
}
