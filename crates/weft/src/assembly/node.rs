//! A node of a cluster: `weft serve`.

use super::background_core::{BackgroundCore, ProcessServices};
use super::backups::{Backups, DEFAULT_RETAINED_BACKUPS};
use super::commands::CommandCore;
use super::management_addresses::ManagementAddresses;
use super::management_node::{ManagementNode, open_management};
use super::metadata_store;
use super::node_control::{NodeControl, foreign_address_notice};
use super::peers::{LocalIdentity, Peers, member_security};
use super::reachability::keep_reporting;
use super::renewal::{CertificateFile, Renewal};
use super::stop_reasons::{Stop, StopReasons};
use super::storage_node::{StorageNode, StorageOptions};
use super::{prepare_process, remove_runtime_files, write_pid_file};
use crate::control::{self, CheckParameters, ClusterStatus, Counters};
use crate::node_config::{NodeConfig, Protection};
use crate::output::os_error;
use ::node::{
    MgmtChannel, fetch_map, groups_of_node, has_offline_targets, metadata_service, remote_store,
    run_metadata, storage_of_node,
};
use identity::Credentials;
use identity::tls::UnauthenticatedClients;
use kvnet::KvService;
use meta::MetaService;
use mgmt::{StateDir, StatePaths, Superblock};
use net::{Channel, Handler, Networks, Router, SameHost, Server, ServerLimits, ServerOptions};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use types::{ClusterMap, Error, MapHandle, Result, Role};
use wire::{MetaRequest, MetaResponse, PartitionsReply, PartitionsRequest};

/// Time-out of requests between services, including retransmissions: background work, which is
/// tried again later.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time that a start waits for management.
const MANAGEMENT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Parameters of a node.
pub struct NodePlan {
    pub paths: StatePaths,
    pub superblock: Superblock,
    pub config: NodeConfig,
    pub fatal_error: Sender<Error>,
}

/// All services of a node.
pub struct NodeServices {
    /// The server that listens for connections.
    server: Arc<Server>,
    management_node: Option<ManagementNode>,
    /// Metadata service of this node, if it has that role.
    meta: Option<Arc<MetaService>>,
    /// Targets and heartbeats.
    pub storage: Arc<StorageNode>,
    /// Channel to management, in this process or on another node.
    pub management: MgmtChannel,
    /// The current cluster map.
    pub map: MapHandle,
    /// Connections to other processes.
    pub peers: Arc<Peers>,
    renewal: Option<Renewal>,
}

impl NodePlan {
    fn credentials(&self) -> Result<Option<Credentials>> {
        match self.config.protection {
            Protection::Plain => Ok(None),
            _ => Ok(Some(Credentials::load(&self.paths.identity())?)),
        }
    }

    fn local_identity(&self, credentials: Option<&Credentials>) -> Result<LocalIdentity> {
        let config = &self.config;
        let unauthenticated = if config.roles.contains(&Role::Mgmt) {
            UnauthenticatedClients::MayJoin
        } else {
            UnauthenticatedClients::Refused
        };
        Ok(LocalIdentity {
            cluster: self.superblock.uuid.clone(),
            name: format!("node {} ({})", config.node, config.name),
            security: member_security(config.protection, credentials, unauthenticated)?,
            networks: Networks::parse(&config.networks)?,
            // Messages between nodes are small.
            same_host: SameHost::OverTcp,
        })
    }

    fn server_options(&self, local_identity: &LocalIdentity, map: MapHandle) -> ServerOptions {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        ServerOptions {
            listen: self.config.listen.clone(),
            cores: self.config.threads.unwrap_or(cpus).max(1),
            name: local_identity.name.clone(),
            cluster: local_identity.cluster.clone(),
            security: local_identity.security.clone(),
            map,
            checksum_payloads: true,
            limits: ServerLimits::default(),
        }
    }

    /// Opens the metadata store of another node. If that store loses its last writes, this process
    /// must be restarted.
    async fn remote_store(&self, map: &MapHandle, peers: &Peers) -> Result<Arc<dyn kv::Store>> {
        let (store, remote) = remote_store(map, |node| peers.store(node)).await?;
        let fatal_error = self.fatal_error.clone();
        rt::spawn(async move {
            remote.data_loss().wait().await;
            let message = "the metadata store's machine was restarted and may have lost the last changes, which this node has cached";
            // The channel has no receiver if the process is shutting down already.
            let _ =
                fatal_error.send(Error::new(types::Errno::ESTALE, message).hint("start weft serve again"));
        });
        Ok(store)
    }

    /// Returns a function that opens separate connections, for network measurements: regular
    /// connections between two processes are limited to one per core.
    fn separate_connections(&self, local_identity: &LocalIdentity, map: &MapHandle) -> storage::Connect {
        let (from, management, map) = (local_identity.clone(), self.config.management.clone(), map.clone());
        Box::new(move |to| {
            let map = map.load();
            let node = map.node(to).ok_or_else(|| {
                Error::new(types::Errno::ENOENT, format!("there is no node {to}"))
                    .hint("weft node list shows all")
            })?;
            Ok(Peers::new(from.clone(), ManagementAddresses::fixed(&management), CALL_TIMEOUT)?.storage(node))
        })
    }

    /// Returns the addresses of management from this node's configuration file.
    fn management_addresses(&self) -> Arc<ManagementAddresses> {
        ManagementAddresses::from_file(
            self.paths.node_config(),
            &self.superblock.uuid,
            &self.config.management,
        )
    }

    fn storage_options(&self) -> StorageOptions {
        StorageOptions {
            cluster: self.superblock.uuid.clone(),
            node: self.config.node,
            addresses: self.config.addresses.clone(),
            roles: self.config.roles.clone(),
            dir: self.paths.root().to_path_buf(),
            targets: self.config.targets.clone(),
            numa: self.config.numa,
        }
    }
}

impl ProcessServices for NodeServices {
    type Plan = NodePlan;

    async fn open(plan: &NodePlan) -> Result<NodeServices> {
        let credentials = plan.credentials()?;
        let local_identity = plan.local_identity(credentials.as_ref())?;
        let certificate_file = CertificateFile::Node(plan.paths.identity());
        let renewal = Renewal::new(&local_identity.security, credentials.as_ref(), certificate_file);
        let peers = Peers::new(local_identity.clone(), plan.management_addresses(), CALL_TIMEOUT)?;
        let opened = match plan.config.roles.contains(&Role::Mgmt) {
            true => Some(open_management(&plan.paths, &plan.superblock, &plan.config).await?),
            false => None,
        };
        let management: MgmtChannel = match &opened {
            Some((_, management)) => Channel::in_process(management.clone()),
            None => peers.management(),
        };
        let map = match &opened {
            Some((_, management)) => management.map(),
            None => MapHandle::new(wait_for_map(&management).await?),
        };
        // In management's own process, only management updates the map.
        let followed = match &opened {
            Some(_) => MapHandle::default(),
            None => map.clone(),
        };
        let storage = StorageNode::new(
            plan.storage_options(),
            management.clone(),
            (followed, peers.clone()),
            plan.fatal_error.clone(),
        );
        if opened.is_some() {
            // Opening targets needs a map before this node follows management.
            let known = map.load();
            storage.membership.map.install(known);
        }
        let mut router = Router::new().with(storage.service().clone());
        let to = peers.clone();
        let members = groups_of_node(&storage.membership, map.clone(), move |node| to.storage(node));
        storage.service().serve_groups(members);
        storage.service().set_network_connector(plan.separate_connections(&local_identity, &map));
        let mut meta = None;
        if plan.config.roles.contains(&Role::Meta) {
            let store: Arc<dyn kv::Store> = match &opened {
                Some((writer, _)) => writer.clone(),
                None => plan.remote_store(&map, &peers).await?,
            };
            let (membership, to) = (&storage.membership, peers.clone());
            let channels = storage_of_node(membership, map.clone(), move |node| to.storage(node));
            let (parts, to) = ((map.clone(), channels), peers.clone());
            let connect = move |node: &types::Node| to.partitions(node);
            let service = metadata_service(membership, store, &plan.superblock, parts, connect);
            let clients: Arc<dyn Handler<MetaRequest, MetaResponse>> = service.clone();
            let services: Arc<dyn Handler<PartitionsRequest, PartitionsReply>> = service.clone();
            router = router.with(clients).with(services);
            meta = Some(service);
        }
        let management_node = match opened {
            Some((writer, management)) => {
                let store = Arc::new(KvService::new(writer.clone()));
                router = router.with(store).with(management.clone());
                let own = (plan.config.node, meta.clone());
                let retained = plan.config.backups.unwrap_or(DEFAULT_RETAINED_BACKUPS);
                let backups = Backups::new(writer.clone(), &plan.superblock, &plan.paths, retained);
                Some(ManagementNode::new(
                    writer,
                    management,
                    &plan.superblock,
                    backups,
                    own,
                    peers.clone(),
                    storage.service().clone(),
                ))
            }
            None => None,
        };
        let server = Server::start(plan.server_options(&local_identity, map.clone()), router)?;
        storage.open().await?;
        Ok(NodeServices { server, management_node, meta, storage, management, map, peers, renewal })
    }

    fn spawn_background(self: &Arc<Self>) {
        if let Some(renewal) = self.renewal.clone() {
            rt::spawn(renewal.run(self.management.clone()));
        }
        match &self.management_node {
            Some(management_node) => management_node.spawn_background(),
            None => rt::spawn(keep_reporting(self.peers.clone(), self.management.clone())),
        }
        if let Some(service) = self.meta.clone() {
            let map = self.map.clone();
            match self.management_node.as_ref().map(|management_node| management_node.management.clone()) {
                Some(management) => {
                    rt::spawn(run_metadata(service, move || !management.missing_nodes().is_empty()));
                }
                None => rt::spawn(run_metadata(service, move || has_offline_targets(&map))),
            }
        }
        self.storage.spawn_background();
    }

    async fn close(&self) -> Result<()> {
        if let Some(meta) = &self.meta {
            meta.stop();
        }
        let outcome = self.storage.membership.close().await;
        match &self.management_node {
            Some(management_node) => outcome.and(management_node.close().await),
            None => outcome,
        }
    }
}

/// Fetches the map, and waits until management is reachable.
async fn wait_for_map(management: &MgmtChannel) -> Result<Arc<ClusterMap>> {
    let began_ns = rt::monotonic_ns();
    loop {
        match fetch_map(management).await {
            Err(error) if error.errno == types::Errno::ETIMEDOUT => {
                if rt::monotonic_ns() - began_ns > MANAGEMENT_START_TIMEOUT.as_nanos() as u64 {
                    return Err(error.hint("start weft serve on the management node, or correct node.toml"));
                }
                tracing::warn!(%error, "waiting for management");
            }
            outcome => return outcome,
        }
    }
}

impl NodeServices {
    /// Returns counts of work since the process started, without that of targets.
    pub fn counters(&self) -> Counters {
        let Some(meta) = &self.meta else { return Counters::default() };
        let meta = meta.stats();
        Counters {
            metadata_commands: meta.commands,
            metadata_batches: meta.batches,
            metadata_commits: meta.commits,
            metadata_syncs: meta.persists,
            ..Counters::default()
        }
    }

    /// Runs the file system check while the cluster is in use.
    pub async fn check(&self, orders: &CheckParameters) -> Result<fsck::CheckReport> {
        self.head()?.check(orders).await
    }

    /// Returns the management role, which has access to all metadata.
    pub fn head(&self) -> Result<&ManagementNode> {
        self.management_node.as_ref().ok_or_else(|| {
            Error::new(types::Errno::EINVAL, "this node doesn't store the cluster's metadata")
                .hint("run this command on the management node")
        })
    }

    /// Returns the component that makes metadata backups.
    pub fn copies(&self) -> Result<&Arc<Backups>> {
        self.management_node.as_ref().map(|management_node| &management_node.copies).ok_or_else(|| {
            Error::new(types::Errno::EINVAL, "this node doesn't store the cluster's metadata")
                .hint("run weft meta backup on the management node")
        })
    }

    /// Accepts no more requests, and waits for running ones. Blocks the calling thread.
    fn stop_serving(&self) {
        self.server.stop();
    }
}

/// A running node.
pub struct NodeProcess {
    control: Arc<NodeControl>,
    core: BackgroundCore<NodeServices>,
    stops: StopReasons,
    state: StateDir,
}

impl NodeProcess {
    /// Starts the services of a node's directory.
    pub fn start(state: StateDir, config: NodeConfig) -> Result<NodeProcess> {
        prepare_process()?;
        let stops = StopReasons::listen()?;
        if let Some(notice) = foreign_address_notice(&config) {
            tracing::warn!(hint = notice.hint, "{}", notice.what);
        }
        let commands = CommandCore::start()?;
        let (fatal_error, fatal_receiver) = channel();
        let plan = NodePlan {
            paths: state.paths.clone(),
            superblock: state.superblock.clone(),
            config: config.clone(),
            fatal_error,
        };
        let core = BackgroundCore::<NodeServices>::start(plan)?;
        let stop = stops.sender();
        let forward = move || {
            if let Ok(error) = fatal_receiver.recv() {
                // The channel has no receiver once the process is shutting down.
                let _ = stop.send(Stop::Fatal(error));
            }
        };
        if let Some(management_node) = &core.services().management_node {
            metadata_store::watch_writer(
                management_node.writer(),
                &state.paths,
                &state.superblock,
                stops.sender(),
            )?;
        }
        let watching = std::thread::Builder::new().name("weft-fatal".into()).spawn(forward);
        watching.map_err(|e| os_error("can't start a thread", &e))?;
        let services = (core.services().clone(), commands);
        let control = Arc::new(NodeControl::new(&state, config, services, stops.sender()));
        let process = NodeProcess { control, core, stops, state };
        match process.announce() {
            Ok(()) => Ok(process),
            Err(error) => {
                process.end(Stop::Failure)?;
                Err(error)
            }
        }
    }

    /// Returns what `weft status` shows.
    pub fn status(&self) -> ClusterStatus {
        self.control.status()
    }

    /// Serves until something ends the node, and then shuts it down in order.
    pub fn serve(self) -> Result<()> {
        let stop = self.stops.wait();
        self.end(stop)
    }

    fn announce(&self) -> Result<()> {
        let paths = &self.state.paths;
        write_pid_file(paths);
        mgmt::keep_start_reserve(paths);
        control::start(&paths.socket(), self.control.clone())?;
        self.control.start_api()?;
        let listen: Vec<String> =
            self.core.services().server.addresses().iter().map(ToString::to_string).collect();
        tracing::info!(listen = listen.join(", "), "{} serves", self.control.name());
        Ok(())
    }

    fn end(self, mut stop: Stop) -> Result<()> {
        tracing::info!("stopping: {stop}");
        let reason = match &mut stop {
            Stop::Fatal(error) => Err(error.clone()),
            _ => Ok(()),
        };
        self.core.services().stop_serving();
        let ended = self.core.shut_down().and(reason);
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
