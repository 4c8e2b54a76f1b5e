//! Links with limited bandwidth.

use super::super::outcome::TestResult;
use super::super::tools;
use super::network::{Network, Node};

/// Traffic of a link in bytes with headers (of an aggregated packet, its headers count once).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes to the node.
    pub received: u64,
    /// Bytes from the node.
    pub sent: u64,
}

impl Node {
    /// Returns the traffic of this node's link so far.
    pub fn traffic(&self) -> TestResult<Traffic> {
        let told = self.namespace.run("cat", &["/proc/self/net/dev"])?;
        carried(&told).ok_or_else(|| format!("{self}: no counters of eth0: {told}").into())
    }
}

fn carried(table: &str) -> Option<Traffic> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:"))?;
    let counts: Vec<u64> = line.split_whitespace().map_while(|count| count.parse().ok()).collect();
    Some(Traffic { received: *counts.first()?, sent: *counts.get(8)? })
}

/// Token bucket size: some packets, so that idle time isn't made up for.
const BURST: &str = "32kb";
/// Queueing limit as time: long enough that nothing in flight on a connection is dropped.
const QUEUE: &str = "1s";
/// Maximum size of an aggregated packet (GSO): it is sent as one unit, and must be below the burst
/// size.
const GSO_BYTES: &str = "16000";

impl Network {
    /// Sets the congestion control of new connections on all nodes.
    pub fn congestion_control(&self, rule: &str) -> TestResult {
        let setting = format!("net.ipv4.tcp_congestion_control={rule}");
        let set = |node: &Node| node.namespace.run("sysctl", &["-qw", &setting]).map(drop);
        self.nodes().iter().try_for_each(set)
    }

    /// Limits a node's link to `bits_per_s` in each direction, including all headers.
    pub fn limit(&self, node: &Node, bits_per_s: u64) -> TestResult {
        tools::find("tc")?;
        let (rate, port) = (format!("{bits_per_s}bit"), node.port());
        for (namespace, device) in [(&node.namespace, "eth0"), (&self.switch, port.as_str())] {
            namespace.ip(&["link", "set", device, "gso_max_size", GSO_BYTES])?;
            let bucket = ["tbf", "rate", &rate, "burst", BURST, "latency", QUEUE];
            namespace.run("tc", &[&["qdisc", "replace", "dev", device, "root"], &bucket[..]].concat())?;
        }
        Ok(())
    }

    /// Removes the limit.
    pub fn unlimit(&self, node: &Node) -> TestResult {
        let port = node.port();
        for (namespace, device) in [(&node.namespace, "eth0"), (&self.switch, port.as_str())] {
            // Replacing first makes the deletion succeed even if there was no limit.
            namespace.run("tc", &["qdisc", "replace", "dev", device, "root", "pfifo"])?;
            namespace.run("tc", &["qdisc", "del", "dev", device, "root"])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_the_wire_are_found() {
        let table = "Inter-| Receive | Transmit\n    lo:  9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n  eth0: 70 1 0 0 0 0 0 0 80 2 0 0 0 0 0 0\n";
        assert_eq!(carried(table), Some(Traffic { received: 70, sent: 80 }));
        assert_eq!(carried("lo: 1"), None);
    }
}
