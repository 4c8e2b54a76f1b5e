//! Reads and writes during failovers of primaries.

use super::cluster::{Application, CHUNK, RDWR, later, run_lengths, with_cluster};
use super::group::Behaviour;
use std::time::Duration;
use types::{Errno, GroupId, MemberState, Refusal, TargetId};
use wire::{GroupRole, StorageOp};

#[test]
fn changes_go_to_the_primary_and_reads_to_any_member() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        let file = client.create_file("a").await;
        cluster.groups.requests();
        client.fill(&file, 0, 3 * CHUNK, 1).await;
        assert_eq!(run_lengths(&client.read_all(&file).await), [(1, 3 * CHUNK)]);
        client.fsync(&file, true).await.unwrap();
        let asked = cluster.groups.requests();
        assert!(asked.len() >= 9, "{asked:?}");
        let primary = |request: &wire::StorageRequest| request.group.unwrap().group.0 - 10;
        for request in &asked {
            let group = request.group.unwrap();
            assert_eq!((group.role, group.version.0), (GroupRole::Primary, 1));
            let reads = matches!(request.op, StorageOp::Read { .. });
            assert!(reads || request.target.0 == primary(request), "{request:?}");
        }
        let other = client.create_file("b").await;
        client.fill(&other, 0, 3 * CHUNK, 2).await;
        assert_eq!(run_lengths(&client.read_all(&other).await), [(2, 3 * CHUNK)]);
        let all = asked.into_iter().chain(cluster.groups.requests());
        let reads: Vec<_> = all.filter(|request| matches!(request.op, StorageOp::Read { .. })).collect();
        let at_primary = reads.iter().filter(|request| request.target.0 == primary(request)).count();
        assert!(at_primary > 0 && at_primary < reads.len(), "{at_primary} of {}", reads.len());
    });
}

/// A member that serves a read doesn't know of a write that reached only the primary, and couldn't
/// prevent it from arriving late.
#[test]
fn a_failed_write_is_not_executed_after_a_later_read() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        client.set_request_timeout(Duration::from_secs(5));
        // One of them is read from the primary, one from the other member.
        for name in ["a", "b"] {
            let file = client.create_file(name).await;
            client.fill(&file, 0, 100, 1).await;
            let first =
                cluster.groups.requests().into_iter().rev().find_map(|request| request.group).unwrap();
            let primary = first.group.0 - 10;
            cluster.groups.set_behaviour(primary, Behaviour::Hangs);
            assert_eq!(client.try_fill(&file, 0, 100, 2).await.unwrap_err().errno, Errno::ETIMEDOUT);
            cluster.groups.set_behaviour(primary, Behaviour::Answers);
            let is_write = |request: &wire::StorageRequest| matches!(request.op, StorageOp::Write { .. });
            let late = cluster.groups.requests().into_iter().find(is_write).unwrap();
            assert_eq!(run_lengths(&client.read_all(&file).await), [(1, 100)]);
            let data = Some(rt::IoBuf::from_slice(&[2; 100]));
            let refused = net::Handler::handle(&*cluster.groups, late, data).await;
            assert_eq!(
                refused.map_err(|error| error.errno),
                Err(Refusal::RevokedLeaseEpoch.into()),
                "{name}"
            );
            assert_eq!(run_lengths(&client.read_all(&file).await), [(1, 100)]);
        }
    });
}

#[test]
fn a_primary_failure_causes_no_errors() {
    for way in [Behaviour::Hangs, Behaviour::LosesAnswers] {
        with_cluster(async move |cluster| {
            let client = cluster.client().await;
            let file = client.create_file("a").await;
            client.fill(&file, 0, 6 * CHUNK, 1).await;
            let held = cluster.clone();
            for victim in [1, 2] {
                cluster.groups.set_behaviour(victim, way);
                let cluster = held.clone();
                later(2500, move || cluster.take_out(victim));
                let byte = 1 + victim as u8;
                let writes = client.fill(&file, CHUNK / 2, 5 * CHUNK, byte);
                let reads = client.read_all(&file);
                let (_, seen) = (writes.await, reads.await);
                assert_eq!(run_lengths(&seen), [(1, CHUNK / 2), (byte, 5 * CHUNK), (1, CHUNK / 2)]);
                // The target returns, and has everything again.
                held.groups.set_behaviour(victim, Behaviour::Answers);
                let stat = client.getattr(file.ino()).await.unwrap();
                assert_eq!(stat.size, 6 * CHUNK as u64);
                if victim == 1 {
                    resync(&held, 1).await;
                }
            }
        });
    }
}

/// Resyncs all replicas of a target, and marks them as in sync.
async fn resync(cluster: &super::cluster::Cluster, target: u32) {
    use super::cluster::{GROUPS, pair};
    use super::group::copy;
    use rt::IoBuf;
    for group in GROUPS.into_iter().filter(|&group| pair(group).contains(&TargetId(target))) {
        let other = pair(group).into_iter().find(|other| other.0 != target).unwrap();
        let (from, to) = (copy(other, GroupId(group)), copy(TargetId(target), GroupId(group)));
        let (from, to) = (cluster.store(from), cluster.store(to));
        for name in from.list().await.unwrap() {
            let len = from.stat(name).await.unwrap().len;
            let buf = IoBuf::alloc(len as usize);
            from.read(name, 0, &buf, chunkstore::IoPath::Cached).await.unwrap();
            to.write(name, 0, &buf, chunkstore::IoPath::Cached, chunkstore::Durability::Later).await.unwrap();
        }
    }
    cluster.change(|map| {
        let epoch = map.epoch;
        for group in map.groups.iter_mut().filter(|group| group.is_degraded()) {
            (group.states, group.since) = (Vec::new(), epoch);
        }
    });
}

/// A change that a dead primary had executed isn't executed again over later writes of another
/// client.
#[test]
fn a_shared_write_is_executed_once_across_a_failover() {
    with_cluster(async |cluster| {
        let behind = cluster.map_of_now();
        let (slow, other) = (cluster.client_by(behind.clone()).await, cluster.client().await);
        let file = slow.create_file("a").await;
        let same = other.open_named("a", RDWR).await;
        // Both have it open for writing, and so share the lease.
        slow.fill(&file, 0, 100, 1).await;
        other.fill(&same, 0, 100, 2).await;
        slow.fill(&file, 0, 100, 3).await;
        let stripe = cluster.groups.requests().into_iter().rev().find_map(|request| request.group).unwrap();
        let primary = stripe.group.0 - 10;
        cluster.groups.set_behaviour(primary, Behaviour::LosesAnswers);
        let write = {
            let (slow, file) = (slow.clone(), file.clone());
            let done = std::rc::Rc::new(std::cell::Cell::new(false));
            let told = done.clone();
            rt::spawn(async move {
                slow.fill(&file, 0, 100, 4).await;
                told.set(true);
            });
            done
        };
        rt::sleep(Duration::from_secs(1)).await;
        cluster.take_out(primary);
        other.fill(&same, 0, 100, 5).await;
        assert!(!write.get(), "it doesn't know of the new primary yet");
        let numbers = cluster.groups.requests();
        behind.store(cluster.map.load());
        rt::sleep(Duration::from_secs(1)).await;
        assert!(write.get());
        let number = |requests: &[wire::StorageRequest]| {
            let is_write = |r: &&wire::StorageRequest| {
                matches!(r.op, StorageOp::Write { .. }) && r.session == types::SessionId(2)
            };
            requests.iter().find(is_write).and_then(|request| request.slot_sequence)
        };
        let again = number(&cluster.groups.requests());
        assert!(again.is_some() && again == number(&numbers), "the number stays");
        assert_eq!(run_lengths(&other.read_all(&same).await), [(5, 100)]);
        assert_eq!(run_lengths(&slow.read_all(&file).await), [(5, 100)]);
    });
}

#[test]
fn without_an_in_sync_member_the_error_names_the_group() {
    with_cluster(async |cluster| {
        let client = cluster.client().await;
        client.set_request_timeout(Duration::from_secs(5));
        let file = client.create_file("a").await;
        client.fill(&file, 0, 100, 1).await;
        let group =
            cluster.groups.requests().into_iter().rev().find_map(|request| request.group).unwrap().group;
        let set = move |map: &mut types::ClusterMap, states: [MemberState; 2]| {
            let epoch = map.epoch;
            let group = map.groups.iter_mut().find(|known| known.id == group).unwrap();
            (group.states, group.since) = (states.to_vec(), epoch);
        };
        cluster.change(|map| set(map, [MemberState::NeedsRebuild, MemberState::NeedsResync]));
        let began_ns = rt::monotonic_ns();
        let error = client.try_fill(&file, 0, 100, 2).await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        assert!(rt::monotonic_ns() - began_ns >= 5_000_000_000);
        assert!(
            error.message.contains(&format!("group {group}")) && error.message.contains("is bad"),
            "{error}"
        );
        assert!(error.hint.contains("weft group show"), "{error}");
        // A request succeeds if it waits.
        let again = cluster.clone();
        later(3000, move || again.change(|map| set(map, [MemberState::InSync, MemberState::InSync])));
        client.fill(&file, 0, 100, 3).await;
        assert_eq!(run_lengths(&client.read_all(&file).await), [(3, 100)]);
    });
}
