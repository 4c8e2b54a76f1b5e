//! All members in sync are lost for good while another one has missed writes.

use super::{InSync, NeedsRebuild, NeedsResync, Resyncing, Site, TWO, seconds, simulated};
use types::{Errno, GroupId, Result, TargetId};
use wire::{MgmtReply, MgmtRequest};

async fn recover(site: &Site, group: GroupId, from: TargetId, accept_loss: bool) -> Result<()> {
    match site.ask(MgmtRequest::RecoverGroup { group, from, accept_loss }).await? {
        MgmtReply::Groups { groups } => {
            assert!(groups.len() == 1 && groups[0].group.id == group, "{groups:?}");
            Ok(())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_group_recovers_from_a_resyncing_member() {
    simulated(2, TWO, async |site, nodes| {
        let (lost, left) = (&nodes[0], &nodes[1]);
        let group = site.group_of(lost);
        let refused = async |accept| recover(&site, group.id, left.target, accept).await.unwrap_err();
        assert_eq!(refused(true).await.errno, Errno::EINVAL, "it has everything");
        let group = site.report_until_applied(&group, left.target, NeedsResync).await;
        let group = site.report_until_applied(&group, left.target, Resyncing).await;
        assert_eq!(refused(true).await.errno, Errno::EBUSY, "the good one is there");
        lost.kill();
        rt::sleep(seconds(60)).await;
        assert_eq!(refused(true).await.errno, Errno::EBUSY, "it may come back");
        rt::sleep(seconds(300)).await;
        let error = refused(false).await;
        assert!(error.errno == Errno::EPERM && error.hint.contains("--accept-loss"), "{error}");
        assert_eq!(site.group(group.id), group, "it was only asked");
        recover(&site, group.id, left.target, true).await.unwrap();
        assert_eq!(site.members(group.id), [(left.target, InSync), (lost.target, NeedsRebuild)]);
        let now = site.group(group.id);
        assert!(now.revived == Some(left.target) && now.since > group.since, "{now:?}");
        assert_eq!(refused(true).await.errno, Errno::EINVAL, "it counts as having everything");
        // It is stored until the primary reports that its content matches the metadata.
        site.restart_management().await;
        rt::sleep(seconds(5)).await;
        site.report_until_applied(&now, left.target, InSync).await;
        assert_eq!(site.group(group.id).revived, Some(left.target), "it asks who knows of the others");
        let done = MgmtRequest::SetMember {
            group: now.id,
            since: now.since,
            target: left.target,
            state: InSync,
            reason: "a test says so".into(),
            orderly: true,
        };
        site.ask(done).await.unwrap();
        assert_eq!(site.group(group.id).revived, None);
        // A returning member gets a full copy.
        let back = site.start(lost.node, lost.target).await;
        rt::sleep(seconds(5)).await;
        assert_eq!(site.members(group.id), [(left.target, InSync), (back.target, NeedsRebuild)]);
        site.serve().await;
        site.serve().await;
        assert!(!site.group(group.id).is_degraded());
    });
}

#[test]
fn the_give_up_time_restarts_with_management() {
    simulated(2, TWO, async |site, nodes| {
        let (lost, left) = (&nodes[0], &nodes[1]);
        let group = site.report_until_applied(&site.group_of(lost), left.target, NeedsResync).await;
        lost.kill();
        rt::sleep(seconds(400)).await;
        site.restart_management().await;
        rt::sleep(seconds(60)).await;
        let refused = recover(&site, group.id, left.target, true).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EBUSY, "{refused}");
        // A member that has just returned isn't given up.
        rt::sleep(seconds(400)).await;
        site.start(lost.node, lost.target).await;
        let refused = recover(&site, group.id, left.target, true).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EBUSY, "{refused}");
    });
}

#[test]
fn recovery_from_unreachable_foreign_or_rebuilding_members_is_refused() {
    simulated(3, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let left = *group.members.last().unwrap();
        let process = nodes.iter().find(|process| process.target == left).unwrap();
        let stranger = nodes.iter().find(|process| !group.members.contains(&process.target)).unwrap();
        // The time is recorded also if members are never replaced.
        site.set_resync(|settings| settings.replace_after_s = Some(0)).await;
        let group = site.report_until_applied(&group, left, NeedsResync).await;
        let others = site.groups_with(left);
        let copied =
            others.iter().find(|other| other.id != group.id && other.primary() == Some(nodes[0].target));
        let copied = match copied {
            Some(copied) => Some(site.report_until_applied(copied, left, NeedsRebuild).await),
            None => None,
        };
        nodes[0].kill();
        rt::sleep(seconds(400)).await;
        let refused = async |group, from| recover(&site, group, from, true).await.unwrap_err().errno;
        assert_eq!(refused(group.id, stranger.target).await, Errno::ENOENT);
        assert_eq!(refused(GroupId(1), left).await, Errno::EINVAL, "it has one member");
        if let Some(copied) = copied {
            assert_eq!(refused(copied.id, left).await, Errno::EINVAL, "it may have nothing");
        }
        process.connected.set(false);
        rt::sleep(seconds(20)).await;
        assert_eq!(refused(group.id, left).await, Errno::EBUSY);
        process.connected.set(true);
        rt::sleep(seconds(5)).await;
        recover(&site, group.id, left, true).await.unwrap();
        assert_eq!(site.members(group.id), [(left, InSync), (nodes[0].target, NeedsRebuild)]);
    });
}
