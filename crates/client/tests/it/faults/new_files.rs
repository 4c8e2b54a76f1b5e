//! State of a file that the client knows because it has just created it.

use super::cluster::with_cluster;
use types::{Credentials, Errno};
use wire::XattrMode;

const CAPABILITY: &[u8] = b"security.capability";

#[test]
fn a_small_new_file_costs_two_requests() {
    with_cluster(|cluster| async move {
        let before = cluster.meta.succeeded(|_| true);
        let (ino, file) = cluster.create("f").await;
        let missing = cluster.client.getxattr(Credentials::default(), ino, CAPABILITY).await;
        assert_eq!(missing.unwrap_err().errno, Errno::ENODATA);
        cluster.fill(&file, 0, 100, b'a').await.unwrap();
        assert_eq!(cluster.meta.succeeded(|_| true) - before, 2);
        assert_eq!(cluster.runs(&file).await, [(b'a', 100)]);
    });
}

#[test]
fn an_existing_file_is_opened_unchanged() {
    with_cluster(|cluster| async move {
        let (_, file) = cluster.create("f").await;
        cluster.fill(&file, 0, 100, b'a').await.unwrap();
        cluster.client.release(file).await;
        let (_, again) = cluster.create("f").await;
        assert_eq!(cluster.runs(&again).await, [(b'a', 100)]);
    });
}

#[test]
fn an_attribute_of_a_new_file_is_found() {
    with_cluster(|cluster| async move {
        let (ino, _file) = cluster.create("f").await;
        let root = Credentials::default();
        cluster.client.setxattr(root, ino, CAPABILITY, b"value", XattrMode::Any, false).await.unwrap();
        assert_eq!(cluster.client.getxattr(root, ino, CAPABILITY).await.unwrap(), "value");
    });
}

#[test]
fn an_inline_file_reads_as_it_was_written_piece_by_piece() {
    with_cluster(|cluster| async move {
        let (ino, file) = cluster.create("f").await;
        cluster.fill(&file, 10, 10, b'b').await.unwrap();
        cluster.fill(&file, 0, 5, b'a').await.unwrap();
        cluster.fill(&file, 18, 10, b'c').await.unwrap();
        let expected = [(b'a', 5), (0, 5), (b'b', 8), (b'c', 10)];
        assert_eq!(cluster.runs(&file).await, expected);
        cluster.client.release(file).await;
        assert_eq!(cluster.runs(&cluster.open(ino).await).await, expected);
        cluster.fill(&cluster.open(ino).await, 0, 40, b'd').await.unwrap();
        assert_eq!(cluster.runs(&cluster.open(ino).await).await, [(b'd', 40)]);
    });
}
