//! `fallocate(2)`: all stripes of a file get their space, on all replicas, or none does.
//!
//! The targets of a file often share a disk, which may have space for the part of each target but
//! not for all together. So the client queries all targets before it reserves anything, and adds up
//! the demand on each disk. Concurrent writes may still make a target refuse. Then the client frees
//! what the other targets have reserved.

use super::ChunkFiles;
use crate::file::chunk_files::lease_epoch::LeaseContext;
use crate::file::chunk_files::striping::Chunked;
use std::collections::BTreeMap;
use types::{ByteRange, ClusterMap, Errno, Error, GroupId, Layout, NodeId, Result, TargetId};
use wire::{AllocateMode, MemberSpace, ReservationSpace, StorageOp, StorageReply};

/// Demand on a disk.
struct Demand {
    /// A target on the disk, for messages.
    target: TargetId,
    wanted: u64,
    free: u64,
}

impl ChunkFiles {
    /// Executes `op` on every stripe, which allocates space for a range.
    ///
    /// # Errors
    /// `ENOSPC` and `EIO`: no stripe then has more space than before.
    pub(crate) async fn on_every_stripe_with_space(
        &self,
        under: LeaseContext,
        chunked: Chunked<'_>,
        range: ByteRange,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<StorageReply>> {
        let layout = chunked.layout;
        let spaces = self.space_needed(under, layout, range).await?;
        let map = self.map.load();
        ensure_space(&map, layout, &spaces)?;
        let done = self.on_every_known_stripe(under, chunked, op).await;
        // The first error may be another stripe's. An unanswered request may still be executed.
        if done.as_ref().is_err_and(|error| matches!(error.errno, Errno::ENOSPC | Errno::EIO)) {
            self.free_reserved(under, layout, &spaces).await;
        }
        done
    }

    /// Returns the space that each stripe lacks for its part of a range.
    async fn space_needed(
        &self,
        under: LeaseContext,
        layout: &Layout,
        range: ByteRange,
    ) -> Result<Vec<ReservationSpace>> {
        let op = |stripe| StorageOp::SpaceNeeded { range: layout::local_range(layout, stripe, range) };
        let replies = self.on_every_stripe(under, layout, op).await?;
        let space = |reply| {
            if let StorageReply::SpaceNeeded(space) = reply { space } else { ReservationSpace::default() }
        };
        Ok(replies.into_iter().map(space).collect())
    }

    /// Frees the parts of chunk files that had no space before. No other session changes the file
    /// meanwhile, so they hold no data.
    async fn free_reserved(&self, under: LeaseContext, layout: &Layout, spaces: &[ReservationSpace]) {
        let stripes = layout.groups.iter().zip(spaces).enumerate().map(|(stripe, (&group, space))| {
            let chunk_file = layout.chunk_file(under.ino, stripe);
            async move {
                let location = self.location_when_known(group).await?;
                for &range in &space.gaps {
                    let op = StorageOp::Allocate { range, how: AllocateMode::Punch };
                    self.send(under, (location, chunk_file), op, None).await?;
                }
                Ok::<(), Error>(())
            }
        });
        let freed: Vec<Result<()>> = rt::join_all(stripes.collect()).await;
        for error in freed.into_iter().filter_map(Result::err) {
            let ino = under.ino.0;
            tracing::warn!(ino, %error, "reserved space of a failed fallocate could not be freed, and stays allocated");
        }
    }
}

/// Refuses a demand that exceeds the free space of a disk. `spaces`: one for each group of the
/// layout, in its order.
fn ensure_space(map: &ClusterMap, layout: &Layout, spaces: &[ReservationSpace]) -> Result<()> {
    let mut disks: BTreeMap<(NodeId, u64), Demand> = BTreeMap::new();
    let of_all = layout.groups.iter().zip(spaces).flat_map(|(&group, space)| of_members(map, group, space));
    for MemberSpace { target, disk, free, wanted } in of_all {
        let Some(node) = map.target(target).map(|target| target.node) else { continue };
        let demand = disks.entry((node, disk)).or_insert(Demand { target, wanted: 0, free });
        demand.wanted = demand.wanted.saturating_add(wanted);
        demand.free = demand.free.min(free);
    }
    match disks.values().find(|demand| demand.wanted > demand.free) {
        None => Ok(()),
        Some(Demand { target, wanted, free }) => Err(Error::new(
            Errno::ENOSPC,
            format!("no space for {wanted} bytes on the disk of target {target}: {free} bytes are available to files"),
        )
        .hint("delete files, or add a target on another disk")),
    }
}

/// Returns the demands of a group's members.
fn of_members(
    map: &ClusterMap,
    group: GroupId,
    space: &ReservationSpace,
) -> impl Iterator<Item = MemberSpace> {
    let primary = map.group(group).and_then(|group| group.primary());
    let ReservationSpace { disk, free, unallocated: wanted, .. } = *space;
    let own = primary.map(|target| MemberSpace { target, disk, free, wanted });
    own.into_iter().chain(space.others.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{CapacityClass, Group, PoolId, Scheme, Target, TargetState};

    const GROUP: GroupId = GroupId(11);

    /// A mirrored group of targets 1 and 2, each on its own node.
    fn map() -> ClusterMap {
        let target = |id: u32| Target {
            id: TargetId(id),
            node: NodeId(id),
            pool: PoolId(1),
            path: format!("/t{id}"),
            state: TargetState::Online,
            capacity: 1000,
            free: 500,
            class: CapacityClass::Normal,
            drain: false,
            used: None,
        };
        let members = vec![TargetId(1), TargetId(2)];
        let group =
            Group { scheme: Scheme::Mirror(2), members, ..Group::single(GROUP, PoolId(1), TargetId(1)) };
        ClusterMap { targets: [1, 2].map(target).into(), groups: vec![group], ..ClusterMap::default() }
    }

    #[test]
    fn every_replica_needs_space() {
        let (scheme, pool) = (Scheme::Mirror(2), PoolId(1));
        let layout = Layout { chunk_size: 65_536, pool, scheme, groups: vec![GROUP], slots: Vec::new() };
        // The disks of both nodes have the same number.
        let asks = |wanted: u64, asked: Option<u64>| {
            let other = |wanted| MemberSpace { target: TargetId(2), disk: 5, free: 100, wanted };
            let others = asked.into_iter().map(other).collect();
            let space =
                ReservationSpace { disk: 5, free: 100, unallocated: wanted, gaps: Vec::new(), others };
            ensure_space(&map(), &layout, &[space]).map_err(|error| error.message.to_string())
        };
        assert_eq!(asks(100, Some(100)), Ok(()));
        assert!(asks(101, Some(100)).unwrap_err().contains("disk of target 1"));
        assert!(asks(100, Some(101)).unwrap_err().contains("disk of target 2"));
        assert_eq!(asks(100, None), Ok(()), "it doesn't answer");
    }
}
