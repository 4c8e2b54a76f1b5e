//! Other users of a machine can neither change nor read weft's files, whatever umask it is started
//! with. weft refuses files that they could have changed or read.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Generous: test machines are busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Files that all users may read: they contain no secret, and are in a directory that only its
/// owner can enter.
const PUBLIC: [&str; 2] = ["node.toml", "ca.crt"];

/// The command with the most permissive umask.
fn weft(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weft")]).args(arguments);
    command
}

fn init(dir: &Path) -> Output {
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = dir.to_str().unwrap();
    let line =
        ["cluster", "init", "--name", "private", "--address", &listen, "--listen", &listen, "--dir", dir];
    weft(&line).output().unwrap()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn below(dir: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // The store may have removed the file meanwhile.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        found.push((path.clone(), meta.permissions().mode() & 0o777));
        if meta.is_dir() {
            below(&path, found);
        }
    }
}

#[test]
fn what_a_node_keeps_is_for_its_owner_with_any_umask() {
    let base = tempfile::tempdir().unwrap();
    let (dir, target) = (base.path().join("node"), base.path().join("target"));
    let made = init(&dir);
    assert!(made.status.success(), "{}", stderr_text(&made));
    let (node, disk) = (dir.to_str().unwrap(), target.to_str().unwrap());
    let added = weft(&["target", "add", disk, "--dir", node]).output().unwrap();
    assert!(added.status.success(), "{}", stderr_text(&added));
    let serve = weft(&["serve", "--dir", node]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _served = Served(serve);
    let began = Instant::now();
    loop {
        let listed = weft(&["target", "list", "--json", "--dir", node]).output().unwrap();
        if String::from_utf8_lossy(&listed.stdout).contains(disk) {
            break;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{}", stderr_text(&listed));
        sleep(Duration::from_millis(100));
    }
    let copied = weft(&["meta", "backup", "--dir", node]).output().unwrap();
    assert!(copied.status.success(), "{}", stderr_text(&copied));

    let mut found = vec![];
    for root in [&dir, &target] {
        assert_eq!(fs::metadata(root).unwrap().permissions().mode() & 0o777, 0o700, "{}", root.display());
        below(root, &mut found);
    }
    let names: Vec<&str> = found.iter().filter_map(|(path, _)| path.file_name()?.to_str()).collect();
    for name in ["weft.toml", "control.sock", "client.toml", "target.toml", "weft.pid", "lock", "backups"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for (path, mode) in &found {
        let is_public = PUBLIC.iter().any(|name| path.ends_with(name));
        let others = if is_public { 0o022 } else { 0o077 };
        assert_eq!(mode & others, 0, "{} has mode {mode:o}", path.display());
    }
}

#[test]
fn a_directory_that_others_may_change_becomes_no_node() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("node");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let refused = init(&dir);
    assert!(
        !refused.status.success() && stderr_text(&refused).contains("chmod go-w"),
        "{}",
        stderr_text(&refused)
    );
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is made there");
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    if chown(&dir, Some(12_345), None).is_ok() {
        let refused = init(&dir);
        assert!(
            !refused.status.success() && stderr_text(&refused).contains("uid 12345"),
            "{}",
            stderr_text(&refused)
        );
        chown(&dir, Some(0), None).unwrap();
    }
    let made = init(&dir);
    assert!(made.status.success(), "{}", stderr_text(&made));
}

#[test]
fn a_cluster_file_that_others_may_read_mounts_nothing() {
    let base = tempfile::tempdir().unwrap();
    let (dir, mountpoint) = (base.path().join("node"), base.path().join("mnt"));
    assert!(init(&dir).status.success());
    fs::create_dir(&mountpoint).unwrap();
    let file = dir.join("client.toml");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let mut mount = weft(&["mount", file.to_str().unwrap(), mountpoint.to_str().unwrap(), "--timeout", "1"]);
    let refused = mount.output().unwrap();
    assert!(
        !refused.status.success() && stderr_text(&refused).contains("chmod 600"),
        "{}",
        stderr_text(&refused)
    );
}
