//! What clients that do nothing cost a node: 200 sessions with two connections each, and 10,000 open files.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use client::{Client, ClientOptions, Handle};
use identity::Credentials;
use identity::tls::Strangers;
use net::{Channel, ClientIdentity, Peer, PeerOptions, Security, StorageChannels, Tls, WhenOffline};
use rt::CoreConfig;
use serde::Deserialize;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, RwLock, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};
use types::{InodeId, MapHandle, SessionId};
use wire::{MgmtReply, MgmtRequest};

const SESSIONS: u64 = 200;
const FILES_OF_SESSION: usize = 50;

/// What all of it may cost the servers, bytes.
const MAX_COST: u64 = 200 << 20;

/// What an idle connection may cost, bytes: the protection's state, three tasks, and two pages to receive into. With staging buffers that are
/// never given back it is about 150 KiB.
const MAX_COST_OF_CONNECTION: u64 = 56 << 10;

/// Generous: machines that test are busy.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
struct ClusterFile {
    cluster: String,
    credentials: String,
}

/// A node with all services in a process of its own.
struct Node {
    process: Child,
    dir: PathBuf,
    address: SocketAddr,
    _base: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn weft(arguments: &[&str], dir: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    let output = command.args(arguments).arg("--dir").arg(dir).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Node {
    fn start() -> Node {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("node");
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        weft(&["cluster", "init", "--name", "idle", "--listen", &address.to_string()], &dir);
        weft(&["target", "add", base.path().join("target").to_str().unwrap()], &dir);
        let mut serve = Command::new(env!("CARGO_BIN_EXE_weft"));
        serve.args(["serve", "--dir"]).arg(&dir).stdout(Stdio::null()).stderr(Stdio::null());
        let process = serve.spawn().unwrap();
        let node = Node { process, dir, address, _base: base };
        node.wait_for("health");
        node
    }

    fn wait_for(&self, command: &str) {
        let began = Instant::now();
        loop {
            let mut asked = Command::new(env!("CARGO_BIN_EXE_weft"));
            let answer = asked.args([command, "--dir"]).arg(&self.dir).output().unwrap();
            if answer.status.success() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{}", String::from_utf8_lossy(&answer.stderr));
            sleep(Duration::from_millis(100));
        }
    }

    /// Bytes of the process that are in memory.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn cluster_file(&self) -> ClusterFile {
        toml::from_str(&weft(&["cluster", "token", "--client"], &self.dir)).unwrap()
    }
}

/// A mounted client, as far as servers can tell.
async fn session(file: &ClusterFile, address: SocketAddr, number: u64) -> Arc<Client> {
    let credentials = Credentials::from_text(&file.credentials).unwrap();
    let tls = Tls::member(&credentials, identity::Protection::Encrypted, Strangers::Refused).unwrap();
    let name = format!("client {number}");
    let identity = ClientIdentity { cluster: file.cluster.clone(), name, client: 1 + number };
    let options = PeerOptions {
        security: Security::Tls(tls),
        timeout: PATIENCE,
        ..PeerOptions::new("node 1", vec![address], identity)
    };
    let peer = Peer::new(options);
    let management: Channel<MgmtRequest, MgmtReply> = Channel::remote(peer.clone());
    let attach = MgmtRequest::Attach {
        cluster: file.cluster.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        clock_s: rt::now().secs,
    };
    let Ok(MgmtReply::Welcome { map, .. }) = management.call(attach, None).await else {
        panic!("client {number} isn't let in")
    };
    let map: MapHandle = Arc::new(RwLock::new(map));
    let to = peer.clone();
    let connect = Box::new(move |_: &types::Node| Channel::remote(to.clone()));
    let client = Client::new(ClientOptions {
        session: SessionId(0x1000 + number),
        meta: Channel::remote(peer).into(),
        storage: StorageChannels::mapped(map.clone(), WhenOffline::Try, connect),
        map,
        server_cache: true,
        alone: false,
    });
    client.register().await.unwrap();
    rt::spawn(client.clone().background());
    client
}

async fn open_files(client: &Client, number: u64, handles: &mut Vec<Arc<Handle>>) {
    for file in 0..FILES_OF_SESSION {
        let name = format!("file-{number}-{file}");
        let me = types::Credentials { uid: 0, gid: 0, pid: 1 };
        let made = client.create(me, InodeId::ROOT, name.as_bytes(), 0o644, 0, 0o2).await;
        handles.push(made.unwrap().1);
    }
}

#[test]
fn idle_sessions_and_open_files_cost_little() {
    let node = Node::start();
    let (file, address) = (node.cluster_file(), node.address);
    let before = node.resident();

    let (clients_made, clients) = mpsc::channel();
    let (files_opened, opened) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let (open, open_now) = mpsc::channel::<()>();
    let first =
        rt::start_core(CoreConfig { name: "first".into(), ..CoreConfig::default() }, move || async move {
            let mut all = Vec::new();
            for number in 0..SESSIONS {
                all.push(session(&file, address, number).await);
            }
            clients_made.send(all.clone()).unwrap();
            // Meanwhile the clients go on with what they do in the background.
            while open_now.try_recv().is_err() {
                rt::sleep(Duration::from_millis(50)).await;
            }
            let mut handles = Vec::new();
            for (number, client) in (0..).zip(&all) {
                open_files(client, number, &mut handles).await;
            }
            files_opened.send(handles.len()).unwrap();
            while finished.try_recv().is_err() {
                rt::sleep(Duration::from_millis(50)).await;
            }
        });
    let first = first.unwrap();
    let all: Vec<Arc<Client>> = clients.recv_timeout(PATIENCE).unwrap();

    // The second core of each client connects, too, and stays.
    let (connected, second_connected) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let second =
        rt::start_core(CoreConfig { name: "second".into(), ..CoreConfig::default() }, move || async move {
            for client in &all {
                client
                    .lookup(types::Credentials { uid: 0, gid: 0, pid: 1 }, InodeId::ROOT, b"nothing")
                    .await
                    .unwrap_err();
            }
            connected.send(()).unwrap();
            while left.try_recv().is_err() {
                rt::sleep(Duration::from_millis(50)).await;
            }
        });
    let second = second.unwrap();
    second_connected.recv_timeout(PATIENCE).unwrap();
    let with_sessions = node.resident();

    open.send(()).unwrap();
    let files = opened.recv_timeout(PATIENCE).unwrap();
    let with_files = node.resident();
    assert_eq!(files, SESSIONS as usize * FILES_OF_SESSION);

    let of_connections = with_sessions.saturating_sub(before);
    let in_all = with_files.saturating_sub(before);
    println!(
        "{SESSIONS} sessions: {} KiB, {} KiB a connection; with {files} open files: {} KiB",
        of_connections >> 10,
        (of_connections / (2 * SESSIONS)) >> 10,
        in_all >> 10,
    );
    assert!(of_connections / (2 * SESSIONS) <= MAX_COST_OF_CONNECTION, "{of_connections} bytes");
    assert!(in_all <= MAX_COST, "{in_all} bytes");
    finish.send(()).unwrap();
    leave.send(()).unwrap();
    first.join().unwrap();
    second.join().unwrap();
}
