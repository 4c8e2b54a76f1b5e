//! How the ends of these tests are connected: plainly.

use net::{Security, Transport};
use std::net::TcpStream;

pub const TRANSPORT: Transport = Transport::Tcp;

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
