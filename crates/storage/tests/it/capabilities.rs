//! Access control: requests that arrive over a connection need capabilities.

use identity::{CAPABILITY_BYTES, CapabilityKeys, CapabilityRing, Grant, Rights};
use net::{Caller, Deadline, Handler, Proof, Transport};
use rt::IoBuf;
use rt::sim::{Machine, World};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use storage::StorageService;
use testkit::targets;
use types::{ChunkFileId, ChunkSlot, Errno, InodeId, Refusal, Result, SessionId, TargetId};
use wire::{Capability, DataPath as Way, StorageOp, StorageReply, StorageRequest};

const TARGET: TargetId = TargetId(1);
const INO: InodeId = InodeId(9);
const FILE: ChunkFileId = ChunkFileId(9);
const SESSION: SessionId = SessionId(7);
const HOLDER: u64 = 77;
const READ: StorageOp = StorageOp::Read { offset: 0, path: Way::Cached };
const WRITE: StorageOp = StorageOp::Write { offset: 0, path: Way::Cached, durable: false };

struct Cluster {
    service: StorageService,
    ring: Arc<CapabilityRing>,
    keys: CapabilityKeys,
}

fn caller(holder: u64) -> Caller {
    Caller {
        name: "client".into(),
        host: String::new(),
        proof: Proof::NotRequired,
        holder,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)).into(),
        transport: Transport::Tcp,
        client: 1,
        core: 0,
        cluster: String::new(),
    }
}

fn grant() -> Grant {
    let expires = rt::now().secs as u64 + 60;
    Grant {
        session: SESSION,
        inode: INO,
        rights: Rights::READ_WRITE,
        holder: HOLDER,
        epoch: 0,
        valid_s: 60,
        expires,
    }
}

impl Cluster {
    async fn start() -> Cluster {
        let place = targets::directory(Path::new(targets::SIMULATED_DIR), TARGET);
        let service = StorageService::new([targets::create(&place, TARGET, 0).await]);
        let (ring, keys) = (Arc::new(CapabilityRing::new(60)), CapabilityKeys::create().unwrap());
        ring.set_cluster_time(rt::now().secs, rt::monotonic_ns());
        ring.set(keys.clone());
        service.require_capabilities(ring.clone());
        Cluster { service, ring, keys }
    }

    fn sign(&self, grant: Grant) -> Option<Capability> {
        Some(Capability(*self.keys.sign(&grant).as_bytes()))
    }

    async fn ask(&self, op: StorageOp, capability: Option<Capability>) -> Result<StorageReply> {
        self.ask_as(HOLDER, SESSION, op, capability).await
    }

    async fn ask_as(
        &self,
        holder: u64,
        session: SessionId,
        op: StorageOp,
        capability: Option<Capability>,
    ) -> Result<StorageReply> {
        let request = StorageRequest { capability, ..StorageRequest::new(session, TARGET, FILE, op) };
        self.service.handle_from(&caller(holder), request, Some(IoBuf::from_slice(&[1; 4096]))).await
    }

    async fn refused(&self, op: StorageOp, capability: Option<Capability>) -> Errno {
        self.ask(op, capability).await.expect_err("it must be refused").errno
    }
}

fn with_cluster(test: impl AsyncFnOnce(Cluster) + 'static) {
    Machine::new(1).run(async move { test(Cluster::start().await).await }).unwrap();
}

#[test]
fn granted_operations_are_allowed() {
    with_cluster(async |cluster| {
        let both = cluster.sign(grant());
        for op in [READ, WRITE, StorageOp::Stat, StorageOp::Truncate { len: 1 }] {
            cluster.ask(op.clone(), both).await.unwrap();
            assert_eq!(cluster.refused(op, None).await, Errno::EACCES);
        }
        let read = cluster.sign(Grant { rights: Rights::READ, ..grant() });
        cluster.ask(READ, read).await.unwrap();
        for op in [WRITE, StorageOp::Truncate { len: 0 }, StorageOp::Delete] {
            assert_eq!(cluster.refused(op, read).await, Errno::EACCES);
        }
        // The capability covers the file's other chunk files, too.
        let name = INO.chunk_file(ChunkSlot(3));
        let request = StorageRequest {
            capability: both,
            ..StorageRequest::new(SESSION, TARGET, name, StorageOp::Stat)
        };
        cluster.service.handle_from(&caller(HOLDER), request, None).await.unwrap();
        // Only services copy files.
        let watch = StorageOp::TrackDirty { token: 1, round: 0 };
        assert_eq!(cluster.refused(watch, None).await, Errno::EACCES);
        // Requests that aren't about a file, requests of services, and callers in the same process
        // need none.
        cluster.ask(StorageOp::SyncTarget, None).await.unwrap();
        cluster.ask_as(0, SessionId(0), WRITE, None).await.unwrap();
        let request = StorageRequest::new(SESSION, TARGET, FILE, StorageOp::Stat);
        cluster.service.handle(request, None).await.unwrap();
    });
}

#[test]
fn a_capability_is_bound_to_its_session() {
    with_cluster(async |cluster| {
        let good = cluster.sign(grant());
        let stolen = cluster.ask_as(HOLDER + 1, SESSION, READ, good).await;
        assert_eq!(stolen.unwrap_err().errno, Errno::EACCES);
        let stolen = cluster.ask_as(HOLDER, SessionId(8), READ, good).await;
        assert_eq!(stolen.unwrap_err().errno, Errno::EACCES);
        let other_file = cluster.sign(Grant { inode: InodeId(10), ..grant() });
        assert_eq!(cluster.refused(READ, other_file).await, Errno::EACCES);
        cluster.ask(READ, good).await.unwrap();
    });
}

#[test]
fn a_changed_capability_is_refused() {
    with_cluster(async |cluster| {
        let good = cluster.sign(grant()).unwrap();
        // A capability that the core has verified and cached.
        cluster.ask(READ, Some(good)).await.unwrap();
        for at in (0..CAPABILITY_BYTES).filter(|at| !(4..8).contains(at)) {
            let mut altered = good;
            altered.0[at] ^= 1;
            assert_eq!(cluster.refused(READ, Some(altered)).await, Errno::EACCES, "byte {at}");
        }
        cluster.ask(READ, Some(good)).await.unwrap();
    });
}

#[test]
fn an_expired_capability_must_be_renewed() {
    with_cluster(async |cluster| {
        let ended = cluster.sign(Grant { expires: rt::now().secs as u64 - 1, ..grant() });
        assert_eq!(cluster.refused(READ, ended).await, Refusal::ExpiredCapability);
        // Signed by a cluster whose management was re-created, or by a forger.
        let foreign = Capability(*CapabilityKeys::create().unwrap().sign(&grant()).as_bytes());
        assert_eq!(cluster.refused(READ, Some(foreign)).await, Errno::EACCES, "its key has a known number");
        let mut keys = cluster.keys.clone();
        keys.stage().unwrap();
        keys.promote();
        let early = Capability(*keys.sign(&grant()).as_bytes());
        assert_eq!(cluster.refused(READ, Some(early)).await, Refusal::ExpiredCapability);
    });
}

/// A capability expires by the cluster's time, whatever the machine's wall clock says.
#[test]
fn a_clock_that_is_set_ends_no_capability() {
    const QUARTER_NS: i64 = 15 * 60 * 1_000_000_000;
    let mut world = World::new(1);
    let host = world.add_host("storage");
    let start = async {
        let cluster = Cluster::start().await;
        let good = cluster.sign(grant());
        cluster.ask(WRITE, good).await.unwrap();
        (cluster, good)
    };
    let (cluster, good) = world.run(host, start).unwrap();
    let cluster = Rc::new(cluster);
    for ahead_ns in [QUARTER_NS, -QUARTER_NS] {
        world.set_clock(host, ahead_ns, 0);
        let cluster = cluster.clone();
        world.run(host, async move { cluster.ask(READ, good).await.unwrap() }).unwrap();
    }
}

/// The client's application got an error, and has continued.
#[test]
fn a_request_after_its_deadline_is_not_begun() {
    with_cluster(async |cluster| {
        let write = async |deadline| {
            let capability = cluster.sign(grant());
            let request = StorageRequest { capability, ..StorageRequest::new(SESSION, TARGET, FILE, WRITE) };
            let data = Some(IoBuf::from_slice(&[1; 4096]));
            cluster.service.handle_with_deadline(&caller(HOLDER), deadline, request, data).await
        };
        let now_ns = rt::monotonic_ns();
        let late = write(Deadline::after(now_ns - 2_000_000, 1)).await;
        assert_eq!(late.unwrap_err().errno, Errno::ETIMEDOUT);
        let stat = async || cluster.ask(StorageOp::Stat, cluster.sign(grant())).await.unwrap();
        assert!(matches!(stat().await, StorageReply::Stat { len: 0, .. }));
        write(Deadline::after(now_ns, 60_000)).await.unwrap();
        assert!(matches!(stat().await, StorageReply::Stat { len: 4096, .. }));
        write(Deadline::after(now_ns, 0)).await.unwrap();
    });
}

#[test]
fn a_request_waits_for_a_key_that_is_on_its_way() {
    with_cluster(async |cluster| {
        let mut keys = cluster.keys.clone();
        keys.stage().unwrap();
        keys.promote();
        let early = Capability(*keys.sign(&grant()).as_bytes());
        let ring = cluster.ring.clone();
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(200)).await;
            ring.set(keys);
        });
        cluster.ask(READ, Some(early)).await.unwrap();
        cluster.ask(READ, cluster.sign(grant())).await.unwrap();
    });
}
