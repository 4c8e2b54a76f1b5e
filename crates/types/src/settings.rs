//! What administrators set for the whole cluster, beyond which nodes and targets there are.

use serde::{Deserialize, Serialize};

/// Settings that hold for all services; part of the cluster map, so everybody acts by the same
/// ones.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// How members of mirrored groups are brought in step.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resync: ResyncSettings,
    /// How targets are searched for damage.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scrub: ScrubSettings,
    /// Data is neither summed nor checked, only to measure what that costs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub checksums_off: bool,
}

/// How members of mirrored groups are brought in step, and when they are replaced.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResyncSettings {
    /// What one member is sent at most, bytes a second; `None`: the default of the services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Where what is left would take longer than this, seconds, it goes faster than `rate` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_s: Option<u64>,
    /// Nothing is sent until this is taken back. Members go on missing what is written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub paused: bool,
    /// A member whose node or target has been gone for this long, seconds, is replaced by another
    /// target; zero: never by itself; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_after_s: Option<u64>,
}

/// How targets are searched for damage that nobody has met yet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubSettings {
    /// A target is gone through again this long after the last time began, seconds; zero: only when
    /// it is asked for; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// Bytes a second that a target reads for it at most; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// How often one was asked for by hand: a target that knows a smaller number begins one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub asked: u64,
    /// The one that runs rests where it is until this is taken back, and none begins.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stopped: bool,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
