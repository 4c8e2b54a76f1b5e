//! A service for tests, its messages, and a client of it.

use super::way::ConnectionMode;
use net::{
    Caller, Channel, ClientIdentity, Handler, LocalFuture, Peer, PeerOptions, Router, Server, ServerLimits,
    ServerOptions,
};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sync::Event;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use types::{Errno, Error, HashMap, MapHandle, Result};
use wire::authorization::{AuthorizationRule, Callers};
use wire::{AnswerKind, Malformed, Message, Request, Service};

pub const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";

/// A request: an operation, and a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TestRequest {
    /// Answers with the number and the sum of the payload.
    Sum(u64),
    /// Fills the buffer with a pattern of the number.
    Fill(u64),
    /// Fails with a message that has the number.
    Fail(u64),
    /// Waits until it is cancelled.
    Wait(u64),
    /// Begins, waits for the gate, and counts.
    Count(u64),
    /// Returns the length of the caller's name.
    Who(u64),
    /// Fills the buffer with data stored for this number, and leaves it to the caller to verify
    /// that if allowed: see [`TestService::stored`]. Returns the number of such requests.
    Stored(u64),
}

impl TestRequest {
    fn parts(self) -> (u8, u64) {
        match self {
            TestRequest::Sum(n) => (0, n),
            TestRequest::Fill(n) => (1, n),
            TestRequest::Fail(n) => (2, n),
            TestRequest::Wait(n) => (3, n),
            TestRequest::Count(n) => (4, n),
            TestRequest::Who(n) => (5, n),
            TestRequest::Stored(n) => (6, n),
        }
    }
}

impl Message for TestRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, number) = self.parts();
        out.push(kind);
        out.extend_from_slice(&number.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<TestRequest, Malformed> {
        let (kind, number) = bytes.split_first().ok_or_else(|| Malformed::new("empty"))?;
        let number = number.try_into().map_err(|_| Malformed::new("no number"))?;
        let number = u64::from_le_bytes(number);
        let all = [
            TestRequest::Sum,
            TestRequest::Fill,
            TestRequest::Fail,
            TestRequest::Wait,
            TestRequest::Count,
            TestRequest::Who,
            TestRequest::Stored,
        ];
        Ok(all.get(*kind as usize).ok_or_else(|| Malformed::new("unknown"))?(number))
    }
}

impl Request for TestRequest {
    const SERVICE: Service = Service::Storage;

    fn answer_kind(&self) -> AnswerKind {
        match self {
            TestRequest::Fill(_) | TestRequest::Stored(_) => AnswerKind::FillsPayload,
            TestRequest::Wait(_) => AnswerKind::Unbounded,
            _ => AnswerKind::NoPayload,
        }
    }

    fn rule(&self) -> AuthorizationRule {
        AuthorizationRule { operation: "ask", callers: Callers::Members }
    }
}

/// An answer: two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestReply(pub u64, pub u64);

impl Message for TestReply {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
        out.extend_from_slice(&self.1.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<TestReply, Malformed> {
        let number = |range: std::ops::Range<usize>| {
            let bytes = bytes.get(range).ok_or_else(|| Malformed::new("short"))?;
            Ok(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        Ok(TestReply(number(0..8)?, number(8..16)?))
    }
}

/// The pattern that fills the buffer of [`TestRequest::Fill`].
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(2654435761).wrapping_add(number * 97) >> 8) as u8).collect()
}

/// A sum that detects every change of position.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

/// Behaviour and statistics of the service.
pub struct TestService {
    /// Lets requests of [`TestRequest::Count`] proceed.
    pub gate: Event,
    /// Number of completed requests by number.
    pub counts: Mutex<HashMap<u64, usize>>,
    /// Of [`TestRequest::Count`]: how many have begun, are running, and were running at most at a
    /// time for one number.
    pub begun: AtomicUsize,
    pub running: Mutex<HashMap<u64, usize>>,
    pub most: AtomicUsize,
    /// Of [`TestRequest::Wait`]: how many are waiting.
    pub waiting: AtomicUsize,
}

impl TestService {
    pub fn new() -> Arc<TestService> {
        Arc::new(TestService {
            gate: Event::new(),
            counts: Mutex::default(),
            begun: AtomicUsize::new(0),
            running: Mutex::default(),
            most: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        })
    }

    /// A service with an open gate.
    pub fn open() -> Arc<TestService> {
        let service = TestService::new();
        service.gate.set();
        service
    }

    async fn count(&self, number: u64) -> TestReply {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let now = {
            let mut running = self.running.lock();
            let now = running.entry(number).or_default();
            *now += 1;
            *now
        };
        self.most.fetch_max(now, Ordering::SeqCst);
        self.gate.wait().await;
        rt::yield_now().await;
        *self.running.lock().get_mut(&number).unwrap() -= 1;
        let mut counts = self.counts.lock();
        let count = counts.entry(number).or_default();
        *count += 1;
        TestReply(number, *count as u64)
    }

    /// The data stored for an odd number is damaged, unless the server must verify it.
    fn stored(&self, number: u64, buf: &IoBuf) -> TestReply {
        let asked = *self.counts.lock().entry(number).and_modify(|count| *count += 1).or_insert(1);
        let content = pattern(number, buf.len());
        buf.copy_from(0, &content);
        if buf.defers_verification() {
            if number % 2 == 1 {
                buf.copy_from(buf.len() / 2, &[!content[buf.len() / 2]]);
            }
            buf.note_stored_checksums(types::block_crcs(&content));
        }
        TestReply(number, asked as u64)
    }

    async fn answer(
        &self,
        caller: Option<&Caller>,
        ask: TestRequest,
        payload: Option<IoBuf>,
    ) -> Result<TestReply> {
        match ask {
            TestRequest::Sum(number) => {
                Ok(TestReply(number, payload.map_or(0, |payload| sum(payload.as_slice()))))
            }
            TestRequest::Fill(number) => {
                let buf = payload.unwrap();
                buf.copy_from(0, &pattern(number, buf.len()));
                Ok(TestReply(number, buf.len() as u64))
            }
            TestRequest::Stored(number) => Ok(self.stored(number, &payload.unwrap())),
            TestRequest::Fail(number) => {
                Err(Error::new(Errno::ENOSPC, format!("number {number} is full")).hint("take another"))
            }
            TestRequest::Wait(_) => {
                let _waiting = Waiting::new(&self.waiting);
                std::future::pending().await
            }
            TestRequest::Count(number) => Ok(self.count(number).await),
            TestRequest::Who(number) => {
                let caller = caller.unwrap();
                assert_eq!((caller.cluster.as_str(), caller.client), (CLUSTER, 7));
                Ok(TestReply(number, caller.name.len() as u64))
            }
        }
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Waiting<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler<TestRequest, TestReply> for TestService {
    fn handle(&self, ask: TestRequest, payload: Option<IoBuf>) -> LocalFuture<'_, Result<TestReply>> {
        Box::pin(self.answer(None, ask, payload))
    }

    fn handle_from<'a>(
        &'a self,
        caller: &'a Caller,
        ask: TestRequest,
        payload: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<TestReply>> {
        Box::pin(self.answer(Some(caller), ask, payload))
    }
}

pub fn localhost() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn server_options(way: ConnectionMode, listen: SocketAddr) -> ServerOptions {
    ServerOptions {
        listen: vec![listen],
        cores: 2,
        name: "storage node 3".into(),
        cluster: CLUSTER.into(),
        security: way.security_of_server(),
        map: MapHandle::default(),
        checksum_payloads: true,
        limits: ServerLimits { stop_timeout: Duration::from_millis(200), ..ServerLimits::default() },
    }
}

pub fn serve(way: ConnectionMode, service: &Arc<TestService>) -> Arc<Server> {
    serve_at(way, localhost(), service)
}

/// The port of a server that has just stopped may be in use for a moment.
pub fn serve_at(way: ConnectionMode, address: SocketAddr, service: &Arc<TestService>) -> Arc<Server> {
    let mut attempts = 0;
    loop {
        match Server::start(
            server_options(way, address),
            Router::new().with::<TestRequest, TestReply>(service.clone()),
        ) {
            Ok(server) => return server,
            Err(error) if attempts == 50 => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
        attempts += 1;
    }
}

/// Time-out of calls whose duration isn't tested: both ends of a test may share a core with other
/// load.
pub const TEST_TIME_OUT: Duration = Duration::from_secs(300);

pub fn identity() -> ClientIdentity {
    ClientIdentity { cluster: CLUSTER.into(), name: "client 9".into(), client: 7 }
}

pub fn peer_options(way: ConnectionMode, addresses: Vec<SocketAddr>) -> PeerOptions {
    let (security, same_host) = (way.security_of_client(), way.same_host());
    PeerOptions { security, same_host, ..PeerOptions::new("storage node 3", addresses, identity()) }
}

pub fn peer_of(way: ConnectionMode, addresses: Vec<SocketAddr>, timeout: Duration) -> Arc<Peer> {
    Peer::new(PeerOptions { timeout, ..peer_options(way, addresses) })
}

/// A client with a long time-out.
pub fn channel_to(way: ConnectionMode, server: &Server) -> Channel<TestRequest, TestReply> {
    Channel::remote(peer_of(way, server.addresses().to_vec(), TEST_TIME_OUT))
}
