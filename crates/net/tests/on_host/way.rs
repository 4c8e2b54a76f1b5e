//! How the ends of these tests are connected: plainly, and by shared memory where a client wants it.

use net::{SameHost, Security, Transport};
use std::net::TcpStream;

pub const TRANSPORT: Transport = Transport::SharedMemory;

pub const SAME_HOST: SameHost = SameHost::SharedMemory;

/// What bytes made by hand go over.
pub type Wire = TcpStream;

pub fn security_of_server() -> Security {
    Security::Plain
}

pub fn security_of_client() -> Security {
    Security::Plain
}

pub fn to_server(stream: TcpStream) -> Wire {
    stream
}

pub fn to_client(stream: TcpStream) -> Wire {
    stream
}
