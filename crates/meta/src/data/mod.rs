//! Files' content: requests to chunk files, and recovery of sizes and content after a client or a
//! target died.

pub(crate) mod chunks;
pub(crate) mod group_creation;
pub(crate) mod lost_data;
pub(crate) mod orphans;
pub(crate) mod quarantine;
pub(crate) mod reaper;
pub(crate) mod reconciliation;
pub(crate) mod references;
pub(crate) mod reported_sizes;
pub(crate) mod size_recovery;
pub(crate) mod truncations;
