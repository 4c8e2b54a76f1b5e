//! Answers of a node to commands.

use super::commands::CommandCore;
use super::locality;
use super::map_views::{self, TargetDetails};
use super::measure::run_while_connected;
use super::membership_authority::hex_text;
use super::node::NodeServices;
use super::stop_reasons::Stop;
use crate::api;
use crate::cli::value_name;
use crate::control::{
    CheckParameters, ClusterStatus, Counters, DiskFree, LossParameters, MeasurementRequest, Notice, Request,
    Service, TargetStatus,
};
use crate::node_config::{NodeConfig, Protection, TargetConfig};
use crate::output::os_error;
use ::node::unexpected_reply;
use mgmt::{StateDir, Superblock};
use net::Channel;
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use types::{ClusterMap, Errno, Error, Result};
use wire::{MgmtReply, MgmtRequest};

/// Answers the commands of the control socket.
pub struct NodeControl {
    superblock: Superblock,
    dir: PathBuf,
    config: NodeConfig,
    services: Arc<NodeServices>,
    commands: CommandCore,
    stops: Sender<Stop>,
    started_ns: u64,
}

impl NodeControl {
    /// Creates the handler of commands for the services of a node.
    pub fn new(
        state: &StateDir,
        config: NodeConfig,
        (services, commands): (Arc<NodeServices>, CommandCore),
        stops: Sender<Stop>,
    ) -> NodeControl {
        NodeControl {
            superblock: state.superblock.clone(),
            dir: state.paths.root().to_path_buf(),
            config,
            services,
            commands,
            stops,
            started_ns: rt::monotonic_ns(),
        }
    }

    /// Opens the HTTP interface, if it is configured.
    pub fn start_api(self: &Arc<Self>) -> Result<()> {
        if self.config.api.is_empty() {
            return Ok(());
        }
        let tls = match self.config.protection {
            Protection::Plain => None,
            _ => Some(self.api_certificate()?),
        };
        let (listen, tokens) = (self.config.api.clone(), api::Tokens::load_or_create(&self.dir)?);
        let options = api::ApiOptions::new(listen, tls, tokens, self.services.map.clone());
        let addresses = api::start(options, self.clone())?;
        tracing::info!(?addresses, "the HTTP interface is open");
        Ok(())
    }

    /// Returns the certificate of the HTTP interface, which management issues and renews.
    fn api_certificate(self: &Arc<Self>) -> Result<api::Certificate> {
        let paths = mgmt::StatePaths::new(&self.dir);
        let credentials = identity::Credentials::load(&paths.identity())?;
        api::write_ca(&self.dir, &credentials)?;
        let control = Arc::downgrade(self);
        let certify = move |csr: &[u8]| -> Result<String> {
            let control = control.upgrade().ok_or(Errno::ECANCELED)?;
            let (node, csr) = (control.config.node, hex_text(csr));
            let names = api::certificate_names(control.map().node(node), &control.config.api_names);
            match control.ask_management(MgmtRequest::CertifyApi { node, csr, names })? {
                MgmtReply::Certificate { chain } => Ok(chain),
                other => Err(unexpected_reply(&other)),
            }
        };
        api::Certificate::new(credentials, Box::new(certify))
    }

    /// Returns the node's name for messages.
    pub fn name(&self) -> String {
        format!("node {} ({}) of cluster {}", self.config.node, self.config.name, self.superblock.name)
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.services.map.load()
    }

    /// Returns the state of the node, and of the cluster as the node sees it.
    pub fn status(&self) -> ClusterStatus {
        let df = self.df();
        let storage_requests = df.targets.iter().filter_map(|t| t.operations).sum();
        ClusterStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            name: self.superblock.name.clone(),
            uuid: self.superblock.uuid.clone(),
            pid: std::process::id(),
            uptime_s: (rt::monotonic_ns() - self.started_ns) / 1_000_000_000,
            dir: self.dir.display().to_string(),
            mount: String::new(),
            transport: String::new(),
            durability: value_name(self.config.durability),
            read_only: false,
            numa: self.config.numa,
            epoch: self.map().epoch.0,
            capacity: df.capacity,
            used: df.used,
            free: df.free,
            counters: Counters { storage_requests, ..self.services.counters() },
            targets: df.targets,
            unserved: self.services.storage.unserved(),
            warnings: foreign_address_notice(&self.config).into_iter().collect(),
        }
    }

    fn targets(&self) -> Vec<TargetStatus> {
        // Read from the file, since targets may have been added after the start.
        let own = NodeConfig::read(&self.dir).map_or(vec![], |config| config.targets);
        let zone = |t: &types::Target| {
            let here =
                |own: &&TargetConfig| t.node == self.config.node && own.path.to_string_lossy() == t.path;
            own.iter().find(here)?.numa
        };
        let details = |t: &types::Target| TargetDetails {
            numa: zone(t),
            operations: (t.node == self.config.node).then(|| self.services.storage.requests(t.id)),
        };
        map_views::targets(&self.map(), details)
    }

    fn df(&self) -> DiskFree {
        map_views::disk_free(String::new(), self.targets())
    }

    /// Sends a request to management, in this process or on another node.
    fn manage(&self, request: MgmtRequest) -> Result<Value> {
        to_json(&self.ask_management(request)?)
    }

    fn ask_management(&self, request: MgmtRequest) -> Result<MgmtReply> {
        let management = self.services.management.clone();
        self.commands.run(move || async move { management.call(request, None).await })?
    }

    /// Checks the cluster while it is served, on a core of the control thread: the check takes
    /// long, and starts no task that must outlive its answer.
    fn check(&self, orders: CheckParameters) -> Result<Value> {
        let services = self.services.clone();
        let checked = rt::block_on(async move { services.check(&orders).await });
        to_json(&checked.map_err(|e| os_error("io_uring", &e))??)
    }

    /// Returns the exposure map; runs like [`NodeControl::check`].
    fn exposure(&self) -> Result<Value> {
        let services = self.services.clone();
        let exposure = rt::block_on(async move { services.head()?.exposure().await });
        to_json(&exposure.map_err(|e| os_error("io_uring", &e))??)
    }

    /// Returns what would be lost with a target; runs like [`NodeControl::check`].
    fn losses(&self, order: LossParameters) -> Result<Value> {
        let services = self.services.clone();
        let listed = rt::block_on(async move { services.head()?.losses(&order).await });
        to_json(&listed.map_err(|e| os_error("io_uring", &e))??)
    }

    /// Adds a directory as a target, and to node.toml, so that the next start finds it.
    fn add_target(&self, target: TargetConfig) -> Result<Value> {
        if !self.config.roles.contains(&types::Role::Storage) {
            return Err(Error::new(Errno::EINVAL, format!("{} doesn't have the role storage", self.name()))
                .hint("weft node set NODE --roles on the management node, then the same roles in node.toml, then weft serve again; or add the target on another node"));
        }
        let id = self.services.storage.add_target(target.clone())?;
        TargetConfig { new: false, ..target }.append(&self.dir)?;
        to_json(&id)
    }
}

/// Returns a warning if none of the node's announced addresses belongs to this machine.
pub fn foreign_address_notice(config: &NodeConfig) -> Option<Notice> {
    let own = locality::addresses_if_unannounced(&config.addresses)?;
    let own: Vec<String> = own.iter().map(ToString::to_string).collect();
    let what = format!(
        "none of this node's announced addresses ({}) belongs to this machine, which has {}",
        config.addresses.join(", "),
        if own.is_empty() { "none but loopback".into() } else { own.join(", ") }
    );
    let hint = "correct addresses in node.toml, and restart weft serve; with address translation (NAT) this is fine if weft health reports no problem";
    Some(Notice { what, hint: hint.into() })
}

fn to_json(value: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the answer can't be written as JSON: {e}")))
}

impl Service for NodeControl {
    fn answer(&self, request: Request) -> Result<Value> {
        match request {
            Request::Status => to_json(&self.status()),
            Request::Targets => to_json(&self.targets()),
            Request::Pools => to_json(&map_views::pools(&self.map())),
            Request::Df => to_json(&self.df()),
            Request::Net => to_json(&self.services.peers.infos()),
            Request::Manage { request } => self.manage(request),
            Request::AddTarget { target } => self.add_target(target),
            Request::Check { orders } => self.check(orders),
            Request::CheckProgress => to_json(&self.services.head()?.checks.progress()),
            Request::Exposure => self.exposure(),
            Request::Losses { order } => self.losses(order),
            Request::Backup { place, changes_only } => {
                to_json(&self.services.copies()?.make(place.as_deref(), changes_only)?)
            }
            Request::BackupProgress => to_json(&self.services.copies()?.progress()),
            Request::Session | Request::MountHow => {
                Err(Error::new(Errno::EOPNOTSUPP, "a node has no session")
                    .hint("weft session show MOUNTPOINT asks a mount, weft session list shows all"))
            }
            Request::Measure { .. } | Request::Log { .. } | Request::Stop => {
                Err(Error::new(Errno::EINVAL, "internal error: this request has its own handler"))
            }
        }
    }

    fn measure(&self, order: MeasurementRequest, requester: UnixStream) -> Result<Value> {
        // Only management may have nodes measured and store the results.
        let services = self.services.clone();
        services.head()?;
        let map = self.map();
        let node = order.node(&map)?;
        let channel = match node.id == self.config.node {
            true => Channel::in_process(services.storage.service().clone()),
            false => services.peers.storage(node),
        };
        run_while_connected(requester, order.execute(channel, services.management.clone()))
    }

    fn stop(&self, connection: UnixStream) {
        // The channel has no receiver once the process is shutting down; then the connection closes
        // with the process.
        let _ = self.stops.send(Stop::Command(connection));
    }
}
