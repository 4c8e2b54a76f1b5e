//! `copy_file_range` that fails half-way.

use super::cluster::{TARGETS, with_cluster};
use types::{Errno, TargetId};
use wire::StorageOp;

const MIB: usize = 1 << 20;

#[test]
fn a_copy_that_fails_in_its_second_buffer_reports_the_first() {
    with_cluster(|cluster| async move {
        let (_, from) = cluster.create("from").await;
        cluster.fill(&from, 0, MIB, b'a').await.unwrap();
        cluster.fill(&from, MIB, MIB, b'b').await.unwrap();
        let (_, to) = cluster.create("to").await;
        let second_buffer = (MIB / TARGETS as usize) as u64;
        cluster.storage.refuse_next(Errno::ENOSPC, move |request| {
            request.target == TargetId(2)
                && matches!(request.op, StorageOp::Write { offset, .. } if offset >= second_buffer)
        });
        let copied = cluster.client.copy_file_range(&from, 0, &to, 0, 2 * MIB as u64).await;
        assert!(cluster.storage.has_refused_all());
        assert_eq!(copied.unwrap(), MIB as u64);
        assert_eq!(cluster.runs(&to).await, [(b'a', MIB)]);
    });
}

#[test]
fn a_copy_that_fails_in_its_first_buffer_fails() {
    with_cluster(|cluster| async move {
        let (_, from) = cluster.create("from").await;
        cluster.fill(&from, 0, MIB, b'a').await.unwrap();
        let (_, to) = cluster.create("to").await;
        cluster.storage.refuse_next(Errno::ENOSPC, |request| matches!(request.op, StorageOp::Write { .. }));
        let copied = cluster.client.copy_file_range(&from, 0, &to, 0, MIB as u64).await;
        assert_eq!(copied.unwrap_err().errno, Errno::ENOSPC);
    });
}
