//! Building blocks of small clusters for integration tests.
//!
//! Each part is small and usable alone: a cluster map ([`map`]), stores of targets ([`targets`]),
//! routes between clients and services ([`channel`]), a metadata service ([`metadata`]), clients
//! ([`clients`]), and application operations on a client ([`application`]). [`cluster`] assembles
//! them. Helpers for a single test suite stay in that suite.
//!
//! Only integration tests (`tests/`) use this crate. In unit tests of a crate that this crate
//! depends on, the crate's types would exist twice.

#![warn(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod map;
pub mod targets;

#[cfg(feature = "cluster")]
pub mod application;
#[cfg(feature = "cluster")]
pub mod channel;
#[cfg(feature = "cluster")]
pub mod clients;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "cluster")]
pub mod metadata;
