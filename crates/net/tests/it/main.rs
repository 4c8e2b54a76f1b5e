//! Calls between processes: over every way that there is, over connections whose ends prove who
//! they are, and on simulated hosts.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod damaged;
mod on_host;
mod rpc;
mod simulated;
mod tls;
