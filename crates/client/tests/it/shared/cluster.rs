//! A cluster on a simulated machine with several clients.

use super::delayed_requests::HoldingNetwork;
use client::{Client, ClientOptions, SessionFailover};
use kv::{Batch, Engine};
use net::Channel;
use rt::sim::Machine;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::channel::{CuttableRoute, MetaHandler, Route, StorageHandler, to_storage};
use testkit::cluster::{ClusterBuilder, set_pattern};
use testkit::map::{self, MapBuilder};
use testkit::{clients, cluster};
use types::{ChunkFileId, ClusterMap, Errno, Error, Result, SessionId, TargetId, TargetState};
use wire::{MetaRequest, MetaResponse, StorageReply, StorageRequest};

pub(crate) use testkit::application::{Application, RDONLY, RDWR, ROOT, run_lengths};

/// Targets; every file is striped over all of them.
pub(crate) const TARGETS: u32 = 3;
/// Chunk size, in bytes.
pub(crate) const CHUNK: usize = 64 * 1024;
const PATTERN: &[u8] = br#"{"chunk_size":65536}"#;

/// A running cluster, whose clients have slow connections to its services.
pub(crate) struct Cluster(cluster::Cluster);

impl Deref for Cluster {
    type Target = cluster::Cluster;

    fn deref(&self) -> &cluster::Cluster {
        &self.0
    }
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Cluster>) -> F + 'static) {
    with_cluster_of_seed(1, test);
}

/// Like [`with_cluster`], with a disk of this many bytes, which all targets share.
pub(crate) fn with_cluster_on_disk<F: Future<Output = ()> + 'static>(
    bytes: u64,
    test: impl FnOnce(Rc<Cluster>) -> F + 'static,
) {
    let mut machine = Machine::new(1);
    machine.set_capacity(Some(bytes));
    let run = async move {
        let cluster = Cluster::start().await;
        test(Rc::new(cluster)).await;
    };
    machine.run(run).unwrap();
}

/// Like [`with_cluster`], with another order of events.
pub(crate) fn with_cluster_of_seed<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Rc<Cluster>) -> F + 'static,
) {
    let run = async move {
        let cluster = Cluster::start().await;
        test(Rc::new(cluster)).await;
    };
    Machine::new(seed).run(run).unwrap();
}

impl Cluster {
    async fn start() -> Cluster {
        let site = ClusterBuilder::new(cluster_map()).create().await;
        let cluster = Cluster(site.serve().await);
        let first = cluster.client().await;
        set_pattern(&first, PATTERN).await;
        first.shutdown().await.unwrap();
        cluster
    }

    /// Number of requests to the metadata service so far.
    pub(crate) fn requests(&self) -> u64 {
        self.metadata.route().requests()
    }

    /// Number of requests to the storage service so far.
    pub(crate) fn storage_requests(&self) -> u64 {
        targets().map(|target| self.storage.counters(target).unwrap().requests).sum()
    }

    /// Kills the metadata service, and starts another.
    pub(crate) async fn restart_metadata(&self) {
        self.metadata.restart().await;
    }

    /// Cuts the power of the metadata store's machine, which loses unsynced changes; then the
    /// service is started again.
    pub(crate) async fn cut_power_of_metadata(&self) {
        self.metadata.lose_power().await;
    }

    /// Starts or cancels the draining of a target.
    pub(crate) fn drain(&self, target: u32, drain: bool) {
        map::drain(&self.map, TargetId(target), drain);
    }

    /// Waits until a target is empty; panics after a time-out.
    pub(crate) async fn wait_until_empty(&self, target: u32) {
        let is_empty = self.0.wait_until_empty(TargetId(target)).await;
        assert!(is_empty, "{:?}", self.metadata.service().drains());
    }

    /// Whether the metadata service reports a target as empty.
    pub(crate) fn is_empty(&self, target: u32) -> bool {
        self.0.is_empty(TargetId(target))
    }

    /// Number of files that this metadata service has migrated off a target.
    pub(crate) fn moved(&self, target: u32) -> u64 {
        let drains = self.metadata.service().drains();
        drains.iter().filter(|drain| drain.target == TargetId(target)).map(|drain| drain.files_moved).sum()
    }

    /// Names of the chunk files on a target.
    pub(crate) async fn chunk_files(&self, target: u32) -> Vec<ChunkFileId> {
        self.0.chunk_files(TargetId(target)).await
    }

    /// Adds a client.
    pub(crate) async fn client(&self) -> Arc<Client> {
        clients::start(self.options()).await
    }

    /// Adds clients.
    pub(crate) async fn clients<const N: usize>(&self) -> [Arc<Client>; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"))
    }

    /// Adds a client whose connection to the metadata service can be cut.
    pub(crate) async fn client_with_cuttable_meta(
        &self,
    ) -> (Arc<Client>, Arc<CuttableRoute<MetaRequest, MetaResponse>>) {
        let way = CuttableRoute::new(self.metadata.handler());
        (clients::start(self.options_over(way.clone(), self.slow_storage())).await, way)
    }

    /// Adds a client whose requests to the metadata service go through a handler.
    pub(crate) async fn client_through(&self, meta: MetaHandler) -> Arc<Client> {
        clients::start(self.options_over(meta, self.slow_storage())).await
    }

    /// Adds a client whose connection to the storage services can be cut.
    pub(crate) async fn client_with_cuttable_storage(
        &self,
    ) -> (Arc<Client>, Arc<CuttableRoute<StorageRequest, StorageReply>>) {
        let way = CuttableRoute::new(self.slow_storage());
        (clients::start(self.options_over(self.metadata.handler(), way.clone())).await, way)
    }

    /// Adds a client with its own connection to the storage services.
    pub(crate) async fn client_over(&self, storage: StorageHandler) -> Arc<Client> {
        clients::start(self.options_over(self.metadata.handler(), storage)).await
    }

    /// Like [`Cluster::client_over`], with write-behind.
    pub(crate) async fn client_with_write_behind_over(&self, storage: StorageHandler) -> Arc<Client> {
        let options = self.options_over(self.metadata.handler(), storage);
        clients::start(ClientOptions { write_behind: true, ..options }).await
    }

    /// Adds a client with write-behind.
    pub(crate) async fn client_with_write_behind(
        &self,
    ) -> (Arc<Client>, Arc<CuttableRoute<StorageRequest, StorageReply>>) {
        let way = CuttableRoute::new(self.slow_storage());
        let options = self.options_over(self.metadata.handler(), way.clone());
        (clients::start(ClientOptions { write_behind: true, ..options }).await, way)
    }

    /// Adds a client whose changes of chunk files can be held up.
    pub(crate) async fn client_over_a_holding_network(&self) -> (Arc<Client>, Arc<HoldingNetwork>) {
        let way = HoldingNetwork::new(self.storage.clone());
        (clients::start(self.options_over(self.metadata.handler(), way.clone())).await, way)
    }

    /// Adds a mount with session failover. Its connection to the metadata service can be cut.
    pub(crate) async fn mount(
        &self,
    ) -> (Arc<SessionFailover>, Arc<CuttableRoute<MetaRequest, MetaResponse>>) {
        self.mount_with_refusals(Arc::default()).await
    }

    /// Like [`Cluster::mount`]; another session is refused while `refused` is set.
    pub(crate) async fn mount_with_refusals(
        &self,
        refused: Arc<AtomicBool>,
    ) -> (Arc<SessionFailover>, Arc<CuttableRoute<MetaRequest, MetaResponse>>) {
        let way = CuttableRoute::new(self.metadata.handler());
        let (names, storage, map) = (way.clone(), self.slow_storage(), self.map.clone());
        let begin = move || -> Pin<Box<dyn Future<Output = Result<Arc<Client>>>>> {
            let session = SessionId::from_random(rt::random_u64());
            let meta = Channel::in_process(names.clone());
            let client = Client::new(clients::options(session, &map, meta, to_storage(targets(), &storage)));
            let refused = refused.clone();
            Box::pin(async move {
                if refused.load(Ordering::Relaxed) {
                    return Err(Error::new(Errno::EACCES, "not from this network"));
                }
                client.register().await.map(|()| client)
            })
        };
        let first = begin().await.unwrap();
        let mount = SessionFailover::new(first, Box::new(begin));
        rt::spawn(mount.clone().run());
        (mount, way)
    }

    /// Ends the session of a mount, as an administrator does, and waits for its successor.
    pub(crate) async fn replace_session(&self, mount: &SessionFailover) {
        let before = mount.history();
        self.evict(mount);
        while mount.history().replacements == before.replacements {
            rt::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Kills the metadata service, deletes the record of a mount's session from its store, and
    /// starts another service.
    pub(crate) async fn restart_metadata_without(&self, mount: &SessionFailover) {
        let (engine, session) = (self.metadata.engine(), mount.history().session);
        let pairs = engine.scan(&[], &[0xff; 16], usize::MAX).unwrap();
        let keys = pairs.into_iter().map(|(key, _)| key.to_vec());
        // The keys of records of written files end with the session, too, but also contain a file.
        let is_record = |key: &Vec<u8>| key.len() < 16 && key.ends_with(&session.0.to_be_bytes());
        let records: Vec<_> = keys.filter(is_record).collect();
        assert_eq!(records.len(), 1, "the record of the session");
        let writes = records.into_iter().map(|key| (key, None)).collect();
        engine.apply(&[Batch { guards: vec![], writes }]).unwrap();
        self.restart_metadata().await;
    }

    /// Ends the session of a mount, as an administrator does.
    pub(crate) fn evict(&self, mount: &SessionFailover) {
        self.metadata.service().evict_session(mount.history().session).unwrap();
    }

    /// Sets the state of all targets in the cluster map.
    pub(crate) fn set_target_state(&self, state: TargetState) {
        let mut changed = ClusterMap::clone(&self.map.load());
        changed.targets.iter_mut().for_each(|target| target.state = state);
        self.map.store(Arc::new(changed));
    }

    /// A client that isn't registered and receives no recalls yet.
    pub(crate) fn unregistered(&self) -> Arc<Client> {
        Client::new(self.options())
    }

    pub(crate) fn options(&self) -> ClientOptions {
        self.options_over(self.metadata.handler(), self.slow_storage())
    }

    fn options_over(&self, meta: MetaHandler, storage: StorageHandler) -> ClientOptions {
        self.0.options(Channel::in_process(meta), &storage)
    }

    fn slow_storage(&self) -> StorageHandler {
        Route::slow(self.storage.clone())
    }
}

pub(crate) fn targets() -> impl Iterator<Item = TargetId> {
    (1..=TARGETS).map(TargetId)
}

pub(crate) fn cluster_map() -> ClusterMap {
    MapBuilder::new(TARGETS).single_groups().build()
}
