//! Tests with management in the same process.

use super::*;
use crate::{NoListener, groups_of_one_process};
use chunkstore::{Identity, Options};
use kv::{Durability, Memory, Writer};
use mgmt::{FIRST_NODE, FirstNode, Management, MembershipAuthority, Superblock};
use net::Channel;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use tempfile::TempDir;
use wire::mgmt::{Join, NewToken};

const ADDRESS: &str = "127.0.0.1:7000";
const VERSION: &str = "1.0.0";

/// Admits every node.
struct AdmitAll;

impl MembershipAuthority for AdmitAll {
    fn check(&self, _join: &Join, _now_s: i64) -> Result<()> {
        Ok(())
    }

    fn admit(&self, _join: &Join, _node: NodeId, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }

    fn token(&self, _wanted: &NewToken, _now_s: i64) -> Result<String> {
        Ok(String::new())
    }

    fn capability_keys(&self, _now_s: i64) -> Result<String> {
        Ok(format!("format = 1\nsigning = 1\n[[key]]\nid = 1\nsecret = \"{}\"\n", "07".repeat(32)))
    }
}

/// Records what the node wants from its machine.
#[derive(Default)]
struct RecordingMachine {
    forgotten: Mutex<Vec<PathBuf>>,
    stopped: Mutex<Option<Error>>,
}

impl Machine for RecordingMachine {
    fn target_space<'a>(&'a self, _store: &'a Store) -> LocalFuture<'a, Option<TargetSpace>> {
        Box::pin(async { None })
    }

    fn has_foreign_addresses(&self) -> bool {
        false
    }

    fn forget_targets(&self, directories: &[PathBuf]) {
        self.forgotten.lock().unwrap().extend_from_slice(directories);
    }

    fn stop(&self, error: Error) {
        *self.stopped.lock().unwrap() = Some(error);
    }
}

/// Management, and a node as if in another process, which doesn't follow the map.
struct Cluster {
    _dir: TempDir,
    management: Arc<Management>,
    node: Arc<Membership>,
    machine: Arc<RecordingMachine>,
    handle: MapHandle,
}

async fn cluster() -> Result<Cluster> {
    let dir = TempDir::new().unwrap();
    let superblock = Superblock::random("test");
    let (roles, addresses) = (vec![Role::Mgmt, Role::Meta], vec![ADDRESS.to_string()]);
    let first = FirstNode {
        name: "m".into(),
        addresses: addresses.clone(),
        roles: roles.clone(),
        version: VERSION.into(),
        rack: None,
    };
    let writer = Arc::new(Writer::new(Arc::new(Memory::new()), Durability::Process));
    let management = Management::open_cluster(writer, &superblock, &first, dir.path()).await?;
    management.set_authority(Arc::new(AdmitAll));
    let management = Arc::new(management);
    let options = MembershipOptions {
        cluster: superblock.uuid,
        node: FIRST_NODE,
        addresses,
        roles,
        version: VERSION.into(),
    };
    let (handle, machine): (MapHandle, _) = (MapHandle::default(), Arc::new(RecordingMachine::default()));
    let node = Membership::new(
        options,
        Channel::in_process(management.clone()),
        (handle.clone(), Arc::new(NoListener)),
        Arc::new(CapabilityRing::new(60)),
        machine.clone(),
    );
    Ok(Cluster { _dir: dir, management, node: Arc::new(node), machine, handle })
}

impl Cluster {
    /// Changes the map; the node gets it with its next heartbeat.
    async fn rename(&self, name: &str) {
        let rename = MgmtRequest::RenameNode { node: FIRST_NODE, name: name.into() };
        self.node.management.call(rename, None).await.unwrap();
        assert!(self.node.map.epoch() < self.management.current().epoch);
    }
}

/// Creates and opens target 3 of the node.
async fn open_target(node: &Membership, dir: &TempDir) -> Arc<Store> {
    let identity = Identity { cluster: node.options.cluster.clone(), target: TargetId(3) };
    Store::format(dir.path(), &identity).await.unwrap();
    Store::open(dir.path(), &identity, Options::default()).await.unwrap().0
}

#[test]
fn the_map_of_a_heartbeat_is_installed_when_it_returns() {
    let run = async {
        let cluster = cluster().await.unwrap();
        cluster.node.register().await.unwrap();
        assert_eq!(cluster.node.map.epoch(), cluster.management.current().epoch);
        cluster.rename("other").await;
        cluster.node.heartbeat().await.unwrap();
        assert_eq!(cluster.node.map.epoch(), cluster.management.current().epoch);
        // An older map that arrives late changes nothing.
        cluster.node.map.install(Arc::new(ClusterMap::default()));
        assert_eq!(cluster.handle.load().nodes[0].name, "other");
    };
    rt::block_on(run).unwrap();
}

/// Management, and what a node reported when it registered.
struct RecordingManagement {
    management: Arc<Management>,
    lease: Arc<ServingLease>,
    /// For each registration: whether it was by the same process again, and whether its lease was
    /// valid at that moment.
    registrations: Mutex<Vec<(bool, bool)>>,
}

impl net::Handler<MgmtRequest, MgmtReply> for RecordingManagement {
    fn handle(&self, request: MgmtRequest, _: Option<rt::IoBuf>) -> net::LocalFuture<'_, Result<MgmtReply>> {
        Box::pin(async move {
            let request = match request {
                MgmtRequest::Register(register) => {
                    self.registrations
                        .lock()
                        .unwrap()
                        .push((register.again, self.lease.is_valid(rt::monotonic_ns())));
                    // Management doesn't know these targets.
                    MgmtRequest::Register(Register { targets: vec![], ..register })
                }
                other => other,
            };
            self.management.handle(request, None).await
        })
    }
}

#[test]
fn a_process_with_unreconciled_replicas_registers_as_a_new_one() {
    let run = async {
        let cluster = cluster().await.unwrap();
        let lease = cluster.node.lease.clone();
        let registry = Arc::new(RecordingManagement {
            management: cluster.management.clone(),
            lease: lease.clone(),
            registrations: Mutex::default(),
        });
        let node = Membership {
            management: Channel::in_process(registry.clone()),
            ..Arc::into_inner(cluster.node).unwrap()
        };
        let register = async || {
            node.register().await.unwrap();
            assert!(lease.is_valid(rt::monotonic_ns()));
            registry.registrations.lock().unwrap().pop()
        };
        assert_eq!(register().await, Some((false, false)));
        assert_eq!(register().await, Some((true, true)));
        let dir = TempDir::new().unwrap();
        let store = open_target(&node, &dir).await;
        let single = types::Group::single(types::GroupId(7), types::PoolId(1), TargetId(3));
        let mut map = ClusterMap::clone(&node.map.current());
        // Newer than any map of management.
        map.epoch.0 += 100;
        map.groups = vec![types::Group { scheme: types::Scheme::Mirror(2), ..single }];
        node.map.install(Arc::new(map));
        node.service.serve_groups(groups_of_one_process(
            cluster.handle.clone(),
            [].into_iter(),
            &Channel::in_process(node.service.clone()),
            Channel::in_process(cluster.management.clone()),
        ));
        node.service.add(store).unwrap();
        // The target's replicas of the group haven't been opened yet.
        assert_eq!(register().await, Some((false, false)));
        node.service.open_groups(TargetId(3)).await.unwrap();
        assert_eq!(register().await, Some((true, true)));
    };
    rt::block_on(run).unwrap();
}

#[test]
fn a_node_uses_the_time_of_the_cluster() {
    let run = async {
        let cluster = cluster().await.unwrap();
        let ring = &cluster.node.ring;
        let off_s = || ring.cluster_time_s(rt::monotonic_ns()).abs_diff(rt::now().secs as u64);
        ring.set_cluster_time(0, rt::monotonic_ns());
        cluster.node.register().await.unwrap();
        assert!(off_s() < 60, "{} s off after it has registered", off_s());
        ring.set_cluster_time(0, rt::monotonic_ns());
        cluster.node.heartbeat().await.unwrap();
        assert!(off_s() < 60, "{} s off after a heartbeat", off_s());
    };
    rt::block_on(run).unwrap();
}

#[test]
fn a_removed_target_is_forgotten_and_one_that_a_restored_map_lacks_stays() {
    const LATER: u64 = 1 << 31;
    let run = async {
        let (cluster, dir) = (cluster().await.unwrap(), TempDir::new().unwrap());
        let node = &cluster.node;
        node.service.add(open_target(node, &dir).await).unwrap();
        // The former map had the target, and the current one hasn't.
        let miss = |before: u64, now: u64| {
            let map = ClusterMap { epoch: Epoch(now), ..ClusterMap::default() };
            node.map.install(Arc::new(map));
            assert_eq!(node.map.epoch(), Epoch(now));
            node.forget_removed_targets((Epoch(before), BTreeSet::from([TargetId(3)])));
            cluster.machine.forgotten.lock().unwrap().clone()
        };
        assert!(miss(7, LATER).is_empty(), "its data may be wanted");
        assert_eq!(miss(LATER, LATER + 1), [dir.path()]);
    };
    rt::block_on(run).unwrap();
}

/// Whether the node's lease was valid when its map changed.
struct LeaseAtChange(Arc<Membership>, OnceLock<bool>);

impl Wake for LeaseAtChange {
    fn wake(self: Arc<Self>) {
        let _ = self.1.set(self.0.lease.is_valid(rt::monotonic_ns()));
    }
}

#[test]
fn a_lease_counts_after_the_map_that_came_with_it() {
    let cluster = rt::block_on(async {
        let cluster = cluster().await.unwrap();
        cluster.node.register().await.unwrap();
        cluster.rename("other").await;
        cluster
    });
    let cluster = cluster.unwrap();
    cluster.node.lease.end();
    let at_change = Arc::new(LeaseAtChange(cluster.node.clone(), OnceLock::new()));
    let waker = Waker::from(at_change.clone());
    let mut change = pin!(cluster.handle.changed_since(cluster.handle.epoch()));
    assert!(change.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let node = cluster.node.clone();
    rt::block_on(async move { node.heartbeat().await }).unwrap().unwrap();
    assert_eq!(at_change.1.get(), Some(&false), "the lease holds, and the map of before is in force");
    assert!(cluster.node.lease.is_valid(rt::monotonic_ns()));
    assert_eq!(cluster.node.map.epoch(), cluster.management.current().epoch);
}

#[test]
fn a_process_that_was_replaced_loses_its_lease_and_ends() {
    let run = async {
        let cluster = cluster().await.unwrap();
        let node = &cluster.node;
        node.register().await.unwrap();
        assert!(node.lease.is_valid(rt::monotonic_ns()));
        let replacing = Membership::new(
            node.options.clone(),
            node.management.clone(),
            (MapHandle::default(), Arc::new(NoListener)),
            Arc::new(CapabilityRing::new(60)),
            cluster.machine.clone(),
        );
        replacing.register().await.unwrap();
        node.clone().send_heartbeats().await;
        assert!(!node.lease.is_valid(rt::monotonic_ns()));
        let stopped = cluster.machine.stopped.lock().unwrap().clone();
        assert_eq!(stopped.map(|error| error.errno), Some(Errno::ESTALE));
    };
    rt::block_on(run).unwrap();
}
