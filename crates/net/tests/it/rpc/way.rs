//! How the ends of a test are connected. With TLS, hand-made frames go over rustls' own streams,
//! which share no code with ours.

use super::support::CLUSTER;
use identity::tls::{UnauthenticatedClients, client_config, peer_name, server_config};
use identity::{Authority, Credentials, Member, Protection, Validity};
use net::{SameHost, Security, Tls, Transport};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use types::NodeId;

/// The server's last handshake byte for an encrypted connection.
const ENCRYPTED: u8 = 1;

/// A node and two clients.
static MEMBERS: LazyLock<(Credentials, Credentials, Credentials)> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let authority = Authority::create(CLUSTER, "test", now).unwrap();
    let node = authority.issue(&Member::Node(NodeId(3)), Validity::of_node(now)).unwrap();
    let client =
        |name: &str| authority.issue(&Member::Client(name.into()), Validity::of_client(now)).unwrap();
    (node, client("9"), client("other"))
});

/// How the ends of a test are connected.
#[derive(Clone, Copy)]
pub enum ConnectionMode {
    /// Over TCP, without TLS.
    Tcp,
    /// Over TCP, encrypted.
    Tls,
    /// Over a Unix socket with payloads in shared memory, in a cluster that encrypts.
    OnHost,
    /// Over a Unix socket with payloads in shared memory, in a cluster without TLS.
    PlainOnHost,
}

impl ConnectionMode {
    /// The transport that a link connected in this way reports.
    pub fn transport(self) -> Transport {
        match self {
            ConnectionMode::Tcp => Transport::Tcp,
            ConnectionMode::Tls => Transport::Tls,
            ConnectionMode::OnHost | ConnectionMode::PlainOnHost => Transport::SharedMemory,
        }
    }

    pub fn same_host(self) -> SameHost {
        match self {
            ConnectionMode::Tcp | ConnectionMode::Tls => SameHost::OverTcp,
            ConnectionMode::OnHost | ConnectionMode::PlainOnHost => SameHost::SharedMemory,
        }
    }

    fn has_tls(self) -> bool {
        matches!(self, ConnectionMode::Tls | ConnectionMode::OnHost)
    }

    pub fn security_of_server(self) -> Security {
        self.security_of(&MEMBERS.0)
    }

    pub fn security_of_client(self) -> Security {
        self.security_of(&MEMBERS.1)
    }

    fn security_of(self, credentials: &Credentials) -> Security {
        if self.has_tls() {
            Security::Tls(
                Tls::member(credentials, Protection::Encrypted, UnauthenticatedClients::Refused).unwrap(),
            )
        } else {
            Security::Plain
        }
    }

    /// The client's end of a connection over which a test sends hand-made bytes.
    pub fn to_server(self, stream: TcpStream) -> Wire {
        if self.has_tls() { tls_to_server(&MEMBERS.1, stream) } else { Wire::Plain(stream) }
    }

    /// The server's end of such a connection.
    pub fn to_client(self, stream: TcpStream) -> Wire {
        if self.has_tls() { tls_to_client(stream) } else { Wire::Plain(stream) }
    }
}

/// A stream for hand-made bytes.
pub enum Wire {
    Plain(TcpStream),
    ToServer(Box<StreamOwned<ClientConnection, TcpStream>>),
    ToClient(Box<StreamOwned<ServerConnection, TcpStream>>),
    /// The peer disconnected during the handshake.
    Gone,
}

/// With TLS, as another member than the usual one.
pub fn to_server_as_other(stream: TcpStream) -> Wire {
    tls_to_server(&MEMBERS.2, stream)
}

fn tls_to_server(credentials: &Credentials, stream: TcpStream) -> Wire {
    let config = client_config(credentials, Protection::Encrypted).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, peer_name(None)).unwrap(), stream);
    let mut word = [0];
    match stream.read_exact(&mut word) {
        Ok(()) => assert_eq!(word, [ENCRYPTED]),
        Err(_) => return Wire::Gone,
    }
    Wire::ToServer(Box::new(stream))
}

fn tls_to_client(stream: TcpStream) -> Wire {
    let config = server_config(&MEMBERS.0, Protection::Encrypted, UnauthenticatedClients::Refused).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    match stream.write_all(&[ENCRYPTED]).and_then(|()| stream.flush()) {
        Ok(()) => Wire::ToClient(Box::new(stream)),
        Err(_) => Wire::Gone,
    }
}

impl Wire {
    /// Makes sends that wait longer fail.
    pub fn set_write_timeout(&self, limit: Duration) {
        let stream = match self {
            Wire::Plain(stream) => stream,
            Wire::ToServer(stream) => &stream.sock,
            Wire::ToClient(stream) => &stream.sock,
            Wire::Gone => return,
        };
        stream.set_write_timeout(Some(limit)).unwrap();
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(buf),
            Wire::ToServer(stream) => stream.read(buf),
            Wire::ToClient(stream) => stream.read(buf),
            Wire::Gone => Ok(0),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(buf),
            Wire::ToServer(stream) => stream.write(buf),
            Wire::ToClient(stream) => stream.write(buf),
            Wire::Gone => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::ToServer(stream) => stream.flush(),
            Wire::ToClient(stream) => stream.flush(),
            Wire::Gone => Ok(()),
        }
    }
}
