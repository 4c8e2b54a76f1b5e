//! Sessions of other processes, and a service that restarted.

use crate::support::world::{Call, ROOT, SECOND, getattr, simulated};
use crate::support::{CHUNK_MTIME, Client, bytes, create, errno};
use types::{Errno, InodeId, SessionId};
use wire::LeaseMode::Read;
use wire::{HeldLock, LockFamily, LockKind, LockOwner, LockRange, MetaOp, MetaReply};

const FILE: InodeId = InodeId(7);
const WHOLE: LockRange = LockRange { start: 0, last: u64::MAX };

fn lock_of(ino: InodeId, owner: u64, kind: LockKind, wait: bool) -> MetaOp {
    let (family, owner, range) = (LockFamily::Posix, LockOwner(owner), WHOLE);
    MetaOp::Lock { ino, family, owner, pid: 4, kind, range, wait }
}

fn lock(owner: u64, kind: LockKind, wait: bool) -> MetaOp {
    lock_of(FILE, owner, kind, wait)
}

fn unlock(ino: InodeId, owner: u64) -> MetaOp {
    MetaOp::Unlock { ino, family: LockFamily::Posix, owner: LockOwner(owner), range: WHOLE }
}

fn reclaim(ino: InodeId, owner: u64, kind: LockKind) -> MetaOp {
    let (family, owner, range) = (LockFamily::Posix, LockOwner(owner), WHOLE);
    MetaOp::ReclaimLocks { locks: vec![HeldLock { ino, family, owner, pid: 4, kind, range }] }
}

fn register() -> MetaOp {
    MetaOp::Register {
        in_use: vec![],
        pending_creates: vec![],
        pending_changes: vec![],
        reporting_process: 0,
    }
}

#[test]
fn commands_wait_for_the_end_of_the_grace_period() {
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
        // Of an inode that the change doesn't concern: no session acknowledges recalls here.
        let look = Call::call(&one, getattr(FILE)).await;
        rt::sleep(SECOND).await;
        assert!(!change.is_done() && !look.is_done(), "session 2 may still rely on what it had");
        two.call(register()).await.unwrap();
        change.wait().await.unwrap();
        assert_eq!(errno(look.wait().await), Errno::ESTALE);
        assert!(world.chunks.fenced.lock().is_empty());
        assert_eq!(two.grants(MetaOp::Lookup { parent: ROOT, name: bytes("a") }).await.len(), 2);
        world.meta.stop();
    });
}

#[test]
fn a_session_may_end_twice_and_without_registering() {
    simulated(|world| async move {
        let [one, two] = [world.client(1).await, world.client(2).await];
        one.call(MetaOp::EndSession).await.unwrap();
        one.call(MetaOp::EndSession).await.unwrap();
        two.getattr(ROOT).await.unwrap();
        let world = world.restart().await;
        let [one, two] = [1, 2].map(|session| Client::new(&world.meta, session));
        one.call(MetaOp::EndSession).await.unwrap();
        two.call(MetaOp::EndSession).await.unwrap();
        let begun = rt::monotonic_ns();
        world.client(3).await.create(ROOT, "a").await.unwrap();
        assert!(rt::monotonic_ns() - begun < SECOND.as_nanos() as u64, "nobody is waited for");
        assert!(world.chunks.fenced.lock().is_empty());
        world.meta.stop();
    });
}

#[test]
fn a_session_that_does_not_return_is_evicted() {
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
        // Even the next start doesn't accept it, and doesn't wait for it.
        two.call(MetaOp::EndSession).await.unwrap();
        let world = world.restart().await;
        let one = Client::new(&world.meta, 1);
        assert_eq!(errno(one.getattr(ROOT).await), Errno::ESTALE);
        assert_eq!(errno(one.call(register()).await), Errno::ESTALE);
        assert_eq!(errno(one.call(MetaOp::EndSession).await), Errno::ESTALE);
        let begun = rt::monotonic_ns();
        world.client(3).await.create(ROOT, "b").await.unwrap();
        assert!(rt::monotonic_ns() - begun < SECOND.as_nanos() as u64);
        world.meta.stop();
    });
}

/// However long it takes until it reaches the service, and drops its cache.
#[test]
fn the_grace_period_starts_again_at_first_contact() {
    simulated(|world| async move {
        world.client(1).await.getattr(ROOT).await.unwrap();
        let world = world.restart().await;
        let two = world.client(2).await;
        let waits = Call::call(&two, create(ROOT, "a")).await;
        let one = Client::new(&world.meta, 1);
        rt::sleep(10 * SECOND).await;
        assert_eq!(errno(one.call(MetaOp::NextRecalls { after: 0 }).await), Errno::ENOTCONN);
        rt::sleep(10 * SECOND).await;
        assert!(!waits.is_done());
        one.call(register()).await.unwrap();
        waits.wait().await.unwrap();
        assert!(world.chunks.fenced.lock().is_empty());
        world.meta.stop();
    });
}

/// Before that, size recovery of its files waits for slow storage services.
#[test]
fn a_session_whose_registration_is_under_way_is_not_late() {
    simulated(|world| async move {
        let writer = world.client(1).await;
        let ino = writer.create(ROOT, "log").await.unwrap().ino;
        writer.call(MetaOp::BeginWrite { ino }).await.unwrap();
        writer.call(MetaOp::DropInline { ino, size: 512, mtime: CHUNK_MTIME }).await.unwrap();
        *world.chunks.stat_time.lock() = 40 * SECOND;
        let world = world.restart().await;
        let two = world.client(2).await;
        let waits = Call::call(&two, create(ROOT, "a")).await;
        let writer = Client::new(&world.meta, 1);
        writer
            .call(MetaOp::Register {
                in_use: vec![ino],
                pending_creates: vec![],
                pending_changes: vec![],
                reporting_process: 0,
            })
            .await
            .unwrap();
        waits.wait().await.unwrap();
        writer.call(getattr(ino)).await.unwrap();
        assert!(world.chunks.fenced.lock().is_empty());
        world.meta.stop();
    });
}

/// Its other messages don't extend the grace period for ever.
#[test]
fn a_session_in_contact_that_does_not_register_is_evicted() {
    simulated(|world| async move {
        world.client(1).await.getattr(ROOT).await.unwrap();
        let world = world.restart().await;
        let begun = rt::monotonic_ns();
        let two = world.client(2).await;
        let waits = Call::call(&two, create(ROOT, "a")).await;
        let one = Client::new(&world.meta, 1);
        while !waits.is_done() {
            rt::sleep(SECOND).await;
            _ = one.call(MetaOp::NextRecalls { after: 0 }).await;
        }
        let waited = (rt::monotonic_ns() - begun) / SECOND.as_nanos() as u64;
        assert!((15..20).contains(&waited), "{waited} s");
        assert!(!world.chunks.fenced.lock().is_empty());
        assert_eq!(errno(one.call(register()).await), Errno::ESTALE);
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
            one.call(MetaOp::Open { ino, requested_lease: None }).await.unwrap();
        }
        // The session that removes them ends with the service.
        local.unlink(ROOT, "a").await.unwrap();
        local.unlink(ROOT, "b").await.unwrap();
        let world = world.restart().await;
        let one = Client::new(&world.meta, 1);
        one.call(MetaOp::Register {
            in_use: vec![kept],
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        })
        .await
        .unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(one.getattr(kept).await.unwrap().nlink, 0);
        assert_eq!(errno(one.getattr(gone).await), Errno::ESTALE);
        one.call(MetaOp::Release { inodes: vec![kept], seen: 0 }).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(errno(one.getattr(kept).await), Errno::ESTALE);
        world.meta.stop();
    });
}

/// More than a list in a message may have; the last part comes with the registration.
#[test]
fn a_session_with_very_many_files_open_comes_back_with_all_of_them() {
    const PIECE: usize = 4096;
    simulated(|world| async move {
        let (one, local) = (world.client(1).await, Client::new(&world.meta, 9));
        let mut real = Vec::new();
        for name in ["first", "middle", "last", "closed"] {
            let ino = local.create(ROOT, name).await.unwrap().ino;
            one.call(MetaOp::Open { ino, requested_lease: None }).await.unwrap();
            local.unlink(ROOT, name).await.unwrap();
            real.push(ino);
        }
        let world = world.restart().await;
        let one = Client::new(&world.meta, 1);
        let closed = real.pop().unwrap();
        let mut opens: Vec<InodeId> =
            (1..wire::MAX_LIST_ITEMS as u64 + 5000).map(|n| InodeId(1 << 40 | n)).collect();
        for (at, &ino) in [0, opens.len() / 2, opens.len() - 1].iter().zip(&real) {
            opens[*at] = ino;
        }
        let pieces: Vec<Vec<InodeId>> = opens.chunks(PIECE).map(<[InodeId]>::to_vec).collect();
        let (last, before) = pieces.split_last().unwrap();
        for inodes in before {
            one.call(MetaOp::ReclaimOpens { inodes: inodes.clone() }).await.unwrap();
        }
        assert_eq!(errno(one.getattr(real[0]).await), Errno::ENOTCONN, "it isn't back before it registers");
        one.call(MetaOp::Register {
            in_use: last.clone(),
            pending_creates: vec![],
            pending_changes: vec![],
            reporting_process: 0,
        })
        .await
        .unwrap();
        // It retransmits a part that got no answer.
        one.call(MetaOp::ReclaimOpens { inodes: before[0].clone() }).await.unwrap();
        rt::sleep(SECOND).await;
        for &ino in &real {
            assert_eq!(one.getattr(ino).await.unwrap().nlink, 0);
        }
        assert_eq!(errno(one.getattr(closed).await), Errno::ESTALE);
        one.call(MetaOp::Release { inodes: real.clone(), seen: 0 }).await.unwrap();
        rt::sleep(SECOND).await;
        for &ino in &real {
            assert_eq!(errno(one.getattr(ino).await), Errno::ESTALE);
        }
        world.meta.stop();
    });
}

#[test]
fn reported_opens_of_an_unexpected_session_are_ignored() {
    simulated(|world| async move {
        let stranger = Client::new(&world.meta, 7);
        stranger.call(MetaOp::ReclaimOpens { inodes: vec![FILE] }).await.unwrap();
        assert_eq!(world.meta.stats().sessions, 0, "nobody is known by that");
        world.client(8).await.call(MetaOp::EndSession).await.unwrap();
        let ended = world.client(9).await;
        world.meta.evict_session(SessionId(9)).unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(errno(ended.call(MetaOp::ReclaimOpens { inodes: vec![FILE] }).await), Errno::ESTALE);
        world.meta.stop();
    });
}

#[test]
fn no_lock_is_granted_before_locks_are_reclaimed() {
    simulated(|world| async move {
        let [one, two] = [world.client(1).await, world.client(2).await];
        one.call(lock(5, LockKind::Exclusive, false)).await.unwrap();
        let world = world.restart().await;
        let [one, two, new] =
            [&one, &two, &one].map(|old| old.session).map(|id| Client::new(&world.meta, id.0));
        let new = Client { session: SessionId(3), ..new };
        new.call(register()).await.unwrap();
        let waits = Call::call(&new, lock(5, LockKind::Shared, true)).await;
        let tries = Call::call(&new, lock(6, LockKind::Shared, false)).await;
        let test = MetaOp::TestLock { ino: FILE, owner: LockOwner(1), kind: LockKind::Shared, range: WHOLE };
        let tests = Call::call(&new, test).await;
        two.call(register()).await.unwrap();
        // A session that hasn't returned can't release anything either.
        assert_eq!(errno(one.call(unlock(FILE, 5)).await), Errno::ENOTCONN);
        one.call(reclaim(FILE, 5, LockKind::Exclusive)).await.unwrap();
        rt::sleep(SECOND).await;
        assert!(!waits.is_done() && !tries.is_done() && !tests.is_done());
        one.call(register()).await.unwrap();
        assert_eq!(errno(tries.wait().await), Errno::EAGAIN);
        let found = tests.wait().await.unwrap();
        assert!(matches!(found, MetaReply::Lock(Some((LockKind::Exclusive, WHOLE, 4)))), "{found:?}");
        assert!(!waits.is_done());
        one.call(unlock(FILE, 5)).await.unwrap();
        waits.wait().await.unwrap();
        world.meta.stop();
    });
}

#[test]
fn deadlocks_are_detected_after_a_restart() {
    simulated(|world| async move {
        for session in [1, 2] {
            world
                .client(session)
                .await
                .call(lock_of(InodeId(session), 1, LockKind::Exclusive, false))
                .await
                .unwrap();
        }
        let world = world.restart().await;
        let [one, two] = [1, 2].map(|session| Client::new(&world.meta, session));
        for client in [&one, &two] {
            client.call(reclaim(InodeId(client.session.0), 1, LockKind::Exclusive)).await.unwrap();
            // The request may be retransmitted.
            client.call(reclaim(InodeId(client.session.0), 1, LockKind::Exclusive)).await.unwrap();
        }
        one.call(register()).await.unwrap();
        two.call(register()).await.unwrap();
        let waits = Call::call(&one, lock_of(InodeId(2), 1, LockKind::Exclusive, true)).await;
        assert!(!waits.is_done());
        let closes = two.call(lock_of(InodeId(1), 1, LockKind::Exclusive, true)).await;
        assert_eq!(errno(closes), Errno::EDEADLK);
        two.call(unlock(InodeId(2), 1)).await.unwrap();
        waits.wait().await.unwrap();
        world.meta.stop();
    });
}

#[test]
fn locks_of_an_evicted_session_are_free_and_can_not_be_reclaimed() {
    simulated(|world| async move {
        world.client(1).await.call(lock(5, LockKind::Exclusive, false)).await.unwrap();
        let world = world.restart().await;
        let [one, two] = [1, 2].map(|session| Client::new(&world.meta, session));
        // It reclaims its locks, and dies.
        one.call(reclaim(FILE, 5, LockKind::Exclusive)).await.unwrap();
        two.call(register()).await.unwrap();
        two.call(lock(5, LockKind::Exclusive, false)).await.unwrap();
        assert_eq!(errno(one.call(reclaim(FILE, 5, LockKind::Exclusive)).await), Errno::ESTALE);
        // An unknown session can't reclaim locks, and locks of other sessions stay.
        let three = Client::new(&world.meta, 3);
        assert_eq!(errno(three.call(reclaim(FILE, 5, LockKind::Shared)).await), Errno::ENOLCK);
        three.call(register()).await.unwrap();
        assert_eq!(errno(three.call(reclaim(FILE, 5, LockKind::Shared)).await), Errno::EAGAIN);
        world.meta.stop();
    });
}
