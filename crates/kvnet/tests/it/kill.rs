//! The store's process is killed (`kill -9`) repeatedly; its client reconnects by itself, and no
//! acknowledged commit is lost.

use kv::{Batch, Durability, Embedded, Engine, Guard, Outcome, RemoteWriter, Store, Writer};
use kvnet::{KvService, RemoteStore};
use net::{
    Channel, ClientIdentity, Handler, Peer, PeerOptions, Router, Security, Server, ServerLimits,
    ServerOptions,
};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use wire::{KvReply, KvRequest};

/// Directory of the child's store. Set only for the child, which is this test binary started again.
const CHILD_DIR: &str = "WEFT_KVNET_KILL_DIR";
/// Commits after which the child is killed, each on top of the existing ones.
const KILL_AFTER: [u64; 6] = [1, 50, 300, 2, 700, 20];
/// Concurrent sequences of commits.
const CHAINS: u64 = 4;
/// Allows for a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The process that is killed.
fn serve_for_ever(dir: &Path) {
    let engine: Arc<dyn Engine> = Arc::new(Embedded::open(dir).unwrap());
    let writer = Arc::new(Writer::new(engine, Durability::Process));
    let options = ServerOptions {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        cores: 2,
        name: "store".into(),
        cluster: String::new(),
        security: Security::Plain,
        map: types::MapHandle::default(),
        checksum_payloads: true,
        limits: ServerLimits::default(),
    };
    let service: Arc<dyn Handler<KvRequest, KvReply>> = Arc::new(KvService::new(writer));
    let server = Server::start(options, Router::new().with(service)).unwrap();
    println!("serves at {}", server.addresses()[0]);
    loop {
        std::thread::park();
    }
}

struct Served(Child, SocketAddr);

impl Served {
    fn start(dir: &Path) -> Served {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::a_client_outlives_its_store", "--nocapture"])
            .env(CHILD_DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let found = lines.find_map(|line| Some(line.split_once("serves at ")?.1.to_string()));
        Served(child, found.unwrap().parse().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Progress of the client.
#[derive(Default)]
struct Progress {
    acknowledged: [AtomicU64; CHAINS as usize],
    stop: AtomicBool,
}

impl Progress {
    fn all(&self) -> u64 {
        self.acknowledged.iter().map(|done| done.load(SeqCst)).sum()
    }
}

/// Counts up in the store; each step is guarded by the previous one.
async fn count_up(store: Arc<dyn Store>, chain: u64, progress: Arc<Progress>) {
    let key = format!("chain{chain}").into_bytes();
    let done = &progress.acknowledged[chain as usize];
    while !progress.stop.load(SeqCst) {
        let step = done.load(SeqCst) + 1;
        let expected = (step > 1).then(|| (step - 1).to_string().into());
        let batch = Batch {
            guards: vec![Guard { key: key.clone(), expected }],
            writes: vec![(key.clone(), Some(step.to_string().into()))],
        };
        // It can only have lost against its own first copy.
        let outcome = store.commit(batch).await.unwrap();
        assert!(matches!(outcome, Outcome::Applied | Outcome::Uncertain), "{outcome:?} at step {step}");
        assert_eq!(store.get(&key).await.unwrap().unwrap(), step.to_string());
        done.store(step, SeqCst);
    }
}

#[test]
fn a_client_outlives_its_store() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        return serve_for_ever(dir.as_ref());
    }
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path());
    let identity = ClientIdentity { cluster: String::new(), name: "test".into(), client: 1 };
    let mut options = PeerOptions::new("store", vec![served.1], identity);
    options.timeout = TEST_TIMEOUT;
    let peer = Peer::new(options);
    let progress = Arc::new(Progress::default());
    let client = {
        let (peer, progress) = (peer.clone(), progress.clone());
        std::thread::spawn(move || {
            let work = async move {
                let remote = RemoteStore::open(Channel::remote(peer), "the other process").await.unwrap();
                let store: Arc<dyn Store> = Arc::new(RemoteWriter::new(remote));
                rt::join_all((0..CHAINS).map(|n| count_up(store.clone(), n, progress.clone())).collect())
                    .await;
                store.sync().await.unwrap();
            };
            rt::block_on(work).unwrap();
        })
    };
    let wait_for = |count: u64| {
        let began = Instant::now();
        while progress.all() < count {
            assert!(began.elapsed() < TEST_TIMEOUT && !client.is_finished(), "the client doesn't get on");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for commits in KILL_AFTER {
        wait_for(progress.all() + commits);
        served.kill();
        served = Served::start(dir.path());
        peer.set_addresses(vec![served.1]);
    }
    wait_for(progress.all() + 50);
    progress.stop.store(true, SeqCst);
    client.join().unwrap();
    served.kill();
    let engine = Embedded::open(dir.path()).unwrap();
    for (chain, done) in progress.acknowledged.iter().enumerate() {
        let stored = engine.get(format!("chain{chain}").as_bytes()).unwrap().unwrap();
        assert_eq!(stored, done.load(SeqCst).to_string(), "chain {chain}");
    }
}
