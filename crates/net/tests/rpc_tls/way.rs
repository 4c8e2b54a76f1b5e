//! How the ends of these tests are connected: by TLS. What is made by hand goes over rustls' own streams, which know nothing of ours.

use crate::support::CLUSTER;
use identity::tls::{Strangers, client_config, peer_name, server_config};
use identity::{Authority, Credentials, Protection, Role, Validity};
use net::{SameHost, Security, Tls, Transport};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::time::SystemTime;
use types::NodeId;

pub const TRANSPORT: Transport = Transport::Tls;

pub const SAME_HOST: SameHost = SameHost::OverTcp;

/// The server's last word in a handshake that ends in encryption.
const ENCRYPTED: u8 = 1;

/// A node and two clients.
static MEMBERS: LazyLock<(Credentials, Credentials, Credentials)> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let authority = Authority::create(CLUSTER, "test", now).unwrap();
    let node = authority.issue(&Role::Node(NodeId(3)), Validity::of_node(now)).unwrap();
    let client = |name: &str| authority.issue(&Role::Client(name.into()), Validity::of_client(now)).unwrap();
    (node, client("9"), client("other"))
});

/// What bytes made by hand go over.
pub enum Wire {
    ToServer(Box<StreamOwned<ClientConnection, TcpStream>>),
    ToClient(Box<StreamOwned<ServerConnection, TcpStream>>),
    /// The other side went during the handshake.
    Gone,
}

pub fn security_of_server() -> Security {
    security_of(&MEMBERS.0)
}

pub fn security_of_client() -> Security {
    security_of(&MEMBERS.1)
}

fn security_of(credentials: &Credentials) -> Security {
    Security::Tls(Tls::member(credentials, Protection::Encrypted, Strangers::Refused).unwrap())
}

pub fn to_server(stream: TcpStream) -> Wire {
    to_server_as(&MEMBERS.1, stream)
}

/// As another member than the usual one.
pub fn to_server_as_other(stream: TcpStream) -> Wire {
    to_server_as(&MEMBERS.2, stream)
}

fn to_server_as(credentials: &Credentials, stream: TcpStream) -> Wire {
    let config = client_config(credentials, Protection::Encrypted).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, peer_name(None)).unwrap(), stream);
    let mut word = [0];
    match stream.read_exact(&mut word) {
        Ok(()) => assert_eq!(word, [ENCRYPTED]),
        Err(_) => return Wire::Gone,
    }
    Wire::ToServer(Box::new(stream))
}

pub fn to_client(stream: TcpStream) -> Wire {
    let config = server_config(&MEMBERS.0, Protection::Encrypted, Strangers::Refused).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    match stream.write_all(&[ENCRYPTED]).and_then(|()| stream.flush()) {
        Ok(()) => Wire::ToClient(Box::new(stream)),
        Err(_) => Wire::Gone,
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::ToServer(stream) => stream.read(buf),
            Wire::ToClient(stream) => stream.read(buf),
            Wire::Gone => Ok(0),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Wire::ToServer(stream) => stream.write(buf),
            Wire::ToClient(stream) => stream.write(buf),
            Wire::Gone => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::ToServer(stream) => stream.flush(),
            Wire::ToClient(stream) => stream.flush(),
            Wire::Gone => Ok(()),
        }
    }
}
