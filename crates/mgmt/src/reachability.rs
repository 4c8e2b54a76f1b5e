//! Reachability of nodes: management probes each address that a node announces, and members of the
//! cluster report nodes that they can't reach.
//!
//! A node connects to management for its heartbeats, which says nothing of the other direction: its
//! address may have changed, or a firewall may block its port, while clients wait for it. Pure:
//! times are nanoseconds of a monotonic clock. In memory only.

use crate::health::finding;
use crate::limits::{
    MAX_PROBES, MAX_REPORT_TEXT, MAX_REPORTS, PROBE_INTERVAL, PROBE_RETRY, REPORT_VALIDITY, UNREACHABLE_AFTER,
};
use crate::liveness::{Liveness, NodeProcess};
use net::ProbeFailure;
use std::collections::BTreeMap;
use types::{ClusterMap, Node, NodeId, NodeState, Role};
use wire::mgmt::{HealthCode, HealthFinding, MAX_UNREACHABLE, UnreachableNode, Verdict};

/// An address of a node to be probed now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueProbe {
    /// The node.
    pub node: NodeId,
    /// Number of its process.
    pub instance: u64,
    /// Address, as the node announces it.
    pub address: String,
    /// Index of the address on the node: two concurrent probes must not end each other.
    pub index: u32,
}

/// Outcome of a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeOutcome {
    /// The node answered.
    Reached,
    /// The node didn't answer.
    Failed(ProbeFailure),
    /// Management's own network settings exclude this address.
    NotUsed,
}

/// State of all probes and reports.
#[derive(Default, Debug)]
pub(crate) struct Reachability {
    /// Nodes that send heartbeats, at most as many as in the map.
    nodes: BTreeMap<NodeId, NodeProbes>,
    /// The last report of each member, by the random number of its process.
    reports: BTreeMap<u64, Report>,
}

#[derive(Debug)]
struct NodeProbes {
    instance: u64,
    addresses: Vec<Address>,
}

#[derive(Debug)]
struct Address {
    text: String,
    due_ns: u64,
    is_in_progress: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Untried,
    NotUsed,
    Reached,
    Failed { since_ns: u64, cause: ProbeFailure },
}

#[derive(Debug)]
struct Report {
    at_ns: u64,
    /// Its name and address.
    member: String,
    nodes: Vec<UnreachableNode>,
}

impl Reachability {
    /// The addresses to be probed now; they count as in progress until their outcome is recorded.
    pub fn due(&mut self, map: &ClusterMap, liveness: &Liveness, now_ns: u64) -> Vec<DueProbe> {
        self.follow(map, liveness, now_ns);
        let all = || self.nodes.values().flat_map(|probed| &probed.addresses);
        let free = MAX_PROBES.saturating_sub(all().filter(|address| address.is_in_progress).count());
        let mut due: Vec<(u64, DueProbe)> = Vec::new();
        for (node, probed) in &self.nodes {
            let waiting = probed.addresses.iter().enumerate();
            due.extend(waiting.filter(|(_, a)| !a.is_in_progress && a.due_ns <= now_ns).map(
                |(index, address)| {
                    let (instance, text) = (probed.instance, address.text.clone());
                    let index = index as u32;
                    (address.due_ns, DueProbe { node: *node, instance, address: text, index })
                },
            ));
        }
        // Those that have waited longest, so that none starves.
        due.sort_by_key(|(due_ns, _)| *due_ns);
        due.truncate(free);
        let due: Vec<DueProbe> = due.into_iter().map(|(_, probe)| probe).collect();
        due.iter().for_each(|probe| {
            if let Some(address) = self.address_mut(probe) {
                address.is_in_progress = true;
            }
        });
        due
    }

    /// Drops outdated state: nodes that are removed, unreachable, restarted, or have other
    /// addresses now.
    fn follow(&mut self, map: &ClusterMap, liveness: &Liveness, now_ns: u64) {
        let process = |node: &Node| {
            let is_probed = node.state == NodeState::Online && !node.roles.contains(&Role::Mgmt);
            liveness.process(node.id).filter(|_| is_probed).map(|seen| seen.instance)
        };
        self.nodes.retain(|id, probed| {
            map.node(*id).is_some_and(|node| {
                let known = probed.addresses.iter().map(|address| &address.text);
                process(node) == Some(probed.instance) && known.eq(&node.addresses)
            })
        });
        for node in &map.nodes {
            let Some(instance) = process(node) else { continue };
            let untried = |text: &String| Address {
                text: text.clone(),
                due_ns: now_ns,
                is_in_progress: false,
                state: State::Untried,
            };
            let addresses = || node.addresses.iter().map(untried).collect();
            self.nodes.entry(node.id).or_insert_with(|| NodeProbes { instance, addresses: addresses() });
        }
    }

    fn address_mut(&mut self, probe: &DueProbe) -> Option<&mut Address> {
        let probed = self.nodes.get_mut(&probe.node).filter(|probed| probed.instance == probe.instance)?;
        // Not by its text alone: a node may announce one twice.
        let address = probed.addresses.get_mut(probe.index as usize)?;
        (address.text == probe.address).then_some(address)
    }

    /// Records the outcome of a probe. Returns whether it differs from the previous one.
    pub fn note(&mut self, probe: &DueProbe, outcome: ProbeOutcome, now_ns: u64) -> bool {
        let Some(address) = self.address_mut(probe) else { return false };
        address.is_in_progress = false;
        let had_failed = matches!(address.state, State::Failed { .. });
        let failed = matches!(outcome, ProbeOutcome::Failed(_));
        let interval = if failed { PROBE_RETRY } else { PROBE_INTERVAL };
        address.due_ns = now_ns.saturating_add(interval.as_nanos() as u64);
        address.state = match (outcome, &address.state) {
            (ProbeOutcome::Reached, _) => State::Reached,
            (ProbeOutcome::NotUsed, _) => State::NotUsed,
            (ProbeOutcome::Failed(cause), State::Failed { since_ns, .. }) => {
                State::Failed { since_ns: *since_ns, cause }
            }
            (ProbeOutcome::Failed(cause), _) => State::Failed { since_ns: now_ns, cause },
        };
        failed != had_failed
    }

    /// Records which nodes a member, at this address, can't reach.
    pub fn report(
        &mut self,
        process: u64,
        (member, address): (&str, &str),
        nodes: Vec<UnreachableNode>,
        now_ns: u64,
    ) {
        self.reports.retain(|_, report| !report.has_expired(now_ns));
        self.reports.remove(&process);
        if nodes.is_empty() {
            return;
        }
        if self.reports.len() >= MAX_REPORTS
            && let Some(oldest) =
                self.reports.iter().min_by_key(|(_, report)| report.at_ns).map(|(key, _)| *key)
        {
            self.reports.remove(&oldest);
        }
        let bounded = |node: UnreachableNode| UnreachableNode { cause: sanitize(&node.cause), ..node };
        let nodes = nodes.into_iter().take(MAX_UNREACHABLE).map(bounded).collect();
        let place = if address.is_empty() { String::new() } else { format!(" at {}", sanitize(address)) };
        let member = format!("{}{place}", sanitize(member));
        self.reports.insert(process, Report { at_ns: now_ns, member, nodes });
    }

    /// Findings for administrators.
    pub fn findings(&self, map: &ClusterMap, liveness: &Liveness, now_ns: u64) -> Vec<HealthFinding> {
        // Other findings say more about the other nodes.
        let online = map.nodes.iter().filter(|node| node.state == NodeState::Online);
        let of_node = |node: &Node| {
            let tried = liveness.process(node.id).and_then(|seen| self.as_probed(node, seen));
            tried.into_iter().chain(self.as_reported(node, now_ns))
        };
        online.flat_map(of_node).collect()
    }

    /// The finding of management's own probes.
    fn as_probed(&self, node: &Node, seen: &NodeProcess) -> Option<HealthFinding> {
        let probed = self.nodes.get(&node.id).filter(|probed| probed.instance == seen.instance)?;
        // It has sent a heartbeat since, so it isn't down.
        let is_lasting =
            |since_ns: u64| u128::from(seen.at_ns.saturating_sub(since_ns)) >= UNREACHABLE_AFTER.as_nanos();
        let failed: Vec<(&str, &ProbeFailure)> = probed
            .addresses
            .iter()
            .filter_map(|address| match &address.state {
                State::Failed { since_ns, cause } if is_lasting(*since_ns) => Some((&*address.text, cause)),
                _ => None,
            })
            .collect();
        let (_, cause) = failed.first()?;
        let used = probed.addresses.iter().filter(|a| !matches!(a.state, State::NotUsed)).count();
        let name = format!("node {} ({})", node.id, node.name);
        let causes: Vec<String> =
            failed.iter().map(|(address, cause)| format!("{address}: {cause}")).collect();
        let causes = causes.join("; ");
        let hint = remedy(cause, seen.has_foreign_addresses, &name);
        Some(match failed.len() < used {
            true => {
                let what = format!("{name} is reachable at some of its addresses only; {causes}");
                finding(HealthCode::NodePartlyReachable, Verdict::Warning, what, hint)
            }
            false => {
                let what = format!("{name} sends heartbeats, but can't be reached: {causes}");
                finding(HealthCode::NodeUnreachable, Verdict::Critical, what, hint)
            }
        })
    }

    /// The finding of members' reports.
    fn as_reported(&self, node: &Node, now_ns: u64) -> Option<HealthFinding> {
        let fresh = self.reports.values().filter(|report| !report.has_expired(now_ns));
        let mut about = fresh.filter_map(|report| {
            let named = report.nodes.iter().find(|named| named.node == node.id)?;
            Some((&report.member, &named.cause))
        });
        let (member, cause) = about.next()?;
        let count = 1 + about.count();
        let (verdict, who) = match count {
            1 => (Verdict::Warning, "1 client or node".to_string()),
            many => (Verdict::Critical, format!("{many} clients or nodes")),
        };
        let what =
            format!("{who} can't reach node {} ({}); the first is {member}: {cause}", node.id, node.name);
        let hint = "check the network between them (firewall, routes, networks in node.toml and in the cluster file); weft net show MOUNTPOINT there shows details";
        Some(finding(HealthCode::NodeReportedUnreachable, verdict, what, hint.into()))
    }
}

impl Report {
    fn has_expired(&self, now_ns: u64) -> bool {
        u128::from(now_ns.saturating_sub(self.at_ns)) > REPORT_VALIDITY.as_nanos()
    }
}

fn remedy(cause: &ProbeFailure, is_elsewhere: bool, name: &str) -> String {
    let correct = format!("correct addresses in node.toml of {name}, and start weft serve there again");
    if is_elsewhere {
        return format!("its machine has none of its addresses (ip address shows them): {correct}");
    }
    match cause {
        ProbeFailure::Refused => {
            format!("open its port in the firewall; if it listens elsewhere (listen in node.toml), {correct}")
        }
        ProbeFailure::TimedOut => format!(
            "open its port in firewalls, and check the routes; if its machine has other addresses now, {correct}"
        ),
        ProbeFailure::WrongPeer(_) => format!("if another machine has that address now, {correct}"),
        ProbeFailure::Failed(_) => {
            format!("check the network (ip route, firewall); if it has moved, {correct}")
        }
    }
}

/// Cuts untrusted text to a length that memory and screens bear.
fn sanitize(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_REPORT_TEXT).collect()
}

#[cfg(test)]
mod tests;
