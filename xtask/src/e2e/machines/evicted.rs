//! A client recovers by itself after the cluster has evicted it.

use super::super::coherence::{Load, LoadPlan, ensure_coherent};
use super::super::netns::Role;
use super::super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::{Cluster, Part};
use crate::history::Mix;
use crate::process;
use crate::sys::{self, Mapping};
use ::history::Limits;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "evicted_client_comes_back", scope: Scope::Own, minutes: 4, run: evicted_client },
    TestCase { name: "client_cut_off_comes_back", scope: Scope::Own, minutes: 5, run: client_cut_off },
    TestCase { name: "evictions_under_load", scope: Scope::Own, minutes: 5, run: evictions_under_load },
];

/// Longest time until a mount gets a successor session; much less on an idle machine.
pub(super) const RECOVERY: Duration = Duration::from_secs(90);

/// Page size in bytes.
const PAGE: usize = 4096;

/// Duration of repeated evictions in seconds, in the short and the long form.
const EVICTION_SECONDS: (u64, u64) = (20, 120);

impl Cluster {
    /// Returns the session as reported by the process of a mount.
    pub(super) fn session(&self, client: usize) -> TestResult<Value> {
        let mount = self.mount(client);
        let arguments: Vec<OsString> = vec!["session".into(), "show".into(), mount.into(), "--json".into()];
        let said = self.run(self.node(Part::Client(client)), &arguments)?;
        let session: Value =
            serde_json::from_str(&said).map_err(|error| format!("weft session show: {error}: {said}"))?;
        ensure!(session["session"].as_u64() < Some(1 << 53), "jq rounds the number of {session}");
        Ok(session)
    }

    /// Returns how often a mount got a successor session.
    pub(super) fn replacements(&self, client: usize) -> TestResult<u64> {
        let session = self.session(client)?;
        session["replacements"].as_u64().ok_or_else(|| format!("weft session show: {session}").into())
    }

    /// Waits until a mount has got more than `before` successor sessions.
    pub(super) fn wait_until_replaced(&self, client: usize, before: u64) -> TestResult {
        let came = process::eventually(RECOVERY, || {
            self.session(client).is_ok_and(|session| {
                session["replacements"].as_u64() > Some(before) && session["missing"].is_null()
            })
        });
        ensure!(came, "no other session: {:?}\n    {}", self.session(client), self.log());
        Ok(())
    }

    /// Waits until the cluster has ended a session by itself.
    pub(super) fn wait_until_ended(&self, session: Option<u64>) -> TestResult {
        let mut last = None;
        let list = || {
            self.ask_management(|management| {
                vec!["session".into(), "list".into(), "--json".into(), "--dir".into(), management.into()]
            })
        };
        let ended = process::eventually(2 * RECOVERY, || {
            let output = last
                .insert(list())
                .as_deref()
                .ok()
                .and_then(|output| serde_json::from_str::<Value>(output).ok());
            let sessions = output.as_ref().and_then(Value::as_array);
            sessions.is_some_and(|all| {
                !all.is_empty() && all.iter().all(|one| one["session"].as_u64() != session)
            })
        });
        ensure!(ended, "session {session:?} isn't ended: {last:?}\n    {}", self.log());
        Ok(())
    }

    /// Evicts the session of a mount, as an administrator does.
    fn evict(&self, client: usize) -> TestResult {
        let session = self.session(client)?["session"].to_string();
        self.ask_management(|management| {
            vec!["session".into(), "evict".into(), session.into(), "--dir".into(), management.into()]
        })?;
        Ok(())
    }
}

/// The control socket of the management node. A command would be a child process, and when files
/// that it inherits are closed, the kernel writes mapped pages back.
struct Socket(UnixStream);

impl Socket {
    fn of_management(cluster: &Cluster) -> TestResult<Socket> {
        let state = cluster.folder(cluster.node(Part::Management))?.join("state");
        // Socket names are limited to 108 bytes.
        let folder = File::open(&state).at(state.display())?;
        let path = format!("/proc/self/fd/{}/control.sock", folder.as_raw_fd());
        UnixStream::connect(&path).at(state.display()).map(Socket)
    }

    fn evict(&mut self, session: &Value) -> TestResult {
        let request = json!({"cmd": "manage", "request": {"ask": "evict-session", "session": session}});
        self.0.write_all(format!("{request}\n").as_bytes()).at("the control socket")?;
        let mut answer = String::new();
        BufReader::new(&self.0).read_line(&mut answer).at("the control socket")?;
        ensure!(answer.contains("\"ok\""), "an eviction: {answer}");
        Ok(())
    }
}

/// A shell whose working directory is a folder, and that creates files on request.
struct Shell(Child);

impl Shell {
    fn start(folder: &Path) -> TestResult<Shell> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while read -r name; do echo made > \"$name\" && ls; echo .; done"]);
        shell.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Shell(shell.spawn().at("sh")?))
    }

    /// Creates a file in the shell's working directory. Returns the content there.
    fn make(&mut self, name: &str) -> TestResult<String> {
        let input = self.0.stdin.as_mut().expect("it is piped");
        input.write_all(format!("{name}\n").as_bytes()).at("sh")?;
        let (output, mut said) = (self.0.stdout.as_mut().expect("it is piped"), Vec::new());
        while !said.ends_with(b".\n") {
            let mut byte = [0];
            output.read_exact(&mut byte).at("what sh says")?;
            said.extend(byte);
        }
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It exits when its input ends.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn writable(path: &Path) -> TestResult<File> {
    let both = File::options().read(true).write(true).create(true).truncate(false).open(path);
    both.at(path.display())
}

/// An administrator evicts the session of an active client.
fn evicted_client(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "evicted", 2, 2)?;
    let dirs = cluster.shared_folder("d")?;
    let file = writable(&dirs[0].join("file"))?;
    file.write_all_at(&[b'x'; 1 << 20], 0).at("write")?;
    let mapped = writable(&dirs[0].join("mapped"))?;
    mapped.write_all_at(&[b'm'; 4 * PAGE], 0).at("write")?;
    let mut mapping = Mapping::new(&mapped, 4 * PAGE, libc::MAP_SHARED).at("mmap")?;
    let reader = File::open(dirs[0].join("file")).at("open")?;
    let mut shell = Shell::start(&dirs[0])?;
    shell.make("before")?;
    sys::flock(&file, libc::LOCK_EX).at("flock")?;

    let session = cluster.session(0)?["session"].clone();
    let mut socket = Socket::of_management(&cluster)?;
    mapping.write(0, b"dirty");
    socket.evict(&session)?;
    // A read of a file opened earlier fails as soon as the client knows of the eviction; it then
    // drops the kernel's cached pages.
    let mut byte = [0];
    let knows = || mapped.read_at(&mut byte, PAGE as u64).is_err();
    ensure!(process::eventually(RECOVERY, knows), "a file of before can be read");
    cluster.wait_until_replaced(0, 0)?;
    let again = writable(&dirs[0].join("mapped"))?;
    expect_errno(mapping.sync(), libc::EIO, "what was mapped and not written before the end")?;
    expect_errno(file.write_all_at(b"y", 0), libc::EIO, "a write to a file of before")?;
    expect_errno(reader.read_at(&mut [0; 10], 0), libc::EIO, "a read of a file of before")?;
    expect_errno(file.sync_all(), libc::EIO, "a sync of a file of before")?;
    expect_errno(file.set_len(0), libc::EIO, "cutting a file of before")?;
    expect_errno(sys::flock(&file, libc::LOCK_SH), libc::EIO, "a lock on a file of before")?;
    let mut head = [0; 5];
    again.read_exact_at(&mut head, 0).at("the mapped file")?;
    ensure_eq!(&head, b"mmmmm", "nothing of before is written under another session");
    ensure!(shell.make("after")?.contains("before"), "the working directory isn't what it was");

    let theirs = writable(&dirs[1].join("file"))?;
    sys::flock(&theirs, libc::LOCK_EX | libc::LOCK_NB).at("a lock that was lost")?;
    drop((file, reader));
    let ours = writable(&dirs[0].join("file"))?;
    expect_errno(sys::flock(&ours, libc::LOCK_EX | libc::LOCK_NB), libc::EAGAIN, "another's lock")?;
    theirs.write_all_at(b"theirs", 0).at("write")?;
    let mut seen = [0; 6];
    ours.read_exact_at(&mut seen, 0).at("read")?;
    ensure_eq!(&seen, b"theirs", "content of a reopened file");
    ours.write_all_at(b"ours", 6).at("write")?;
    ensure!(fs::read(dirs[1].join("file")).at("read")?.starts_with(b"theirsours"), "what others read");
    ensure_eq!(fs::read_to_string(dirs[1].join("after")).at("read")?, "made\n", "what the shell made");

    let session = cluster.session(0)?;
    ensure!(session["replaced"]["files"].as_u64() >= Some(3), "files that were open: {session}");
    ensure!(session["files_of_before"].as_u64() >= Some(1), "files that are still open: {session}");
    drop((mapping, mapped));
    let is_closed = || cluster.session(0).is_ok_and(|session| session["files_of_before"] == 0);
    ensure!(process::eventually(RECOVERY, is_closed), "closed files count: {}", cluster.session(0)?);
    drop((ours, theirs, again, shell));
    cluster.stop()
}

/// A client is cut off until others have taken over what it held.
fn client_cut_off(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "cut-off", 2, 2)?;
    let dirs = cluster.shared_folder("d")?;
    let file = writable(&dirs[0].join("file"))?;
    file.write_all_at(&[b'x'; 1 << 20], 0).at("write")?;
    sys::flock(&file, libc::LOCK_EX).at("flock")?;
    let mut shell = Shell::start(&dirs[0])?;
    shell.make("before")?;
    cluster.network.isolate(cluster.network.node(Role::Client, 0))?;
    // Waits until the other session has ended.
    let theirs = writable(&dirs[1].join("file"))?;
    theirs.write_all_at(b"theirs", 0).at("a write of what a client held that is cut off")?;
    sys::flock(&theirs, libc::LOCK_EX).at("the lock of a client that is cut off")?;
    fs::write(dirs[1].join("new"), "content").at("new")?;
    cluster.network.restore_links()?;

    cluster.wait_until_replaced(0, 0)?;
    expect_errno(file.write_all_at(b"late", 0), libc::EIO, "a write to a file of before")?;
    expect_errno(file.sync_all(), libc::EIO, "a sync of a file of before")?;
    ensure!(shell.make("after")?.contains("new"), "the working directory doesn't show what others made");
    ensure_eq!(fs::read_to_string(dirs[0].join("new")).at("new")?, "content", "what others wrote");
    // Closing the old descriptor doesn't release another session's lock.
    drop(file);
    let ours = writable(&dirs[0].join("file"))?;
    expect_errno(sys::flock(&ours, libc::LOCK_EX | libc::LOCK_NB), libc::EAGAIN, "another's lock")?;
    let mut seen = [0; 8];
    ours.read_exact_at(&mut seen, 0).at("read")?;
    ensure_eq!(&seen, b"theirsxx", "content of a reopened file");
    sys::flock(&theirs, libc::LOCK_UN).at("unlock")?;
    sys::flock(&ours, libc::LOCK_EX | libc::LOCK_NB).at("a lock that is free")?;
    drop((ours, theirs, shell));
    cluster.stop()
}

/// Sessions are evicted one after the other while applications work on both mounts, and reopen
/// files that fail.
fn evictions_under_load(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "evictions", 2, 2)?;
    let seconds = if stage.full { EVICTION_SECONDS.1 } else { EVICTION_SECONDS.0 };
    let plan = LoadPlan {
        threads: 3,
        seconds,
        seed: u64::from(std::process::id()),
        mix: Mix::All,
        sessions_end: true,
    };
    let load = Load::start(&cluster.shared_folder("history")?, &stage.scratch("histories")?, plan)?;
    let (begun, mut evictions) = (Instant::now(), [0, 0]);
    let is_time_left = || begun.elapsed() < Duration::from_secs(seconds.saturating_sub(4));
    // Each session is evicted at least twice, however long that takes on a busy machine.
    while is_time_left() || evictions.iter().any(|&times| times < 2) {
        for client in [0, 0, 1] {
            thread::sleep(Duration::from_millis(700));
            let before = cluster.replacements(client)?;
            cluster.evict(client)?;
            evictions[client] += 1;
            cluster.wait_until_replaced(client, before)?;
        }
    }
    let (outcome, report) = load.finish(Limits::default())?;
    ensure_coherent(&report)?;
    ensure_eq!(outcome.stuck, 0, "calls that never returned: {outcome:?}");
    for (client, evictions) in evictions.into_iter().enumerate() {
        ensure!(evictions > 1, "{evictions} evictions are no row");
        ensure_eq!(cluster.replacements(client)?, evictions, "sessions of client {client}");
    }
    // Only errors that the end of a session may cause.
    let others: Vec<_> = outcome.errors.keys().filter(|error| !error.contains("os error 5)")).collect();
    ensure!(others.is_empty(), "errors beside EIO: {others:?}");
    cluster.stop()
}
