//! Answers that exceed the maximum length.

use crate::rpc::long_answers::{Long, Text, writer};
use crate::rpc::raw::Raw;
use crate::rpc::support::{localhost, peer_of};
use crate::rpc::way::ConnectionMode;
use net::Channel;
use std::net::TcpListener;
use std::time::Duration;
use types::Errno;
use wire::frame::{FrameKind, Header, MAX_ANSWER_BYTES, MAX_BODY_BYTES};

pub fn an_answer_above_the_limit_is_refused_by_the_server(way: ConnectionMode) {
    let (_server, channel) = writer(way);
    rt::block_on(async move {
        let refused = channel.call(Long(MAX_ANSWER_BYTES + 1), None).await.err().unwrap();
        assert_eq!(refused.errno, Errno::E2BIG);
        assert_eq!(channel.call(Long(3), None).await.unwrap().0.len(), 3);
    })
    .unwrap();
}

pub fn an_endless_answer_ends_the_connection(way: ConnectionMode) {
    let listener = TcpListener::bind(localhost()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut raw = Raw::over(way, listener.accept().unwrap().0);
        raw.answer_hello();
        let (asked, _) = raw.receive().unwrap();
        let piece = vec![b'x'; MAX_BODY_BYTES as usize];
        for _ in 0..=MAX_ANSWER_BYTES / piece.len() {
            raw.send(Header::new(FrameKind::Part, asked.id), &piece, &[]);
        }
        assert!(raw.receive().is_none(), "the client leaves");
    });
    let peer = peer_of(way, vec![address], Duration::from_secs(30));
    let channel: Channel<Long, Text> = Channel::remote(peer);
    // A separate thread: the call continues, at a server that accepts no other connection.
    let (done, is_done) = std::sync::mpsc::channel();
    rt::block_on(async move {
        let left = Box::pin(async move {
            while !server.is_finished() {
                rt::sleep(Duration::from_millis(5)).await;
            }
            done.send(server.join()).unwrap();
        });
        assert!(channel.call_or_abandon(left, Long(1), None).await.is_none());
    })
    .unwrap();
    is_done.recv().unwrap().unwrap();
}
