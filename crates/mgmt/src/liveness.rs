//! Last heartbeats of nodes.
//!
//! In memory only: after a start of management every node has as long as after a heartbeat to
//! register again. Times are nanoseconds of a monotonic clock, and are arguments.

use crate::limits::{
    MAX_CLOCK_SKEW_S, MAX_RESYNCS, MAX_SCRUBS, OFFLINE_AFTER, PROBABLY_OFFLINE_AFTER, REPLACE_PRIMARY_AFTER,
};
use crate::member_states::ReachabilitySnapshot;
use crate::rates::{ReportedCounters, TargetRates};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{ClusterMap, Epoch, NodeId, NodeState, Target, TargetId};
use wire::mgmt::{ResyncProgress, ScrubProgress, TargetRate, TargetReport, TargetSpace};

/// State of the nodes' processes.
#[derive(Debug)]
pub struct Liveness {
    started_ns: u64,
    nodes: BTreeMap<NodeId, NodeProcess>,
    own_scrubs: Vec<ScrubProgress>,
    rates: TargetRates,
    /// Expiry of the nodes' certificates, Unix seconds: the latest that each has shown.
    certificates: BTreeMap<NodeId, i64>,
}

/// A process of a node.
#[derive(Clone, Debug)]
pub struct NodeProcess {
    /// Random number of the process.
    pub instance: u64,
    /// Its machine has none of the addresses that it announces.
    pub has_foreign_addresses: bool,
    /// Time of its last heartbeat.
    pub at_ns: u64,
    /// How far its clock is ahead, in seconds.
    pub skew_s: i64,
    /// A lower bound of its map's epoch.
    pub epoch: Epoch,
    /// Resyncs that it is running.
    pub resyncs: Vec<ResyncProgress>,
    /// Scrub progress of its targets.
    pub scrubs: Vec<ScrubProgress>,
    spaces: BTreeMap<TargetId, Option<TargetSpace>>,
}

impl Liveness {
    /// State without any heartbeats.
    pub fn new(now_ns: u64) -> Liveness {
        Liveness {
            started_ns: now_ns,
            nodes: BTreeMap::new(),
            own_scrubs: Vec::new(),
            rates: TargetRates::default(),
            certificates: BTreeMap::new(),
        }
    }

    /// Records the registration of a node's process.
    pub fn note_registration(&mut self, node: NodeId, instance: u64, now_ns: u64) {
        let process = NodeProcess {
            instance,
            has_foreign_addresses: false,
            at_ns: now_ns,
            skew_s: 0,
            epoch: Epoch(0),
            resyncs: Vec::new(),
            scrubs: Vec::new(),
            spaces: BTreeMap::new(),
        };
        self.nodes.insert(node, process);
    }

    /// Records whether the machine of a node has none of the addresses that the node announces.
    pub fn set_has_foreign_addresses(&mut self, node: NodeId, is_elsewhere: bool) {
        if let Some(process) = self.nodes.get_mut(&node) {
            process.has_foreign_addresses = is_elsewhere;
        }
    }

    /// Records the map and the resyncs of the process.
    pub fn note_map(&mut self, node: NodeId, instance: u64, epoch: Epoch, resyncs: &[ResyncProgress]) {
        if let Some(process) = self.nodes.get_mut(&node).filter(|seen| seen.instance == instance) {
            process.epoch = process.epoch.max(epoch);
            process.resyncs = resyncs.iter().take(MAX_RESYNCS).cloned().collect();
        }
    }

    /// Records the scrubs of the process.
    pub fn note_scrubs(&mut self, node: NodeId, instance: u64, scrubs: &[ScrubProgress]) {
        if let Some(process) = self.nodes.get_mut(&node).filter(|seen| seen.instance == instance) {
            process.scrubs = scrubs.iter().take(MAX_SCRUBS).cloned().collect();
        }
    }

    /// Records the scrubs of management's own process, in a cluster without nodes.
    pub fn note_own_scrubs(&mut self, scrubs: Vec<ScrubProgress>) {
        self.own_scrubs = scrubs;
    }

    /// Scrub progress by target.
    pub fn scrubs(&self) -> Vec<ScrubProgress> {
        let of_nodes = self.nodes.values().flat_map(|seen| seen.scrubs.clone());
        let mut scrubs: Vec<ScrubProgress> = of_nodes.chain(self.own_scrubs.clone()).collect();
        scrubs.sort_by_key(|progress| progress.target);
        scrubs
    }

    /// Records a heartbeat of the process; false if it isn't the registered one.
    pub fn note_heartbeat(
        &mut self,
        node: NodeId,
        instance: u64,
        skew_s: i64,
        targets: &[TargetReport],
        now_ns: u64,
    ) -> bool {
        match self.nodes.get_mut(&node) {
            Some(process) if process.instance == instance => {
                process.at_ns = now_ns;
                process.skew_s = skew_s;
                process.spaces = targets.iter().map(|t| (t.target, t.space)).collect();
                let reports = targets.iter().filter_map(|t| {
                    let device = t.space.map(|space| space.device);
                    Some(ReportedCounters { target: t.target, device, work: t.work? })
                });
                self.note_io_counters(reports, now_ns);
                true
            }
            _ => false,
        }
    }

    /// Records I/O counters of targets.
    pub(crate) fn note_io_counters(
        &mut self,
        reports: impl IntoIterator<Item = ReportedCounters>,
        now_ns: u64,
    ) {
        self.rates.note(reports, now_ns);
    }

    /// Rates of a map's targets, and their share of each target's ceilings.
    pub fn rates(
        &self,
        map: &ClusterMap,
        now_ns: u64,
        ceiling: impl Fn(TargetId, &str) -> Option<f64>,
    ) -> Vec<TargetRate> {
        let targets: Vec<TargetId> = map.targets.iter().map(|target| target.id).collect();
        self.rates.rates_of(&targets, now_ns, ceiling)
    }

    /// The file system of a target: equal for targets that share one.
    pub fn device(&self, target: TargetId) -> Option<u64> {
        self.rates.device(target)
    }

    /// Records the expiry of a node's certificate.
    pub fn note_certificate(&mut self, node: NodeId, ends_s: i64) {
        let known = self.certificates.entry(node).or_insert(ends_s);
        // Earlier connections show the earlier certificate.
        *known = ends_s.max(*known);
    }

    /// Expiry of the nodes' certificates, Unix seconds.
    pub fn certificates(&self) -> &BTreeMap<NodeId, i64> {
        &self.certificates
    }

    /// Drops a node that has shut down or was removed.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// The process that has registered since management started.
    pub fn process(&self, node: NodeId) -> Option<&NodeProcess> {
        self.nodes.get(&node)
    }

    /// The new state of a node that was in state `before`.
    pub fn state(&self, node: NodeId, before: NodeState, now_ns: u64) -> NodeState {
        match self.since_heartbeat_ns(node, before, now_ns) {
            ns if ns >= OFFLINE_AFTER.as_nanos() => NodeState::Offline,
            ns if ns >= PROBABLY_OFFLINE_AFTER.as_nanos() => NodeState::ProbablyOffline,
            _ => NodeState::Online,
        }
    }

    /// Time since the last heartbeat of a node that was in state `before`; unlimited if it has shut
    /// down.
    fn since_heartbeat_ns(&self, node: NodeId, before: NodeState, now_ns: u64) -> u128 {
        let since = match self.nodes.get(&node) {
            Some(process) => process.at_ns,
            // It may have served while management was down.
            None if before != NodeState::Offline => self.started_ns,
            None => return u128::MAX,
        };
        now_ns.saturating_sub(since).into()
    }

    /// Whether a node that was in state `before` has sent no heartbeat for `time`.
    pub fn has_no_heartbeat_for(&self, node: NodeId, before: NodeState, time: Duration, now_ns: u64) -> bool {
        self.since_heartbeat_ns(node, before, now_ns) >= time.as_nanos()
    }

    /// Which nodes of a map are reachable.
    pub fn reachability_snapshot(&self, map: &ClusterMap, now_ns: u64) -> ReachabilitySnapshot {
        let mut presence = ReachabilitySnapshot::default();
        for node in &map.nodes {
            let silent_ns = self.since_heartbeat_ns(node.id, node.state, now_ns);
            // A node that may have served while management was down is neither.
            if silent_ns < PROBABLY_OFFLINE_AFTER.as_nanos() && self.nodes.contains_key(&node.id) {
                presence.reachable.insert(node.id);
            }
            if silent_ns >= REPLACE_PRIMARY_AFTER.as_nanos() {
                presence.expired.insert(node.id);
            }
        }
        let is_missing = |target: &&Target| self.space(target.node, target.id) == Some(None);
        presence.missing = map.targets.iter().filter(is_missing).map(|target| target.id).collect();
        presence
    }

    /// A node's report on one of its targets: `None` without a report since management started.
    pub fn space(&self, node: NodeId, target: TargetId) -> Option<Option<TargetSpace>> {
        let process = self.nodes.get(&node)?;
        Some(process.spaces.get(&target).copied().flatten())
    }
}

impl NodeProcess {
    /// Whether its clock is too far from management's.
    pub fn is_skewed(&self) -> bool {
        is_skewed(self.skew_s)
    }
}

/// Whether a clock that is ahead by so many seconds is too far from management's.
pub fn is_skewed(skew_s: i64) -> bool {
    skew_s.unsigned_abs() > MAX_CLOCK_SKEW_S
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const NODE: NodeId = NodeId(7);

    #[test]
    fn a_silent_node_becomes_offline_in_two_steps() {
        let mut liveness = Liveness::new(100 * S);
        liveness.note_registration(NODE, 1, 100 * S);
        let state = |liveness: &Liveness, s: u64| liveness.state(NODE, NodeState::Online, s * S);
        assert_eq!(state(&liveness, 105), NodeState::Online);
        assert_eq!(state(&liveness, 106), NodeState::ProbablyOffline);
        assert_eq!(state(&liveness, 114), NodeState::ProbablyOffline);
        assert_eq!(state(&liveness, 115), NodeState::Offline);
        assert!(liveness.note_heartbeat(NODE, 1, 0, &[], 116 * S));
        assert_eq!(state(&liveness, 117), NodeState::Online);
        liveness.forget(NODE);
        assert_eq!(liveness.state(NODE, NodeState::Offline, 117 * S), NodeState::Offline);
    }

    #[test]
    fn after_a_start_all_nodes_have_time_to_register() {
        let liveness = Liveness::new(100 * S);
        let state = |before, s: u64| liveness.state(NODE, before, s * S);
        assert_eq!(state(NodeState::Online, 101), NodeState::Online);
        assert_eq!(state(NodeState::ProbablyOffline, 107), NodeState::ProbablyOffline);
        assert_eq!(state(NodeState::Online, 116), NodeState::Offline);
        assert_eq!(state(NodeState::Offline, 101), NodeState::Offline);
    }

    #[test]
    fn only_the_process_that_has_registered_counts() {
        let mut liveness = Liveness::new(0);
        assert!(!liveness.note_heartbeat(NODE, 1, 0, &[], S));
        liveness.note_registration(NODE, 1, S);
        liveness.note_registration(NODE, 2, 2 * S);
        assert!(!liveness.note_heartbeat(NODE, 1, 0, &[], 3 * S));
        assert!(liveness.note_heartbeat(NODE, 2, 31, &[], 3 * S));
        assert!(liveness.process(NODE).unwrap().is_skewed());
    }

    #[test]
    fn clocks_may_differ_by_half_a_minute() {
        assert!(!is_skewed(30) && !is_skewed(-30) && is_skewed(31) && is_skewed(-31));
    }
}
