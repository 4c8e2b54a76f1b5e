//! A cluster on a simulated machine, with taps between its client and the services.

use super::tap::Tap;
use chunkstore::Store;
use client::{CachedAttr, Client, ClientOptions, Handle, ReadOptions, WriteOptions};
use meta::LocalMount;
use net::{Channel, Handler, LocalFuture};
use rt::IoBuf;
use rt::sim::Machine;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use testkit::application::run_lengths;
use testkit::channel::{Latency, MetaHandler, StorageHandler, to_storage};
use testkit::clients;
use testkit::cluster::{self, ClusterBuilder, set_pattern};
use testkit::map::{self, MapBuilder};
use types::{Attr, Credentials, InodeId, MapHandle, Result, SessionId, SetAttr, TargetId};
use wire::mgmt::ReconcileFiles;
use wire::{MetaOp, MetaReply, MetaRequest, MetaResponse, SlotSequence, StorageReply, StorageRequest};

/// Targets of the cluster; every file is striped over all of them.
pub(crate) const TARGETS: u32 = 4;
/// Chunk size, in bytes.
pub(crate) const CHUNK: usize = 64 * 1024;
const PATTERN: &[u8] = br#"{"chunk_size":65536}"#;
/// The client's first session.
const SESSION: SessionId = SessionId(1);
/// A slot that no other change uses.
const LATE: SlotSequence = SlotSequence { slot: 60_000, sequence: 1 };

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) client: Arc<Client>,
    /// The client's requests to storage.
    pub(crate) storage: Arc<Tap<StorageRequest, StorageReply>>,
    /// The client's requests to the metadata service.
    pub(crate) meta: Arc<Tap<MetaRequest, MetaResponse>>,
    services: cluster::Cluster,
}

/// The client, as the migrator sees it.
struct Here(Weak<Client>);

impl LocalMount for Here {
    fn while_suspended<'a>(&'a self, ino: InodeId, work: LocalFuture<'a, ()>) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move { self.0.upgrade().unwrap().with_exclusive(ino, work).await })
    }
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Cluster) -> F + 'static) {
    with_cluster_of_seed(1, test);
}

/// Like [`with_cluster`], with another order of events.
pub(crate) fn with_cluster_of_seed<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Cluster) -> F + 'static,
) {
    let run = async move {
        let cluster = Cluster::of(builder().create().await, SESSION).await;
        set_pattern(&cluster.client, PATTERN).await;
        test(cluster).await;
    };
    Machine::new(seed).run(run).unwrap();
}

impl Cluster {
    async fn of(site: cluster::StorageCluster, session: SessionId) -> Cluster {
        let services = site.serve().await;
        let meta = services.metadata.service();
        for store in &services.stores {
            meta.reconcile_target(store.target(), &ReconcileFiles::of(store.take_changing_at_crash()))
                .await
                .unwrap();
            store.mark_reconciled();
        }
        let (storage, names) = (Tap::new(services.storage.clone()), Tap::new(meta));
        let client = client_over(&services.map, session, names.clone(), storage.clone());
        Cluster { client, storage, meta: names, services }
    }

    /// Shuts everything down cleanly and starts it again.
    pub(crate) async fn restart(self) -> Cluster {
        let metadata = &self.services.metadata;
        self.client.shutdown().await.unwrap();
        metadata.service().stop();
        for store in &self.services.stores {
            store.close().await.unwrap();
        }
        metadata.writer().sync().await.unwrap();
        Cluster::of(builder().with_engine(metadata.engine().clone()).open().await, SessionId(2)).await
    }

    /// Starts the migrator, which drains targets and also migrates files in use by the client.
    pub(crate) fn start_moving(&self) {
        let meta = self.services.metadata.service();
        meta.set_local_mount(Arc::new(Here(Arc::downgrade(&self.client))));
        rt::spawn(meta.background());
    }

    /// Drains a target; returns true if it is empty in time.
    pub(crate) async fn empty(&self, target: TargetId) -> bool {
        map::update(&self.services.map, |map| {
            map.targets.iter_mut().for_each(|t| t.drain = t.id == target);
        });
        self.services.wait_until_empty(target).await
    }

    /// Number of chunk files on a target.
    pub(crate) async fn chunk_files(&self, target: TargetId) -> usize {
        self.services.chunk_files(target).await.len()
    }

    /// Path of a file's chunk file on a target.
    pub(crate) fn chunk_file(&self, target: TargetId, ino: InodeId) -> PathBuf {
        Store::chunk_file_path(self.services.store(target).dir(), ino.first_chunk_file())
    }

    /// Damage counted on all targets.
    pub(crate) fn damage_counted(&self) -> u64 {
        self.services.stores.iter().map(|store| store.statistics().corrupt_ranges.get()).sum()
    }

    /// Number of chunk files of a target in which requests have found missing data.
    pub(crate) fn missing_data(&self, target: TargetId) -> u64 {
        self.services.store(target).incomplete_count()
    }

    /// Another client, which has only the state of the services.
    pub(crate) fn other_client(&self) -> Arc<Client> {
        let meta = self.services.metadata.service();
        client_over(&self.services.map, SessionId(99), meta, self.storage.clone())
    }

    /// Delivers a request that the client has abandoned.
    pub(crate) async fn deliver_late(&self, op: MetaOp) {
        let (session, credentials) = (SESSION, Credentials::default());
        let request = MetaRequest { session, slot_sequence: Some(LATE), credentials, privileged: false, op };
        self.services.metadata.service().handle(request, None).await.unwrap();
    }

    /// The attributes that the service has on record for the client's session.
    pub(crate) async fn recorded_attr(&self, ino: InodeId) -> Attr {
        let (session, credentials) = (SESSION, Credentials::default());
        let op = MetaOp::Getattr { ino };
        let request = MetaRequest { session, slot_sequence: None, credentials, privileged: false, op };
        match self.services.metadata.service().handle(request, None).await.unwrap().reply {
            MetaReply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn create(&self, name: &str) -> (InodeId, Arc<Handle>) {
        let root = Credentials::default();
        let made = self.client.create(root, InodeId::ROOT, name.as_bytes(), 0o100_644, 0, 0).await;
        let (attr, handle) = made.unwrap();
        (attr.ino, handle)
    }

    pub(crate) async fn open(&self, ino: InodeId) -> Arc<Handle> {
        self.client.open(Credentials::default(), ino, 0).await.unwrap()
    }

    /// Writes `len` times the same byte.
    pub(crate) async fn fill(
        &self,
        file: &Arc<Handle>,
        offset: usize,
        len: usize,
        byte: u8,
    ) -> Result<usize> {
        let data = IoBuf::from_slice(&vec![byte; len]);
        self.client.write(file, offset as u64, data, WriteOptions::default()).await
    }

    /// Appends `len` times the same byte.
    pub(crate) async fn append(&self, file: &Arc<Handle>, len: usize, byte: u8) -> Result<usize> {
        let how = WriteOptions { append: true, ..WriteOptions::default() };
        self.client.write(file, 0, IoBuf::from_slice(&vec![byte; len]).slice(0..len), how).await
    }

    pub(crate) async fn set_size(&self, ino: InodeId, size: usize) -> Result<CachedAttr> {
        let root = Credentials::default();
        self.client.setattr(root, ino, SetAttr::default(), Some(size as u64)).await
    }

    /// Returns the content of a file as runs of equal bytes: `(byte, how many)`.
    pub(crate) async fn runs(&self, file: &Arc<Handle>) -> Vec<(u8, usize)> {
        let size = self.client.getattr(file.ino()).await.unwrap().size as usize;
        let buf = IoBuf::alloc(size);
        assert_eq!(self.client.read(file, 0, buf.clone(), ReadOptions::default()).await.unwrap(), size);
        run_lengths(buf.as_slice())
    }
}

fn builder() -> ClusterBuilder {
    let map = MapBuilder::new(TARGETS).single_groups().build();
    ClusterBuilder::new(map).latency(Latency::Zero).without_background()
}

/// A client that believes it is the only one.
fn client_over(
    map: &MapHandle,
    session: SessionId,
    meta: MetaHandler,
    storage: StorageHandler,
) -> Arc<Client> {
    let (meta, storage) = (Channel::in_process(meta), to_storage(targets(), &storage));
    Client::new(ClientOptions { only_session: true, ..clients::options(session, map, meta, storage) })
}

pub(crate) fn targets() -> impl Iterator<Item = TargetId> {
    (1..=TARGETS).map(TargetId)
}
