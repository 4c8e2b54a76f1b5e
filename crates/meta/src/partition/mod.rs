//! Partitions: their executors, which service owns them, and transactions that span several.

pub(crate) mod cross_partition;
pub(crate) mod executor;
pub(crate) mod lock;
pub(crate) mod ownership;
pub(crate) mod peers;
pub(crate) mod reclaim;
pub(crate) mod serving;
