//! A cluster on a simulated machine with several clients.

use super::late::Holding;
use client::{Client, ClientOptions, Succession};
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
use testkit::channel::{Cuttable, MetaHandler, Route, StorageHandler, to_storage};
use testkit::cluster::{ClusterBuilder, set_pattern};
use testkit::map::{self, MapBuilder};
use testkit::{clients, cluster};
use types::{ClusterMap, Errno, Error, InodeId, Result, SessionId, TargetId, TargetState};
use wire::{MetaRequest, MetaResponse, StorageReply, StorageRequest};

pub(crate) use testkit::program::{Program, RDONLY, RDWR, ROOT, runs};

/// Targets; every file is striped over all of them.
pub(crate) const TARGETS: u32 = 3;
/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64 * 1024;
const PATTERN: &[u8] = br#"{"chunk_size":65536}"#;

/// A running cluster, whose clients have slow ways to its services.
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

/// The same, with a disk of so many bytes, which all targets share.
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

/// The same with another order of events.
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

    /// Requests to the metadata service so far.
    pub(crate) fn requests(&self) -> u64 {
        self.metadata.route().requests()
    }

    /// Requests to the storage service so far.
    pub(crate) fn storage_requests(&self) -> u64 {
        targets().map(|target| self.storage.counters(target).unwrap().requests).sum()
    }

    /// Ends the metadata service without warning, and starts another.
    pub(crate) async fn restart_names(&self) {
        self.metadata.restart().await;
    }

    /// The machine of the metadata store loses its power, and with it what wasn't synced; then the
    /// service is there again.
    pub(crate) async fn lose_power_of_names(&self) {
        self.metadata.lose_power().await;
    }

    /// Begins to empty a target, or lets it be.
    pub(crate) fn drain(&self, target: u32, drain: bool) {
        map::drain(&self.map, TargetId(target), drain);
    }

    /// Waits until a target is empty, for a while.
    pub(crate) async fn emptied(&self, target: u32) {
        let is_empty = self.0.becomes_empty(TargetId(target)).await;
        assert!(is_empty, "{:?}", self.metadata.service().drains());
    }

    /// Whether the metadata service calls a target empty.
    pub(crate) fn is_empty(&self, target: u32) -> bool {
        self.0.is_empty(TargetId(target))
    }

    /// Files that this metadata service has moved off a target.
    pub(crate) fn moved(&self, target: u32) -> u64 {
        let drains = self.metadata.service().drains();
        drains.iter().filter(|drain| drain.target == TargetId(target)).map(|drain| drain.files_moved).sum()
    }

    /// Chunk files on a target, by name.
    pub(crate) async fn chunk_files(&self, target: u32) -> Vec<InodeId> {
        self.0.chunk_files(TargetId(target)).await
    }

    /// One more client.
    pub(crate) async fn client(&self) -> Arc<Client> {
        clients::start(self.options()).await
    }

    /// Some more clients.
    pub(crate) async fn clients<const N: usize>(&self) -> [Arc<Client>; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"))
    }

    /// A client whose way to the metadata service can be cut.
    pub(crate) async fn client_to_cut(&self) -> (Arc<Client>, Arc<Cuttable<MetaRequest, MetaResponse>>) {
        let way = Cuttable::new(self.metadata.handler());
        (clients::start(self.options_over(way.clone(), self.slow_storage())).await, way)
    }

    /// A client whose requests to the metadata service go through a handler.
    pub(crate) async fn client_through(&self, meta: MetaHandler) -> Arc<Client> {
        clients::start(self.options_over(meta, self.slow_storage())).await
    }

    /// A client whose way to the storage services can be cut.
    pub(crate) async fn client_to_cut_from_storage(
        &self,
    ) -> (Arc<Client>, Arc<Cuttable<StorageRequest, StorageReply>>) {
        let way = Cuttable::new(self.slow_storage());
        (clients::start(self.options_over(self.metadata.handler(), way.clone())).await, way)
    }

    /// A client with a way of its own to the storage services.
    pub(crate) async fn client_over(&self, storage: StorageHandler) -> Arc<Client> {
        clients::start(self.options_over(self.metadata.handler(), storage)).await
    }

    /// The same that keeps small writes for a moment.
    pub(crate) async fn client_over_that_keeps(&self, storage: StorageHandler) -> Arc<Client> {
        let options = self.options_over(self.metadata.handler(), storage);
        clients::start(ClientOptions { write_behind: true, ..options }).await
    }

    /// One that keeps small writes for a moment.
    pub(crate) async fn client_that_keeps(
        &self,
    ) -> (Arc<Client>, Arc<Cuttable<StorageRequest, StorageReply>>) {
        let way = Cuttable::new(self.slow_storage());
        let options = self.options_over(self.metadata.handler(), way.clone());
        (clients::start(ClientOptions { write_behind: true, ..options }).await, way)
    }

    /// A client whose changes of chunk files can be held up.
    pub(crate) async fn client_over_a_holding_network(&self) -> (Arc<Client>, Arc<Holding>) {
        let way = Holding::new(self.storage.clone());
        (clients::start(self.options_over(self.metadata.handler(), way.clone())).await, way)
    }

    /// A mount that gets another session when the cluster has ended one. Its way to the metadata
    /// service can be cut.
    pub(crate) async fn mount(&self) -> (Arc<Succession>, Arc<Cuttable<MetaRequest, MetaResponse>>) {
        self.mount_let_in_by(Arc::default()).await
    }

    /// The same where another session is refused as long as that is set.
    pub(crate) async fn mount_let_in_by(
        &self,
        refused: Arc<AtomicBool>,
    ) -> (Arc<Succession>, Arc<Cuttable<MetaRequest, MetaResponse>>) {
        let way = Cuttable::new(self.metadata.handler());
        let (names, storage, map) = (way.clone(), self.slow_storage(), self.map.clone());
        let begin = move || -> Pin<Box<dyn Future<Output = Result<Arc<Client>>>>> {
            let session = SessionId::drawn(rt::random_u64());
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
        let mount = Succession::new(first, Box::new(begin));
        rt::spawn(mount.clone().run());
        (mount, way)
    }

    /// Ends the session of a mount, as an administrator does, and waits until it has another one.
    pub(crate) async fn replace_session(&self, mount: &Succession) {
        let before = mount.lineage();
        self.evict(mount);
        while mount.lineage().replacements == before.replacements {
            rt::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The metadata service ends without warning, its store loses the record of a mount's session,
    /// and another service starts.
    pub(crate) async fn restart_names_without(&self, mount: &Succession) {
        let (engine, session) = (self.metadata.engine(), mount.lineage().session);
        let pairs = engine.scan(&[], &[0xff; 16], usize::MAX).unwrap();
        let keys = pairs.into_iter().map(|(key, _)| key.to_vec());
        // Notes of what the session writes end so, too, and name a file besides.
        let is_record = |key: &Vec<u8>| key.len() < 16 && key.ends_with(&session.0.to_be_bytes());
        let records: Vec<_> = keys.filter(is_record).collect();
        assert_eq!(records.len(), 1, "the record of the session");
        let writes = records.into_iter().map(|key| (key, None)).collect();
        engine.apply(&[Batch { guards: vec![], writes }]).unwrap();
        self.restart_names().await;
    }

    /// Ends the session of a mount, as an administrator does.
    pub(crate) fn evict(&self, mount: &Succession) {
        self.metadata.service().evict_session(mount.lineage().session).unwrap();
    }

    /// What the cluster map says of all targets from now on.
    pub(crate) fn targets_are(&self, state: TargetState) {
        let mut map = self.map.write().unwrap();
        let mut changed = (**map).clone();
        changed.targets.iter_mut().for_each(|target| target.state = state);
        *map = Arc::new(changed);
    }

    /// A client that nobody knows and that hears of no recall yet.
    pub(crate) fn unregistered(&self) -> Arc<Client> {
        Client::new(self.options())
    }

    fn options(&self) -> ClientOptions {
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
