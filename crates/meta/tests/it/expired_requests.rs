//! Requests that failed for their applications before the service could execute them.

use crate::support;
use crate::support::errno;
use crate::support::world::{
    ROOT, SECOND, Started, World, acknowledge, chmod, getattr, lookup, open_with_lease, recalls, simulated,
};
use net::{Caller, Deadline, Handler, Proof, Transport};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use types::{Credentials, Errno, InodeId, Result, SessionId};
use wire::{LeaseMode, MetaOp, MetaReply, MetaRequest, MetaResponse};

/// How long the client waits for an answer.
const WAIT_MS: u32 = 3_000;

fn caller() -> Caller {
    Caller {
        name: "client".into(),
        host: String::new(),
        proof: Proof::NotRequired,
        holder: 2,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)).into(),
        transport: Transport::Tcp,
        client: 2,
        core: 0,
        cluster: String::new(),
    }
}

/// A change by session 2, which waits [`WAIT_MS`] for the answer.
fn ask(world: &World, sequence: u64, op: MetaOp) -> Started<Result<MetaResponse>> {
    let (meta, deadline) = (world.meta.clone(), Deadline::after(rt::monotonic_ns(), WAIT_MS));
    let credentials = Credentials { uid: 0, gid: 0, pid: 1 };
    let request = MetaRequest {
        session: SessionId(2),
        slot_sequence: support::numbered(sequence),
        credentials,
        privileged: false,
        op,
    };
    Started::new(async move { meta.handle_with_deadline(&caller(), deadline, request, None).await })
}

/// A file that session 1 writes, and another session registered as one of another process.
async fn written(world: &World) -> (support::Client, InodeId) {
    let one = world.client(1).await;
    ask(
        world,
        0,
        MetaOp::Register {
            in_use: Vec::new(),
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        },
    )
    .wait()
    .await
    .unwrap();
    let ino = one.create(ROOT, "a").await.unwrap().ino;
    assert_eq!(one.grants(open_with_lease(ino, LeaseMode::Write)).await, [(ino, LeaseMode::Write)]);
    (one, ino)
}

async fn mode(client: &support::Client, ino: InodeId) -> u32 {
    match client.call(getattr(ino)).await.unwrap() {
        MetaReply::Attr(attr) => attr.mode & 0o777,
        other => panic!("{other:?}"),
    }
}

/// It waits for a lease that is given up when the client doesn't wait for the change any more.
#[test]
fn an_expired_change_is_not_executed() {
    simulated(|world| async move {
        let (one, ino) = written(&world).await;
        let before = mode(&one, ino).await;
        assert_ne!(before, 0o600);
        let late = ask(&world, 1, chmod(ino));
        let recall = recalls(&one, 0).await[0];
        // The session reports that it works on the recall, as one does whose targets don't answer.
        for _ in 0..5 {
            rt::sleep(SECOND).await;
            one.call(MetaOp::RecallsInProgress { seen: recall.number }).await.unwrap();
        }
        assert!(!late.is_done());
        acknowledge(&one, &recall, true).await;
        assert_eq!(late.wait().await.unwrap_err().errno, Errno::ETIMEDOUT);
        assert_eq!(mode(&one, ino).await, before);
    });
}

#[test]
fn a_change_within_its_time_out_is_executed() {
    simulated(|world| async move {
        let (one, ino) = written(&world).await;
        let change = ask(&world, 1, chmod(ino));
        let recall = recalls(&one, 0).await[0];
        rt::sleep(Duration::from_millis(u64::from(WAIT_MS) - 500)).await;
        assert!(!change.is_done());
        acknowledge(&one, &recall, true).await;
        change.wait().await.unwrap();
        assert_eq!(mode(&one, ino).await, 0o600);
        assert_eq!(errno(one.call(lookup("b")).await), Errno::ENOENT);
    });
}
