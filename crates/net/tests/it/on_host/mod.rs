//! Shared memory between a client and a server on one machine: when it is used, and that nobody can
//! do harm by it.

use crate::rpc::way::Way;

mod choice;
mod hand;
mod hostile;

/// How the ends of these tests are connected: without TLS, and by shared memory where a client
/// wants it.
const WAY: Way = Way::PlainOnHost;
