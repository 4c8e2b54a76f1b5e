//! Shared memory between a client and a server on one machine: when it is used, and that neither
//! end can harm the other through it.

use crate::rpc::way::ConnectionMode;

mod choice;
mod hand;
mod hostile;

/// Transport of these tests: without TLS, and shared memory where a client requests it.
const WAY: ConnectionMode = ConnectionMode::PlainOnHost;
