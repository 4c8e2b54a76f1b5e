//! Reachability: management probes the addresses that nodes announce, and other processes report
//! nodes that they can't reach.

use super::peers::Peers;
use ::node::MgmtChannel;
use mgmt::limits::REPORT_INTERVAL;
use mgmt::{DueProbe, Management};
use std::sync::Arc;
use std::time::Duration;
use types::NodeId;
use wire::MgmtRequest;
use wire::mgmt::UnreachableNode;

/// Interval of checks which addresses to probe.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of checks which nodes are unreachable from this process.
const REPORT_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Probes addresses of nodes for ever. Each probe is a separate task, so one that hangs delays no
/// other.
pub async fn keep_probing(management: Arc<Management>, peers: Arc<Peers>) {
    loop {
        for probe in management.due_probes() {
            rt::spawn(probe_and_record(management.clone(), peers.clone(), probe));
        }
        rt::sleep(PROBE_INTERVAL).await;
    }
}

async fn probe_and_record(management: Arc<Management>, peers: Arc<Peers>, probe: DueProbe) {
    let outcome = peers.probe(&probe).await;
    management.note_probe(&probe, outcome);
}

/// Reports unreachable nodes to management for ever: when the set changes, and periodically as long
/// as it isn't empty.
pub async fn keep_reporting(peers: Arc<Peers>, management: MgmtChannel) {
    let (mut reported, mut reported_ns): (Vec<NodeId>, u64) = (Vec::new(), 0);
    loop {
        rt::sleep(REPORT_CHECK_INTERVAL).await;
        let nodes = peers.unreachable();
        let ids: Vec<NodeId> = nodes.iter().map(|named| named.node).collect();
        let age_ns = rt::monotonic_ns().saturating_sub(reported_ns);
        let is_due = !ids.is_empty() && u128::from(age_ns) >= REPORT_INTERVAL.as_nanos();
        if ids == reported && !is_due {
            continue;
        }
        match report(&peers, &management, nodes).await {
            Ok(()) => (reported, reported_ns) = (ids, rt::monotonic_ns()),
            // The next check reports it again.
            Err(error) => tracing::debug!(%error, "can't report unreachable nodes to management for now"),
        }
    }
}

async fn report(peers: &Peers, management: &MgmtChannel, nodes: Vec<UnreachableNode>) -> types::Result<()> {
    let member = peers.own_name().to_string();
    management.call(MgmtRequest::ReportUnreachable { member, nodes }, None).await.map(drop)
}
