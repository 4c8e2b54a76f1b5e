//! Users who are root in their own user namespace: on a mount they have the rights of their ids.

use super::super::cleanup::{self, Resource};
use super::super::outcome::{At, TestResult, ensure, ensure_eq, skip};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, tools};
use super::Cluster;
use crate::helper::OPENED;
use crate::process;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

pub(in super::super) const TESTS: &[TestCase] =
    &[TestCase { name: "root_of_a_user_namespace", scope: Scope::Own, minutes: 2, run: user_namespaces }];

const DEADLINE: Duration = Duration::from_secs(60);
/// An unprivileged user.
const USER: u32 = 1234;
/// Number of names that both processes try to create.
const NAMES: usize = 300;
/// Longest delay of root's open after the user's, in microseconds: by then the user's open has
/// ended.
const MOST_LATE_US: u64 = 2000;
/// Size of a file that is stored in chunks.
const FILE_BYTES: usize = 1 << 20;

/// Returns a command that runs as an unprivileged user, in a user namespace in which this user is
/// root.
fn in_namespace(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_string()]);
    command.args(["unshare", "--user", "--map-root-user"]).arg(program);
    command
}

/// Copies a program to a folder where every user may run it.
fn copy_for_all(program: &Path, folder: &Path, name: &str) -> TestResult<PathBuf> {
    let copy = folder.join(name);
    // By another process: children couldn't execute a file that this process has open for writing.
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(program).arg(&copy);
    process::run_ok(&mut install, DEADLINE)?;
    Ok(copy)
}

/// A process that opens files of one mount by name.
struct Opener {
    child: Child,
    names: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Opener {
    fn start(mut command: Command, dir: &Path) -> TestResult<Opener> {
        command.args(["helper", "open"]).arg(dir);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.at("the open helper")?;
        cleanup::register(Resource::Process(child.id() as i32));
        let names = child.stdin.take().expect("standard input was asked to be a pipe");
        let answers = child.stdout.take().expect("standard output was asked to be a pipe");
        Ok(Opener { child, names, answers: BufReader::new(answers) })
    }

    /// Sends a name without waiting for the answer.
    fn send_name(&mut self, name: &str) -> TestResult {
        self.names.write_all(format!("{name}\n").as_bytes()).at("a name for the open helper")
    }

    /// Returns the answer to the last name: [`OPENED`] or an error number.
    fn answer(&mut self) -> TestResult<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line).at("the answer of the open helper")?;
        ensure!(line.ends_with('\n'), "the open helper has ended");
        Ok(line.trim().to_string())
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(process::wait(&mut self.child, DEADLINE));
        cleanup::unregister(&Resource::Process(self.child.id() as i32));
    }
}

fn user_namespaces(stage: &Stage) -> TestResult {
    for program in ["setpriv", "unshare", "install"] {
        tools::find(program)?;
    }
    if process::run_ok(&mut in_namespace(Path::new("true")), DEADLINE).is_err() {
        return skip("no user namespace can be made");
    }
    let outside = stage.scratch("programs")?;
    let weft = copy_for_all(stage.binary()?, &outside, "weft")?;
    // Not `/proc/self/exe`, which would refer to the copying program.
    let this_program = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let helper = copy_for_all(&this_program, &outside, "helper")?;
    let cluster = Cluster::start(stage, "namespaces", 2, 2)?;
    layouts_change_for_owners_only(&cluster, &weft)?;
    a_race_to_make_files_opens_none_of_others(&cluster, &helper)?;
    cluster.stop()
}

/// Returns the pattern of a file or directory, and the groups of a file with their schemes.
fn layout_of(cluster: &Cluster, path: &Path) -> TestResult<String> {
    let mut command = Command::new(cluster.commands.weft());
    command.args(["entry", "info", "--json"]).arg(path);
    let said = process::run_ok(&mut command, DEADLINE)?.stdout;
    let said: Value = serde_json::from_str(&said).map_err(|error| format!("weft entry info: {error}"))?;
    let groups = said["layout"]["groups"].as_array().into_iter().flatten();
    let groups: Vec<String> = groups.map(|group| format!("{} {}", group["group"], group["scheme"])).collect();
    Ok(format!("{}, groups {groups:?}", said["pattern"]))
}

/// Runs `weft migrate` and `weft entry set-pattern` on files and directories that every user may
/// write: the kernel permits the requests, and the service decides.
fn layouts_change_for_owners_only(cluster: &Cluster, weft: &Path) -> TestResult {
    let folders = cluster.shared_folder("owned")?;
    for (name, owner) in [("of-root", 0), ("of-user", USER)] {
        let (file, folder) = (name.to_string(), format!("{name}.d"));
        let path = folders[0].join(&file);
        fs::write(&path, vec![7; FILE_BYTES]).at(path.display())?;
        fs::create_dir(folders[0].join(&folder)).at(&folder)?;
        let migrate = ["migrate", "--scheme", "mirror:2"];
        let set_pattern = ["entry", "set-pattern", "--inline-limit", "0"];
        for (place, words) in [(&file, &migrate[..]), (&folder, &set_pattern[..])] {
            let path = folders[0].join(place);
            fs::set_permissions(&path, Permissions::from_mode(0o777)).at(path.display())?;
            chown(&path, Some(owner), Some(owner)).at(path.display())?;
            let before = layout_of(cluster, &path)?;
            let mut command = in_namespace(weft);
            let done = process::run(command.args(words).arg(folders[1].join(place)), DEADLINE)?;
            let (after, succeeded, said) = (layout_of(cluster, &path)?, done.status.success(), done.tail());
            if owner == USER {
                ensure!(succeeded && after != before, "{words:?} by the owner of {place}: {said}: {after}");
                continue;
            }
            ensure!(
                !succeeded && said.contains("not permitted"),
                "{words:?} on {place} by another user isn't refused: {said}: {after}"
            );
            ensure_eq!(after, before, "{place} after {words:?} by another user");
        }
    }
    Ok(())
}

/// Root and a user create the same files concurrently, each on its own mount. If `O_CREAT` finds a
/// file instead of creating it, the kernel treats it as new and skips the permission check.
fn a_race_to_make_files_opens_none_of_others(cluster: &Cluster, helper: &Path) -> TestResult {
    let folders = cluster.shared_folder("contested")?;
    fs::set_permissions(&folders[0], Permissions::from_mode(0o777)).at(folders[0].display())?;
    let mut by_root = Opener::start(Command::new(helper), &folders[0])?;
    let mut by_user = Opener::start(in_namespace(helper), &folders[1])?;
    let (mut random, mut made_by_user, mut foreign) = (Rng::new(1), 0, Vec::new());
    for _ in 0..NAMES {
        // Random: a client may get a delegation for numbered names with a common prefix.
        let name = format!("{:016x}", random.next());
        // Under a directory delegation root's mount asks no service, so the user starts first. The
        // random delay varies the point of the race.
        by_user.send_name(&name)?;
        thread::sleep(Duration::from_micros(random.below(MOST_LATE_US)));
        by_root.send_name(&name)?;
        let (root, user) = (by_root.answer()?, by_user.answer()?);
        ensure_eq!(root, OPENED, "open of {name} by root");
        let owner = fs::metadata(folders[0].join(&name)).at(&name)?.uid();
        if owner == USER {
            made_by_user += 1;
            ensure_eq!(user, OPENED, "open of {name} by its owner");
        } else if user == OPENED {
            foreign.push(name);
        } else {
            ensure_eq!(user, libc::EACCES.to_string(), "open of {name} by another user");
        }
    }
    ensure!(foreign.is_empty(), "the user has opened {} files of root: {foreign:?}", foreign.len());
    let made_by_root = NAMES - made_by_user;
    ensure!(
        made_by_root > 0 && made_by_user > 0,
        "there was no race: root made {made_by_root} of the files first, the user {made_by_user}"
    );
    println!("of {NAMES} contested files root made {made_by_root} and the user {made_by_user}");
    Ok(())
}
