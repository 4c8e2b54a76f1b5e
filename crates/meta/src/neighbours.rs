//! The other metadata services of the cluster, and how they are reached.

use net::Channel;
use parking_lot::Mutex;
use std::sync::{Arc, PoisonError, RwLock};
use types::{
    ClusterMap, Errno, Error, HashMap, MapHandle, Node, NodeId, NodeState, PartitionId, Result, Role,
};
use wire::{PartitionsReply, PartitionsRequest};

/// A way to the metadata service of one node, for other services.
pub type PartitionsChannel = Channel<PartitionsRequest, PartitionsReply>;

/// What a service has to know of its cluster to share partitions with others.
pub struct Company {
    /// Makes the way to the metadata service of another node.
    pub connect: Box<dyn Fn(&Node) -> PartitionsChannel + Send + Sync>,
    /// Whether management counts on this node, and since which time without a break: the times are
    /// told apart by numbers, of any order. Once it doesn't, it may give the node's partitions to
    /// others, and may have given them back when it does again.
    pub term: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

/// All metadata services of a cluster.
pub(crate) struct Neighbours {
    own: NodeId,
    map: MapHandle,
    company: Company,
    /// Made when they are first needed; as many as the map has nodes.
    ways: RwLock<HashMap<NodeId, Way>>,
    /// The term in which it was last looked who owns the partitions.
    looked: Mutex<Looked>,
}

/// When it was looked in the store who owns the partitions that this service has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looked {
    /// Not yet, and it has none.
    NotYet,
    In(u64),
    /// When management didn't count on the node.
    Between,
}

struct Way {
    addresses: Vec<String>,
    channel: PartitionsChannel,
}

impl Neighbours {
    pub fn new(own: NodeId, map: MapHandle, company: Company) -> Neighbours {
        Neighbours { own, map, company, ways: RwLock::default(), looked: Mutex::new(Looked::NotYet) }
    }

    /// The term of management's counting on this node.
    pub fn term(&self) -> Option<u64> {
        (self.company.term)()
    }

    /// The term, if it is known by now who owns the partitions. A node that was cut off, or stood
    /// still, may have lost them, and be given them anew: what it remembers of them is of no use
    /// then, but its map may look as before.
    pub fn serves(&self) -> Option<u64> {
        let term = self.term()?;
        let is_known = match *self.looked.lock() {
            Looked::NotYet => true,
            Looked::In(looked) => looked == term,
            Looked::Between => false,
        };
        is_known.then_some(term)
    }

    /// It was looked who owns the partitions, and nothing is answered of others any more. `term`:
    /// of before the look.
    pub fn has_looked(&self, term: Option<u64>) {
        *self.looked.lock() = term.map_or(Looked::Between, Looked::In);
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the map gives a partition to this node.
    pub fn is_own(&self, partition: PartitionId) -> bool {
        self.map().owner(partition).is_some_and(|node| node.id == self.own)
    }

    /// The way to the service that is to execute a partition.
    ///
    /// # Errors
    /// `EAGAIN` when it is this one, or nobody, or a node that is down.
    pub fn owner_of(&self, partition: PartitionId) -> Result<PartitionsChannel> {
        let map = self.map();
        match map.owner(partition) {
            Some(node) if node.id != self.own && node.state != NodeState::Offline => Ok(self.way(node)),
            _ => Err(Error::new(Errno::EAGAIN, format!("nobody executes partition {partition} for now"))),
        }
    }

    /// The ways to all others that aren't known to be down.
    pub fn others(&self) -> Vec<PartitionsChannel> {
        let map = self.map();
        let is_other = |node: &&Node| {
            node.id != self.own && node.roles.contains(&Role::Meta) && node.state != NodeState::Offline
        };
        map.nodes.iter().filter(is_other).map(|node| self.way(node)).collect()
    }

    fn way(&self, node: &Node) -> PartitionsChannel {
        if let Some(way) = self.ways.read().unwrap_or_else(PoisonError::into_inner).get(&node.id)
            && way.addresses == node.addresses
        {
            return way.channel.clone();
        }
        let way = Way { addresses: node.addresses.clone(), channel: (self.company.connect)(node) };
        let channel = way.channel.clone();
        self.ways.write().unwrap_or_else(PoisonError::into_inner).insert(node.id, way);
        channel
    }
}
