//! Capabilities of sessions for storage services, and who may act for a session.

use crate::support::world::{ROOT, World, getattr, simulated};
use crate::support::{Client, create, errno};
use bytes::Bytes;
use identity::{CapabilityKeys, CapabilityRing, CoreCapabilityCache, Grant, Rights};
use net::{Caller, Handler, Proof, Transport};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use types::{Credentials, Errno, InodeId, Result, SessionId};
use wire::{HeldLock, LeaseMode, LockFamily, LockKind, LockOwner, LockRange, ReportedSize};
use wire::{MetaOp, MetaReply, MetaRequest, MetaResponse, PendingFile};

const VALID_S: u16 = 60;
/// How far the cluster's time is ahead of this machine's clock, which no capability's expiry may
/// depend on.
const AHEAD_S: i64 = 900;

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

async fn ask(world: &World, session: u64, holder: u64, op: MetaOp) -> Result<MetaResponse> {
    let credentials = Credentials { uid: 0, gid: 0, pid: 1 };
    let request =
        MetaRequest { session: SessionId(session), slot_sequence: None, credentials, privileged: false, op };
    world.meta.handle_from(&caller(holder), request, None).await
}

fn register() -> MetaOp {
    MetaOp::Register {
        in_use: vec![],
        pending_creates: vec![],
        pending_changes: vec![],
        reporting_process: 0,
    }
}

struct Verifier(Arc<CapabilityRing>, CoreCapabilityCache);

impl Verifier {
    fn of(world: &World) -> Verifier {
        let ring = Arc::new(CapabilityRing::new(VALID_S));
        ring.set_cluster_time(rt::now().secs + AHEAD_S, rt::monotonic_ns());
        ring.set(CapabilityKeys::create().unwrap());
        world.meta.sign_with(ring.clone());
        Verifier(ring, CoreCapabilityCache::default())
    }

    fn now_s(&self) -> u64 {
        self.0.cluster_time_s(rt::monotonic_ns())
    }

    fn granted(&mut self, response: &MetaResponse) -> Option<Grant> {
        let capability = identity::Capability::from_bytes(&response.capability?.0).unwrap();
        let now_s = self.now_s();
        Some(self.0.verify(&mut self.1, &capability, now_s).unwrap())
    }
}

#[test]
fn a_session_with_access_to_a_file_gets_a_capability() {
    simulated(|world| async move {
        let mut verifier = Verifier::of(&world);
        ask(&world, 1, 5, register()).await.unwrap();
        let made = ask(&world, 1, 5, create(ROOT, "a")).await.unwrap();
        let MetaReply::Created { attr, .. } = made.reply else { panic!("{made:?}") };
        let ino = attr.ino;
        let expires = verifier.now_s() + u64::from(VALID_S);
        let grant = |rights| {
            let (session, valid_s) = (SessionId(1), VALID_S);
            Some(Grant { session, inode: ino, rights, holder: 5, epoch: 0, valid_s, expires })
        };
        assert_eq!(verifier.granted(&made), grant(Rights::READ_WRITE));
        let reserved =
            ask(&world, 1, 5, MetaOp::PreallocateInodes { dir: ROOT, count: 1, prefix: Bytes::new() })
                .await
                .unwrap();
        let MetaReply::Preallocated { first, .. } = reserved.reply else { panic!("{reserved:?}") };
        let (name, content) = (Bytes::from_static(b"promised"), Bytes::new());
        let file = PendingFile {
            ino: first,
            parent: ROOT,
            name,
            mode: 0o644,
            umask: 0,
            created: types::Timestamp::default(),
            content,
            begins_write: false,
            written: None,
            set: types::SetAttr::default(),
        };
        let delivered = ask(&world, 1, 5, MetaOp::CommitCreate { file: Box::new(file) }).await.unwrap();
        assert_eq!(verifier.granted(&delivered).unwrap().inode, first);
        let open = |wish| MetaOp::Open { ino, requested_lease: wish };
        ask(&world, 2, 6, register()).await.unwrap();
        let read = ask(&world, 2, 6, open(Some(LeaseMode::Read))).await.unwrap();
        let theirs = Some(Grant { session: SessionId(2), holder: 6, ..grant(Rights::READ).unwrap() });
        assert_eq!(verifier.granted(&read), theirs);
        let look = ask(&world, 2, 6, getattr(ino)).await.unwrap();
        assert_eq!(look.capability, None, "a look lets nobody at chunks");
        let local = Client::new(&world.meta, 9).respond(0, open(None)).await.unwrap();
        assert_eq!(local.capability, None, "in one process nobody asks for it");
    });
}

#[test]
fn a_writer_renews_its_write_capability() {
    simulated(|world| async move {
        let mut verifier = Verifier::of(&world);
        ask(&world, 1, 5, register()).await.unwrap();
        let made = ask(&world, 1, 5, create(ROOT, "a")).await.unwrap();
        let MetaReply::Created { attr, .. } = made.reply else { panic!("{made:?}") };
        let mut rights = async |session, wish| {
            let open =
                ask(&world, session, 5, MetaOp::Open { ino: attr.ino, requested_lease: wish }).await.unwrap();
            verifier.granted(&open).unwrap().rights
        };
        ask(&world, 2, 5, register()).await.unwrap();
        assert_eq!(rights(2, None).await, Rights::READ);
        assert_eq!(rights(2, Some(LeaseMode::Write)).await, Rights::READ_WRITE);
        assert_eq!(rights(2, None).await, Rights::READ_WRITE, "it holds the lease");
    });
}

#[test]
fn requests_for_the_session_of_another_client_are_refused() {
    simulated(|world| async move {
        ask(&world, 1, 5, register()).await.unwrap();
        ask(&world, 1, 5, getattr(ROOT)).await.unwrap();
        for op in [getattr(ROOT), register(), MetaOp::EndSession, MetaOp::NextRecalls { after: 0 }] {
            assert_eq!(errno(ask(&world, 1, 6, op).await), Errno::EACCES);
        }
        ask(&world, 1, 5, getattr(InodeId::ROOT)).await.unwrap();
        ask(&world, 1, 5, register()).await.unwrap();
    });
}

#[test]
fn registrations_for_the_session_of_another_client_are_refused() {
    simulated(|world| async move {
        ask(&world, 1, 5, register()).await.unwrap();
        let made = ask(&world, 1, 5, create(ROOT, "a")).await.unwrap();
        let MetaReply::Created { attr, .. } = made.reply else { panic!("{made:?}") };
        let (ino, family, owner) = (attr.ino, LockFamily::Posix, LockOwner(1));
        let range = LockRange { start: 0, last: u64::MAX };
        let lock = HeldLock { ino, family, owner, pid: 4, kind: LockKind::Exclusive, range };
        for op in [
            register(),
            MetaOp::ReclaimLocks { locks: vec![lock] },
            MetaOp::ReclaimOpens { inodes: vec![ino] },
            MetaOp::ReclaimSizes { sizes: vec![ReportedSize { ino, size: 1 }] },
        ] {
            ask(&world, 1, 5, op.clone()).await.unwrap();
            assert_eq!(ask(&world, 1, 6, op.clone()).await.unwrap_err().errno, Errno::EACCES, "{op:?}");
        }
    });
}
