//! The making of redundancy groups.

mod mirrored;
mod moves;
mod single;

pub use mirrored::{FIRST_MIRRORED, MAX_MIRRORED, Shortage, is_spread, mirrored_groups, spreads};
pub use moves::{Move, balance, member_bytes, successor};
pub use single::single_groups;
