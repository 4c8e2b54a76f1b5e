//! Clients with individual certificates: one is revoked while others continue; one is renewed.

use super::super::netns::Role;
use super::super::outcome::{At, TestResult, ensure, ensure_eq};
use super::super::stage::Stage;
use super::super::{Scope, TestCase};
use super::{Cluster, Part};
use crate::process;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "revoked_client", scope: Scope::Own, minutes: 4, run: revoked_client },
    TestCase { name: "renewed_client", scope: Scope::Own, minutes: 4, run: renewed_client },
];

/// Validity of the renewed certificates in seconds: a mount renews them in the last third.
const VALIDITY_S: u64 = 20;

/// Longest time until a renewal, and until the previous certificate expires.
const RENEWAL: Duration = Duration::from_secs(4 * VALIDITY_S);

impl Cluster {
    /// Runs `weft client` on the management node.
    fn clients(&self, words: &[&str]) -> TestResult<String> {
        self.ask_management(|management| {
            let mut line: Vec<OsString> = vec!["client".into()];
            line.extend(words.iter().map(OsString::from));
            line.extend(["--dir".into(), management.into()]);
            line
        })
    }

    /// Returns the entry of a client in `weft client list`.
    fn client_named(&self, name: &str) -> TestResult<Value> {
        let all: Value = parsed(&self.clients(&["list", "--json"])?)?;
        let found = all.as_array().and_then(|all| all.iter().find(|client| client["name"] == name));
        found.cloned().ok_or_else(|| format!("no client {name} in {all}").into())
    }

    /// Returns the sessions of a client in `weft session list`.
    fn sessions_of(&self, name: &str) -> TestResult<Vec<Value>> {
        let said = self.ask_management(|management| {
            vec!["session".into(), "list".into(), "--json".into(), "--dir".into(), management.into()]
        })?;
        let all: Value = parsed(&said)?;
        let is_of = |session: &&Value| session["client"] == format!("client/{name}");
        Ok(all.as_array().into_iter().flatten().filter(is_of).cloned().collect())
    }

    /// Returns the cluster file of a mount.
    fn cluster_file_of(&self, client: usize) -> TestResult<PathBuf> {
        Ok(self.folder(self.network.node(Role::Client, client))?.join("cluster"))
    }
}

fn parsed(said: &str) -> TestResult<Value> {
    serde_json::from_str(said).map_err(|error| format!("{error}: {said}").into())
}

/// Creates a file and syncs it to the cluster.
fn make(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(b"made")?;
    file.sync_all()
}

/// Two clients mount under their own names; one of them is revoked.
fn revoked_client(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "clients", 1, 2)?;
    let dirs = cluster.shared_folder("d")?;
    let (lost, other) = (Part::Client(0), Part::Client(1));
    let (name, other_name) = (cluster.node(lost).to_string(), cluster.node(other).to_string());
    for dir in &dirs {
        make(&dir.join("made")).at("a file before the revocation")?;
    }
    for name in [&name, &other_name] {
        let sessions = cluster.sessions_of(name)?;
        ensure_eq!(sessions.len(), 1, "sessions of {name}");
        let host = sessions[0]["host"].as_str().unwrap_or_default();
        ensure!(host.contains(':'), "host and process of {name}: {host:?}");
        let client = cluster.client_named(name)?;
        ensure!(client["state"] == "valid" && client["sessions"] == 1, "a client that is mounted: {client}");
    }
    ensure!(cluster.clients(&["revoke", "nobody"]).is_err(), "a client that isn't there was revoked");
    let outcome = parsed(&cluster.clients(&["revoke", &name, "--json"])?)?;
    let reached = outcome["unaware"].as_array().is_some_and(Vec::is_empty);
    ensure!(reached && outcome["sessions"].as_array().map(Vec::len) == Some(1), "a revocation: {outcome}");
    // From here on the cluster refuses its requests, which don't hang.
    let error = make(&dirs[0].join("late")).err();
    ensure_eq!(error.and_then(|e| e.raw_os_error()), Some(libc::EACCES), "a file of a revoked client");
    let read = fs::read(dirs[0].join("nothing")).err();
    ensure_eq!(read.and_then(|e| e.raw_os_error()), Some(libc::EACCES), "a name that it doesn't know");
    make(&dirs[1].join("later")).at("a file of the other client")?;
    ensure!(!dirs[1].join("late").exists(), "a file of a revoked client is there");
    ensure_eq!(cluster.client_named(&name)?["state"], "revoked", "the revoked client in the list");
    ensure_eq!(cluster.client_named(&other_name)?["state"], "valid", "the other client");
    // It can't mount again either, until its name is assigned again.
    let said = cluster.mount_again(0, &stage.scratch("revoked-mount")?)?;
    ensure!(!said.status.success() && said.stderr.contains("revoked"), "a refused mount: {}", said.tail());
    drop(cluster.service(lost).terminate());
    cluster.write_cluster_file(0, &[])?;
    cluster.restart(lost)?;
    make(&dirs[0].join("again")).at("a file after the name was given away again")?;
    ensure!(dirs[1].join("again").exists(), "the other client doesn't see it");
    ensure_eq!(cluster.client_named(&name)?["state"], "valid", "the client that was added again");
    cluster.stop()
}

/// A mount survives its first certificate's expiry: it gets another one, which it also writes to
/// its cluster file.
fn renewed_client(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "renewed", 1, 1)?;
    let client = Part::Client(0);
    let name = cluster.node(client).to_string();
    let dir = cluster.shared_folder("d")?.remove(0);
    let status = cluster.service(client).terminate()?;
    ensure!(status.success(), "the client ended with {status}");
    cluster.clients(&["revoke", &name])?;
    cluster.write_cluster_file(0, &["--validity", &format!("{VALIDITY_S}s")])?;
    let file = cluster.cluster_file_of(0)?;
    let first = fs::read_to_string(&file).at("the cluster file")?;
    let ends =
        cluster.client_named(&name)?["ends_s"].as_u64().ok_or("a client without an end".to_string())?;
    cluster.restart(client)?;
    let has_another = || fs::read_to_string(&file).is_ok_and(|now| now != first);
    ensure!(process::eventually(RENEWAL, has_another), "no other certificate: {}", cluster.log());
    let later = cluster.client_named(&name)?["ends_s"].as_u64();
    ensure!(later > Some(ends), "the renewed certificate ends at {later:?}, the first one at {ends}");
    let has_ended = || SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| now.as_secs() > ends);
    ensure!(process::eventually(RENEWAL, has_ended), "time stands still");
    // It must connect again.
    cluster.kill_storage(0);
    cluster.restart_storage(0)?;
    cluster.wait_until_healthy()?;
    fs::write(dir.join("file"), vec![7; 1 << 20]).at("a file after the first certificate has ended")?;
    ensure_eq!(fs::read(dir.join("file")).at("it")?.len(), 1 << 20, "what was written");
    cluster.stop()
}
