//! Status and command answers of a cluster in one process.

use super::commands::CommandCore;
use super::map_views::{self, TargetDetails};
use super::measure::run_while_connected;
use super::services::Services;
use super::stop_reasons::Stop;
use crate::cli::{UpArgs, value_name};
use crate::control::{
    CheckParameters, ClusterStatus, Counters, DiskFree, MeasurementRequest, PoolStatus, Request, Service,
    TargetStatus,
};
use ::node::MgmtChannel;
use fuse::Session;
use mgmt::{StateDir, Superblock};
use net::Channel;
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use types::{Errno, Error, Result};

/// Answers the commands of the control socket.
pub struct ClusterControl {
    superblock: Superblock,
    dir: PathBuf,
    args: UpArgs,
    services: Arc<Services>,
    session: Arc<Session>,
    stops: Sender<Stop>,
    commands: CommandCore,
    started_ns: u64,
}

impl ClusterControl {
    /// Creates the handler of commands for these services and their mount.
    pub fn new(
        state: &StateDir,
        args: &UpArgs,
        (services, commands): (Arc<Services>, CommandCore),
        session: Arc<Session>,
        stops: Sender<Stop>,
    ) -> ClusterControl {
        ClusterControl {
            superblock: state.superblock.clone(),
            dir: state.paths.root().to_path_buf(),
            args: args.clone(),
            services,
            session,
            stops,
            commands,
            started_ns: rt::monotonic_ns(),
        }
    }

    /// Returns the mount point.
    pub fn mount(&self) -> String {
        self.args.mount.display().to_string()
    }

    /// Returns the FUSE transport in use, after `auto` was decided.
    pub fn transport(&self) -> &'static str {
        match self.session.transport() {
            fuse::Transport::Uring => "uring",
            fuse::Transport::Dev => "dev",
            fuse::Transport::Auto => "auto",
        }
    }

    /// Returns the state of the whole cluster.
    pub fn status(&self) -> ClusterStatus {
        let df = self.df();
        ClusterStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            name: self.superblock.name.clone(),
            uuid: self.superblock.uuid.clone(),
            pid: std::process::id(),
            uptime_s: (rt::monotonic_ns() - self.started_ns) / 1_000_000_000,
            dir: self.dir.display().to_string(),
            mount: df.mount,
            transport: self.transport().into(),
            durability: value_name(self.args.durability),
            read_only: self.args.read_only,
            numa: None,
            epoch: self.services.management.current().epoch.0,
            capacity: df.capacity,
            used: df.used,
            free: df.free,
            counters: self.counters(&df.targets),
            targets: df.targets,
            // The cluster doesn't start without all of its targets.
            unserved: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn counters(&self, targets: &[TargetStatus]) -> Counters {
        let meta = self.services.meta.stats();
        Counters {
            fuse_requests: self.session.stats().all().iter().map(|(_, count)| count).sum(),
            metadata_commands: meta.commands,
            metadata_batches: meta.batches,
            metadata_commits: meta.commits,
            metadata_syncs: meta.persists,
            storage_requests: targets.iter().filter_map(|t| t.operations).sum(),
        }
    }

    fn targets(&self) -> Vec<TargetStatus> {
        let map = self.services.management.current();
        let operations = |t: &types::Target| Some(self.services.requests(t.id));
        map_views::targets(&map, |t| TargetDetails { numa: None, operations: operations(t) })
    }

    fn pools(&self) -> Vec<PoolStatus> {
        let status = |p: wire::mgmt::PoolInfo| PoolStatus {
            id: p.id,
            name: p.name,
            targets: p.targets,
            groups: p.groups,
            capacity: p.capacity,
            used: p.capacity.saturating_sub(p.free),
            free: p.free,
            spare: p.spare,
        };
        self.services.management.pools().into_iter().map(status).collect()
    }

    fn df(&self) -> DiskFree {
        map_views::disk_free(self.mount(), self.targets())
    }
}

impl ClusterControl {
    /// Checks the cluster while it is served, on a core of the control thread: the check takes
    /// long, and starts no task that must outlive its answer.
    fn check(&self, orders: CheckParameters) -> Result<fsck::CheckReport> {
        let services = self.services.clone();
        let check =
            async move { services.online_check().run(&**services.writer(), &orders, &services.checks).await };
        rt::block_on(check).map_err(|e| crate::output::os_error("io_uring", &e))?
    }

    /// Returns the exposure map; runs like [`ClusterControl::check`].
    fn exposure(&self) -> Result<fsck::Exposure> {
        let services = self.services.clone();
        let exposure = async move { services.online_check().exposure(&**services.writer()).await };
        rt::block_on(exposure).map_err(|e| crate::output::os_error("io_uring", &e))?
    }

    /// Sends a request to management.
    fn manage(&self, request: wire::MgmtRequest) -> Result<Value> {
        let management: MgmtChannel = Channel::in_process(self.services.management.clone());
        let reply = self.commands.run(move || async move { management.call(request, None).await })??;
        serde_json::to_value(reply)
            .map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
    }
}

fn single_process_error() -> Error {
    Error::new(Errno::EOPNOTSUPP, "this cluster is one process: its targets are fixed, and it has no network")
        .hint("weft cluster init creates a cluster of several machines")
}

impl Service for ClusterControl {
    fn answer(&self, request: Request) -> Result<Value> {
        let value = match request {
            Request::Status => serde_json::to_value(self.status()),
            Request::Targets => serde_json::to_value(self.targets()),
            Request::Pools => serde_json::to_value(self.pools()),
            Request::Df => serde_json::to_value(self.df()),
            Request::Manage { request } => return self.manage(request),
            Request::Check { orders } => serde_json::to_value(self.check(orders)?),
            Request::CheckProgress => serde_json::to_value(self.services.checks.progress()),
            Request::Exposure => serde_json::to_value(self.exposure()?),
            Request::Backup { place, changes_only } => {
                serde_json::to_value(self.services.backups.make(place.as_deref(), changes_only)?)
            }
            Request::BackupProgress => serde_json::to_value(self.services.backups.progress()),
            Request::Net
            | Request::Session
            | Request::MountHow
            | Request::AddTarget { .. }
            | Request::Losses { .. } => {
                return Err(single_process_error());
            }
            Request::Measure { .. } | Request::Log { .. } | Request::Stop => {
                return Err(Error::new(Errno::EINVAL, "internal error: this request has its own handler"));
            }
        };
        value.map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
    }

    fn measure(&self, order: MeasurementRequest, requester: UnixStream) -> Result<Value> {
        let channel = Channel::in_process(self.services.storage_service());
        let management: MgmtChannel = Channel::in_process(self.services.management.clone());
        run_while_connected(requester, order.execute(channel, management))
    }

    fn stop(&self, connection: UnixStream) {
        // The channel has no receiver once the process is shutting down; then the connection closes
        // with the process.
        let _ = self.stops.send(Stop::Command(connection));
    }
}
