//! `weft up`: a whole cluster in one process, mounted.

use super::status::screen;
use crate::assembly::Cluster;
use crate::cli::UpArgs;
use crate::control::ClusterStatus;
use crate::output::{os_error, print};
use crate::{detach, logging, systemd};
use mgmt::StateDir;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use types::Result;

/// Name of a cluster that `weft up` creates.
const CLUSTER_NAME: &str = "weft";
/// Longest wait for a process whose mount was unmounted, and the interval of checks.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Starts the cluster, in the foreground or in the background.
pub fn run(args: &UpArgs) -> Result<()> {
    if args.detached {
        return in_background(args);
    }
    if args.detach {
        print(&screen(&start(args)?));
        return Ok(());
    }
    let cluster = assemble(&absolute(args)?, |_| ())?;
    print(&screen(&cluster.status()));
    systemd::notify_ready(&format!("mounted at {}", args.mount.display()));
    cluster.serve()
}

/// Starts the cluster in the background; returns when it is mounted.
pub fn start(args: &UpArgs) -> Result<ClusterStatus> {
    let args = UpArgs { detach: false, detached: true, ..absolute(args)? };
    detach::spawn(&args.to_arguments(), &logging::of_service(&args.dir))
}

/// Runs the background process of [`start`].
fn in_background(args: &UpArgs) -> Result<()> {
    let starter = detach::leave_terminal()?;
    let has_log = Cell::new(false);
    let opened = |state: &StateDir| {
        logging::redirect_service(state.paths.root());
        has_log.set(true);
    };
    match assemble(&absolute(args)?, opened) {
        Ok(cluster) => {
            starter.report(Ok(cluster.status()))?;
            cluster.serve()
        }
        Err(error) => starter.fail("not started", error, has_log.get()),
    }
}

fn assemble(args: &UpArgs, opened: impl FnOnce(&StateDir)) -> Result<Cluster> {
    logging::init();
    crate::mountpoint::require_disjoint(&args.dir, &args.mount)?;
    for target in &args.target_dir {
        crate::mountpoint::require_disjoint(target, &args.mount)?;
        mgmt::require_target_or_vacant(target)?;
    }
    crate::mountpoint::prepare(&args.mount)?;
    crate::node_config::require_no_node(&args.dir)?;
    let state = open(&args.dir)?;
    opened(&state);
    Cluster::assemble(state, args)
}

/// Opens the state directory. umount(8) returns before the process that served the mount has ended,
/// so this waits for a process without a mount: it is about to close the cluster.
fn open(dir: &Path) -> Result<StateDir> {
    let began = Instant::now();
    loop {
        match StateDir::open_or_create(dir, CLUSTER_NAME) {
            Err(mgmt::Error::InUse { .. })
                if began.elapsed() < STOP_TIMEOUT && !crate::mountpoint::is_mounted_from(dir)? =>
            {
                std::thread::sleep(STOP_POLL_INTERVAL);
            }
            opened => return Ok(opened?),
        }
    }
}

/// Returns the arguments with absolute paths, with existing links resolved: the process leaves its
/// working directory.
fn absolute(args: &UpArgs) -> Result<UpArgs> {
    Ok(UpArgs {
        dir: resolve(&args.dir)?,
        mount: crate::mountpoint::resolve(&args.mount)?,
        target_dir: args.target_dir.iter().map(|dir| resolve(dir)).collect::<Result<_>>()?,
        ..args.clone()
    })
}

fn resolve(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(resolved) => Ok(resolved),
        Err(_) => std::path::absolute(path).map_err(|e| os_error(path.display(), &e)),
    }
}
