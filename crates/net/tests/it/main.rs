//! Calls between processes: over every transport, over authenticated connections, and on simulated
//! hosts.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod damaged;
mod on_host;
mod rpc;
mod simulated;
mod tls;
