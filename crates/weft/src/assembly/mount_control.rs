//! Answers of a mount to commands.

use super::map_views::{self, TargetDetails};
use super::peers::Peers;
use super::stop_reasons::Stop;
use crate::control::{
    self, ClusterStatus, Counters, DiskFree, MountSession, MountSettings, PublicSocket, ReplacedSessionInfo,
    Request, Service, mount_sockets,
};
use crate::output::os_error;
use client::{SessionFailover, SessionHistory};
use fuse::Session;
use routing::OwnRack;
use serde::Serialize;
use serde_json::Value;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use types::{ClusterMap, Errno, Error, MapHandle, Result};
use wire::MgmtRequest;

/// Answers the commands of a mount's control socket.
pub struct MountControl {
    peers: Arc<Peers>,
    sessions: Arc<SessionFailover>,
    /// Location of the mount: the map says which rack that is.
    place: (MapHandle, Arc<OwnRack>),
    how: MountSettings,
    mounted: MountedSession,
    stops: Sender<Stop>,
}

/// The mount itself, for its status.
pub struct MountedSession {
    /// Name of the cluster.
    pub cluster: String,
    /// Mount point.
    pub at: PathBuf,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// The connection to the kernel.
    pub session: Arc<Session>,
    /// When it was mounted, on the clock of [`rt::monotonic_ns`].
    pub started_ns: u64,
}

/// The control sockets of a mount; their files are removed on drop.
pub struct MountSocket {
    private: Option<PathBuf>,
    _public: Option<PublicSocket>,
}

impl MountControl {
    /// Creates the handler of commands for a mount with these connections and sessions.
    pub fn new(
        peers: Arc<Peers>,
        sessions: Arc<SessionFailover>,
        place: (MapHandle, Arc<OwnRack>),
        how: MountSettings,
        mounted: MountedSession,
        stops: Sender<Stop>,
    ) -> MountControl {
        MountControl { peers, sessions, place, how, mounted, stops }
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.place.0.load()
    }

    fn df(&self) -> DiskFree {
        let targets = map_views::targets(&self.map(), |_| TargetDetails::default());
        map_views::disk_free(self.mounted.at.display().to_string(), targets)
    }

    /// Returns the state of the mount, and of the cluster as the mount sees it.
    fn status(&self) -> ClusterStatus {
        let (df, mounted) = (self.df(), &self.mounted);
        let transport = match mounted.session.transport() {
            fuse::Transport::Uring => "uring",
            fuse::Transport::Dev => "dev",
            fuse::Transport::Auto => "auto",
        };
        let requests = mounted.session.stats().all().iter().map(|(_, count)| count).sum();
        ClusterStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            name: mounted.cluster.clone(),
            uuid: self.how.cluster.clone(),
            pid: std::process::id(),
            uptime_s: (rt::monotonic_ns() - mounted.started_ns) / 1_000_000_000,
            dir: self.how.file.display().to_string(),
            mount: df.mount,
            transport: transport.into(),
            // The metadata services decide.
            durability: "as configured on the metadata services".into(),
            read_only: mounted.read_only,
            numa: None,
            epoch: self.map().epoch.0,
            capacity: df.capacity,
            used: df.used,
            free: df.free,
            targets: df.targets,
            unserved: vec![],
            warnings: vec![],
            counters: Counters { fuse_requests: requests, ..Counters::default() },
        }
    }

    fn rack(&self) -> Option<String> {
        let (map, own_rack) = &self.place;
        let map = map.load();
        own_rack.name(&map).map(|rack| rack.to_string())
    }

    /// Sends a request to management, on a core of the control thread.
    fn manage(&self, request: MgmtRequest) -> Result<Value> {
        let management = self.peers.management();
        let reply = rt::block_on(async move { management.call(request, None).await });
        to_json(&reply.map_err(|e| os_error("io_uring", &e))??)
    }

    /// Opens the control sockets. The mount works without them, so a failure is only logged.
    pub fn open(self, mountpoint: &Path) -> MountSocket {
        control::make_private_folder();
        let _lock = control::lock_and_clear();
        let control = Arc::new(self);
        let public = match control.how.public_socket {
            true => PublicSocket::open(mountpoint, control.clone()),
            false => None,
        };
        MountSocket { private: open_private(mountpoint, control), _public: public }
    }
}

fn open_private(mountpoint: &Path, control: Arc<MountControl>) -> Option<PathBuf> {
    let mut failure = None;
    for socket in mount_sockets(mountpoint) {
        match open_at(&socket, control.clone()) {
            Ok(()) => return Some(socket),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        tracing::warn!("weft net show can't show this mount: {error}");
    }
    None
}

fn open_at(socket: &Path, control: Arc<MountControl>) -> Result<()> {
    let folder = socket.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| os_error(folder.display(), &e))?;
    identity::require_private_directory(folder)?;
    control::start(socket, control)
}

impl Service for MountControl {
    fn answer(&self, request: Request) -> Result<Value> {
        match request {
            Request::Net => to_json(&self.peers.infos()),
            Request::MountHow => to_json(&self.how),
            Request::Session => {
                to_json(&MountSession { rack: self.rack(), ..session_info(&self.sessions.history()) })
            }
            Request::Status => to_json(&self.status()),
            Request::Df => to_json(&self.df()),
            Request::Targets => to_json(&self.df().targets),
            Request::Pools => to_json(&map_views::pools(&self.map())),
            // Management refuses what a client may not request.
            Request::Manage { request } => self.manage(request),
            _ => Err(Error::new(Errno::EOPNOTSUPP, "a mount can't do this: a node of the cluster can")
                .hint("run the command on a node, with --dir DIR")),
        }
    }

    fn stop(&self, connection: UnixStream) {
        // The channel has no receiver once the process is shutting down; then the connection closes
        // with the process.
        let _ = self.stops.send(Stop::Command(connection));
    }
}

fn to_json(answer: &impl Serialize) -> Result<Value> {
    serde_json::to_value(answer)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
}

fn session_info(lineage: &SessionHistory) -> MountSession {
    let replaced = lineage.last.as_ref().map(|last| ReplacedSessionInfo {
        session: last.session.0,
        at_s: last.at.secs,
        cause: last.cause.clone(),
        files: last.files,
    });
    MountSession {
        session: lineage.session.0,
        missing: lineage.missing.clone(),
        rack: None,
        replacements: lineage.replacements,
        replaced,
        files_of_before: lineage.files_of_ended_sessions,
    }
}

impl Drop for MountSocket {
    fn drop(&mut self) {
        if let Some(socket) = &self.private
            && let Err(e) = std::fs::remove_file(socket)
        {
            tracing::debug!("{}: {e}", socket.display());
        }
    }
}
