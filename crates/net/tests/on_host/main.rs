//! Shared memory between a client and a server on one machine: when it is used, and that nobody can do harm by it.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.
#![allow(dead_code)] // Some of what these tests share with others is for those.

mod choice;
mod hand;
mod hostile;
#[path = "../rpc/raw.rs"]
mod raw;
#[path = "../rpc/support.rs"]
mod support;
mod way;
