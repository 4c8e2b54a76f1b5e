//! Capacity of a planned configuration.

use super::site::Site;
use serde::Serialize;

const TB: f64 = 1e12;
/// Metadata is stored on mirrored pairs.
const METADATA_COPIES: f64 = 2.0;

/// Capacities in bytes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Capacity {
    /// All drives for data.
    pub raw_bytes: f64,
    /// Available to files.
    pub usable_bytes: f64,
    /// Reserved to rebuild lost targets, of what would be available to files.
    pub spare_bytes: f64,
    /// Part of `spare_bytes` that the content of the largest server takes: less spare can't absorb
    /// a server's loss.
    pub spare_for_a_server_bytes: f64,
    /// Required for metadata.
    pub metadata_needed_bytes: f64,
    /// Capacity of the described metadata drives; 0 without any.
    pub metadata_given_bytes: f64,
}

/// Usable = drives x capacity, through RAID and scheme, less the local file system's overhead and
/// the spare. The factor of 0.99 for the local file system and the rule of 1 % for metadata ("0.5
/// to 1 % of the data capacity; add when it falls under 1 %") are from the published BeeGFS design
/// of 2019 (Dell HPC & AI Innovation Lab).
pub(super) fn capacity(site: &Site) -> Capacity {
    let (pool, model) = (site.pool, site.model);
    let share = model.usable_share * pool.scheme.data_share();
    let stored = site.sum(|kind| kind.targets() * kind.target_bytes());
    let spare = pool.spare_percent / 100.0;
    let usable_bytes = stored * share * (1.0 - spare);
    let server =
        |kind: &super::site::ServerKind| kind.targets() * kind.target_bytes() * share * (1.0 - spare);
    let metadata = |kind: &super::site::ServerKind| {
        f64::from(kind.server.metadata_drives) * kind.metadata_drive.tb * TB / METADATA_COPIES
    };
    Capacity {
        raw_bytes: site.sum(|kind| f64::from(kind.server.drives) * kind.drive.tb * TB),
        usable_bytes,
        spare_bytes: stored * share * spare,
        spare_for_a_server_bytes: site.kinds.iter().map(server).fold(0.0, f64::max) * pool.full_percent
            / 100.0,
        metadata_needed_bytes: usable_bytes * model.metadata_share,
        metadata_given_bytes: site.sum(metadata),
    }
}
