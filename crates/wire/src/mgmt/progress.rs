//! Progress of resyncs and of draining.

use serde::{Deserialize, Serialize};
use types::{GroupId, MemberState, TargetId};

/// Progress of a member's resync, as the primary reports it. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResyncProgress {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub target: TargetId,
    /// Files still to be checked; `None` while they are being counted.
    pub files_left: Option<u64>,
    /// Upper bound of the bytes still to be copied; `None` while they are being counted.
    pub bytes_left: Option<u64>,
    /// Bytes sent.
    pub bytes_moved: u64,
    /// Recent rate, bytes a second.
    pub rate: u64,
    /// Why it doesn't progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
}

/// A member of a mirrored group that isn't in sync, for display.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResyncInfo {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub target: TargetId,
    /// State of the member.
    pub state: MemberState,
    /// Progress; `None` while no resync runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ResyncProgress>,
    /// Estimated seconds to completion; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_s: Option<u64>,
    /// What it waits for, while no resync runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// Replacement of a member of a mirrored group by another target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MemberReplacement {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

/// Progress of a target's draining. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DrainProgress {
    /// No data is left on it: it can be removed.
    pub empty: bool,
    /// Files that still have data on it; `None` while they are being counted.
    pub files_left: Option<u64>,
    /// Their bytes on it.
    pub bytes_left: u64,
    /// Files that were moved since the metadata service started.
    pub files_moved: u64,
    /// Bytes of these files that were moved.
    pub bytes_moved: u64,
    /// Recent rate, bytes a second.
    pub rate: u64,
    /// Estimated seconds to completion; `None` if unknown.
    pub remaining_s: Option<u64>,
    /// Why some data can't be moved at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// Mirrored groups that it is still a member of: other targets replace it, one group after the
    /// other.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub groups_left: u64,
    /// Why draining can't complete: the target is offline, and content without another replica
    /// can't be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
}

fn is_none_left(groups: &u64) -> bool {
    *groups == 0
}
