//! Cluster-wide settings of administrators, other than nodes and targets.

use serde::{Deserialize, Serialize};

/// Settings of all services; part of the cluster map, so all services use the same ones.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Resync of members of mirrored groups.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resync: ResyncSettings,
    /// Scrubbing of targets.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scrub: ScrubSettings,
    /// Switches checksums of data off, only to measure what they cost.
    #[serde(default, skip_serializing_if = "is_default")]
    pub checksums_off: bool,
}

/// How members of mirrored groups are resynced, and when they are replaced.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResyncSettings {
    /// Highest rate of one member's resync, bytes per second; `None`: the default of the services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// If the rest of a resync would take longer than this, in seconds, it exceeds `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
    /// Resync is paused. Members continue to miss writes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub paused: bool,
    /// A member whose node or target is unreachable for this long, in seconds, is replaced by
    /// another target; zero: never automatically; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_after_s: Option<u64>,
}

/// How targets are scrubbed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubSettings {
    /// Interval between the starts of two scrubs of a target, in seconds; zero: only on request;
    /// `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// Highest read rate of a target's scrub, bytes per second; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Number of scrubs requested by hand: a target that has seen a smaller number starts one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub asked: u64,
    /// Running scrubs are paused, and no new ones start.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stopped: bool,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
