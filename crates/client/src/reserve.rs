//! `fallocate(2)`: all stripes of a file get their space, or none does.
//!
//! The targets of a file often share a disk, where each of them has room for its own part and all
//! together have not. So the client asks all of them before it reserves anything, and adds up what
//! each disk is to give. What others write meanwhile may still make a target refuse: then the
//! client gives back what the others have reserved.

use crate::Client;
use crate::data::Chunked;
use crate::epoch::Under;
use std::collections::BTreeMap;
use types::{ByteRange, Errno, Error, Layout, NodeId, Result, TargetId};
use wire::{Allocate, Room, StorageOp, StorageReply};

/// What a disk is to give.
struct Demand {
    /// A target on it, for messages.
    target: TargetId,
    wanted: u64,
    free: u64,
}

impl Client {
    /// Does `op` on every stripe, which gives a range its space.
    ///
    /// # Errors
    /// `ENOSPC`: no stripe has more space than before then.
    pub(crate) async fn on_every_stripe_with_space(
        &self,
        under: Under,
        chunked: Chunked<'_>,
        range: ByteRange,
        op: impl Fn(usize) -> StorageOp,
    ) -> Result<Vec<StorageReply>> {
        let layout = chunked.layout;
        let rooms = self.rooms_for(under, layout, range).await?;
        self.require_room(layout, &rooms)?;
        let done = self.on_every_known_stripe(under, chunked, op).await;
        if done.as_ref().is_err_and(|error| error.errno == Errno::ENOSPC) {
            self.give_back(under, layout, &rooms).await;
        }
        done
    }

    /// What each stripe lacks of its part of a range.
    async fn rooms_for(&self, under: Under, layout: &Layout, range: ByteRange) -> Result<Vec<Room>> {
        let op = |stripe| StorageOp::Room { range: layout::local_range(layout, stripe, range) };
        let replies = self.on_every_stripe(under, layout, op).await?;
        let room = |reply| if let StorageReply::Room(room) = reply { room } else { Room::default() };
        Ok(replies.into_iter().map(room).collect())
    }

    fn require_room(&self, layout: &Layout, rooms: &[Room]) -> Result<()> {
        let map = self.map.read().expect("nobody panics while holding the map").clone();
        let mut disks: BTreeMap<(NodeId, u64), Demand> = BTreeMap::new();
        for (&group, room) in layout.groups.iter().zip(rooms) {
            let primary = map.group(group).and_then(|group| group.primary());
            let Some(target) = primary.and_then(|id| map.target(id)) else { continue };
            let demand = disks.entry((target.node, room.disk)).or_insert(Demand {
                target: target.id,
                wanted: 0,
                free: room.free,
            });
            demand.wanted = demand.wanted.saturating_add(room.wanted);
            demand.free = demand.free.min(room.free);
        }
        match disks.values().find(|demand| demand.wanted > demand.free) {
            None => Ok(()),
            Some(Demand { target, wanted, free }) => Err(Error::new(
                Errno::ENOSPC,
                format!("no room for {wanted} bytes on the disk of target {target}: files may take {free} more bytes there"),
            )
            .hint("delete files, or add a target on another disk")),
        }
    }

    /// Frees the parts of chunk files that had no space before. Nobody else changes the file
    /// meanwhile, so there is nothing in them.
    async fn give_back(&self, under: Under, layout: &Layout, rooms: &[Room]) {
        let stripes = layout.groups.iter().zip(rooms).enumerate().map(|(stripe, (&group, room))| {
            let chunk_file = layout.chunk_file(under.ino, stripe);
            async move {
                let keeper = self.keeper_soon(group).await?;
                for &range in &room.gaps {
                    let op = StorageOp::Allocate { range, how: Allocate::Punch };
                    self.store(under, (keeper, chunk_file), op, None).await?;
                }
                Ok::<(), Error>(())
            }
        });
        let given_back: Vec<Result<()>> = rt::join_all(stripes.collect()).await;
        for error in given_back.into_iter().filter_map(Result::err) {
            let ino = under.ino.0;
            tracing::warn!(ino, %error, "space that was reserved for a part of a file stays reserved: there was none for the others");
        }
    }
}
