//! Removal of targets from the cluster.
//!
//! A reachable target must be empty. Nothing can be moved off an offline one: content without
//! another replica is lost with it, if an administrator accepts that. Its groups are then lost
//! ([`types::Group::is_lost`]).
//!
//! Invariants:
//! - Nothing is given up without `accept_loss`, and nothing of a target that may return soon.
//! - A target whose content is given up was offline from before its files were counted until it is
//!   removed, so that it got no file meanwhile.

use crate::limits::{DRAIN_STUCK_AFTER, REPLACE_PRIMARY_AFTER};
use crate::management::Management;
use crate::recover::give_up_time;
use crate::refusal;
use std::collections::BTreeSet;
use std::time::Duration;
use types::{ClusterMap, GroupId, Result, Target, TargetId, TargetState};
use wire::MgmtReply;
use wire::mgmt::DrainProgress;

/// Groups of which this target is the only member in sync.
pub(crate) fn sole_in_sync_groups(map: &ClusterMap, target: TargetId) -> BTreeSet<GroupId> {
    map.groups.iter().filter(|group| group.is_sole_in_sync_member(target)).map(|group| group.id).collect()
}

/// Refuses to remove a target that must first be replaced in a mirrored group. Where no other
/// target in sync is reachable, `accept_loss` allows it.
///
/// # Errors
/// `EBUSY`.
pub(crate) fn ensure_replaced(map: &ClusterMap, target: TargetId, accept_loss: bool) -> Result<()> {
    let is_online = |id: TargetId| map.target(id).is_some_and(|known| known.state == TargetState::Online);
    let shared = map
        .groups
        .iter()
        .filter(|group| group.members.contains(&target) && !group.is_sole_in_sync_member(target));
    for group in shared {
        let is_served = group.in_sync_members().any(|id| id != target && is_online(id));
        let has_more = group.members.len() > group.scheme.members();
        if !has_more && layout::replacement_target(map, group, target).is_none() {
            return Err(refusal::no_replacement(target, group.id));
        }
        if is_served {
            return Err(refusal::is_group_member(target, group.id, "be removed"));
        }
        if !accept_loss {
            return Err(refusal::replicas_unreachable(target, group.id));
        }
    }
    Ok(())
}

impl Management {
    /// Removes a target: an empty one, or, with `accept_loss`, an offline one with content without
    /// another replica.
    pub(crate) async fn remove_target(&self, target: TargetId, accept_loss: bool) -> Result<MgmtReply> {
        self.require_cluster()?;
        let map = self.current();
        let known = map.target(target).ok_or_else(|| refusal::no_target(target))?;
        // A target that no node has ever served holds no data.
        let was_served = known.capacity > 0;
        match known.state {
            TargetState::Offline if was_served => self.remove_offline(known, accept_loss).await,
            _ if was_served && accept_loss => Err(refusal::needless_loss(target)),
            _ => self.remove_empty(target).await,
        }
    }

    async fn remove_empty(&self, target: TargetId) -> Result<MgmtReply> {
        self.change(|roster| roster.require_no_member(target, "be removed")).await?;
        if self.is_last_of_pool(target) {
            return self.remove_last_target(target).await;
        }
        self.change(|roster| roster.ensure_removable(target)).await?;
        // It gets no data meanwhile: it is draining.
        if let Some(file) = self.metadata()?.find_file_on(target).await? {
            return Err(refusal::holds_data(target, file));
        }
        tracing::info!(target_id = target.0, "target {target} is removed");
        self.change(|roster| roster.remove_target(target)).await?;
        self.sync().await?;
        Ok(MgmtReply::Done)
    }

    /// Whether it is the only target of its pool that gets new files.
    pub(crate) fn is_last_of_pool(&self, target: TargetId) -> bool {
        let map = self.current();
        let Some(own) = map.target(target).filter(|own| !own.drain) else { return false };
        !map.targets.iter().any(|t| t.id != target && t.pool == own.pool && !t.drain)
    }

    /// Refuses to remove the last target of a pool that an inode refers to.
    pub(crate) async fn require_unreferenced_pool(&self, target: TargetId) -> Result<()> {
        let map = self.current();
        let own = map.target(target).ok_or_else(|| refusal::no_target(target))?;
        let name = map.pool(own.pool).map_or_else(|| own.pool.to_string(), |pool| pool.name.clone());
        match self.metadata()?.find_pool_reference(own.pool).await? {
            Some(ino) => Err(refusal::pool_in_use(target, &name, ino)),
            None => Ok(()),
        }
    }

    /// Removes the last target of a pool that no inode refers to, so that the pool can be removed.
    async fn remove_last_target(&self, target: TargetId) -> Result<MgmtReply> {
        self.require_unreferenced_pool(target).await?;
        // From here on it gets no files, even if an inode refers to the pool meanwhile.
        self.change(|roster| roster.set_drain_unchecked(target, true)).await?;
        let held = match self.metadata() {
            Ok(metadata) => metadata.find_file_on(target).await,
            Err(error) => Err(error),
        };
        let refusal = match held {
            Ok(None) => {
                tracing::info!(target_id = target.0, "target {target} is removed, the last of its pool");
                self.change(|roster| roster.remove_target(target)).await?;
                self.sync().await?;
                return Ok(MgmtReply::Done);
            }
            Ok(Some(file)) => refusal::holds_data(target, file),
            Err(error) => error,
        };
        self.change(|roster| roster.set_drain_unchecked(target, false)).await?;
        Err(refusal)
    }

    async fn remove_offline(&self, known: &Target, accept_loss: bool) -> Result<MgmtReply> {
        let (target, map) = (known.id, self.current());
        ensure_replaced(&map, target, accept_loss)?;
        if self.is_last_of_pool(target) {
            self.require_unreferenced_pool(target).await?;
        }
        let (began_ns, sole_groups) = (rt::monotonic_ns(), sole_in_sync_groups(&map, target));
        let usage = self.metadata()?.usage(sole_groups.clone()).await?;
        let min_unreachable_time = match usage.files {
            0 if known.drain => Duration::ZERO,
            0 => REPLACE_PRIMARY_AFTER,
            _ if !accept_loss => return Err(refusal::unaccepted_removal(target, &usage)),
            _ => give_up_time(&map),
        };
        tracing::warn!(
            target_id = target.0,
            files = usage.files,
            bytes = usage.bytes,
            groups = ?usage.referenced,
            "target {target} is removed while it is offline, with all content that only it has"
        );
        self.change(|roster| {
            let now_ns = rt::monotonic_ns();
            let counted_for = Duration::from_nanos(now_ns.saturating_sub(began_ns));
            if !self.members().is_unreachable_for(target, min_unreachable_time.max(counted_for), now_ns) {
                return Err(refusal::target_may_return(target, min_unreachable_time));
            }
            ensure_replaced(&roster.map, target, accept_loss)?;
            roster.remove_offline_target(target, &sole_groups, &usage.referenced)
        })
        .await?;
        self.sync().await?;
        self.discard_lost_count();
        Ok(MgmtReply::Done)
    }

    /// Adds to a drain's progress why it can't complete, if so.
    pub(crate) fn with_stuck_reason(&self, target: &Target, progress: DrainProgress) -> DrainProgress {
        let map = self.current();
        let sole_groups = sole_in_sync_groups(&map, target.id);
        let is_mirrored = |id: &&GroupId| map.group(**id).is_some_and(|group| group.scheme.spans_targets());
        let waits_for_others = progress.groups_left > sole_groups.iter().filter(is_mirrored).count() as u64;
        let is_unreachable =
            self.members().is_unreachable_for(target.id, DRAIN_STUCK_AFTER, rt::monotonic_ns());
        let Some(files) =
            progress.files_left.filter(|_| is_unreachable && !progress.empty && !waits_for_others)
        else {
            return progress;
        };
        let stuck = match files {
            0 => format!("target {} is offline, and no file has data on it", target.id),
            _ => format!(
                "target {} is offline: {files} files can't be moved, since it is the only replica of {}",
                target.id,
                groups(&sole_groups)
            ),
        };
        DrainProgress { stuck: Some(stuck), remaining_s: None, ..progress }
    }
}

fn groups(ids: &BTreeSet<GroupId>) -> String {
    match ids.first() {
        Some(only) if ids.len() == 1 => format!("group {only}"),
        _ => format!("{} groups", ids.len()),
    }
}
