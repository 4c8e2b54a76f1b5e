//! Placement of data: striping arithmetic, choosers of groups for new files, creation of groups,
//! and capacity classes.
//!
//! All processes compute placement and none looks it up, so the results must be the same in every
//! process and in every later version: golden tests freeze them. Pure: no I/O, no clock, no
//! randomness (choosers take a seed). This crate knows nothing of names, messages or sockets.
//!
//! Chunk `i` of a file is in the chunk files of group `i % n`, directly after the group's earlier
//! chunks:
//!
//! ```text
//! file         | c0 | c1 | c2 | c3 | c4 | c5 | c6 |        n = 3
//! groups[0]    | c0 | c3 | c6 |
//! groups[1]    | c1 | c4 |
//! groups[2]    | c2 | c5 |
//! ```
//!
//! ```
//! use types::{ByteRange, GroupId, Layout, PoolId, Scheme};
//! let layout = Layout {
//!     chunk_size: 65536,
//!     pool: PoolId(1),
//!     scheme: Scheme::Single,
//!     groups: vec![GroupId(7), GroupId(8)],
//!     slots: vec![],
//! };
//! let pieces: Vec<_> = layout::pieces(&layout, ByteRange::at(131_000, 1000)).collect();
//! assert_eq!((pieces[0].group, pieces[0].local, pieces[0].file.len()), (GroupId(8), 65_464, 72));
//! assert_eq!((pieces[1].group, pieces[1].local, pieces[1].file.len()), (GroupId(7), 65_536, 928));
//! ```

mod capacity;
mod choose;
mod groups;
pub mod length_bounds;
mod member_offsets;
mod partitions;
pub mod pattern;
pub mod plan;
mod random;
mod restripe;
mod space;
mod stripe;

pub use capacity::{classify, usable_bytes};
pub use choose::{GroupCandidates, choose};
pub use groups::{
    FIRST_MIRRORED, MAX_MIRRORED, MemberMove, Shortage, Spread, can_use_distinct_nodes, has_distinct_nodes,
    improvable_groups, member_bytes, mirrored_groups, mirrored_groups_within, rebalance, replacement_target,
    shares_rack, single_groups,
};
pub use member_offsets::{MemberPiece, group_offset, member_len, member_pieces, member_range};
pub use partitions::distribute_partitions;
pub use restripe::{MAX_SLOTS, choose_for_stripe};
pub use space::{ReservedBytes, available_space, plan_placement};
pub use stripe::{Piece, file_end, file_offset, local_len, local_range, locate, pieces};
