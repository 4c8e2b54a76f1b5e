//! The first message of each side of a connection.

use crate::proto::{bounded_name, fields};
use crate::{Malformed, Message};
use prost::Message as _;

/// Who connects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hello {
    /// The highest version of the protocol that the peer speaks.
    pub protocol: u32,
    /// UUID of the cluster it belongs to; empty when it doesn't know yet.
    pub cluster: String,
    /// What to call it in messages.
    pub name: String,
    /// Random, one for each start of a process.
    pub client: u64,
    /// Which of its cores this is the connection of.
    pub core: u32,
    /// How many cores it has.
    pub cores: u32,
    /// Grows with each connection of this (client, core): a later one ends an earlier one.
    pub incarnation: u64,
}

/// The answer of who was connected to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Welcome {
    /// The version that both speak.
    pub protocol: u32,
    /// What to call it in messages.
    pub name: String,
    /// Requests that may be in flight on this connection.
    pub credits: u32,
    /// How many cores it has.
    pub cores: u32,
    /// How processes of the same machine may reach it instead.
    pub on_host: Option<OnHost>,
}

/// A way to a process for those on the same machine: a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OnHost {
    /// Names the machine: who is on another one finds another name there.
    pub host: String,
    /// The socket's abstract name.
    pub socket: String,
    /// The user whose process listens there.
    pub user: u32,
}

/// Field numbers are fixed for ever.
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

/// Field numbers are fixed for ever.
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
    on_host: Option<OnHostFields>,
}

/// Field numbers are fixed for ever.
#[derive(Clone, PartialEq, prost::Message)]
struct OnHostFields {
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
        let on_host = on_host.map(|OnHost { host, socket, user }| OnHostFields { host, socket, user });
        WelcomeFields { protocol, name, credits, cores, on_host }.encode_raw(out);
    }

    fn decode(bytes: &[u8]) -> Result<Welcome, Malformed> {
        let WelcomeFields { protocol, name, credits, cores, on_host } = fields(bytes)?;
        let bounded = |way: OnHostFields| -> Result<OnHost, Malformed> {
            Ok(OnHost { host: bounded_name(way.host)?, socket: bounded_name(way.socket)?, user: way.user })
        };
        let on_host = on_host.map(bounded).transpose()?;
        Ok(Welcome { protocol, name: bounded_name(name)?, credits, cores, on_host })
    }
}
