//! Space that a reservation needs. The types here allocate no memory of their own.

use super::common::{List, RangeFields};
use crate::{MAX_GAPS, Malformed, MemberRoom, Room};
use types::{Scheme, TargetId};

/// Largest number of items in [`Room::others`].
const MAX_OTHERS: usize = Scheme::MAX_COPIES as usize;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RoomFields {
    #[prost(uint64, tag = "1")]
    disk: u64,
    #[prost(uint64, tag = "2")]
    free: u64,
    #[prost(uint64, tag = "3")]
    wanted: u64,
    #[prost(message, optional, tag = "4")]
    gaps: Option<List<RangeFields, MAX_GAPS>>,
    #[prost(message, optional, tag = "5")]
    others: Option<List<MemberRoomFields, MAX_OTHERS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MemberRoomFields {
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint64, tag = "2")]
    disk: u64,
    #[prost(uint64, tag = "3")]
    free: u64,
    #[prost(uint64, tag = "4")]
    wanted: u64,
}

impl From<&Room> for RoomFields {
    fn from(room: &Room) -> RoomFields {
        let Room { disk, free, wanted, gaps, others } = room;
        let other = |&MemberRoom { target, disk, free, wanted }: &MemberRoom| MemberRoomFields {
            target: target.0,
            disk,
            free,
            wanted,
        };
        RoomFields {
            disk: *disk,
            free: *free,
            wanted: *wanted,
            gaps: List::of(gaps, |range| (*range).into()),
            others: List::of(others, other),
        }
    }
}

impl TryFrom<RoomFields> for Room {
    type Error = Malformed;

    fn try_from(fields: RoomFields) -> Result<Room, Malformed> {
        let RoomFields { disk, free, wanted, gaps, others } = fields;
        let other = |MemberRoomFields { target, disk, free, wanted }| {
            Ok(MemberRoom { target: TargetId(target), disk, free, wanted })
        };
        let gaps = List::take(gaps, |range: RangeFields| range.try_into())?;
        Ok(Room { disk, free, wanted, gaps, others: List::take(others, other)? })
    }
}
