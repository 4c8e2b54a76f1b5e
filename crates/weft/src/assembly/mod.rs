//! A whole cluster in one process: its services, its mount, and their orderly shutdown.
//!
//! The services run on a background core (`weft-bg`) and are called from the cores of the mount.
//! [`Cluster::serve`] waits on the main thread for the first event that ends the cluster: a signal,
//! `weft down`, or an `umount`.

mod background_core;
mod backups;
mod capability_key_store;
mod cluster_control;
mod commands;
mod inventory;
mod locality;
mod management_addresses;
mod management_node;
mod map_views;
mod measure;
mod membership_authority;
mod metadata_store;
mod mount;
mod mount_control;
mod node;
mod node_control;
mod offline_check;
mod online_check;
mod panics;
mod peers;
mod reachability;
mod renewal;
mod services;
mod stop_reasons;
mod storage_node;
mod stores;
mod target_usage;

pub use self::backups::{Backups, DEFAULT_RETAINED_BACKUPS};
pub use self::cluster_control::ClusterControl;
pub use self::management_addresses::ManagementAddresses;
pub use self::membership_authority::{MembershipAuthority, hex_text};
pub use self::metadata_store::open_engine;
pub use self::mount::{MountProcess, UnmountedClient, ask_by_cluster_file, unreachable_error};
pub use self::node::NodeProcess;
pub use self::offline_check::{check, check_names};
pub use self::peers::{LocalIdentity, Peers, joining_security};

use self::background_core::BackgroundCore;
use self::commands::CommandCore;
use self::services::{Services, ServicesPlan};
use self::stop_reasons::{Stop, StopReasons};
use crate::cli::{UpArgs, fuse_transport};
use crate::control::{self, ClusterStatus, PublicSocket};
use crate::kernel;
use crate::output::os_error;
use fuse::{MountOptions, Session};
use mgmt::{StateDir, StatePaths};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use types::{Errno, Error, Result};

/// A mounted cluster.
pub struct Cluster {
    // Dropped in this order: the lock of the state directory is released last.
    control: Arc<ClusterControl>,
    session: Arc<Session>,
    core: BackgroundCore<Services>,
    stops: StopReasons,
    public: Option<PublicSocket>,
    state: StateDir,
}

impl Cluster {
    /// Opens the services of `state` and mounts them.
    pub fn assemble(state: StateDir, args: &UpArgs) -> Result<Cluster> {
        prepare_process()?;
        let stops = StopReasons::listen()?;
        let commands = CommandCore::start()?;
        let core = BackgroundCore::<Services>::start(ServicesPlan::new(&state, args)?)?;
        let session = match Session::mount(core.services().client.clone(), mount_options(args)) {
            Ok(session) => Arc::new(session),
            Err(error) => {
                core.shut_down()?;
                return Err(error);
            }
        };
        stops.watch(session.clone())?;
        let services = core.services().clone();
        metadata_store::watch(
            core.services().writer().engine(),
            &state.paths,
            &state.superblock,
            stops.sender(),
        )?;
        let control = Arc::new(ClusterControl::new(
            &state,
            args,
            (services, commands),
            session.clone(),
            stops.sender(),
        ));
        let mut cluster = Cluster { control, session, core, stops, public: None, state };
        match cluster.announce(args) {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.end(Stop::Failure)?;
                Err(error)
            }
        }
    }

    /// Returns what `weft status` shows.
    pub fn status(&self) -> ClusterStatus {
        self.control.status()
    }

    /// Serves until something ends the cluster, and then shuts it down in order.
    pub fn serve(self) -> Result<()> {
        let stop = self.stops.wait();
        self.end(stop)
    }

    /// Lets commands find this process.
    fn announce(&mut self, args: &UpArgs) -> Result<()> {
        let paths = &self.state.paths;
        write_pid_file(paths);
        mgmt::keep_start_reserve(paths);
        control::start(&paths.socket(), self.control.clone())?;
        control::make_private_folder();
        let lock = control::lock_and_clear();
        if !args.no_public_socket {
            self.public = PublicSocket::open(Path::new(&self.control.mount()), self.control.clone());
        }
        drop(lock);
        let (name, uuid) = (&self.state.superblock.name, &self.state.superblock.uuid);
        let (mount, transport) = (self.control.mount(), self.control.transport());
        tracing::info!(uuid, mount, transport, "cluster {name} is up");
        Ok(())
    }

    /// Shuts the cluster down. `stop` may own the connection of a command that waits for the end,
    /// so it lives as long as the process.
    fn end(self, mut stop: Stop) -> Result<()> {
        tracing::info!("stopping: {stop}");
        drop(self.public);
        let unmounted = match &mut stop {
            Stop::Unmounted(outcome) => std::mem::replace(outcome, Ok(())),
            _ => self.session.unmount(),
        };
        let reason = match &mut stop {
            Stop::Fatal(error) => Err(error.clone()),
            _ => Ok(()),
        };
        let ended = reason.and(self.core.shut_down().and(unmounted));
        mgmt::keep_start_reserve(&self.state.paths);
        remove_runtime_files(&self.state.paths);
        match &ended {
            Ok(()) => tracing::info!("stopped"),
            Err(error) => tracing::error!(hint = &*error.hint, "not stopped cleanly: {error}"),
        }
        drop(self.state);
        // The connection in it must close exactly when the process ends.
        std::mem::forget(stop);
        ended
    }
}

/// Writes the process id for people and scripts. No command needs it, so a full disk doesn't
/// prevent the start.
fn write_pid_file(paths: &StatePaths) {
    if let Err(error) = fs::write(paths.pid(), format!("{}\n", std::process::id())) {
        tracing::warn!(%error, "{} could not be written", paths.pid().display());
    }
}

/// Removes the files by which commands find this process; a leftover is harmless.
fn remove_runtime_files(paths: &StatePaths) {
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
    panics::abort_on_panic();
    rustix::process::chdir("/").map_err(|e| os_error("/", &e.into()))?;
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    if let Err(e) = setrlimit(Resource::Nofile, files) {
        tracing::warn!("can't raise the limit of open files: {e}");
    }
    require_io_uring()
}

/// Checks that the kernel is new enough and offers io_uring with all that weft needs, and logs what it does without.
fn require_io_uring() -> Result<()> {
    kernel::require_supported()?;
    let support = rt::io_uring_support().map_err(|e| {
        Error::new(Errno::EOPNOTSUPP, format!("io_uring is not available: {e}"))
            .hint("sysctl kernel.io_uring_disabled=0; a container must allow its system calls (seccomp)")
    })?;
    for fallback in support.fallbacks() {
        tracing::debug!("io_uring: {fallback}");
    }
    require_operations(&support)
}

fn require_operations(support: &rt::IoUringSupport) -> Result<()> {
    if support.missing.is_empty() {
        return Ok(());
    }
    let missing = support.missing.join(", ");
    Err(Error::new(Errno::EOPNOTSUPP, format!("io_uring of this kernel lacks: {missing}"))
        .hint("weft needs Linux 5.14 or later; uname -r shows the version that runs"))
}
