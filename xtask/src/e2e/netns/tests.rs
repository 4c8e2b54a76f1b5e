//! Tests of the network rig that the cluster tests rely on.

use super::super::cleanup::{self, Resource};
use super::super::mounts;
use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::leftovers;
use super::namespace::{FOLDER, Namespace};
use super::{Network, Node, Plan, Recipe, Role, Service};
use crate::process;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "nodes_can_be_cut_apart", scope: Scope::Own, minutes: 2, run: nodes_can_be_cut_apart },
    TestCase { name: "services_of_nodes", scope: Scope::Own, minutes: 2, run: services_of_nodes },
    TestCase { name: "mounts_of_nodes", scope: Scope::Own, minutes: 2, run: mounts_of_nodes },
    TestCase { name: "leftovers_of_a_dead_run", scope: Scope::Own, minutes: 2, run: leftovers_of_a_dead_run },
];

/// Port on which the tests listen.
const PORT: u16 = 7000;

/// Time after which a packet counts as dropped: on this machine delivery takes microseconds.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

/// Longest time for an expected event.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns whether a packet from one node arrives at the other.
fn arrives(from: &Node, to: &Node, timeout: Duration) -> TestResult<bool> {
    let receiver = to.inside(|| UdpSocket::bind((to.address, PORT)))?.at(to)?;
    let sender = from.inside(|| UdpSocket::bind((from.address, 0)))?.at(from)?;
    receiver.set_read_timeout(Some(timeout)).at("the receiver")?;
    // A cut at the sender may cause an error, which counts as no arrival.
    drop(sender.send_to(from.to_string().as_bytes(), (to.address, PORT)));
    let mut packet = [0; 64];
    match receiver.recv_from(&mut packet) {
        Ok((length, source)) => {
            ensure_eq!(source.ip(), from.address, "the sender that {to} sees");
            ensure_eq!(&packet[..length], from.to_string().as_bytes(), "the packet from {from} to {to}");
            Ok(true)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Ok(false)
        }
        Err(error) => Err(error).at(to),
    }
}

fn ensure_links(from: &Node, to: &Node, there: bool, back: bool, when: &str) -> TestResult {
    let timeout = |open: bool| if open { DEADLINE } else { DROP_TIMEOUT };
    ensure_eq!(arrives(from, to, timeout(there))?, there, "{from} to {to} {when}");
    ensure_eq!(arrives(to, from, timeout(back))?, back, "{to} to {from} {when}");
    Ok(())
}

fn nodes_can_be_cut_apart(_stage: &Stage) -> TestResult {
    let network = Network::new(Plan::default())?;
    let (storage, client) = (network.node(Role::Storage, 1), network.node(Role::Client, 0));
    let other_node = network.node(Role::Management, 0);
    for from in network.nodes() {
        for to in network.nodes() {
            ensure!(arrives(from, to, DEADLINE)?, "nothing arrives from {from} at {to}");
        }
    }
    let (mut near, mut far) = connect(client, storage)?;

    network.cut_one_way(storage, client)?;
    ensure_links(storage, client, false, true, "when cut one way")?;
    network.restore_links()?;
    ensure_links(storage, client, true, true, "when healed")?;

    network.cut(storage, client)?;
    ensure_links(storage, client, false, false, "when cut both ways")?;
    ensure_links(other_node, client, true, true, "when others are cut")?;
    ensure_links(other_node, storage, true, true, "when others are cut")?;
    // Data written to a connection during the cut isn't lost.
    near.write_all(b"x").at("a write into a cut")?;
    far.set_read_timeout(Some(DROP_TIMEOUT)).at("the far end")?;
    ensure!(far.read(&mut [0; 1]).is_err(), "a byte came through a cut");
    network.restore_links()?;
    far.set_read_timeout(Some(DEADLINE)).at("the far end")?;
    far.read_exact(&mut [0; 1]).at("the byte that was written into the cut")?;

    network.isolate(storage)?;
    ensure_links(other_node, storage, false, false, "when isolated")?;
    ensure!(arrives(storage, storage, DEADLINE)?, "an isolated node can't talk to itself");
    network.restore_links()?;
    network.link_down(storage)?;
    ensure_links(other_node, storage, false, false, "when unplugged")?;
    network.link_up(storage)?;
    // ARP resolves neighbours again; the first packets may be lost meanwhile.
    let plugged =
        process::eventually(DEADLINE, || arrives(other_node, storage, DROP_TIMEOUT).unwrap_or(false));
    ensure!(plugged, "nothing arrives at a node that was plugged in again");
    ensure_gone(network)
}

/// Connects two nodes. Returns both ends of the connection.
fn connect(from: &Node, to: &Node) -> TestResult<(TcpStream, TcpStream)> {
    let listener = to.inside(|| TcpListener::bind((to.address, PORT)))?.at(to)?;
    let address = SocketAddr::from((to.address, PORT));
    let near = from.inside(|| TcpStream::connect_timeout(&address, DEADLINE))?.at(from)?;
    let (far, _) = listener.accept().at(to)?;
    Ok((near, far))
}

/// Checks that dropping a network leaves nothing.
fn ensure_gone(network: Network) -> TestResult {
    let name = network.name.clone();
    drop(network);
    let left: Vec<_> = fs::read_dir(FOLDER).at(FOLDER)?.flatten().map(|entry| entry.file_name()).collect();
    let left: Vec<_> = left.iter().filter(|left| left.to_string_lossy().starts_with(&name)).collect();
    ensure!(left.is_empty(), "left of {name}: {left:?}");
    Ok(())
}

fn services_of_nodes(stage: &Stage) -> TestResult {
    let network = Network::new(Plan { management: 0, metadata: 0, storage: 2, clients: 0 })?;
    let node = network.node(Role::Storage, 0);
    let log = network.folder(&stage.scratch("services")?, node)?.join("log");
    // The script prints its address and keeps running.
    let script = "ip -4 -o addr show dev eth0; exec sleep 1000";
    let recipe = Recipe { program: "sh".into(), arguments: ["-c", script].map(Into::into).to_vec(), log };
    let mut service = Service::start(node, recipe)?;
    let told = process::eventually(DEADLINE, || service.log().contains(&node.address.to_string()));
    ensure!(told, "the service isn't in its node's network: {}", service.log());
    let pid = service.pid().expect("it was just started");
    service.freeze()?;
    ensure!(process::eventually(DEADLINE, || state(pid) == Some('T')), "SIGSTOP has no effect on {pid}");
    service.thaw()?;
    ensure!(process::eventually(DEADLINE, || state(pid) == Some('S')), "SIGCONT has no effect on {pid}");
    service.kill();
    ensure_eq!(state(pid), None, "the state of a killed service");
    ensure!(!service.is_running(), "a killed service runs");
    service.restart(node)?;
    ensure!(service.is_running(), "a service doesn't run again");
    let status = service.terminate()?;
    ensure!(!status.success(), "sleep ended well on SIGTERM");
    // Removing a namespace kills the processes in it.
    let mut forgotten = node.command("sleep").arg("1000").stdin(Stdio::null()).spawn().at("sleep")?;
    let entered = process::eventually(DEADLINE, || is_inside(forgotten.id(), &node.namespace.path()));
    ensure!(entered, "sleep didn't enter its namespace");
    ensure_gone(network)?;
    let ended = process::wait(&mut forgotten, DEADLINE).at("sleep")?;
    drop(forgotten.kill());
    ensure!(ended.is_some(), "a process outlives its node");
    Ok(())
}

/// A mount made in a node's network is visible to all processes, and stalls when its process is
/// stopped.
fn mounts_of_nodes(stage: &Stage) -> TestResult {
    let network = Network::new(Plan { management: 0, metadata: 0, storage: 0, clients: 1 })?;
    let node = network.node(Role::Client, 0);
    let folder = network.folder(&stage.base("node-mount")?, node)?;
    let (dir, mount) = (folder.join("state"), folder.join("mnt"));
    fs::create_dir(&mount).at(mount.display())?;
    let words = ["up".as_ref(), "--dir".as_ref(), dir.as_os_str(), "--mount".as_ref(), mount.as_os_str()];
    let recipe = Recipe {
        program: stage.binary()?.to_path_buf(),
        arguments: words.map(Into::into).to_vec(),
        log: folder.join("output"),
    };
    cleanup::register(Resource::Mount(mount.clone()));
    let mut service = Service::start(node, recipe)?;
    let mounted = process::eventually(DEADLINE, || mounts::is_weft(&mount));
    ensure!(mounted, "the node's mount isn't seen here: {}", service.last_lines());
    fs::write(mount.join("before"), "before").at("a write to the node's mount")?;
    service.freeze()?;
    let mut touch = Command::new("touch").arg(mount.join("frozen")).spawn().at("touch")?;
    let early = process::wait(&mut touch, DROP_TIMEOUT).at("touch")?;
    ensure_eq!(early, None, "a frozen process has served");
    service.thaw()?;
    let status = process::wait(&mut touch, DEADLINE).at("touch")?;
    ensure!(status.is_some_and(|status| status.success()), "touch ended with {status:?} after the thaw");
    ensure!(mount.join("frozen").exists(), "what touch made isn't there");
    let status = service.terminate()?;
    ensure!(status.success(), "weft ended with {status}: {}", service.last_lines());
    ensure!(mounts::find(&mount).is_none(), "a mount outlives its process");
    cleanup::unregister(&Resource::Mount(mount));
    ensure_gone(network)
}

/// Returns whether a process is in this network namespace.
fn is_inside(pid: u32, namespace: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|found| found.ino()).ok();
    inode(Path::new(&format!("/proc/{pid}/ns/net"))) == inode(namespace)
}

/// Returns the letter of a process's state.
fn state(pid: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The preceding name may contain any characters, but ends with the last parenthesis.
    text.rsplit_once(") ")?.1.chars().next()
}

fn leftovers_of_a_dead_run(_stage: &Stage) -> TestResult {
    // Skips the test if namespaces can't be created.
    drop(Network::new(Plan { management: 1, metadata: 0, storage: 0, clients: 0 })?);
    let mut dead = Command::new("true").spawn().at("true")?;
    let dead_id = dead.id();
    dead.wait().at("true")?;
    let name = leftovers::run_name(99).replace(&std::process::id().to_string(), &dead_id.to_string());
    let left = Namespace::new(format!("{name}-storage-1"))?;
    let mut inside = left.command("sleep").arg("1000").stdin(Stdio::null()).spawn().at("sleep")?;
    let entered = process::eventually(DEADLINE, || is_inside(inside.id(), &left.path()));
    ensure!(entered, "sleep didn't enter its namespace");
    let network = Network::new(Plan { management: 1, metadata: 0, storage: 0, clients: 0 })?;
    let ended = process::wait(&mut inside, DEADLINE).at("sleep")?;
    drop(inside.kill());
    ensure!(ended.is_some(), "a dead run's process is still running");
    ensure!(!left.path().exists(), "a dead run's namespace is still there");
    ensure_gone(network)
}
