//! Health of a cluster: an overall status and its findings.

mod certificates;
mod groups;
mod scrubs;

pub use certificates::Certificates;

use crate::limits::OFFLINE_AFTER;
use crate::liveness::Liveness;
use crate::map_changes::check_version;
use types::{CapacityClass, ClusterMap, GroupUsage, Node, NodeId, NodeState, Target, TargetId, TargetState};
use wire::mgmt::{BackupsInfo, Health, HealthCode, HealthFinding, ScrubProgress, StoreInfo, Verdict};

/// Age from which the newest daily backup is too old: two backups are missing.
const OLD_BACKUP_S: u64 = 2 * 24 * 3600;
/// The metadata disk is nearly full if less than this many times the required free space is free.
const NEARLY_FULL_TIMES: u64 = 3;

/// Evaluates the map, the heartbeats and the scrubs; `version` is management's.
pub fn health(map: &ClusterMap, liveness: &Liveness, scrubs: &[ScrubProgress], version: &str) -> Health {
    let mut findings = Vec::new();
    if map.targets.is_empty() {
        findings.push(finding(
            HealthCode::NoTargets,
            Verdict::Critical,
            "the cluster has no targets: no file with more than a few KiB can be written".into(),
            "weft target add PATH on a storage node".into(),
        ));
    }
    for node in &map.nodes {
        node_findings(node, map, liveness, version, &mut findings);
    }
    for target in &map.targets {
        findings.extend(target_finding(target, map));
    }
    findings.extend(map.pools.iter().filter_map(|pool| {
        let mut of_pool = map.targets.iter().filter(|t| t.pool == pool.id).peekable();
        of_pool.peek()?;
        let usable =
            |t: &Target| t.state == TargetState::Online && !t.drain && t.class != CapacityClass::Emergency;
        (!of_pool.any(usable)).then(|| {
            let what = format!("pool {} has no target that takes new files", pool.name);
            let hint = format!("weft target add PATH --pool {}", pool.name);
            finding(HealthCode::PoolUnusable, Verdict::Critical, what, hint)
        })
    }));
    findings.extend(groups::group_findings(map, liveness));
    findings.extend(scrubs::scrub_findings(scrubs));
    findings.extend(map.settings.checksums_off.then(|| {
        let what =
            "checksums of data are off: damage on disks and in the network is neither detected nor repaired";
        let hint = "weft cluster set --checksums on".into();
        finding(HealthCode::ChecksumsOff, Verdict::Critical, what.into(), hint)
    }));
    let verdict = Verdict::Healthy;
    with_status(Health {
        verdict,
        findings,
        copies: None,
        store: None,
        ceilings: Vec::new(),
        rates: Vec::new(),
    })
}

/// Adds findings about the daily backups of the metadata.
pub fn with_backups(mut health: Health, backups: BackupsInfo) -> Health {
    let remedy = || "weft meta backup makes one now; check the log, and the free space of that folder".into();
    let hours = |seconds: u64| seconds / 3600;
    if let Some(failure) = backups.failure.as_ref().filter(|_| backups.kept > 0) {
        let what = format!("the last daily metadata backup failed: {failure}");
        health.findings.push(finding(HealthCode::BackupFailed, Verdict::Warning, what, remedy()));
    } else if let Some(age_s) = backups.age_s.filter(|age_s| backups.kept > 0 && *age_s > OLD_BACKUP_S) {
        let what = format!("the newest metadata backup in {} is {} hours old", backups.folder, hours(age_s));
        health.findings.push(finding(HealthCode::BackupOld, Verdict::Warning, what, remedy()));
    }
    health.copies = Some(backups);
    with_status(health)
}

/// Adds findings about certificates that expire soon.
pub fn with_certificates(
    mut health: Health,
    map: &ClusterMap,
    certificates: &Certificates,
    now_s: i64,
) -> Health {
    certificates::certificate_findings(map, certificates, now_s, &mut health.findings);
    with_status(health)
}

/// Adds findings about files in lost groups; `usage`: their counted files.
pub fn with_lost(mut health: Health, map: &ClusterMap, usage: Option<&GroupUsage>) -> Health {
    health.findings.extend(groups::lost_group_finding(map, usage));
    with_status(health)
}

/// Adds findings about the metadata store's disk.
pub fn with_store(mut health: Health, store: StoreInfo) -> Health {
    let StoreInfo { path, free, needed, .. } = &store;
    let space = format!("{} MiB free, {} MiB are needed", free >> 20, needed >> 20);
    let remedy = || "free space on that disk, or enlarge it; deleting files helps within minutes".into();
    if free < needed {
        let what = format!(
            "the disk of the metadata at {path} is full: {space}; nothing can be created, existing files can be used and deleted"
        );
        health.findings.push(finding(HealthCode::MetadataDiskFull, Verdict::Critical, what, remedy()));
    } else if *free < NEARLY_FULL_TIMES * needed {
        let what = format!(
            "the disk of the metadata at {path} is nearly full: {space}, else nothing can be created"
        );
        health.findings.push(finding(HealthCode::MetadataDiskNearlyFull, Verdict::Warning, what, remedy()));
    }
    health.store = Some(store);
    with_status(health)
}

/// Adds other findings.
pub fn with_findings(mut health: Health, findings: Vec<HealthFinding>) -> Health {
    health.findings.extend(findings);
    with_status(health)
}

/// Sorts findings by severity; the worst one is the overall status.
fn with_status(mut health: Health) -> Health {
    health.findings.sort_by_key(|f| std::cmp::Reverse(f.verdict));
    health.verdict = health.findings.first().map_or(Verdict::Healthy, |f| f.verdict);
    health
}

fn node_findings(
    node: &Node,
    map: &ClusterMap,
    liveness: &Liveness,
    version: &str,
    findings: &mut Vec<HealthFinding>,
) {
    let name = format!("node {} ({})", node.id, node.name);
    let target_count = map.targets.iter().filter(|t| t.node == node.id).count();
    // The map has the state that the node had when management stopped, or when the backup was made
    // that was restored.
    let is_known = liveness.process(node.id).is_some();
    match node.state {
        NodeState::Online | NodeState::ProbablyOffline if !is_known => {
            let what = format!("{name} has not reported since management started: its state is not known");
            let seconds = OFFLINE_AFTER.as_secs();
            let hint = format!(
                "a running node reports within seconds; {seconds} s after the start of management it counts as offline"
            );
            findings.push(finding(HealthCode::NodeNotReported, Verdict::Warning, what, hint));
        }
        NodeState::Online => {}
        NodeState::ProbablyOffline => {
            let hint = "check that weft serve runs there, and the network in between".into();
            let what = format!("{name} has missed heartbeats");
            findings.push(finding(HealthCode::NodeLate, Verdict::Warning, what, hint));
        }
        NodeState::Offline => {
            let (verdict, what) = match target_count {
                0 => (Verdict::Warning, format!("{name} is offline")),
                n => (
                    Verdict::Critical,
                    format!(
                        "{name} is offline; data on its {n} targets can't be reached{}",
                        mirrored_exception(map, node.id)
                    ),
                ),
            };
            let address = node.addresses.first().map_or("", |a| a.as_str());
            let lost = match target_count {
                0 => "weft node remove removes it from the cluster",
                _ => {
                    "if it is lost for good: weft target remove ID --dry-run shows what would be lost with each of its targets"
                }
            };
            let hint = format!("start weft serve on that machine ({address}); {lost}");
            findings.push(finding(HealthCode::NodeOffline, verdict, what, hint));
        }
    }
    if let Some(seen) = liveness.process(node.id)
        && seen.is_skewed()
    {
        let direction = if seen.skew_s > 0 { "ahead of" } else { "behind" };
        let skew_s = seen.skew_s.unsigned_abs();
        let what = format!("the clock of {name} is {skew_s} s {direction} management's");
        let hint = "set both clocks by NTP (chrony)".into();
        findings.push(finding(HealthCode::ClockSkew, Verdict::Critical, what, hint));
    }
    if check_version("", &node.version, version).is_err() {
        let what = format!("{name} runs weft {}, management runs {version}", node.version);
        let hint = "install the same version on all machines".into();
        findings.push(finding(HealthCode::VersionMismatch, Verdict::Warning, what, hint));
    }
}

/// Suffix of a message about a node's failure: content that stays available.
fn mirrored_exception(map: &ClusterMap, node: NodeId) -> &'static str {
    let has = |id: &TargetId| map.target(*id).is_some_and(|target| target.node == node);
    match map.groups.iter().any(|group| group.scheme.is_redundant() && group.members.iter().any(has)) {
        true => ", except mirrored files, which have other replicas",
        false => "",
    }
}

fn target_finding(target: &Target, map: &ClusterMap) -> Option<HealthFinding> {
    let name = format!("target {} ({} on node {})", target.id, target.path, target.node);
    let node_is_up = map.node(target.node).is_none_or(|node| node.state == NodeState::Online);
    let free = target.free >> 20;
    match (target.state, target.class) {
        // Otherwise the node's finding covers it.
        (TargetState::Offline, _) if node_is_up => Some(finding(
            HealthCode::TargetOffline,
            Verdict::Critical,
            format!("{name} is offline though its node is up"),
            format!(
                "check that its own disk is there and mounted (findmnt, dmesg): one that was only unmounted is served again when it is mounted; one that had failed, or was missing when the node started, by weft target add {} on its node, or a restart of the node",
                target.path
            ),
        )),
        (_, CapacityClass::Emergency) => Some(finding(
            HealthCode::TargetFull,
            Verdict::Critical,
            format!("{name} is full: {free} MiB free"),
            "delete files, enlarge its disk, or add a target".into(),
        )),
        (_, CapacityClass::Low) => Some(finding(
            HealthCode::TargetNearlyFull,
            Verdict::Warning,
            format!("{name} is nearly full: {free} MiB free"),
            "delete files, enlarge its disk, or add a target".into(),
        )),
        _ => None,
    }
}

pub(crate) fn finding(code: HealthCode, verdict: Verdict, what: String, hint: String) -> HealthFinding {
    HealthFinding { code: code.name().into(), verdict, what, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Pool, PoolId};

    fn cluster() -> ClusterMap {
        ClusterMap {
            nodes: vec![Node {
                id: NodeId(1),
                name: "a".into(),
                addresses: vec!["10.0.0.1:7500".into()],
                roles: vec![],
                state: NodeState::Online,
                version: "0.4.0".into(),
                rack: None,
            }],
            targets: vec![Target {
                id: TargetId(1),
                node: NodeId(1),
                pool: PoolId(1),
                path: "/t".into(),
                state: TargetState::Online,
                capacity: 0,
                free: 0,
                class: CapacityClass::Normal,
                drain: false,
                used: None,
            }],
            pools: vec![Pool { id: PoolId(1), name: "default".into(), spare: 0 }],
            ..Default::default()
        }
    }

    fn after(change: impl FnOnce(&mut ClusterMap, &mut Liveness)) -> (Verdict, Vec<String>) {
        let (mut map, mut liveness) = (cluster(), Liveness::new(0));
        liveness.note_registration(NodeId(1), 1, 0);
        change(&mut map, &mut liveness);
        let health = health(&map, &liveness, &liveness.scrubs(), "0.4.1");
        assert!(health.findings.iter().all(|f| !f.hint.is_empty() && !f.code.is_empty()));
        (health.verdict, health.findings.into_iter().map(|f| f.what).collect())
    }

    #[test]
    fn the_status_is_that_of_the_worst_finding() {
        assert_eq!(after(|_, _| ()), (Verdict::Healthy, vec![]));
        let (verdict, what) = after(|map, _| map.targets[0].class = CapacityClass::Low);
        assert_eq!((verdict, what.len()), (Verdict::Warning, 1));
        let (verdict, what) = after(|map, _| map.targets[0].state = TargetState::Offline);
        assert_eq!(verdict, Verdict::Critical);
        assert!(what[0].contains("though its node is up") && what[1].contains("pool default"), "{what:?}");
        let (verdict, what) = after(|map, _| {
            map.nodes[0].state = NodeState::Offline;
            map.targets[0].state = TargetState::Offline;
        });
        assert!(
            verdict == Verdict::Critical && what[0].contains("its 1 targets can't be reached"),
            "{what:?}"
        );
        assert_eq!(after(|map, _| map.targets.clear()).0, Verdict::Critical);
        assert_eq!(after(|map, _| map.nodes[0].version = "0.9.0".into()).0, Verdict::Warning);
        let skewed = after(|_, liveness| {
            liveness.note_heartbeat(NodeId(1), 1, -45, &[], 1);
        });
        assert_eq!(skewed.0, Verdict::Critical);
        assert!(skewed.1.iter().any(|what| what.contains("is 45 s behind management's")), "{:?}", skewed.1);
    }

    #[test]
    fn a_node_is_not_healthy_before_it_has_reported() {
        let told = |state| {
            let mut map = cluster();
            map.nodes[0].state = state;
            health(&map, &Liveness::new(0), &[], "0.4.1")
        };
        for state in [NodeState::Online, NodeState::ProbablyOffline] {
            let health = told(state);
            let codes: Vec<&str> = health.findings.iter().map(|f| f.code.as_str()).collect();
            assert_eq!((health.verdict, codes), (Verdict::Warning, vec!["node-not-reported"]));
        }
        assert!(told(NodeState::Offline).findings.iter().any(|f| f.code == "node-offline"));
        assert_eq!(health(&cluster(), &online(), &[], "0.4.1").verdict, Verdict::Healthy);
    }

    #[test]
    fn old_and_failed_backups_are_findings() {
        let copies = BackupsInfo {
            folder: "/b".into(),
            kept: 7,
            newest: Some("/b/meta".into()),
            age_s: Some(3 * 24 * 3600),
            failure: None,
        };
        let healthy =
            || health(&ClusterMap { targets: cluster().targets, ..cluster() }, &online(), &[], "0.4.1");
        let with_copies = |copies: BackupsInfo| {
            let told = with_backups(healthy(), copies);
            (told.verdict, told.findings.into_iter().map(|f| f.what).collect::<Vec<_>>().join("; "))
        };
        let (verdict, what) = with_copies(copies.clone());
        assert!(verdict == Verdict::Warning && what.contains("in /b is 72 hours old"), "{what}");
        let (verdict, what) = with_copies(BackupsInfo { failure: Some("no room".into()), ..copies.clone() });
        assert!(verdict == Verdict::Warning && what.contains("failed: no room"), "{what}");
        assert_eq!(with_copies(BackupsInfo { age_s: Some(3600), ..copies.clone() }).0, Verdict::Healthy);
        assert_eq!(with_copies(BackupsInfo { kept: 0, ..copies }).0, Verdict::Healthy);
    }

    #[test]
    fn a_full_metadata_disk_is_a_finding() {
        let with_free = |free_mib: u64| {
            let (path, capacity) = ("/m".into(), 1 << 30);
            let store = StoreInfo { path, used: 0, capacity, free: free_mib << 20, needed: 64 << 20 };
            let told = with_store(health(&cluster(), &online(), &[], "0.4.1"), store);
            (told.verdict, told.findings.into_iter().map(|f| f.what).collect::<Vec<_>>().join("; "))
        };
        assert_eq!(with_free(3 * 64), (Verdict::Healthy, String::new()));
        let (verdict, what) = with_free(3 * 64 - 1);
        assert!(verdict == Verdict::Warning && what.contains("/m is nearly full: 191 MiB free"), "{what}");
        let (verdict, what) = with_free(63);
        assert!(verdict == Verdict::Critical && what.contains("63 MiB free, 64 MiB are needed"), "{what}");
    }

    fn online() -> Liveness {
        let mut liveness = Liveness::new(0);
        liveness.note_registration(NodeId(1), 1, 0);
        liveness
    }
}
