//! What a directory hands to new files, and what a file then keeps.

use crate::{GroupId, InodeId, PoolId};
use serde::{Deserialize, Serialize};

/// The largest inline limit, in bytes.
pub const MAX_INLINE_LIMIT: u32 = 64 * 1024;

/// How a group keeps its data safe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// One target, no copy.
    #[default]
    Single,
}

/// How the groups of a new file are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chooser {
    /// Each file starts one group after where the file before it started.
    #[default]
    RoundRobin,
    /// Uniformly at random.
    Random,
    /// At random, in proportion to free space.
    CapacityWeighted,
}

/// What a directory hands to new files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StripePattern {
    /// Where the groups come from.
    pub pool: PoolId,
    /// Redundancy of the groups.
    pub scheme: Scheme,
    /// Bytes; a power of two from 64 KiB to 64 MiB.
    pub chunk_size: u32,
    /// Number of groups that a file is striped over, 1 or more; cut to what the pool has when a file is made.
    pub stripe_count: u16,
    /// Files up to this many bytes live beside their inode; 0 switches it off; at most [`MAX_INLINE_LIMIT`].
    pub inline_limit: u32,
    /// How groups are chosen.
    pub chooser: Chooser,
}

impl StripePattern {
    /// Smallest chunk size, bytes.
    pub const MIN_CHUNK_SIZE: u32 = 64 * 1024;
    /// Largest chunk size, bytes.
    pub const MAX_CHUNK_SIZE: u32 = 64 * 1024 * 1024;
}

impl Default for StripePattern {
    fn default() -> StripePattern {
        StripePattern {
            pool: PoolId(1),
            scheme: Scheme::Single,
            chunk_size: 1024 * 1024,
            stripe_count: 4,
            inline_limit: 4096,
            chooser: Chooser::RoundRobin,
        }
    }
}

/// A file's fixed pattern plus its list of groups: chunk `i` lives in `groups[i % groups.len()]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes.
    pub chunk_size: u32,
    /// Where the groups came from.
    pub pool: PoolId,
    /// Redundancy of the groups.
    pub scheme: Scheme,
    /// In stripe order; never empty.
    pub groups: Vec<GroupId>,
    /// Which chunk file of the inode each stripe has on the targets of its group: stripes that moved to a group that had one already have
    /// others than 0. Beyond its end 0; empty as a rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<u8>,
}

impl Layout {
    /// The slot of a stripe.
    pub fn slot(&self, stripe: usize) -> u8 {
        self.slots.get(stripe).copied().unwrap_or(0)
    }

    /// The name of the chunk file that a stripe of this inode has on every target of its group.
    pub fn chunk_file(&self, ino: InodeId, stripe: usize) -> InodeId {
        ino.chunk_file(self.slot(stripe))
    }

    /// The stripe that a chunk file of a group holds.
    pub fn stripe_in(&self, group: GroupId, slot: u8) -> Option<usize> {
        (0..self.groups.len()).find(|&stripe| self.groups[stripe] == group && self.slot(stripe) == slot)
    }

    /// The same with one stripe elsewhere.
    pub fn with_stripe(&self, stripe: usize, group: GroupId, slot: u8) -> Layout {
        let mut moved = self.clone();
        moved.groups[stripe] = group;
        moved.slots.resize(moved.groups.len(), 0);
        moved.slots[stripe] = slot;
        if moved.slots.iter().all(|&slot| slot == 0) {
            moved.slots.clear();
        }
        moved
    }
}
