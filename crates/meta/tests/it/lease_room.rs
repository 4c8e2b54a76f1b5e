//! Clients that access more inodes than the service can hold leases for.

use crate::support;
use crate::support::world::{ROOT, World, acknowledge, getattr, open_with_lease, recalls, simulated};
use crate::support::{Client, create};
use namespace::leases::Limits;
use std::cell::Cell;
use std::rc::Rc;
use types::InodeId;
use wire::LeaseMode::Read;

/// For each of the service's 64 tables.
const LIMITS: Limits = Limits { total: 256, per_session: 64 };
const MOST: u64 = 64 * LIMITS.per_session as u64;
const FILES: usize = 6000;

async fn many_files(world: &World) -> Vec<InodeId> {
    world.meta.limit_leases(LIMITS);
    let maker = Client::new(&world.meta, 9);
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(maker.create(ROOT, &format!("f{number}")).await.unwrap().ino);
    }
    files
}

/// Acknowledges all recalls of a client at once; returns a counter of them.
fn answer_recalls(client: &Client) -> Rc<Cell<u64>> {
    let (client, answered) = (client.clone(), Rc::new(Cell::new(0)));
    let count = answered.clone();
    rt::spawn(async move {
        loop {
            for recall in recalls(&client, answered.get()).await {
                assert_eq!(recall.retain, None);
                acknowledge(&client, &recall, false).await;
                answered.set(recall.number);
            }
        }
    });
    count
}

fn leases_of(world: &World, session: u64) -> u64 {
    let infos = world.meta.session_infos();
    infos.iter().find(|info| info.session.0 == session).unwrap().leases.unwrap()
}

#[test]
fn a_client_that_walks_a_huge_tree_keeps_caching() {
    simulated(|world| async move {
        let files = many_files(&world).await;
        let walker = world.client(1).await;
        let recalled = answer_recalls(&walker);
        for round in 0..2 {
            for &ino in &files {
                assert_eq!(walker.grants(getattr(ino)).await, [(ino, Read)], "in round {round}");
                assert!(leases_of(&world, 1) <= MOST);
                // Lets other tasks run, too.
                rt::yield_now().await;
            }
        }
        assert!(recalled.get() as usize > FILES, "{}", recalled.get());
        assert!(leases_of(&world, 1) > MOST / 2, "no more than needed makes way");
        // The leases on the last inodes are held, and no session waits for those that make room.
        let other = world.client(2).await;
        for &ino in &files[FILES - 100..] {
            assert_eq!(other.grants(getattr(ino)).await, [(ino, Read)]);
        }
    });
}

#[test]
fn a_client_at_its_lease_limit_can_open_files() {
    simulated(|world| async move {
        let files = many_files(&world).await;
        let hoarder = world.client(1).await;
        for &ino in &files {
            hoarder.grants(getattr(ino)).await;
        }
        assert!(leases_of(&world, 1) <= MOST - MOST / 8);
        for number in 0..64 {
            let ino = Client::new(&world.meta, 9).create(ROOT, &format!("new{number}")).await.unwrap().ino;
            assert_eq!(hoarder.grants(open_with_lease(ino, Read)).await, [(ino, Read)]);
        }
        // The recalls are pending; when they are acknowledged, there is room again.
        assert!(!recalls(&hoarder, 0).await.is_empty());
        answer_recalls(&hoarder);
        rt::sleep(support::world::SECOND).await;
        let made = hoarder.respond(0, create(ROOT, "made")).await.unwrap();
        assert_eq!(made.grants.len(), 2);
    });
}
