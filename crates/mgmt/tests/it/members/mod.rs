//! Changes of members of mirrored groups: real requests of nodes in simulated time.

mod drains;
mod power;
mod reachability;
mod recover;
mod removals;
mod renewals;
mod revoked;

use crate::support::{Cluster, open};
use identity::{Identity, Member as Proved};
use mgmt::limits::{HEARTBEAT_INTERVAL, SERVING_LEASE};
use net::{Caller, Channel, Handler, Proof};
use rt::sim::World;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use types::{
    Epoch, Errno, Group, GroupId, MemberState, NodeId, Result, ResyncSettings, Scheme, StripePattern,
    TargetId,
};
use wire::mgmt::*;
use wire::{MgmtReply, MgmtRequest};

use MemberState::{InSync, NeedsRebuild, NeedsResync, Rebuilding, Resyncing};

const TWO: Scheme = Scheme::Mirror(2);

/// A process of a storage node, with one target.
struct Process {
    node: NodeId,
    instance: u64,
    target: TargetId,
    /// It can send and receive.
    connected: Cell<bool>,
    alive: Cell<bool>,
    /// Epoch of its map.
    epoch: Cell<Epoch>,
    /// It ignores newer maps.
    ignores_maps: Cell<bool>,
    /// Its replicas count as in sync, but may lack what a crash has lost.
    lost_unsynced_data: Cell<bool>,
    /// The directory at the target's path isn't its disk.
    is_diskless: Cell<bool>,
    answered_ns: Cell<u64>,
}

struct Site {
    cluster: RefCell<Cluster>,
    next_instance: Cell<u64>,
}

impl Site {
    /// The present cluster; cheap to copy.
    fn cluster(&self) -> Cluster {
        self.cluster.borrow().clone()
    }

    /// Makes nodes with a target each, in groups of this scheme.
    async fn new(nodes: u16, scheme: Scheme) -> (Rc<Site>, Vec<Rc<Process>>) {
        let site = Rc::new(Site { cluster: RefCell::new(Cluster::new().await), next_instance: Cell::new(1) });
        let mut processes = Vec::new();
        for number in 0..nodes {
            let node = site.cluster().join(&format!("n{number}"), 7501 + number).await;
            let port = 7499 + node.0 as u16;
            let register = site.cluster.borrow().registration(node, 1000, port, &[]);
            site.ask(MgmtRequest::Register(register)).await.unwrap();
            let target = site.cluster().add(node, &format!("/t{number}")).await;
            processes.push(site.start(node, target).await);
        }
        site.ask(MgmtRequest::MakeGroups { pool: "default".into(), scheme }).await.unwrap();
        rt::sleep(2 * HEARTBEAT_INTERVAL).await;
        (site, processes)
    }

    async fn ask(&self, request: MgmtRequest) -> Result<MgmtReply> {
        let management = self.cluster.borrow().management.clone();
        Channel::in_process(management).call(request, None).await
    }

    /// Starts another process of a node.
    async fn start(self: &Rc<Self>, node: NodeId, target: TargetId) -> Rc<Process> {
        let instance = self.next_instance.replace(self.next_instance.get() + 1);
        let process = Rc::new(Process {
            node,
            instance,
            target,
            connected: Cell::new(true),
            alive: Cell::new(true),
            epoch: Cell::new(Epoch(0)),
            ignores_maps: Cell::new(false),
            lost_unsynced_data: Cell::new(false),
            is_diskless: Cell::new(false),
            answered_ns: Cell::new(0),
        });
        self.register(&process).await;
        rt::spawn(self.clone().send_heartbeats(process.clone()));
        process
    }

    async fn register(&self, process: &Process) {
        let port = 7499 + process.node.0 as u16;
        let again = process.epoch.get() > Epoch(0) && !process.lost_unsynced_data.get();
        let register = Register {
            again,
            ..self.cluster.borrow().registration(process.node, process.instance, port, &[process.target])
        };
        match self.ask(MgmtRequest::Register(register)).await {
            Ok(MgmtReply::Registered(registered)) => process.apply_epoch(registered.map.epoch),
            other => panic!("{other:?}"),
        }
    }

    /// Sends the heartbeats of a storage node.
    async fn send_heartbeats(self: Rc<Self>, process: Rc<Process>) {
        loop {
            rt::sleep(HEARTBEAT_INTERVAL).await;
            if !process.alive.get() {
                return;
            }
            if !process.connected.get() {
                continue;
            }
            let MgmtRequest::Heartbeat(beat) =
                self.cluster.borrow().heartbeat(process.node, process.instance, &[process.target])
            else {
                panic!("a heartbeat")
            };
            let mut beat = Heartbeat { epoch: process.epoch.get(), ..beat };
            if process.is_diskless.get() {
                beat.targets.iter_mut().for_each(|report| report.space = None);
            }
            match self.ask(MgmtRequest::Heartbeat(beat)).await {
                Ok(MgmtReply::Alive(alive)) => {
                    alive.map.iter().for_each(|map| process.apply_epoch(map.epoch))
                }
                Err(error) if error.errno == Errno::ENOTCONN => self.register(&process).await,
                Err(error) if error.errno == Errno::ESTALE => return,
                other => panic!("{other:?}"),
            }
            process.answered_ns.set(rt::monotonic_ns());
        }
    }

    fn group(&self, id: GroupId) -> Group {
        self.cluster.borrow().map().group(id).unwrap().clone()
    }

    /// A mirrored group with this process as primary.
    fn group_of(&self, process: &Process) -> Group {
        let map = self.cluster.borrow().map();
        let is_it = |g: &&Group| g.scheme.has_primary() && g.primary() == Some(process.target);
        map.groups.iter().find(is_it).unwrap().clone()
    }

    fn members(&self, id: GroupId) -> Vec<(TargetId, MemberState)> {
        self.group(id).members_with_states().collect()
    }

    async fn report(&self, group: &Group, target: TargetId, state: MemberState) -> Result<Group> {
        let ask = MgmtRequest::SetMember {
            group: group.id,
            since: group.since,
            target,
            state,
            reason: "a test says so".into(),
            orderly: false,
        };
        match self.ask(ask).await? {
            MgmtReply::Map { map } => Ok(map.group(group.id).unwrap().clone()),
            other => panic!("{other:?}"),
        }
    }

    /// The primary steps down, without unfinished changes.
    async fn resign(&self, group: &Group) {
        let target = group.primary().unwrap();
        let reason = "a test says so".into();
        let (group, since, state) = (group.id, group.since, NeedsRebuild);
        self.ask(MgmtRequest::SetMember { group, since, target, state, reason, orderly: true })
            .await
            .unwrap();
    }

    /// Groups of a target in the map.
    fn groups_with(&self, target: TargetId) -> Vec<Group> {
        let map = self.cluster.borrow().map();
        let has_it = |g: &&Group| g.scheme.has_primary() && g.members.contains(&target);
        map.groups.iter().filter(has_it).cloned().collect()
    }

    async fn set_resync(&self, change: impl FnOnce(&mut ResyncSettings)) {
        let mut settings = ResyncSettings::default();
        change(&mut settings);
        self.ask(MgmtRequest::SetResync { settings }).await.unwrap();
    }

    /// Acts for the primaries once: resyncs members, and releases replaced ones.
    async fn serve(&self) {
        self.serve_except(TargetId(0)).await;
    }

    /// The same with one unreachable target.
    async fn serve_except(&self, absent: TargetId) {
        let groups: Vec<Group> = self.cluster.borrow().map().groups.to_vec();
        for group in groups.iter().filter(|group| group.scheme.has_primary()) {
            match group.removable_member().filter(|id| group.state_of(*id) == Some(InSync)) {
                Some(leaving) if group.primary() == Some(leaving) => self.resign(group).await,
                Some(leaving) => drop(self.report_until_applied(group, leaving, NeedsRebuild).await),
                None => {}
            }
            for (member, state) in
                group.members_with_states().filter(|(id, _)| group.leaving != Some(*id) && *id != absent)
            {
                let group = self.group(group.id);
                match state {
                    NeedsRebuild => drop(self.report_until_applied(&group, member, Rebuilding).await),
                    NeedsResync => drop(self.report_until_applied(&group, member, Resyncing).await),
                    Rebuilding | Resyncing => drop(self.report_until_applied(&group, member, InSync).await),
                    _ => {}
                }
            }
        }
    }

    async fn report_until_applied(&self, group: &Group, target: TargetId, state: MemberState) -> Group {
        loop {
            match self.report(group, target, state).await {
                Ok(group) => return group,
                Err(error) => assert_eq!(error.errno, Errno::EAGAIN, "{error}"),
            }
        }
    }

    /// Restarts management with its store.
    async fn restart_management(&self) {
        let management = {
            let cluster = self.cluster.borrow();
            (cluster.writer.clone(), cluster.superblock.clone(), cluster.authority.clone())
        };
        let management = open(&management.0, &management.1, &management.2).await;
        self.cluster.borrow_mut().management = management.clone();
        rt::spawn(management.background());
    }
}

impl Process {
    fn apply_epoch(&self, epoch: Epoch) {
        if !self.ignores_maps.get() {
            self.epoch.set(self.epoch.get().max(epoch));
        }
    }

    fn kill(&self) {
        self.alive.set(false);
    }

    fn time_since_answer(&self) -> Duration {
        Duration::from_nanos(rt::monotonic_ns() - self.answered_ns.get())
    }
}

fn simulated<F: Future<Output = ()> + 'static>(
    nodes: u16,
    scheme: Scheme,
    test: impl FnOnce(Rc<Site>, Vec<Rc<Process>>) -> F + 'static,
) {
    let mut world = World::new(7);
    let host = world.add_host("management");
    let run = async move {
        let (site, processes) = Site::new(nodes, scheme).await;
        let management = site.cluster.borrow().management.clone();
        rt::spawn(management.background());
        test(site, processes).await;
    };
    world.run(host, run).unwrap();
}

/// Checks that all groups get in sync, with the full number of members.
fn require_whole(site: &Site) {
    let map = site.cluster.borrow().map();
    for group in map.groups.iter().filter(|group| group.scheme.has_primary()) {
        assert!(!group.is_degraded() && group.leaving.is_none(), "{group:?}");
        assert_eq!(group.members.len(), group.scheme.members(), "{group:?}");
        assert!(layout::has_distinct_nodes(&map, group), "{group:?}");
    }
}

#[test]
fn a_member_that_is_gone_for_long_is_replaced_by_others() {
    simulated(4, TWO, async |site, nodes| {
        site.set_resync(|settings| settings.replace_after_s = Some(60)).await;
        let (lost, before) = (nodes[0].target, site.groups_with(nodes[0].target));
        nodes[0].kill();
        while nodes[0].time_since_answer() < seconds(70) {
            assert_eq!(site.groups_with(lost).len(), before.len(), "it may come back");
            rt::sleep(seconds(1)).await;
        }
        while !site.groups_with(lost).is_empty() {
            assert!(
                nodes[0].time_since_answer() < seconds(200),
                "it isn't replaced: {:?}",
                site.groups_with(lost)
            );
            rt::sleep(seconds(1)).await;
        }
        let mut holders = std::collections::BTreeSet::new();
        for old in &before {
            let now = site.members(old.id);
            let stays = *old.members.iter().find(|id| **id != lost).unwrap();
            assert!(now.contains(&(stays, InSync)) && now.len() == 2, "{now:?}");
            holders.extend(now.into_iter().filter(|(_, state)| *state == NeedsRebuild).map(|(id, _)| id));
        }
        assert_eq!(holders.len(), 3, "all others have a part in it");
        site.serve().await;
        site.serve().await;
        require_whole(&site);
        // If it returns then, it is a member of no group, and remains so.
        site.start(nodes[0].node, lost).await;
        rt::sleep(seconds(30)).await;
        assert!(site.groups_with(lost).is_empty());
        require_whole(&site);
    });
}

#[test]
fn lost_members_stay_without_a_possible_replacement() {
    simulated(4, TWO, async |site, nodes| {
        site.set_resync(|settings| settings.replace_after_s = Some(0)).await;
        let count = site.groups_with(nodes[0].target).len();
        nodes[0].kill();
        rt::sleep(seconds(3 * 3600)).await;
        assert_eq!(site.groups_with(nodes[0].target).len(), count);
        // A day is too short if two are gone and one of them alone has everything.
        let group = site.group_of(&nodes[1]);
        site.set_resync(|_| ()).await;
        while !site.groups_with(nodes[0].target).is_empty() {
            rt::sleep(seconds(10)).await;
        }
        site.serve().await;
        site.serve().await;
        let group = site.group(group.id);
        assert!(!group.is_degraded());
        for node in &nodes {
            node.kill();
        }
        rt::sleep(seconds(24 * 3600)).await;
        assert_eq!(site.group(group.id), group, "nobody is there to copy from");
    });
}

#[test]
fn resyncs_show_what_they_wait_for() {
    simulated(2, TWO, async |site, nodes| {
        let resyncs = async || match site.ask(MgmtRequest::ListResyncs).await {
            Ok(MgmtReply::Resyncs { members, .. }) => members,
            other => panic!("{other:?}"),
        };
        assert_eq!(resyncs().await, []);
        let group = site.group_of(&nodes[0]);
        nodes[1].kill();
        site.report_until_applied(&group, nodes[1].target, NeedsResync).await;
        let members = resyncs().await;
        let waiting = members.iter().find(|info| info.group == group.id).unwrap();
        assert_eq!((waiting.target, waiting.state), (nodes[1].target, NeedsResync));
        assert_eq!(waiting.waits_for.as_deref(), Some("its target is unreachable"));
    });
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_dead_secondary_is_ejected_before_the_answer() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let other = nodes[1].target;
        nodes[1].kill();
        let now = site.report_until_applied(&group, other, NeedsResync).await;
        assert!(
            nodes[1].time_since_answer() >= SERVING_LEASE,
            "it may have served yet: {:?}",
            nodes[1].time_since_answer()
        );
        assert_eq!(
            now.members_with_states().collect::<Vec<_>>(),
            [(group.members[0], InSync), (other, NeedsResync)]
        );
        assert!(now.since > group.since);

        let back = site.start(nodes[1].node, other).await;
        assert_eq!(site.members(group.id)[1], (other, NeedsResync));
        let now = site.report(&now, other, Resyncing).await.unwrap();
        let now = site.report(&now, other, InSync).await.unwrap();
        assert!(!now.is_degraded() && back.epoch.get() > Epoch(0));
    });
}

#[test]
fn a_live_secondary_is_ejected_when_it_confirms() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let now = site.report(&group, nodes[1].target, NeedsResync).await.unwrap();
        assert!(nodes[1].epoch.get() >= now.since);
        // The answer may have been lost: a repeated request isn't answered sooner.
        let group = site.group_of(&nodes[1]);
        nodes[0].ignores_maps.set(true);
        let first = rt::timeout(seconds(1), site.report(&group, nodes[0].target, NeedsResync)).await;
        assert!(first.is_none(), "it can't know yet");
        let again = rt::timeout(seconds(5), site.report(&group, nodes[0].target, NeedsResync)).await;
        assert!(again.is_none(), "it takes no notice");
        nodes[0].ignores_maps.set(false);
        let now = site.report(&group, nodes[0].target, NeedsResync).await.unwrap();
        assert!(nodes[0].epoch.get() >= now.since);
    });
}

#[test]
fn an_ejection_waits_for_a_live_unconfirming_member() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[1].ignores_maps.set(true);
        let error = site.report(&group, nodes[1].target, NeedsResync).await.unwrap_err();
        assert_eq!(error.errno, Errno::EAGAIN);
        // Its successor process begins with the current map.
        nodes[1].kill();
        site.start(nodes[1].node, nodes[1].target).await;
        let since = site.group(group.id).since;
        assert_eq!(site.report(&group, nodes[1].target, NeedsResync).await.unwrap().since, since);
    });
}

#[test]
fn a_primary_that_dies_is_replaced_when_its_lease_is_over() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[0].kill();
        while site.group(group.id) == group {
            assert!(nodes[0].time_since_answer() < seconds(60), "nobody takes over");
            rt::sleep(Duration::from_millis(100)).await;
        }
        assert!(nodes[0].time_since_answer() >= SERVING_LEASE);
        let both = [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)];
        assert_eq!(site.members(group.id), both);
        site.start(nodes[0].node, nodes[0].target).await;
        rt::sleep(seconds(60)).await;
        assert_eq!(site.members(group.id), both, "it isn't primary again, and it has not been resynced");
    });
}

#[test]
fn a_primary_that_is_cut_off_for_less_than_its_lease_stays() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[0].connected.set(false);
        rt::sleep(seconds(8)).await;
        nodes[0].connected.set(true);
        rt::sleep(seconds(30)).await;
        assert_eq!(site.group(group.id), group);
        // A process that hangs for longer returns as a member that missed writes.
        nodes[0].connected.set(false);
        rt::sleep(seconds(20)).await;
        nodes[0].connected.set(true);
        rt::sleep(seconds(5)).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
        assert!(nodes[0].epoch.get() >= site.group(group.id).since);
    });
}

#[test]
fn a_restart_takes_a_member_out_at_once() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[0].kill();
        site.start(nodes[0].node, nodes[0].target).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
        // The other one is the only one left now.
        nodes[1].kill();
        site.start(nodes[1].node, nodes[1].target).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
    });
}

#[test]
fn no_decision_while_all_members_are_unreachable() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes.iter().for_each(|node| node.kill());
        rt::sleep(seconds(120)).await;
        assert_eq!(site.group(group.id), group);
        let second = site.start(nodes[1].node, nodes[1].target).await;
        rt::sleep(seconds(30)).await;
        // It is reachable, and the primary isn't.
        assert_eq!(site.members(group.id), [(second.target, InSync), (nodes[0].target, NeedsResync)]);
    });
}

#[test]
fn a_restarted_primary_steps_down_for_an_uninterrupted_member() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[1].connected.set(false);
        rt::sleep(seconds(9)).await;
        nodes[0].kill();
        site.start(nodes[0].node, nodes[0].target).await;
        assert_eq!(site.members(group.id), [(nodes[0].target, InSync), (nodes[1].target, InSync)]);
        nodes[1].connected.set(true);
        rt::sleep(seconds(5)).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
    });
}

#[test]
fn a_restart_of_management_changes_nothing() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        site.restart_management().await;
        rt::sleep(seconds(60)).await;
        assert_eq!(site.group(group.id), group);
        // Its answers are on disk.
        let now = site.report(&group, nodes[1].target, NeedsRebuild).await.unwrap();
        site.cluster.borrow().memory.crash(0);
        site.restart_management().await;
        assert_eq!(site.group(group.id), now);
        rt::sleep(seconds(60)).await;
        assert_eq!(site.group(group.id), now);
        assert_eq!(nodes[0].epoch.get(), site.cluster.borrow().map().epoch);
    });
}

#[test]
fn an_orderly_shutdown_hands_over_at_once() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[0].kill();
        let goodbye = MgmtRequest::Goodbye { node: nodes[0].node, instance: nodes[0].instance };
        site.ask(goodbye).await.unwrap();
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
    });
}

#[test]
fn a_new_primary_resyncs_both_other_members() {
    simulated(3, Scheme::Mirror(3), async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[0].kill();
        rt::sleep(seconds(20)).await;
        let states: Vec<MemberState> = site.members(group.id).into_iter().map(|(_, state)| state).collect();
        assert_eq!(states, [InSync, NeedsResync, NeedsResync]);
        assert_eq!(site.members(group.id)[2].0, nodes[0].target);
    });
}

#[test]
fn only_reports_of_the_primarys_node_are_applied() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let caller = |proof: Proof| Caller {
            name: "somebody".into(),
            host: String::new(),
            proof,
            holder: 0,
            address: rt::net::Address::Abstract("test".into()),
            transport: net::Transport::Tcp,
            client: 1,
            core: 0,
            cluster: String::new(),
        };
        let member =
            |role| Proof::Member(Identity { cluster: "c".into(), role, expires: 0, serial: String::new() });
        let word = |since: Epoch| MgmtRequest::SetMember {
            group: group.id,
            since,
            target: nodes[1].target,
            state: NeedsResync,
            reason: String::new(),
            orderly: false,
        };
        let management = site.cluster.borrow().management.clone();
        for proof in [
            Proof::Unauthenticated,
            member(Proved::Client("login1".into())),
            member(Proved::Node(nodes[1].node)),
            member(Proved::Node(NodeId(1))),
        ] {
            let caller = caller(proof);
            let error = management.handle_from(&caller, word(group.since), None).await.unwrap_err();
            assert!(error.errno == Errno::EACCES && !error.hint.is_empty(), "{error}");
        }
        let stale = caller(member(Proved::Node(nodes[1].node)));
        let answer = management.handle_from(&stale, word(Epoch(group.since.0 - 1)), None).await.unwrap();
        assert!(matches!(answer, MgmtReply::Map { map } if map.group(group.id) == Some(&group)));
        assert_eq!(site.group(group.id), group);
        let primary = caller(member(Proved::Node(nodes[0].node)));
        management.handle_from(&primary, word(group.since), None).await.unwrap();
        assert_eq!(site.members(group.id)[1], (nodes[1].target, NeedsResync));
    });
}

#[test]
fn groups_are_made_added_to_and_shown() {
    simulated(3, TWO, async |site, nodes| {
        let groups = async || match site.ask(MgmtRequest::ListGroups).await {
            Ok(MgmtReply::Groups { groups }) => groups,
            other => panic!("{other:?}"),
        };
        let mirrored = |groups: &[GroupInfo]| groups.iter().filter(|g| g.group.scheme == TWO).count();
        let before = groups().await;
        assert_eq!((before.len(), mirrored(&before)), (9, 6));
        assert!(before.iter().all(|g| g.primary.is_some() && g.pool_name == "default"));
        let again = site.ask(MgmtRequest::MakeGroups { pool: "default".into(), scheme: TWO }).await;
        assert!(matches!(again, Ok(MgmtReply::Groups { groups }) if groups.len() == 6));
        let pattern = StripePattern { scheme: TWO, ..StripePattern::default() };
        let map = site.cluster.borrow().map();
        assert!(layout::choose(&map, &pattern, types::InodeId::ROOT, 1).is_ok());

        // Another target gets its share, and existing groups stay.
        let node = site.cluster().join("n9", 7600).await;
        let target = site.cluster().add(node, "/t9").await;
        assert_eq!(
            groups().await.len(),
            before.len() + 1,
            "no group is made on a target that nothing serves"
        );
        let registration = site.cluster().registration(node, 9, 7600, &[target]);
        site.ask(MgmtRequest::Register(registration)).await.unwrap();
        let after = groups().await;
        assert_eq!(mirrored(&after), 12);
        assert!(before.iter().all(|known| after.contains(known)));
        let has_it = |g: &&GroupInfo| g.group.scheme == TWO && g.group.members.contains(&target);
        assert_eq!(after.iter().filter(has_it).count(), 6);

        // Impossible requests are refused with the reason.
        for (pool, scheme, errno) in [("nowhere", TWO, Errno::ENOENT), ("lonely", TWO, Errno::ENODEV)] {
            let add = MgmtRequest::AddTarget { node, path: "/alone".into(), pool: "lonely".into() };
            site.ask(add).await.unwrap();
            let make = MgmtRequest::MakeGroups { pool: pool.into(), scheme };
            let error = site.ask(make).await.unwrap_err();
            assert!(error.errno == errno && !error.hint.is_empty(), "{error}");
        }
        let own = nodes[0].target;
        for refused in [
            MgmtRequest::SetPool { target: own, pool: "other".into() },
            MgmtRequest::RemoveTarget { target: own, accept_loss: false },
        ] {
            let error = site.ask(refused).await.unwrap_err();
            assert!(error.errno == Errno::EBUSY && error.message.contains("group 10000"), "{error}");
        }
        site.ask(MgmtRequest::SetDrain { target: own, drain: true }).await.unwrap();
        assert!(site.ask(MgmtRequest::RemoveTarget { target: own, accept_loss: false }).await.is_err());
        let map = site.cluster.borrow().map();
        let chosen = layout::choose(&map, &pattern, types::InodeId::ROOT, 1).unwrap();
        assert!(chosen.iter().all(|id| !map.group(*id).unwrap().members.contains(&own)));
    });
}

#[test]
fn resync_progress_is_shown_as_reported() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let now = site.report(&group, nodes[1].target, NeedsResync).await.unwrap();
        site.report(&now, nodes[1].target, Resyncing).await.unwrap();
        let progress = ResyncProgress {
            group: group.id,
            target: nodes[1].target,
            files_left: Some(2),
            bytes_left: Some(1 << 20),
            bytes_moved: 5,
            rate: 1 << 20,
            hindrance: None,
        };
        let MgmtRequest::Heartbeat(beat) =
            site.cluster.borrow().heartbeat(nodes[0].node, nodes[0].instance, &[nodes[0].target])
        else {
            panic!("a heartbeat")
        };
        site.ask(MgmtRequest::Heartbeat(Heartbeat { resyncs: vec![progress.clone()], ..beat }))
            .await
            .unwrap();
        let Ok(MgmtReply::Groups { groups }) = site.ask(MgmtRequest::ListGroups).await else { panic!() };
        let resyncs: Vec<&ResyncProgress> = groups.iter().flat_map(|g| &g.resyncs).collect();
        assert_eq!(resyncs, [&progress]);
        let Ok(MgmtReply::Health(health)) = site.ask(MgmtRequest::Health).await else { panic!() };
        let finding = health.findings.iter().find(|f| f.what.contains("has missed writes")).unwrap();
        assert!(finding.verdict == Verdict::Warning && finding.what.contains("2 files left"), "{finding:?}");
    });
}
