//! Nodes that send heartbeats but are unreachable, as management and clients find.

use super::{Site, TWO, seconds, simulated};
use mgmt::limits::REPORT_VALIDITY;
use mgmt::{DueProbe, ProbeOutcome};
use net::ProbeFailure;
use std::rc::Rc;
use wire::mgmt::{HealthFinding, UnreachableNode, Verdict};
use wire::{MgmtReply, MgmtRequest};

/// Runs the due probes, each second for `time_s`.
async fn probe(site: &Rc<Site>, time_s: u64, outcome: impl Fn(&DueProbe) -> ProbeOutcome) {
    let management = site.cluster().management;
    for _ in 0..time_s {
        for probe in management.due_probes() {
            let outcome = outcome(&probe);
            management.note_probe(&probe, outcome);
        }
        rt::sleep(seconds(1)).await;
    }
}

async fn about(site: &Rc<Site>, text: &str) -> Vec<HealthFinding> {
    let Ok(MgmtReply::Health(health)) = site.ask(MgmtRequest::Health).await else { panic!() };
    health.findings.into_iter().filter(|found| found.what.contains(text)).collect()
}

#[test]
fn health_is_critical_while_a_node_sends_heartbeats_and_cant_be_reached() {
    simulated(2, TWO, async |site, nodes| {
        let lost = nodes[0].node;
        let blocked = |probe: &DueProbe| match probe.node == lost {
            true => ProbeOutcome::Failed(ProbeFailure::TimedOut),
            false => ProbeOutcome::Reached,
        };
        probe(&site, 12, blocked).await;
        let found = about(&site, "can't be reached").await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].verdict, Verdict::Critical);
        assert!(found[0].what.contains(&format!("node {lost} ")), "{found:?}");
        let state = |node| site.cluster().map().node(node).unwrap().state;
        assert_eq!(state(lost), types::NodeState::Online, "nothing else becomes of it");
        probe(&site, 4, |_| ProbeOutcome::Reached).await;
        assert_eq!(about(&site, "can't be reached").await, []);
    });
}

#[test]
fn unreachability_reports_expire() {
    simulated(2, TWO, async |site, nodes| {
        let report = |nodes| MgmtRequest::ReportUnreachable { member: "web1:7".into(), nodes };
        let cause = "127.0.0.1:7501: timed out".to_string();
        let named = UnreachableNode { node: nodes[1].node, cause };
        assert_eq!(site.ask(report(vec![named.clone()])).await, Ok(MgmtReply::Done));
        let found = about(&site, "can't reach node").await;
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Warning));
        assert!(found[0].what.contains("web1:7") && found[0].what.contains("timed out"), "{found:?}");
        assert_eq!(site.ask(report(vec![])).await, Ok(MgmtReply::Done));
        assert_eq!(about(&site, "can't reach node").await, []);
        site.ask(report(vec![named])).await.unwrap();
        rt::sleep(REPORT_VALIDITY + seconds(1)).await;
        assert_eq!(about(&site, "can't reach node").await, []);
    });
}
