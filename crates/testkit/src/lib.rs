//! The parts that integration tests build small clusters of.
//!
//! Each part is small and usable alone: a cluster map ([`map`]), stores of targets ([`targets`]),
//! the ways between clients and services ([`channel`]), a metadata service ([`metadata`]), clients
//! ([`clients`]), and what applications do with one ([`program`]). [`cluster`] assembles them. What
//! only one suite of tests needs stays in that suite.
//!
//! Only integration tests (`tests/`) use this crate: in the unit tests of a crate that it depends
//! on, the crate's types would be there twice.

#![warn(missing_docs)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod map;
pub mod targets;

#[cfg(feature = "cluster")]
pub mod channel;
#[cfg(feature = "cluster")]
pub mod clients;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "cluster")]
pub mod metadata;
#[cfg(feature = "cluster")]
pub mod program;
