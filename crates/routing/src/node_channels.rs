//! Channels to the services of nodes, made when they are first needed.

use net::Channel;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use types::{ClusterMap, Node, NodeId};

/// Makes the channel to a node.
pub type Connect<Req, Rep> = Box<dyn Fn(&Node) -> Channel<Req, Rep> + Send + Sync>;

/// One channel for each node that was asked for; at most as many as the map has nodes. A node with
/// another address gets a new channel.
pub(crate) struct NodeChannels<Req, Rep> {
    connect: Connect<Req, Rep>,
    /// Ordered, so that a simulation drops them in the same order each time.
    channels: RwLock<BTreeMap<NodeId, CachedChannel<Req, Rep>>>,
}

struct CachedChannel<Req, Rep> {
    addresses: Vec<String>,
    channel: Channel<Req, Rep>,
}

impl<Req, Rep> NodeChannels<Req, Rep> {
    pub fn new(connect: Connect<Req, Rep>) -> NodeChannels<Req, Rep> {
        NodeChannels { connect, channels: RwLock::default() }
    }

    /// The channel to a node of this map.
    pub fn channel(&self, map: &ClusterMap, node: &Node) -> Channel<Req, Rep> {
        if let Some(cached) = self.channels.read().unwrap_or_else(PoisonError::into_inner).get(&node.id)
            && cached.addresses == node.addresses
        {
            return cached.channel.clone();
        }
        let mut channels = self.channels.write().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|id, cached| map.node(*id).is_some_and(|n| n.addresses == cached.addresses));
        let new = || CachedChannel { addresses: node.addresses.clone(), channel: (self.connect)(node) };
        channels.entry(node.id).or_insert_with(new).channel.clone()
    }
}
