//! Hand-made frames.

use super::support::CLUSTER;
use super::way::{ConnectionMode, Wire};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use wire::Message;
use wire::frame::{FrameKind, HEADER_BYTES, Header, Hello, Welcome};

/// One end of a connection.
pub struct Raw(pub Wire);

impl Raw {
    pub fn connect(way: ConnectionMode, address: SocketAddr) -> Raw {
        Raw(way.to_server(patient(TcpStream::connect(address).unwrap())))
    }

    /// Acts as the server of a connection.
    pub fn over(way: ConnectionMode, stream: TcpStream) -> Raw {
        Raw(way.to_client(patient(stream)))
    }

    /// Connects, sends a hello and receives the welcome.
    pub fn welcome(way: ConnectionMode, address: SocketAddr, client: u64) -> Raw {
        let mut raw = Raw::connect(way, address);
        raw.hello(client, 1);
        assert_eq!(raw.receive().unwrap().0.kind, FrameKind::Welcome);
        raw
    }

    pub fn hello(&mut self, client: u64, incarnation: u64) {
        let hello = Hello {
            protocol: 1,
            cluster: CLUSTER.into(),
            name: "by hand".into(),
            client,
            core: 0,
            cores: 1,
            incarnation,
        };
        let mut body = Vec::new();
        hello.encode(&mut body);
        self.send(Header::new(FrameKind::Hello, 0), &body, &[]);
    }

    /// Answers a hello, as a server.
    pub fn answer_hello(&mut self) {
        assert_eq!(self.receive().unwrap().0.kind, FrameKind::Hello);
        let mut body = Vec::new();
        Welcome { protocol: 1, name: "by hand".into(), credits: 8, cores: 1, on_host: None }
            .encode(&mut body);
        self.send(Header::new(FrameKind::Welcome, 0), &body, &[]);
    }

    pub fn send(&mut self, header: Header, body: &[u8], payload: &[u8]) {
        let mut bytes = header.with_body(body).with_payload(payload).encode().to_vec();
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(payload);
        self.send_bytes(&bytes);
    }

    /// The peer may have closed the connection already.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The next frame; `None` at the end.
    pub fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        match self.0.read_exact(&mut header) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing comes"),
            Err(_) => return None,
        }
        let header = Header::decode(&header).unwrap();
        let mut rest = vec![0; (header.body_bytes + header.payload_bytes) as usize];
        self.0.read_exact(&mut rest).unwrap();
        header.check_body(&rest[..header.body_bytes as usize]).unwrap();
        Some((header, rest))
    }
}

/// Sets time-outs, so that a test fails rather than waiting for ever.
fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}
