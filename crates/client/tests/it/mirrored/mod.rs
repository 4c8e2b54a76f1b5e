//! Files in mirrored groups, seen by clients and the metadata service: what they ask of whom, while
//! primaries come and go.
//!
//! Clients, metadata service and stores are the real ones, on a simulated machine. In between are
//! groups that keep to what clients are promised, and nothing more: see `group`.

mod cluster;
mod failover;
mod group;
mod lost;
mod migrate;
mod services;
mod sync;
