//! Export rules for networks: a client's rights depend on its source address, not on its claims.

use super::super::netns::Role;
use super::super::outcome::{At, TestResult, ensure, ensure_eq, expect_errno};
use super::super::stage::Stage;
use super::super::{Scope, TestCase, mounts};
use super::{COMMAND_DEADLINE, Cluster, Part};
use crate::process;
use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "rules_for_networks", scope: Scope::Own, minutes: 4, run: rules_for_networks },
    TestCase {
        name: "mount_over_a_stopped_client",
        scope: Scope::Own,
        minutes: 3,
        run: mount_over_a_stopped_client,
    },
];

/// A user whose files a squashed root can't read.
const OWNER: u32 = 4711;

/// The user id of squashed users in this test.
const ANONYMOUS: u32 = 99;

/// Longest time until a rule takes effect: it reaches the services within a heartbeat, but test
/// machines are busy.
const SOON: Duration = Duration::from_secs(30);

impl Cluster {
    /// Runs `weft export` on the management node.
    fn export(&self, words: &[&str]) -> TestResult<String> {
        self.ask_management(|management| {
            let mut line: Vec<OsString> = vec!["export".into()];
            line.extend(words.iter().map(OsString::from));
            line.extend(["--dir".into(), management.into()]);
            line
        })
    }

    fn address(&self, client: usize) -> String {
        self.network.node(Role::Client, client).address.to_string()
    }

    /// Mounts again on a client's node at another path. Returns the result of the command.
    pub(super) fn mount_again(&self, client: usize, at: &std::path::Path) -> TestResult<process::Finished> {
        let node = self.network.node(Role::Client, client);
        let arguments = self.commands.mount(&self.folder(node)?.join("cluster"), at, Some(5), &[]);
        Ok(process::run(node.command(self.commands.weft()).args(&arguments), COMMAND_DEADLINE)?)
    }
}

/// Three clients of one cluster: one with root squashing, one with read-only access, one without
/// access.
fn rules_for_networks(stage: &Stage) -> TestResult {
    let mut cluster = Cluster::start(stage, "exports", 1, 3)?;
    let dirs = cluster.shared_folder("d")?;
    fs::set_permissions(&dirs[0], Permissions::from_mode(0o777)).at("chmod")?;
    let secret = dirs[0].join("secret");
    fs::write(&secret, "of somebody else").at("secret")?;
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).at("chmod")?;
    chown(&secret, Some(OWNER), Some(OWNER)).at("chown")?;
    fs::create_dir(dirs[0].join("closed")).at("closed")?;
    fs::write(dirs[0].join("closed/inside"), vec![7; 300_000]).at("inside")?;
    fs::set_permissions(dirs[0].join("closed"), Permissions::from_mode(0o700)).at("chmod")?;
    chown(dirs[0].join("closed"), Some(OWNER), Some(OWNER)).at("chown")?;
    fs::write(dirs[0].join("log"), "begun").at("log")?;
    // A client's kernel may cache under a lease, so the squashed client has accessed none of these
    // files before.
    let (squashed, reader, refused) = (1, 2, 0);
    let anonymous = ANONYMOUS.to_string();
    let squash = [
        "set",
        &cluster.address(squashed),
        "--squash",
        "root",
        "--anon-uid",
        &anonymous,
        "--anon-gid",
        &anonymous,
    ];
    cluster.export(&squash)?;
    cluster.export(&["set", &cluster.address(reader), "--access", "ro"])?;
    let shown = cluster.export(&["list"])?;
    ensure!(shown.contains(&cluster.address(reader)) && shown.contains("99:99"), "weft export list: {shown}");
    squashed_root(&dirs[squashed])?;
    read_only(&dirs[reader])?;
    // The same rule applies to the mount.
    let client = Part::Client(reader);
    let status = cluster.service(client).terminate()?;
    ensure!(status.success(), "the reader ended with {status}");
    cluster.restart(client)?;
    let mounted = mounts::find(&cluster.mount(reader)).ok_or("the reader hasn't mounted".to_string())?;
    ensure!(mounted.options.split(',').any(|option| option == "ro"), "a reader's mount: {mounted:?}");
    expect_errno(fs::write(dirs[reader].join("new"), ""), libc::EROFS, "a new file, read-only")?;
    ensure_eq!(fs::read_to_string(dirs[reader].join("log")).at("log")?, "begun", "what the reader reads");
    // No access at all.
    cluster.export(&["set", &cluster.address(refused), "--access", "none"])?;
    let is_out = || matches!(fs::write(dirs[refused].join("x"), ""), Err(e) if e.raw_os_error() == Some(libc::EACCES) || e.raw_os_error() == Some(libc::ESTALE));
    ensure!(process::eventually(SOON, is_out), "a rejected client keeps running");
    let elsewhere = stage.scratch("refused-mount")?;
    let said = cluster.mount_again(refused, &elsewhere)?;
    ensure!(
        !said.status.success() && said.stderr.contains("may not mount"),
        "a refused mount: {}",
        said.tail()
    );
    cluster.export(&["remove", &cluster.address(refused)])?;
    cluster.export(&["remove", &cluster.address(squashed)])?;
    let is_root_again = || fs::read_to_string(dirs[squashed].join("secret")).is_ok();
    ensure!(process::eventually(SOON, is_root_again), "root stays squashed without a rule");
    // The rejected client's session was ended; it gets a successor session by itself.
    cluster.wait_until_replaced(refused, 0)?;
    fs::write(dirs[refused].join("x"), "").at("a write of a client that may mount again")?;
    cluster.stop()
}

fn squashed_root(dir: &std::path::Path) -> TestResult {
    // The rule may not have reached the services yet.
    let is_squashed = || fs::read_to_string(dir.join("secret")).is_err();
    ensure!(process::eventually(SOON, is_squashed), "root reads a file of mode 0600 although it is squashed");
    expect_errno(fs::read(dir.join("secret")), libc::EACCES, "reading another user's file")?;
    expect_errno(OpenOptions::new().append(true).open(dir.join("secret")), libc::EACCES, "writing it")?;
    expect_errno(
        fs::read_dir(dir.join("closed")).and_then(|mut names| names.next().transpose()),
        libc::EACCES,
        "listing a closed directory",
    )?;
    expect_errno(fs::metadata(dir.join("closed/inside")), libc::EACCES, "searching a closed directory")?;
    expect_errno(
        fs::set_permissions(dir.join("secret"), Permissions::from_mode(0o666)),
        libc::EPERM,
        "chmod",
    )?;
    expect_errno(chown(dir.join("secret"), Some(0), None), libc::EPERM, "chown")?;
    expect_errno(
        OpenOptions::new().write(true).truncate(true).open(dir.join("secret")),
        libc::EACCES,
        "truncating",
    )?;
    let (uid, gid) = fs::metadata(dir.join("secret")).map(|meta| (meta.uid(), meta.gid())).at("stat")?;
    ensure_eq!((uid, gid), (OWNER, OWNER), "the owner that a squashed client sees");
    // Its new files belong to the anonymous user, and it can use them.
    let own = dir.join("own");
    fs::write(&own, vec![5; 100_000]).at("a file of its own")?;
    let meta = fs::metadata(&own).at("stat")?;
    ensure_eq!((meta.uid(), meta.gid()), (ANONYMOUS, ANONYMOUS), "the owner of a squashed user's file");
    fs::set_permissions(&own, Permissions::from_mode(0o400)).at("chmod of its own")?;
    ensure_eq!(fs::read(&own).at("own")?.len(), 100_000, "what it reads of its own");
    fs::remove_file(&own).at("removing its own")
}

/// A client mounted before the rule was set: its kernel doesn't know it.
fn read_only(dir: &std::path::Path) -> TestResult {
    let is_read_only =
        || matches!(fs::write(dir.join("n"), ""), Err(e) if e.raw_os_error() == Some(libc::EROFS));
    ensure!(process::eventually(SOON, is_read_only), "a client that may only read makes files");
    expect_errno(fs::create_dir(dir.join("m")), libc::EROFS, "mkdir")?;
    expect_errno(fs::remove_file(dir.join("log")), libc::EROFS, "unlink")?;
    expect_errno(fs::rename(dir.join("log"), dir.join("gol")), libc::EROFS, "rename")?;
    expect_errno(fs::set_permissions(dir.join("log"), Permissions::from_mode(0o600)), libc::EROFS, "chmod")?;
    let opened =
        OpenOptions::new().append(true).open(dir.join("log")).and_then(|mut log| log.write_all(b"more"));
    expect_errno(opened, libc::EROFS, "appending")?;
    ensure_eq!(fs::read_to_string(dir.join("log")).at("log")?, "begun", "what it reads");
    Ok(())
}

/// A mount over the mount of a stopped client fails at once instead of hanging.
fn mount_over_a_stopped_client(stage: &Stage) -> TestResult {
    let cluster = Cluster::start(stage, "stopped", 1, 1)?;
    cluster.client(0).freeze()?;
    let said = cluster.mount_again(0, &cluster.mount(0));
    cluster.client(0).thaw()?;
    let said = said?;
    ensure!(
        !said.status.success() && said.stderr.contains("mounted already"),
        "a second mount: {}",
        said.tail()
    );
    cluster.stop()
}
