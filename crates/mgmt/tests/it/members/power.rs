//! Power failures of management, alone or with a member on the same machine.

use super::{Process, Site, TWO, seconds, simulated};
use mgmt::limits::SERVING_LEASE;
use std::rc::Rc;
use std::time::Duration;
use types::MemberState::{InSync, NeedsResync};
use wire::MgmtRequest;

/// The machine of the primary and of management loses power; the other member has acknowledged more
/// than these disks retain.
async fn lose_power_of_management(site: &Rc<Site>, nodes: &[Rc<Process>]) -> Rc<Process> {
    nodes[1].connected.set(false);
    nodes[0].kill();
    site.cluster.borrow().memory.crash(0);
    site.restart_management().await;
    site.start(nodes[0].node, nodes[0].target).await
}

/// Management remembers pending checks in memory; a restarted one doesn't.
#[test]
fn a_power_failed_primary_steps_down_after_another_restart_of_management() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let back = lose_power_of_management(&site, &nodes).await;
        back.lost_unsynced_data.set(true);
        rt::sleep(seconds(3)).await;
        site.restart_management().await;
        rt::sleep(seconds(3)).await;
        assert_eq!(site.members(group.id), [(nodes[0].target, InSync), (nodes[1].target, InSync)]);
        nodes[1].connected.set(true);
        rt::sleep(seconds(5)).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
    });
}

#[test]
fn a_power_failed_primary_cannot_eject_a_live_member() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        lose_power_of_management(&site, &nodes).await;
        let asking = Box::pin(site.report(&group, nodes[1].target, NeedsResync));
        assert!(rt::timeout(seconds(1), asking).await.is_none(), "nothing is known yet");
        assert_eq!(site.members(group.id), [(nodes[0].target, InSync), (nodes[1].target, InSync)]);
        nodes[1].connected.set(true);
        rt::sleep(seconds(5)).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
    });
}

#[test]
fn a_power_failed_primary_continues_if_no_other_member_returns() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        lose_power_of_management(&site, &nodes).await;
        let started_ns = rt::monotonic_ns();
        let alone = site.report_until_applied(&group, nodes[1].target, NeedsResync).await;
        assert_eq!(
            alone.members_with_states().collect::<Vec<_>>(),
            [(nodes[0].target, InSync), (nodes[1].target, NeedsResync)]
        );
        let took = Duration::from_nanos(rt::monotonic_ns() - started_ns);
        assert!(took > SERVING_LEASE && took < seconds(20), "{took:?}");
    });
}

#[test]
fn map_epochs_are_unique_across_power_failures() {
    simulated(2, TWO, async |site, nodes| {
        let before = site.cluster.borrow().map();
        nodes[1].kill();
        rt::sleep(seconds(8)).await;
        let restored = site.cluster.borrow().map();
        assert!(
            restored.epoch > before.epoch && restored.groups == before.groups,
            "only the node's state is another one"
        );
        site.cluster.borrow().memory.crash(0);
        site.restart_management().await;
        assert!(site.cluster.borrow().map().epoch >= restored.epoch);
    });
}

/// A node continues to serve without a disk that doesn't come back.
#[test]
fn a_member_without_disk_does_not_replace_an_available_one() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes.iter().for_each(|node| node.kill());
        site.cluster.borrow().memory.crash(0);
        site.restart_management().await;
        let port = 7499 + nodes[1].node.0 as u16;
        let register = site.cluster.borrow().registration(nodes[1].node, 99, port, &[]);
        site.ask(MgmtRequest::Register(register)).await.unwrap();
        site.start(nodes[0].node, nodes[0].target).await;
        assert_eq!(site.members(group.id), [(nodes[0].target, InSync), (nodes[1].target, NeedsResync)]);
    });
}
