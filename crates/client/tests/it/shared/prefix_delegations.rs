//! Name-prefix delegations in a directory that several clients use.

use super::async_creates::{close, create_is_async, lookup_or_absent, make, names, open};
use super::cluster::{Application, RDWR, ROOT, with_cluster, with_cluster_of_seed};
use super::partitioned_cluster::{FIRST, SECOND, with_partitioned_cluster};
use super::reference_directory::ReferenceDirectory;
use client::{Client, Found};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::{Errno, InodeId, PartitionId, SetAttr};
use wire::RenameMode;

/// Shorter than an unused delegation is kept.
const SOON: Duration = Duration::from_millis(10);
/// Longer than an unused delegation is kept.
const LATER: Duration = Duration::from_secs(5);

/// Creates a directory in the root that all clients know.
async fn shared_directory(client: &Arc<Client>) -> InodeId {
    client.mkdir(ROOT, InodeId::ROOT, b"shared", 0o755, 0).await.unwrap().ino
}

/// Creates files with this prefix until the client has its delegation; returns the number of the
/// next one.
async fn obtain_prefix(client: &Arc<Client>, dir: InodeId, prefix: &str, from: u32) -> u32 {
    for number in from..from + 10_000 {
        let name = format!("{prefix}{number}");
        lookup_or_absent(client, dir, &name).await;
        let (unasked, file) = create_is_async(client, dir, &name).await;
        close(client, file).await.unwrap();
        if unasked {
            return number + 1;
        }
        rt::sleep(SOON).await;
    }
    panic!("the client never gets the names to itself");
}

async fn is_absent(client: &Arc<Client>, dir: InodeId, name: &str) -> bool {
    matches!(client.find(ROOT, dir, name.as_bytes()).await.unwrap(), Found::Absent { .. })
}

#[test]
fn two_clients_fill_a_directory_with_one_request_for_each_file() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        let mut next = [0, 0];
        for _ in 0..2 {
            // In turns, so that each has used it after the other.
            for (client, (prefix, next)) in
                [&one, &two].into_iter().zip(["a.", "b."].into_iter().zip(&mut next))
            {
                *next = obtain_prefix(client, dir, prefix, *next).await;
            }
        }
        let before = cluster.requests();
        for turn in 0..40 {
            for (client, (prefix, next)) in [&one, &two].into_iter().zip(["a.", "b."].into_iter().zip(next)) {
                let name = format!("{prefix}{}", next + turn);
                lookup_or_absent(client, dir, &name).await;
                let (unasked, file) = create_is_async(client, dir, &name).await;
                assert!(unasked, "{name}");
                client.fill(&file, 0, 100, b'x').await;
                close(client, file).await.unwrap();
            }
        }
        // More inode numbers are requested now and then.
        let asked = cluster.requests() - before;
        assert!((80..86).contains(&asked), "{asked} requests for 80 files");
        assert_eq!(names(&two, dir).await.len() as u32, next[0] + next[1] + 80);
    });
}

#[test]
fn directories_are_made_with_one_request_each_as_well() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        make(&two, dir, "b").await;
        let made = async |number: u32| {
            let name = format!("rank1.{number}");
            assert!(is_absent(&one, dir, &name).await);
            one.mkdir(ROOT, dir, name.as_bytes(), 0o755, 0).await.unwrap();
        };
        for number in 0..8 {
            made(number).await;
            rt::sleep(SOON).await;
        }
        let before = cluster.requests();
        for number in 8..28 {
            made(number).await;
        }
        assert_eq!(cluster.requests() - before, 20);
        assert!(!is_absent(&two, dir, "rank1.20").await);
    });
}

#[test]
fn clients_find_each_others_new_files() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        make(&two, dir, "b").await;
        let next = obtain_prefix(&one, dir, "a.", 0).await;
        let name = |n: u32| format!("a.{}", next + n);
        // A pending file that no other client has looked up.
        let (unasked, file) = create_is_async(&one, dir, &name(0)).await;
        assert!(unasked);
        assert!(!is_absent(&two, dir, &name(0)).await);
        close(&one, file).await.unwrap();
        // The other client has got the lease, and adds a name with the same prefix.
        let theirs = make(&two, dir, &name(1)).await;
        close(&two, theirs).await.unwrap();
        assert!(!is_absent(&one, dir, &name(1)).await);
        assert_eq!(names(&one, dir).await, names(&two, dir).await);
    });
}

#[test]
fn listings_attributes_and_renames_include_pending_files() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        make(&two, dir, "b").await;
        let mut next = 0;
        for case in 0..4 {
            rt::sleep(Duration::from_secs(70)).await;
            next = obtain_prefix(&one, dir, "a.", next).await;
            let name = format!("a.{next}");
            lookup_or_absent(&one, dir, &name).await;
            let before = two.getattr(InodeId::ROOT).await.unwrap().mtime;
            rt::sleep(SOON).await;
            let (unasked, file) = create_is_async(&one, dir, &name).await;
            assert!(unasked);
            match case {
                0 => assert!(names(&two, dir).await.contains(&name)),
                1 => assert!(two.getattr(dir).await.unwrap().mtime > before),
                2 => {
                    let renamed =
                        two.rename(ROOT, dir, name.as_bytes(), dir, b"c", RenameMode::Replace).await;
                    renamed.unwrap();
                    assert!(is_absent(&one, dir, &name).await);
                }
                _ => {
                    let error = two.rmdir(ROOT, InodeId::ROOT, b"shared").await.unwrap_err();
                    assert_eq!(error.errno, Errno::ENOTEMPTY);
                }
            }
            close(&one, file).await.unwrap();
            next += 1;
        }
    });
}

#[test]
fn an_unused_prefix_delegation_does_not_block_caching() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        make(&two, dir, "b").await;
        obtain_prefix(&one, dir, "a.", 0).await;
        // A client that adds a name with another prefix causes no recall, and may cache attributes
        // if no client holds a prefix.
        let trusted = async |name: &str| {
            let file = make(&two, dir, name).await;
            close(&two, file).await.unwrap();
            matches!(two.find(ROOT, dir, b"absent").await.unwrap(), Found::Absent { cacheable: true })
        };
        rt::sleep(SOON).await;
        assert!(!trusted("c").await, "names come and go");
        rt::sleep(LATER).await;
        assert!(trusted("d").await, "the range is still held");
    });
}

#[test]
fn existing_names_are_known_and_a_directory_change_ends_async_creates() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        for n in 5000..5100 {
            let file = make(&two, dir, &format!("a.{n}")).await;
            close(&two, file).await.unwrap();
        }
        rt::sleep(LATER).await;
        let next = obtain_prefix(&one, dir, "a.", 0).await;
        for n in 5000..5100 {
            assert!(!is_absent(&one, dir, &format!("a.{n}")).await);
        }
        let set = SetAttr { mode: Some(0o2755), gid: Some(7), ..SetAttr::default() };
        one.setattr(ROOT, dir, set, None).await.unwrap();
        let next = obtain_prefix(&one, dir, "a.", next).await;
        let name = format!("a.{next}");
        lookup_or_absent(&one, dir, &name).await;
        let (created_attr, file) = one.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap();
        assert_eq!((created_attr.attr.gid, one.getattr(file.ino()).await.unwrap().gid), (7, 7));
        close(&one, file).await.unwrap();
    });
}

#[test]
fn a_restarted_service_executes_pending_creates_of_a_prefix() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = shared_directory(&one).await;
        make(&two, dir, "b").await;
        let next = obtain_prefix(&one, dir, "a.", 0).await;
        let name = format!("a.{next}");
        lookup_or_absent(&one, dir, &name).await;
        let (unasked, file) = create_is_async(&one, dir, &name).await;
        assert!(unasked);
        cluster.restart_metadata().await;
        let other = open(&two, dir, &name, RDWR).await.unwrap();
        close(&two, other).await.unwrap();
        close(&one, file).await.unwrap();
        assert!(!is_absent(&one, dir, &name).await);
    });
}

#[test]
fn prefix_delegations_end_when_the_directory_moves() {
    with_partitioned_cluster(|cluster| async move {
        let is_moved = |partition: PartitionId| partition != InodeId::ROOT.partition();
        let moved =
            || (0..super::partitioned_cluster::PARTITIONS).map(PartitionId).filter(move |one| is_moved(*one));
        let (one, two) = (cluster.client().await, cluster.client().await);
        let dir = cluster.directory_in(&one, is_moved).await;
        make(&two, dir, "b").await;
        let mut next = 0;
        for service in [SECOND, FIRST, SECOND] {
            rt::sleep(Duration::from_secs(70)).await;
            next = obtain_prefix(&one, dir, "a.", next).await;
            let name = format!("a.{next}");
            lookup_or_absent(&one, dir, &name).await;
            let (unasked, file) = create_is_async(&one, dir, &name).await;
            assert!(unasked);
            cluster.assign(moved(), service);
            assert!(!is_absent(&two, dir, &name).await);
            let theirs = make(&two, dir, &format!("a.{}", next + 1)).await;
            close(&two, theirs).await.unwrap();
            assert!(!is_absent(&one, dir, &format!("a.{}", next + 1)).await);
            close(&one, file).await.unwrap();
            cluster.wait_for_owners().await;
            next += 2;
        }
    });
}

/// Three clients execute operations one after the other in one directory, each mostly with its own
/// prefix. After each, all see what a plain map contains.
#[test]
fn clients_with_prefixes_agree_with_a_reference_map() {
    let total = Arc::new(AtomicU64::new(0));
    for seed in 1..=40 {
        let total = total.clone();
        with_cluster_of_seed(seed, |cluster| async move {
            let clients: [Arc<Client>; 3] = cluster.clients().await;
            let mut twin = ReferenceDirectory::new(&clients[0]).await;
            for step in 0..600 {
                if step % 100 == 99 {
                    rt::sleep(Duration::from_secs(70)).await;
                }
                let draw = rt::random_u64();
                let who = (draw >> 8) as usize % 3;
                let client = &clients[who];
                // Now and then with another one's prefix, or with the common one.
                let prefix_of = if (draw >> 12).is_multiple_of(16) { (draw >> 20) % 4 } else { who as u64 };
                let prefix = ["r.a.", "r.b.", "r.c.", "r."][prefix_of as usize];
                let name = format!("{prefix}{}", (draw >> 24) % 60);
                match draw % 32 {
                    0..18 => {
                        let content = ((draw >> 32) as usize % 200, b'a' + (draw >> 40) as u8 % 26);
                        twin.make(client, &name, content).await;
                    }
                    18..24 => twin.close_one(draw >> 32).await,
                    24..26 => twin.remove(client, &name).await,
                    26..28 => twin.find(client, &name).await,
                    28 if (draw >> 44).is_multiple_of(4) => twin.list(client).await,
                    29 => {
                        let prefix = ["r.a.", "r.b.", "r.c."][(draw >> 36) as usize % 3];
                        twin.rename(client, &name, &format!("{prefix}{}", (draw >> 40) % 60)).await;
                    }
                    30 if (draw >> 48).is_multiple_of(8) => cluster.restart_metadata().await,
                    _ => rt::sleep(Duration::from_millis((draw >> 24) % 40)).await,
                }
            }
            total.fetch_add(twin.finish(&clients).await, Ordering::Relaxed);
        });
    }
    let unasked = total.load(Ordering::Relaxed);
    assert!(unasked > 400, "{unasked} files were made without asking");
}
