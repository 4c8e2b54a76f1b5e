//! Backups of stores: their content, and restoring them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod copies;
mod damaged;
mod golden;
mod support;
