//! When shared memory is used, and what happens when it can't be.

use super::WAY;
use crate::rpc::raw::Raw;
use crate::rpc::support::{
    CLUSTER, TestReply, TestRequest, TestService, identity, localhost, peer_of, peer_options, serve,
    server_options,
};
use net::{Caller, Channel, Handler, LocalFuture, Peer, PeerOptions, Router, SameHost, Server, Transport};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::net::Address;
use rt::sync::Event;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::{Errno, Result};
use wire::Message;
use wire::frame::{FrameKind, Header, LocalEndpoint, Welcome};

const LIMIT: Duration = Duration::from_secs(30);

/// Answers with a payload when the gate is open, and records its callers.
#[derive(Default)]
struct Slow {
    gate: Event,
    done: AtomicUsize,
    callers: Mutex<Vec<(Address, Transport)>>,
}

impl Handler<TestRequest, TestReply> for Slow {
    fn handle(&self, _: TestRequest, payload: Option<IoBuf>) -> LocalFuture<'_, Result<TestReply>> {
        Box::pin(async move {
            if let Some(payload) = payload {
                self.gate.wait().await;
                payload.copy_from(0, &vec![0xee; payload.len()]);
            }
            self.done.fetch_add(1, Ordering::SeqCst);
            Ok(TestReply(1, 1))
        })
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        ask: TestRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<TestReply>> {
        self.callers.lock().push((caller.address.clone(), caller.transport));
        self.handle(ask, payload)
    }
}

fn serve_slowly() -> (Arc<Slow>, Arc<Server>) {
    let slow = Arc::new(Slow::default());
    let router = Router::new().with::<TestRequest, TestReply>(slow.clone());
    (slow.clone(), Server::start(server_options(WAY, localhost()), router).unwrap())
}

#[test]
fn shared_memory_is_used_if_enabled_and_the_service_sees_the_address() {
    let (slow, server) = serve_slowly();
    let address = server.addresses()[0];
    for (same_host, transport) in
        [(SameHost::SharedMemory, Transport::SharedMemory), (SameHost::OverTcp, Transport::Tcp)]
    {
        let peer = Peer::new(PeerOptions { same_host, ..peer_options(WAY, vec![address]) });
        rt::block_on(async move {
            let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
            channel.call(TestRequest::Sum(1), None).await.unwrap();
            let link = peer.status().links.remove(0);
            assert_eq!(link.connected, Some((address.into(), transport)));
            assert_eq!((link.connections, link.failures), (1, vec![]));
        })
        .unwrap();
        let (from, how) = slow.callers.lock().pop().unwrap();
        // Rules by client address apply to a client over every transport.
        assert_eq!((from.inet().map(|inet| inet.ip()), how), (Some(address.ip()), transport));
    }
}

/// A late server can't access the buffer of a call that has ended.
#[test]
fn a_late_answer_does_not_touch_the_buffer_of_an_ended_call() {
    let (slow, server) = serve_slowly();
    let peer = peer_of(WAY, server.addresses().to_vec(), Duration::from_millis(300));
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        // A busy machine may take longer to connect, or to send.
        while channel.call(TestRequest::Sum(1), None).await.is_err() {}
        let buffer = IoBuf::alloc(1 << 20);
        let (asked, done) = (slow.callers.lock().len(), slow.done.load(Ordering::SeqCst));
        while slow.callers.lock().len() == asked {
            let error = channel.call(TestRequest::Fill(1), Some(buffer.clone())).await.unwrap_err();
            assert_eq!(error.errno, Errno::ETIMEDOUT);
        }
        buffer.copy_from(0, &vec![7; 1 << 20]);
        slow.gate.set();
        while slow.done.load(Ordering::SeqCst) == done {
            rt::sleep(Duration::from_millis(1)).await;
        }
        // The same connection delivers the next answer.
        let next = IoBuf::alloc(1 << 20);
        while channel.call(TestRequest::Fill(2), Some(next.clone())).await.is_err() {}
        assert!(next.as_slice().iter().all(|byte| *byte == 0xee));
        assert!(buffer.as_slice().iter().all(|byte| *byte == 7));
        assert_eq!(peer.status().links[0].connections, 1);
    })
    .unwrap();
}

#[test]
fn payloads_beyond_the_shared_memory_go_over_the_socket() {
    let service = TestService::open();
    let server = serve(WAY, &service);
    let peer = peer_of(WAY, server.addresses().to_vec(), LIMIT);
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        // Forty of 1 MiB: more than the shared memory.
        let buffers: Vec<IoBuf> = (0..40).map(|_| IoBuf::alloc(1 << 20)).collect();
        for _ in 0..3 {
            let calls = buffers
                .iter()
                .zip(0..)
                .map(|(buffer, number)| channel.call(TestRequest::Fill(number), Some(buffer.clone())));
            for (answer, number) in rt::join_all(calls.collect()).await.into_iter().zip(0..) {
                assert_eq!(answer, Ok(TestReply(number, 1 << 20)));
                let expected = crate::rpc::support::pattern(number, 1 << 20);
                assert!(buffers[number as usize].as_slice() == expected);
            }
        }
        assert_eq!(peer.status().links[0].connected.as_ref().unwrap().1, Transport::SharedMemory);
    })
    .unwrap();
}

/// A hand-made server that announces a Unix socket, and answers one request over TCP.
fn tell_of(way: LocalEndpoint) -> SocketAddr {
    let listener = TcpListener::bind(localhost()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut raw = Raw::over(WAY, listener.accept().unwrap().0);
        assert_eq!(raw.receive().unwrap().0.kind, FrameKind::Hello);
        let mut body = Vec::new();
        let welcome = Welcome { protocol: 1, name: CLUSTER.into(), credits: 8, cores: 1, on_host: Some(way) };
        welcome.encode(&mut body);
        raw.send(Header::new(FrameKind::Welcome, 0), &body, &[]);
        while let Some((header, _)) = raw.receive() {
            let mut body = Vec::new();
            TestReply(5, 5).encode(&mut body);
            raw.send(Header::new(FrameKind::Reply, header.id), &body, &[]);
        }
    });
    address
}

fn falls_back(way: LocalEndpoint, reason: &'static str) {
    let socket = Address::Abstract(way.socket.clone());
    let address = tell_of(way);
    let peer = Peer::new(PeerOptions { identity: identity(), ..peer_options(WAY, vec![address]) });
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(5), None).await, Ok(TestReply(5, 5)));
        let link = peer.status().links.remove(0);
        assert_eq!(link.connected, Some((address.into(), Transport::Tcp)));
        assert_eq!(link.failures.len(), 1, "{link:?}");
        assert_eq!(link.failures[0].address, socket);
        assert!(link.failures[0].reason.contains(reason), "{link:?}");
    })
    .unwrap();
}

fn way() -> LocalEndpoint {
    let socket = format!("weft-test-{:016x}", rt::random_u64());
    LocalEndpoint { host: rt::net::host_id().unwrap(), socket, user: rt::net::user_id() }
}

#[test]
fn a_missing_socket_is_logged_and_tcp_is_used() {
    falls_back(way(), "refused");
}

/// A process that took the socket name of a dead server must not be taken for it.
#[test]
fn a_socket_of_another_user_gets_nothing() {
    let way = LocalEndpoint { user: rt::net::user_id() + 1, ..way() };
    let name = UnixAddress::from_abstract_name(&way.socket).unwrap();
    let impostor = UnixListener::bind_addr(&name).unwrap();
    let got = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        impostor.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        bytes
    });
    falls_back(way, "another user");
    assert_eq!(got.join().unwrap(), b"");
}

#[test]
fn a_server_on_another_machine_is_reached_over_tcp() {
    let address = tell_of(LocalEndpoint { host: "another".into(), ..way() });
    let peer = Peer::new(peer_options(WAY, vec![address]));
    rt::block_on(async move {
        let channel: Channel<TestRequest, TestReply> = Channel::remote(peer.clone());
        assert_eq!(channel.call(TestRequest::Sum(5), None).await, Ok(TestReply(5, 5)));
        let link = peer.status().links.remove(0);
        assert_eq!((link.connected, link.failures), (Some((address.into(), Transport::Tcp)), vec![]));
    })
    .unwrap();
}
