//! What a listing says is not requested again, until it may have changed.

use super::cluster::{RDWR, ROOT, with_cluster};
use bytes::Bytes;
use client::{Client, Listing};
use std::time::Duration;
use types::{Errno, InodeId};
use wire::XattrMode;

const ACL: &[u8] = b"system.posix_acl_access";
const LABEL: &[u8] = b"security.selinux";

/// Lists a directory with attributes, as the kernel does.
async fn list(client: &Client, dir: InodeId) -> Listing {
    let listing = client.readdir(dir, 0, 1000, true).await.unwrap();
    for attr in listing.entries.iter().filter_map(|entry| entry.attr.as_ref()) {
        client.remember_listed(attr, &listing);
    }
    listing
}

async fn set_label(client: &Client, ino: InodeId) {
    client.setxattr(ROOT, ino, LABEL, b"new", XattrMode::Any, false).await.unwrap();
}

async fn label(client: &Client, ino: InodeId) -> Result<Bytes, Errno> {
    client.getxattr(ROOT, ino, LABEL).await.map_err(|error| error.errno)
}

#[test]
fn attributes_that_do_not_exist_cost_no_request() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        for name in [b"a", b"b", b"c"] {
            let (_, file) = one.create(ROOT, dir, name, 0o100_644, 0, RDWR).await.unwrap();
            let ino = file.ino();
            one.flush(&file).await.unwrap();
            one.release(file).await;
            // Until `one` has given its lease back, it alone knows the attributes.
            two.getattr(ino).await.unwrap();
        }
        // For a second after a recall, a listing grants no lease.
        rt::sleep(Duration::from_secs(3)).await;
        let found = two.lookup(ROOT, InodeId::ROOT, b"d").await.unwrap().ino;
        let listing = list(&two, found).await;
        assert_eq!(listing.entries.len(), 3);
        let before = cluster.requests();
        for entry in &listing.entries {
            for name in [ACL, LABEL] {
                let absent = two.getxattr(ROOT, entry.ino, name).await;
                assert_eq!(absent.unwrap_err().errno, Errno::ENODATA);
            }
            assert!(two.listxattr(entry.ino).await.unwrap().is_empty());
        }
        assert_eq!(cluster.requests(), before, "the service was asked");
        // By another client, then by the same.
        let [a, b] = [listing.entries[0].ino, listing.entries[1].ino];
        set_label(&one, a).await;
        assert_eq!(label(&two, a).await.unwrap(), &b"new"[..]);
        set_label(&two, b).await;
        assert_eq!(label(&two, b).await.unwrap(), &b"new"[..]);
        assert_eq!(two.listxattr(b).await.unwrap(), [LABEL]);
        assert_eq!(label(&one, b).await.unwrap(), &b"new"[..]);
        two.removexattr(ROOT, b, LABEL).await.unwrap();
        assert_eq!(label(&two, b).await, Err(Errno::ENODATA));
    });
}

#[test]
fn the_end_of_a_directory_is_requested_once() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        let create = async |client: &Client, name: &str| {
            let (_, file) = client.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap();
            client.release(file).await;
        };
        for name in ["a", "b", "c", "d"] {
            create(&one, name).await;
        }
        assert_eq!(two.lookup(ROOT, InodeId::ROOT, b"d").await.unwrap().ino, dir);
        for round in 0..20 {
            let listing = list(&two, dir).await;
            let last = listing.entries.last().unwrap().cookie;
            let before = cluster.requests();
            let rest = two.readdir(dir, last, 1000, true).await.unwrap();
            assert!(rest.end && rest.entries.is_empty());
            // Right after a change of another client, there is no lease on the directory.
            if listing.names_cacheable {
                assert_eq!(cluster.requests(), before, "round {round}");
            }
            // Some of these are behind the last entry so far. A listing that begins later has all.
            create(if round % 2 == 0 { &two } else { &one }, &format!("new-{round}")).await;
            let mut names = Vec::new();
            let mut cookie = 0;
            loop {
                let page = two.readdir(dir, cookie, 2, true).await.unwrap();
                names.extend(page.entries.iter().map(|entry| entry.name.clone()));
                match page.entries.last() {
                    Some(entry) => cookie = entry.cookie,
                    None => break,
                }
            }
            assert_eq!(names.len(), 5 + round, "{names:?}");
        }
    });
}
