//! Files in use: open files and their content, from the lease under which it is loaded to the
//! requests to chunk files, and the report of size and times at the end.

pub(crate) mod access;
pub(crate) mod access_time;
pub(crate) mod close;
pub(crate) mod content;
pub(crate) mod exclusive;
pub(crate) mod flags;
pub(crate) mod handle;
pub(crate) mod in_flight;
pub(crate) mod inode;
pub(crate) mod layout_change;
pub(crate) mod lease_epoch;
pub(crate) mod reserve;
pub(crate) mod size_recovery;
pub(crate) mod striping;
pub(crate) mod sync;
pub(crate) mod uncertain;
pub(crate) mod write_behind;
