//! Whether this service may act: it isn't stopping, and management counts its node as alive.

use crate::partition::peers::PeerServices;
use std::sync::Arc;
use types::{Error, Refusal, Result};

/// Whether this service may act.
pub(crate) struct Serving {
    /// The other services that share the partitions; `None` if this service owns all of them.
    peers: Option<Arc<PeerServices>>,
    /// Set when the service stops.
    pub stopping: rt::sync::Event,
}

impl Serving {
    pub fn new(peers: Option<Arc<PeerServices>>) -> Serving {
        Serving { peers, stopping: rt::sync::Event::new() }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.is_set()
    }

    /// Refuses requests while management may have assigned the partitions to other services.
    /// Returns the term in which this service owns them.
    pub fn require(&self) -> Result<u64> {
        let Some(peers) = &self.peers else { return Ok(0) };
        peers.serving_term().ok_or_else(cut_off_error)
    }

    /// Refuses a result that was obtained in another term.
    pub fn require_term(&self, term: u64) -> Result<()> {
        if self.require()? == term { Ok(()) } else { Err(cut_off_error()) }
    }

    /// Whether this service may evict for silence: not while it stops, nor while management
    /// considers its node dead. It may be cut off itself.
    pub fn may_evict(&self) -> bool {
        !self.is_stopping() && self.require().is_ok()
    }
}

fn cut_off_error() -> Error {
    let message = "this metadata service can't reach management, or couldn't until just now";
    Error::new(Refusal::PartitionNotServed, message).hint("check the network of its node")
}
