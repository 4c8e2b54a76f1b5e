//! A real weft under test: formats, starts, stops, kills and removes it.

use super::cleanup::{self, Resource};
use super::mounts;
use super::outcome::{At, Failure, TestResult, ensure};
use crate::process::{self, Finished};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest time of a start, including recovery after a crash.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Longest time of a clean stop.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Deadline of one administrative command.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(120);

/// Deadline of a check of the whole file system.
const FSCK_DEADLINE: Duration = Duration::from_secs(300);

/// The kernel interface under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over io_uring.
    Uring,
    /// Plain `/dev/fuse`.
    Dev,
}

impl Transport {
    /// Returns the value for `weft up --transport`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Uring => "uring",
            Transport::Dev => "dev",
        }
    }
}

/// Options for starting weft.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// Kernel interface.
    pub transport: Transport,
    /// Folders of targets; if empty, weft creates two.
    pub target_dirs: Vec<PathBuf>,
    /// `--durability`.
    pub durability: &'static str,
}

impl RigOptions {
    /// Returns options with two targets created by weft, and the default durability.
    pub fn new(transport: Transport) -> RigOptions {
        RigOptions { transport, target_dirs: Vec::new(), durability: "relaxed" }
    }
}

/// A cluster directory and a mount point below a base folder, and the process that serves them if
/// it runs.
pub struct Rig {
    weft: PathBuf,
    base: PathBuf,
    options: RigOptions,
    process: Option<Child>,
}

impl Rig {
    /// Creates a file system below `base` and mounts it.
    pub fn start(weft: &Path, base: &Path, options: RigOptions) -> TestResult<Rig> {
        let mut rig = Rig { weft: weft.to_path_buf(), base: base.to_path_buf(), options, process: None };
        fs::create_dir_all(rig.mount()).at(rig.mount().display())?;
        rig.up()?;
        Ok(rig)
    }

    /// Returns the cluster's directory.
    pub fn dir(&self) -> PathBuf {
        self.base.join("weft")
    }

    /// Returns the mount point.
    pub fn mount(&self) -> PathBuf {
        self.base.join("mnt")
    }

    /// Returns the output and log of the process so far.
    pub fn log(&self) -> String {
        let read = |path: PathBuf| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let printed = read(self.output()).unwrap_or_default();
        printed + &read(self.dir().join("weft.log")).unwrap_or_default()
    }

    fn output(&self) -> PathBuf {
        self.base.join("output")
    }

    /// Returns the process id if the process runs.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|child| child.id() as i32)
    }

    /// Returns the command that starts it.
    pub fn up_command(&self) -> Command {
        let mut command = Command::new(&self.weft);
        command.arg("up").arg("--dir").arg(self.dir()).arg("--mount").arg(self.mount());
        command.args(["--transport", self.options.transport.name()]);
        command.args(["--durability", self.options.durability]);
        if self.options.target_dirs.is_empty() {
            command.args(["--targets", "2"]);
        }
        for dir in &self.options.target_dirs {
            command.arg("--target-dir").arg(dir);
        }
        command
    }

    /// Starts the process and waits until it has mounted.
    pub fn up(&mut self) -> TestResult {
        let output =
            File::options().create(true).append(true).open(self.output()).at("the rig's output file")?;
        let errors = output.try_clone().at("the rig's output file")?;
        let child =
            self.up_command().stdin(Stdio::null()).stdout(output).stderr(errors).spawn().at("weft up")?;
        cleanup::register(Resource::Process(child.id() as i32));
        cleanup::register(Resource::Mount(self.mount()));
        let child = self.process.insert(child);
        let mount = self.base.join("mnt");
        let mut ended = None;
        let mounted = process::eventually(START_DEADLINE, || {
            ended = child.try_wait().ok().flatten();
            mounts::is_weft(&mount) || ended.is_some()
        });
        if mounted && ended.is_none() {
            // Succeeds only when the process serves requests, not just when the kernel knows the
            // mount.
            return process::run_ok(Command::new("stat").arg(&mount), START_DEADLINE)
                .map(drop)
                .map_err(Failure::from);
        }
        let cause = match ended {
            Some(status) => format!("ended with {status}"),
            None => format!("didn't mount within {} s", START_DEADLINE.as_secs()),
        };
        self.kill();
        Err(Failure::Failed(format!("weft up {cause}:\n    {}", last_lines(&self.log()))))
    }

    /// Stops the process as an administrator does; a failed shutdown is an error.
    pub fn down(&mut self) -> TestResult {
        process::run_ok(Command::new(&self.weft).arg("down").arg("--dir").arg(self.dir()), STOP_DEADLINE)?;
        let Some(child) = &mut self.process else { return Ok(()) };
        let status = process::wait(child, STOP_DEADLINE).at("waiting for weft")?;
        let log = last_lines(&self.log());
        let Some(status) = status else {
            self.kill();
            return Err(Failure::Failed(format!("weft still runs after weft down:\n    {log}")));
        };
        self.forget_process();
        if !status.success() || mounts::find(&self.mount()).is_some() {
            return Err(Failure::Failed(format!(
                "weft down left a mount or ended with {status}:\n    {log}"
            )));
        }
        self.forget_mount();
        Ok(())
    }

    /// Stops and starts the process.
    pub fn restart(&mut self) -> TestResult {
        self.down()?;
        self.up()
    }

    /// Kills the process as in a crash; the dead mount remains.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.process {
            drop(child.kill());
            if process::wait(child, STOP_DEADLINE).ok().flatten().is_none() {
                mounts::abort(&self.base.join("mnt"));
                drop(child.wait());
            }
            self.forget_process();
        }
    }

    /// Removes the mount that a crash left.
    pub fn unmount(&mut self) -> TestResult {
        mounts::unmount(&self.mount())?;
        self.forget_mount();
        Ok(())
    }

    /// Unmounts by umount(8) and mounts again at once, while the previous process may still be
    /// ending.
    pub fn unmount_and_up(&mut self) -> TestResult {
        self.unmount()?;
        let before = self.process.take();
        self.up()?;
        let Some(mut before) = before else { return Ok(()) };
        let ended = process::wait(&mut before, STOP_DEADLINE).at("waiting for weft")?;
        ensure!(ended.is_some_and(|status| status.success()), "weft ended with {ended:?} after umount");
        cleanup::unregister(&Resource::Process(before.id() as i32));
        Ok(())
    }

    fn forget_process(&mut self) {
        if let Some(child) = self.process.take() {
            cleanup::unregister(&Resource::Process(child.id() as i32));
        }
    }

    fn forget_mount(&self) {
        cleanup::unregister(&Resource::Mount(self.mount()));
    }

    /// Returns whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Returns whether the process runs and is mounted.
    pub fn is_alive(&mut self) -> bool {
        self.is_running() && mounts::is_weft(&self.mount())
    }

    /// Runs a weft command to its end, with any exit status.
    pub fn weft(&self, arguments: &[&str]) -> TestResult<Finished> {
        Ok(process::run(Command::new(&self.weft).args(arguments), COMMAND_DEADLINE)?)
    }

    /// Runs a weft command that must succeed, and parses its JSON output.
    pub fn json(&self, arguments: &[&str]) -> TestResult<serde_json::Value> {
        let done = process::run_ok(Command::new(&self.weft).args(arguments).arg("--json"), COMMAND_DEADLINE)?;
        serde_json::from_str(&done.stdout)
            .map_err(|error| Failure::Failed(format!("weft {}: no JSON: {error}", arguments.join(" "))))
    }

    /// Returns the output of `weft entry info` for a path.
    pub fn entry(&self, path: &Path) -> TestResult<serde_json::Value> {
        self.json(&["entry", "info", &path.to_string_lossy()])
    }

    /// Sets a pattern on `dir`: new files are on one target each, never inline.
    pub fn one_target_per_file(&self, dir: &Path) -> TestResult {
        let dir = dir.to_string_lossy();
        let arguments = ["entry", "set-pattern", &dir, "--stripe-count", "1", "--inline-limit", "0"];
        let done = self.weft(&arguments)?;
        match done.status.success() {
            true => Ok(()),
            false => Err(Failure::Failed(format!("weft {}: {}", arguments.join(" "), done.tail()))),
        }
    }

    /// Checks the stopped file system, which must have no findings.
    pub fn fsck(&self) -> TestResult {
        let mut command = Command::new(&self.weft);
        command.arg("fsck").arg("--dir").arg(self.dir());
        process::run_ok(&mut command, FSCK_DEADLINE).map(drop).map_err(Failure::from)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // If the base is a separate disk, a background process logs to /var/log/weft.
        if let Ok(log) = fs::read_link(self.dir().join("weft.log")) {
            drop(fs::remove_file(log));
        }
        if self.is_alive() && self.down().is_ok() {
            return;
        }
        // Clean up after a test that failed or crashed its weft on purpose.
        if self.process.is_some() {
            mounts::abort(&self.mount());
        }
        self.kill();
        mounts::force_unmount(&self.mount());
        self.forget_mount();
    }
}

/// Returns the end of a log, for messages.
pub fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n    ")
}
