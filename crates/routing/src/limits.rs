//! Bounds of the waits of this crate, and when another member is preferred.

use std::time::Duration;

/// How long a request to a group is in flight before it watches the map for another primary: long
/// compared with most requests, which thus need no watch, and short compared with a failover.
pub(crate) const GROUP_WATCH_DELAY: Duration = Duration::from_millis(50);
/// First pause before a request is sent again to a primary that refused it for its group version;
/// it doubles up to the longest. A map takes a millisecond or two from management to all nodes.
pub(crate) const FIRST_GROUP_BACKOFF: Duration = Duration::from_millis(2);
/// The longest such pause.
pub(crate) const LONGEST_GROUP_BACKOFF: Duration = Duration::from_millis(500);
/// How much longer than its own limit a request to a group waits for the answer of a call in
/// flight, which has its own time-out.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// How long a member may take to answer a read before other members are asked as well: longer than
/// a busy disk usually takes.
pub(crate) const HEDGE_DELAY: Duration = Duration::from_millis(1000);
/// How long other members are preferred to one that didn't answer in time; then it may be back.
pub(crate) const UNRESPONSIVE_MEMORY: Duration = Duration::from_secs(3);
/// Region of a chunk file that is read from the same member, bytes: reading it takes longer than a
/// disk seek.
pub(crate) const READ_REGION_BYTES: u64 = 2 << 20;
/// A member with this many more requests under way than the least busy one is passed over for it.
pub(crate) const MAX_LOAD_IMBALANCE: u32 = 4;
/// The same for a member in this process's rack, compared with one in another rack: the link
/// between racks is usually narrower, and shared.
pub(crate) const MAX_LOAD_IMBALANCE_BETWEEN_RACKS: u32 = 16;
