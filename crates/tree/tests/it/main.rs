//! Work on trees, compared with what the GNU tools do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod copy;
mod list;
mod random_tree;
mod remove;
mod usage;
