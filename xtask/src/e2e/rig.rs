//! A real weft under test: formats, starts, stops, kills and removes it.

use super::cleanup::{self, Resource};
use super::mounts;
use super::outcome::{At, Failure, TestResult, ensure};
use crate::process::{self, Finished};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a start, with the recovery after a crash, may take.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How long an orderly stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Deadline of one administrator's command.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(120);

/// Deadline of a check of the whole file system.
const FSCK_DEADLINE: Duration = Duration::from_secs(300);

/// Which face to the kernel is under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over io_uring.
    Uring,
    /// Plain `/dev/fuse`.
    Dev,
}

impl Transport {
    /// The word that `weft up --transport` knows.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Uring => "uring",
            Transport::Dev => "dev",
        }
    }
}

/// How to start a weft.
#[derive(Clone, Debug)]
pub struct RigOptions {
    /// Face to the kernel.
    pub transport: Transport,
    /// Folders of targets; empty: two of weft's own.
    pub target_dirs: Vec<PathBuf>,
    /// `--durability`.
    pub durability: &'static str,
}

impl RigOptions {
    /// Two targets of its own, the default durability.
    pub fn new(transport: Transport) -> RigOptions {
        RigOptions { transport, target_dirs: Vec::new(), durability: "relaxed" }
    }
}

/// A cluster directory and a mount point below a base folder, and the process that serves them
/// while it runs.
pub struct Rig {
    weft: PathBuf,
    base: PathBuf,
    options: RigOptions,
    process: Option<Child>,
}

impl Rig {
    /// Makes a file system below `base` and mounts it.
    pub fn start(weft: &Path, base: &Path, options: RigOptions) -> TestResult<Rig> {
        let mut rig = Rig { weft: weft.to_path_buf(), base: base.to_path_buf(), options, process: None };
        fs::create_dir_all(rig.mount()).at(rig.mount().display())?;
        rig.up()?;
        Ok(rig)
    }

    /// The cluster's directory.
    pub fn dir(&self) -> PathBuf {
        self.base.join("weft")
    }

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.base.join("mnt")
    }

    /// What the process has printed and logged so far.
    pub fn log(&self) -> String {
        let read = |path: PathBuf| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let printed = read(self.output()).unwrap_or_default();
        printed + &read(self.dir().join("weft.log")).unwrap_or_default()
    }

    fn output(&self) -> PathBuf {
        self.base.join("output")
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|child| child.id() as i32)
    }

    /// The command line that starts it.
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
        cleanup::hold(Resource::Process(child.id() as i32));
        cleanup::hold(Resource::Mount(self.mount()));
        let child = self.process.insert(child);
        let mount = self.base.join("mnt");
        let mut ended = None;
        let mounted = process::eventually(START_DEADLINE, || {
            ended = child.try_wait().ok().flatten();
            mounts::is_weft(&mount) || ended.is_some()
        });
        if mounted && ended.is_none() {
            // Answered only when the process serves, not just when the kernel knows the mount.
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

    /// Stops it as an administrator would; an error if it doesn't end well.
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

    /// Stops and starts it.
    pub fn restart(&mut self) -> TestResult {
        self.down()?;
        self.up()
    }

    /// Ends the process as a crash would, and nothing else: the dead mount stays.
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

    /// Takes away the mount that a crash left behind.
    pub fn unmount(&mut self) -> TestResult {
        mounts::unmount(&self.mount())?;
        self.forget_mount();
        Ok(())
    }

    /// Unmounts by umount(8) and mounts again at once, while the process of before may be ending.
    pub fn unmount_and_up(&mut self) -> TestResult {
        self.unmount()?;
        let before = self.process.take();
        self.up()?;
        let Some(mut before) = before else { return Ok(()) };
        let ended = process::wait(&mut before, STOP_DEADLINE).at("waiting for weft")?;
        ensure!(ended.is_some_and(|status| status.success()), "weft ended with {ended:?} after umount");
        cleanup::released(&Resource::Process(before.id() as i32));
        Ok(())
    }

    fn forget_process(&mut self) {
        if let Some(child) = self.process.take() {
            cleanup::released(&Resource::Process(child.id() as i32));
        }
    }

    fn forget_mount(&self) {
        cleanup::released(&Resource::Mount(self.mount()));
    }

    /// Whether the process still runs.
    pub fn is_alive_process(&mut self) -> bool {
        self.process.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Whether the process still runs and is still mounted.
    pub fn is_alive(&mut self) -> bool {
        self.is_alive_process() && mounts::is_weft(&self.mount())
    }

    /// Runs one of weft's own commands to its end, whatever that is.
    pub fn weft(&self, arguments: &[&str]) -> TestResult<Finished> {
        Ok(process::run(Command::new(&self.weft).args(arguments), COMMAND_DEADLINE)?)
    }

    /// Runs one of weft's own commands, which has to succeed, and parses what it prints as JSON.
    pub fn json(&self, arguments: &[&str]) -> TestResult<serde_json::Value> {
        let done = process::run_ok(Command::new(&self.weft).args(arguments).arg("--json"), COMMAND_DEADLINE)?;
        serde_json::from_str(&done.stdout)
            .map_err(|error| Failure::Failed(format!("weft {}: no JSON: {error}", arguments.join(" "))))
    }

    /// What `weft entry info` tells of a path.
    pub fn entry(&self, path: &Path) -> TestResult<serde_json::Value> {
        self.json(&["entry", "info", &path.to_string_lossy()])
    }

    /// Makes new files in `dir` live on one target each, never inline.
    pub fn one_target_per_file(&self, dir: &Path) -> TestResult {
        let dir = dir.to_string_lossy();
        let arguments = ["entry", "set-pattern", &dir, "--stripe-count", "1", "--inline-limit", "0"];
        let done = self.weft(&arguments)?;
        match done.status.success() {
            true => Ok(()),
            false => Err(Failure::Failed(format!("weft {}: {}", arguments.join(" "), done.tail()))),
        }
    }

    /// Checks the stopped file system: everything must be in order.
    pub fn fsck(&self) -> TestResult {
        let mut command = Command::new(&self.weft);
        command.arg("fsck").arg("--dir").arg(self.dir());
        process::run_ok(&mut command, FSCK_DEADLINE).map(drop).map_err(Failure::from)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Where the base is a disk of its own, a process in the background logs to /var/log/weft.
        if let Ok(log) = fs::read_link(self.dir().join("weft.log")) {
            drop(fs::remove_file(log));
        }
        if self.is_alive() && self.down().is_ok() {
            return;
        }
        // A test that failed or crashed its weft on purpose ends here; nothing may stay behind.
        if self.process.is_some() {
            mounts::abort(&self.mount());
        }
        self.kill();
        mounts::force_unmount(&self.mount());
        self.forget_mount();
    }
}

/// The end of a log, for messages.
pub fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n    ")
}
