//! Clients whose certificates were revoked and whom the servers of a process refuse.

use crate::Proof;
use identity::{Identity, Member};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use types::ClusterMap;

/// The revocation list of the cluster map that the process follows.
pub(crate) struct Revocations {
    /// Epoch of the map; 0 if it has no revocations, which costs a request one atomic load.
    version: AtomicU64,
    map: RwLock<Arc<ClusterMap>>,
}

impl Default for Revocations {
    fn default() -> Revocations {
        Revocations { version: AtomicU64::new(0), map: RwLock::default() }
    }
}

impl Revocations {
    /// Applies a map from now on.
    pub(crate) fn follow(&self, map: &Arc<ClusterMap>) {
        let version = if map.revoked.is_empty() { 0 } else { map.epoch.0 };
        let mut known = self.map.write();
        if known.epoch <= map.epoch {
            *known = map.clone();
            self.version.store(version, Ordering::Release);
        }
    }

    /// Changes with the list; 0: nothing is revoked.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether a member's certificate was revoked. A certificate without an issue number is older
    /// than all that have one.
    pub(crate) fn is_revoked(&self, identity: &Identity) -> bool {
        match &identity.role {
            Member::Client(name) if self.version() != 0 => {
                self.map.read().is_revoked(name, identity.issue_number().unwrap_or(0))
            }
            Member::Client(_) | Member::Node(_) => false,
        }
    }

    /// The same for what the other end of a connection has proved.
    pub(crate) fn is_proof_revoked(&self, proof: &Proof) -> bool {
        match proof {
            Proof::Member(identity) => self.is_revoked(identity),
            Proof::NotRequired | Proof::Unauthenticated => false,
        }
    }
}
