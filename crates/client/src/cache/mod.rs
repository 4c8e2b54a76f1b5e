//! What the session knows of directories under its leases: which names are free, the attributes of
//! directories, and files that it has created and the metadata service has yet to get.

pub(crate) mod async_create;
pub(crate) mod complete_directories;
pub(crate) mod creates_in_flight;
pub(crate) mod directory_attributes;
pub(crate) mod heuristic;
pub(crate) mod names;
pub(crate) mod preallocation;
pub(crate) mod prefix_delegation;
