use super::*;
use crate::limits::{HEDGE_DELAY, READ_REGION_BYTES, UNRESPONSIVE_MEMORY};
use crate::limits::{MAX_LOAD_IMBALANCE, MAX_LOAD_IMBALANCE_BETWEEN_RACKS};
use crate::{OwnRack, StorageChannel};
use net::{Distance, Handler, LocalFuture};
use parking_lot::Mutex;
use rt::sim::Machine;
use rt::sync::Event;
use std::cell::Cell;
use std::rc::Rc;
use types::{ChunkFileId, MemberState, PoolId, Refusal, Scheme, SessionId, TargetState};
use wire::{SlotSequence, StorageOp};

const GROUP: GroupId = GroupId(7);
const TEST_TIME_OUT: Duration = Duration::from_secs(10);

/// How a member answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Behaviour {
    Answers,
    Hangs,
    Fails(Errno),
}

/// State of a member of the group.
struct Member {
    map: MapHandle,
    /// Version of the group that the member has; `None`: that of the current map.
    old_version: Mutex<Option<Epoch>>,
    behaviour: Mutex<Behaviour>,
    asked: Mutex<Vec<(TargetId, GroupContext, Option<SlotSequence>)>>,
    changed: Event,
    distance: Mutex<Distance>,
}

impl Member {
    fn set_behaviour(&self, way: Behaviour) {
        *self.behaviour.lock() = way;
        self.changed.set();
        self.changed.clear();
    }

    async fn answer(&self, request: StorageRequest, payload: Option<IoBuf>) -> Result<StorageReply> {
        let group = request.group.expect("only the group is asked for");
        self.asked.lock().push((request.target, group, request.slot_sequence));
        loop {
            let changed = self.changed.wait();
            match *self.behaviour.lock() {
                Behaviour::Hangs => {}
                Behaviour::Fails(errno) => return Err(Error::new(errno, "the member says no")),
                Behaviour::Answers => break,
            }
            changed.await;
        }
        let map = self.map.load();
        let known = map.group(GROUP).unwrap();
        let since = self.old_version.lock().unwrap_or(known.since);
        let is_read = matches!(request.op, StorageOp::Read { .. });
        let is_right_member = is_read || known.primary() == Some(request.target);
        if group.version != since || !is_right_member {
            return Err(Refusal::GroupVersionMismatch.into());
        }
        payload.unwrap().copy_from(0, &[request.target.0 as u8]);
        Ok(StorageReply::Unit)
    }
}

impl Handler<StorageRequest, StorageReply> for Member {
    fn handle(
        &self,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'_, Result<StorageReply>> {
        Box::pin(self.answer(request, payload))
    }

    fn handle_or_abandon<'a>(
        &'a self,
        given_up: LocalFuture<'a, ()>,
        request: StorageRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Option<Result<StorageReply>>>
    where
        StorageReply: 'a,
    {
        Box::pin(async move {
            match rt::select(self.answer(request, payload), given_up).await {
                rt::Either::First(answer) => Some(answer),
                rt::Either::Second(()) => None,
            }
        })
    }

    fn distance(&self) -> Distance {
        *self.distance.lock()
    }
}

/// Two members, and their client.
struct Pair {
    map: MapHandle,
    members: [Arc<Member>; 2],
    channels: StorageChannels,
}

impl Pair {
    fn new() -> Arc<Pair> {
        let pair = Pair::in_rack(OwnRack::default());
        let mut map = ClusterMap::clone(&pair.map.load());
        map.nodes.clear();
        pair.map.store(Arc::new(map));
        pair
    }

    /// Two members in different racks, and a client in a rack.
    fn in_rack(rack: OwnRack) -> Arc<Pair> {
        let target = |id| types::Target {
            id: TargetId(id),
            node: types::NodeId(id),
            pool: PoolId(1),
            path: String::new(),
            state: TargetState::Online,
            capacity: 0,
            free: 0,
            class: types::CapacityClass::Normal,
            drain: false,
            used: None,
        };
        let node = |id| types::Node {
            id: types::NodeId(id),
            name: format!("n{id}"),
            addresses: Vec::new(),
            roles: Vec::new(),
            state: types::NodeState::Online,
            version: String::new(),
            rack: Some(format!("r{id}")),
        };
        let group = Group {
            id: GROUP,
            pool: PoolId(1),
            scheme: Scheme::Mirror(2),
            members: vec![TargetId(1), TargetId(2)],
            states: Vec::new(),
            since: Epoch(1),
            leaving: None,
            revived: None,
        };
        let map = ClusterMap {
            epoch: Epoch(1),
            nodes: vec![node(1), node(2)],
            targets: vec![target(1), target(2)],
            groups: vec![group],
            ..Default::default()
        };
        let map = MapHandle::new(map);
        let member = |_| {
            Arc::new(Member {
                map: map.clone(),
                old_version: Mutex::new(None),
                behaviour: Mutex::new(Behaviour::Answers),
                asked: Mutex::default(),
                changed: Event::new(),
                distance: Mutex::new(Distance::Remote),
            })
        };
        let members = [1, 2].map(member);
        let ways = members.iter().zip([TargetId(1), TargetId(2)]);
        let channels: StorageChannels =
            ways.map(|(member, id)| (id, StorageChannel::in_process(member.clone()))).collect();
        let channels = channels.with_rack(Arc::new(rack));
        Arc::new(Pair { map, members, channels })
    }

    fn change(&self, edit: impl FnOnce(&mut Group)) {
        let mut next = ClusterMap::clone(&self.map.load());
        next.epoch.0 += 1;
        next.groups[0].since = next.epoch;
        edit(&mut next.groups[0]);
        self.map.store(Arc::new(next));
    }

    /// Ejects the first member.
    fn fail_over(&self) {
        self.change(|group| {
            group.members.reverse();
            group.states = vec![MemberState::InSync, MemberState::NeedsResync];
        });
    }

    /// Sends a write; returns the number of the member that answered, which it leaves in the
    /// buffer.
    async fn write(&self) -> Result<u8> {
        let buf = IoBuf::alloc(1);
        let op = StorageOp::Write { offset: 0, path: wire::DataPath::Cached, durable: false };
        let request = StorageRequest {
            slot_sequence: Some(SlotSequence { slot: 3, sequence: 4 }),
            ..StorageRequest::new(SessionId(9), TargetId(0), ChunkFileId(5), op)
        };
        let to = GroupDestination { map: &self.map, group: GROUP, time_out: TEST_TIME_OUT };
        self.channels.call_group(to, request, Some(buf.clone())).await.map(|_| buf.as_slice()[0])
    }

    /// Sends a read; returns the number of the member that answered.
    async fn read(&self, ino: u64, offset: u64) -> Result<u8> {
        let buf = IoBuf::alloc(1);
        let op = StorageOp::Read { offset, path: wire::DataPath::Cached };
        let request = StorageRequest::new(SessionId(9), TargetId(0), ChunkFileId(ino), op);
        let to = GroupDestination { map: &self.map, group: GROUP, time_out: TEST_TIME_OUT };
        self.channels.call_group(to, request, Some(buf.clone())).await.map(|_| buf.as_slice()[0])
    }

    /// Starts a read; the returned cell receives the number of the member that answered.
    fn begin_to_read(self: &Arc<Pair>, ino: u64, offset: u64) -> Rc<Cell<Option<Result<u8, Errno>>>> {
        let (pair, found) = (self.clone(), Rc::new(Cell::new(None)));
        let result = found.clone();
        rt::spawn(async move {
            let answer = pair.read(ino, offset).await;
            result.set(Some(answer.map_err(|error| error.errno)));
        });
        found
    }

    /// Number of requests to each member.
    fn counts(&self) -> [usize; 2] {
        [0, 1].map(|member| std::mem::take(&mut *self.members[member].asked.lock()).len())
    }

    /// Group versions of a member's requests; the sequence number must be the same each time.
    fn asked(&self, member: usize) -> Vec<u64> {
        let asked = std::mem::take(&mut *self.members[member - 1].asked.lock());
        let since = |(target, group, number): (TargetId, GroupContext, Option<SlotSequence>)| {
            assert_eq!(
                (target, group.group, group.role),
                (TargetId(member as u32), GROUP, GroupRole::Primary)
            );
            assert_eq!(number, Some(SlotSequence { slot: 3, sequence: 4 }));
            group.version.0
        };
        asked.into_iter().map(since).collect()
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Arc<Pair>) -> F + 'static) {
    run_with(Pair::new(), test);
}

fn run_with<F: Future<Output = ()> + 'static>(pair: Arc<Pair>, test: impl FnOnce(Arc<Pair>) -> F + 'static) {
    Machine::new(1).run(async move { test(pair).await }).unwrap();
}

/// Executes an action after a delay.
fn later(ms: u64, pair: &Arc<Pair>, what: impl FnOnce(&Pair) + 'static) {
    let pair = pair.clone();
    rt::spawn(async move {
        rt::sleep(Duration::from_millis(ms)).await;
        what(&pair);
    });
}

#[test]
fn requests_carry_the_known_group_version() {
    run(async |pair| {
        assert_eq!(pair.write().await, Ok(1));
        assert_eq!((pair.asked(1), pair.asked(2)), (vec![1], vec![]));
        pair.fail_over();
        assert_eq!(pair.write().await, Ok(2));
        assert_eq!((pair.asked(1), pair.asked(2)), (vec![], vec![2]));
    });
}

#[test]
fn a_refused_request_waits_for_another_map() {
    run(async |pair| {
        // The member already has a map that its clients get later.
        *pair.members[0].old_version.lock() = Some(Epoch(2));
        later(700, &pair, |pair| pair.fail_over());
        assert_eq!(pair.write().await, Ok(2));
        assert!(pair.asked(1).len() < 20, "it is not asked without rest");
        assert_eq!(pair.asked(2), [2]);
    });
}

#[test]
fn a_primary_with_an_old_map_is_asked_again() {
    run(async |pair| {
        pair.change(|_| {});
        *pair.members[0].old_version.lock() = Some(Epoch(1));
        later(700, &pair, |pair| *pair.members[0].old_version.lock() = None);
        assert_eq!(pair.write().await, Ok(1));
        let asked = pair.asked(1);
        assert!(asked.len() > 1 && asked.iter().all(|since| *since == 2), "{asked:?}");
    });
}

#[test]
fn a_hanging_primary_is_abandoned_when_there_is_another() {
    run(async |pair| {
        pair.members[0].set_behaviour(Behaviour::Hangs);
        later(1500, &pair, |pair| pair.fail_over());
        let began_ns = rt::monotonic_ns();
        assert_eq!(pair.write().await, Ok(2));
        assert!(rt::monotonic_ns() - began_ns < 2_000_000_000, "by simulated time");
        assert_eq!((pair.asked(1), pair.asked(2)), (vec![1], vec![2]));
    });
}

#[test]
fn an_unreplaced_primary_is_waited_for() {
    run(async |pair| {
        pair.members[0].set_behaviour(Behaviour::Hangs);
        // The member ejects the other one, which takes a while.
        later(500, &pair, |pair| {
            pair.change(|group| group.states = vec![MemberState::InSync, MemberState::NeedsResync])
        });
        later(900, &pair, |pair| {
            *pair.members[0].old_version.lock() = Some(Epoch(1));
            pair.members[0].set_behaviour(Behaviour::Answers);
        });
        assert_eq!(pair.write().await, Ok(1));
        assert_eq!(pair.asked(1), [1], "it isn't asked a second time beside the first");
    });
}

#[test]
fn an_error_of_a_replaced_primary_is_ignored() {
    for errno in [Errno::ETIMEDOUT, Errno::EIO, Errno::ENXIO, Errno::EHOSTDOWN] {
        run(async move |pair| {
            pair.members[0].set_behaviour(Behaviour::Hangs);
            later(300, &pair, move |pair| {
                pair.fail_over();
                pair.members[0].set_behaviour(Behaviour::Fails(errno));
            });
            assert_eq!(pair.write().await, Ok(2), "{errno:?}");
        });
    }
    // Errors that concern the request rather than the member are returned.
    for errno in [Errno::ENOSPC, Errno::ESTALE, Errno::Refusal(Refusal::RevokedLeaseEpoch)] {
        run(async move |pair| {
            pair.members[0].set_behaviour(Behaviour::Fails(errno));
            assert_eq!(pair.write().await.unwrap_err().errno, errno);
            assert_eq!(pair.asked(1).len(), 1);
        });
    }
}

#[test]
fn without_a_primary_the_error_names_the_missing_members() {
    run(async |pair| {
        pair.change(|group| group.states = vec![MemberState::NeedsRebuild, MemberState::NeedsResync]);
        let began_ns = rt::monotonic_ns();
        let error = pair.write().await.unwrap_err();
        assert!(rt::monotonic_ns() - began_ns >= TEST_TIME_OUT.as_nanos() as u64);
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        for part in ["group 7", "mirror:2", "target 1 is bad and online", "target 2 is needs-resync"] {
            assert!(error.message.contains(part), "{error}");
        }
        assert!(error.hint.contains("weft group show 7"), "{error}");
        assert_eq!((pair.asked(1), pair.asked(2)), (vec![], vec![]));
        // A member that is in sync again is asked at once.
        later(3000, &pair, |pair| {
            pair.change(|group| group.states = vec![MemberState::NeedsRebuild, MemberState::InSync])
        });
        assert_eq!(pair.write().await, Ok(2));
    });
}

#[test]
fn a_primary_that_never_answers_ends_the_wait() {
    run(async |pair| {
        pair.members[0].set_behaviour(Behaviour::Hangs);
        let error = pair.write().await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        assert!(error.message.contains("target 1 is good"), "{error}");
        pair.asked(1);
        pair.members[0].set_behaviour(Behaviour::Fails(Errno::ETIMEDOUT));
        let error = pair.write().await.unwrap_err();
        assert!(error.message.contains("the member says no") && error.message.contains("group 7"), "{error}");
        // A group that always refuses.
        pair.members[0].set_behaviour(Behaviour::Fails(Errno::Refusal(Refusal::GroupVersionMismatch)));
        assert_eq!(pair.write().await.unwrap_err().errno, Errno::ETIMEDOUT);
    });
}

#[test]
fn a_removed_group_is_reported() {
    run(async |pair| {
        let mut next = ClusterMap::clone(&pair.map.load());
        next.groups.clear();
        pair.map.store(Arc::new(next));
        assert_eq!(pair.write().await.unwrap_err().errno, Errno::EIO);
    });
}

#[test]
fn a_large_file_is_read_from_all_members_and_a_region_from_one() {
    run(async |pair| {
        let mut by_region = Vec::new();
        for region in 0..8 {
            let answered = pair.read(5, region * READ_REGION_BYTES).await.unwrap();
            for part in 1..4 {
                let offset = region * READ_REGION_BYTES + part * (READ_REGION_BYTES / 4);
                assert_eq!(pair.read(5, offset).await, Ok(answered), "its cache has this region");
            }
            by_region.push(answered);
        }
        assert!(
            by_region == [1, 2, 1, 2, 1, 2, 1, 2] || by_region == [2, 1, 2, 1, 2, 1, 2, 1],
            "{by_region:?}"
        );
        assert_eq!(pair.counts(), [16, 16]);
    });
}

#[test]
fn the_nearest_member_is_read_from() {
    run(async |pair| {
        for distance in [Distance::SameNetwork, Distance::SameHost, Distance::InProcess] {
            *pair.members[1].distance.lock() = distance;
            for region in 0..4 {
                assert_eq!(pair.read(5, region * READ_REGION_BYTES).await, Ok(2), "{distance:?}");
            }
            *pair.members[0].distance.lock() = distance;
            let answered = [pair.read(5, 0).await.unwrap(), pair.read(5, READ_REGION_BYTES).await.unwrap()];
            assert!(answered == [1, 2] || answered == [2, 1], "equally near: {answered:?}");
        }
        // A member that isn't in sync isn't asked, near or not.
        pair.change(|group| group.states = vec![MemberState::InSync, MemberState::Resyncing]);
        *pair.members[0].distance.lock() = Distance::Remote;
        pair.counts();
        assert_eq!((pair.read(5, 0).await, pair.counts()), (Ok(1), [1, 0]));
    });
}

#[test]
fn a_member_in_the_same_rack_is_preferred_for_reads() {
    let configured = || OwnRack::new(Some("r2".into()), Box::new(|_| false));
    let found = || OwnRack::new(None, Box::new(|node| node.name == "n2"));
    for rack in [configured, found] {
        run_with(Pair::in_rack(rack()), async |pair| {
            for distance in [Distance::Remote, Distance::SameNetwork] {
                *pair.members[0].distance.lock() = distance;
                for region in 0..4 {
                    assert_eq!(pair.read(5, region * READ_REGION_BYTES).await, Ok(2), "{distance:?}");
                }
            }
            // A member on the client's machine is nearer still.
            *pair.members[0].distance.lock() = Distance::SameHost;
            assert_eq!(pair.read(5, 0).await, Ok(1));
            *pair.members[0].distance.lock() = Distance::Remote;
            // Members that are not in sync, or down, aren't asked.
            pair.change(|group| group.states = vec![MemberState::InSync, MemberState::Resyncing]);
            assert_eq!(pair.read(5, 0).await, Ok(1));
            pair.change(|group| group.states = Vec::new());
            pair.members[1].set_behaviour(Behaviour::Fails(Errno::EHOSTDOWN));
            assert_eq!(pair.read(5, 0).await, Ok(1));
        });
    }
}

#[test]
fn a_rack_is_looked_up_again_when_nodes_move() {
    run_with(Pair::in_rack(OwnRack::new(None, Box::new(|node| node.name == "n2"))), async |pair| {
        assert_eq!(pair.read(5, 0).await, Ok(2));
        let mut next = ClusterMap::clone(&pair.map.load());
        next.epoch.0 += 1;
        next.nodes[1].rack = Some("r1".into());
        pair.map.store(Arc::new(next));
        // Both are in the rack now.
        let answered = [pair.read(5, 0).await.unwrap(), pair.read(5, READ_REGION_BYTES).await.unwrap()];
        assert!(answered == [1, 2] || answered == [2, 1], "{answered:?}");
    });
}

#[test]
fn reads_spill_over_from_a_busy_rack() {
    run_with(Pair::in_rack(OwnRack::new(Some("r2".into()), Box::new(|_| false))), async |pair| {
        let count = 2 * MAX_LOAD_IMBALANCE_BETWEEN_RACKS as u64;
        pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Hangs));
        let reads: Vec<_> = (0..count).map(|n| pair.begin_to_read(5, n * READ_REGION_BYTES)).collect();
        rt::sleep(HEDGE_DELAY / 2).await;
        let counts = pair.counts();
        pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Answers));
        rt::sleep(HEDGE_DELAY / 4).await;
        assert!(reads.iter().all(|read| matches!(read.take(), Some(Ok(_)))));
        // The client's rack has as many more as its lead allows.
        let lead = counts[1] - counts[0];
        assert!(
            lead as u32 > MAX_LOAD_IMBALANCE && lead as u32 <= MAX_LOAD_IMBALANCE_BETWEEN_RACKS + 1,
            "{counts:?}"
        );
        assert!(counts[0] > 0, "{counts:?}");
    });
}

#[test]
fn a_busy_member_is_passed_over() {
    run(async |pair| {
        // By region, all of these belong to one member.
        let regions = (0..20).map(|n| 2 * n * READ_REGION_BYTES);
        pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Hangs));
        let reads: Vec<_> = regions.map(|offset| pair.begin_to_read(5, offset)).collect();
        rt::sleep(HEDGE_DELAY / 2).await;
        let mut counts = pair.counts();
        pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Answers));
        rt::sleep(HEDGE_DELAY / 4).await;
        assert!(reads.iter().all(|read| matches!(read.take(), Some(Ok(_)))));
        counts.sort_unstable();
        assert!(counts[0] + counts[1] == 20 && counts[0] >= 7, "{counts:?}");
    });
}

#[test]
fn a_member_that_cannot_answer_redirects_readers_at_once() {
    for errno in [
        Errno::Refusal(Refusal::RedirectToPrimary),
        Errno::Refusal(Refusal::GroupVersionMismatch),
        Errno::EIO,
        Errno::ETIMEDOUT,
        Errno::EHOSTDOWN,
    ] {
        for (failing, other) in [(0, 2), (1, 1)] {
            run(async move |pair| {
                pair.members[failing].set_behaviour(Behaviour::Fails(errno));
                let began_ns = rt::monotonic_ns();
                for region in 0..4 {
                    assert_eq!(pair.read(5, region * READ_REGION_BYTES).await, Ok(other), "{errno:?}");
                }
                assert!(rt::monotonic_ns() - began_ns < HEDGE_DELAY.as_nanos() as u64, "by simulated time");
            });
        }
    }
    // Errors that concern the request are returned unchanged.
    for errno in [Errno::ESTALE, Errno::Refusal(Refusal::RevokedLeaseEpoch), Errno::EACCES] {
        run(async move |pair| {
            pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Fails(errno)));
            assert_eq!(pair.read(5, 0).await.unwrap_err().errno, errno);
            let counts = pair.counts();
            assert_eq!(counts[0] + counts[1], 1);
        });
    }
}

#[test]
fn a_silent_member_delays_only_the_first_read() {
    run(async |pair| {
        let region = |n| n * READ_REGION_BYTES;
        pair.members[0].set_behaviour(Behaviour::Hangs);
        for (round, before) in [(0, HEDGE_DELAY), (1, Duration::ZERO)] {
            let began_ns = rt::monotonic_ns();
            assert_eq!((pair.read(5, region(0)).await, pair.read(5, region(1)).await), (Ok(2), Ok(2)));
            let took = Duration::from_nanos(rt::monotonic_ns() - began_ns);
            assert!(took >= before && took < before + HEDGE_DELAY / 2, "round {round}: {took:?}");
        }
        // The member may be back by then.
        rt::sleep(UNRESPONSIVE_MEMORY).await;
        pair.members[0].set_behaviour(Behaviour::Answers);
        let answered = [pair.read(5, region(0)).await.unwrap(), pair.read(5, region(1)).await.unwrap()];
        assert!(answered == [1, 2] || answered == [2, 1], "{answered:?}");
    });
}

/// One member is gone for good and isn't ejected, since nothing is written; the other one is only
/// slow.
#[test]
fn a_slow_member_answers_instead_of_a_silent_one() {
    run(async |pair| {
        pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Hangs));
        let reads = [pair.begin_to_read(5, 0), pair.begin_to_read(5, READ_REGION_BYTES)];
        rt::sleep(4 * HEDGE_DELAY).await;
        pair.members[0].set_behaviour(Behaviour::Answers);
        rt::sleep(HEDGE_DELAY / 10).await;
        assert_eq!(reads.map(|read| read.take()), [Some(Ok(1)), Some(Ok(1))]);
    });
}

#[test]
fn reads_wait_for_another_version_when_no_member_can_answer() {
    run(async |pair| {
        pair.members[0].set_behaviour(Behaviour::Hangs);
        pair.members[1].set_behaviour(Behaviour::Fails(Errno::Refusal(Refusal::RedirectToPrimary)));
        let reads = [pair.begin_to_read(5, 0), pair.begin_to_read(5, READ_REGION_BYTES)];
        rt::sleep(5 * HEDGE_DELAY).await;
        assert!(reads.iter().all(|read| read.get().is_none()));
        pair.fail_over();
        pair.members[1].set_behaviour(Behaviour::Answers);
        rt::sleep(HEDGE_DELAY / 2).await;
        assert_eq!(reads.map(|read| read.take()), [Some(Ok(2)), Some(Ok(2))]);
    });
}

/// As by a primary while a member that may know more doesn't answer, until management knows that
/// the member is gone.
#[test]
fn a_primary_that_cannot_answer_yet_is_asked_again_despite_a_silent_member() {
    run(async |pair| {
        pair.members[0].set_behaviour(Behaviour::Fails(Errno::Refusal(Refusal::GroupVersionMismatch)));
        pair.members[1].set_behaviour(Behaviour::Hangs);
        let reads = [pair.begin_to_read(5, 0), pair.begin_to_read(5, READ_REGION_BYTES)];
        rt::sleep(4 * HEDGE_DELAY).await;
        assert!(reads.iter().all(|read| read.get().is_none()));
        pair.members[0].set_behaviour(Behaviour::Answers);
        rt::sleep(HEDGE_DELAY).await;
        assert_eq!(reads.map(|read| read.take()), [Some(Ok(1)), Some(Ok(1))]);
    });
}

#[test]
fn reads_without_an_answer_time_out() {
    run(async |pair| {
        pair.members.iter().for_each(|member| member.set_behaviour(Behaviour::Hangs));
        let began_ns = rt::monotonic_ns();
        let error = pair.read(5, 0).await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        let took = Duration::from_nanos(rt::monotonic_ns() - began_ns);
        assert!(took >= TEST_TIME_OUT && took < TEST_TIME_OUT + 3 * HEDGE_DELAY, "{took:?}");
    });
}

#[test]
fn services_read_from_the_primary() {
    run(async |pair| {
        *pair.members[1].distance.lock() = Distance::InProcess;
        let op = StorageOp::Read { offset: 0, path: wire::DataPath::Cached };
        let request = StorageRequest::new(SessionId(0), TargetId(0), ChunkFileId(5), op);
        let to = GroupDestination { map: &pair.map, group: GROUP, time_out: TEST_TIME_OUT };
        let answer = pair.channels.call_group(to, request, Some(IoBuf::alloc(1))).await;
        assert_eq!((answer, pair.counts()), (Ok(StorageReply::Unit), [1, 0]));
    });
}
