//! Memory of servers for idle clients: 200 sessions with two connections each, and 10,000 open
//! files; on one node with all roles, and on four processes that share them.

use client::{Client, ClientOptions, Handle, ReadOptions, WriteOptions};
use identity::Credentials;
use identity::tls::UnauthenticatedClients;
use net::{Channel, ClientIdentity, Peer, PeerOptions, Security, Tls};
use routing::{MetaChannels, StorageChannels, WhenOffline};
use rt::{CoreConfig, IoBuf};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};
use types::{InodeId, MapHandle, SessionId};
use wire::{MgmtReply, MgmtRequest};

const SESSIONS: u64 = 200;
const FILES_OF_SESSION: usize = 50;

/// One of this many files has content on targets, of this many bytes: more than fits inline.
const WRITTEN: usize = 5;
const CONTENT_BYTES: usize = 16 << 10;

/// Most memory of the servers for all of it, in bytes.
const MAX_COST: u64 = 200 << 20;

/// Most memory per idle connection, in bytes: TLS state, three tasks, and two pages for receiving.
/// With staging buffers that are never released it would be about 150 KiB.
const MAX_COST_OF_CONNECTION: u64 = 56 << 10;

/// Generous: test machines are busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct ClusterFile {
    cluster: String,
    credentials: String,
}

/// The processes of a cluster; the first one runs management.
struct Cluster {
    processes: Vec<Child>,
    dir: PathBuf,
    address: SocketAddr,
    base: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn weft(arguments: &[&str], dir: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.args(arguments).arg("--dir").arg(dir).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Cluster {
    /// Starts management with the roles `first`, and a process for each of the `others`.
    fn start(first: &str, others: &[&str]) -> Cluster {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("node-0");
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        weft(
            &["cluster", "init", "--name", "idle", "--listen", &address.to_string(), "--roles", first],
            &dir,
        );
        let mut cluster = Cluster { processes: Vec::new(), dir: dir.clone(), address, base };
        cluster.serve(&dir, first);
        for (number, roles) in (1..).zip(others) {
            let token = weft(&["cluster", "token"], &dir);
            let node = cluster.base.path().join(format!("node-{number}"));
            let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
            let name = format!("node-{number}");
            let join = ["node", "join", token.trim(), "--roles", roles, "--name", &name, "--listen", &listen];
            weft(&join, &node);
            cluster.serve(&node, roles);
        }
        cluster.wait_for("health", &dir);
        cluster
    }

    fn serve(&mut self, dir: &Path, roles: &str) {
        if roles.contains("storage") {
            weft(&["target", "add", dir.with_extension("target").to_str().unwrap()], dir);
        }
        let mut serve = Command::new(env!("CARGO_BIN_EXE_weft"));
        serve.args(["serve", "--dir"]).arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(serve.spawn().unwrap());
        self.wait_for("status", dir);
    }

    fn wait_for(&self, command: &str, dir: &Path) {
        let began = Instant::now();
        loop {
            let mut asked = Command::new(env!("CARGO_BIN_EXE_weft"));
            let answer = asked.args([command, "--dir"]).arg(dir).output().unwrap();
            if answer.status.success() {
                return;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{}", String::from_utf8_lossy(&answer.stderr));
            sleep(Duration::from_millis(100));
        }
    }

    /// Returns the resident bytes of the processes.
    fn resident(&self) -> u64 {
        let of_process = |process: &Child| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
        };
        self.processes.iter().map(of_process).sum()
    }

    fn cluster_file(&self) -> ClusterFile {
        toml::from_str(&weft(&["cluster", "token", "--client"], &self.dir)).unwrap()
    }
}

/// Starts a client that servers can't distinguish from a mounted one.
async fn session(file: &ClusterFile, address: SocketAddr, number: u64) -> Arc<Client> {
    let credentials = Credentials::from_text(&file.credentials).unwrap();
    let tls =
        Tls::member(&credentials, identity::Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let name = format!("client {number}");
    let identity = ClientIdentity { cluster: file.cluster.clone(), name, client: 1 + number };
    // One peer per process, for all of its services.
    let known: Mutex<BTreeMap<SocketAddr, Arc<Peer>>> = Mutex::default();
    let peer_at = Arc::new(move |address: SocketAddr| {
        let make = || {
            let options = PeerOptions {
                security: Security::Tls(tls.clone()),
                timeout: TEST_TIMEOUT,
                ..PeerOptions::new(format!("node at {address}"), vec![address], identity.clone())
            };
            Peer::new(options)
        };
        known.lock().unwrap().entry(address).or_insert_with(make).clone()
    });
    let management: Channel<MgmtRequest, MgmtReply> = Channel::remote(peer_at(address));
    let attach = MgmtRequest::Attach {
        cluster: file.cluster.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        clock_s: rt::now().secs,
    };
    let Ok(MgmtReply::Welcome { map, .. }) = management.call(attach, None).await else {
        panic!("client {number} isn't let in")
    };
    let map = MapHandle::new(map);
    let address_of = |node: &types::Node| node.addresses[0].parse::<SocketAddr>().unwrap();
    let at = peer_at.clone();
    let to_meta = Box::new(move |node: &types::Node| Channel::remote(at(address_of(node))));
    let to_storage = Box::new(move |node: &types::Node| Channel::remote(peer_at(address_of(node))));
    let client = Client::new(ClientOptions {
        session: SessionId(0x1000 + number),
        meta: MetaChannels::mapped(map.clone(), to_meta),
        storage: StorageChannels::mapped(map.clone(), WhenOffline::Try, to_storage),
        map,
        server_cache: true,
        write_behind: false,
        wsync: false,
        only_session: false,
    });
    client.register().await.unwrap();
    rt::spawn(client.clone().background());
    client
}

const ROOT: types::Credentials = types::Credentials { uid: 0, gid: 0, pid: 1 };

/// Opens files in a separate folder, which may be on any metadata service, and writes content to
/// targets for some.
async fn open_files(client: &Client, number: u64, handles: &mut Vec<Arc<Handle>>) {
    let folder = format!("folder-{number}");
    let folder = client.mkdir(ROOT, InodeId::ROOT, folder.as_bytes(), 0o755, 0).await.unwrap().ino;
    for file in 0..FILES_OF_SESSION {
        let made = client.create(ROOT, folder, format!("file-{file}").as_bytes(), 0o644, 0, 0o2).await;
        let handle = made.unwrap().1;
        if file % WRITTEN == 0 {
            let content = IoBuf::from_slice(&[1; CONTENT_BYTES]);
            client.write(&handle, 0, content, WriteOptions::default()).await.unwrap();
        }
        handles.push(handle);
    }
}

/// Measured bytes beyond the initial memory of the processes.
struct Cost {
    of_sessions: u64,
    in_all: u64,
}

fn measure(cluster: &Cluster) -> Cost {
    let (file, address) = (cluster.cluster_file(), cluster.address);
    let before = cluster.resident();
    let (clients_made, clients) = mpsc::channel();
    let (files_opened, opened) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let (open, open_now) = mpsc::channel::<()>();
    let config = |name: &str| CoreConfig { name: name.into(), ..CoreConfig::default() };
    let first = rt::start_core(config("first"), move || async move {
        let mut all = Vec::new();
        for number in 0..SESSIONS {
            all.push(session(&file, address, number).await);
        }
        clients_made.send(all.clone()).unwrap();
        // Meanwhile the clients' background work continues.
        until(&open_now).await;
        let mut handles = Vec::new();
        for (number, client) in (0..).zip(&all) {
            open_files(client, number, &mut handles).await;
        }
        files_opened.send(handles.clone()).unwrap();
        until(&finished).await;
    });
    let first = first.unwrap();
    let all: Vec<Arc<Client>> = clients.recv_timeout(TEST_TIMEOUT).unwrap();

    // The second core of each client connects, too, and stays connected.
    let (connected, second_connected) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let (read, read_now) = mpsc::channel::<Vec<Arc<Handle>>>();
    let second = rt::start_core(config("second"), move || async move {
        for client in &all {
            client.lookup(ROOT, InodeId::ROOT, b"nothing").await.unwrap_err();
        }
        connected.send(()).unwrap();
        let handles = until(&read_now).await;
        for (client, opened) in all.iter().zip(handles.chunks(FILES_OF_SESSION)) {
            for handle in opened.iter().step_by(WRITTEN) {
                let content = IoBuf::from_slice(&[0; CONTENT_BYTES]);
                assert_eq!(
                    client.read(handle, 0, content, ReadOptions::default()).await.unwrap(),
                    CONTENT_BYTES
                );
            }
        }
        connected.send(()).unwrap();
        until(&left).await;
    });
    let second = second.unwrap();
    second_connected.recv_timeout(TEST_TIMEOUT).unwrap();
    let with_sessions = cluster.resident();

    open.send(()).unwrap();
    let handles = opened.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(handles.len(), SESSIONS as usize * FILES_OF_SESSION);
    read.send(handles).unwrap();
    second_connected.recv_timeout(TEST_TIMEOUT).unwrap();
    let with_files = cluster.resident();
    finish.send(()).unwrap();
    leave.send(()).unwrap();
    first.join().unwrap();
    second.join().unwrap();
    Cost { of_sessions: with_sessions.saturating_sub(before), in_all: with_files.saturating_sub(before) }
}

/// Waits for a message of another thread, without blocking the tasks of this core.
async fn until<T>(receiver: &mpsc::Receiver<T>) -> T {
    loop {
        match receiver.try_recv() {
            Ok(word) => return word,
            Err(_) => rt::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[test]
fn idle_sessions_and_open_files_cost_little() {
    let cost = measure(&Cluster::start("mgmt,meta,storage", &[]));
    let of_connection = cost.of_sessions / (2 * SESSIONS);
    println!("{SESSIONS} sessions: {} KiB, {of_connection} bytes a connection", cost.of_sessions >> 10);
    println!("with {} open files: {} KiB", SESSIONS as usize * FILES_OF_SESSION, cost.in_all >> 10);
    assert!(of_connection <= MAX_COST_OF_CONNECTION, "{of_connection} bytes");
    assert!(cost.in_all <= MAX_COST, "{} bytes", cost.in_all);
}

/// Management with metadata, a second metadata service, and two storage nodes: each client has
/// connections to all.
#[test]
fn idle_sessions_cost_little_on_several_processes() {
    let cost = measure(&Cluster::start("mgmt,meta", &["meta", "storage", "storage"]));
    println!(
        "{SESSIONS} sessions: {} KiB, with open files: {} KiB",
        cost.of_sessions >> 10,
        cost.in_all >> 10
    );
    assert!(cost.in_all <= MAX_COST, "{} bytes", cost.in_all);
}
