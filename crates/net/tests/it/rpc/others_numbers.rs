//! A newer connection of a client core ends the previous one, but only if it has the same role.

use crate::rpc::raw::Raw;
use crate::rpc::support::{TestService, serve};
use crate::rpc::way::{ConnectionMode, to_server_as_other};
use std::net::TcpStream;
use wire::frame::{FrameKind, Header};

pub fn a_client_cannot_end_the_connections_of_another(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let address = server.addresses()[0];
    let mut first = Raw::welcome(way, address, 1);
    let mut other = Raw(to_server_as_other(TcpStream::connect(address).unwrap()));
    other.hello(1, 2);
    assert_eq!(other.receive().unwrap().0.kind, FrameKind::Welcome);
    first.send(Header::new(FrameKind::Ping, 0), &[], &[]);
    assert_eq!(first.receive().unwrap().0.kind, FrameKind::Pong);

    let mut newer = Raw::connect(way, address);
    newer.hello(1, 3);
    assert_eq!(newer.receive().unwrap().0.kind, FrameKind::Welcome);
    assert!(first.receive().is_none(), "there are two connections of one client core");
    other.send(Header::new(FrameKind::Ping, 0), &[], &[]);
    assert_eq!(other.receive().unwrap().0.kind, FrameKind::Pong);
}
