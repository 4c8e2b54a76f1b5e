//! An id-mapped view of a mount, as rootless containers get it.

use super::super::cleanup::{self, Resource};
use super::super::outcome::{At, Failure, TestResult, ensure, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Scope, TestCase, mounts};
use super::{Cluster, Shape};
use crate::{process, sys};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "idmapped_mount", scope: Scope::Own, minutes: 2, run: idmapped_mount }];

const OPTIONS: &[&str] = &["--idmap"];
const DEADLINE: Duration = Duration::from_secs(60);
/// First Linux version that supports id-mapped FUSE mounts.
const FIRST_LINUX: (u32, u32) = (6, 12);
/// User id on this machine of the container's user 0.
const FIRST_ID: u32 = 100_000;
const IDS: u32 = 65_536;
/// A user id in the container, and the same id on this machine.
const USER: u32 = 1000;

/// A user namespace like that of a rootless container; it exists until this is dropped.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> TestResult<Namespace> {
        let mut command = Command::new("unshare");
        command.args(["--user", "sh", "-c", "echo; read line"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().at("unshare")?;
        let mut line = String::new();
        let printed = holder.stdout.take().expect("it is piped");
        BufReader::new(printed).read_line(&mut line).at("what unshare prints")?;
        let namespace = Namespace { holder };
        if line.is_empty() {
            return skip("no user namespace can be made");
        }
        for map in ["uid_map", "gid_map"] {
            let path = namespace.folder().join(map);
            fs::write(&path, format!("0 {FIRST_ID} {IDS}")).at(path.display())?;
        }
        Ok(namespace)
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.holder.id()))
    }

    /// Runs a script as a user of the container.
    fn run(&self, user: u32, script: &str, folder: &Path) -> Result<String, String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--user={}", self.folder().join("ns/user").display()));
        command.args(["--setuid", &user.to_string(), "--setgid", &user.to_string()]);
        command.args(["sh", "-ec", script]).current_dir(folder);
        process::run_ok(&mut command, DEADLINE).map(|said| said.stdout)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It exits when its input ends.
        drop(self.holder.stdin.take());
        drop(self.holder.wait());
    }
}

/// A view of a directory with the ids of a namespace; unmounted when dropped.
struct View(PathBuf);

impl View {
    fn new(of: &Path, at: PathBuf, namespace: &Namespace) -> TestResult<View> {
        fs::create_dir(&at).at(at.display())?;
        let mapping = File::open(namespace.folder().join("ns/user")).at("the user namespace")?;
        cleanup::register(Resource::Disk(at.clone()));
        let view = View(at);
        sys::mount_idmapped(of, &view.0, &mapping).at("mount_setattr")?;
        Ok(view)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        mounts::force_unmount(&self.0);
        cleanup::unregister(&Resource::Disk(self.0.clone()));
    }
}

/// Returns `major.minor` of the kernel.
fn linux() -> TestResult<(u32, u32)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").at("osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse().ok());
    Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)))
}

/// Lists owner, group, mode and name of everything below a folder.
fn list(folder: &Path) -> TestResult<String> {
    let mut find = Command::new("find");
    find.args([".", "-mindepth", "1", "-printf", "%U %G %m %P\\n"]).current_dir(folder);
    let found = process::run_ok(&mut find, DEADLINE).map_err(Failure::from)?.stdout;
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

/// Creates a tar file with files of several users of a container.
fn archive(folder: &Path) -> TestResult<PathBuf> {
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("etc")).at(tree.display())?;
    let files = [("etc/passwd", 0, 0, 0o644), ("mail", 5, 5, 0o600), ("home", USER, USER, 0o640)];
    for (name, uid, gid, mode) in files {
        let path = tree.join(name);
        fs::write(&path, name).at(path.display())?;
        chown(&path, Some(uid), Some(gid)).at(path.display())?;
        fs::set_permissions(&path, Permissions::from_mode(mode)).at(path.display())?;
    }
    let archive = folder.join("image.tar");
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&archive).arg("-C").arg(&tree).args(["etc", "mail", "home"]);
    process::run_ok(&mut tar, DEADLINE)?;
    Ok(archive)
}

/// A rootless container unpacks an image: the files belong to the image's users. These users have
/// their own rights, and no others.
fn idmapped_mount(stage: &Stage) -> TestResult {
    if linux()? < FIRST_LINUX {
        return skip("this kernel doesn't support idmapped FUSE mounts");
    }
    let namespace = Namespace::new()?;
    let outside = stage.scratch("image")?;
    let shape = Shape { metadata: 0, storage: 1, clients: 2, timeout: None };
    let cluster = Cluster::build_mounted(stage, "idmapped", shape, OPTIONS)?;
    let folders = cluster.shared_folder("container")?;
    let image = archive(&outside)?;
    fs::copy(&image, folders[0].join("image.tar")).at(image.display())?;
    let mapped = View::new(&folders[0], outside.join("view"), &namespace)?;
    let view = &mapped.0;

    let unpack = "umask 022; tar -xpf image.tar && rm image.tar && mkdir own && echo 1 > own/by-root";
    namespace.run(0, unpack, view)?;
    let expected = format!(
        "0 0 644 etc/passwd\n0 0 644 own/by-root\n0 0 755 etc\n0 0 755 own\n{USER} {USER} 640 home\n5 5 600 mail"
    );
    ensure_eq!(list(&folders[1])?, expected, "what another mount shows");
    let id_here = |id: u32| (FIRST_ID + id).to_string();
    let shown = list(view)?;
    for (id, name) in [(0, "755 own"), (5, "600 mail"), (USER, "640 home")] {
        let line = format!("{0} {0} {name}", id_here(id));
        ensure!(shown.lines().any(|shown| shown == line), "the view shows {shown:?}, without {line:?}");
    }

    // The container's root gives a folder away, and may still change its content.
    namespace.run(0, &format!("chown {USER}:{USER} own && chmod 700 own && echo 2 > own/two"), view)?;
    namespace.run(USER, "echo 3 > own/three && mv own/two own/2 && rm own/by-root && cat home", view)?;
    let own = list(&folders[1].join("own"))?;
    ensure_eq!(own, format!("0 0 644 2\n{USER} {USER} 644 three"), "what a user of the container has made");
    for (user, refused) in
        [(USER, "cat mail"), (USER, "rm etc/passwd"), (7, "echo 4 > own/four"), (7, "ls own")]
    {
        let said = namespace.run(user, refused, view);
        ensure!(said.is_err(), "user {user} of the container may do {refused}: {said:?}");
    }
    // The same id without the mapping is a different user.
    let mut as_user = Command::new("setpriv");
    as_user.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_string()]);
    as_user.args(["cat", "own/three"]).current_dir(view);
    ensure!(
        process::run_ok(&mut as_user, DEADLINE).is_err(),
        "user {USER} of this machine reads the container's file"
    );

    process::run_ok(Command::new("umount").arg(view), DEADLINE)?;
    drop(mapped);
    drop(namespace);
    cluster.stop()
}
