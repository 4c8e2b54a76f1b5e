//! Users who are root in a user namespace of their own: on a mount they have the rights of their
//! ids.

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
/// A user without rights.
const USER: u32 = 1234;
/// Names that both processes want to make.
const NAMES: usize = 300;
/// How much later than the user root begins at most, us: by then the user's open has ended.
const MOST_LATE_US: u64 = 2000;
/// Bytes of a file that is stored in chunks.
const FILE_BYTES: usize = 1 << 20;

/// Starts a program as a user without rights, in a user namespace where this user is root.
fn in_namespace(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_string()]);
    command.args(["unshare", "--user", "--map-root-user"]).arg(program);
    command
}

/// Copies a program to a folder where every user may run it.
fn copy_for_all(program: &Path, folder: &Path, name: &str) -> TestResult<PathBuf> {
    let copy = folder.join(name);
    // By another process: what this process has open for writing, its children couldn't run.
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
        cleanup::hold(Resource::Process(child.id() as i32));
        let names = child.stdin.take().expect("standard input was asked to be a pipe");
        let answers = child.stdout.take().expect("standard output was asked to be a pipe");
        Ok(Opener { child, names, answers: BufReader::new(answers) })
    }

    /// Sends a name and doesn't wait for the answer.
    fn tell(&mut self, name: &str) -> TestResult {
        self.names.write_all(format!("{name}\n").as_bytes()).at("a name for the open helper")
    }

    /// [`OPENED`] or an error number, for the name that was sent last.
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
        cleanup::released(&Resource::Process(self.child.id() as i32));
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
    // Not `/proc/self/exe`, which the program that copies is itself.
    let this_program = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let helper = copy_for_all(&this_program, &outside, "helper")?;
    let cluster = Cluster::start(stage, "namespaces", 2, 2)?;
    layouts_change_for_owners_only(&cluster, &weft)?;
    a_race_to_make_files_opens_none_of_others(&cluster, &helper)?;
    cluster.stop()
}

/// The pattern of a file or directory, and the groups of a file with their schemes.
fn layout_of(cluster: &Cluster, path: &Path) -> TestResult<String> {
    let mut command = Command::new(cluster.commands.weft());
    command.args(["entry", "info", "--json"]).arg(path);
    let said = process::run_ok(&mut command, DEADLINE)?.stdout;
    let said: Value = serde_json::from_str(&said).map_err(|error| format!("weft entry info: {error}"))?;
    let groups = said["layout"]["groups"].as_array().into_iter().flatten();
    let groups: Vec<String> = groups.map(|group| format!("{} {}", group["group"], group["scheme"])).collect();
    Ok(format!("{}, groups {groups:?}", said["pattern"]))
}

/// `weft migrate` and `weft entry set-pattern` on files and directories that every user may write
/// to: the kernel lets the requests pass, and the service decides.
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

/// Root and a user make the same files at the same time, each on its own mount. The kernel takes a
/// file that `O_CREAT` finds, instead of making it, for a new one and checks nothing.
fn a_race_to_make_files_opens_none_of_others(cluster: &Cluster, helper: &Path) -> TestResult {
    let folders = cluster.shared_folder("contested")?;
    fs::set_permissions(&folders[0], Permissions::from_mode(0o777)).at(folders[0].display())?;
    let mut by_root = Opener::start(Command::new(helper), &folders[0])?;
    let mut by_user = Opener::start(in_namespace(helper), &folders[1])?;
    let (mut random, mut made_by_user, mut foreign) = (Rng::new(1), 0, Vec::new());
    for _ in 0..NAMES {
        // Random: a client may get numbered names with a common prefix for itself.
        let name = format!("{:016x}", random.next());
        // Root asks nobody in a directory that it has under a lease, so the user begins. Where root
        // comes in between is another place each time.
        by_user.tell(&name)?;
        thread::sleep(Duration::from_micros(random.below(MOST_LATE_US)));
        by_root.tell(&name)?;
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
