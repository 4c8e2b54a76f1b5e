//! What a directory hands to new files, and what a file then keeps.

use crate::{GroupId, InodeId, PoolId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The largest inline limit, in bytes.
pub const MAX_INLINE_LIMIT: u32 = 64 * 1024;

/// How a group keeps its data safe. In text `single` or `mirror:2`, `mirror:3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Scheme {
    /// One target, no copy.
    #[default]
    Single,
    /// So many targets that have the same, [`Scheme::MIN_COPIES`] to [`Scheme::MAX_COPIES`].
    Mirror(u8),
}

impl Scheme {
    /// The fewest members of a mirrored group.
    pub const MIN_COPIES: u8 = 2;
    /// The most members of a mirrored group: each write goes to all of them.
    pub const MAX_COPIES: u8 = 3;

    /// Targets that a group of it has.
    pub fn members(self) -> usize {
        match self {
            Scheme::Single => 1,
            Scheme::Mirror(copies) => copies.into(),
        }
    }

    /// The scheme by which every byte is kept so many times; `None` when there is no such scheme.
    pub fn of_copies(copies: u8) -> Option<Scheme> {
        match copies {
            1 => Some(Scheme::Single),
            Scheme::MIN_COPIES..=Scheme::MAX_COPIES => Some(Scheme::Mirror(copies)),
            _ => None,
        }
    }

    /// Whether its groups have more than one member, that are to be kept the same.
    pub fn is_mirrored(self) -> bool {
        self != Scheme::Single
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Single => f.write_str("single"),
            Scheme::Mirror(copies) => write!(f, "mirror:{copies}"),
        }
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheme, String> {
        let copies = text.strip_prefix("mirror:").and_then(|copies| copies.parse().ok());
        match copies.filter(|copies| *copies > 1).and_then(Scheme::of_copies) {
            Some(scheme) => Ok(scheme),
            None if text == "single" => Ok(Scheme::Single),
            None => Err(format!("{text:?} is no redundancy scheme: there are single, mirror:2 and mirror:3")),
        }
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> String {
        scheme.to_string()
    }
}

impl TryFrom<String> for Scheme {
    type Error = String;

    fn try_from(text: String) -> Result<Scheme, String> {
        text.parse()
    }
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
    /// Number of groups that a file is striped over, 1 or more; cut to what the pool has when a
    /// file is made.
    pub stripe_count: u16,
    /// Files up to this many bytes live beside their inode; 0 switches it off; at most
    /// [`MAX_INLINE_LIMIT`].
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
    /// Where the groups came from; of a file that has moved, the pool of the stripe that moved
    /// last.
    pub pool: PoolId,
    /// Redundancy of those groups. What a group is now, the cluster map says: while a file moves,
    /// they are of several kinds.
    pub scheme: Scheme,
    /// In stripe order; never empty.
    pub groups: Vec<GroupId>,
    /// Which chunk file of the inode each stripe has on the targets of its group: stripes that
    /// moved to a group that had one already have others than 0. Beyond its end 0; empty as a rule.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_have_one_text_each() {
        for scheme in [Scheme::Single, Scheme::Mirror(2), Scheme::Mirror(3)] {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
            assert_eq!(Scheme::of_copies(scheme.members() as u8), Some(scheme));
        }
        for text in [
            "",
            "mirror",
            "mirror:",
            "mirror:1",
            "mirror:4",
            "mirror:-2",
            "mirror:256",
            "Single",
            "mirror: 2",
        ] {
            assert!(text.parse::<Scheme>().is_err(), "{text:?}");
        }
        assert_eq!((Scheme::of_copies(0), Scheme::of_copies(4)), (None, None));
    }
}
