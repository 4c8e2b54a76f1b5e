//! Wires that carry only so much.

use super::super::outcome::TestResult;
use super::super::tools;
use super::network::{Network, Node};

/// What a wire has carried, bytes with headers (of bundled packets those of one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// To the node.
    pub received: u64,
    /// From it.
    pub sent: u64,
}

impl Node {
    /// What this node's wire has carried so far.
    pub fn carried(&self) -> TestResult<Carried> {
        let told = self.namespace.run("cat", &["/proc/self/net/dev"])?;
        carried(&told).ok_or_else(|| format!("{self}: no counters of eth0: {told}").into())
    }
}

fn carried(table: &str) -> Option<Carried> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:"))?;
    let counts: Vec<u64> = line.split_whitespace().map_while(|count| count.parse().ok()).collect();
    Some(Carried { received: *counts.first()?, sent: *counts.get(8)? })
}

/// What leaves at once after a rest: some packets, so that rests aren't made up for.
const BURST: &str = "32kb";
/// How long what waits at a wire may be on its way: so long that nothing is dropped which a
/// connection has under way.
const QUEUE: &str = "1s";
/// Largest bundle of packets that the kernel hands over: bundles are sent as they are, and have to
/// be below the burst.
const BUNDLE_BYTES: &str = "16000";

impl Network {
    /// New connections of all nodes go by this rule for congestion.
    pub fn congestion_control(&self, rule: &str) -> TestResult {
        let setting = format!("net.ipv4.tcp_congestion_control={rule}");
        let set = |node: &Node| node.namespace.run("sysctl", &["-qw", &setting]).map(drop);
        self.nodes().iter().try_for_each(set)
    }

    /// From now on a node's wire carries `bits_per_s` in each direction, with all headers.
    pub fn limit(&self, node: &Node, bits_per_s: u64) -> TestResult {
        tools::find("tc")?;
        let (rate, port) = (format!("{bits_per_s}bit"), node.port());
        for (namespace, device) in [(&node.namespace, "eth0"), (&self.switch, port.as_str())] {
            namespace.ip(&["link", "set", device, "gso_max_size", BUNDLE_BYTES])?;
            let bucket = ["tbf", "rate", &rate, "burst", BURST, "latency", QUEUE];
            namespace.run("tc", &[&["qdisc", "replace", "dev", device, "root"], &bucket[..]].concat())?;
        }
        Ok(())
    }

    /// The wire carries anything again.
    pub fn unlimit(&self, node: &Node) -> TestResult {
        let port = node.port();
        for (namespace, device) in [(&node.namespace, "eth0"), (&self.switch, port.as_str())] {
            // Put there first, so that it succeeds where nothing was.
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
        assert_eq!(carried(table), Some(Carried { received: 70, sent: 80 }));
        assert_eq!(carried("lo: 1"), None);
    }
}
