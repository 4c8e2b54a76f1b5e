//! Nothing hangs: whatever happens to the services, every system call of an application ends, every
//! unmount ends, and after a client is killed, all processes that used its mount can be killed.

use super::super::outcome::{At, Failure, TestResult, ensure};
use super::super::stage::Stage;
use super::super::{Rng, Scope, TestCase, mounts};
use super::faults::Fault;
use super::{COMMAND_DEADLINE, Cluster, Part, Shape};
use crate::process;
use crate::sys::{self, AlignedBuffer, RangeLock};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub(in super::super) const TESTS: &[TestCase] = &[
    TestCase { name: "calls_end_without_servers", scope: Scope::Own, minutes: 6, run: calls_end },
    TestCase { name: "unmounts_end_without_servers", scope: Scope::Own, minutes: 5, run: unmounts_end },
    TestCase { name: "killed_client_blocks_no_process", scope: Scope::Own, minutes: 5, run: killed_client },
];

/// `--timeout` of the mounts, in seconds.
const TIMEOUT_SECS: u64 = 3;

/// Longest time of one operation then: the time-out for each of its few calls, plus the slowness of
/// a busy machine. It is less than the default time-out, so that a wait that ignores the option is
/// detected.
const OPERATION_DEADLINE: Duration = Duration::from_secs(50);

/// Longest time until the cluster works for a client again after its services are restored.
const RECOVERY: Duration = Duration::from_secs(90);

/// Longest time until a client's process ends after its mount was removed.
const END_DEADLINE: Duration = Duration::from_secs(60);

const FILE_BYTES: usize = 3 << 20;

/// One operation of an application.
struct Operation {
    name: &'static str,
    run: fn(&Fixture) -> io::Result<()>,
}

/// The folder of the operations, and files that were opened in it before the faults.
struct Fixture {
    dir: PathBuf,
    /// Open for reading and writing, with unsynced data.
    open: File,
    /// The same with `O_DIRECT`.
    direct: File,
    open_dir: File,
}

impl Fixture {
    fn prepare(dir: &Path) -> io::Result<Fixture> {
        fs::create_dir_all(dir.join("dir/below"))?;
        for name in ["big", "other", "to-truncate"] {
            fs::write(dir.join(name), Rng::new(7).bytes(FILE_BYTES))?;
        }
        fs::write(dir.join("small"), "content beside the inode")?;
        for number in 0..50 {
            fs::write(dir.join(format!("dir/{number}")), "")?;
        }
        if !dir.join("symlink").is_symlink() {
            symlink("small", dir.join("symlink"))?;
        }
        sys::set_xattr(&dir.join("small"), "user.a", b"b", 0)?;
        // Each in a separate folder: the kernel serialises the changes of one folder, so each would
        // wait for the previous one.
        for (folder, file) in
            [("a", "created"), ("b", "made"), ("c", "link"), ("d", "symlink"), ("e", "fifo")]
        {
            let path = dir.join(folder).join(file);
            drop(fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)));
            fs::create_dir_all(dir.join(folder))?;
        }
        for (folder, file) in [("f", "to-rename"), ("g", "to-unlink")] {
            fs::create_dir_all(dir.join(folder))?;
            fs::write(dir.join(folder).join(file), "")?;
        }
        let both = File::options().read(true).write(true).create(true).truncate(true).clone();
        let open = both.open(dir.join("open"))?;
        open.write_all_at(&Rng::new(8).bytes(FILE_BYTES), 0)?;
        let direct = both.clone().custom_flags(libc::O_DIRECT).open(dir.join("direct"))?;
        direct.write_all_at(AlignedBuffer::new(FILE_BYTES).bytes(), 0)?;
        Ok(Fixture { dir: dir.to_path_buf(), open, direct, open_dir: File::open(dir)? })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn writable(path: PathBuf) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// All kinds of operations that an application may perform on a file system.
const OPERATIONS: &[Operation] = &[
    Operation { name: "stat", run: |g| fs::metadata(g.at("big")).map(drop) },
    Operation {
        name: "stat of a missing name",
        run: |g| match fs::metadata(g.at("missing")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        },
    },
    Operation { name: "statfs", run: |g| sys::space(&g.dir).map(drop) },
    Operation { name: "readdir", run: |g| fs::read_dir(g.at("dir"))?.try_for_each(|entry| entry.map(drop)) },
    Operation { name: "open and read", run: |g| File::open(g.at("big"))?.read(&mut [0; 65536]).map(drop) },
    Operation { name: "read of a small file", run: |g| fs::read(g.at("small")).map(drop) },
    Operation { name: "create and write", run: |g| fs::write(g.at("a/created"), vec![1; 1 << 20]) },
    Operation {
        name: "write and fsync",
        run: |g| {
            let mut file = writable(g.at("other"))?;
            file.write_all(&[2; 1 << 20])?;
            file.sync_all()
        },
    },
    Operation {
        name: "append",
        run: |g| File::options().append(true).open(g.at("other"))?.write_all(b"end"),
    },
    Operation { name: "truncate", run: |g| writable(g.at("to-truncate"))?.set_len(1 << 20) },
    Operation { name: "fallocate", run: |g| sys::fallocate(&writable(g.at("other"))?, 0, 0, 4 << 20) },
    Operation { name: "mkdir", run: |g| fs::create_dir(g.at("b/made")) },
    Operation { name: "rename", run: |g| fs::rename(g.at("f/to-rename"), g.at("f/renamed")) },
    Operation { name: "unlink", run: |g| fs::remove_file(g.at("g/to-unlink")) },
    Operation { name: "link", run: |g| fs::hard_link(g.at("small"), g.at("c/link")) },
    Operation { name: "symlink", run: |g| symlink("small", g.at("d/symlink")) },
    Operation { name: "readlink", run: |g| fs::read_link(g.at("symlink")).map(drop) },
    Operation { name: "mkfifo", run: |g| sys::mknod(&g.at("e/fifo"), libc::S_IFIFO | 0o644, 0) },
    Operation {
        name: "chmod",
        run: |g| fs::set_permissions(g.at("small"), fs::Permissions::from_mode(0o600)),
    },
    Operation { name: "setxattr", run: |g| sys::set_xattr(&g.at("small"), "user.a", b"c", 0) },
    Operation { name: "getxattr", run: |g| sys::get_xattr(&g.at("small"), "user.a").map(drop) },
    Operation { name: "listxattr", run: |g| sys::list_xattrs(&g.at("small")).map(drop) },
    Operation {
        name: "write to an open file and fsync",
        run: |g| {
            g.open.write_all_at(&[3; 1 << 20], 0)?;
            g.open.sync_all()
        },
    },
    Operation { name: "read from an open file", run: |g| g.open.read_at(&mut [0; 65536], 1 << 20).map(drop) },
    Operation {
        name: "direct read",
        run: |g| g.direct.read_at(AlignedBuffer::new(1 << 20).bytes(), 0).map(drop),
    },
    Operation {
        name: "direct write",
        run: |g| g.direct.write_all_at(AlignedBuffer::new(1 << 20).bytes(), 1 << 20),
    },
    Operation { name: "stat of an open file", run: |g| g.open.metadata().map(drop) },
    Operation { name: "seek for data", run: |g| sys::seek(&g.open, 0, libc::SEEK_DATA).map(drop) },
    Operation {
        name: "copy_file_range",
        run: |g| {
            sys::copy_file_range(&File::open(g.at("big"))?, 0, &writable(g.at("other"))?, 0, 1 << 20)
                .map(drop)
        },
    },
    Operation { name: "flock", run: |g| sys::flock(&File::open(g.at("small"))?, libc::LOCK_EX) },
    Operation {
        name: "fcntl lock that waits",
        run: |g| {
            let whole = RangeLock { kind: libc::F_WRLCK, start: 0, length: 0, pid: 0 };
            sys::range_lock(&writable(g.at("other"))?, libc::F_SETLKW, whole).map(drop)
        },
    },
    Operation { name: "fsync of a directory", run: |g| g.open_dir.sync_all() },
    Operation { name: "syncfs", run: |g| sys::sync_file_system(&g.open_dir) },
];

/// Name, duration and result of an operation.
type OperationOutcome = (&'static str, Duration, io::Result<()>);

/// Runs all operations concurrently, and waits until all have ended. Operations that don't end fail
/// the test, after their mount was aborted.
fn run_all(fixture: &Arc<Fixture>, mount: &Path) -> TestResult<Vec<OperationOutcome>> {
    let running: Vec<_> = OPERATIONS
        .iter()
        .map(|operation| {
            let fixture = Arc::clone(fixture);
            let thread = thread::spawn(move || {
                let start = Instant::now();
                let outcome = (operation.run)(&fixture);
                (operation.name, start.elapsed(), outcome)
            });
            (operation.name, thread)
        })
        .collect();
    let ended =
        process::eventually(OPERATION_DEADLINE, || running.iter().all(|(_, thread)| thread.is_finished()));
    if !ended {
        let hung = running.iter().filter(|(_, thread)| !thread.is_finished()).map(|(name, _)| *name);
        let message =
            format!("no end within {} s: {:?}", OPERATION_DEADLINE.as_secs(), hung.collect::<Vec<_>>());
        mounts::abort(mount);
        return Err(Failure::Failed(message));
    }
    let outcomes = running.into_iter().map(|(_, thread)| thread.join());
    outcomes.map(|ending| ending.map_err(|_| Failure::Failed("an operation panicked".into()))).collect()
}

/// Returns whether an application may get this error while services are unavailable.
fn is_truthful_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT))
}

/// All calls end while services are faulty, with a truthful error or with success, and succeed
/// after the services are restored.
fn calls_end(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: 2, clients: 1, timeout: Some(TIMEOUT_SECS) };
    let mut cluster = Cluster::build(stage, "hang", shape)?;
    let all = cluster.servers();
    let storage: Vec<Part> = all.iter().copied().filter(|part| *part != Part::Management).collect();
    let situations: Vec<(Fault, Vec<Part>)> = match stage.full {
        false => vec![(Fault::Killed, all.clone()), (Fault::Stopped, all)],
        true => {
            let sets = [all, storage, vec![Part::Management], vec![Part::Storage(0)]];
            Fault::ALL.iter().flat_map(|fault| sets.iter().map(|set| (*fault, set.clone()))).collect()
        }
    };
    for (number, (fault, parts)) in situations.iter().enumerate() {
        let dir = cluster.mount(0).join(format!("ground-{number}"));
        calls_end_when(&mut cluster, &dir, *fault, parts)?;
    }
    cluster.stop()
}

fn calls_end_when(cluster: &mut Cluster, dir: &Path, fault: Fault, parts: &[Part]) -> TestResult {
    let fixture = Arc::new(Fixture::prepare(dir).at("the files to begin with")?);
    parts.iter().try_for_each(|part| cluster.inject(*part, fault))?;
    let outcomes = run_all(&fixture, &cluster.mount(0));
    parts.iter().try_for_each(|part| cluster.repair(*part, fault))?;
    let outcomes =
        outcomes.map_err(|failure| with_context(failure, &format!("{parts:?} {fault:?}"), cluster))?;
    let odd: Vec<_> =
        outcomes.iter().filter(|(_, _, done)| done.as_ref().is_err_and(|e| !is_truthful_error(e))).collect();
    ensure!(odd.is_empty(), "errors while {parts:?} were {fault:?}: {odd:?}");
    let failed = outcomes.iter().filter(|(_, _, done)| done.is_err()).count();
    ensure!(failed > 0, "nothing failed while {parts:?} were {fault:?}: were they?");
    drop(fixture);
    recovered(cluster, dir)
}

/// The mount recovers by itself: all operations succeed on new files.
fn recovered(cluster: &Cluster, dir: &Path) -> TestResult {
    let mut last = None;
    let works = process::eventually(RECOVERY, || {
        let outcome = Fixture::prepare(dir).at("the files of before").and_then(|fixture| {
            let outcomes = run_all(&Arc::new(fixture), dir)?;
            let failed: Vec<_> = outcomes.into_iter().filter(|(_, _, done)| done.is_err()).collect();
            ensure!(failed.is_empty(), "{failed:?}");
            Ok(())
        });
        last.insert(outcome).is_ok()
    });
    ensure!(works, "no recovery when the servers were back: {last:?}\n    {}", cluster.log());
    Ok(())
}

impl Cluster {
    /// Unmounts with `weft umount` within its deadline.
    fn umount(&self, client: usize, force: bool) -> TestResult {
        let node = self.node(Part::Client(client));
        self.run(node, &self.commands.umount(&self.mount(client), force)).map(drop)
    }

    /// Checks that an ordinary unmount of a stopped client ends, reports that, and leaves the mount
    /// unchanged.
    fn ensure_umount_gives_up(&self, client: usize) -> TestResult {
        let mount = self.mount(client);
        // A trailing slash in the name must not cause an access to the mount.
        let named = PathBuf::from(format!("{}/", mount.display()));
        let mut command = self.node(Part::Client(client)).command(self.commands.weft());
        let ended = process::run(command.args(self.commands.umount(&named, false)), COMMAND_DEADLINE)?;
        let said =
            ended.code() == 1 && ended.stderr.contains("doesn't answer") && ended.stderr.contains("--force");
        ensure!(said, "umount of a client that is stopped: {ended:?}");
        ensure!(mounts::find(&mount).is_some(), "{} isn't mounted any more", mount.display());
        Ok(())
    }

    /// Checks that the mount is gone and its process ends by itself.
    fn ensure_client_ends(&mut self, client: usize) -> TestResult {
        let mount = self.mount(client);
        ensure!(mounts::find(&mount).is_none(), "{} is still mounted", mount.display());
        let service = self.service(Part::Client(client));
        let ended = process::eventually(END_DEADLINE, || !service.is_running());
        ensure!(ended, "the client keeps running after its unmount:\n    {}", service.last_lines());
        Ok(())
    }
}

/// Starts a program that holds a file open and reads it with direct I/O in a loop.
fn reader(path: &Path) -> TestResult<Child> {
    let script = format!(
        "exec 3<'{0}'; while :; do dd if='{0}' of=/dev/null bs=1M iflag=direct 2>/dev/null; done",
        path.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().at("a reader")
}

fn end_reader(mut reader: Child) -> TestResult {
    process::kill_group(&mut reader);
    let ended = process::wait(&mut reader, Duration::from_secs(30)).at("a reader")?;
    ensure!(ended.is_some(), "a program that uses the mount can't be killed");
    Ok(())
}

/// Ordinary unmounts of idle mounts and forced ones of busy mounts, with unwritten data.
fn unmounts_end(stage: &Stage) -> TestResult {
    let faults: &[Fault] = if stage.full { &Fault::ALL } else { &[Fault::Stopped] };
    for &fault in faults {
        let shape = Shape { metadata: 0, storage: 2, clients: 3, timeout: Some(TIMEOUT_SECS) };
        let mut cluster = Cluster::build(stage, "unmounts", shape)?;
        let folders = cluster.shared_folder("unmounts")?;
        let file = |client: usize| folders[client].join(format!("file-{client}"));
        for client in 0..3 {
            fs::write(file(client), Rng::new(client as u64).bytes(FILE_BYTES)).at("a file")?;
        }
        let busy = [reader(&file(1))?, reader(&file(2))?];
        for part in cluster.servers() {
            cluster.inject(part, fault)?;
        }
        // Data that can't be written any more.
        let unwritten = fs::write(file(0), [5; 4096]);
        let ended = (|| {
            cluster.umount(0, false)?;
            cluster.ensure_client_ends(0)?;
            cluster.umount(1, true)?;
            cluster.ensure_client_ends(1)?;
            // The client itself is also stopped.
            cluster.inject(Part::Client(2), Fault::Stopped)?;
            cluster.ensure_umount_gives_up(2)?;
            cluster.umount(2, true)?;
            cluster.repair(Part::Client(2), Fault::Stopped)?;
            cluster.ensure_client_ends(2)
        })();
        if ended.is_err() {
            (0..3).for_each(|client| mounts::abort(&cluster.mount(client)));
        }
        busy.into_iter().try_for_each(end_reader)?;
        ended.map_err(|failure| {
            format!("{fault:?}, unwritten: {unwritten:?}: {failure:?}\n    {}", cluster.log())
        })?;
    }
    Ok(())
}

/// Applications wait for stopped services when their client is killed: the applications and the
/// mount can be removed.
fn killed_client(stage: &Stage) -> TestResult {
    let shape = Shape { metadata: 0, storage: 2, clients: 2, timeout: None };
    let mut cluster = Cluster::build(stage, "killed-client", shape)?;
    let dirs: Vec<PathBuf> =
        cluster.shared_folder("killed")?.iter().map(|folder| folder.join("ground")).collect();
    for round in stage.rounds((1, 10)) {
        let round = format!("round {round}");
        kill_waiting_client(&mut cluster, &dirs[0])
            .map_err(|failure| with_context(failure, &round, &cluster))?;
        kill_invalidating_client(&mut cluster, &dirs)
            .map_err(|failure| with_context(failure, &round, &cluster))?;
    }
    cluster.stop()
}

fn with_context(failure: Failure, when: &str, cluster: &Cluster) -> Failure {
    match failure {
        Failure::Failed(message) => Failure::Failed(format!("{when}: {message}\n    {}", cluster.log())),
        skipped => skipped,
    }
}

/// Every kind of call waits.
fn kill_waiting_client(cluster: &mut Cluster, dir: &Path) -> TestResult {
    let mount = cluster.mount(0);
    let fixture = Arc::new(Fixture::prepare(dir).at("the files to begin with")?);
    let servers = cluster.servers();
    servers.iter().try_for_each(|part| cluster.inject(*part, Fault::Stopped))?;
    let busy = reader(&dir.join("big"))?;
    let operations = thread::spawn({
        let mount = mount.clone();
        move || run_all(&fixture, &mount).map(|outcomes| outcomes.len())
    });
    thread::sleep(Duration::from_secs(1));
    let dead = kill_and_ensure_end(cluster, 0);
    let free = process::eventually(END_DEADLINE, || operations.is_finished());
    mounts::abort(&mount);
    drop(operations.join());
    dead?;
    ensure!(free, "programs still wait for a mount whose client was killed");
    end_reader(busy)?;
    process::run_ok(Command::new("umount").arg(&mount), COMMAND_DEADLINE)?;
    servers.iter().try_for_each(|part| cluster.repair(*part, Fault::Stopped))?;
    cluster.restart(Part::Client(0))?;
    recovered(cluster, dir)
}

/// The client waits for the kernel to invalidate pages, and the kernel waits for these pages, which
/// stopped storage nodes don't deliver.
fn kill_invalidating_client(cluster: &mut Cluster, dirs: &[PathBuf]) -> TestResult {
    let mount = cluster.mount(0);
    drop(Fixture::prepare(&dirs[1]).at("the files to begin with")?);
    let storage = [Part::Storage(0), Part::Storage(1)];
    storage.iter().try_for_each(|part| cluster.inject(*part, Fault::Stopped))?;
    let readers: Vec<Child> = ["big", "other", "to-truncate"]
        .iter()
        .map(|name| {
            Command::new("cat")
                .arg(dirs[0].join(name))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .at("cat")
        })
        .collect::<TestResult<_>>()?;
    thread::sleep(Duration::from_millis(500));
    // Opening for writing recalls the readers' leases.
    let writers: Vec<_> = ["big", "other", "to-truncate"]
        .iter()
        .map(|name| {
            let path = dirs[1].join(name);
            thread::spawn(move || {
                sys::unshare_files()?;
                writable(path)?.write_all(b"x")
            })
        })
        .collect();
    thread::sleep(Duration::from_secs(1));
    let dead = kill_and_ensure_end(cluster, 0);
    mounts::abort(&mount);
    for mut reader in readers {
        let ended = process::wait(&mut reader, END_DEADLINE).at("cat")?;
        ensure!(ended.is_some(), "a reader of a killed client's mount keeps running");
    }
    dead?;
    storage.iter().try_for_each(|part| cluster.repair(*part, Fault::Stopped))?;
    let written = process::eventually(RECOVERY, || writers.iter().all(|writer| writer.is_finished()));
    ensure!(written, "the other mount's writers still wait for the killed client");
    cluster.restart(Part::Client(0))?;
    recovered(cluster, &dirs[0])
}

/// Kills a client; its process must end soon, by itself.
fn kill_and_ensure_end(cluster: &mut Cluster, client: usize) -> TestResult {
    let service = cluster.service(Part::Client(client));
    let pid = service.pid().ok_or_else(|| "the client has ended before it was killed".to_string())?;
    sys::kill(pid, libc::SIGKILL).at("kill")?;
    let gone = process::eventually(END_DEADLINE, || !service.is_running());
    ensure!(gone, "a killed client's process stays: {}", stuck(pid));
    service.kill();
    Ok(())
}

/// Returns the threads of a process that can't be killed, and where they wait.
fn stuck(pid: i32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stacks = tasks.map(|task| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{} {}", read("comm").trim(), read("stack").split_whitespace().collect::<Vec<_>>().join(" "))
    });
    stacks.collect::<Vec<_>>().join("\n    ")
}
