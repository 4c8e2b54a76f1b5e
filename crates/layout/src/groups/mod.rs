//! Creation of redundancy groups.

mod domains;
mod mirrored;
mod moves;
mod single;

pub use domains::{Spread, crowded, is_spread, shares_rack, spreads};
pub use mirrored::{FIRST_MIRRORED, MAX_MIRRORED, Shortage, mirrored_groups, mirrored_groups_within};
pub use moves::{Move, balance, member_bytes, successor};
pub use single::single_groups;
