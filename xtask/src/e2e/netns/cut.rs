//! Cutting nodes off from each other, and healing.
//!
//! Packets are dropped without a word where they arrive, as a broken switch does: connections hang
//! until their own time-outs.

use super::super::outcome::TestResult;
use super::network::{Network, Node};

/// The table that holds all cuts of a node.
const TABLE: &str = "inet weft_cut";

impl Network {
    /// From now on nothing that `from` sends arrives at `to`; the other way stays open.
    pub fn cut_one_way(&self, from: &Node, to: &Node) -> TestResult {
        drop_at(to, &format!("add rule {TABLE} arriving ip saddr {} drop", from.address))
    }

    /// The two can't talk any more.
    pub fn cut(&self, one: &Node, other: &Node) -> TestResult {
        self.cut_one_way(one, other)?;
        self.cut_one_way(other, one)
    }

    /// Nothing arrives at the node any more; what it says is still heard.
    pub fn deafen(&self, node: &Node) -> TestResult {
        drop_at(node, &format!("add rule {TABLE} arriving iifname != \"lo\" drop"))
    }

    /// Nothing that the node says is heard any more; it still hears.
    pub fn silence(&self, node: &Node) -> TestResult {
        drop_at(node, &format!("add rule {TABLE} leaving oifname != \"lo\" drop"))
    }

    /// The node can talk to nobody.
    pub fn isolate(&self, node: &Node) -> TestResult {
        let arriving = format!("add rule {TABLE} arriving iifname != \"lo\" drop");
        let leaving = format!("add rule {TABLE} leaving oifname != \"lo\" drop");
        drop_at(node, &format!("{arriving}; {leaving}"))
    }

    /// Undoes all cuts of all nodes.
    pub fn heal(&self) -> TestResult {
        // Adding what may be there makes removing what may be absent succeed.
        let all =
            |node: &Node| node.namespace.run("nft", &[&format!("add table {TABLE}; delete table {TABLE}")]);
        self.nodes().iter().try_for_each(|node| all(node).map(drop))
    }

    /// Pulls the node's plug: its own side notices, too.
    pub fn unplug(&self, node: &Node) -> TestResult {
        self.switch.ip(&["link", "set", &node.port(), "down"])
    }

    /// Puts it in again.
    pub fn plug(&self, node: &Node) -> TestResult {
        self.switch.ip(&["link", "set", &node.port(), "up"])
    }
}

/// Adds rules to the table of a node.
fn drop_at(node: &Node, rules: &str) -> TestResult {
    let chain = |name: &str, hook: &str| {
        format!("add chain {TABLE} {name} {{ type filter hook {hook} priority 0; }}")
    };
    let (arriving, leaving) = (chain("arriving", "input"), chain("leaving", "output"));
    node.namespace.run("nft", &[&format!("add table {TABLE}; {arriving}; {leaving}; {rules}")])?;
    Ok(())
}
