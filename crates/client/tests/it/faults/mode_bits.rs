//! Writes that have to clear setuid and setgid.

use super::cluster::{CHUNK, Cluster, with_cluster};
use client::{Handle, WriteOptions};
use rt::IoBuf;
use std::sync::Arc;
use types::{Credentials, SetAttr};
use wire::MetaOp;

/// Writes as the kernel does for an unprivileged application.
async fn write(cluster: &Cluster, file: &Arc<Handle>) {
    let how = WriteOptions { kill_suid_sgid: true, ..WriteOptions::default() };
    let data = IoBuf::from_slice(&vec![b'a'; CHUNK]);
    cluster.client.write(file, 0, data, how).await.unwrap();
}

fn setattrs(cluster: &Cluster) -> usize {
    cluster.meta.succeeded(|request| matches!(request.op, MetaOp::Setattr { .. }))
}

#[test]
fn writes_without_setuid_send_no_mode_change() {
    with_cluster(|cluster| async move {
        let (_, file) = cluster.create("f").await;
        for _ in 0..3 {
            write(&cluster, &file).await;
        }
        assert_eq!(setattrs(&cluster), 0);
    });
}

#[test]
fn only_the_first_write_clears_setuid() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        write(&cluster, &file).await;
        let set = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
        let attr = cluster.client.setattr(Credentials::default(), ino, set, None).await.unwrap();
        assert_eq!(attr.mode & 0o7777, 0o6755);
        let before = setattrs(&cluster);
        for _ in 0..3 {
            write(&cluster, &file).await;
        }
        assert_eq!(setattrs(&cluster) - before, 1);
        assert_eq!(cluster.client.getattr(ino).await.unwrap().mode & 0o7777, 0o755);
    });
}

#[test]
fn setuid_from_before_the_open_is_cleared() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        write(&cluster, &file).await;
        cluster.client.release(file).await;
        let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        cluster.client.setattr(Credentials::default(), ino, set, None).await.unwrap();
        let before = setattrs(&cluster);
        let file = cluster.open(ino).await;
        write(&cluster, &file).await;
        write(&cluster, &file).await;
        assert_eq!(setattrs(&cluster) - before, 1);
        assert_eq!(cluster.client.getattr(ino).await.unwrap().mode & 0o7777, 0o755);
    });
}
