//! A node of a cluster: `weft serve`.

use super::core::{BackgroundCore, Served};
use super::follow::{current_map, follow_map};
use super::guard::Guarded;
use super::head::{Head, open_management};
use super::node_view::NodeView;
use super::peers::{MgmtChannel, Oneself, Peers, security};
use super::stop::{Stop, Stops};
use super::storage_node::{StorageNode, StorageOptions};
use super::{forget, prepare_process};
use crate::control::{self, ClusterStatus, Counters};
use crate::node_config::{NodeConfig, Protection};
use crate::output::os_error;
use identity::Credentials;
use identity::tls::Strangers;
use mgmt::{StateDir, StatePaths, Superblock};
use net::{Channel, Router, Server, ServerLimits, ServerOptions};
use rt::sync::Event;
use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use types::{ClusterMap, Error, MapHandle, Result, Role};

/// How long requests of this node's services to those of others are repeated: background work, which is tried again later.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a start waits for management.
const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(60);

/// What a node is to serve.
pub struct NodePlan {
    pub paths: StatePaths,
    pub superblock: Superblock,
    pub config: NodeConfig,
    pub outcast: Sender<Error>,
}

/// Everything that a node runs.
pub struct NodeServices {
    /// The services that listen.
    server: Arc<Server>,
    head: Option<Head>,
    /// Its targets, and its heartbeats.
    pub storage: Arc<StorageNode>,
    /// The way to management, be it here or elsewhere.
    pub management: MgmtChannel,
    /// The current map.
    pub map: MapHandle,
    /// The processes that it talks to.
    pub peers: Arc<Peers>,
}

impl NodePlan {
    fn oneself(&self) -> Result<Oneself> {
        let config = &self.config;
        let credentials = match config.protection {
            Protection::Plain => None,
            _ => Some(Credentials::load(&self.paths.identity())?),
        };
        let strangers =
            if config.roles.contains(&Role::Mgmt) { Strangers::MayJoin } else { Strangers::Refused };
        Ok(Oneself {
            cluster: self.superblock.uuid.clone(),
            name: format!("node {} ({})", config.node, config.name),
            security: security(config.protection, credentials.as_ref(), strangers)?,
        })
    }

    fn server_options(&self, oneself: &Oneself) -> ServerOptions {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        ServerOptions {
            listen: self.config.listen.clone(),
            cores: self.config.threads.unwrap_or(cpus).max(1),
            name: oneself.name.clone(),
            cluster: oneself.cluster.clone(),
            security: oneself.security.clone(),
            sum_payloads: true,
            limits: ServerLimits::default(),
        }
    }

    fn storage_options(&self) -> StorageOptions {
        StorageOptions {
            cluster: self.superblock.uuid.clone(),
            node: self.config.node,
            addresses: self.config.addresses.clone(),
            roles: self.config.roles.clone(),
            targets: self.config.targets.clone(),
        }
    }
}

impl Served for NodeServices {
    type Plan = NodePlan;

    async fn open(plan: &NodePlan) -> Result<NodeServices> {
        let oneself = plan.oneself()?;
        let peers = Peers::new(oneself.clone(), &plan.config.management, CALL_TIMEOUT)?;
        let opened = match plan.config.roles.contains(&Role::Mgmt) {
            true => Some(open_management(&plan.paths, &plan.superblock, &plan.config).await?),
            false => None,
        };
        let management: MgmtChannel = match &opened {
            Some((_, management)) => Channel::in_process(management.clone()),
            None => peers.management(),
        };
        let storage = StorageNode::new(plan.storage_options(), management.clone(), plan.outcast.clone());
        let open = Arc::new(Event::new());
        open.set();
        let mut router = Router::new().with(Guarded::new(storage.service.clone(), open));
        let (mut head, mut map) = (None, None);
        if let Some((writer, management)) = opened {
            map = Some(management.map());
            let own = (plan.config.node, storage.service.clone());
            let opened = Head::open(writer, management.clone(), &plan.superblock, own, peers.clone()).await?;
            router =
                router.with(management).with(Guarded::new(opened.meta.clone(), opened.recovered.clone()));
            head = Some(opened);
        }
        let map = match map {
            Some(map) => map,
            None => Arc::new(RwLock::new(first_map(&management).await?)),
        };
        let server = Server::start(plan.server_options(&oneself), router)?;
        storage.open().await?;
        Ok(NodeServices { server, head, storage, management, map, peers })
    }

    fn spawn_background(self: &Arc<Self>) {
        // The map of management's own process is management's to change; only addresses are followed there.
        let followed = match &self.head {
            Some(_) => Arc::new(RwLock::new(Arc::new(ClusterMap::default()))),
            None => self.map.clone(),
        };
        rt::spawn(follow_map(self.management.clone(), followed, self.peers.clone()));
        if let Some(head) = &self.head {
            head.spawn_background();
        }
        self.storage.spawn_background();
    }

    async fn close(&self) -> Result<()> {
        let outcome = self.storage.close().await;
        match &self.head {
            Some(head) => outcome.and(head.close().await),
            None => outcome,
        }
    }
}

/// The map, as soon as management can be reached.
async fn first_map(management: &MgmtChannel) -> Result<Arc<ClusterMap>> {
    let began_ns = rt::monotonic_ns();
    loop {
        match current_map(management).await {
            Err(error) if error.errno == types::Errno::ETIMEDOUT => {
                if rt::monotonic_ns() - began_ns > MANAGEMENT_PATIENCE.as_nanos() as u64 {
                    return Err(error.hint("start weft serve on the management node, or correct node.toml"));
                }
                tracing::warn!(%error, "waiting for management");
            }
            outcome => return outcome,
        }
    }
}

impl NodeServices {
    /// Work done since the process started, but for what targets did.
    pub fn counters(&self) -> Counters {
        let Some(head) = &self.head else { return Counters::default() };
        let meta = head.meta.stats();
        Counters {
            metadata_commands: meta.commands,
            metadata_batches: meta.batches,
            metadata_commits: meta.commits,
            metadata_syncs: meta.persists,
            ..Counters::default()
        }
    }

    /// Takes no more requests, and waits for those that run. Blocks the calling thread.
    fn stop_serving(&self) {
        self.server.stop();
    }
}

/// A running node.
pub struct NodeProcess {
    view: Arc<NodeView>,
    core: BackgroundCore<NodeServices>,
    stops: Stops,
    state: StateDir,
}

impl NodeProcess {
    /// Starts the services of a node's directory.
    pub fn start(state: StateDir, config: NodeConfig) -> Result<NodeProcess> {
        prepare_process()?;
        let stops = Stops::listen()?;
        let (outcast, told) = channel();
        let plan = NodePlan {
            paths: state.paths.clone(),
            superblock: state.superblock.clone(),
            config: config.clone(),
            outcast,
        };
        let core = BackgroundCore::<NodeServices>::start(plan)?;
        let stop = stops.sender();
        let forward = move || {
            if let Ok(error) = told.recv() {
                // Nobody listens once the end has begun.
                let _ = stop.send(Stop::Outcast(error));
            }
        };
        let watching = std::thread::Builder::new().name("weft-outcast".into()).spawn(forward);
        watching.map_err(|e| os_error("can't start a thread", &e))?;
        let view = Arc::new(NodeView::new(&state, config, core.services().clone(), stops.sender()));
        let process = NodeProcess { view, core, stops, state };
        match process.announce() {
            Ok(()) => Ok(process),
            Err(error) => {
                process.end(Stop::Failure)?;
                Err(error)
            }
        }
    }

    /// What `weft status` shows.
    pub fn status(&self) -> ClusterStatus {
        self.view.status()
    }

    /// Serves until something ends the node, and then ends it in good order.
    pub fn serve(self) -> Result<()> {
        let stop = self.stops.wait();
        self.end(stop)
    }

    fn announce(&self) -> Result<()> {
        let paths = &self.state.paths;
        let pid = format!("{}\n", std::process::id());
        fs::write(paths.pid(), pid).map_err(|e| os_error(paths.pid().display(), &e))?;
        control::start(paths, self.view.clone())?;
        self.view.start_api()?;
        let listen: Vec<String> =
            self.core.services().server.addresses().iter().map(ToString::to_string).collect();
        tracing::info!(listen = listen.join(", "), "{} serves", self.view.name());
        Ok(())
    }

    fn end(self, mut stop: Stop) -> Result<()> {
        tracing::info!("stopping: {stop}");
        let reason = match &mut stop {
            Stop::Outcast(error) => Err(error.clone()),
            _ => Ok(()),
        };
        self.core.services().stop_serving();
        let ended = self.core.shut_down().and(reason);
        forget(&self.state.paths);
        match &ended {
            Ok(()) => tracing::info!("stopped"),
            Err(error) => tracing::error!(hint = &*error.hint, "not stopped in good order: {error}"),
        }
        drop(self.state);
        // The connection in it ends with the process and not a moment before.
        std::mem::forget(stop);
        ended
    }
}
