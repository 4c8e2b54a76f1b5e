//! The metadata state machine: behaviour of each command, and random commands against a naive
//! model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behaviour;
mod damaged;
mod model;
mod support;
