//! A cluster on a simulated machine whose files have two replicas.

use super::group::{Groups, copy, eject};
use chunkstore::Store;
use client::Client;
use client::ClientOptions;
use meta::MetaService;
use net::Channel;
use rt::sim::Machine;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use testkit::channel::{Latency, StorageHandler};
use testkit::clients;
use testkit::cluster::{self, ClusterBuilder, set_pattern};
use testkit::map::{self, MapBuilder};
use types::{ChunkFileId, ClusterMap, GroupId, MapHandle, TargetId};

pub(crate) use testkit::application::{Application, RDONLY, RDWR, ROOT, run_lengths};

pub(crate) const TARGETS: u32 = 3;
/// Chunk size, in bytes.
pub(crate) const CHUNK: usize = 64 * 1024;
/// Each pair of targets has a group: 11 consists of 1 and 2, 12 of 2 and 3, 13 of 3 and 1.
pub(crate) const GROUPS: [u32; 3] = [11, 12, 13];
const PATTERN: &[u8] = br#"{"chunk_size":65536,"inline_limit":0,"scheme":"mirror:2"}"#;

pub(crate) struct Cluster {
    services: cluster::Cluster,
    pub(crate) map: MapHandle,
    pub(crate) groups: Arc<Groups>,
}

/// Runs a test on a new machine with a new cluster.
pub(crate) fn with_cluster<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Cluster>) -> F + 'static) {
    let run = async move { test(Rc::new(Cluster::start().await)).await };
    Machine::new(1).run(run).unwrap();
}

impl Cluster {
    async fn start() -> Cluster {
        let copies = GROUPS.iter().flat_map(|&group| pair(group).map(|target| copy(target, GroupId(group))));
        let site =
            ClusterBuilder::new(cluster_map()).extra_stores(copies).latency(Latency::Zero).create().await;
        let (map, groups) = (site.map.clone(), Groups::new(site.storage.clone(), site.map.clone()));
        let services = site.serve_with_storage(groups.clone()).await;
        let cluster = Cluster { services, map, groups };
        let first = cluster.client().await;
        set_pattern(&first, PATTERN).await;
        first.shutdown().await.unwrap();
        cluster
    }

    /// The current metadata service.
    pub(crate) fn meta(&self) -> Arc<MetaService> {
        self.services.metadata.service()
    }

    /// Kills the metadata service, and starts another.
    pub(crate) async fn restart_names(&self) {
        self.services.metadata.restart().await;
    }

    /// A client that gets maps as the members do.
    pub(crate) async fn client(&self) -> Arc<Client> {
        self.client_by(self.map.clone()).await
    }

    /// A client with its own map.
    pub(crate) async fn client_by(&self, map: MapHandle) -> Arc<Client> {
        let groups: StorageHandler = self.groups.clone();
        let names = Channel::in_process(self.services.metadata.handler());
        let options = self.services.options(names, &groups);
        clients::start(ClientOptions { map, ..options }).await
    }

    /// A copy of the current map that doesn't change.
    pub(crate) fn map_of_now(&self) -> MapHandle {
        map::fork(&self.map)
    }

    /// Ejects a target from its groups; all members know it.
    pub(crate) fn take_out(&self, target: u32) {
        for group in GROUPS.into_iter().filter(|&group| pair(group).contains(&TargetId(target))) {
            eject(&self.map, GroupId(group), TargetId(target));
        }
    }

    pub(crate) fn change(&self, edit: impl FnOnce(&mut ClusterMap)) {
        map::update(&self.map, edit);
    }

    /// Chunk files of a target's replica of a group.
    pub(crate) async fn chunk_files(&self, target: u32, group: u32) -> Vec<ChunkFileId> {
        self.store(copy(TargetId(target), GroupId(group))).list().await.unwrap()
    }

    /// The store of this target.
    pub(crate) fn store(&self, target: TargetId) -> &Arc<Store> {
        self.services.store(target)
    }
}

/// Calls `what` after a delay.
pub(crate) fn later(ms: u64, what: impl FnOnce() + 'static) {
    rt::spawn(async move {
        rt::sleep(Duration::from_millis(ms)).await;
        what();
    });
}

/// The targets of a group.
pub(crate) fn pair(group: u32) -> [TargetId; 2] {
    let first = group - 10;
    [TargetId(first), TargetId(first % TARGETS + 1)]
}

fn cluster_map() -> ClusterMap {
    let map = MapBuilder::new(TARGETS).single_groups();
    GROUPS.iter().fold(map, |map, &id| map.mirror(GroupId(id), &pair(id))).build()
}
