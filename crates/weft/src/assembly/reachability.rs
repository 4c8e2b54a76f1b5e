//! Who can be reached: management tries the addresses that nodes announce, other processes report
//! the nodes that they can't reach.

use super::peers::{MgmtChannel, Peers};
use mgmt::limits::REPORT_INTERVAL;
use mgmt::{DueProbe, Management};
use std::sync::Arc;
use std::time::Duration;
use types::NodeId;
use wire::MgmtRequest;
use wire::mgmt::UnreachableNode;

/// How often management looks which addresses are to be tried.
const PROBE_LOOK: Duration = Duration::from_millis(500);

/// How often a process looks which nodes it can't reach.
const REPORT_LOOK: Duration = Duration::from_secs(2);

/// Tries addresses of nodes for ever. Each try is a task of its own: one that hangs holds up
/// nothing.
pub async fn keep_probing(management: Arc<Management>, peers: Arc<Peers>) {
    loop {
        for probe in management.due_probes() {
            rt::spawn(try_one(management.clone(), peers.clone(), probe));
        }
        rt::sleep(PROBE_LOOK).await;
    }
}

async fn try_one(management: Arc<Management>, peers: Arc<Peers>, probe: DueProbe) {
    let outcome = peers.probe(&probe).await;
    management.note_probe(&probe, outcome);
}

/// Reports to management for ever which nodes this process can't reach: when that changes, and from
/// time to time as long as there are some.
pub async fn keep_reporting(peers: Arc<Peers>, management: MgmtChannel) {
    let (mut reported, mut reported_ns): (Vec<NodeId>, u64) = (Vec::new(), 0);
    loop {
        rt::sleep(REPORT_LOOK).await;
        let nodes = peers.unreachable();
        let ids: Vec<NodeId> = nodes.iter().map(|named| named.node).collect();
        let age_ns = rt::monotonic_ns().saturating_sub(reported_ns);
        let is_due = !ids.is_empty() && u128::from(age_ns) >= REPORT_INTERVAL.as_nanos();
        if ids == reported && !is_due {
            continue;
        }
        match report(&peers, &management, nodes).await {
            Ok(()) => (reported, reported_ns) = (ids, rt::monotonic_ns()),
            // It is reported at the next look.
            Err(error) => tracing::debug!(%error, "management isn't told of unreachable nodes for now"),
        }
    }
}

async fn report(peers: &Peers, management: &MgmtChannel, nodes: Vec<UnreachableNode>) -> types::Result<()> {
    let member = peers.own_name().to_string();
    management.call(MgmtRequest::ReportUnreachable { member, nodes }, None).await.map(drop)
}
