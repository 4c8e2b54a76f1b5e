//! Stripe patterns of directories, and the layout that each new file gets from one.

use crate::{ChunkFileId, ChunkSlot, GroupId, InodeId, PoolId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The largest inline limit, in bytes.
pub const MAX_INLINE_LIMIT: u32 = 64 * 1024;

/// Redundancy scheme of a group. In text `single` or `mirror:2`, `mirror:3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Scheme {
    /// One target, no redundancy.
    #[default]
    Single,
    /// This many replicas on different targets, [`Scheme::MIN_REPLICAS`] to
    /// [`Scheme::MAX_REPLICAS`].
    Mirror(u8),
}

/// Numbers that stand for a scheme, by where they are used.
struct SchemeNumbers {
    record: u32,
    message: u32,
}

impl Scheme {
    /// The fewest members of a mirrored group.
    pub const MIN_REPLICAS: u8 = 2;
    /// The most members of a mirrored group: each write goes to all of them.
    pub const MAX_REPLICAS: u8 = 3;
    /// Every scheme.
    pub const ALL: [Scheme; 3] = [Scheme::Single, Scheme::Mirror(2), Scheme::Mirror(3)];
    /// Every scheme with its number in messages.
    pub const MESSAGE_NUMBERS: [(Scheme, u32); Scheme::ALL.len()] = {
        let mut table = [(Scheme::Single, 0); Scheme::ALL.len()];
        let mut at = 0;
        while at < table.len() {
            table[at] = (Scheme::ALL[at], Scheme::ALL[at].numbers().message);
            at += 1;
        }
        table
    };

    /// The numbers that stand for the scheme. They never change: metadata stores and processes of
    /// other versions have them. Records and messages number the single target differently, because
    /// absent fields of records count as 0.
    const fn numbers(self) -> SchemeNumbers {
        match self {
            Scheme::Single => SchemeNumbers { record: 0, message: 1 },
            Scheme::Mirror(copies) => SchemeNumbers { record: copies as u32, message: copies as u32 },
        }
    }

    /// Its number in records of the metadata store.
    pub const fn record_number(self) -> u32 {
        self.numbers().record
    }

    /// The scheme with this number in records of the metadata store; `None` for an unknown number.
    pub fn from_record_number(number: u32) -> Option<Scheme> {
        Scheme::ALL.into_iter().find(|scheme| scheme.record_number() == number)
    }

    /// Its number in messages.
    pub const fn message_number(self) -> u32 {
        self.numbers().message
    }

    /// Number of targets in a group of this scheme.
    pub fn members(self) -> usize {
        match self {
            Scheme::Single => 1,
            Scheme::Mirror(copies) => copies.into(),
        }
    }

    /// The scheme with this many replicas of every byte; `None` if no scheme has.
    pub fn from_replicas(copies: u8) -> Option<Scheme> {
        match copies {
            1 => Some(Scheme::Single),
            Scheme::MIN_REPLICAS..=Scheme::MAX_REPLICAS => Some(Scheme::Mirror(copies)),
            _ => None,
        }
    }

    /// Members of a group that hold different parts of a stripe: content is spread over so many
    /// targets of a group. A mirrored group has the same on all of its members.
    pub fn data_width(self) -> usize {
        match self {
            Scheme::Single | Scheme::Mirror(_) => 1,
        }
    }

    /// Members of a group that can be lost without losing content.
    pub fn tolerated_losses(self) -> usize {
        self.members() - self.data_width()
    }

    /// Whether content outlives the loss of a target.
    pub fn is_redundant(self) -> bool {
        self.tolerated_losses() > 0
    }

    /// Whether its groups have several members. Management creates such groups, and decides which
    /// of their members are in sync. A group of one target exists as long as its target.
    pub fn spans_targets(self) -> bool {
        self.members() > 1
    }

    /// Whether one member orders the changes of a group, and requests carry the group's version.
    pub fn has_primary(self) -> bool {
        match self {
            Scheme::Single => false,
            Scheme::Mirror(_) => true,
        }
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
        match copies.filter(|copies| *copies > 1).and_then(Scheme::from_replicas) {
            Some(scheme) => Ok(scheme),
            None if text == "single" => Ok(Scheme::Single),
            None => Err(format!("{text:?} is not a redundancy scheme: use single, mirror:2 or mirror:3")),
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

/// How groups are chosen for a new file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chooser {
    /// Each file starts one group after the start of the previous file.
    #[default]
    RoundRobin,
    /// Uniformly at random.
    Random,
    /// At random, weighted by free space.
    CapacityWeighted,
}

/// Striping that new files inherit from their directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StripePattern {
    /// Pool of the groups.
    pub pool: PoolId,
    /// Redundancy of the groups.
    pub scheme: Scheme,
    /// Bytes; a power of two from 64 KiB to 64 MiB.
    pub chunk_size: u32,
    /// Number of groups that a file is striped over, 1 or more; limited to those that the pool has
    /// when the file is created.
    pub stripe_count: u16,
    /// Largest file stored inline, beside its inode, in bytes; 0 disables inline files; at most
    /// [`MAX_INLINE_LIMIT`].
    pub inline_limit: u32,
    /// Placement chooser.
    pub chooser: Chooser,
}

impl StripePattern {
    /// Smallest chunk size, bytes.
    pub const MIN_CHUNK_SIZE: u32 = 64 * 1024;
    /// Largest chunk size, bytes.
    pub const MAX_CHUNK_SIZE: u32 = 64 * 1024 * 1024;
}

impl StripePattern {
    /// The pattern of the root directory of a new file system. Most files of source trees and home
    /// directories fit inline: creating one then costs one command, and deleting it no request to a
    /// target.
    pub fn of_new_root() -> StripePattern {
        StripePattern { inline_limit: 16 * 1024, ..StripePattern::default() }
    }
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

/// A file's striping and its list of groups: chunk `i` is in `groups[i % groups.len()]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Chunk size in bytes.
    pub chunk_size: u32,
    /// Pool of the groups; after a migration, the pool of the stripe that moved last.
    pub pool: PoolId,
    /// Redundancy scheme of the groups. The cluster map has the current scheme of each group:
    /// during a migration a file's groups have different schemes.
    pub scheme: Scheme,
    /// In stripe order; never empty.
    pub groups: Vec<GroupId>,
    /// Slot of each stripe's chunk file on the targets of its group. Stripes that moved to a group
    /// that already had a chunk file of this inode have a slot other than 0. Stripes beyond the end
    /// have slot 0; usually empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<ChunkSlot>,
}

impl Layout {
    /// The slot of a stripe.
    pub fn slot(&self, stripe: usize) -> ChunkSlot {
        self.slots.get(stripe).copied().unwrap_or_default()
    }

    /// The name of the stripe's chunk file, the same on every target of its group.
    pub fn chunk_file(&self, ino: InodeId, stripe: usize) -> ChunkFileId {
        ino.chunk_file(self.slot(stripe))
    }

    /// The stripe whose chunk file in `group` has this slot.
    pub fn stripe_of_slot(&self, group: GroupId, slot: ChunkSlot) -> Option<usize> {
        (0..self.groups.len()).find(|&stripe| self.groups[stripe] == group && self.slot(stripe) == slot)
    }

    /// The layout with one stripe moved to another group and slot.
    pub fn with_moved_stripe(&self, stripe: usize, group: GroupId, slot: ChunkSlot) -> Layout {
        let mut moved = self.clone();
        moved.groups[stripe] = group;
        moved.slots.resize(moved.groups.len(), ChunkSlot(0));
        moved.slots[stripe] = slot;
        if moved.slots.iter().all(|&slot| slot == ChunkSlot(0)) {
            moved.slots.clear();
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_say_what_their_groups_are() {
        let facts = |scheme: Scheme| {
            (scheme.members(), scheme.data_width(), scheme.tolerated_losses(), scheme.is_redundant())
        };
        assert_eq!(facts(Scheme::Single), (1, 1, 0, false));
        assert_eq!(facts(Scheme::Mirror(2)), (2, 1, 1, true));
        assert_eq!(facts(Scheme::Mirror(3)), (3, 1, 2, true));
        assert!(!Scheme::Single.has_primary() && !Scheme::Single.spans_targets());
        assert!(Scheme::Mirror(2).has_primary() && Scheme::Mirror(2).spans_targets());
    }

    #[test]
    fn numbers_of_schemes_are_fixed() {
        let numbers = |scheme: Scheme| (scheme.record_number(), scheme.message_number());
        assert_eq!(Scheme::ALL.map(numbers), [(0, 1), (2, 2), (3, 3)]);
        assert_eq!(Scheme::MESSAGE_NUMBERS.map(|(_, number)| number), [1, 2, 3]);
        for scheme in Scheme::ALL {
            assert_eq!(Scheme::from_record_number(scheme.record_number()), Some(scheme));
        }
        for unknown in [1, 4, 256, 258, u32::MAX] {
            assert_eq!(Scheme::from_record_number(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn each_scheme_has_one_text_form() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
            assert_eq!(Scheme::from_replicas(scheme.members() as u8), Some(scheme));
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
        assert_eq!((Scheme::from_replicas(0), Scheme::from_replicas(4)), (None, None));
    }
}
