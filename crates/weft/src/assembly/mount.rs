//! A client: `weft mount`, and the same without a mount.

use super::background_core::{BackgroundCore, ProcessServices};
use super::locality::is_on_this_host;
use super::management_addresses::ManagementAddresses;
use super::map_views::{self, TargetDetails};
use super::mount_control::{MountControl, MountSocket, MountedSession};
use super::peers::{LocalIdentity, Peers, member_security};
use super::reachability::keep_reporting;
use super::renewal::{CertificateFile, Renewal};
use super::stop_reasons::{Stop, StopReasons};
use super::{panics, prepare_process, require_io_uring};
use crate::cli::{MountArgs, fuse_transport};
use crate::control::{MountSettings, Request};
use crate::mount_watch;
use crate::node_config::ClusterFile;
use crate::output::os_error;
use ::node::{CurrentMap, MgmtChannel, unexpected_reply};
use client::{Client, ClientOptions, SessionFailover};
use fuse::{MountOptions, Session};
use identity::Credentials;
use identity::tls::UnauthenticatedClients;
use net::{Networks, SameHost};
use routing::{MetaChannels, OwnRack, StorageChannels, WhenOffline};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterMap, Epoch, Errno, Error, Export, ExportAccess, MapHandle, Result, SessionId, Squash};
use wire::{MgmtReply, MgmtRequest};

/// Time that ending a session may take beyond the time-out of one request: by then, requests to
/// servers that answer are complete.
const CLOSE_MARGIN: Duration = Duration::from_secs(5);

/// Parameters of a client.
pub struct MountPlan {
    file: ClusterFile,
    /// Path of the cluster file.
    path: PathBuf,
    networks: Vec<String>,
    same_host: SameHost,
    timeout: Duration,
    server_cache: bool,
    write_behind: bool,
    wsync: bool,
    own_rack: Arc<OwnRack>,
}

/// All components of a client.
pub struct ClientServices {
    client: Arc<SessionFailover>,
    management: MgmtChannel,
    map: MapHandle,
    peers: Arc<Peers>,
    timeout: Duration,
    /// Export rule that applied to this client when it was mounted.
    export: Export,
    renewal: Option<Renewal>,
}

/// Settings that all sessions of a mount share.
struct SessionFactory {
    peers: Arc<Peers>,
    map: MapHandle,
    server_cache: bool,
    write_behind: bool,
    wsync: bool,
    timeout: Duration,
    own_rack: Arc<OwnRack>,
}

impl SessionFactory {
    /// Begins a session.
    async fn start_session(&self) -> Result<Arc<Client>> {
        let to = self.peers.clone();
        let connect = Box::new(move |node: &types::Node| to.metadata(node));
        let meta = MetaChannels::mapped(self.map.clone(), connect);
        let to = self.peers.clone();
        // An offline node may return within the time-out.
        let connect = Box::new(move |node: &types::Node| to.storage(node));
        let storage = StorageChannels::mapped(self.map.clone(), WhenOffline::Try, connect);
        let storage = storage.with_rack(self.own_rack.clone());
        let client = Client::new(ClientOptions {
            session: SessionId::from_random(rt::secret_u64()),
            meta,
            storage,
            map: self.map.clone(),
            server_cache: self.server_cache,
            write_behind: self.write_behind,
            wsync: self.wsync,
            only_session: false,
        });
        client.set_request_timeout(self.timeout);
        client.register().await?;
        Ok(client)
    }
}

/// Asks management whether and with which rights this client may use the cluster.
async fn attach(management: &MgmtChannel, cluster: &str) -> Result<(Arc<ClusterMap>, Export)> {
    let attach = MgmtRequest::Attach {
        cluster: cluster.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        clock_s: rt::now().secs,
    };
    match management.call(attach, None).await? {
        MgmtReply::Welcome { map, export, .. } => Ok((map, export)),
        other => Err(unexpected_reply(&other)),
    }
}

impl MountSettings {
    fn of(args: &MountArgs, file: &ClusterFile) -> MountSettings {
        let networks = if args.network.is_empty() { &file.networks } else { &args.network };
        MountSettings {
            cluster: file.cluster.clone(),
            file: args.cluster.clone(),
            networks: networks.clone(),
            rack: args.rack.clone().or_else(|| file.rack.clone()),
            timeout_s: args.timeout,
            server_cache: !args.no_server_cache,
            write_behind: args.write_behind,
            wsync: args.wsync,
            shared_memory: !args.no_shared_memory,
            public_socket: file.public_socket && !args.no_public_socket,
        }
    }
}

/// Returns the mount options for the kernel.
///
/// # Errors
/// `EPERM` for id mapping with a rule that squashes users: the services must know the caller's ids.
fn fuse_options(args: &MountArgs, export: &Export) -> Result<MountOptions> {
    if args.idmap && export.squash != Squash::None {
        let message = format!(
            "{} can't be mounted with idmap: a rule of the cluster squashes users of this client",
            args.mountpoint.display()
        );
        return Err(Error::new(Errno::EPERM, message)
            .hint("mount it without idmap, or let an administrator change the rule (weft export list)"));
    }
    // Spelled as a line of fstab names it: `mount -a` recognizes by it that the line is mounted.
    let source = std::path::absolute(&args.cluster).unwrap_or_else(|_| args.cluster.clone());
    Ok(MountOptions {
        source: source.display().to_string(),
        transport: fuse_transport(args.transport),
        // The kernel then refuses changes by itself; the services refuse them in any case.
        read_only: args.read_only || export.access == ExportAccess::Ro,
        idmap: args.idmap,
        ..MountOptions::at(&args.mountpoint)
    })
}

impl MountPlan {
    fn new(how: &MountSettings, file: ClusterFile) -> Result<MountPlan> {
        how.rack.as_deref().map_or(Ok(()), mgmt::check_rack)?;
        Ok(MountPlan {
            path: how.file.clone(),
            networks: how.networks.clone(),
            same_host: if how.shared_memory { SameHost::SharedMemory } else { SameHost::OverTcp },
            file,
            timeout: Duration::from_secs(how.timeout_s),
            server_cache: how.server_cache,
            write_behind: how.write_behind,
            wsync: how.wsync,
            own_rack: Arc::new(OwnRack::new(how.rack.clone(), Box::new(is_on_this_host))),
        })
    }

    fn local_identity(&self, credentials: Option<&Credentials>) -> Result<LocalIdentity> {
        Ok(LocalIdentity {
            cluster: self.file.cluster.clone(),
            name: client_name(),
            security: member_security(self.file.protection, credentials, UnauthenticatedClients::Refused)?,
            networks: Networks::parse(&self.networks)?,
            same_host: self.same_host,
        })
    }
}

/// Returns `host:pid`, for the servers' messages.
fn client_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

impl ProcessServices for ClientServices {
    type Plan = MountPlan;

    async fn open(plan: &MountPlan) -> Result<ClientServices> {
        let credentials = plan.file.credentials()?;
        let local_identity = plan.local_identity(credentials.as_ref())?;
        let certificate_file = CertificateFile::Mount(plan.path.clone());
        let renewal = Renewal::new(&local_identity.security, credentials.as_ref(), certificate_file);
        let management_addresses =
            ManagementAddresses::from_file(plan.path.clone(), &plan.file.cluster, &plan.file.management);
        let peers = Peers::new(local_identity, management_addresses, plan.timeout)?;
        let management = peers.management();
        let cluster = plan.file.cluster.clone();
        let (map, export) = attach(&management, &cluster).await?;
        let map = MapHandle::new(map);
        let session = SessionFactory {
            peers: peers.clone(),
            map: map.clone(),
            server_cache: plan.server_cache,
            write_behind: plan.write_behind,
            wsync: plan.wsync,
            timeout: plan.timeout,
            own_rack: plan.own_rack.clone(),
        };
        let first = session.start_session().await?;
        let (session, at) = (Arc::new(session), management.clone());
        let start_session = move || -> Pin<Box<dyn Future<Output = Result<Arc<Client>>>>> {
            let (session, at, cluster) = (session.clone(), at.clone(), cluster.clone());
            Box::pin(async move {
                // The rules and the cluster's version may have changed.
                attach(&at, &cluster).await?;
                session.start_session().await
            })
        };
        let client = SessionFailover::new(first, Box::new(start_session));
        Ok(ClientServices { client, management, map, peers, timeout: plan.timeout, export, renewal })
    }

    fn spawn_background(self: &Arc<Self>) {
        let map = CurrentMap::new(self.map.clone(), self.peers.clone(), None);
        rt::spawn(map.follow(self.management.clone()));
        rt::spawn(keep_reporting(self.peers.clone(), self.management.clone()));
        rt::spawn(self.client.clone().run());
        if let Some(renewal) = self.renewal.clone() {
            rt::spawn(renewal.run(self.management.clone()));
        }
    }

    async fn close(&self) -> Result<()> {
        // The files are reported one after the other; unreachable servers must not delay each of
        // them.
        let limit = self.timeout + CLOSE_MARGIN;
        rt::timeout(limit, self.client.shutdown()).await.unwrap_or_else(|| {
            let message = format!("the session did not end cleanly within {limit:?}");
            Err(Error::new(Errno::ETIMEDOUT, message).hint(
                "synced data is safe; the metadata service recovers file sizes when it evicts the session",
            ))
        })
    }
}

/// A mounted client.
pub struct MountProcess {
    session: Arc<Session>,
    core: BackgroundCore<ClientServices>,
    stops: StopReasons,
    control: MountSocket,
    /// Ends with this process.
    _watcher: Option<Child>,
}

impl MountProcess {
    /// Connects to the cluster and mounts it.
    pub fn start(args: &MountArgs, file: ClusterFile) -> Result<MountProcess> {
        prepare_process()?;
        let stops = StopReasons::listen()?;
        let (how, cluster) = (MountSettings::of(args, &file), file.name.clone());
        let plan = MountPlan::new(&how, file)?;
        let own_rack = plan.own_rack.clone();
        let core = BackgroundCore::<ClientServices>::start(plan)?;
        let session = fuse_options(args, &core.services().export)
            .and_then(|options| Session::mount_with_failover(core.services().client.clone(), options));
        let session = match session {
            Ok(session) => Arc::new(session),
            Err(error) => {
                core.shut_down()?;
                return Err(error);
            }
        };
        let watcher = session.connection().map(mount_watch::start).transpose();
        let watcher = watcher.unwrap_or_else(|error| {
            tracing::warn!(%error, "if this process is killed, processes that use the mount may hang until weft umount --force");
            None
        });
        stops.watch(session.clone())?;
        let services = core.services();
        let place = (services.map.clone(), own_rack);
        let mounted = MountedSession {
            cluster,
            at: args.mountpoint.clone(),
            read_only: args.read_only || services.export.access == ExportAccess::Ro,
            session: session.clone(),
            started_ns: rt::monotonic_ns(),
        };
        let (peers, sessions) = (services.peers.clone(), services.client.clone());
        let control = MountControl::new(peers, sessions, place, how, mounted, stops.sender());
        let socket = control.open(&args.mountpoint);
        tracing::info!("mounted at {}", args.mountpoint.display());
        Ok(MountProcess { session, core, stops, control: socket, _watcher: watcher })
    }

    /// Serves until something ends the mount, and then shuts it down in order.
    pub fn serve(self) -> Result<()> {
        let mut stop = self.stops.wait();
        tracing::info!("stopping: {stop}");
        drop(self.control);
        let unmounted = match &mut stop {
            Stop::Unmounted(outcome) => std::mem::replace(outcome, Ok(())),
            _ => self.session.unmount(),
        };
        let ended = self.core.shut_down().and(unmounted);
        match &ended {
            Ok(()) => tracing::info!("stopped"),
            Err(error) => tracing::error!(hint = &*error.hint, "not stopped cleanly: {error}"),
        }
        ended
    }
}

/// A client's session without a mount.
pub struct UnmountedClient(BackgroundCore<ClientServices>);

impl UnmountedClient {
    /// Connects to the cluster of a cluster file as a mount does, and begins a session. From now on
    /// a panic ends the process.
    pub fn start(how: &MountSettings, file: ClusterFile) -> Result<UnmountedClient> {
        panics::abort_on_panic();
        require_io_uring()?;
        let plan = MountPlan::new(how, file.clone())?;
        BackgroundCore::start(plan).map(UnmountedClient).map_err(|error| unreachable_error(&file, error))
    }

    /// Returns the sessions of this client.
    pub fn sessions(&self) -> &Arc<SessionFailover> {
        &self.0.services().client
    }

    /// Ends the session in order; no caller may use it any more.
    pub fn end(self) -> Result<()> {
        self.0.shut_down()
    }
}

/// Time-out of a request without a mount.
const REQUEST_TIMEOUT_S: u64 = 15;

/// Sends a request to management as the client of a cluster file, without a mount and without a
/// session.
///
/// # Errors
/// `EOPNOTSUPP` for a request that only a process of the cluster answers.
pub fn ask_by_cluster_file(path: &Path, request: Request) -> Result<Value> {
    let file = ClusterFile::read(path)?;
    let how = MountSettings {
        cluster: file.cluster.clone(),
        file: path.to_path_buf(),
        networks: file.networks.clone(),
        rack: file.rack.clone(),
        timeout_s: REQUEST_TIMEOUT_S,
        server_cache: true,
        write_behind: false,
        wsync: false,
        shared_memory: false,
        public_socket: false,
    };
    let plan = MountPlan::new(&how, file.clone())?;
    let work = async move {
        let local_identity = plan.local_identity(plan.file.credentials()?.as_ref())?;
        let addresses =
            ManagementAddresses::from_file(plan.path.clone(), &plan.file.cluster, &plan.file.management);
        let management = Peers::new(local_identity, addresses, plan.timeout)?.management();
        answer_as_client(&management, request).await
    };
    let answer = rt::block_on(work).map_err(|e| os_error("io_uring", &e))?;
    answer.map_err(|error| unreachable_error(&file, error))
}

async fn answer_as_client(management: &MgmtChannel, request: Request) -> Result<Value> {
    let map = async || match management.call(MgmtRequest::WatchMap { after: Epoch(0) }, None).await? {
        MgmtReply::Map { map } => Ok(map),
        other => Err(unexpected_reply(&other)),
    };
    let targets = |map: &ClusterMap| map_views::targets(map, |_| TargetDetails::default());
    let value = match request {
        Request::Manage { request } => serde_json::to_value(management.call(request, None).await?),
        Request::Targets => serde_json::to_value(targets(&*map().await?)),
        Request::Df => serde_json::to_value(map_views::disk_free(String::new(), targets(&*map().await?))),
        Request::Pools => serde_json::to_value(map_views::pools(&*map().await?)),
        _ => {
            return Err(Error::new(Errno::EOPNOTSUPP, "this needs a mount, or a node of the cluster")
                .hint("weft mount CLUSTER_FILE MOUNTPOINT, or run the command on a node with --dir DIR"));
        }
    };
    value.map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
}

/// Returns the error of a mount whose cluster is unreachable.
pub fn unreachable_error(file: &ClusterFile, cause: Error) -> Error {
    if cause.errno != Errno::ETIMEDOUT {
        return cause;
    }
    let message = format!(
        "cluster {} can't be reached at {}: {}",
        file.name,
        file.management.join(", "),
        cause.message
    );
    Error::new(Errno::ETIMEDOUT, message).hint(
        "check that weft serve runs on the management node, and the network path to it (ping, firewall)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_options;
    use std::path::Path;

    #[test]
    fn ids_are_not_mapped_where_a_rule_squashes_users() {
        let args = |options: &str| {
            let options = mount_options::MountOptions::parse(&[options.to_string()], false).unwrap();
            options.mount(Path::new("/cluster.toml"), Path::new("/m")).unwrap()
        };
        let plain = Export::default();
        assert!(fuse_options(&args("idmap"), &plain).unwrap().idmap);
        for squash in [Squash::Root, Squash::All] {
            let squashed = Export { squash, ..plain };
            let refused = fuse_options(&args("idmap"), &squashed).unwrap_err();
            assert_eq!(refused.errno, Errno::EPERM);
            assert!(refused.message.contains("/m can't be mounted with idmap"), "{refused}");
            assert!(!fuse_options(&args("rw"), &squashed).unwrap().idmap);
        }
    }
}
