//! Asynchronous creates: every client sees the file, whether the service has it yet or not.

use super::cluster::{Application, RDONLY, RDWR, ROOT, run_lengths, with_cluster, with_cluster_of_seed};
use super::partitioned_cluster::{FIRST, SECOND, with_partitioned_cluster};
use super::reference_directory::ReferenceDirectory;
use client::{Client, ClientOptions, Found, Handle, WriteOptions};
use rt::IoBuf;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use testkit::clients;
use types::{Attr, Credentials, Errno, InodeId, PartitionId, Result, SetAttr, SetTime, Timestamp};
use wire::{RenameMode, XattrMode};

const O_EXCL: u32 = 0o200;
/// Less than a create stays pending, and time enough for answers.
const SOON: Duration = Duration::from_millis(10);
/// Longer than a create stays pending.
const LATER: Duration = Duration::from_millis(100);

/// Creates a file as a kernel does, which looks the name up first.
pub async fn make(client: &Arc<Client>, dir: InodeId, name: &str) -> Arc<Handle> {
    lookup_or_absent(client, dir, name).await;
    create(client, dir, name).await
}

pub async fn lookup_or_absent(client: &Arc<Client>, dir: InodeId, name: &str) {
    if let Found::Known(known) = client.find(ROOT, dir, name.as_bytes()).await.unwrap() {
        client.forget(known.ino, 1);
    }
}

async fn create(client: &Arc<Client>, dir: InodeId, name: &str) -> Arc<Handle> {
    client.create(ROOT, dir, name.as_bytes(), 0o100_644, 0o022, RDWR).await.unwrap().1
}

/// Creates a file; returns whether that cost no request. A client may be sending another request at
/// that moment.
pub async fn create_is_async(client: &Arc<Client>, dir: InodeId, name: &str) -> (bool, Arc<Handle>) {
    let made = client.create(ROOT, dir, name.as_bytes(), 0o100_644, 0o022, RDWR);
    let mut made = pin!(made);
    let at_once = poll_fn(|context| {
        Poll::Ready(match made.as_mut().poll(context) {
            Poll::Ready(made) => Some(made.unwrap().1),
            Poll::Pending => None,
        })
    });
    match at_once.await {
        Some(file) => (true, file),
        None => (false, made.await.unwrap().1),
    }
}

pub async fn close(client: &Arc<Client>, file: Arc<Handle>) -> Result<()> {
    let flushed = client.flush(&file).await;
    client.release(file).await;
    flushed
}

/// Creates files until the client has the directory delegation.
async fn obtain_delegation(client: &Arc<Client>, dir: InodeId) {
    for _ in 0..10_000 {
        // With a number at its end, the name would be one of a series.
        let number = rt::random_u64().to_string();
        let letters: String = number.bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
        let name = format!("early{letters}");
        lookup_or_absent(client, dir, &name).await;
        let (unasked, file) = create_is_async(client, dir, &name).await;
        close(client, file).await.unwrap();
        if unasked {
            return;
        }
        rt::sleep(SOON).await;
    }
    panic!("the client never gets the directory to itself");
}

/// Creates a directory of which the client has the delegation.
async fn delegated_directory(client: &Arc<Client>) -> InodeId {
    let dir = client.mkdir(ROOT, InodeId::ROOT, b"own", 0o755, 0).await.unwrap().ino;
    obtain_delegation(client, dir).await;
    dir
}

/// Creates a file asynchronously, without a request.
async fn create_async(client: &Arc<Client>, dir: InodeId, name: &str) -> Arc<Handle> {
    lookup_or_absent(client, dir, name).await;
    let (unasked, file) = create_is_async(client, dir, name).await;
    assert!(unasked, "the service was asked");
    file
}

pub async fn open(client: &Arc<Client>, dir: InodeId, name: &str, flags: u32) -> Result<Arc<Handle>> {
    let found = client.lookup(ROOT, dir, name.as_bytes()).await?;
    client.open(ROOT, found.ino, flags).await
}

pub async fn names(client: &Client, dir: InodeId) -> Vec<String> {
    let listing = client.readdir(dir, 0, 1000, false).await.unwrap();
    let name = |entry: &wire::DirEntry| String::from_utf8(entry.name.to_vec()).unwrap();
    let mut names: Vec<String> = listing.entries.iter().map(name).collect();
    names.retain(|name| !name.starts_with("early"));
    names.sort();
    names
}

#[test]
fn a_small_file_costs_one_request() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let before = cluster.requests();
        for n in 0..20 {
            let file = create_async(&one, dir, &format!("f{n}")).await;
            assert_eq!(
                one.getxattr(ROOT, file.ino(), b"security.capability").await.unwrap_err().errno,
                Errno::ENODATA
            );
            match n % 3 {
                0 => one.append(&file, &[b'a'; 1000]).await,
                1 => one.fill(&file, 500, 1000, b'b').await,
                _ => {}
            }
            close(&one, file).await.unwrap();
        }
        assert_eq!(cluster.requests() - before, 20);
        for (name, content) in
            [("f6", vec![(b'a', 1000)]), ("f7", vec![(0, 500), (b'b', 1000)]), ("f8", vec![])]
        {
            let file = open(&two, dir, name, RDONLY).await.unwrap();
            assert_eq!(run_lengths(&two.read_all(&file).await), content);
            let attr = two.getattr(file.ino()).await.unwrap().attr;
            let size: usize = content.iter().map(|(_, len)| len).sum();
            assert_eq!((attr.mode & 0o7777, attr.size, attr.nlink), (0o644, size as u64, 1));
        }
        one.shutdown().await.unwrap();
    });
}

async fn set(client: &Arc<Client>, ino: InodeId, set: SetAttr) -> Attr {
    client.setattr(ROOT, ino, set, None).await.unwrap().attr
}

#[test]
fn unpacking_a_small_file_costs_one_request() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = one.mkdir(ROOT, InodeId::ROOT, b"new", 0o755, 0).await.unwrap().ino;
        // The delegation of the new directory.
        let before = cluster.requests();
        let first = one.create(ROOT, dir, b"first", 0o100_600, 0, RDWR | O_EXCL).await.unwrap().1;
        assert_eq!(cluster.requests(), before + 1);
        close(&one, first).await.unwrap();
        let before = cluster.requests();
        let (made, file) = one.create(ROOT, dir, b"f", 0o100_600, 0, RDWR | O_EXCL).await.unwrap();
        let ino = made.ino;
        one.fill(&file, 0, 1000, b'a').await;
        one.append(&file, &[b'b'; 500]).await;
        let mtime = Timestamp::new(1_000_000_000, 5);
        let times = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
        assert_eq!(set(&one, ino, times).await.mtime, mtime);
        set(&one, ino, SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() }).await;
        let seen = set(&one, ino, SetAttr { mode: Some(0o640), ..SetAttr::default() }).await;
        assert_eq!(one.getattr(ino).await.unwrap().attr, seen);
        close(&one, file).await.unwrap();
        assert_eq!(cluster.requests(), before + 1);
        assert_eq!((seen.size, seen.blocks, seen.uid, seen.gid), (1500, 3, 1000, 100));
        assert_eq!((seen.mode & 0o7777, seen.mtime), (0o640, mtime));
        assert_eq!(two.lookup(ROOT, dir, b"f").await.unwrap().attr, seen);
        let other = two.open(ROOT, ino, RDONLY).await.unwrap();
        assert_eq!(run_lengths(&two.read_all(&other).await), [(b'a', 1000), (b'b', 500)]);
    });
}

/// Random changes of pending files: other clients find exactly the attributes and content that the
/// application has seen last.
#[test]
fn others_see_pending_files_as_the_application_left_them() {
    for seed in 1..=30 {
        with_cluster_of_seed(seed, |cluster| async move {
            let [one, two] = cluster.clients().await;
            let dir = delegated_directory(&one).await;
            for n in 0..20 {
                change_and_compare(&one, &two, dir, &format!("f{n}")).await;
            }
        });
    }
}

async fn change_and_compare(one: &Arc<Client>, two: &Arc<Client>, dir: InodeId, name: &str) {
    let file = make(one, dir, name).await;
    let mut content = Vec::new();
    for _ in 0..rt::random_u64() % 8 {
        // Within the inline limit.
        let (at, len) = (rt::random_u64() % 2500, 1 + rt::random_u64() % 1500);
        let byte = b'a' + (rt::random_u64() % 26) as u8;
        let time = Some(if at % 2 == 0 { SetTime::Now } else { SetTime::At(Timestamp::new(at as i64, 7)) });
        let none = SetAttr::default();
        let changes = match rt::random_u64() % 8 {
            0..=2 => {
                one.fill(&file, at as usize, len as usize, byte).await;
                content.resize(content.len().max((at + len) as usize), 0);
                content[at as usize..(at + len) as usize].fill(byte);
                none
            }
            3 => SetAttr { mode: Some(at as u32 & 0o777), ..none },
            // The service decides.
            4 => SetAttr { mode: Some(0o4700), ..none },
            5 => SetAttr { uid: Some(at as u32), gid: Some(len as u32), ..none },
            6 => SetAttr { mtime: time, ..none },
            _ => SetAttr { atime: time, mtime: time, ..none },
        };
        if changes != none {
            set(one, file.ino(), changes).await;
        }
        // Times differ.
        rt::sleep(Duration::from_micros(len)).await;
    }
    let seen = one.getattr(file.ino()).await.unwrap().attr;
    if rt::random_u64().is_multiple_of(2) {
        close(one, file).await.unwrap();
    }
    let found = two.lookup(ROOT, dir, name.as_bytes()).await.unwrap().attr;
    assert_eq!(found, seen);
    let other = two.open(ROOT, seen.ino, RDONLY).await.unwrap();
    assert_eq!(two.read_all(&other).await, content);
    two.release(other).await;
}

#[test]
fn a_lookup_finds_pending_files() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let file = create_async(&one, dir, "f").await;
        let found = two.lookup(ROOT, dir, b"f").await.unwrap();
        assert_eq!((found.ino, found.size), (file.ino(), 0));
        one.fill(&file, 0, 100, b'x').await;
        // Now both use the directory.
        let other = two.open(ROOT, found.ino, RDWR).await.unwrap();
        assert_eq!(run_lengths(&two.read_all(&other).await), [(b'x', 100)]);
        two.fill(&other, 50, 100, b'y').await;
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'x', 50), (b'y', 100)]);
        one.fill(&file, 0, 10, b'w').await;
        close(&one, file).await.unwrap();
        assert_eq!(run_lengths(&two.read_all(&other).await), [(b'w', 10), (b'x', 40), (b'y', 100)]);
    });
}

#[test]
fn listings_and_attributes_include_pending_files() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let before = one.getattr(dir).await.unwrap().mtime;
        let _a = create_async(&one, dir, "a").await;
        assert!(two.getattr(dir).await.unwrap().mtime > before);
        rt::sleep(Duration::from_secs(4)).await;
        two.forget(dir, 1);
        rt::sleep(Duration::from_secs(4)).await;
        obtain_delegation(&one, dir).await;
        let _b = make(&one, dir, "b").await;
        assert_eq!(names(&two, dir).await, ["a", "b"]);
    });
}

#[test]
fn names_of_pending_files_are_taken() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let file = create_async(&one, dir, "f").await;
        let again = two.create(ROOT, dir, b"f", 0o100_644, 0, RDWR | O_EXCL).await;
        assert_eq!(again.map(drop).unwrap_err().errno, Errno::EEXIST);
        close(&one, file).await.unwrap();
    });
}

#[test]
fn another_client_removes_pending_files() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let file = create_async(&one, dir, "f").await;
        two.unlink(ROOT, dir, b"f").await.unwrap();
        one.fill(&file, 0, 10, b'x').await;
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'x', 10)], "it is open");
        close(&one, file).await.unwrap();
        assert_eq!(one.lookup(ROOT, dir, b"f").await.unwrap_err().errno, Errno::ENOENT);
        // The directory is removed by its name, in another directory.
        let own = two.mkdir(ROOT, InodeId::ROOT, b"second", 0o755, 0).await.unwrap().ino;
        obtain_delegation(&two, own).await;
        for entry in two.readdir(own, 0, 1000, false).await.unwrap().entries {
            two.unlink(ROOT, own, &entry.name).await.unwrap();
        }
        let file = create_async(&two, own, "f").await;
        assert_eq!(one.rmdir(ROOT, InodeId::ROOT, b"second").await.unwrap_err().errno, Errno::ENOTEMPTY);
        close(&two, file).await.unwrap();
    });
}

#[test]
fn the_client_sees_its_own_pending_files() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let dir = delegated_directory(&one).await;
        let f = create_async(&one, dir, "f").await;
        assert_eq!(one.lookup(ROOT, dir, b"f").await.unwrap().ino, f.ino());
        let g = create_async(&one, dir, "g").await;
        assert_eq!(names(&one, dir).await, ["f", "g"]);
        let h = create_async(&one, dir, "h").await;
        one.fill(&h, 0, 10, b'h').await;
        assert_eq!(one.size(h.ino()).await, 10);
        let i = create_async(&one, dir, "i").await;
        one.rename(ROOT, dir, b"i", dir, b"j", RenameMode::Replace).await.unwrap();
        let k = create_async(&one, dir, "k").await;
        one.unlink(ROOT, dir, b"k").await.unwrap();
        let l = create_async(&one, dir, "l").await;
        one.fill(&l, 0, 100, b'l').await;
        one.set_size(l.ino(), 50).await;
        assert_eq!(run_lengths(&one.read_all(&l).await), [(b'l', 50)]);
        let m = create_async(&one, dir, "m").await;
        one.link(ROOT, m.ino(), dir, b"n").await.unwrap();
        let o = create_async(&one, dir, "o").await;
        one.setxattr(ROOT, o.ino(), b"user.a", b"v", XattrMode::Any, false).await.unwrap();
        let p = create_async(&one, dir, "p").await;
        let second = one.open(ROOT, p.ino(), RDWR).await.unwrap();
        one.fill(&p, 0, 10, b'p').await;
        assert_eq!(run_lengths(&one.read_all(&second).await), [(b'p', 10)]);
        let q = create_async(&one, dir, "q").await;
        assert_eq!(one.rmdir(ROOT, InodeId::ROOT, b"own").await.unwrap_err().errno, Errno::ENOTEMPTY);
        let r = create_async(&one, dir, "r").await;
        one.fill(&r, 0, 100_000, b'r').await;
        assert_eq!(run_lengths(&one.read_all(&r).await), [(b'r', 100_000)]);
        assert_eq!(names(&one, dir).await, ["f", "g", "h", "j", "l", "m", "n", "o", "p", "q", "r"]);
        for file in [f, g, h, i, k, l, m, o, p, q, r, second] {
            close(&one, file).await.unwrap();
        }
        one.shutdown().await.unwrap();
    });
}

#[test]
fn a_pending_file_is_committed_soon() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let file = create_async(&one, dir, "f").await;
        let before = cluster.requests();
        rt::sleep(LATER).await;
        assert_eq!(cluster.requests(), before + 1);
        one.fill(&file, 0, 10, b'y').await;
        let other = open(&two, dir, "f", RDONLY).await.unwrap();
        assert_eq!(run_lengths(&two.read_all(&other).await), [(b'y', 10)]);
    });
}

#[test]
fn some_creates_are_synchronous() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let dir = delegated_directory(&one).await;
        let plain = RDWR;
        for (n, (mode, flags)) in
            [(0o100_644, plain | 0o10000), (0o104_755, plain), (0o100_644, RDONLY)].into_iter().enumerate()
        {
            let name = format!("f{n}");
            lookup_or_absent(&one, dir, &name).await;
            let before = cluster.requests();
            let file = one.create(ROOT, dir, name.as_bytes(), mode, 0, flags).await.unwrap().1;
            assert!(cluster.requests() > before, "{flags:o}");
            close(&one, file).await.unwrap();
        }
        // A mount with `wsync`.
        let strict = clients::start(ClientOptions { wsync: true, ..cluster.options() }).await;
        let own = strict.mkdir(ROOT, InodeId::ROOT, b"strict", 0o755, 0).await.unwrap().ino;
        for n in 0..20 {
            let before = cluster.requests();
            let file =
                strict.create(ROOT, own, format!("f{n}").as_bytes(), 0o100_644, 0, RDWR).await.unwrap().1;
            assert_eq!(cluster.requests(), before + 1);
            close(&strict, file).await.unwrap();
        }
        // For other users than the owner, the service checks the permission.
        let who = Credentials { uid: 1000, gid: 1000, pid: 1 };
        let refused = one.create(who, dir, b"g", 0o100_644, 0, RDWR).await;
        assert_eq!(refused.map(drop).unwrap_err().errno, Errno::EACCES);
        let file = create_async(&one, dir, "h").await;
        one.fill(&file, 0, 5, b'x').await;
        one.fsync(&file, false).await.unwrap();
        cluster.cut_power_of_metadata().await;
        assert_eq!(run_lengths(&one.read_all(&file).await), [(b'x', 5)]);
    });
}

#[test]
fn a_directory_change_ends_async_creates() {
    with_cluster(|cluster| async move {
        let one = cluster.client().await;
        let who = Credentials { uid: 1000, gid: 1000, pid: 1 };
        let dir = delegated_directory(&one).await;
        let set = SetAttr { uid: Some(1000), gid: Some(7), mode: Some(0o2755), ..SetAttr::default() };
        one.setattr(ROOT, dir, set, None).await.unwrap();
        obtain_delegation(&one, dir).await;
        lookup_or_absent(&one, dir, "f").await;
        let (known, file) = one.create(who, dir, b"f", 0o100_666, 0o027, RDWR).await.unwrap();
        assert!(known.cacheable);
        close(&one, file).await.unwrap();
        let told = one.getattr(known.ino).await.unwrap().attr;
        let nature =
            |attr: &Attr| (attr.ino, attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.blocks);
        assert_eq!(nature(&known.attr), nature(&told));
        assert_eq!((told.uid, told.gid, told.mode), (1000, 7, 0o100_640));
        let acl: &[u8] = &[
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255,
            255, 255, 255,
        ];
        one.setxattr(ROOT, dir, b"system.posix_acl_default", acl, XattrMode::Any, false).await.unwrap();
        for n in 0..20 {
            let name = format!("g{n}");
            lookup_or_absent(&one, dir, &name).await;
            let (unasked, file) = create_is_async(&one, dir, &name).await;
            assert!(!unasked, "an access control list says what its files are");
            close(&one, file).await.unwrap();
        }
        let file = make(&one, dir, "g").await;
        assert_eq!(one.getattr(file.ino()).await.unwrap().mode & 0o777, 0o640);
    });
}

#[test]
fn a_restarted_service_executes_pending_creates() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = delegated_directory(&one).await;
        let file = create_async(&one, dir, "f").await;
        cluster.restart_metadata().await;
        let again = two.create(ROOT, dir, b"f", 0o100_644, 0, RDWR | O_EXCL).await;
        assert_eq!(again.map(drop).unwrap_err().errno, Errno::EEXIST);
        let other = open(&two, dir, "f", RDWR).await.unwrap();
        two.fill(&other, 0, 5, b'y').await;
        one.fill(&file, 10, 5, b'z').await;
        assert_eq!(run_lengths(&two.read_all(&other).await), [(b'y', 5), (0, 5), (b'z', 5)]);
        close(&one, file).await.unwrap();
    });
}

#[test]
fn pending_creates_follow_a_moved_directory() {
    with_partitioned_cluster(|cluster| async move {
        let is_moved = |partition: PartitionId| partition != InodeId::ROOT.partition();
        let moved =
            || (0..super::partitioned_cluster::PARTITIONS).map(PartitionId).filter(move |one| is_moved(*one));
        let (one, two) = (cluster.client().await, cluster.client().await);
        let dir = cluster.directory_in(&one, is_moved).await;
        for (round, service) in [SECOND, FIRST, SECOND].into_iter().enumerate() {
            rt::sleep(Duration::from_secs(4)).await;
            obtain_delegation(&one, dir).await;
            let name = format!("f{round}");
            let file = create_async(&one, dir, &name).await;
            cluster.assign(moved(), service);
            let found = two.lookup(ROOT, dir, name.as_bytes()).await.unwrap();
            assert_eq!(found.ino, file.ino());
            one.fill(&file, 0, 10, b'x').await;
            assert_eq!(two.size(file.ino()).await, 10);
            two.forget(found.ino, 1);
            two.forget(dir, 1);
            close(&one, file).await.unwrap();
            cluster.wait_for_owners().await;
        }
    });
}

#[test]
fn closing_a_pending_file_reports_the_ended_session() {
    with_cluster(|cluster| async move {
        let (mount, way) = cluster.mount().await;
        let dir = mount.mkdir(ROOT, InodeId::ROOT, b"d", 0o755, 0).await.unwrap().ino;
        for n in 0..8 {
            let name = format!("early{n}");
            let (_, file) = mount.create(ROOT, dir, name.as_bytes(), 0o100_644, 0, RDWR).await.unwrap();
            file.flush().await.unwrap();
            file.release().await;
            rt::sleep(SOON).await;
        }
        let before = cluster.requests();
        let (_, empty) = mount.create(ROOT, dir, b"empty", 0o100_644, 0, RDWR).await.unwrap();
        let (_, full) = mount.create(ROOT, dir, b"full", 0o100_644, 0, RDWR).await.unwrap();
        assert_eq!(cluster.requests(), before);
        way.cut();
        cluster.evict(&mount);
        rt::sleep(Duration::from_secs(1)).await;
        way.restore();
        let written = full.write(0, IoBuf::from_slice(b"x"), WriteOptions::default()).await;
        assert_eq!(written.unwrap_err().errno, Errno::EIO);
        for file in [empty, full] {
            assert_eq!(file.flush().await.unwrap_err().errno, Errno::EIO);
            file.release().await;
        }
        let found = mount.find(ROOT, dir, b"empty").await.unwrap();
        assert!(matches!(found, Found::Absent { .. }), "{found:?}");
    });
}

/// Two clients execute operations one after the other in one directory, and get its delegation in
/// turns. After each, both see what a plain map contains.
#[test]
fn two_clients_agree_with_a_reference_map() {
    for seed in 1..=30 {
        with_cluster_of_seed(seed, |cluster| async move {
            let clients: [Arc<Client>; 2] = cluster.clients().await;
            let mut twin = ReferenceDirectory::new(&clients[0]).await;
            for step in 0..480 {
                // Each gets the delegation in turns, and the other one intervenes.
                let (burst, within) = (step / 40, step % 40);
                if within == 0 {
                    rt::sleep(Duration::from_secs(70)).await;
                }
                let draw = rt::random_u64();
                let who = if within == 25 || within == 30 { 1 - burst % 2 } else { burst % 2 };
                let name = format!("n{}", (draw >> 16) % 200);
                let client = &clients[who];
                match draw % 16 {
                    0..8 => {
                        let content = ((draw >> 24) as usize % 200, b'a' + (draw >> 32) as u8 % 26);
                        twin.make(client, &name, content).await;
                    }
                    8..11 => twin.close_one(draw >> 24).await,
                    11 => twin.remove(client, &name).await,
                    12 => twin.list(client).await,
                    13 => twin.read(client, &name).await,
                    14 => twin.rename(client, &name, &format!("n{}", (draw >> 40) % 200)).await,
                    15 if (draw >> 48).is_multiple_of(8) => cluster.restart_metadata().await,
                    _ => rt::sleep(Duration::from_millis((draw >> 24) % 40)).await,
                }
            }
            let unasked = twin.finish(&clients).await;
            assert!(unasked > 0, "nothing was promised");
        });
    }
}
