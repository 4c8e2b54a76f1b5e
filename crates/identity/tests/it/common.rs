//! A cluster's authority and members, and handshakes in memory.

use identity::tls::{UnauthenticatedClients, client_config, peer_identity, peer_name, server_config};
use identity::{Authority, Credentials, Identity, Member, Protection, Validity};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use types::NodeId;

pub const CLUSTER: &str = "01234567-89ab-4def-8123-456789abcdef";
pub const OTHER_CLUSTER: &str = "11111111-2222-4333-8444-555555555555";

/// The system's time, which rustls uses.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

pub fn authority(cluster: &str) -> Authority {
    Authority::create(cluster, "test", now()).unwrap()
}

pub fn node(authority: &Authority, id: u32) -> Credentials {
    authority.issue(&Member::Node(NodeId(id)), Validity::of_node(now())).unwrap()
}

pub fn client(authority: &Authority, name: &str) -> Credentials {
    authority.issue(&Member::Client(name.into()), Validity::of_client(now())).unwrap()
}

/// What the ends learned about each other.
#[derive(Debug)]
pub struct Met {
    pub server_sees: Option<Identity>,
    pub client_sees: Option<Identity>,
    pub protection: Option<Protection>,
}

/// Runs a handshake; returns the error of the end that refused first.
pub fn shake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: ServerName<'static>,
) -> Result<Met, rustls::Error> {
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut sent = Vec::new();
        client.write_tls(&mut sent).unwrap();
        server.read_tls(&mut &sent[..]).unwrap();
        server.process_new_packets()?;
        let mut sent = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut sent).unwrap();
        }
        let mut rest = &sent[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
    }
    let protection = Protection::negotiated(server.alpn_protocol());
    assert_eq!(protection, Protection::negotiated(client.alpn_protocol()));
    Ok(Met {
        server_sees: peer_identity(server.peer_certificates()).unwrap(),
        client_sees: peer_identity(client.peer_certificates()).unwrap(),
        protection,
    })
}

/// Runs a handshake of two members that require encryption; the client expects node `meant`.
pub fn meet(client: &Credentials, server: &Credentials, meant: Option<u32>) -> Result<Met, rustls::Error> {
    let protection = Protection::Encrypted;
    shake(
        client_config(client, protection).unwrap(),
        server_config(server, protection, UnauthenticatedClients::Refused).unwrap(),
        peer_name(meant.map(NodeId)),
    )
}
