//! A whole cluster in one process: its services, its mount, and their orderly shutdown.
//!
//! The services run on a background core (`weft-bg`) and are called from the cores of the mount.
//! [`Cluster::serve`] waits on the main thread for the first event that ends the cluster: a signal,
//! `weft down`, or an `umount`.

mod check;
mod commands;
mod copies;
mod core;
mod engine;
mod follow;
mod gate;
mod group_links;
mod head;
mod key_store;
mod measure;
mod meta_node;
mod metadata;
mod mount;
mod mount_view;
mod near;
mod node;
mod node_view;
mod online_check;
mod panics;
mod peers;
mod places;
mod reachability;
mod renewal;
mod services;
mod status;
mod stop;
mod storage_node;
mod stores;
mod usage;

pub use self::check::{check, check_names};
pub use self::copies::{Copies, DEFAULT_KEPT};
pub use self::engine::open_engine;
pub use self::gate::{Gate, hex_text};
pub use self::mount::{BareClient, MountProcess, unreachable};
pub use self::node::NodeProcess;
pub use self::peers::{Oneself, Peers, joining};
pub use self::places::Places;
pub use self::status::View;

use self::commands::CommandCore;
use self::core::BackgroundCore;
use self::services::{Plan, Services};
use self::stop::{Stop, Stops};
use crate::cli::{UpArgs, fuse_transport};
use crate::control::{self, ClusterStatus};
use crate::output::os_error;
use fuse::{MountOptions, Session};
use mgmt::{StateDir, StatePaths};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs;
use std::sync::Arc;
use types::{Errno, Error, Result};

/// A mounted cluster.
pub struct Cluster {
    // Dropped in this order: the lock of the state directory is released last.
    view: Arc<View>,
    session: Arc<Session>,
    core: BackgroundCore<Services>,
    stops: Stops,
    state: StateDir,
}

impl Cluster {
    /// Opens the services of `state` and mounts them.
    pub fn assemble(state: StateDir, args: &UpArgs) -> Result<Cluster> {
        prepare_process()?;
        let stops = Stops::listen()?;
        let commands = CommandCore::start()?;
        let core = BackgroundCore::<Services>::start(Plan::new(&state, args)?)?;
        let session = match Session::mount(core.services().client.clone(), mount_options(args)) {
            Ok(session) => Arc::new(session),
            Err(error) => {
                core.shut_down()?;
                return Err(error);
            }
        };
        stops.watch(session.clone())?;
        let services = core.services().clone();
        engine::watch(core.services().engine(), &state.paths, &state.superblock, stops.sender())?;
        let view = Arc::new(View::new(&state, args, (services, commands), session.clone(), stops.sender()));
        let cluster = Cluster { view, session, core, stops, state };
        match cluster.announce() {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.end(Stop::Failure)?;
                Err(error)
            }
        }
    }

    /// Returns what `weft status` shows.
    pub fn status(&self) -> ClusterStatus {
        self.view.status()
    }

    /// Serves until something ends the cluster, and then shuts it down in order.
    pub fn serve(self) -> Result<()> {
        let stop = self.stops.wait();
        self.end(stop)
    }

    /// Lets commands find this process.
    fn announce(&self) -> Result<()> {
        let paths = &self.state.paths;
        note_pid(paths);
        mgmt::keep_start_reserve(paths);
        control::start(&paths.socket(), self.view.clone())?;
        let (name, uuid) = (&self.state.superblock.name, &self.state.superblock.uuid);
        let (mount, transport) = (self.view.mount(), self.view.transport());
        tracing::info!(uuid, mount, transport, "cluster {name} is up");
        Ok(())
    }

    /// Shuts the cluster down. `stop` may own the connection of a command that waits for the end,
    /// so it lives as long as the process.
    fn end(self, mut stop: Stop) -> Result<()> {
        tracing::info!("stopping: {stop}");
        let unmounted = match &mut stop {
            Stop::Unmounted(outcome) => std::mem::replace(outcome, Ok(())),
            _ => self.session.unmount(),
        };
        let reason = match &mut stop {
            Stop::Outcast(error) => Err(error.clone()),
            _ => Ok(()),
        };
        let ended = reason.and(self.core.shut_down().and(unmounted));
        mgmt::keep_start_reserve(&self.state.paths);
        forget(&self.state.paths);
        match &ended {
            Ok(()) => tracing::info!("stopped"),
            Err(error) => tracing::error!(hint = &*error.hint, "not stopped in good order: {error}"),
        }
        drop(self.state);
        // The connection in it must close exactly when the process ends.
        std::mem::forget(stop);
        ended
    }
}

/// Writes the process id for people and scripts. No command needs it, so a full disk doesn't
/// prevent the start.
fn note_pid(paths: &StatePaths) {
    if let Err(error) = fs::write(paths.pid(), format!("{}\n", std::process::id())) {
        tracing::warn!(%error, "{} is not written", paths.pid().display());
    }
}

/// Removes the files by which commands find this process; a leftover is harmless.
fn forget(paths: &StatePaths) {
    for path in [paths.socket(), paths.pid()] {
        if let Err(e) = fs::remove_file(&path) {
            tracing::debug!("{}: {e}", path.display());
        }
    }
}

fn mount_options(args: &UpArgs) -> MountOptions {
    MountOptions {
        source: args.dir.display().to_string(),
        transport: fuse_transport(args.transport),
        read_only: args.read_only,
        idmap: args.idmap,
        ..MountOptions::at(&args.mount)
    }
}

/// Applies process settings that the services rely on.
pub fn prepare_process() -> Result<()> {
    panics::end_the_process();
    rustix::process::chdir("/").map_err(|e| os_error("/", &e.into()))?;
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, files) {
        tracing::warn!("the limit of open files stays as it is: {e}");
    }
    require_rings()
}

/// Checks that the kernel offers io_uring.
fn require_rings() -> Result<()> {
    rt::block_on(async {}).map_err(|e| {
        Error::new(Errno::EOPNOTSUPP, format!("io_uring is not available: {e}"))
            .hint("sysctl kernel.io_uring_disabled=0; a container must allow its system calls (seccomp)")
    })
}
