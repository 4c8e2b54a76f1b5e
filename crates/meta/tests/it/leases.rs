//! Sessions that rely on leases, and others whose commands conflict.

use crate::support;
use crate::support::world::{
    Call, ROOT, SECOND, acknowledge, chmod, getattr, lookup, open_with_lease, recalls, simulated,
};
use crate::support::{Client, bytes, create, errno};
use std::time::Duration;
use types::{Errno, InodeId, SessionId, TargetState, Timestamp};
use wire::LeaseMode::{Permissions, Read, Shared, Write};
use wire::{MetaOp, MetaReply, Recall};

fn drop_inline(ino: InodeId) -> MetaOp {
    MetaOp::DropInline { ino, size: 0, mtime: Timestamp::new(1, 0) }
}

/// The other session sends `op`, which has to wait for exactly one recall; returns that.
async fn recalled_by(holder: &Client, other: &Client, op: MetaOp, after: u64) -> (Call, Recall) {
    let call = Call::call(other, op).await;
    assert!(!call.is_done(), "nothing was in the way");
    let recalls = recalls(holder, after).await;
    assert_eq!(recalls.len(), 1, "{recalls:?}");
    (call, recalls[0])
}

#[test]
fn answers_bring_leases_for_registered_sessions_only() {
    simulated(|world| async move {
        let (one, local) = (world.client(1).await, Client::new(&world.meta, 9));
        let made = one.respond(0, create(ROOT, "a")).await.unwrap();
        let MetaReply::Created { attr, .. } = made.reply else { panic!() };
        let ino = attr.ino;
        assert_eq!(made.grants.len(), 2);
        assert_eq!(one.grants(lookup("a")).await, [(ROOT, Read), (ino, Read)]);
        assert_eq!(one.grants(getattr(ino)).await, [(ino, Read)]);
        let list =
            MetaOp::Readdir { dir: ROOT, cookie: 0, limit: 9, attributes: true, prefix: bytes::Bytes::new() };
        assert_eq!(one.grants(list).await, [(ROOT, Read), (ino, Read)]);
        assert_eq!(one.grants(open_with_lease(ino, Write)).await, [(ino, Write)]);
        assert_eq!(one.grants(getattr(ino)).await, [(ino, Write)]);
        one.call(MetaOp::Release { inodes: vec![ino], seen: 0 }).await.unwrap();
        assert_eq!(one.grants(chmod(ino)).await, [(ino, Read)]);
        assert_eq!(local.grants(getattr(ino)).await, []);
        assert_eq!(errno(local.call(MetaOp::NextRecalls { after: 0 }).await), Errno::ENOTCONN);
    });
}

#[test]
fn a_file_created_for_writing_comes_with_a_write_lease() {
    simulated(|world| async move {
        let one = world.client(1).await;
        let asking = |name: &str, wish| match create(ROOT, name) {
            MetaOp::Create { parent, name, mode, umask, rdev, .. } => {
                MetaOp::Create { parent, name, mode, umask, rdev, exclusive: false, requested_lease: wish }
            }
            other => other,
        };
        for (name, asked, granted) in [("r", None, Read), ("w", Some(Write), Write)] {
            let made = one.respond(0, asking(name, asked)).await.unwrap();
            let MetaReply::Created { attr, .. } = made.reply else { panic!() };
            assert_eq!(made.grants[1], wire::LeaseGrant { ino: attr.ino, mode: granted });
            // An existing file is opened like any other.
            one.call(MetaOp::Release { inodes: vec![attr.ino], seen: 0 }).await.unwrap();
            assert_eq!(one.grants(asking(name, asked)).await, [(ROOT, Read), (attr.ino, Read)]);
        }
    });
}

#[test]
fn a_change_by_another_session_waits_for_the_acknowledgement() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        let steps = [
            create(ROOT, "b"),
            MetaOp::Rename {
                parent: ROOT,
                name: bytes("b"),
                new_parent: ROOT,
                new_name: bytes("c"),
                mode: wire::RenameMode::Replace,
            },
            MetaOp::Unlink { parent: ROOT, name: bytes("c"), ino: None },
        ];
        let mut after = 0;
        for op in steps {
            rt::sleep(2 * SECOND).await;
            assert_eq!(one.grants(getattr(ROOT)).await, [(ROOT, Read)]);
            let (call, recall) = recalled_by(&one, &two, op, after).await;
            assert_eq!((recall.number, recall.ino, recall.retain), (after + 1, ROOT, Some(Permissions)));
            assert!(!call.is_done());
            // Nothing is granted to any session meanwhile.
            assert_eq!(one.grants(getattr(ROOT)).await, []);
            assert_eq!(two.grants(getattr(ROOT)).await, []);
            acknowledge(&one, &recall, false).await;
            call.wait().await.unwrap();
            after = recall.number;
            two.call(MetaOp::Release { inodes: vec![ROOT], seen: 0 }).await.unwrap();
        }
        assert_eq!(one.grants(getattr(ino)).await, [(ino, Read)]);
        let (call, recall) = recalled_by(&one, &two, chmod(ino), after).await;
        assert_eq!((recall.ino, recall.retain), (ino, None));
        // A release counts as an acknowledgement.
        one.call(MetaOp::Release { inodes: vec![ino], seen: recall.number }).await.unwrap();
        call.wait().await.unwrap();
    });
}

#[test]
fn a_recalled_lease_is_not_offered_during_cool_down() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.getattr(ROOT).await.unwrap();
        let (call, recall) = recalled_by(&one, &two, create(ROOT, "a"), 0).await;
        acknowledge(&one, &recall, false).await;
        call.wait().await.unwrap();
        // On a directory, sessions that add names leave permissions to each other.
        assert_eq!(one.grants(getattr(ROOT)).await, [(ROOT, Permissions)]);
        assert_eq!(two.grants(create(ROOT, "b")).await[0], (ROOT, Permissions));
        rt::sleep(2 * SECOND).await;
        assert_eq!(one.grants(getattr(ROOT)).await, [(ROOT, Read)]);
        let ino = one.create(ROOT, "c").await.unwrap().ino;
        let (call, recall) = recalled_by(&one, &two, chmod(ino), recall.number).await;
        acknowledge(&one, &recall, false).await;
        call.wait().await.unwrap();
        assert_eq!(one.grants(getattr(ino)).await, []);
    });
}

#[test]
fn a_reader_gets_the_size_that_the_writer_knows() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        assert_eq!(one.grants(open_with_lease(ino, Write)).await, [(ino, Write)]);
        one.call(MetaOp::BeginWrite { ino }).await.unwrap();
        one.call(drop_inline(ino)).await.unwrap();
        // A listing omits its attributes, without a recall.
        let list =
            MetaOp::Readdir { dir: ROOT, cookie: 0, limit: 9, attributes: true, prefix: bytes::Bytes::new() };
        let MetaReply::Directory { entries, .. } = two.call(list).await.unwrap() else { panic!() };
        assert_eq!((entries.len(), entries[0].attr), (1, None));
        let (call, recall) = recalled_by(&one, &two, getattr(ino), 0).await;
        assert_eq!(recall.retain, Some(Shared));
        let report = MetaOp::EndWrite {
            ino,
            size: 77,
            blocks: 1,
            lens: Vec::new(),
            mtime: None,
            done: false,
            kill_suid_sgid: false,
        };
        one.call(report.clone()).await.unwrap();
        acknowledge(&one, &recall, true).await;
        let MetaReply::Attr(attr) = call.wait().await.unwrap() else { panic!() };
        assert_eq!(attr.size, 77);
        // It is shared now: reading its attributes needs no recall, and grants no lease.
        let response = two.respond(0, lookup("a")).await.unwrap();
        assert_eq!(response.grants.iter().map(|grant| grant.ino).collect::<Vec<_>>(), [ROOT]);
        // Another writer joins, and their reports don't conflict.
        assert_eq!(two.grants(open_with_lease(ino, Write)).await, [(ino, Shared)]);
        two.call(MetaOp::BeginWrite { ino }).await.unwrap();
        one.call(report.clone()).await.unwrap();
        two.call(report).await.unwrap();
        let polled = recalls(&one, 1).await;
        assert_eq!(polled, [], "nothing of this is in the way of a shared lease");
        // A reader that wants to cache ends the sharing.
        let three = world.client(3).await;
        let call = Call::call(&three, open_with_lease(ino, Read)).await;
        for writer in [&one, &two] {
            let recall = recalls(writer, if writer.session == one.session { 1 } else { 0 }).await[0];
            assert_eq!((recall.ino, recall.retain), (ino, None));
            acknowledge(writer, &recall, true).await;
        }
        call.wait().await.unwrap();
        assert_eq!(three.grants(getattr(ino)).await, [(ino, Read)]);
    });
}

#[test]
fn exclusive_operations_have_one_session() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        // Inline content has one writer.
        one.call(open_with_lease(ino, Write)).await.unwrap();
        let (call, recall) = recalled_by(&one, &two, open_with_lease(ino, Write), 0).await;
        assert_eq!(recall.retain, None);
        acknowledge(&one, &recall, true).await;
        call.wait().await.unwrap();
        two.call(MetaOp::BeginWrite { ino }).await.unwrap();
        assert_eq!(two.grants(drop_inline(ino)).await, [(ino, Write)]);
        // Chunk files are shared, until one of the writers needs the exclusive lease.
        let (call, recall) = recalled_by(&two, &one, open_with_lease(ino, Write), 0).await;
        assert_eq!(recall.retain, Some(Shared));
        acknowledge(&two, &recall, true).await;
        call.wait().await.unwrap();
        let truncate = MetaOp::Truncate { ino, size: 0, kill_suid_sgid: false };
        for op in [truncate, open_with_lease(ino, Write)] {
            assert_eq!(two.grants(open_with_lease(ino, Shared)).await, [(ino, Shared)]);
            let after = recalls(&two, 0).await.last().unwrap().number;
            let (call, recall) = recalled_by(&two, &one, op, after).await;
            assert_eq!(recall.retain, None);
            acknowledge(&two, &recall, true).await;
            call.wait().await.unwrap();
            assert_eq!(one.grants(getattr(ino)).await, [(ino, Write)]);
            let known = recalls(&one, 1).await.last().map_or(1, |recall| recall.number);
            let (call, recall) = recalled_by(&one, &two, open_with_lease(ino, Shared), known).await;
            assert_eq!(recall.retain, Some(Shared));
            acknowledge(&one, &recall, true).await;
            call.wait().await.unwrap();
        }
    });
}

#[test]
fn a_session_that_never_acknowledges_is_evicted_and_fenced() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.create(ROOT, "a").await.unwrap();
        let begun = rt::monotonic_ns();
        let call = Call::call(&two, create(ROOT, "b")).await;
        // It has seen the recall and keeps sending, so it could acknowledge.
        let after = recalls(&one, 0).await[0].number;
        let _next = Call::call(&one, MetaOp::NextRecalls { after }).await;
        for _ in 0..4 {
            rt::sleep(SECOND).await;
            one.lookup(ROOT, "a").await.unwrap();
        }
        assert!(!call.is_done());
        call.wait().await.unwrap();
        assert!(rt::monotonic_ns() - begun < 7 * SECOND.as_nanos() as u64);
        let fenced = world.chunks.fenced.lock().clone();
        assert_eq!(fenced.len(), support::TARGETS as usize);
        assert!(fenced.iter().all(|(_, session)| *session == SessionId(1)));
        assert_eq!(errno(one.lookup(ROOT, "a").await), Errno::ESTALE);
        assert_eq!(
            errno(
                one.call(MetaOp::Register {
                    in_use: vec![],
                    pending_creates: vec![],
                    pending_changes: vec![],
                    reporting_process: 0
                })
                .await
            ),
            Errno::ESTALE
        );
    });
}

/// How long another session waits for a lease of a session that only ever reports that it works on
/// the recall, up to `limit`.
async fn wait_for_a_working_session(world: &support::world::World, limit: Duration) -> Option<Duration> {
    let (one, two) = (world.client(1).await, world.client(2).await);
    one.create(ROOT, "a").await.unwrap();
    let begun = rt::monotonic_ns();
    let waited = || Duration::from_nanos(rt::monotonic_ns() - begun);
    let call = Call::call(&two, create(ROOT, "b")).await;
    let seen = recalls(&one, 0).await.last().unwrap().number;
    while waited() < limit {
        if one.call(MetaOp::RecallsInProgress { seen }).await.is_err() {
            call.wait().await.unwrap();
            return Some(waited());
        }
        // The waiting session sends messages, too.
        two.call(MetaOp::Release { inodes: vec![], seen: 0 }).await.unwrap();
        rt::sleep(SECOND).await;
    }
    assert!(!call.is_done());
    acknowledge(&one, &recalls(&one, 0).await[0], false).await;
    call.wait().await.unwrap();
    one.lookup(ROOT, "a").await.unwrap();
    None
}

#[test]
fn a_working_session_has_a_limit_while_all_targets_are_online() {
    simulated(|world| async move {
        let waited = wait_for_a_working_session(&world, 300 * SECOND).await.unwrap();
        assert!((89..93).contains(&waited.as_secs()), "{waited:?}");
    });
}

#[test]
fn a_working_session_has_no_limit_while_a_target_is_down() {
    simulated(|world| async move {
        world.targets_are(TargetState::ProbablyOffline);
        assert_eq!(wait_for_a_working_session(&world, 300 * SECOND).await, None);
    });
}

#[test]
fn a_session_that_stops_reporting_work_is_evicted_though_a_target_is_down() {
    simulated(|world| async move {
        world.targets_are(TargetState::Offline);
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.create(ROOT, "a").await.unwrap();
        let call = Call::call(&two, create(ROOT, "b")).await;
        // It could report that of an earlier recall all the time.
        let seen = recalls(&one, 0).await[0].number;
        one.call(MetaOp::RecallsInProgress { seen: seen - 1 }).await.unwrap();
        let begun = rt::monotonic_ns();
        for _ in 0..3 {
            rt::sleep(SECOND).await;
            one.call(MetaOp::RecallsInProgress { seen }).await.unwrap();
        }
        for _ in 0..4 {
            rt::sleep(SECOND).await;
            one.lookup(ROOT, "a").await.unwrap();
        }
        assert!(!call.is_done());
        call.wait().await.unwrap();
        let waited = Duration::from_nanos(rt::monotonic_ns() - begun);
        assert!(waited > 7 * SECOND && waited < 11 * SECOND, "{waited:?}");
        assert_eq!(errno(one.lookup(ROOT, "a").await), Errno::ESTALE);
    });
}

/// Its messages arrive, but it receives none: until it notices, it relies on its leases.
#[test]
fn a_session_that_receives_no_recall_gets_the_time_of_a_silent_one() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.create(ROOT, "a").await.unwrap();
        let begun = rt::monotonic_ns();
        let call = Call::call(&two, create(ROOT, "b")).await;
        while !call.is_done() {
            rt::sleep(SECOND).await;
            // An answer would show that it is evicted.
            let _ = one.lookup(ROOT, "a").await;
        }
        let waited = Duration::from_nanos(rt::monotonic_ns() - begun);
        assert!(waited > 14 * SECOND && waited < 17 * SECOND, "{waited:?}");
        assert_eq!(errno(one.lookup(ROOT, "a").await), Errno::ESTALE);
    });
}

/// After a network recovers, retransmissions may take as many seconds as the failure lasted.
#[test]
fn a_session_that_is_cut_off_while_it_answers_is_waited_for() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.create(ROOT, "a").await.unwrap();
        let call = Call::call(&two, create(ROOT, "b")).await;
        let recall = recalls(&one, 0).await[0];
        let _next = Call::call(&one, MetaOp::NextRecalls { after: recall.number }).await;
        rt::sleep(SECOND / 2).await;
        one.lookup(ROOT, "a").await.unwrap();
        rt::sleep(8 * SECOND).await;
        assert!(!call.is_done());
        acknowledge(&one, &recall, false).await;
        call.wait().await.unwrap();
        one.lookup(ROOT, "a").await.unwrap();
    });
}

#[test]
fn a_silent_session_is_evicted_later_and_only_for_a_conflicting_lease() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.create(ROOT, "a").await.unwrap();
        rt::sleep(10 * SECOND).await;
        one.getattr(ROOT).await.unwrap();
        let begun = rt::monotonic_ns();
        two.create(ROOT, "b").await.unwrap();
        let waited = Duration::from_nanos(rt::monotonic_ns() - begun);
        assert!(waited > 14 * SECOND && waited < 17 * SECOND, "{waited:?}");
        assert_eq!(errno(one.lookup(ROOT, "a").await), Errno::ESTALE);
        // An idle session conflicts with no other, until it was silent for a minute.
        let three = world.client(3).await;
        three.lookup(ROOT, "a").await.unwrap();
        rt::sleep(50 * SECOND).await;
        three.lookup(ROOT, "a").await.unwrap();
        rt::sleep(70 * SECOND).await;
        assert_eq!(errno(three.lookup(ROOT, "a").await), Errno::ESTALE);
        // A session that asks for recalls is alive, and so is one of this process.
        let (four, local) = (world.client(4).await, Client::new(&world.meta, 9));
        local.lookup(ROOT, "a").await.unwrap();
        let begun = rt::monotonic_ns();
        while rt::monotonic_ns() - begun < 200 * SECOND.as_nanos() as u64 {
            assert_eq!(recalls(&four, 0).await, []);
        }
        four.lookup(ROOT, "a").await.unwrap();
        local.lookup(ROOT, "a").await.unwrap();
    });
}

#[test]
fn a_file_without_a_name_stays_while_a_session_has_it_open() {
    simulated(|world| async move {
        let (one, two, three) = (world.client(1).await, world.client(2).await, world.client(3).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        // One session has it open without a lease, the other with one.
        two.call(MetaOp::Open { ino, requested_lease: None }).await.unwrap();
        three.call(open_with_lease(ino, Read)).await.unwrap();
        let release = |seen| MetaOp::Release { inodes: vec![ROOT, ino], seen };
        one.call(release(0)).await.unwrap();
        let (call, recall) =
            recalled_by(&three, &one, MetaOp::Unlink { parent: ROOT, name: bytes("a"), ino: None }, 0).await;
        assert_eq!(recall.ino, ino);
        acknowledge(&three, &recall, true).await;
        call.wait().await.unwrap();
        one.call(MetaOp::Reclaim { ino, others: Vec::new() }).await.unwrap();
        assert_eq!(one.getattr(ino).await.unwrap().nlink, 0);
        two.call(release(0)).await.unwrap();
        assert_eq!(three.getattr(ino).await.unwrap().nlink, 0);
        three.call(release(1)).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(errno(one.getattr(ino).await), Errno::ESTALE);
    });
}

#[test]
fn of_files_that_are_reclaimed_together_those_in_use_stay() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let mut files = Vec::new();
        for name in ["a", "b", "c"] {
            files.push(one.create(ROOT, name).await.unwrap().ino);
        }
        two.call(MetaOp::Open { ino: files[1], requested_lease: None }).await.unwrap();
        for name in ["a", "b", "c"] {
            one.call(MetaOp::Unlink { parent: ROOT, name: bytes(name), ino: None }).await.unwrap();
        }
        let too_many = MetaOp::Reclaim { ino: files[0], others: vec![files[1]; wire::MAX_RECLAIMED] };
        assert_eq!(errno(one.call(too_many).await), Errno::EINVAL);
        let elsewhere = InodeId::new(types::PartitionId(3), 77);
        let mixed = MetaOp::Reclaim { ino: files[0], others: vec![elsewhere] };
        assert_eq!(errno(one.call(mixed).await), Errno::EINVAL);
        assert_eq!(one.getattr(files[0]).await.unwrap().nlink, 0, "a refused request changes nothing");
        one.call(MetaOp::Reclaim { ino: files[0], others: files[1..].to_vec() }).await.unwrap();
        let left: Vec<bool> =
            [one.getattr(files[0]).await, one.getattr(files[1]).await, one.getattr(files[2]).await]
                .map(|attr| attr.is_ok())
                .to_vec();
        assert_eq!(left, [false, true, false]);
        two.call(MetaOp::Release { inodes: vec![files[1]], seen: 0 }).await.unwrap();
        rt::sleep(SECOND).await;
        assert_eq!(errno(one.getattr(files[1]).await), Errno::ESTALE);
    });
}

#[test]
fn the_end_of_a_session_releases_its_leases() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        one.create(ROOT, "a").await.unwrap();
        let call = Call::call(&two, create(ROOT, "b")).await;
        assert!(!call.is_done());
        one.call(MetaOp::EndSession).await.unwrap();
        call.wait().await.unwrap();
        assert!(world.chunks.fenced.lock().is_empty());
        // A session that ended cleanly isn't refused later.
        world.client(1).await.lookup(ROOT, "b").await.unwrap();
    });
}

#[test]
fn an_older_release_does_not_undo_a_later_grant() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let ino = one.create(ROOT, "a").await.unwrap().ino;
        let (call, recall) = recalled_by(&one, &two, chmod(ino), 0).await;
        acknowledge(&one, &recall, false).await;
        call.wait().await.unwrap();
        two.call(MetaOp::Release { inodes: vec![ino], seen: 9 }).await.unwrap();
        rt::sleep(2 * SECOND).await;
        let response = one.respond(0, getattr(ino)).await.unwrap();
        assert_eq!((response.grants.len(), response.recalls), (1, 1));
        one.call(MetaOp::Release { inodes: vec![ino], seen: 0 }).await.unwrap();
        let (call, recall) = recalled_by(&one, &two, chmod(ino), 1).await;
        acknowledge(&one, &recall, false).await;
        call.wait().await.unwrap();
    });
}

#[test]
fn the_list_of_sessions_says_what_each_has() {
    simulated(|world| async move {
        let (one, two) = (world.client(1).await, world.client(2).await);
        let file = one.create(ROOT, "a").await.unwrap().ino;
        one.call(open_with_lease(file, Write)).await.unwrap();
        two.call(MetaOp::Open { ino: one.create(ROOT, "b").await.unwrap().ino, requested_lease: None })
            .await
            .unwrap();
        let has = |id| {
            let all = world.meta.session_list();
            let status = all.iter().find(|status| status.id == SessionId(id)).unwrap();
            (status.leases, status.in_use)
        };
        assert_eq!(has(2), (0, 1));
        // The directory and both files.
        assert_eq!(has(1), (3, 0));
        one.call(MetaOp::Release { inodes: vec![file], seen: 9 }).await.unwrap();
        assert_eq!(has(1), (2, 0));
    });
}
