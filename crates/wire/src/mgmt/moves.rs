//! How far members of groups are that are brought in step, and targets that are emptied.

use serde::{Deserialize, Serialize};
use types::{GroupId, MemberState, TargetId};

/// How far a member of a mirrored group is brought in step, as the primary sees it. Sizes are
/// bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResyncProgress {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub target: TargetId,
    /// Files that have to be looked at yet; `None` while they are counted.
    pub files_left: Option<u64>,
    /// What is left of them, at most; `None` while it is counted.
    pub bytes_left: Option<u64>,
    /// What was sent.
    pub bytes_moved: u64,
    /// Bytes a second, lately.
    pub rate: u64,
    /// Why it stands still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
}

/// A member of a mirrored group that has missed something, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResyncInfo {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub target: TargetId,
    /// What it has.
    pub state: MemberState,
    /// How far it is; `None` while nobody brings it in step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ResyncProgress>,
    /// Seconds that it will take yet, about; `None` when nothing can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_s: Option<u64>,
    /// What it waits for, while nobody brings it in step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// A member of a mirrored group whose place another target takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MembershipMove {
    pub group: GroupId,
    pub from: TargetId,
    pub to: TargetId,
}

/// How far a target is emptied that is drained. Sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DrainProgress {
    /// Nothing is there any more: it can be removed.
    pub empty: bool,
    /// Files that still have something there; `None` while they are counted.
    pub files_left: Option<u64>,
    /// What they have there.
    pub bytes_left: u64,
    /// Files that were moved since the metadata service has begun.
    pub files_moved: u64,
    /// What they had there.
    pub bytes_moved: u64,
    /// Bytes a second, lately.
    pub rate: u64,
    /// Seconds that it will take yet, about; `None` when nothing can be said.
    pub remaining_s: Option<u64>,
    /// Why something stays for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// Mirrored groups that it is a member of yet: others take its place, one after the other.
    #[serde(default, skip_serializing_if = "is_none_left")]
    pub groups_left: u64,
    /// Why it doesn't come to an end by itself: the target is offline, and what it alone has can't
    /// be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
}

fn is_none_left(groups: &u64) -> bool {
    *groups == 0
}
