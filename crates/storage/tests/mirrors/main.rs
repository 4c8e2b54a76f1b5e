//! Mirrored groups, as their clients and their disks see them.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod changes;
mod cluster;
mod resync;
mod watches;
