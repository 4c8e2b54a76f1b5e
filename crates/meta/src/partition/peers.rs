//! The other metadata services of the cluster, and the channels to them.

use net::Channel;
use parking_lot::Mutex;
use std::sync::{Arc, PoisonError, RwLock};
use types::{
    ClusterMap, Errno, Error, HashMap, MapHandle, Node, NodeId, NodeState, PartitionId, Result, Role,
};
use wire::{PartitionsReply, PartitionsRequest};

/// A channel to the metadata service of one node, for other services.
pub type PartitionsChannel = Channel<PartitionsRequest, PartitionsReply>;

/// What a service needs to know of its cluster to share partitions with others.
pub struct PeerContext {
    /// Creates the channel to the metadata service of another node.
    pub connect: Box<dyn Fn(&Node) -> PartitionsChannel + Send + Sync>,
    /// The term of management's trust in this node: `Some` with a number while management considers
    /// the node alive without a break. Numbers only distinguish terms and have no order. Outside a
    /// term, management may assign the node's partitions to others, and may have assigned them back
    /// when the next term begins.
    pub term: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

/// All metadata services of a cluster.
pub(crate) struct PeerServices {
    own: NodeId,
    map: MapHandle,
    context: PeerContext,
    /// Created when first needed; at most one for each node of the map.
    channels: RwLock<HashMap<NodeId, PeerChannel>>,
    /// The term in which the service last read the owner records.
    owners_read: Mutex<OwnersRead>,
}

/// When this service read from the store which partitions it owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnersRead {
    /// Never, and it owns none.
    Never,
    In(u64),
    /// While management didn't consider the node alive.
    OutsideTerm,
}

struct PeerChannel {
    addresses: Vec<String>,
    channel: PartitionsChannel,
}

impl PeerServices {
    pub fn new(own: NodeId, map: MapHandle, context: PeerContext) -> PeerServices {
        PeerServices {
            own,
            map,
            context,
            channels: RwLock::default(),
            owners_read: Mutex::new(OwnersRead::Never),
        }
    }

    /// The current term of management's trust in this node.
    pub fn term(&self) -> Option<u64> {
        (self.context.term)()
    }

    /// Returns the term, if the service has read the owner records in it. A node that was cut off,
    /// or paused, may have lost its partitions and got them back. Its cached state is invalid then,
    /// though its map may look unchanged.
    pub fn serving_term(&self) -> Option<u64> {
        let term = self.term()?;
        let is_known = match *self.owners_read.lock() {
            OwnersRead::Never => true,
            OwnersRead::In(read_in) => read_in == term,
            OwnersRead::OutsideTerm => false,
        };
        is_known.then_some(term)
    }

    /// Records that the service has read the owner records, and answers no more requests of
    /// partitions that others own. `term`: the one before the read.
    pub fn record_owners_read(&self, term: Option<u64>) {
        *self.owners_read.lock() = term.map_or(OwnersRead::OutsideTerm, OwnersRead::In);
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.load()
    }

    /// Whether the map assigns a partition to this node.
    pub fn is_assigned_to_self(&self, partition: PartitionId) -> bool {
        self.map().owner(partition).is_some_and(|node| node.id == self.own)
    }

    /// The channel to the service that should execute a partition.
    ///
    /// # Errors
    /// `EAGAIN` when it is this service, none, or one on a node that is down.
    pub fn owner_of(&self, partition: PartitionId) -> Result<PartitionsChannel> {
        let map = self.map();
        match map.owner(partition) {
            Some(node) if node.id != self.own && node.state != NodeState::Offline => Ok(self.channel(node)),
            _ => Err(Error::new(
                Errno::EAGAIN,
                format!("no metadata service executes partition {partition} now"),
            )),
        }
    }

    /// The channels to all other services that aren't known to be down.
    pub fn others(&self) -> Vec<PartitionsChannel> {
        let map = self.map();
        let is_other = |node: &&Node| {
            node.id != self.own && node.roles.contains(&Role::Meta) && node.state != NodeState::Offline
        };
        map.nodes.iter().filter(is_other).map(|node| self.channel(node)).collect()
    }

    fn channel(&self, node: &Node) -> PartitionsChannel {
        if let Some(peer) = self.channels.read().unwrap_or_else(PoisonError::into_inner).get(&node.id)
            && peer.addresses == node.addresses
        {
            return peer.channel.clone();
        }
        let peer = PeerChannel { addresses: node.addresses.clone(), channel: (self.context.connect)(node) };
        let channel = peer.channel.clone();
        self.channels.write().unwrap_or_else(PoisonError::into_inner).insert(node.id, peer);
        channel
    }
}
