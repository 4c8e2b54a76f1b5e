//! An invalid or unexpected frame ends its sender's connection, and has no other effect.

use crate::rpc::raw::Raw;
use crate::rpc::support::{
    TEST_TIME_OUT, TestReply, TestRequest, TestService, channel_to, localhost, pattern, peer_of, serve,
};
use crate::rpc::until::until;
use crate::rpc::way::ConnectionMode;
use net::{Channel, Server};
use rt::IoBuf;
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{BLOCK_SIZE, Errno};
use wire::frame::{FrameKind, Header, MAX_BODY_BYTES, MAX_PAYLOAD_BYTES};
use wire::{Message, Service};

fn still_works(way: ConnectionMode, server: &Arc<Server>) {
    let channel = channel_to(way, server);
    rt::block_on(async move {
        assert_eq!(channel.call(TestRequest::Sum(5), None).await, Ok(TestReply(5, 0)));
    })
    .unwrap();
}

fn request(id: u64) -> Header {
    Header { service: Service::Storage as u8, ..Header::new(FrameKind::Request, id) }
}

fn body(ask: TestRequest) -> Vec<u8> {
    let mut body = Vec::new();
    ask.encode(&mut body);
    body
}

pub fn garbage_ends_the_connection_and_nothing_else(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let address = server.addresses()[0];
    let bystander = &mut Raw::welcome(way, address, 500);
    let noise: Vec<u8> = (0..100_000).map(|_| rt::random_u64() as u8).collect();
    let too_long = |header: Header| header.encode().to_vec();
    let bad: Vec<Vec<u8>> = vec![
        noise,
        vec![0; 64],
        b"GET / HTTP/1.1\r\nHost: here\r\nUser-Agent: a browser that came to the wrong port\r\n\r\n".to_vec(),
        too_long(Header { body_bytes: MAX_BODY_BYTES + 1, ..request(1) }),
        too_long(Header { payload_bytes: MAX_PAYLOAD_BYTES + 1, ..request(1) }),
        too_long(Header { reply_payload_bytes: u32::MAX, ..request(1) }),
        // A frame that only a server sends, a second hello, a body that doesn't match its checksum.
        Header::new(FrameKind::Welcome, 0).encode().to_vec(),
        Header::new(FrameKind::Hello, 0).encode().to_vec(),
        [&Header { body_bytes: 3, ..request(1) }.encode()[..], b"abc"].concat(),
    ];
    for (number, bytes) in bad.iter().enumerate() {
        // Instead of a hello, and after it.
        let mut raw = Raw::connect(way, address);
        raw.send_bytes(bytes);
        let refused = raw.receive();
        assert!(
            refused.is_none_or(|(header, _)| header.kind == FrameKind::Error && raw.receive().is_none()),
            "{number}"
        );
        let mut raw = Raw::welcome(way, address, 1000 + number as u64);
        raw.send_bytes(bytes);
        assert!(raw.receive().is_none(), "{number}");
    }
    bystander.send(Header::new(FrameKind::Ping, 0), &[], &[]);
    assert_eq!(bystander.receive().unwrap().0.kind, FrameKind::Pong);
    still_works(way, &server);
}

pub fn a_connection_that_breaks_within_a_frame_is_removed(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let whole = [
        &request(1).with_body(&body(TestRequest::Sum(1))).with_payload(&[7; 200_000]).encode()[..],
        &body(TestRequest::Sum(1)),
    ]
    .concat();
    for len in [0, 1, 63, 64, 70, whole.len()] {
        let mut raw = Raw::welcome(way, server.addresses()[0], len as u64);
        raw.send_bytes(&whole[..len]);
    }
    still_works(way, &server);
}

pub fn a_request_that_cannot_be_understood_is_refused_and_the_connection_stays(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let mut raw = Raw::welcome(way, server.addresses()[0], 1);
    raw.send(request(10), b"\xffnonsense", &[1; 100]);
    raw.send(Header { service: 99, ..request(11) }, &body(TestRequest::Sum(1)), &[1; 100_000]);
    raw.send(Header { service: Service::Metadata as u8, ..request(12) }, &body(TestRequest::Sum(1)), &[]);
    raw.send(request(13), &body(TestRequest::Sum(1)), &[]);
    raw.send(request(14), &vec![0xff; 700_000], &[1; 100]);
    let expected = [(10, Errno::EPROTO), (11, Errno::EOPNOTSUPP), (12, Errno::EOPNOTSUPP)];
    for (id, errno) in expected {
        let (header, body) = raw.receive().unwrap();
        assert_eq!((header.kind, header.id), (FrameKind::Error, id));
        assert_eq!(types::Error::decode(&body).unwrap().errno, errno);
    }
    let (header, body) = raw.receive().unwrap();
    assert_eq!((header.kind, header.id), (FrameKind::Reply, 13));
    assert_eq!(TestReply::decode(&body).unwrap(), TestReply(1, 0));
    assert_eq!(raw.receive().map(|(header, _)| (header.kind, header.id)), Some((FrameKind::Error, 14)));
}

pub fn more_requests_than_allowed_end_the_connection(way: ConnectionMode) {
    let service = TestService::new(); // The gate is closed.
    let server = serve(way, &service);
    let mut raw = Raw::welcome(way, server.addresses()[0], 1);
    for id in 0..257 {
        raw.send(request(id), &body(TestRequest::Count(id)), &[]);
    }
    assert!(raw.receive().is_none());
    service.gate.set();
    still_works(way, &server);
}

/// Otherwise requests after the first would not be counted, and would outlive the connection.
pub fn two_waiting_requests_with_one_id_end_the_connection(way: ConnectionMode) {
    let service = TestService::open();
    let server = serve(way, &service);
    let mut raw = Raw::welcome(way, server.addresses()[0], 1);
    raw.send(request(1), &body(TestRequest::Wait(1)), &[]);
    raw.send(request(1), &body(TestRequest::Wait(2)), &[]);
    assert!(raw.receive().is_none());
    let waiting = service.clone();
    rt::block_on(until(move || waiting.waiting.load(Ordering::SeqCst) == 0)).unwrap();
    still_works(way, &server);
}

pub fn a_client_that_pings_and_reads_no_pongs_is_not_read_from(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let mut raw = Raw::welcome(way, server.addresses()[0], 1);
    // Each of several sends has to wait that long, and ends with what it has sent until then.
    raw.0.set_write_timeout(Duration::from_secs(1));
    // Much more than fits into the sockets' buffers, in both directions.
    let pings = Header::new(FrameKind::Ping, 0).encode().repeat(1 << 14);
    let taken = (0..100).take_while(|_| raw.0.write_all(&pings).is_ok()).count();
    assert!(taken < 100, "the server keeps as many answers as somebody wants");
    still_works(way, &server);
}

pub fn a_flipped_bit_in_a_request_is_detected(way: ConnectionMode) {
    let service = TestService::open();
    let server = serve(way, &service);
    for len in [10, 4096, 5000, 300_000, 64 << 12] {
        let mut raw = Raw::welcome(way, server.addresses()[0], len as u64);
        let mut payload = pattern(1, len);
        let header = request(1).with_body(&body(TestRequest::Count(len as u64))).with_payload(&payload);
        payload[len / 2] ^= 4;
        raw.send_bytes(&[&header.encode()[..], &body(TestRequest::Count(len as u64)), &payload].concat());
        assert!(raw.receive().is_none());
    }
    assert!(service.counts.lock().is_empty(), "no service has seen it");
    still_works(way, &server);
}

pub fn a_flipped_bit_in_an_answer_is_detected_and_the_call_retransmitted(way: ConnectionMode) {
    let listener = TcpListener::bind(localhost()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for attempt in 0..2 {
            let mut raw = Raw::over(way, listener.accept().unwrap().0);
            raw.answer_hello();
            let (asked, _) = raw.receive().unwrap();
            assert_eq!((asked.kind, asked.reply_payload_bytes), (FrameKind::Request, 200_000));
            let mut payload = pattern(1, 200_000);
            let mut told = Vec::new();
            TestReply(1, 200_000).encode(&mut told);
            let header = Header::new(FrameKind::Reply, asked.id).with_body(&told).with_payload(&payload);
            payload[150_000] ^= if attempt == 0 { 1 } else { 0 };
            raw.send_bytes(&[&header.encode()[..], &told, &payload].concat());
            if attempt == 0 {
                assert!(raw.receive().is_none());
            } else {
                // At the end the peer is dropped in good order.
                assert_eq!(raw.receive().unwrap().0.kind, FrameKind::Close);
            }
        }
    });
    let peer = peer_of(way, vec![address], Duration::from_secs(30));
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        let buf = IoBuf::alloc(200_000);
        assert_eq!(channel.call(TestRequest::Fill(1), Some(buf.clone())).await, Ok(TestReply(1, 200_000)));
        assert!(buf.as_slice() == pattern(1, 200_000));
        assert_eq!(peer.status().links[0].connections, 2);
        drop((channel, peer));
        until(|| server.is_finished()).await; // The goodbye leaves.
        server.join().unwrap();
    })
    .unwrap();
}

pub fn an_unverified_payload_is_never_accepted(way: ConnectionMode) {
    let listener = TcpListener::bind(localhost()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for is_summed in [false, true] {
            let mut raw = Raw::over(way, listener.accept().unwrap().0);
            raw.answer_hello();
            let (asked, _) = raw.receive().unwrap();
            assert!(asked.unchecked);
            let payload = pattern(u64::from(is_summed), BLOCK_SIZE);
            let mut told = Vec::new();
            TestReply(1, 1).encode(&mut told);
            let whole = Header::new(FrameKind::Reply, asked.id).with_body(&told).with_payload(&payload);
            let payload_sum = whole.payload_sum.filter(|_| is_summed);
            let header = Header { unchecked: true, payload_sum, ..whole };
            raw.send_bytes(&[&header.encode()[..], &told, &payload].concat());
            assert_eq!(raw.receive().map(|(header, _)| header.kind), is_summed.then_some(FrameKind::Close));
        }
    });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> =
            Channel::remote(peer_of(way, vec![address], TEST_TIME_OUT));
        let buf = IoBuf::alloc(BLOCK_SIZE);
        assert_eq!(channel.call(TestRequest::Stored(1), Some(buf.clone())).await, Ok(TestReply(1, 1)));
        assert!(buf.as_slice() == pattern(1, BLOCK_SIZE));
        drop(channel);
        until(|| server.is_finished()).await; // The goodbye leaves.
        server.join().unwrap();
    })
    .unwrap();
}

pub fn an_answer_to_an_unknown_request_ends_the_connection(way: ConnectionMode) {
    let listener = TcpListener::bind(localhost()).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let answers = [
            Header::new(FrameKind::Reply, 77),
            Header { payload_bytes: 5, ..Header::new(FrameKind::Reply, 0) },
            Header::new(FrameKind::Request, 0),
        ];
        for answer in answers {
            let mut raw = Raw::over(way, listener.accept().unwrap().0);
            raw.answer_hello();
            raw.receive().unwrap();
            raw.send(answer, &[], &vec![0; answer.payload_bytes as usize]);
            assert!(raw.receive().is_none());
        }
    });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> =
            Channel::remote(peer_of(way, vec![address], Duration::from_secs(2)));
        // A busy machine may take longer for all the answers.
        while !server.is_finished() {
            let error = channel.call(TestRequest::Fill(1), Some(IoBuf::alloc(10))).await.unwrap_err();
            assert_eq!(error.errno, Errno::ETIMEDOUT);
        }
        server.join().unwrap();
    })
    .unwrap();
}
