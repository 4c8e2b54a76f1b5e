//! Sessions of other processes, and a service that was started again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::world::{Call, ROOT, SECOND, getattr, simulated};
use support::{Client, bytes, create, errno};
use types::{Errno, SessionId};
use wire::LeaseMode::Read;
use wire::MetaOp;

fn register() -> MetaOp {
    MetaOp::Register { in_use: vec![] }
}

#[test]
fn everything_waits_until_all_sessions_of_before_are_back() {
    simulated(|world| async move {
        for session in [1, 2] {
            world.client(session).await.getattr(ROOT).await.unwrap();
        }
        let world = world.restart().await;
        let [one, two, new] = [1, 2, 3].map(|session| Client::new(&world.meta, session));
        assert_eq!(errno(one.getattr(ROOT).await), Errno::ENOTCONN);
        assert_eq!(errno(one.call(MetaOp::NextRecalls { after: 0 }).await), Errno::ENOTCONN);
        new.call(register()).await.unwrap();
        let change = Call::call(&new, create(ROOT, "a")).await;
        one.call(register()).await.unwrap();
        let look = Call::call(&one, getattr(ROOT)).await;
        rt::sleep(SECOND).await;
        assert!(!change.is_done() && !look.is_done(), "session 2 may still rely on what it had");
        two.call(register()).await.unwrap();
        change.wait().await.unwrap();
        look.wait().await.unwrap();
        assert!(world.chunks.fenced.lock().is_empty());
        assert_eq!(two.grants(MetaOp::Lookup { parent: ROOT, name: bytes("a") }).await.len(), 2);
        world.meta.stop();
    });
}

#[test]
fn a_session_that_does_not_come_back_is_ended_for_good() {
    simulated(|world| async move {
        world.client(1).await.getattr(ROOT).await.unwrap();
        let world = world.restart().await;
        let begun = rt::monotonic_ns();
        let two = world.client(2).await;
        two.create(ROOT, "a").await.unwrap();
        let waited = rt::monotonic_ns() - begun;
        assert!((14..17).contains(&(waited / SECOND.as_nanos() as u64)), "{waited} ns");
        let fenced = world.chunks.fenced.lock().clone();
        assert!(fenced.iter().all(|(_, session)| *session == SessionId(1)) && !fenced.is_empty());
        assert_eq!(two.grants(getattr(ROOT)).await, [(ROOT, Read)]);
        // Not even the next start lets it in again, and it isn't waited for.
        two.call(MetaOp::EndSession).await.unwrap();
        let world = world.restart().await;
        let one = Client::new(&world.meta, 1);
        assert_eq!(errno(one.getattr(ROOT).await), Errno::ESTALE);
        assert_eq!(errno(one.call(register()).await), Errno::ESTALE);
        let begun = rt::monotonic_ns();
        world.client(3).await.create(ROOT, "b").await.unwrap();
        assert!(rt::monotonic_ns() - begun < SECOND.as_nanos() as u64);
        world.meta.stop();
    });
}

#[test]
fn a_file_without_a_name_survives_a_restart_while_it_is_open() {
    simulated(|world| async move {
        let (one, local) = (world.client(1).await, Client::new(&world.meta, 9));
        let kept = local.create(ROOT, "a").await.unwrap().ino;
        let gone = local.create(ROOT, "b").await.unwrap().ino;
        for ino in [kept, gone] {
            one.call(MetaOp::Open { ino, wish: None }).await.unwrap();
        }
        // The one that removes them dies with the service.
        local.unlink(ROOT, "a").await.unwrap();
        local.unlink(ROOT, "b").await.unwrap();
        let world = world.restart().await;
        let one = Client::new(&world.meta, 1);
        one.call(MetaOp::Register { in_use: vec![kept] }).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(one.getattr(kept).await.unwrap().nlink, 0);
        assert_eq!(errno(one.getattr(gone).await), Errno::ESTALE);
        one.call(MetaOp::Release { inodes: vec![kept], seen: 0 }).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(errno(one.getattr(kept).await), Errno::ESTALE);
        world.meta.stop();
    });
}
