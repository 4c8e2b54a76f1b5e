//! Answers that are longer than a frame.

use crate::rpc::support::{TEST_TIME_OUT, localhost, pattern, peer_options, server_options};
use crate::rpc::way::ConnectionMode;
use net::{Channel, Handler, LocalFuture, Peer, PeerOptions, Router, Server};
use rt::IoBuf;
use std::sync::Arc;
use types::Result;
use wire::authorization::{AuthorizationRule, Callers};
use wire::frame::MAX_BODY_BYTES;
use wire::{AnswerKind, Malformed, Message, Request, Service};

/// A request for this many bytes of text.
#[derive(Clone, Copy, Debug)]
pub struct Long(pub usize);

impl Message for Long {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Long, Malformed> {
        let len = bytes.try_into().map_err(|_| Malformed::new("no length"))?;
        Ok(Long(usize::from_le_bytes(len)))
    }
}

impl Request for Long {
    const SERVICE: Service = Service::Management;

    fn answer_kind(&self) -> AnswerKind {
        AnswerKind::NoPayload
    }

    fn rule(&self) -> AuthorizationRule {
        AuthorizationRule { operation: "long", callers: Callers::Members }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(pub Vec<u8>);

impl Message for Text {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(bytes: &[u8]) -> Result<Text, Malformed> {
        Ok(Text(bytes.to_vec()))
    }
}

struct Writer;

impl Handler<Long, Text> for Writer {
    fn handle(&self, Long(len): Long, _payload: Option<IoBuf>) -> LocalFuture<'_, Result<Text>> {
        Box::pin(async move { Ok(Text(pattern(len as u64, len))) })
    }
}

/// A server that answers [`Long`], and a client of it.
pub fn writer(way: ConnectionMode) -> (Arc<Server>, Channel<Long, Text>) {
    let router = Router::new().with::<Long, Text>(Arc::new(Writer));
    let server = Server::start(server_options(way, localhost()), router).unwrap();
    let addresses = server.addresses().to_vec();
    let options = PeerOptions { timeout: TEST_TIME_OUT, ..peer_options(way, addresses) };
    (server, Channel::remote(Peer::new(options)))
}

pub fn an_answer_may_be_longer_than_a_frame(way: ConnectionMode) {
    let (_server, channel) = writer(way);
    let frame = MAX_BODY_BYTES as usize;
    rt::block_on(async move {
        for len in [0, 1, frame - 1, frame, frame + 1, 2 * frame, 3 * frame + 7, 1] {
            let Text(text) = channel.call(Long(len), None).await.unwrap();
            assert_eq!(text.len(), len);
            assert!(text == pattern(len as u64, len), "{len} bytes came, not those that were sent");
        }
        // Pieces of several answers may be interleaved.
        let lens = [2 * frame + 1, 5, 3 * frame, frame + 9];
        let calls = lens.iter().map(|&len| channel.call(Long(len), None)).collect();
        for (len, answer) in lens.into_iter().zip(rt::join_all(calls).await) {
            assert!(answer.unwrap().0 == pattern(len as u64, len), "{len} bytes");
        }
    })
    .unwrap();
}
