//! A file is truncated while the metadata service is replaced, so that the answer arrives after the
//! lease has ended.

use super::cluster::{Application, CHUNK, Cluster, RDWR, run_lengths, with_cluster};
use client::{Client, Handle};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 3 * CHUNK;
const LEFT: usize = 10;

/// A client whose truncation reaches the next metadata service, and is answered when all earlier
/// leases have ended.
async fn shortened_late(cluster: &Cluster) -> (Arc<Client>, Arc<Handle>) {
    let (client, way) = cluster.client_with_cuttable_meta().await;
    let file = client.create_file("f").await;
    client.fill(&file, 0, SIZE, b'x').await;
    client.fsync(&file, false).await.unwrap();
    way.cut();
    let done = Rc::new(Cell::new(false));
    let (told, by, ino) = (done.clone(), client.clone(), file.ino());
    rt::spawn(async move {
        by.set_size(ino, LEFT).await;
        told.set(true);
    });
    rt::sleep(Duration::from_millis(100)).await;
    cluster.restart_metadata().await;
    way.restore();
    while !done.get() {
        rt::sleep(Duration::from_millis(10)).await;
    }
    (client, file)
}

fn as_it_should_be(bytes: &[u8]) {
    assert_eq!(run_lengths(bytes), [(b'x', LEFT), (0, SIZE - LEFT)]);
}

#[test]
fn truncated_data_does_not_reappear_when_the_same_client_extends_the_file() {
    with_cluster(|cluster| async move {
        let (client, file) = shortened_late(&cluster).await;
        client.fill(&file, SIZE - 1, 1, 0).await;
        as_it_should_be(&client.read_all(&file).await);
    });
}

#[test]
fn truncated_data_does_not_reappear_when_another_client_extends_the_file() {
    with_cluster(|cluster| async move {
        let other = cluster.client().await;
        let (client, file) = shortened_late(&cluster).await;
        let theirs = other.open_named("f", RDWR).await;
        other.fill(&theirs, SIZE - 1, 1, 0).await;
        as_it_should_be(&other.read_all(&theirs).await);
        as_it_should_be(&client.read_all(&file).await);
    });
}
