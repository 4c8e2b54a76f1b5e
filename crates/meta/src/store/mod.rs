//! What the service reads from the metadata store and caches of it, and its own records there.

pub(crate) mod cache;
pub(crate) mod record;
pub(crate) mod remote_data;
pub(crate) mod restore_records;
pub(crate) mod transaction_view;
