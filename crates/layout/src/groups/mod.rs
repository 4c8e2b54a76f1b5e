//! The making of redundancy groups.

mod mirrored;
mod single;

pub use mirrored::{FIRST_MIRRORED, MAX_MIRRORED, Shortage, is_spread, mirrored_groups, spreads};
pub use single::single_groups;
