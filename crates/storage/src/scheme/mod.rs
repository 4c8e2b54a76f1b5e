//! Redundancy schemes: what the members of a group do so that content outlives the loss of a
//! target. A group (`group`) decides who its members are and admits requests; its scheme executes
//! them.

pub(crate) mod mirror;
