//! Every user of a machine may ask a mount for the state of the cluster, and change nothing.

use super::{stderr_text, stdout_text, weft};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A user without rights.
const NOBODY: u32 = 65_534;

/// A cluster in one process, which is stopped and unmounted on drop.
struct Mounted {
    dir: String,
    mountpoint: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !weft(&["down", "--dir", &self.dir]).status.success() {
            weft(&["umount", "--force", self.mountpoint.to_str().unwrap_or_default()]);
        }
    }
}

/// Runs the command as another user; an error if that user can't execute it.
fn as_nobody(dir: &Path, arguments: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).current_dir(dir).env_remove("WEFT_DIR").stdin(Stdio::null());
    command.uid(NOBODY).gid(NOBODY).output()
}

/// Returns why this test can't run here, if so.
fn why_skipped() -> Option<String> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return Some("it needs root and /dev/fuse".into());
    }
    let done = as_nobody(Path::new("/"), &["--version"]);
    done.err().map(|e| format!("another user can't execute the program: {e}"))
}

/// Starts and mounts a cluster below a directory that all users can enter.
fn mount(base: &Path, options: &[&str]) -> Mounted {
    fs::set_permissions(base, Permissions::from_mode(0o755)).unwrap();
    let mountpoint = base.join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let dir = base.join("state").to_str().unwrap().to_string();
    let at = mountpoint.to_str().unwrap();
    let line = ["up", "--dir", &dir, "--mount", at, "--transport", "dev", "--detach"];
    let up = weft(&[&line[..], options].concat());
    assert!(up.status.success(), "{}", stderr_text(&up));
    Mounted { dir, mountpoint }
}

#[test]
fn another_user_asks_a_mount_and_changes_nothing() {
    if let Some(why) = why_skipped() {
        println!("skipped: {why}");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let mounted = mount(base.path(), &[]);

    let ask = |arguments: &[&str]| as_nobody(&mounted.mountpoint, arguments).unwrap();
    for words in [&["df"][..], &["status"], &["target", "list"], &["pool", "list"]] {
        let done = ask(words);
        assert!(done.status.success() && !done.stdout.is_empty(), "{words:?}: {}", stderr_text(&done));
    }
    let health = ask(&["health"]);
    assert!(stdout_text(&health).starts_with("healthy"), "{}", stderr_text(&health));
    for words in
        [&["session", "list"][..], &["pool", "set", "default", "--name", "x"], &["log", "level", "off"]]
    {
        let done = ask(words);
        let text = stderr_text(&done);
        assert!(done.status.code() == Some(1) && text.contains("only root may"), "{words:?}: {text}");
    }
    assert!(!ask(&["down", "--dir", &mounted.dir]).status.success());
    let status = weft(&["status", "--dir", &mounted.dir]);
    assert!(status.status.success(), "the cluster still runs: {}", stderr_text(&status));
}

#[test]
fn another_user_asks_nothing_of_a_mount_without_a_public_socket() {
    if let Some(why) = why_skipped() {
        println!("skipped: {why}");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let mounted = mount(base.path(), &["--no-public-socket"]);
    for words in [&["df"][..], &["status"], &["health"]] {
        let done = as_nobody(&mounted.mountpoint, words).unwrap();
        assert!(!done.status.success() && done.stdout.is_empty(), "{words:?}: {}", stdout_text(&done));
        let text = stderr_text(&done);
        assert!(text.contains("error: ") && text.contains("hint: "), "{words:?}: {text}");
    }
    // Root asks as before.
    let health = weft(&["health", "--dir", &mounted.dir]);
    assert!(stdout_text(&health).starts_with("healthy"), "{}", stderr_text(&health));
}
