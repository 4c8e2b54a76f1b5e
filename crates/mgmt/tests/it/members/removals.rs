//! Removal of offline targets.

use super::{InSync, NeedsRebuild, NeedsResync, Process, Rebuilding, Site, TWO, seconds, simulated};
use std::collections::BTreeSet;
use types::{Errno, Error, Group, GroupId, TargetId};
use wire::mgmt::{DrainProgress, HealthFinding};
use wire::{MgmtReply, MgmtRequest};

async fn remove(site: &Site, target: TargetId, accept_loss: bool) -> Result<(), Error> {
    site.ask(MgmtRequest::RemoveTarget { target, accept_loss }).await.map(drop)
}

/// Returns the refusal, which changes nothing and has a remedy.
async fn refused(site: &Site, target: TargetId, accept_loss: bool) -> Error {
    let before = site.cluster().map().groups.clone();
    let error = remove(site, target, accept_loss).await.unwrap_err();
    assert!(!error.message.is_empty() && !error.hint.is_empty(), "{error}");
    assert_eq!(site.cluster().map().groups, before, "refused, and yet changed: {error}");
    assert!(site.cluster().map().target(target).is_some());
    error
}

/// The single group of a target.
fn own(target: TargetId) -> GroupId {
    GroupId(target.0)
}

fn put_files(site: &Site, groups: &[GroupId]) {
    site.cluster().authority.used.lock().unwrap().by_files = groups.iter().copied().collect();
}

/// Sets the groups with orphaned chunk files that could not be deleted yet.
fn put_deleted(site: &Site, groups: &[GroupId]) {
    site.cluster().authority.used.lock().unwrap().by_deleted = groups.iter().copied().collect();
}

async fn findings(site: &Site) -> Vec<HealthFinding> {
    match site.ask(MgmtRequest::Health).await {
        Ok(MgmtReply::Health(health)) => health.findings,
        other => panic!("{other:?}"),
    }
}

async fn says_lost(site: &Site) -> Option<String> {
    let mut found = findings(site).await.into_iter();
    found.find(|finding| finding.what.contains("lost")).map(|finding| finding.what)
}

fn lost(site: &Site) -> BTreeSet<GroupId> {
    site.cluster().map().groups.iter().filter(|group| group.is_lost()).map(|group| group.id).collect()
}

/// Waits until a process is replaced in all mirrored groups.
async fn until_replaced(site: &Site, gone: &Process) {
    while !site.groups_with(gone.target).is_empty() {
        rt::sleep(seconds(5)).await;
        site.serve_except(gone.target).await;
    }
}

#[test]
fn an_offline_target_is_removed_with_accepted_loss() {
    simulated(4, TWO, async |site, nodes| {
        let gone = nodes[0].target;
        put_files(&site, &[own(gone), GroupId(77)]);
        assert_eq!(refused(&site, gone, true).await.errno, Errno::EBUSY, "it is online");
        nodes[0].kill();
        rt::sleep(seconds(30)).await;
        let member = refused(&site, gone, true).await;
        assert!(member.errno == Errno::EBUSY && member.hint.contains("drain"), "{member}");
        site.ask(MgmtRequest::SetDrain { target: gone, drain: true }).await.unwrap();
        until_replaced(&site, &nodes[0]).await;
        rt::sleep(seconds(301)).await;
        let error = refused(&site, gone, false).await;
        assert!(error.errno == Errno::ENOTEMPTY && error.message.contains("1 files"), "{error}");
        assert!(error.hint.contains("--dry-run") && error.hint.contains("--accept-loss"), "{error}");
        remove(&site, gone, true).await.unwrap();

        let map = site.cluster().map();
        assert!(map.target(gone).is_none());
        assert_eq!(lost(&site), [own(gone)].into());
        assert_eq!(map.group(own(gone)).unwrap().ensure_not_lost().unwrap_err().errno, Errno::EIO);
        // New files are placed on other targets, and a lost group isn't a candidate.
        let pattern = types::StripePattern { stripe_count: 8, ..types::StripePattern::default() };
        let chosen = layout::choose(&map, &pattern, types::InodeId::ROOT, 1).unwrap();
        assert!(chosen.len() == 3 && !chosen.contains(&own(gone)), "{chosen:?}");

        // It stays while a file has content there, and health reports it, also after a restart.
        rt::sleep(seconds(120)).await;
        assert!(says_lost(&site).await.unwrap().starts_with("1 files have content in group"));
        site.restart_management().await;
        assert!(says_lost(&site).await.unwrap().contains("aren't counted yet"));
        rt::sleep(seconds(60)).await;
        assert_eq!(lost(&site), [own(gone)].into());
        // Then only chunk files that are still to be deleted.
        put_files(&site, &[]);
        put_deleted(&site, &[own(gone)]);
        rt::sleep(seconds(60)).await;
        assert_eq!((lost(&site), says_lost(&site).await), ([own(gone)].into(), None));
        put_deleted(&site, &[]);
        rt::sleep(seconds(60)).await;
        assert_eq!(lost(&site), BTreeSet::new());
        assert!(site.cluster().map().group(own(gone)).is_none());
        // Numbers are not reused.
        let node = site.cluster().join("n9", 7600).await;
        assert!(site.cluster().add(node, "/t9").await.0 > nodes[3].target.0);
    });
}

#[test]
fn a_target_that_may_come_back_is_not_given_up() {
    simulated(4, TWO, async |site, nodes| {
        let gone = nodes[0].target;
        put_files(&site, &[own(gone)]);
        site.set_resync(|settings| settings.replace_after_s = Some(60)).await;
        nodes[0].kill();
        until_replaced(&site, &nodes[0]).await;
        site.restart_management().await;
        rt::sleep(seconds(30)).await;
        let error = refused(&site, gone, true).await;
        assert!(error.errno == Errno::EBUSY && error.message.contains("60 s"), "{error}");
        let back = site.start(nodes[0].node, gone).await;
        rt::sleep(seconds(5)).await;
        assert!(refused(&site, gone, true).await.message.contains("not offline"));
        back.kill();
        rt::sleep(seconds(90)).await;
        remove(&site, gone, true).await.unwrap();
        assert_eq!(lost(&site), [own(gone)].into());
    });
}

#[test]
fn a_target_without_files_is_removed_without_accepting_loss() {
    simulated(4, TWO, async |site, nodes| {
        let (gone, other) = (nodes[0].target, nodes[1].target);
        site.set_resync(|settings| settings.replace_after_s = Some(60)).await;
        put_deleted(&site, &[own(gone)]);
        nodes[0].kill();
        until_replaced(&site, &nodes[0]).await;
        remove(&site, gone, false).await.unwrap();
        assert_eq!(lost(&site), [own(gone)].into(), "what is to be deleted is looked up there");
        assert!(!says_lost(&site).await.unwrap_or_default().contains("files have content"));
        put_deleted(&site, &[]);
        rt::sleep(seconds(60)).await;
        assert_eq!(lost(&site), BTreeSet::new());

        // A group without references is removed.
        nodes[1].kill();
        until_replaced(&site, &nodes[1]).await;
        remove(&site, other, false).await.unwrap();
        assert!(site.cluster().map().group(own(other)).is_none());
    });
}

/// Waits until management has counted the content of lost groups again.
async fn until_counted(site: &Site) {
    let counts = || site.cluster().authority.used.lock().unwrap().counts;
    let before = counts();
    for _ in 0..600 {
        if counts() > before {
            return;
        }
        rt::sleep(seconds(1)).await;
    }
    panic!("nothing is counted");
}

/// A file that was begun while the target was reachable may be recorded late.
#[test]
fn a_lost_group_is_removed_after_two_counts_without_references() {
    simulated(4, TWO, async |site, nodes| {
        let gone = nodes[0].target;
        site.set_resync(|settings| settings.replace_after_s = Some(60)).await;
        put_deleted(&site, &[own(gone)]);
        nodes[0].kill();
        until_replaced(&site, &nodes[0]).await;
        remove(&site, gone, false).await.unwrap();
        put_deleted(&site, &[]);
        until_counted(&site).await;
        put_files(&site, &[own(gone)]);
        until_counted(&site).await;
        put_files(&site, &[]);
        until_counted(&site).await;
        assert_eq!(lost(&site), [own(gone)].into());
        until_counted(&site).await;
        rt::sleep(seconds(1)).await;
        assert_eq!(lost(&site), BTreeSet::new());
    });
}

/// In one group the target is the only one in sync; in the others another target has a replica.
#[test]
fn removing_the_only_member_in_sync_loses_the_group() {
    simulated(4, TWO, async |site, nodes| {
        let gone = nodes[0].target;
        let group = site.group_of(&nodes[0]);
        let behind = *group.members.iter().find(|id| **id != gone).unwrap();
        put_files(&site, &[group.id]);
        site.report_until_applied(&group, behind, NeedsResync).await;
        nodes[0].kill();
        site.ask(MgmtRequest::SetDrain { target: gone, drain: true }).await.unwrap();
        let only_there = |groups: Vec<Group>| groups.len() == 1 && groups[0].id == group.id;
        let mut rounds = 0;
        while !only_there(site.groups_with(gone)) {
            rt::sleep(seconds(5)).await;
            serve_others(&site, group.id).await;
            rounds += 1;
            assert!(rounds < 500, "{:?}", site.groups_with(gone));
        }
        rt::sleep(seconds(301)).await;
        let error = refused(&site, gone, false).await;
        assert_eq!(error.errno, Errno::ENOTEMPTY, "{error}");
        remove(&site, gone, true).await.unwrap();
        let now = site.group(group.id);
        assert!(now.is_lost() && now.since > group.since, "{now:?}");
        // A lost group can't be recovered.
        let revive = MgmtRequest::RecoverGroup { group: group.id, from: behind, accept_loss: true };
        assert_eq!(site.ask(revive).await.unwrap_err().errno, Errno::ENOENT);
        rt::sleep(seconds(600)).await;
        assert!(site.group(group.id).is_lost() && says_lost(&site).await.is_some());
        assert!(!findings(&site).await.iter().any(|finding| finding.what.contains("no member in sync")));
    });
}

/// Acts for the primaries, except in one group.
async fn serve_others(site: &Site, but: GroupId) {
    let groups: Vec<Group> = site.cluster().map().groups.to_vec();
    for group in groups.iter().filter(|group| group.scheme.spans_targets() && group.id != but) {
        if let Some(leaving) = group.removable_member() {
            site.report_until_applied(group, leaving, NeedsRebuild).await;
        }
        for (member, state) in group.members_with_states() {
            let group = site.group(group.id);
            let is_online = |id: TargetId| {
                site.cluster().map().target(id).is_some_and(|t| t.state == types::TargetState::Online)
            };
            if group.primary().is_some_and(is_online) && is_online(member) {
                match state {
                    NeedsRebuild => drop(site.report_until_applied(&group, member, Rebuilding).await),
                    Rebuilding => drop(site.report_until_applied(&group, member, InSync).await),
                    _ => {}
                }
            }
        }
    }
}

/// Both members of a group are gone for good: another target replaces the first, and the group is
/// lost with the second.
#[test]
fn targets_that_are_gone_together_can_be_removed() {
    simulated(4, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        let (first, second) = (group.members[0], group.members[1]);
        put_files(&site, &[group.id]);
        nodes.iter().filter(|node| group.members.contains(&node.target)).for_each(|node| node.kill());
        for target in [first, second] {
            site.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        }
        let shared = |target| {
            site.groups_with(target).iter().all(|g| g.members.contains(&first) && g.members.contains(&second))
        };
        while !shared(first) || !shared(second) {
            rt::sleep(seconds(5)).await;
            serve_others(&site, GroupId(0)).await;
        }
        rt::sleep(seconds(301)).await;
        let error = refused(&site, first, false).await;
        assert!(error.errno == Errno::EBUSY && error.hint.contains("--accept-loss"), "{error}");
        remove(&site, first, true).await.unwrap();
        let members = site.members(group.id);
        assert!(members.contains(&(second, InSync)) && members.len() == 2, "{members:?}");
        assert!(members.iter().any(|(_, state)| *state == NeedsRebuild), "{members:?}");
        assert_eq!(refused(&site, second, false).await.errno, Errno::ENOTEMPTY);
        remove(&site, second, true).await.unwrap();
        assert!(site.group(group.id).is_lost());
    });
}

#[test]
fn a_drain_of_an_unreachable_target_is_reported_stuck() {
    simulated(4, TWO, async |site, nodes| {
        let gone = nodes[0].target;
        site.ask(MgmtRequest::SetDrain { target: gone, drain: true }).await.unwrap();
        let progress = async || -> DrainProgress {
            match site.ask(MgmtRequest::ListTargets).await {
                Ok(MgmtReply::Targets { targets }) => {
                    targets.into_iter().find(|t| t.target.id == gone).unwrap().progress.unwrap()
                }
                other => panic!("{other:?}"),
            }
        };
        // The drain of a target that is reachable, or has replacements, is only slow.
        site.cluster().authority.used.lock().unwrap().left = Some(3);
        until_replaced(&site, &nodes[0]).await;
        assert_eq!(progress().await.stuck, None);
        nodes[0].kill();
        rt::sleep(seconds(40)).await;
        assert_eq!(progress().await.stuck, None, "its service may just have restarted");
        rt::sleep(seconds(60)).await;
        let stuck = progress().await.stuck.unwrap();
        assert!(stuck.contains("3 files") && stuck.contains(&format!("group {gone}")), "{stuck}");
        site.start(nodes[0].node, gone).await;
        rt::sleep(seconds(5)).await;
        assert_eq!(progress().await.stuck, None);
    });
}
