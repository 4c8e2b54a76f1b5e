//! Silent connections, and servers with little memory or few connections.

use crate::rpc::proxy::Proxy;
use crate::rpc::raw::Raw;
use crate::rpc::support::{
    TEST_TIME_OUT, TestReply, TestRequest, TestService, localhost, pattern, peer_of, peer_options, serve,
    server_options, sum,
};
use crate::rpc::until::{until, until_blocking};
use crate::rpc::way::ConnectionMode;
use net::{Channel, Liveness, Peer, PeerOptions, Router, Server, ServerLimits, ServerOptions};
use rt::IoBuf;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{Errno, Result};
use wire::frame::{FrameKind, Header};
use wire::{Message, Service};

/// Shorter than in production, and longer than a busy machine delays a thread that has something to
/// send.
const QUICK: Liveness =
    Liveness { ping_after: Duration::from_millis(400), dead_after: Duration::from_secs(4) };

/// A peer that is silent for this long is given up, wherever its silence begins between two checks.
const LONG: Duration = Duration::from_millis(5500);

pub fn a_silent_connection_is_replaced(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let proxy = Proxy::to(server.addresses()[0]);
    let options = peer_options(way, vec![proxy.address]);
    let peer = Peer::new(PeerOptions { liveness: QUICK, ..options });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        proxy.freeze();
        assert_eq!(channel.call(TestRequest::Sum(2), None).await, Ok(TestReply(2, 0)));
        assert!(peer.status().links[0].connections >= 2);
    })
    .unwrap();
}

pub fn an_address_that_drops_large_frames_is_replaced_by_another(way: ConnectionMode) {
    let server = serve(way, &TestService::open());
    let good = server.addresses()[0];
    let narrow = Proxy::that_chokes(good, 64 << 10);
    let options = peer_options(way, vec![narrow.address, good]);
    let peer = Peer::new(PeerOptions { liveness: QUICK, timeout: QUICK.dead_after * 10, ..options });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(1), None).await, Ok(TestReply(1, 0)));
        let data = IoBuf::from_slice(&pattern(2, 1 << 20));
        let expected = sum(data.as_slice());
        assert_eq!(channel.call(TestRequest::Sum(2), Some(data)).await, Ok(TestReply(2, expected)));
        assert_eq!(peer.status().links[0].connected, Some((good.into(), way.transport())));
    })
    .unwrap();
}

pub fn a_slow_request_does_not_make_a_server_look_dead(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve(way, &service);
    let options = peer_options(way, server.addresses().to_vec());
    let peer = Peer::new(PeerOptions { liveness: QUICK, ..options });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        let seen = service.clone();
        rt::spawn(async move {
            until(|| seen.begun.load(Ordering::SeqCst) == 1).await;
            rt::sleep(LONG).await;
            seen.gate.set();
        });
        assert_eq!(channel.call(TestRequest::Count(1), None).await, Ok(TestReply(1, 1)));
        let link = peer.status().links.remove(0);
        assert_eq!(link.connections, 1);
        assert!(link.round_trip.is_some());
    })
    .unwrap();
}

pub fn a_vanished_client_is_disconnected_and_an_idle_one_is_not(way: ConnectionMode) {
    let limits = ServerLimits { liveness: QUICK, ..ServerLimits::default() };
    let options = ServerOptions { limits, ..server_options(way, localhost()) };
    let server =
        Server::start(options, Router::new().with::<TestRequest, TestReply>(TestService::open())).unwrap();
    let mut quiet = Raw::welcome(way, server.addresses()[0], 1);
    let mut vanished = Raw::welcome(way, server.addresses()[0], 2);
    for _ in 0..6 {
        assert_eq!(quiet.receive().unwrap().0.kind, FrameKind::Ping);
        quiet.send(Header::new(FrameKind::Pong, 0), &[], &[]);
    }
    while let Some((header, _)) = vanished.receive() {
        assert_eq!(header.kind, FrameKind::Ping);
    }
    quiet.send(Header::new(FrameKind::Ping, 0), &[], &[]);
    while quiet.receive().unwrap().0.kind != FrameKind::Pong {}
}

pub fn a_client_above_the_connection_limit_is_told_and_gets_in_later(way: ConnectionMode) {
    const SHORT: Duration = Duration::from_secs(3);
    let limits = ServerLimits { connections: 1, ..server_options(way, localhost()).limits };
    let options = ServerOptions { limits, ..server_options(way, localhost()) };
    let server =
        Server::start(options, Router::new().with::<TestRequest, TestReply>(TestService::open())).unwrap();
    let address = server.addresses()[0];
    let first = Raw::welcome(way, address, 1);
    rt::block_on(async move {
        let hasty: Channel<TestRequest, TestReply> = Channel::remote(peer_of(way, vec![address], SHORT));
        let error = hasty.call(TestRequest::Sum(1), None).await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        assert!(error.message.contains("has 1 connections, its limit"), "{error}");
        drop(first);
        let patient: Channel<TestRequest, TestReply> =
            Channel::remote(peer_of(way, vec![address], TEST_TIME_OUT));
        assert_eq!(patient.call(TestRequest::Sum(2), None).await, Ok(TestReply(2, 0)));
    })
    .unwrap();
}

pub fn a_server_with_little_memory_serializes_requests(way: ConnectionMode) {
    let limits = ServerLimits { payload_bytes_per_core: 1 << 20, ..ServerLimits::default() };
    let options = ServerOptions { cores: 1, limits, ..server_options(way, localhost()) };
    let server =
        Server::start(options, Router::new().with::<TestRequest, TestReply>(TestService::open())).unwrap();
    let peers: Vec<_> = (0..2).map(|_| Peer::new(peer_options(way, server.addresses().to_vec()))).collect();
    rt::block_on(async move {
        let done = Rc::new(Cell::new(0));
        for number in 0..40u64 {
            let channel: Channel<TestRequest, TestReply> =
                Channel::remote(peers[number as usize % 2].clone());
            let done = done.clone();
            rt::spawn(async move {
                // Some are larger than the server's whole budget.
                let buf = IoBuf::alloc(100_000 + number as usize * 50_000);
                channel.call(TestRequest::Fill(number), Some(buf.clone())).await.unwrap();
                assert!(buf.as_slice() == pattern(number, buf.len()));
                let expected = sum(buf.as_slice());
                assert_eq!(
                    channel.call(TestRequest::Sum(number), Some(buf)).await,
                    Ok(TestReply(number, expected))
                );
                done.set(done.get() + 1);
            });
        }
        until(|| done.get() == 40).await;
    })
    .unwrap();
}

/// A server with one core and memory for little more than 1 MiB of data, which gives up silent
/// clients early.
pub fn serve_with_little_memory(way: ConnectionMode, service: &Arc<TestService>) -> Arc<Server> {
    let limits = ServerLimits {
        payload_bytes_per_core: 1 << 20,
        liveness: QUICK,
        ..server_options(way, localhost()).limits
    };
    let options = ServerOptions { cores: 1, limits, ..server_options(way, localhost()) };
    Server::start(options, Router::new().with::<TestRequest, TestReply>(service.clone())).unwrap()
}

/// Calls in the background; returns the cell that receives the answer.
pub fn call_apart(
    channel: &Channel<TestRequest, TestReply>,
    ask: TestRequest,
    bytes: usize,
) -> Rc<RefCell<Option<Result<TestReply>>>> {
    let (channel, answer) = (channel.clone(), Rc::<RefCell<_>>::default());
    let place = answer.clone();
    rt::spawn(async move {
        let data = IoBuf::from_slice(&pattern(1, bytes));
        *place.borrow_mut() = Some(channel.call(ask, Some(data)).await);
    });
    answer
}

pub fn a_client_that_waits_for_a_permit_keeps_its_connection(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve_with_little_memory(way, &service);
    rt::block_on(async move {
        let peers = [(); 2].map(|()| {
            Peer::new(PeerOptions { liveness: QUICK, ..peer_options(way, server.addresses().to_vec()) })
        });
        let [first, second] =
            peers.each_ref().map(|peer| Channel::<TestRequest, TestReply>::remote(peer.clone()));
        let holder = call_apart(&first, TestRequest::Count(1), 1 << 20);
        until(|| service.begun.load(Ordering::SeqCst) == 1).await;
        let waiter = call_apart(&second, TestRequest::Count(2), 1 << 20);
        rt::sleep(LONG).await;
        assert_eq!(service.begun.load(Ordering::SeqCst), 1, "there is no room for it");
        service.gate.set();
        until(|| holder.borrow().is_some() && waiter.borrow().is_some()).await;
        assert_eq!(holder.take(), Some(Ok(TestReply(1, 1))));
        assert_eq!(waiter.take(), Some(Ok(TestReply(2, 1))));
        assert_eq!(peers.map(|peer| peer.status().links[0].connections), [1, 1]);
    })
    .unwrap();
}

pub fn small_requests_are_admitted_while_large_ones_wait(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve_with_little_memory(way, &service);
    rt::block_on(async move {
        let peers = [(); 3].map(|()| Peer::new(peer_options(way, server.addresses().to_vec())));
        let [first, second, third] =
            peers.each_ref().map(|peer| Channel::<TestRequest, TestReply>::remote(peer.clone()));
        let holder = call_apart(&first, TestRequest::Count(1), 1 << 20);
        until(|| service.begun.load(Ordering::SeqCst) == 1).await;
        let waiter = call_apart(&second, TestRequest::Sum(2), 1 << 20);
        for number in 0..100 {
            let data = pattern(number, 10_000);
            let answer = third.call(TestRequest::Sum(number), Some(IoBuf::from_slice(&data))).await;
            assert_eq!(answer, Ok(TestReply(number, sum(&data))));
        }
        assert!(holder.borrow().is_none() && waiter.borrow().is_none());
        service.gate.set();
        until(|| holder.borrow().is_some() && waiter.borrow().is_some()).await;
    })
    .unwrap();
}

pub fn a_client_that_waits_for_a_permit_can_reconnect(way: ConnectionMode) {
    let service = TestService::new();
    let server = serve_with_little_memory(way, &service);
    let address = server.addresses()[0];
    let mut header = Header { service: Service::Storage as u8, ..Header::new(FrameKind::Request, 1) };
    let mut body = Vec::new();
    TestRequest::Count(1).encode(&mut body);
    let data = pattern(1, 1 << 20);
    let mut holder = Raw::welcome(way, address, 1);
    holder.send(header, &body, &data);
    let seen = service.clone();
    until_blocking(move || seen.begun.load(Ordering::SeqCst) == 1);
    let mut waiter = Raw::welcome(way, address, 2);
    header.id = 2;
    waiter.send_bytes(&header.with_body(&body).with_payload(&data).encode());
    assert_eq!(waiter.receive().unwrap().0.kind, FrameKind::Ping, "it waits");
    let mut next = Raw::connect(way, address);
    next.hello(2, 2);
    assert_eq!(next.receive().unwrap().0.kind, FrameKind::Welcome);
    while waiter.receive().is_some() {}
    service.gate.set();
    while holder.receive().unwrap().0.kind != FrameKind::Reply {}
}

pub fn a_client_that_sends_requests_and_reads_no_answers_is_disconnected(way: ConnectionMode) {
    let limits = ServerLimits { liveness: QUICK, ..ServerLimits::default() };
    let options = ServerOptions { limits, ..server_options(way, localhost()) };
    let server =
        Server::start(options, Router::new().with::<TestRequest, TestReply>(TestService::open())).unwrap();
    let mut greedy = Raw::welcome(way, server.addresses()[0], 1);
    for id in 0..20 {
        let mut body = Vec::new();
        TestRequest::Fill(id).encode(&mut body);
        let header = Header {
            service: Service::Storage as u8,
            reply_payload_bytes: 4 << 20,
            ..Header::new(FrameKind::Request, id)
        };
        greedy.send(header, &body, &[]);
    }
    // It sends pongs until it is disconnected, so often that the kernel's timer for closed windows
    // never expires.
    let pong = Header::new(FrameKind::Pong, 0).encode();
    let mut pongs = 0;
    while greedy.0.write_all(&pong).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
        pongs += 1;
        assert!(pongs < 10_000);
    }
}
