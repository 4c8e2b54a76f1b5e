//! The first message of each side of a connection.

use crate::proto::{bounded_name, fields};
use crate::{Malformed, Message};
use prost::Message as _;

/// The connecting side's first message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    /// Highest version of the protocol that the peer supports.
    pub protocol: u32,
    /// UUID of the peer's cluster; empty if it doesn't know it yet.
    pub cluster: String,
    /// Name of the peer for log and error messages.
    pub name: String,
    /// Random number of the peer's process.
    pub client: u64,
    /// Core of the peer that the connection belongs to.
    pub core: u32,
    /// Number of the peer's cores.
    pub cores: u32,
    /// Grows with each connection of this (client, core): a later one ends an earlier one.
    pub incarnation: u64,
}

/// The answer of the accepting side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Welcome {
    /// Version that both sides support.
    pub protocol: u32,
    /// Name of the server for log and error messages.
    pub name: String,
    /// Requests that may be in flight on this connection.
    pub credits: u32,
    /// Number of the server's cores.
    pub cores: u32,
    /// How processes on the same machine can connect instead.
    pub on_host: Option<LocalEndpoint>,
}

/// Unix socket by which processes on the same machine can connect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocalEndpoint {
    /// Identifies the machine: processes on other machines have another value.
    pub host: String,
    /// Abstract name of the socket.
    pub socket: String,
    /// User id of the listening process.
    pub user: u32,
}

/// Field numbers never change.
#[derive(Clone, PartialEq, prost::Message)]
struct HelloFields {
    #[prost(uint32, tag = "1")]
    protocol: u32,
    #[prost(string, tag = "2")]
    cluster: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(fixed64, tag = "4")]
    client: u64,
    #[prost(uint32, tag = "5")]
    core: u32,
    #[prost(uint32, tag = "6")]
    cores: u32,
    #[prost(uint64, tag = "7")]
    incarnation: u64,
}

/// Field numbers never change.
#[derive(Clone, PartialEq, prost::Message)]
struct WelcomeFields {
    #[prost(uint32, tag = "1")]
    protocol: u32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint32, tag = "3")]
    credits: u32,
    #[prost(uint32, tag = "4")]
    cores: u32,
    #[prost(message, optional, tag = "5")]
    on_host: Option<LocalEndpointFields>,
}

/// Field numbers never change.
#[derive(Clone, PartialEq, prost::Message)]
struct LocalEndpointFields {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(string, tag = "2")]
    socket: String,
    #[prost(uint32, tag = "3")]
    user: u32,
}

impl Message for Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        let Hello { protocol, cluster, name, client, core, cores, incarnation } = self.clone();
        HelloFields { protocol, cluster, name, client, core, cores, incarnation }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
        let HelloFields { protocol, cluster, name, client, core, cores, incarnation } = fields(bytes)?;
        let (cluster, name) = (bounded_name(cluster)?, bounded_name(name)?);
        Ok(Hello { protocol, cluster, name, client, core, cores, incarnation })
    }
}

impl Message for Welcome {
    fn encode(&self, out: &mut Vec<u8>) {
        let Welcome { protocol, name, credits, cores, on_host } = self.clone();
        let on_host =
            on_host.map(|LocalEndpoint { host, socket, user }| LocalEndpointFields { host, socket, user });
        WelcomeFields { protocol, name, credits, cores, on_host }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<Welcome, Malformed> {
        let WelcomeFields { protocol, name, credits, cores, on_host } = fields(bytes)?;
        let bounded = |way: LocalEndpointFields| -> Result<LocalEndpoint, Malformed> {
            Ok(LocalEndpoint {
                host: bounded_name(way.host)?,
                socket: bounded_name(way.socket)?,
                user: way.user,
            })
        };
        let on_host = on_host.map(bounded).transpose()?;
        Ok(Welcome { protocol, name: bounded_name(name)?, credits, cores, on_host })
    }
}
