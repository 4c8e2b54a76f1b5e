//! Lost groups: counts the files with content there, and removes groups that no file refers to any
//! more.

use crate::limits::{LOST_COUNT_PAUSE, LOST_COUNT_PAUSE_FACTOR};
use crate::management::Management;
use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};
use types::{ClusterMap, GroupId, GroupUsage, Result};

/// State of lost groups. After a start of management they are counted again.
#[derive(Default, Debug)]
pub(crate) struct LostGroups {
    is_counting: bool,
    /// Time of the next count.
    due_ns: u64,
    /// Result of the last count, for all lost groups.
    usage: Option<GroupUsage>,
    /// Groups without references in the last count.
    unused: BTreeSet<GroupId>,
}

/// Lost groups of a map.
fn lost(map: &ClusterMap) -> BTreeSet<GroupId> {
    map.groups.iter().filter(|group| group.is_lost()).map(|group| group.id).collect()
}

impl Management {
    fn lost(&self) -> MutexGuard<'_, LostGroups> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Usage of lost groups by files, if counted.
    pub(crate) fn lost_usage(&self) -> Option<GroupUsage> {
        self.lost().usage.clone()
    }

    /// Discards the count: the set of lost groups has changed.
    pub(crate) fn discard_lost_count(&self) {
        let mut state = self.lost();
        (state.usage, state.due_ns) = (None, 0);
    }

    /// Starts a count of the files in lost groups, in the background, if there are such groups and
    /// a count is due.
    pub(crate) fn start_counting_lost(self: &Arc<Self>) {
        let groups = lost(&self.current());
        let mut state = self.lost();
        if groups.is_empty() || state.is_counting || rt::monotonic_ns() < state.due_ns {
            return;
        }
        state.is_counting = true;
        rt::spawn(self.clone().count_lost(groups));
    }

    async fn count_lost(self: Arc<Self>, groups: BTreeSet<GroupId>) {
        let began_ns = rt::monotonic_ns();
        let counted = self.count_and_drop(groups).await;
        if let Err(error) = &counted {
            tracing::warn!(%error, hint = &*error.hint, "can't count the files of lost groups at present");
        }
        let now_ns = rt::monotonic_ns();
        let pause_ns = (now_ns - began_ns)
            .saturating_mul(LOST_COUNT_PAUSE_FACTOR)
            .max(LOST_COUNT_PAUSE.as_nanos() as u64);
        let mut state = self.lost();
        let is_outdated = counted.is_ok() && state.usage.is_none();
        state.is_counting = false;
        state.due_ns = if is_outdated { now_ns } else { now_ns.saturating_add(pause_ns) };
    }

    /// Removes groups that had no references in two consecutive counts: a file that was begun while
    /// the target was reachable may be recorded late.
    async fn count_and_drop(&self, groups: BTreeSet<GroupId>) -> Result<()> {
        let usage = self.metadata()?.usage(groups.clone()).await?;
        let unused: BTreeSet<GroupId> = groups.difference(&usage.referenced).copied().collect();
        let unused_twice: BTreeSet<GroupId> = {
            let is_current = groups == lost(&self.current());
            let mut state = self.lost();
            state.usage = is_current.then_some(usage);
            let before = std::mem::replace(&mut state.unused, unused);
            state.unused.intersection(&before).copied().collect()
        };
        if unused_twice.is_empty() {
            return Ok(());
        }
        tracing::info!(groups = ?unused_twice, "removed lost groups that no file refers to any more");
        self.change(|roster| {
            roster.map.groups.retain(|group| !(group.is_lost() && unused_twice.contains(&group.id)));
            Ok::<_, types::Error>(())
        })
        .await?;
        Ok(self.sync().await?)
    }
}
