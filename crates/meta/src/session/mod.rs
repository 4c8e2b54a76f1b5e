//! Sessions: their registration and its table, what a session's client may do (capabilities, access
//! rules, users), its advisory locks, and its end (eviction, or the end of the grace period).

pub(crate) mod async_changes;
pub(crate) mod capabilities;
pub(crate) mod cleanup;
pub(crate) mod eviction;
pub(crate) mod exports;
pub(crate) mod fencing;
pub(crate) mod grace_period;
pub(crate) mod locks;
pub(crate) mod records;
pub(crate) mod registration;
pub(crate) mod reply_cache;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod users;
