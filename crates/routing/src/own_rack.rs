//! The rack of a process: nodes in the same rack are reached without crossing to another.

use parking_lot::RwLock;
use std::sync::Arc;
use types::{ClusterMap, Epoch, Node, TargetId};

/// Whether a node is on this machine.
pub type IsLocalNode = Box<dyn Fn(&Node) -> bool + Send + Sync>;

/// The rack of this process: the configured one, or that of a node on the same machine.
pub struct OwnRack {
    configured: Option<Arc<str>>,
    is_local: IsLocalNode,
    /// The result for the map of this epoch.
    found: RwLock<Option<(Epoch, Option<Arc<str>>)>>,
}

impl Default for OwnRack {
    /// An unknown rack.
    fn default() -> OwnRack {
        OwnRack::new(None, Box::new(|_| false))
    }
}

impl OwnRack {
    /// A rack that is configured, or that of a node on this machine by the map.
    pub fn new(configured: Option<String>, is_local: IsLocalNode) -> OwnRack {
        OwnRack { configured: configured.map(Arc::from), is_local, found: RwLock::default() }
    }

    /// Name of the rack, as far as it is known.
    pub fn name(&self, map: &ClusterMap) -> Option<Arc<str>> {
        if let Some(configured) = &self.configured {
            return Some(configured.clone());
        }
        if let Some((epoch, rack)) = &*self.found.read()
            && *epoch == map.epoch
        {
            return rack.clone();
        }
        let local_node = map.nodes.iter().find(|node| node.rack.is_some() && (self.is_local)(node));
        let rack: Option<Arc<str>> = local_node.and_then(|node| node.rack.as_deref()).map(Arc::from);
        *self.found.write() = Some((map.epoch, rack.clone()));
        rack
    }
}

/// Whether the node of a target is in a rack.
pub(crate) fn is_target_in_rack(map: &ClusterMap, target: TargetId, rack: &str) -> bool {
    let node = map.target(target).and_then(|target| map.node(target.node));
    node.is_some_and(|node| node.rack.as_deref() == Some(rack))
}
