//! The services of a cluster in one process, opened from the bottom up and closed from the top
//! down.

use super::background_core::ProcessServices;
use super::backups::{Backups, DEFAULT_RETAINED_BACKUPS};
use super::inventory::take_inventories;
use super::metadata_store::{mark_store_created, open_engine};
use super::offline_check::OnlineChecks;
use super::online_check::OnlineCheck;
use super::stores::{create_target, open_target};
use super::target_usage::{TargetUsages, target_directories};
use crate::cli::{self, UpArgs};
use ::node::{LocalMetadata, ManagementGroupCreator, groups_of_one_process, store_error, target_work};
use chunkstore::{Identity, Store};
use client::{Client, ClientOptions};
use kv::{Durability, Writer};
use meta::{LocalMount, MetaOptions, MetaService, SessionKind, StorageChannel};
use mgmt::{FIRST_NODE, Management, StateDir, StatePaths, Superblock, TargetList};
use net::{Channel, LocalFuture};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use storage::StorageService;
use types::{Errno, Error, HashMap, InodeId, Result, SessionId, StripePattern, TargetId};
use wire::mgmt::ReconcileFiles;

/// Default number of targets of a new cluster: as many as the default stripe count.
const DEFAULT_TARGETS: usize = 4;

/// Parameters of the services.
pub struct ServicesPlan {
    superblock: Superblock,
    paths: StatePaths,
    /// Existing targets; `None` at the first start.
    list: Option<TargetList>,
    /// Targets to create at the first start.
    wanted: TargetList,
    durability: Durability,
    server_cache: bool,
    retained_backups: u32,
}

impl ServicesPlan {
    /// Returns the plan for a state directory and a command line.
    ///
    /// # Errors
    /// Options that contradict the existing cluster.
    pub fn new(state: &StateDir, args: &UpArgs) -> Result<ServicesPlan> {
        let paths = state.paths.clone();
        let list = TargetList::read(&paths)?;
        if let Some(list) = &list {
            list.require(args.targets.map(usize::from), &args.target_dir)?;
        }
        let directories = match args.target_dir.is_empty() {
            true => {
                let count = args.targets.map_or(DEFAULT_TARGETS, usize::from);
                (1..=count).map(|number| paths.default_target(number)).collect()
            }
            false => args.target_dir.clone(),
        };
        let wanted = TargetList::new(&paths, directories)?;
        let durability = match args.durability {
            cli::Durability::Relaxed => Durability::Process,
            cli::Durability::Strict => Durability::Disk,
        };
        Ok(ServicesPlan {
            superblock: state.superblock.clone(),
            paths,
            list,
            wanted,
            durability,
            server_cache: !args.no_server_cache,
            retained_backups: args.backups,
        })
    }

    /// Returns the plan for an existing cluster.
    ///
    /// # Errors
    /// A cluster that was never started.
    pub fn existing(state: &StateDir) -> Result<ServicesPlan> {
        let paths = state.paths.clone();
        let list = TargetList::read(&paths)?.ok_or_else(|| {
            let message = format!("the cluster in {} has no targets yet", paths.root().display());
            Error::new(Errno::ENOENT, message).hint("weft up creates them")
        })?;
        let superblock = state.superblock.clone();
        let wanted = list.clone();
        Ok(ServicesPlan {
            superblock,
            paths,
            list: Some(list),
            wanted,
            durability: Durability::Process,
            server_cache: true,
            retained_backups: DEFAULT_RETAINED_BACKUPS,
        })
    }

    fn identity(&self, target: TargetId) -> Identity {
        Identity { cluster: self.superblock.uuid.clone(), target }
    }

    /// Returns the targets, after a check that each exists and has the right identity. The first
    /// start creates them.
    ///
    /// # Errors
    /// A target that is missing, or that has another identity. Nothing has been changed then.
    async fn targets(&self) -> Result<&TargetList> {
        let Some(list) = &self.list else {
            for (id, directory) in self.wanted.targets() {
                create_target(directory, &self.identity(id)).await?;
            }
            self.wanted.create(&self.paths)?;
            return Ok(&self.wanted);
        };
        for (id, directory) in list.targets() {
            Store::check(directory, &self.identity(id)).await.map_err(store_error)?;
        }
        Ok(list)
    }

    async fn open_stores(&self, list: &TargetList) -> Result<BTreeMap<TargetId, Arc<Store>>> {
        let count = list.targets().count();
        let mut stores = BTreeMap::new();
        for (id, directory) in list.targets() {
            stores.insert(id, open_target(directory, &self.identity(id), count).await?);
        }
        Ok(stores)
    }
}

/// All services between the mount and the disks.
pub struct Services {
    /// Number of partitions, and the key of the name hash.
    name_space: (u16, (u64, u64)),
    writer: Arc<Writer>,
    stores: BTreeMap<TargetId, Arc<Store>>,
    storage: Arc<StorageService>,
    /// Owns the cluster map.
    pub management: Arc<Management>,
    /// Name space and inodes.
    pub meta: Arc<MetaService>,
    /// Session of the mount.
    pub client: Arc<Client>,
    /// Backups of the metadata.
    pub backups: Arc<Backups>,
    /// Checks that run while the cluster is served.
    pub checks: OnlineChecks,
}

/// The mount of this process, for the migrator. The weak reference doesn't keep the client alive.
struct LocalMountHandle(Weak<Client>);

impl LocalMount for LocalMountHandle {
    fn while_suspended<'a>(&'a self, ino: InodeId, work: LocalFuture<'a, ()>) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(client) => client.with_exclusive(ino, work).await,
                None => Err(Error::new(Errno::ECANCELED, "the file system is being unmounted")),
            }
        })
    }
}

impl ProcessServices for Services {
    type Plan = ServicesPlan;

    /// Opens all services, and recovers from a crash if there was one.
    async fn open(plan: &ServicesPlan) -> Result<Services> {
        let list = plan.targets().await?;
        let engine = open_engine(&plan.paths, &plan.superblock)?.with_durability(plan.durability);
        let writer = Arc::new(Writer::new(Arc::new(engine), plan.durability));
        let management = Arc::new(Management::open(writer.clone(), list).await?);
        mark_store_created(&plan.paths)?;
        let copies = Backups::new(writer.clone(), &plan.superblock, &plan.paths, plan.retained_backups);
        copies.register_with(&management);
        let stores = plan.open_stores(list).await?;
        let storage = Arc::new(StorageService::new(stores.values().cloned()));
        let channel: StorageChannel = Channel::in_process(storage.clone());
        storage.serve_groups(groups_of_one_process(
            management.map(),
            stores.keys().copied(),
            &channel,
            Channel::in_process(management.clone()),
        ));
        let channels: HashMap<TargetId, StorageChannel> =
            stores.keys().map(|id| (*id, channel.clone())).collect();
        let options = MetaOptions {
            node: FIRST_NODE,
            hash_key: plan.superblock.hash_key,
            partitions: plan.superblock.partitions,
            root_pattern: StripePattern::of_new_root(),
        };
        let meta = MetaService::open(writer.clone(), options, management.map(), channels.clone()).await?;
        meta.recover().await?;
        let recovered = Arc::new(rt::sync::Event::new());
        recovered.set();
        meta.set_group_creator(Arc::new(ManagementGroupCreator(Channel::in_process(management.clone()))));
        management.set_metadata(Arc::new(LocalMetadata { service: meta.clone(), recovered }));
        for (&target, store) in &stores {
            let touched =
                ReconcileFiles { files: store.take_changing_at_crash(), new: store.take_created_at_crash() };
            meta.reconcile_target(target, &touched).await?;
            store.mark_reconciled();
        }
        let session = SessionId::from_random(rt::secret_u64());
        meta.register_session(session, SessionKind::Local).await?;
        let client = Client::new(ClientOptions {
            session,
            meta: Channel::in_process(meta.clone()).into(),
            storage: channels.into(),
            map: management.map(),
            server_cache: plan.server_cache,
            write_behind: false,
            wsync: false,
            only_session: true,
        });
        meta.set_local_mount(Arc::new(LocalMountHandle(Arc::downgrade(&client))));
        Ok(Services {
            name_space: (plan.superblock.partitions, plan.superblock.hash_key),
            writer,
            stores,
            storage,
            management,
            meta,
            client,
            backups: copies,
            checks: OnlineChecks::default(),
        })
    }

    /// Starts the background work of every service on the calling core.
    fn spawn_background(self: &Arc<Self>) {
        rt::spawn(self.management.clone().background());
        rt::spawn(self.meta.clone().background());
        rt::spawn(self.client.clone().background());
        rt::spawn(self.backups.clone().run_daily_backups());
        for store in self.stores.values() {
            rt::spawn(store.clone().background());
        }
        let usages = Arc::new(TargetUsages::default());
        usages.clone().measure_periodically(target_directories(Arc::downgrade(&self.storage)));
        self.management.set_own_usage(Arc::new(move |target, space| usages.upper_bound(target, space)));
        let storage = Arc::downgrade(&self.storage);
        let is_proven = move |id| storage.upgrade().is_none_or(|storage| storage.is_available(id));
        self.management.set_target_check(Arc::new(is_proven));
        rt::spawn(StorageService::run_target_checks(self.storage.clone()));
        rt::spawn(StorageService::run_group_resyncs(self.storage.clone()));
        rt::spawn(StorageService::run_scrubs(self.storage.clone(), self.management.map()));
        rt::spawn(take_inventories(
            Arc::new(self.online_check()),
            self.writer.clone(),
            self.management.clone(),
        ));
        let services = self.clone();
        rt::spawn(async move {
            loop {
                services.management.note_own_scrubs(services.storage.scrubs());
                let work =
                    |store: &Arc<Store>| (store.target(), store.dir().to_path_buf(), target_work(store));
                services.management.note_own_io(services.storage.stores().map(work));
                rt::sleep(mgmt::limits::HEARTBEAT_INTERVAL).await;
            }
        });
    }

    /// Ends the session and closes the services. Tries everything, and returns the first failure.
    async fn close(&self) -> Result<()> {
        let mut outcome = self.client.shutdown().await;
        // Before the stores are marked as cleanly shut down: their content must not outlive the
        // metadata that owns it.
        outcome = outcome.and(self.writer.sync().await.map_err(|e| mgmt::Error::from(e).into()));
        outcome = outcome.and(self.storage.close_groups().await);
        for store in self.stores.values() {
            outcome = outcome.and(store.close().await.map_err(store_error));
        }
        outcome = outcome.and(self.writer.sync().await.map_err(|e| mgmt::Error::from(e).into()));
        outcome.and(self.writer.engine().sync_for_close().map_err(|e| mgmt::Error::from(e).into()))
    }
}

impl Services {
    /// Runs the file system check. No requests may be served meanwhile, nor after a repair.
    pub async fn check(
        &self,
        plan: &ServicesPlan,
        orders: &fsck::CheckOptions<'_>,
        progress: fsck::Progress<'_>,
    ) -> Result<fsck::CheckReport> {
        let map = self.management.map().load();
        let (copies, unopened) = fsck::open_replicas(&self.stores).await?;
        let subject = fsck::Subject {
            metadata: &*self.writer,
            partitions: plan.superblock.partitions,
            hash_key: plan.superblock.hash_key,
            map: &map,
            stores: &self.stores,
            replicas: &copies,
            unopened: &unopened,
        };
        let mut report = fsck::check(&subject, orders, progress).await;
        for copy in copies.values() {
            let closed = copy.close().await.map_err(store_error);
            report = report.and_then(|report| closed.map(|()| report));
        }
        report
    }

    /// Returns the file system check for a cluster that is being served.
    pub fn online_check(&self) -> OnlineCheck {
        let channel: StorageChannel = Channel::in_process(self.storage.clone());
        let storage = self.stores.keys().map(|id| (*id, channel.clone())).collect();
        let (partitions, hash_key) = self.name_space;
        OnlineCheck { partitions, hash_key, storage, map: self.management.map() }
    }

    /// Returns the metadata store.
    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Returns the storage service of all targets.
    pub fn storage_service(&self) -> Arc<StorageService> {
        self.storage.clone()
    }

    /// Returns the number of requests that a target has received.
    pub fn requests(&self, target: TargetId) -> u64 {
        self.storage.counters(target).map_or(0, |counters| counters.requests)
    }
}
