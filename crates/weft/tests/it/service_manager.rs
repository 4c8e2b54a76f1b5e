//! A node reports its states to the service manager.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest wait for a state.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Ends the node also when the test fails.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the next message, a line for each state.
fn next_message(manager: &UnixDatagram) -> Vec<String> {
    let mut message = [0; 4096];
    let len = manager.recv(&mut message).unwrap();
    String::from_utf8_lossy(&message[..len]).lines().map(str::to_owned).collect()
}

fn manager_at(path: &Path) -> UnixDatagram {
    let manager = UnixDatagram::bind(path).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    manager
}

#[test]
fn a_node_is_ready_when_it_serves_and_stopping_before_it_ends() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("node");
    let node = dir.to_str().unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let init =
        ["cluster", "init", "--name", "managed", "--address", &listen, "--listen", &listen, "--dir", node];
    assert!(weft(&init).status().unwrap().success());
    let socket = base.path().join("notify");
    let manager = manager_at(&socket);

    let serve = weft(&["serve", "--dir", node]).env("NOTIFY_SOCKET", &socket).spawn().unwrap();
    let mut serve = Node(serve);
    assert_eq!(next_message(&manager), ["READY=1", "STATUS=serving"]);
    // Readiness means that commands reach the node.
    assert!(weft(&["node", "list", "--dir", node]).status().unwrap().success());

    let pid = fs::read_to_string(dir.join("weft.pid")).unwrap();
    assert!(Command::new("kill").args(["-TERM", pid.trim()]).status().unwrap().success());
    assert_eq!(next_message(&manager), ["STOPPING=1", "STATUS=stopping: SIGTERM"]);
    assert!(serve.0.wait().unwrap().success());
}
