//! Answers of a mount to commands.

use super::peers::Peers;
use super::stop_reasons::Stop;
use crate::control::{
    self, MountSession, MountSettings, ReplacedSessionInfo, Request, Service, mount_sockets,
};
use crate::output::os_error;
use client::{SessionFailover, SessionHistory};
use routing::OwnRack;
use serde::Serialize;
use serde_json::Value;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use types::{Errno, Error, MapHandle, Result};
use wire::MgmtRequest;

/// Answers the commands of a mount's control socket.
pub struct MountControl {
    peers: Arc<Peers>,
    sessions: Arc<SessionFailover>,
    /// Location of the mount: the map says which rack that is.
    place: (MapHandle, Arc<OwnRack>),
    how: MountSettings,
    stops: Sender<Stop>,
}

/// The control socket of a mount; its file is removed on drop.
pub struct MountSocket(PathBuf);

impl MountControl {
    /// Creates the handler of commands for a mount with these connections and sessions.
    pub fn new(
        peers: Arc<Peers>,
        sessions: Arc<SessionFailover>,
        place: (MapHandle, Arc<OwnRack>),
        how: MountSettings,
        stops: Sender<Stop>,
    ) -> MountControl {
        MountControl { peers, sessions, place, how, stops }
    }

    fn rack(&self) -> Option<String> {
        let (map, own_rack) = &self.place;
        let map = map.load();
        own_rack.name(&map).map(|rack| rack.to_string())
    }

    /// Returns the ceilings that management stores, for reports of measurements through this mount.
    /// The request runs on a core of the control thread.
    fn ceilings(&self) -> Result<Value> {
        let management = self.peers.management();
        let reply = rt::block_on(async move { management.call(MgmtRequest::ListCeilings, None).await });
        to_json(&reply.map_err(|e| os_error("io_uring", &e))??)
    }

    /// Opens the control socket. Only `weft net show` and `weft session show` need it, so a failure
    /// is only logged.
    pub fn open(self, mountpoint: &Path) -> Option<MountSocket> {
        let control = Arc::new(self);
        let mut failure = None;
        for socket in mount_sockets(mountpoint) {
            match open_at(&socket, control.clone()) {
                Ok(()) => return Some(MountSocket(socket)),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            tracing::warn!("weft net show can't show this mount: {error}");
        }
        None
    }
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
            Request::Manage { request: MgmtRequest::ListCeilings } => self.ceilings(),
            _ => {
                Err(Error::new(Errno::EOPNOTSUPP, "a mount answers only about its connections and sessions")
                    .hint("ask a node of the cluster"))
            }
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
        if let Err(e) = std::fs::remove_file(&self.0) {
            tracing::debug!("{}: {e}", self.0.display());
        }
    }
}
