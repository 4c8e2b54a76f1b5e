//! How the ends of these tests are connected: as in a cluster with encryption, on one machine.

use net::{SameHost, Transport};

#[path = "../rpc_tls/way.rs"]
mod tls;

pub use tls::{Wire, security_of_client, security_of_server, to_client, to_server};

pub const TRANSPORT: Transport = Transport::SharedMemory;

pub const SAME_HOST: SameHost = SameHost::SharedMemory;
