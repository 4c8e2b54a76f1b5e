//! Groups whose content is lost: how many files have something there, and the end of those that no
//! file refers to any more.

use crate::limits::{LOST_REST, LOST_REST_TIMES};
use crate::management::Management;
use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};
use types::{ClusterMap, GroupId, GroupUsage, Result};

/// What is known of them. After a start of management they are counted again.
#[derive(Default, Debug)]
pub(crate) struct LostGroups {
    is_counting: bool,
    /// When they are to be counted again.
    due_ns: u64,
    /// What the last count has found of all that are lost.
    usage: Option<GroupUsage>,
    /// Those that nothing referred to then.
    unused: BTreeSet<GroupId>,
}

/// Groups of a map whose content is lost.
fn lost(map: &ClusterMap) -> BTreeSet<GroupId> {
    map.groups.iter().filter(|group| group.is_lost()).map(|group| group.id).collect()
}

impl Management {
    fn lost(&self) -> MutexGuard<'_, LostGroups> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What files have in lost groups, as far as it was counted.
    pub(crate) fn lost_usage(&self) -> Option<GroupUsage> {
        self.lost().usage.clone()
    }

    /// Other groups are lost now than those that were counted.
    pub(crate) fn forget_count_of_lost(&self) {
        let mut known = self.lost();
        (known.usage, known.due_ns) = (None, 0);
    }

    /// Counts the files of lost groups, in the background, if there are such groups and it is time.
    pub(crate) fn begin_to_count_lost(self: &Arc<Self>) {
        let groups = lost(&self.current());
        let mut known = self.lost();
        if groups.is_empty() || known.is_counting || rt::monotonic_ns() < known.due_ns {
            return;
        }
        known.is_counting = true;
        rt::spawn(self.clone().count_lost(groups));
    }

    async fn count_lost(self: Arc<Self>, groups: BTreeSet<GroupId>) {
        let began_ns = rt::monotonic_ns();
        let counted = self.count_and_drop(groups).await;
        if let Err(error) = &counted {
            tracing::warn!(%error, hint = &*error.hint, "files of lost groups aren't counted for now");
        }
        let now_ns = rt::monotonic_ns();
        let rest_ns = (now_ns - began_ns).saturating_mul(LOST_REST_TIMES).max(LOST_REST.as_nanos() as u64);
        let mut known = self.lost();
        let is_outdated = counted.is_ok() && known.usage.is_none();
        known.is_counting = false;
        known.due_ns = if is_outdated { now_ns } else { now_ns.saturating_add(rest_ns) };
    }

    /// Takes groups out of the map that nothing referred to twice in a row: a file that was begun
    /// while the target was there may have come late.
    async fn count_and_drop(&self, groups: BTreeSet<GroupId>) -> Result<()> {
        let usage = self.metadata()?.usage(groups.clone()).await?;
        let unused: BTreeSet<GroupId> = groups.difference(&usage.used).copied().collect();
        let over: BTreeSet<GroupId> = {
            let is_current = groups == lost(&self.current());
            let mut known = self.lost();
            known.usage = is_current.then_some(usage);
            let before = std::mem::replace(&mut known.unused, unused);
            known.unused.intersection(&before).copied().collect()
        };
        if over.is_empty() {
            return Ok(());
        }
        tracing::info!(groups = ?over, "no file refers to these lost groups any more: they are gone");
        self.change(|roster| {
            roster.map.groups.retain(|group| !(group.is_lost() && over.contains(&group.id)));
            Ok::<_, types::Error>(())
        })
        .await?;
        Ok(self.sync().await?)
    }
}
