//! Attributes of directories, right after a change.

use super::cluster::{Cluster, RDWR, ROOT, with_cluster, with_cluster_of_seed};
use client::{Client, Found};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use types::{Attr, InodeId, SetAttr, mode};
use wire::RenameMode;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=40;
const STEPS: u64 = 12;

async fn mkdir(client: &Client, parent: InodeId, name: &str) -> InodeId {
    client.mkdir(ROOT, parent, name.as_bytes(), 0o755, 0).await.unwrap().ino
}

/// Returns the attributes from the client, and checks that it sends no request.
async fn cached_attr(cluster: &Cluster, client: &Client, dir: InodeId) -> Attr {
    let before = cluster.requests();
    let known = client.getattr(dir).await.unwrap();
    assert_eq!(cluster.requests(), before, "the service was asked");
    assert!(known.cacheable);
    known.attr
}

#[test]
fn attributes_after_a_change_cost_no_request() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = mkdir(&one, InodeId::ROOT, "d").await;
        let other = mkdir(&one, InodeId::ROOT, "o").await;
        let mut states = Vec::new();
        let (_, file) = one.create(ROOT, dir, b"f", 0o100_644, 0, RDWR).await.unwrap();
        one.flush(&file).await.unwrap();
        states.push(cached_attr(&cluster, &one, dir).await);
        one.symlink(ROOT, dir, b"s", b"f").await.unwrap();
        states.push(cached_attr(&cluster, &one, dir).await);
        mkdir(&one, dir, "sub").await;
        states.push(cached_attr(&cluster, &one, dir).await);
        one.link(ROOT, file.ino(), dir, b"l").await.unwrap();
        states.push(cached_attr(&cluster, &one, dir).await);
        one.unlink(ROOT, dir, b"s").await.unwrap();
        states.push(cached_attr(&cluster, &one, dir).await);
        one.rmdir(ROOT, dir, b"sub").await.unwrap();
        states.push(cached_attr(&cluster, &one, dir).await);
        one.rename(ROOT, dir, b"l", other, b"l", RenameMode::Replace).await.unwrap();
        states.push(cached_attr(&cluster, &one, dir).await);
        let nlink: Vec<u32> = states.iter().map(|state| state.nlink).collect();
        assert_eq!(nlink, [2, 2, 3, 3, 3, 2, 2]);
        assert!(states.is_sorted_by(|a, b| a.mtime < b.mtime), "{states:?}");
        let last = [cached_attr(&cluster, &one, dir).await, cached_attr(&cluster, &one, other).await];
        assert_eq!([two.getattr(dir).await.unwrap().attr, two.getattr(other).await.unwrap().attr], last);
    });
}

#[test]
fn other_changes_invalidate_cached_attributes() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = mkdir(&one, InodeId::ROOT, "d").await;
        mkdir(&one, dir, "a").await;
        assert_eq!(cached_attr(&cluster, &one, dir).await.mode & 0o7777, 0o755);
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        one.setattr(ROOT, dir, set, None).await.unwrap();
        assert_eq!(one.getattr(dir).await.unwrap().mode & 0o7777, 0o700);
        mkdir(&one, dir, "b").await;
        assert_eq!(cached_attr(&cluster, &one, dir).await.mode & 0o7777, 0o700);
        // Another session.
        mkdir(&two, dir, "c").await;
        assert_eq!(one.getattr(dir).await.unwrap().nlink, 5);
        // A service that has lost all leases.
        rt::sleep(Duration::from_secs(2)).await;
        mkdir(&one, dir, "e").await;
        cluster.restart_metadata().await;
        mkdir(&two, dir, "g").await;
        assert_eq!(one.getattr(dir).await.unwrap().nlink, 7);
    });
}

/// Values that only grow: the minimum and maximum of each.
#[derive(Default)]
struct Grown {
    begun: Cell<u64>,
    ended: Cell<u64>,
}

impl Grown {
    async fn grow(&self, how: impl AsyncFnOnce(u64)) {
        self.begun.set(self.begun.get() + 1);
        how(self.begun.get()).await;
        self.ended.set(self.ended.get() + 1);
    }
}

/// Several tasks of two clients add directories to one, and one task changes its mode. The
/// attributes that each sees include everything that had ended before.
#[test]
fn cached_attributes_are_never_outdated() {
    let cached_reads = Arc::new(AtomicU64::new(0));
    for seed in SEEDS {
        let cached_reads_here = cached_reads.clone();
        with_cluster_of_seed(seed, |cluster| async move {
            let clients: [Arc<Client>; 2] = cluster.clients().await;
            let dir = mkdir(&clients[0], InodeId::ROOT, "d").await;
            let (links, modes) = (Rc::new(Grown::default()), Rc::new(Grown::default()));
            let check_getattr =
                async |client: &Client, links: &Grown, modes: &Grown, cached_reads: &AtomicU64| {
                    let (least, least_mode) = (links.ended.get(), modes.ended.get());
                    let before = cluster.requests();
                    let attr = client.getattr(dir).await.unwrap().attr;
                    cached_reads.fetch_add(u64::from(cluster.requests() == before), Relaxed);
                    let (seen, seen_mode) = (u64::from(attr.nlink) - 2, u64::from(attr.mode & !mode::S_IFMT));
                    assert!((least..=links.begun.get()).contains(&seen), "{seen} of {least} directories");
                    let modes = least_mode..=modes.begun.get();
                    assert!(
                        seen_mode == 0o755 && *modes.start() == 0 || modes.contains(&seen_mode),
                        "{seen_mode}"
                    );
                };
            let adds = async |task: usize, client: &Client| {
                for step in 0..STEPS {
                    let name = format!("{task}-{step}");
                    links.grow(async |_| _ = mkdir(client, dir, &name).await).await;
                    check_getattr(client, &links, &modes, &cached_reads_here).await;
                    // The other client pauses, so that the lease returns.
                    rt::sleep(Duration::from_millis(if task == 3 { 3000 } else { 400 * (step % 4) })).await;
                }
            };
            let changes_mode = async {
                for _ in 0..STEPS {
                    let set = |mode: u64| SetAttr { mode: Some(mode as u32), ..SetAttr::default() };
                    modes
                        .grow(async |mode| _ = clients[0].setattr(ROOT, dir, set(mode), None).await.unwrap())
                        .await;
                    check_getattr(&clients[0], &links, &modes, &cached_reads_here).await;
                    rt::sleep(Duration::from_millis(700)).await;
                }
            };
            let tasks = (0..4).map(|task| adds(task, &clients[usize::from(task == 3)])).collect();
            let adding = rt::join_all(tasks);
            let mut both: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
            both.push(Box::pin(async { drop(adding.await) }));
            both.push(Box::pin(changes_mode));
            rt::join_all(both).await;
        });
    }
    assert!(cached_reads.load(Relaxed) > 0, "the service was asked every time");
}

/// Looks up a name that must be absent; returns whether that cost a request.
async fn asks_for_absent(cluster: &Cluster, client: &Client, dir: InodeId, name: &str) -> bool {
    let before = cluster.requests();
    let found = client.find(ROOT, dir, name.as_bytes()).await.unwrap();
    assert!(matches!(found, Found::Absent { .. }), "{name} is there");
    cluster.requests() > before
}

#[test]
fn absent_names_of_a_complete_directory_cost_no_request() {
    with_cluster(|cluster| async move {
        let [one, two] = cluster.clients().await;
        let dir = mkdir(&one, InodeId::ROOT, "d").await;
        assert!(!asks_for_absent(&cluster, &one, dir, "a").await);
        assert!(asks_for_absent(&cluster, &one, InodeId::ROOT, "a").await, "the root wasn't made here");
        one.create(ROOT, dir, b"a", 0o100_644, 0, RDWR).await.unwrap();
        assert!(one.lookup(ROOT, dir, b"a").await.is_ok() && one.lookup(ROOT, dir, b"..").await.is_ok());
        assert!(!asks_for_absent(&cluster, &one, dir, "b").await);
        one.rename(ROOT, dir, b"a", dir, b"b", RenameMode::Replace).await.unwrap();
        assert!(one.lookup(ROOT, dir, b"b").await.is_ok());
        // Only the service knows that it is gone again.
        assert!(asks_for_absent(&cluster, &one, dir, "a").await);
        // Another session's name is found, and ends the complete state.
        mkdir(&two, dir, "c").await;
        assert!(one.lookup(ROOT, dir, b"c").await.is_ok());
        assert!(asks_for_absent(&cluster, &one, dir, "x").await);
    });
}

/// Two clients create names with growing numbers, in directories that one of them created, and look
/// all of them up: names created before are found.
#[test]
fn created_names_are_found_by_every_client() {
    let answered_here = Arc::new(AtomicU64::new(0));
    for seed in SEEDS {
        let answered_here = answered_here.clone();
        with_cluster_of_seed(seed, move |cluster| async move {
            let clients: [Arc<Client>; 2] = cluster.clients().await;
            let dirs =
                [mkdir(&clients[0], InodeId::ROOT, "a").await, mkdir(&clients[1], InodeId::ROOT, "b").await];
            let made: RefCell<BTreeSet<(InodeId, String)>> = RefCell::default();
            let works = async |task: usize| {
                let client = &clients[task % 2];
                for step in 0..STEPS {
                    let dir = dirs[(task + step as usize + seed as usize) % 2];
                    for other in 0..4 {
                        let name = format!("{other}-{}", (step + seed) % STEPS);
                        let must = made.borrow().contains(&(dir, name.clone()));
                        let before = cluster.requests();
                        let found = client.find(ROOT, dir, name.as_bytes()).await.unwrap();
                        let is_there = matches!(found, Found::Known(_));
                        assert!(is_there || !must, "seed {seed}: {name} was made and isn't found");
                        answered_here.fetch_add(u64::from(cluster.requests() == before), Relaxed);
                    }
                    let name = format!("{task}-{step}");
                    client.symlink(ROOT, dir, name.as_bytes(), b"x").await.unwrap();
                    made.borrow_mut().insert((dir, name));
                    // The lease comes and goes.
                    rt::sleep(Duration::from_millis(if task == 3 { 2500 } else { 300 * (step % 5) })).await;
                }
            };
            rt::join_all((0..4).map(works).collect()).await;
        });
    }
    assert!(answered_here.load(Relaxed) > 0, "the service was asked every time");
}

/// Names that each client creates in [`fill_in_turns`]: more than it takes until recalls have shown
/// that both fill the directory, in whatever order they arrive. Two clients fill it in turns until
/// each knows its permissions without a request.
const FILLERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

async fn fill_in_turns(clients: &[Arc<Client>; 2], dir: InodeId) {
    for name in FILLERS {
        for (number, client) in clients.iter().enumerate() {
            mkdir(client, dir, &format!("{name}{number}")).await;
            // What the other client gets counts only after the end of its recall.
            rt::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn clients_that_fill_a_directory_cache_its_permissions() {
    with_cluster(|cluster| async move {
        let clients: [Arc<Client>; 2] = cluster.clients().await;
        let dir = mkdir(&clients[0], InodeId::ROOT, "d").await;
        assert_eq!(clients[0].permissions(dir), None, "everything is known");
        fill_in_turns(&clients, dir).await;
        for turn in 0..20 {
            let (maker, other) = (&clients[turn % 2], &clients[1 - turn % 2]);
            let before = cluster.requests();
            for client in &clients {
                let known = client.permissions(dir).unwrap();
                assert!(known.mode & 0o7777 == 0o755 && !known.cacheable && !known.name_cacheable);
            }
            assert_eq!(cluster.requests(), before, "the service was asked");
            mkdir(maker, dir, &format!("turn{turn}")).await;
            assert_eq!(cluster.requests(), before + 1, "the change itself, and no recall");
            let attr = other.getattr(dir).await.unwrap();
            assert_eq!((attr.nlink, attr.cacheable), (2 + 2 * FILLERS.len() as u32 + turn as u32 + 1, false));
            assert!(other.find(ROOT, dir, format!("turn{turn}").as_bytes()).await.is_ok());
        }
    });
}

#[test]
fn a_change_of_permissions_ends_what_the_others_know_of_them() {
    with_cluster(|cluster| async move {
        let clients: [Arc<Client>; 2] = cluster.clients().await;
        let dir = mkdir(&clients[0], InodeId::ROOT, "d").await;
        for turn in 0..20 {
            fill_in_turns(&clients, dir).await;
            assert!(clients.iter().all(|client| client.permissions(dir).is_some()));
            let (changer, other) = (&clients[turn % 2], &clients[1 - turn % 2]);
            let set = SetAttr { mode: Some(0o700 + turn as u32), ..SetAttr::default() };
            changer.setattr(ROOT, dir, set, None).await.unwrap();
            assert_eq!(other.permissions(dir), None);
            assert_eq!(changer.permissions(dir).map(|known| known.mode & 0o7777), None);
            assert_eq!(other.getattr(dir).await.unwrap().mode & 0o7777, 0o700 + turn as u32);
            for name in FILLERS.iter().flat_map(|name| [0, 1].map(|number| format!("{name}{number}"))) {
                other.rmdir(ROOT, dir, name.as_bytes()).await.unwrap();
            }
        }
        // The end of the change does so, too, and a service that has lost all leases.
        fill_in_turns(&clients, dir).await;
        cluster.restart_metadata().await;
        rt::sleep(Duration::from_secs(20)).await;
        assert!(clients.iter().all(|client| client.permissions(dir).is_none()));
    });
}
