//! Copies of stores: what is in them, and what is made of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod copies;
mod damaged;
mod golden;
