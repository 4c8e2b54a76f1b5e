//! Cutting network links between nodes, and restoring them.
//!
//! Packets are dropped silently at the receiver, as by a broken switch: connections hang until
//! their own time-outs.

use super::super::outcome::TestResult;
use super::network::{Network, Node};

/// The nftables table with all cuts of a node.
const TABLE: &str = "inet weft_cut";

impl Network {
    /// Drops everything that `from` sends to `to`; the other direction stays open.
    pub fn cut_one_way(&self, from: &Node, to: &Node) -> TestResult {
        drop_at(to, &format!("add rule {TABLE} arriving ip saddr {} drop", from.address))
    }

    /// Cuts both directions between two nodes.
    pub fn cut(&self, one: &Node, other: &Node) -> TestResult {
        self.cut_one_way(one, other)?;
        self.cut_one_way(other, one)
    }

    /// Drops everything that the node receives; it can still send.
    pub fn cut_incoming(&self, node: &Node) -> TestResult {
        drop_at(node, &format!("add rule {TABLE} arriving iifname != \"lo\" drop"))
    }

    /// Drops everything that the node sends; it can still receive.
    pub fn cut_outgoing(&self, node: &Node) -> TestResult {
        drop_at(node, &format!("add rule {TABLE} leaving oifname != \"lo\" drop"))
    }

    /// Cuts the node off from all others.
    pub fn isolate(&self, node: &Node) -> TestResult {
        let arriving = format!("add rule {TABLE} arriving iifname != \"lo\" drop");
        let leaving = format!("add rule {TABLE} leaving oifname != \"lo\" drop");
        drop_at(node, &format!("{arriving}; {leaving}"))
    }

    /// Removes all cuts on all nodes.
    pub fn restore_links(&self) -> TestResult {
        // Adding the table first makes its deletion succeed even if it didn't exist.
        let all =
            |node: &Node| node.namespace.run("nft", &[&format!("add table {TABLE}; delete table {TABLE}")]);
        self.nodes().iter().try_for_each(|node| all(node).map(drop))
    }

    /// Takes the node's link down, which the node itself notices.
    pub fn link_down(&self, node: &Node) -> TestResult {
        self.switch.ip(&["link", "set", &node.port(), "down"])
    }

    /// Brings the node's link up again.
    pub fn link_up(&self, node: &Node) -> TestResult {
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
