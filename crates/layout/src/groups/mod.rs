//! Creation of redundancy groups.

mod domains;
mod mirrored;
mod rebalance;
mod single;

pub use domains::{Spread, can_use_distinct_nodes, has_distinct_nodes, improvable_groups, shares_rack};
pub use mirrored::{FIRST_MIRRORED, MAX_MIRRORED, Shortage, mirrored_groups, mirrored_groups_within};
pub use rebalance::{MemberMove, member_bytes, rebalance, replacement_target};
pub use single::single_groups;
