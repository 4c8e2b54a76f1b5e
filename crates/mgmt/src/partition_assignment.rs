//! Assignment of partitions to metadata services.

use types::{ClusterMap, Node, NodeId, NodeState, Role};

/// Assigns every partition to a metadata service that isn't offline, evenly and with as few moves
/// as possible. A service that hangs briefly keeps its partitions. While only one node has the
/// metadata role, the map lists no partitions.
pub fn assign(map: &mut ClusterMap, partitions: u16) {
    let metas = || map.nodes.iter().filter(|node| node.roles.contains(&Role::Meta));
    if map.partitions.is_empty() && metas().count() < 2 {
        return;
    }
    let now = match map.partitions.is_empty() {
        // Before there was a second one, the first one owned all.
        true => metas().next().map_or_else(Vec::new, |first| vec![first.id; partitions as usize]),
        false => map.partitions.clone(),
    };
    let nodes: Vec<NodeId> = metas().filter(|node| node.state != NodeState::Offline).map(|n| n.id).collect();
    map.partitions = layout::distribute_partitions(&now, partitions, &nodes);
}

/// Logs which services gained or lost partitions.
pub fn log_moves(before: &ClusterMap, after: &ClusterMap) {
    if before.partitions == after.partitions {
        return;
    }
    let count =
        |map: &ClusterMap, node: NodeId| map.partitions.iter().filter(|owner| **owner == node).count();
    let changed = |node: &&Node| count(before, node.id) != count(after, node.id);
    for node in after.nodes.iter().filter(changed) {
        let (id, name) = (node.id.0, &node.name);
        let (had, has) = (count(before, node.id), count(after, node.id));
        tracing::info!(node = id, had, has, "node {id} ({name}) now owns {has} partitions");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(nodes: &[(u32, Role, NodeState)]) -> ClusterMap {
        let node = |&(id, role, state): &(u32, Role, NodeState)| Node {
            id: NodeId(id),
            name: format!("n{id}"),
            addresses: vec![],
            roles: vec![role],
            state,
            version: String::new(),
            rack: None,
        };
        ClusterMap { nodes: nodes.iter().map(node).collect(), ..ClusterMap::default() }
    }

    fn counts(map: &ClusterMap) -> Vec<(u32, usize)> {
        let count = |node: &Node| map.partitions.iter().filter(|owner| **owner == node.id).count();
        map.nodes.iter().map(|node| (node.id.0, count(node))).collect()
    }

    #[test]
    fn partitions_follow_joins_deaths_and_returns() {
        use NodeState::{Offline, Online, ProbablyOffline};
        let mut now = map(&[(1, Role::Meta, Online), (2, Role::Storage, Online)]);
        assign(&mut now, 64);
        assert!(now.partitions.is_empty(), "there is nothing to say");

        now.nodes.push(map(&[(3, Role::Meta, Offline)]).nodes.remove(0));
        assign(&mut now, 64);
        assert_eq!(counts(&now), [(1, 64), (2, 0), (3, 0)], "one that isn't there yet gets none");

        now.nodes[2].state = Online;
        assign(&mut now, 64);
        assert_eq!(counts(&now), [(1, 32), (2, 0), (3, 32)]);
        let even = now.partitions.clone();

        now.nodes[0].state = ProbablyOffline;
        assign(&mut now, 64);
        assert_eq!(now.partitions, even, "one that hangs for a moment keeps what it has");

        now.nodes[0].state = Offline;
        assign(&mut now, 64);
        assert_eq!(counts(&now), [(1, 0), (2, 0), (3, 64)]);

        now.nodes[2].state = Offline;
        assign(&mut now, 64);
        assert_eq!(counts(&now), [(1, 0), (2, 0), (3, 64)], "nobody else is there");

        (now.nodes[0].state, now.nodes[2].state) = (Online, Online);
        assign(&mut now, 64);
        assert_eq!(counts(&now), [(1, 32), (2, 0), (3, 32)]);
    }
}
