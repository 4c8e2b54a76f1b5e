//! The rack that a process is in: what is in the same one is reached without crossing to another.

use parking_lot::RwLock;
use std::sync::Arc;
use types::{ClusterMap, Epoch, Node, TargetId};

/// Whether a node is on this machine.
pub type OnThisHost = Box<dyn Fn(&Node) -> bool + Send + Sync>;

/// The rack of this process: the one that was told, or that of a node on the same machine.
pub struct OwnRack {
    told: Option<Arc<str>>,
    is_here: OnThisHost,
    /// What was found in the map of an epoch.
    found: RwLock<Option<(Epoch, Option<Arc<str>>)>>,
}

impl Default for OwnRack {
    /// Nothing is known of it.
    fn default() -> OwnRack {
        OwnRack::new(None, Box::new(|_| false))
    }
}

impl OwnRack {
    /// One that somebody has told, or that is found out.
    pub fn new(told: Option<String>, is_here: OnThisHost) -> OwnRack {
        OwnRack { told: told.map(Arc::from), is_here, found: RwLock::default() }
    }

    /// Its name, as far as the map goes.
    pub fn name(&self, map: &ClusterMap) -> Option<Arc<str>> {
        if let Some(told) = &self.told {
            return Some(told.clone());
        }
        if let Some((epoch, rack)) = &*self.found.read()
            && *epoch == map.epoch
        {
            return rack.clone();
        }
        let here = map.nodes.iter().find(|node| node.rack.is_some() && (self.is_here)(node));
        let rack: Option<Arc<str>> = here.and_then(|node| node.rack.as_deref()).map(Arc::from);
        *self.found.write() = Some((map.epoch, rack.clone()));
        rack
    }
}

/// Whether the node of a target is in a rack.
pub(crate) fn is_in(map: &ClusterMap, target: TargetId, rack: &str) -> bool {
    let node = map.target(target).and_then(|target| map.node(target.node));
    node.is_some_and(|node| node.rack.as_deref() == Some(rack))
}
