//! Distribution of partitions over nodes.

use types::NodeId;

/// Distributes partitions over nodes so that the counts of any two nodes differ by at most one,
/// with as few moves as possible.
///
/// `now`: the current owner of each partition, as far as known. `nodes`: the eligible nodes, each
/// once. Without any, all owners stay the same: a node will return.
///
/// ```
/// use types::NodeId;
/// let (a, b) = (NodeId(1), NodeId(2));
/// assert_eq!(layout::distribute_partitions(&[], 4, &[a]), [a, a, a, a]);
/// assert_eq!(layout::distribute_partitions(&[a, a, a, a], 4, &[a, b]), [a, a, b, b]);
/// assert_eq!(layout::distribute_partitions(&[a, a, b, b], 4, &[b]), [b, b, b, b]);
/// ```
pub fn distribute_partitions(now: &[NodeId], partitions: u16, nodes: &[NodeId]) -> Vec<NodeId> {
    if nodes.is_empty() {
        return now.to_vec();
    }
    let owner = |partition: usize| now.get(partition).copied();
    let all = 0..partitions as usize;
    let mut owned: Vec<(usize, NodeId)> =
        nodes.iter().map(|node| (all.clone().filter(|p| owner(*p) == Some(*node)).count(), *node)).collect();
    // Nodes with the most partitions get the remainder: this causes fewer moves.
    owned.sort_by_key(|(count, node)| (std::cmp::Reverse(*count), *node));
    let (share, rest) = (all.len() / nodes.len(), all.len() % nodes.len());
    let mut quotas: Vec<(NodeId, usize)> =
        owned.iter().enumerate().map(|(i, (_, node))| (*node, share + usize::from(i < rest))).collect();
    let mut spread: Vec<Option<NodeId>> = all
        .map(|partition| {
            let (_, left) =
                quotas.iter_mut().find(|(node, left)| owner(partition) == Some(*node) && *left > 0)?;
            *left -= 1;
            owner(partition)
        })
        .collect();
    let mut receivers = quotas.into_iter().flat_map(|(node, left)| std::iter::repeat_n(node, left));
    for free in spread.iter_mut().filter(|owner| owner.is_none()) {
        *free = receivers.next();
    }
    spread.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn counts(spread: &[NodeId]) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        spread.iter().for_each(|node| *counts.entry(*node).or_default() += 1);
        counts
    }

    #[test]
    fn golden() {
        let nodes = [NodeId(1), NodeId(2), NodeId(3)];
        let one = distribute_partitions(&[], 8, &nodes[..1]);
        let two = distribute_partitions(&one, 8, &nodes[..2]);
        let three = distribute_partitions(&two, 8, &nodes);
        let without = distribute_partitions(&three, 8, &[NodeId(1), NodeId(3)]);
        let ids = |spread: &[NodeId]| spread.iter().map(|node| node.0).collect::<Vec<_>>();
        assert_eq!(ids(&one), [1; 8]);
        assert_eq!(ids(&two), [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(ids(&three), [1, 1, 1, 3, 2, 2, 2, 3]);
        assert_eq!(ids(&without), [1, 1, 1, 3, 1, 3, 3, 3]);
        assert_eq!(distribute_partitions(&three, 8, &[]), three, "nobody is there to take them");
    }

    proptest! {
        #[test]
        fn partitions_are_even_and_move_no_more_than_they_must(
            now in prop::collection::vec(0u32..8, 0..80),
            partitions in 1u16..80,
            nodes in prop::collection::btree_set(0u32..8, 1..8),
        ) {
            let now: Vec<NodeId> = now.into_iter().map(NodeId).collect();
            let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
            let after = distribute_partitions(&now, partitions, &nodes);
            prop_assert_eq!(after.len(), partitions as usize);
            prop_assert!(after.iter().all(|node| nodes.contains(node)));
            let counts = counts(&after);
            let of = |node: &NodeId| counts.get(node).copied().unwrap_or(0);
            let (least, most) = (nodes.iter().map(of).min().unwrap(), nodes.iter().map(of).max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", counts);

            // In any even distribution, a node retains at most what it had and at most its share;
            // the shares are fixed.
            let had = |node: &NodeId| {
                now.iter().take(partitions as usize).filter(|owner| *owner == node).count()
            };
            let (share, rest) = (partitions as usize / nodes.len(), partitions as usize % nodes.len());
            let mut could_keep: Vec<usize> = nodes.iter().map(|node| had(node).min(share)).collect();
            could_keep.sort_unstable();
            let larger = nodes.iter().filter(|node| had(node) > share).count().min(rest);
            let best: usize = could_keep.iter().sum::<usize>() + larger;
            let kept = now.iter().zip(&after).filter(|(before, after)| before == after).count();
            prop_assert_eq!(kept, best);

            prop_assert_eq!(distribute_partitions(&after, partitions, &nodes), after, "it stays as it is");
        }
    }
}
