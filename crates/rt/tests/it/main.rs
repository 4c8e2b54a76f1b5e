//! The runtime, on this machine and on simulated ones.

#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod cores;
mod files;
mod locks;
mod network;
mod plain_ring;
mod simulation;
mod sockets;
