//! Files in mirrored groups, as clients and the metadata service see them during failovers of
//! primaries.
//!
//! Clients, metadata service and stores are the real ones, on a simulated machine. Between them are
//! groups that guarantee what real groups guarantee to clients, and nothing more: see `group`.

mod cluster;
mod failover;
mod group;
mod lost_group;
mod metadata_service;
mod migration;
mod sync;
