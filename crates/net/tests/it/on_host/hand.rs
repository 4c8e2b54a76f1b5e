//! A hand-made client on the server's machine.

use super::WAY;
use crate::rpc::raw::Raw;
use crate::rpc::support::CLUSTER;
use rt::net::{Address, Socket};
use rt::{IoBuf, SharedMemory};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use types::crc32c;
use wire::Message;
use wire::frame::{FrameKind, HEADER_BYTES, Header, Hello, LocalEndpoint, Welcome};

pub const LIMIT: Duration = Duration::from_secs(20);

/// A hand-made connection; the memory is the client's.
pub struct RawHostClient {
    pub socket: Socket,
    /// The connection over TCP that it replaces.
    pub before: Option<Raw>,
}

/// Sends a hello over TCP, and learns how to connect on the host.
pub fn local_endpoint(address: SocketAddr, client: u64) -> (Raw, LocalEndpoint) {
    let mut raw = Raw::connect(WAY, address);
    raw.hello(client, 1);
    let (header, body) = raw.receive().unwrap();
    assert_eq!(header.kind, FrameKind::Welcome);
    let way = Welcome::decode(&body[..header.body_bytes as usize]).unwrap().on_host;
    (raw, way.expect("a server tells how it is reached on its machine"))
}

impl RawHostClient {
    /// Connects and sends a descriptor.
    pub async fn connect(way: &LocalEndpoint, fd: OwnedFd) -> RawHostClient {
        let socket = Socket::connect(Address::Abstract(way.socket.clone()), LIMIT).await.unwrap();
        socket.send_fd(fd).await.unwrap();
        RawHostClient { socket, before: None }
    }

    /// Completes a connection with `bytes` bytes of memory.
    pub async fn welcome(address: SocketAddr, client: u64, bytes: usize) -> (RawHostClient, SharedMemory) {
        let (before, way) = local_endpoint(address, client);
        let (memory, fd) = SharedMemory::create(bytes).unwrap();
        let mut hand = RawHostClient::connect(&way, fd).await;
        hand.before = Some(before);
        hand.hello(client).await;
        assert_eq!(hand.receive().await.unwrap().0.kind, FrameKind::Welcome);
        (hand, memory)
    }

    pub async fn hello(&self, client: u64) {
        let hello = Hello {
            protocol: 1,
            cluster: CLUSTER.into(),
            name: "by hand".into(),
            client,
            core: 0,
            cores: 1,
            incarnation: 2,
        };
        let mut body = Vec::new();
        hello.encode(&mut body);
        self.send(Header::new(FrameKind::Hello, 0), &body).await;
    }

    /// Sends a frame; its payload, if any, is in the memory.
    pub async fn send(&self, header: Header, body: &[u8]) {
        let mut bytes = header.with_body(body).encode().to_vec();
        bytes.extend_from_slice(body);
        // The server may have closed the connection already.
        let _ = self.socket.send(vec![IoBuf::from_slice(&bytes)]).await;
    }

    /// The next frame other than a ping; `None` at the end.
    pub async fn receive(&self) -> Option<(Header, Vec<u8>)> {
        let header = self.take(HEADER_BYTES).await?;
        let header = Header::decode(header.as_slice().try_into().unwrap()).unwrap();
        let rest = self.take(header.body_bytes as usize + header.inline_bytes()).await?;
        Some((header, rest))
    }

    async fn take(&self, bytes: usize) -> Option<Vec<u8>> {
        let buf = IoBuf::alloc(bytes.max(1)).slice(0..bytes);
        let received = rt::timeout(LIMIT, self.socket.recv_exact(buf.clone())).await.expect("nothing comes");
        received.ok().map(|()| buf.as_slice().to_vec())
    }
}

/// A header with a payload in the memory.
pub fn placed(header: Header, place: u32, payload: &[u8]) -> Header {
    Header {
        payload_place: place,
        payload_bytes: payload.len() as u32,
        payload_sum: Some(crc32c(payload)),
        ..header
    }
}
