//! A client on one simulated host, the store on another: processes die, connections break, power
//! fails.

use kv::{Batch, Blocking, Durability, Engine, Guard, KvError, Memory, Outcome, RemoteWriter, Store, Writer};
use kvnet::{KvService, RemoteStore};
use net::{
    Channel, ClientIdentity, Handler, Liveness, Peer, PeerOptions, Router, Security, Server, ServerLimits,
    ServerOptions,
};
use rt::sim::{HostId, NetworkOptions, World};
use rt::sync::Event;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use wire::{KvReply, KvRequest};

const PORT: u16 = 7000;
const LIVENESS: Liveness =
    Liveness { ping_after: Duration::from_millis(500), dead_after: Duration::from_secs(1) };

async fn serve(address: SocketAddr, memory: Arc<Memory>) {
    let engine: Arc<dyn Engine> = memory;
    let writer = Arc::new(Writer::with_blocking(engine, Durability::Process, Blocking::Inline));
    let service: Arc<dyn Handler<KvRequest, KvReply>> = Arc::new(KvService::new(writer));
    let options = ServerOptions {
        listen: vec![address],
        cores: 1,
        name: "store".into(),
        cluster: String::new(),
        security: Security::Plain,
        map: types::MapHandle::default(),
        checksum_payloads: true,
        limits: ServerLimits { liveness: LIVENESS, ..ServerLimits::default() },
    };
    let _server = Server::start(options, Router::new().with(service)).unwrap();
    std::future::pending::<()>().await;
}

async fn open(address: SocketAddr) -> Arc<RemoteStore> {
    let identity = ClientIdentity { cluster: String::new(), name: "user".into(), client: rt::random_u64() };
    let mut options = PeerOptions::new("store", vec![address], identity);
    options.timeout = Duration::from_secs(3);
    options.liveness = LIVENESS;
    let peer = Peer::new(options);
    loop {
        if let Ok(store) = RemoteStore::open(Channel::remote(peer.clone()), "the other host").await {
            return store;
        }
    }
}

/// State of a simulated process that survives between two runs.
type Persistent<T> = Rc<RefCell<Option<T>>>;

struct SimCluster {
    world: World,
    user: HostId,
    store: HostId,
    address: SocketAddr,
    memory: Arc<Memory>,
}

impl SimCluster {
    fn new(seed: u64) -> SimCluster {
        let mut world = World::new(seed);
        let (user, store) = (world.add_host("user"), world.add_host("store"));
        let address = SocketAddr::from((world.ip(store), PORT));
        let mut site = SimCluster { user, store, address, memory: Arc::default(), world };
        site.start();
        site
    }

    fn start(&mut self) {
        self.world.spawn(self.store, serve(self.address, self.memory.clone()));
    }

    /// The store's process dies and restarts after a while.
    fn kill(&mut self, pause: Duration) {
        self.world.kill(self.store);
        self.memory.kill();
        self.world.advance(pause);
        self.start();
    }

    /// The same for its machine, which loses everything that wasn't on disk.
    fn crash(&mut self, pause: Duration) {
        self.world.crash(self.store);
        self.memory.crash(0);
        self.world.advance(pause);
        self.start();
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.world.random() % limit
    }
}

fn number_in(memory: &Memory, key: &[u8]) -> u64 {
    let value = memory.get(key).unwrap();
    value.map_or(0, |value| String::from_utf8(value.to_vec()).unwrap().parse().unwrap())
}

/// Counts a chain up in the store forever; each step is guarded by the previous one.
async fn count_up(store: Arc<dyn Store>, chain: u64, done: Rc<Cell<u64>>, unknown: Rc<Cell<u64>>) {
    let key = format!("chain{chain}").into_bytes();
    loop {
        let step = done.get() + 1;
        let expected = (step > 1).then(|| (step - 1).to_string().into());
        let trace = format!("trace{chain}/{step:08}").into_bytes();
        let batch = Batch {
            guards: vec![Guard { key: key.clone(), expected }],
            writes: vec![(key.clone(), Some(step.to_string().into())), (trace, Some("done".into()))],
        };
        match store.commit(batch).await.unwrap() {
            Outcome::Applied => {}
            // No other task counts: it can only have lost against its own first copy.
            Outcome::Uncertain => unknown.set(unknown.get() + 1),
            Outcome::GuardFailed => panic!("step {step} of chain {chain} was lost"),
        }
        done.set(step);
        if rt::random_u64().is_multiple_of(4) {
            let read = loop {
                match store.get(&key).await {
                    Ok(value) => break value.unwrap(),
                    // The store was unreachable for longer than a request is repeated.
                    Err(error) => assert!(matches!(error, KvError::Unreachable { .. }), "{error}"),
                }
            };
            assert_eq!(read, step.to_string(), "chain {chain}");
            rt::sleep(Duration::from_nanos(rt::random_u64() % 20_000_000)).await;
        }
    }
}

#[test]
fn commits_are_applied_once_and_in_order_despite_failures() {
    let mut unknown_in_all = 0;
    for seed in 0..10 {
        let mut site = SimCluster::new(seed);
        site.world.set_network(NetworkOptions { resets_per_million: 2000, ..NetworkOptions::default() });
        let chains: Vec<Rc<Cell<u64>>> = (0..6).map(|_| Rc::default()).collect();
        let unknown = Rc::new(Cell::new(0));
        let (address, counting, unknowns) = (site.address, chains.clone(), unknown.clone());
        site.world.spawn(site.user, async move {
            let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(open(address).await));
            for (chain, done) in counting.into_iter().enumerate() {
                rt::spawn(count_up(store.clone(), chain as u64, done, unknowns.clone()));
            }
        });
        for _ in 0..25 {
            let quiet = Duration::from_millis(site.below(800));
            site.world.advance(quiet);
            let pause = Duration::from_millis(site.below(5_000));
            match site.below(4) {
                0 | 1 => site.kill(pause),
                2 => site.world.reset_connections(site.user, site.store),
                _ => {
                    site.world.cut(site.user, site.store);
                    site.world.advance(pause);
                    site.world.heal(site.user, site.store);
                }
            }
        }
        site.world.advance(Duration::from_secs(5));
        let before: Vec<u64> = chains.iter().map(|done| done.get()).collect();
        site.world.advance(Duration::from_secs(5));
        for (chain, done) in chains.iter().enumerate() {
            let (done, before) = (done.get(), before[chain]);
            assert!(done > before + 10, "seed {seed}: chain {chain} stands still at {done}");
            let stored = number_in(&site.memory, format!("chain{chain}").as_bytes());
            assert!(stored == done || stored == done + 1, "seed {seed}: {stored} stored, {done} done");
            let (from, to) = (format!("trace{chain}/"), format!("trace{chain}0"));
            let traces = site.memory.scan(from.as_bytes(), to.as_bytes(), usize::MAX).unwrap();
            assert_eq!(traces.len() as u64, stored, "seed {seed}: each step once");
        }
        unknown_in_all += unknown.get();
    }
    assert!(unknown_in_all > 0, "no commit was cut short by a death: the test tries nothing");
}

/// Runs `work` on the user's host while the simulation continues.
fn run<T: 'static>(site: &mut SimCluster, work: impl Future<Output = T> + 'static) -> T {
    site.world.run(site.user, work).unwrap()
}

fn put(key: &str) -> Batch {
    Batch { guards: vec![], writes: vec![(key.into(), Some("value".into()))] }
}

/// A store, and the event that it has lost data.
type Client = (Arc<dyn Store>, Arc<Event>);

/// Also a client whose own commits are all on disk: it may have read what others had committed.
#[test]
fn clients_are_notified_of_data_lost_in_a_power_failure() {
    let mut site = SimCluster::new(1);
    let address = site.address;
    let held: Persistent<Vec<Client>> = Rc::default();
    let keep = held.clone();
    run(&mut site, async move {
        let mut users = Vec::new();
        for _ in 0..2 {
            let remote = open(address).await;
            let lost = remote.data_loss().clone();
            let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(remote));
            users.push((store, lost));
        }
        let (reader, writer) = (&users[0].0, &users[1].0);
        reader.commit(put("a")).await.unwrap();
        reader.sync().await.unwrap();
        writer.commit(put("b")).await.unwrap();
        assert_eq!(reader.get(b"b").await.unwrap().unwrap(), "value");
        assert!(!reader.is_dirty() && writer.is_dirty());
        assert_eq!(reader.verifier(), 1);
        *keep.borrow_mut() = Some(users);
    });
    site.crash(Duration::from_secs(1));
    let users = held.borrow_mut().take().unwrap();
    run(&mut site, async move {
        for (store, lost) in users {
            // It was in flight or comes from memory: it may depend on lost data.
            drop(store.enqueue(put("late")));
            rt::sleep(Duration::from_secs(5)).await;
            let error = store.get(b"b").await.unwrap_err();
            assert!(error.to_string().contains("lost changes"), "{error}");
            assert!(lost.is_set());
        }
        let again: Arc<dyn Store> = Arc::new(RemoteWriter::new(open(address).await));
        assert_eq!(again.get(b"a").await.unwrap().unwrap(), "value");
        assert!(again.get(b"b").await.unwrap().is_none());
        assert!(again.get(b"late").await.unwrap().is_none());
        assert_eq!(again.verifier(), 2, "clients with unsynced writes learn of it");
    });
}

#[test]
fn a_process_death_loses_no_acknowledged_commit() {
    let mut site = SimCluster::new(2);
    let address = site.address;
    let held: Persistent<Arc<dyn Store>> = Rc::default();
    let keep = held.clone();
    run(&mut site, async move {
        let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(open(address).await));
        store.commit(put("a")).await.unwrap();
        *keep.borrow_mut() = Some(store);
    });
    site.kill(Duration::from_secs(1));
    let store = held.borrow_mut().take().unwrap();
    run(&mut site, async move {
        assert_eq!(store.get(b"a").await.unwrap().unwrap(), "value");
        assert_eq!(store.commit(put("b")).await.unwrap(), Outcome::Applied);
        store.sync().await.unwrap();
        assert_eq!(store.verifier(), 1);
    });
    assert_eq!(site.memory.unsynced(), 0);
}

/// An engine that can't write fails all requests as long as its process lives; then everything
/// continues.
#[test]
fn a_failed_engine_is_waited_for_until_it_was_opened_again() {
    let mut site = SimCluster::new(3);
    let address = site.address;
    let outcome: Rc<Cell<Option<Outcome>>> = Rc::default();
    let done = outcome.clone();
    site.world.spawn(site.user, async move {
        let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(open(address).await));
        store.commit(put("a")).await.unwrap();
        rt::sleep(Duration::from_secs(1)).await;
        done.set(Some(store.commit(put("b")).await.unwrap()));
    });
    site.world.advance(Duration::from_millis(500));
    site.memory.fail_with(Memory::no_space());
    site.world.advance(Duration::from_secs(10));
    assert_eq!(outcome.get(), None);
    site.kill(Duration::from_secs(1));
    site.world.advance(Duration::from_secs(5));
    assert_eq!(outcome.get(), Some(Outcome::Applied));
}

#[test]
fn a_batch_that_fits_into_no_message_is_refused_and_no_other() {
    let mut site = SimCluster::new(4);
    let address = site.address;
    run(&mut site, async move {
        let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(open(address).await));
        let huge = Batch { guards: vec![], writes: vec![("k".into(), Some(vec![0; 1 << 20].into()))] };
        let error = store.commit(huge).await.unwrap_err();
        assert!(matches!(error, KvError::TooLarge { .. }), "{error}");
        let large = Batch { guards: vec![], writes: vec![("k".into(), Some(vec![0; 600 << 10].into()))] };
        let tickets: Vec<_> = (0..4).map(|_| store.enqueue(large.clone())).collect();
        for ticket in &tickets {
            assert_eq!(store.wait(ticket).await.unwrap(), Outcome::Applied);
        }
        assert_eq!(store.stats().commits, 4, "each fills a message");
        let tickets: Vec<_> = (0..100).map(|n| store.enqueue(put(&n.to_string()))).collect();
        for ticket in &tickets {
            assert_eq!(store.wait(ticket).await.unwrap(), Outcome::Applied);
        }
        assert!(store.stats().commits <= 6, "the others share one: {:?}", store.stats());
    });
}
