//! Space that a reservation needs. The types here allocate no memory of their own.

use super::common::{List, RangeFields};
use crate::{MAX_GAPS, Malformed, MemberSpace, ReservationSpace};
use types::{Scheme, TargetId};

/// Largest number of items in [`ReservationSpace::others`].
const MAX_OTHERS: usize = Scheme::MAX_REPLICAS as usize;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReservationSpaceFields {
    #[prost(uint64, tag = "1")]
    disk: u64,
    #[prost(uint64, tag = "2")]
    free: u64,
    #[prost(uint64, tag = "3")]
    wanted: u64,
    #[prost(message, optional, tag = "4")]
    gaps: Option<List<RangeFields, MAX_GAPS>>,
    #[prost(message, optional, tag = "5")]
    others: Option<List<MemberSpaceFields, MAX_OTHERS>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MemberSpaceFields {
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint64, tag = "2")]
    disk: u64,
    #[prost(uint64, tag = "3")]
    free: u64,
    #[prost(uint64, tag = "4")]
    wanted: u64,
}

impl From<&ReservationSpace> for ReservationSpaceFields {
    fn from(space: &ReservationSpace) -> ReservationSpaceFields {
        let ReservationSpace { disk, free, unallocated: wanted, gaps, others } = space;
        let other = |&MemberSpace { target, disk, free, wanted }: &MemberSpace| MemberSpaceFields {
            target: target.0,
            disk,
            free,
            wanted,
        };
        ReservationSpaceFields {
            disk: *disk,
            free: *free,
            wanted: *wanted,
            gaps: List::of(gaps, |range| (*range).into()),
            others: List::of(others, other),
        }
    }
}

impl TryFrom<ReservationSpaceFields> for ReservationSpace {
    type Error = Malformed;

    fn try_from(fields: ReservationSpaceFields) -> Result<ReservationSpace, Malformed> {
        let ReservationSpaceFields { disk, free, wanted, gaps, others } = fields;
        let other = |MemberSpaceFields { target, disk, free, wanted }| {
            Ok(MemberSpace { target: TargetId(target), disk, free, wanted })
        };
        let gaps = List::take(gaps, |range: RangeFields| range.try_into())?;
        Ok(ReservationSpace { disk, free, unallocated: wanted, gaps, others: List::take(others, other)? })
    }
}
