//! Who sends a request.

use crate::Transport;
use rt::net::Address;

/// The other end of a connection, as the service sees it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What it calls itself.
    pub name: String,
    /// Where it connects from.
    pub address: Address,
    /// How the connection is carried.
    pub transport: Transport,
    /// Random number of its process.
    pub client: u64,
    /// Which of its cores it is.
    pub core: u32,
    /// The cluster that it belongs to; empty if it doesn't know yet (it wants to join).
    pub cluster: String,
}
