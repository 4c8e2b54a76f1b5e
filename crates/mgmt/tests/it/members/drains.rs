//! Draining of targets, and rebalancing of memberships.

use super::*;

#[test]
fn draining_replaces_a_member_without_losing_redundancy() {
    simulated(4, TWO, async |site, nodes| {
        let target = nodes[1].target;
        let error = site.ask(MgmtRequest::RemoveTarget { target, accept_loss: false }).await.unwrap_err();
        assert!(error.errno == Errno::EBUSY && error.hint.contains("drain"), "{error}");
        site.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        let progress = async || match site.ask(MgmtRequest::ListTargets).await {
            Ok(MgmtReply::Targets { targets }) => {
                targets.into_iter().find(|t| t.target.id == target).unwrap().progress.unwrap()
            }
            other => panic!("{other:?}"),
        };
        let mut rounds = 0;
        while !site.groups_with(target).is_empty() {
            let reported = progress().await;
            assert_eq!(reported.groups_left, site.groups_with(target).len() as u64);
            assert!(!reported.empty && reported.hindrance.is_none(), "{reported:?}");
            rt::sleep(seconds(5)).await;
            site.serve().await;
            for group in &site.cluster.borrow().map().groups {
                assert!(group.in_sync_members().count() >= group.scheme.members(), "{group:?}");
            }
            rounds += 1;
            assert!(rounds < 200, "{:?}", site.groups_with(target));
        }
        rt::sleep(seconds(5)).await;
        assert_eq!(progress().await.groups_left, 0);
        require_whole(&site);
        site.ask(MgmtRequest::RemoveTarget { target, accept_loss: false }).await.unwrap();
    });
}

/// What a drain waits for, according to the list of targets.
async fn hindrance_of(site: &Site, target: TargetId) -> Option<String> {
    match site.ask(MgmtRequest::ListTargets).await {
        Ok(MgmtReply::Targets { targets }) => {
            targets.into_iter().find(|t| t.target.id == target).unwrap().progress.unwrap().hindrance
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drain_reports_why_the_replacement_is_not_in_sync() {
    simulated(4, TWO, async |site, nodes| {
        let target = nodes[1].target;
        site.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        let hindrance = async || hindrance_of(&site, target).await;
        rt::sleep(seconds(5)).await;
        assert_eq!(hindrance().await, None);
        let group = site.groups_with(target).into_iter().find(|group| group.leaving.is_some()).unwrap();
        let coming = *group.members.last().unwrap();
        let now = site.report_until_applied(&group, coming, Rebuilding).await;
        let now = site.report_until_applied(&now, coming, NeedsRebuild).await;
        let hindrance_text = hindrance().await.unwrap();
        assert!(
            hindrance_text.contains(&format!("target {coming} "))
                && hindrance_text.contains("a test says so"),
            "{hindrance_text}"
        );
        // The next attempt succeeds.
        let now = site.report_until_applied(&now, coming, Rebuilding).await;
        assert_eq!(hindrance().await, None);
        site.report_until_applied(&now, coming, InSync).await;
        assert_eq!(hindrance().await, None);
        // An unreachable one.
        let group = site
            .groups_with(target)
            .into_iter()
            .find(|group| group.leaving.is_some() && group.is_degraded())
            .unwrap();
        let coming = *group.members.last().unwrap();
        nodes.iter().find(|node| node.target == coming).unwrap().kill();
        rt::sleep(seconds(60)).await;
        let hindrance_text = hindrance().await.unwrap();
        assert!(hindrance_text.contains("is unreachable"), "{hindrance_text}");
    });
}

/// A member in sync whose node becomes unreachable counts as in sync until a client writes. The
/// replica on the draining target is then the only reachable one.
#[test]
fn a_drain_reports_the_unreachable_replica() {
    simulated(4, TWO, async |site, nodes| {
        let target = nodes[0].target;
        let group = site.group_of(&nodes[0]);
        let other = *group.members.iter().find(|id| **id != target).unwrap();
        let silent = nodes.iter().find(|node| node.target == other).unwrap();
        silent.kill();
        rt::sleep(seconds(60)).await;
        assert_eq!(site.members(group.id), [(target, InSync), (other, InSync)]);
        site.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        rt::sleep(seconds(5)).await;
        let hindrance_text = hindrance_of(&site, target).await.unwrap();
        let cause =
            format!("target {other}, which has another replica of group {}, is unreachable", group.id);
        assert!(hindrance_text.contains(&cause), "{hindrance_text}");
        // Its node runs again: the drain waits only for the resyncs.
        site.start(silent.node, other).await;
        rt::sleep(seconds(5)).await;
        assert_eq!(hindrance_of(&site, target).await, None);
    });
}

#[test]
fn a_new_target_gets_its_part_when_memberships_are_spread() {
    simulated(3, TWO, async |site, _nodes| {
        let node = site.cluster().join("n9", 7502 + 6).await;
        let register = site.cluster.borrow().registration(node, 1000, 7499 + node.0 as u16, &[]);
        // Its port differs from the one that it joined with.
        site.ask(MgmtRequest::Register(register)).await.unwrap();
        let new = site.cluster().add(node, "/t9").await;
        let process = site.start(node, new).await;
        rt::sleep(2 * HEARTBEAT_INTERVAL).await;
        let rebalance = async |dry_run| {
            let pool = "default".into();
            match site.ask(MgmtRequest::RebalanceGroups { pool, dry_run }).await {
                Ok(MgmtReply::Moves { moves, .. }) => moves,
                other => panic!("{other:?}"),
            }
        };
        let before = site.cluster().map();
        let planned = rebalance(true).await;
        assert_eq!(site.cluster().map().groups, before.groups, "it was only asked");
        assert_eq!(rebalance(false).await, planned);
        for _ in 0..20 {
            site.serve().await;
            rt::sleep(seconds(5)).await;
        }
        require_whole(&site);
        let counts: Vec<usize> =
            site.cluster().map().targets.iter().map(|t| site.groups_with(t.id).len()).collect();
        let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
        assert!(spread <= 1, "{counts:?}");
        assert!(process.alive.get());
    });
}

/// Four nodes in groups made without known racks, then two racks: health reports it, a rebalance
/// moves members apart, and a lost member's successor is in the same rack. It is the same after a
/// restart.
#[test]
fn racks_that_are_set_later_are_respected() {
    simulated(4, TWO, async |site, nodes| {
        let rack = |at: usize| if at < 2 { "r1" } else { "r2" };
        for (at, process) in nodes.iter().enumerate() {
            let ask = MgmtRequest::SetRack { node: process.node, rack: Some(rack(at).into()) };
            assert!(matches!(site.ask(ask).await, Ok(MgmtReply::Done)));
        }
        let findings = async || match site.ask(MgmtRequest::Health).await {
            Ok(MgmtReply::Health(health)) => health.findings,
            other => panic!("{other:?}"),
        };
        let is_apart = |group: &Group| {
            let map = site.cluster().map();
            let racks: Vec<&str> = group.members.iter().filter_map(|id| map.rack_of(*id)).collect();
            racks.len() == 2 && racks[0] != racks[1]
        };
        let mirrored = || {
            let map = site.cluster().map();
            map.groups.iter().filter(|group| group.scheme.spans_targets()).cloned().collect::<Vec<Group>>()
        };
        let near = mirrored().iter().filter(|group| !is_apart(group)).count();
        let told = findings().await;
        assert!(
            told.iter().any(|f| f.what.starts_with(&format!("{near} groups of pool default"))),
            "{told:?}"
        );

        let rebalance = MgmtRequest::RebalanceGroups { pool: "default".into(), dry_run: false };
        match site.ask(rebalance).await {
            Ok(MgmtReply::Moves { moves, crowded }) => assert_eq!((moves.len(), crowded), (near, vec![])),
            other => panic!("{other:?}"),
        }
        for _ in 0..20 {
            site.serve().await;
            rt::sleep(seconds(5)).await;
        }
        require_whole(&site);
        assert!(mirrored().iter().all(is_apart), "{:?}", mirrored());
        let told = findings().await;
        assert!(!told.iter().any(|finding| finding.what.contains("rack")), "{told:?}");

        site.set_resync(|settings| settings.replace_after_s = Some(60)).await;
        nodes[3].kill();
        while !site.groups_with(nodes[3].target).is_empty() {
            assert!(nodes[3].time_since_answer() < seconds(200), "it isn't replaced");
            rt::sleep(seconds(1)).await;
        }
        assert!(mirrored().iter().all(is_apart), "{:?}", mirrored());
        match site.ask(MgmtRequest::ListGroups).await {
            Ok(MgmtReply::Groups { groups }) => {
                let racks = &groups.last().unwrap().racks;
                assert!(
                    racks.contains(&Some("r1".into())) && racks.contains(&Some("r2".into())),
                    "{racks:?}"
                );
            }
            other => panic!("{other:?}"),
        }
        site.restart_management().await;
        assert_eq!(site.cluster().map().rack_of(nodes[2].target), Some("r2"));
    });
}

/// The only other targets are on a node that is already in the group.
#[test]
fn a_drain_without_possible_replacement_has_no_estimate() {
    simulated(2, TWO, async |site, nodes| {
        let target = nodes[1].target;
        site.ask(MgmtRequest::SetDrain { target, drain: true }).await.unwrap();
        rt::sleep(seconds(5)).await;
        match site.ask(MgmtRequest::ListTargets).await {
            Ok(MgmtReply::Targets { targets }) => {
                let reported = targets.into_iter().find(|t| t.target.id == target).unwrap().progress.unwrap();
                let why = reported.hindrance.unwrap();
                assert!(why.contains("no other target") && reported.remaining_s.is_none(), "{why}");
            }
            other => panic!("{other:?}"),
        }
    });
}

/// The node of the draining target is reachable, and has another directory in the target's place.
#[test]
fn a_target_whose_disk_is_gone_leaves_its_groups_and_counts_in_none() {
    simulated(3, TWO, async |site, nodes| {
        let gone = nodes[0].target;
        let group = site.group_of(&nodes[0]);
        let other = *group.members.iter().find(|id| **id != gone).unwrap();
        nodes[0].is_diskless.set(true);
        let is_out = || site.groups_with(gone).iter().all(|group| group.state_of(gone) != Some(InSync));
        let mut waited = 0;
        while !is_out() {
            rt::sleep(seconds(1)).await;
            waited += 1;
            assert!(waited < 20, "it still counts: {:?}", site.groups_with(gone));
        }
        assert_eq!(site.members(group.id), [(other, InSync), (gone, NeedsResync)]);
        let report = site.ask(MgmtRequest::Health).await.unwrap();
        assert!(format!("{report:?}").contains("is offline though its node is up"), "{report:?}");
        site.ask(MgmtRequest::SetDrain { target: gone, drain: true }).await.unwrap();
        let mut rounds = 0;
        while !site.groups_with(gone).is_empty() {
            rt::sleep(seconds(5)).await;
            site.serve_except(gone).await;
            for group in site.groups_with(gone) {
                assert!(group.primary() != Some(gone) && group.state_of(gone) != Some(InSync), "{group:?}");
            }
            rounds += 1;
            assert!(rounds < 100, "{:?}", site.groups_with(gone));
        }
        require_whole(&site);
    });
}

#[test]
fn a_returning_disk_is_resynced() {
    simulated(2, TWO, async |site, nodes| {
        let group = site.group_of(&nodes[0]);
        nodes[0].is_diskless.set(true);
        while site.group(group.id).state_of(nodes[0].target) == Some(InSync) {
            rt::sleep(seconds(1)).await;
        }
        // Both disks: if both are gone, it isn't known which one has less.
        nodes[1].is_diskless.set(true);
        rt::sleep(seconds(30)).await;
        assert_eq!(site.members(group.id), [(nodes[1].target, InSync), (nodes[0].target, NeedsResync)]);
        nodes.iter().for_each(|node| node.is_diskless.set(false));
        rt::sleep(seconds(5)).await;
        site.serve().await;
        site.serve().await;
        require_whole(&site);
    });
}
