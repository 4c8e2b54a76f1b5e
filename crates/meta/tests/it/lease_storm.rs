//! Three clients that cache under leases and change the same few files at random: none ever relies
//! on stale data.

use crate::support::caching_client::{CachingClient, Sizes, lookup};
use crate::support::world::{ROOT, SECOND, World, chmod, getattr, simulated_with};
use crate::support::{Client, bytes, create};
use std::rc::Rc;
use types::{InodeId, SetAttr};
use wire::{LeaseMode, MetaOp, MetaReply, RenameMode};

const SEEDS: u64 = 24;
const CLIENTS: u64 = 3;
/// Concurrent tasks of one client.
const TASKS: usize = 2;
const STEPS: usize = 250;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn below(bound: usize) -> usize {
    (rt::random_u64() % bound as u64) as usize
}

/// State of a worker: existing directories, and the file that it read last.
struct Place {
    dirs: [InodeId; 2],
    file: Option<InodeId>,
}

impl Place {
    fn dir(&self) -> InodeId {
        self.dirs[below(2)]
    }

    fn name(&self) -> &'static str {
        NAMES[below(NAMES.len())]
    }

    /// A change of names.
    fn change(&self) -> MetaOp {
        let (parent, name) = (self.dir(), self.name());
        match below(5) {
            0 | 1 => create(parent, name),
            2 if below(3) == 0 => {
                let set = SetAttr { mode: Some(0o700 + below(64) as u32), ..SetAttr::default() };
                MetaOp::Setattr { ino: parent, set }
            }
            2 | 3 => MetaOp::Unlink { parent, name: bytes(name), ino: None },
            _ => MetaOp::Rename {
                parent,
                name: bytes(name),
                new_parent: self.dir(),
                new_name: bytes(self.name()),
                mode: if below(3) == 0 { RenameMode::Exchange } else { RenameMode::Replace },
            },
        }
    }

    fn change_of_file(&self, ino: InodeId) -> MetaOp {
        match below(3) {
            0 => chmod(ino),
            1 => MetaOp::SetXattr {
                ino,
                name: bytes("user.x"),
                value: bytes(self.name()),
                mode: wire::XattrMode::Any,
                kill_sgid: false,
            },
            _ => MetaOp::WriteInline {
                ino,
                offset: below(10) as u64,
                data: bytes(self.name()),
                kill_suid_sgid: false,
                at_end: false,
            },
        }
    }

    async fn step(&mut self, honest: &Rc<CachingClient>, observer: &Client) {
        let (dir, name) = (self.dir(), self.name());
        match (below(100), self.file) {
            (0..20, _) => {
                if let Ok(MetaReply::Entry(attr)) = honest.ask(lookup(dir, name)).await {
                    self.file = Some(attr.ino);
                }
            }
            (20..30, _) => {
                let op = MetaOp::Readdir {
                    dir,
                    cookie: 0,
                    limit: 100,
                    attributes: true,
                    prefix: bytes::Bytes::new(),
                };
                honest.ask(op).await.unwrap();
            }
            (30..35, _) => _ = honest.ask(getattr(dir)).await,
            (35..45, Some(ino)) => _ = honest.ask(getattr(ino)).await,
            (45..52, _) => _ = honest.change(self.change()).await,
            (52..57, Some(ino)) => _ = honest.change(self.change_of_file(ino)).await,
            (57..62, Some(ino)) => honest.open(ino, LeaseMode::Read).await,
            (62..67, Some(ino)) => honest.open(ino, LeaseMode::Write).await,
            (67..80, Some(ino)) => honest.write(ino),
            (80..83, Some(ino)) => honest.release(ino).await,
            (83..92, Some(ino)) => honest.check(observer, ino, name).await,
            _ => honest.check(observer, dir, name).await,
        }
    }
}

/// How many values were compared, and how many of those were permissions only.
async fn storm(world: World) -> (u64, u64) {
    let observer = Client::new(&world.meta, 9);
    let dir = observer.mkdir_elsewhere(ROOT, &[]).await;
    let sizes = Sizes::default();
    let mut clients = Vec::new();
    for session in 1..=CLIENTS {
        clients.push(CachingClient::new(world.client(session).await, sizes.clone()));
    }
    let mut workers = Vec::new();
    for honest in &clients {
        rt::spawn(honest.clone().answer_recalls());
        for _ in 0..TASKS {
            let (honest, observer) = (honest.clone(), observer.clone());
            workers.push(async move {
                let mut place = Place { dirs: [ROOT, dir], file: None };
                for _ in 0..STEPS {
                    place.step(&honest, &observer).await;
                    // Long enough for the cool-down of recalled inodes.
                    if below(10) == 0 {
                        rt::sleep(SECOND * below(3) as u32).await;
                    }
                }
            });
        }
    }
    rt::join_all(workers).await;
    for honest in &clients {
        honest.end().await;
    }
    // No session was evicted, and everything that was written is recorded.
    assert!(world.chunks.fenced.lock().is_empty());
    let sizes = sizes.lock().clone();
    for (ino, size) in sizes {
        if let Ok(attr) = observer.getattr(ino).await {
            assert!(attr.size >= size, "{ino}: {size}");
        }
    }
    let sum = |of: fn(&CachingClient) -> u64| clients.iter().map(|honest| of(honest)).sum();
    (sum(|honest| honest.checks.get()), sum(|honest| honest.permissions.get()))
}

#[test]
fn no_client_relies_on_stale_data() {
    let mut of_permissions = 0;
    for seed in 0..SEEDS {
        let (checks, permissions) = simulated_with(seed, storm);
        assert!(checks > 20, "seed {seed} found only {checks} cached values to check");
        of_permissions += permissions;
    }
    assert!(of_permissions > SEEDS, "only {of_permissions} permissions were compared");
}
