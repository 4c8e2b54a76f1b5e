//! Calls between simulated hosts whose network and processes fail at random: each acknowledged call
//! ran exactly once, in order, and every call ends in time.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use net::{
    Caller, Channel, ClientIdentity, Deadline, Handler, Liveness, LocalFuture, Peer, PeerOptions, Router,
    Security, Server, ServerLimits, ServerOptions,
};
use parking_lot::Mutex;
use rt::IoBuf;
use rt::sim::{HostId, NetworkOptions, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::{Errno, Result, crc32c};
use wire::authorization::{AuthorizationRule, Callers};
use wire::{AnswerKind, Malformed, Message, Request, Service};

const PORT: u16 = 7000;
const SERVERS: u64 = 2;
/// Tasks of the client, each of which makes one call at a time.
const CALLERS: u64 = 4;
const TIMEOUT: Duration = Duration::from_secs(4);
/// A call may end this much later than its time-out: calls are checked at intervals.
const SLACK: Duration = Duration::from_millis(500);
const LIVENESS: Liveness =
    Liveness { ping_after: Duration::from_millis(500), dead_after: Duration::from_secs(1) };
/// Longest duration of the handler.
const MAX_WORK_NS: u64 = 30_000_000;

/// The `sequence`th call of a caller.
#[derive(Clone, Copy, Debug)]
struct Step {
    caller: u64,
    sequence: u64,
    /// Whether the buffer is to be filled; otherwise it contains data.
    fills: bool,
}

impl Message for Step {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.caller.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.push(self.fills.into());
    }

    fn decode(bytes: &[u8]) -> Result<Step, Malformed> {
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8).ok_or_else(|| Malformed::new("short"))?;
            Ok(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        Ok(Step { caller: number(0)?, sequence: number(8)?, fills: bytes.last() == Some(&1) })
    }
}

impl Request for Step {
    const SERVICE: Service = Service::Storage;

    fn answer_kind(&self) -> AnswerKind {
        if self.fills { AnswerKind::FillsPayload } else { AnswerKind::NoPayload }
    }

    fn rule(&self) -> AuthorizationRule {
        AuthorizationRule { operation: "step", callers: Callers::Members }
    }
}

/// Number of the caller's completed steps, and a sum of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    steps: u64,
    sum: u64,
}

impl Message for Done {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.steps.to_le_bytes());
        out.extend_from_slice(&self.sum.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Done, Malformed> {
        let step = Step::decode(bytes)?;
        Ok(Done { steps: step.caller, sum: step.sequence })
    }
}

/// State of a server that survives its process.
#[derive(Default)]
struct DurableState {
    /// By caller: the last completed step, and the number of completed steps.
    done: BTreeMap<u64, (u64, u64)>,
    /// By caller: the last step that began.
    begun: BTreeMap<u64, u64>,
    /// Violations of the invariants.
    violations: Vec<String>,
    repeated: u64,
}

/// One process of a server.
struct StepService {
    durable: Arc<Mutex<DurableState>>,
    running: Mutex<BTreeSet<u64>>,
}

impl StepService {
    async fn step(&self, step: Step, payload: Option<IoBuf>) -> Done {
        {
            let mut kept = self.durable.lock();
            let latest = kept.begun.get(&step.caller).copied().unwrap_or_default();
            if latest > step.sequence {
                kept.violations.push(format!("{step:?} began after step {latest}"));
            }
            if !self.running.lock().insert(step.caller) {
                kept.violations.push(format!("{step:?} began beside another step of its caller"));
            }
            kept.begun.insert(step.caller, step.sequence);
        }
        let _running = Running { steps: self, caller: step.caller };
        rt::sleep(Duration::from_nanos(rt::random_u64() % MAX_WORK_NS)).await;
        let payload = payload.unwrap();
        if step.fills {
            payload.copy_from(0, &pattern(step, payload.len()));
        }
        let mut kept = self.durable.lock();
        let (last, count) = kept.done.get(&step.caller).copied().unwrap_or_default();
        if last == step.sequence {
            kept.repeated += 1;
        } else {
            kept.done.insert(step.caller, (step.sequence, count + 1));
        }
        Done { steps: kept.done[&step.caller].1, sum: crc32c(payload.as_slice()).into() }
    }
}

struct Running<'a> {
    steps: &'a StepService,
    caller: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.steps.running.lock().remove(&self.caller);
    }
}

impl Handler<Step, Done> for StepService {
    fn handle(&self, request: Step, payload: Option<IoBuf>) -> LocalFuture<'_, Result<Done>> {
        Box::pin(async move { Ok(self.step(request, payload).await) })
    }
}

fn pattern(step: Step, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 7 + step.sequence + step.caller) as u8).collect()
}

async fn serve(address: SocketAddr, kept: Arc<Mutex<DurableState>>) {
    serve_at(vec![address], kept).await;
}

async fn serve_at(listen: Vec<SocketAddr>, kept: Arc<Mutex<DurableState>>) {
    serve_by(listen, Arc::new(StepService { durable: kept, running: Mutex::default() })).await;
}

async fn serve_by(listen: Vec<SocketAddr>, handler: Arc<dyn Handler<Step, Done>>) {
    let options = ServerOptions {
        name: format!("server {}", listen[0]),
        listen,
        cores: 2,
        cluster: String::new(),
        security: Security::Plain,
        map: types::MapHandle::default(),
        checksum_payloads: true,
        limits: ServerLimits { liveness: LIVENESS, ..ServerLimits::default() },
    };
    let _server = Server::start(options, Router::new().with(handler)).unwrap();
    std::future::pending::<()>().await;
}

fn peer(address: SocketAddr, client: u64) -> Arc<Peer> {
    let identity = ClientIdentity { cluster: String::new(), name: "client".into(), client };
    let mut options = PeerOptions::new("server", vec![address], identity);
    options.liveness = LIVENESS;
    options.timeout = TIMEOUT;
    Peer::new(options)
}

/// The callers' results.
#[derive(Default)]
struct Seen {
    acknowledged: Cell<u64>,
    timed_out: Cell<u64>,
    longest: Cell<Duration>,
}

/// Makes one call after the other until `stop`; after a call with an uncertain outcome it continues
/// as another caller.
async fn call_on(channel: Channel<Step, Done>, mut caller: u64, seen: Rc<Seen>, stop: Rc<Cell<bool>>) {
    let (mut sequence, mut count) = (0, 0);
    while !stop.get() {
        sequence += 1;
        let step = Step { caller, sequence, fills: rt::random_u64().is_multiple_of(2) };
        let len = [1, 5_000, 70_000][(rt::random_u64() % 3) as usize];
        let buf = IoBuf::alloc(len);
        buf.zero(0..len);
        if !step.fills {
            buf.copy_from(0, &pattern(step, len));
        }
        let began = rt::monotonic_ns();
        let answer = channel.call(step, Some(buf.clone())).await;
        let took = Duration::from_nanos(rt::monotonic_ns() - began);
        seen.longest.set(seen.longest.get().max(took));
        match answer {
            Ok(done) => {
                count += 1;
                assert!(buf.as_slice() == pattern(step, len), "{step:?}: wrong bytes");
                assert_eq!(done, Done { steps: count, sum: crc32c(buf.as_slice()).into() }, "{step:?}");
                seen.acknowledged.set(seen.acknowledged.get() + 1);
            }
            Err(error) => {
                assert_eq!(error.errno, Errno::ETIMEDOUT, "{error}");
                seen.timed_out.set(seen.timed_out.get() + 1);
                (caller, sequence, count) = (caller + 1000, 0, 0);
            }
        }
        rt::sleep(Duration::from_nanos(rt::random_u64() % MAX_WORK_NS)).await;
    }
}

struct Run {
    world: World,
    client: HostId,
    servers: Vec<(HostId, SocketAddr, Arc<Mutex<DurableState>>)>,
    seen: Rc<Seen>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut world = World::new(seed);
        let client = world.add_host("client");
        let mut run = Run { client, servers: Vec::new(), seen: Rc::default(), world };
        for number in 0..SERVERS {
            let host = run.world.add_host(&format!("server {number}"));
            let address = SocketAddr::from((run.world.ip(host), PORT));
            run.servers.push((host, address, Arc::default()));
            run.start_server(number as usize);
        }
        run
    }

    fn start_server(&mut self, index: usize) {
        let (host, address, kept) = self.servers[index].clone();
        self.world.spawn(host, serve(address, kept));
    }

    fn start_client(&mut self, stop: &Rc<Cell<bool>>) {
        let id = self.world.random();
        let servers: Vec<SocketAddr> = self.servers.iter().map(|(_, address, _)| *address).collect();
        let (seen, stop) = (self.seen.clone(), stop.clone());
        self.world.spawn(self.client, async move {
            for address in servers {
                let peer = peer(address, id);
                for number in 0..CALLERS {
                    // Callers of different processes have different numbers.
                    let caller = (id << 16) + number;
                    let channel = Channel::remote(peer.clone());
                    rt::spawn(call_on(channel, caller, seen.clone(), stop.clone()));
                }
            }
        });
    }

    /// Injects a fault into a server or the path to it.
    fn disturb(&mut self) {
        let index = self.below(SERVERS) as usize;
        let (client, server) = (self.client, self.servers[index].0);
        match self.below(8) {
            0 => {
                self.world.kill(server);
                self.advance_up_to(3_000);
                self.start_server(index);
            }
            1 => {
                self.world.crash(server);
                self.advance_up_to(3_000);
                self.start_server(index);
            }
            2 => self.world.cut(client, server),
            3 => self.world.cut_one_way(client, server),
            4 => self.world.cut_one_way(server, client),
            5 => self.world.stop(server),
            6 => self.world.reset_connections(client, server),
            _ => self.repair(),
        }
    }

    fn repair(&mut self) {
        for (server, _, _) in self.servers.clone() {
            self.world.heal(self.client, server);
            self.world.resume(server);
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.world.random() % limit
    }

    fn advance_up_to(&mut self, limit_ms: u64) {
        let time = Duration::from_millis(self.below(limit_ms));
        self.world.advance(time);
    }

    fn check(&self) {
        for (_, address, kept) in &self.servers {
            assert_eq!(kept.lock().violations, Vec::<String>::new(), "{address}");
        }
        assert!(self.seen.longest.get() < TIMEOUT + SLACK, "a call took {:?}", self.seen.longest.get());
    }
}

/// Runs one seed; returns the fingerprint, and the numbers of acknowledged, timed-out and
/// retransmitted calls.
fn run(seed: u64) -> (u64, u64, u64, u64) {
    let mut run = Run::new(seed);
    run.world.set_network(NetworkOptions { resets_per_million: 500, ..NetworkOptions::default() });
    let stop = Rc::new(Cell::new(false));
    run.start_client(&stop);
    for _ in 0..20 {
        run.advance_up_to(2_000);
        run.disturb();
        if run.below(40) == 0 {
            let client = run.client;
            run.world.kill(client);
            run.start_client(&stop);
        }
        run.check();
    }
    run.repair();
    // After all faults are repaired, all callers soon make progress, and end.
    run.world.advance(Duration::from_secs(5));
    let before = run.seen.acknowledged.get();
    run.world.advance(Duration::from_secs(5));
    assert!(run.seen.acknowledged.get() > before + 2 * CALLERS * SERVERS);
    stop.set(true);
    run.world.advance(TIMEOUT + SLACK);
    run.check();
    let repeated = run.servers.iter().map(|(_, _, kept)| kept.lock().repeated).sum();
    let seen = &run.seen;
    (run.world.fingerprint(), seen.acknowledged.get(), seen.timed_out.get(), repeated)
}

#[test]
fn acknowledged_calls_ran_once_and_in_order_whatever_fails() {
    let (mut timed_out, mut repeated) = (0, 0);
    for seed in 0..5 {
        let outcome = run(seed);
        timed_out += outcome.2;
        repeated += outcome.3;
    }
    assert!(timed_out > 0 && repeated > 0, "{timed_out} timed out, {repeated} repeated");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 100..102 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(100).0, run(101).0);
}

#[test]
fn process_wide_values_are_separate_on_simulated_hosts() {
    let mut run = Run::new(1);
    let other = run.world.add_host("other client");
    let (_, address, _) = run.servers[0];
    let peers: Rc<RefCell<Vec<Arc<Peer>>>> = Rc::default();
    for (number, host) in [run.client, other].into_iter().enumerate() {
        let peers = peers.clone();
        let step = Step { caller: number as u64, sequence: 1, fills: true };
        run.world
            .run(host, async move {
                let peer = peer(address, 1 + number as u64);
                Channel::<Step, Done>::remote(peer.clone()).call(step, Some(IoBuf::alloc(9))).await.unwrap();
                peers.borrow_mut().push(peer);
            })
            .unwrap();
    }
    let cores = |peer: &Arc<Peer>| peer.status().links.iter().map(|link| link.core).collect::<Vec<_>>();
    // Core numbers start again in each process.
    assert_eq!(peers.borrow().iter().map(cores).collect::<Vec<_>>(), [[0], [0]]);
}

#[test]
fn an_idle_connection_is_closed_and_made_again() {
    let mut world = World::new(5);
    let (client, server) = (world.add_host("client"), world.add_host("server"));
    let address = SocketAddr::from((world.ip(server), PORT));
    let kept: Arc<Mutex<DurableState>> = Arc::default();
    world.spawn(server, serve(address, kept.clone()));
    let of_link: Rc<RefCell<Vec<Sighting>>> = Rc::default();
    let seen = of_link.clone();
    world.spawn(client, async move {
        let peer = peer(address, 1);
        let channel = Channel::<Step, Done>::remote(peer.clone());
        for sequence in 1.. {
            let step = Step { caller: 1, sequence, fills: true };
            channel.call(step, Some(IoBuf::alloc(9))).await.unwrap();
            for minutes in [5, 10] {
                rt::sleep(Duration::from_secs(60 * minutes)).await;
                let link = peer.status().links.remove(0);
                seen.borrow_mut().push((link.connected.map(|(address, _)| address), link.connections));
            }
        }
    });
    world.advance(Duration::from_secs(31 * 60));
    let at = Some(address.into());
    assert_eq!(*of_link.borrow(), [(at.clone(), 1), (None, 1), (at, 2), (None, 2)]);
    assert_eq!(kept.lock().violations, Vec::<String>::new());
}

/// The address of a link's connection, and the number of connections that it has made.
type Sighting = (Option<rt::net::Address>, u64);

#[test]
fn a_link_returns_to_a_better_address_when_it_answers() {
    let mut world = World::new(7);
    let (client, server) = (world.add_host("client"), world.add_host("server"));
    let [better, lesser] = [PORT, PORT + 1].map(|port| SocketAddr::from((world.ip(server), port)));
    let kept: Arc<Mutex<DurableState>> = Arc::default();
    world.spawn(server, serve_at(vec![lesser], kept.clone()));
    let of_link: Rc<RefCell<Vec<Sighting>>> = Rc::default();
    let seen = of_link.clone();
    world.spawn(client, async move {
        let identity = ClientIdentity { cluster: String::new(), name: "client".into(), client: 1 };
        let options = PeerOptions::new("server", vec![better, lesser], identity);
        let peer = Peer::new(PeerOptions { liveness: LIVENESS, timeout: TIMEOUT, ..options });
        let channel = Channel::<Step, Done>::remote(peer.clone());
        for sequence in 1.. {
            let step = Step { caller: 1, sequence, fills: true };
            channel.call(step, Some(IoBuf::alloc(9))).await.unwrap();
            let link = peer.status().links.remove(0);
            seen.borrow_mut().push((link.connected.map(|(address, _)| address), link.connections));
            rt::sleep(Duration::from_secs(1)).await;
        }
    });
    world.advance(Duration::from_secs(5));
    assert_eq!(of_link.borrow().last().unwrap(), &(Some(lesser.into()), 1));
    // Now it listens on both addresses.
    world.kill(server);
    world.spawn(server, serve_at(vec![better, lesser], kept.clone()));
    world.advance(Duration::from_secs(5));
    assert_eq!(of_link.borrow().last().unwrap(), &(Some(lesser.into()), 2), "the better one has just failed");
    world.advance(Duration::from_secs(100));
    assert_eq!(of_link.borrow().last().unwrap(), &(Some(better.into()), 3));
    assert_eq!(kept.lock().violations, Vec::<String>::new());
}

/// Waits until its caller has given up.
#[derive(Default)]
struct Patient {
    begun: AtomicBool,
    over: AtomicBool,
}

impl Handler<Step, Done> for Patient {
    fn handle(&self, _: Step, _: Option<IoBuf>) -> LocalFuture<'_, Result<Done>> {
        unreachable!("requests over a connection have a deadline")
    }

    fn handle_with_deadline<'a>(
        &'a self,
        _: &'a Caller,
        deadline: Deadline,
        _: Step,
        _: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Done>> {
        Box::pin(async move {
            self.begun.store(true, Ordering::SeqCst);
            while !deadline.has_passed() {
                rt::sleep(Duration::from_millis(10)).await;
            }
            self.over.store(true, Ordering::SeqCst);
            Err(Errno::ETIMEDOUT.into())
        })
    }
}

#[test]
fn time_waited_before_sending_is_not_available_to_the_server() {
    let mut world = World::new(3);
    let (client, server) = (world.add_host("client"), world.add_host("server"));
    let address = SocketAddr::from((world.ip(server), PORT));
    world.spawn(client, async move {
        let channel = Channel::<Step, Done>::remote(peer(address, 1));
        let step = Step { caller: 1, sequence: 1, fills: false };
        let error = channel.call(step, Some(IoBuf::from_slice(b"data"))).await.unwrap_err();
        assert_eq!(error.errno, Errno::ETIMEDOUT);
        std::future::pending::<()>().await;
    });
    world.advance(TIMEOUT / 2);
    let patient: Arc<Patient> = Arc::default();
    world.spawn(server, serve_by(vec![address], patient.clone()));
    world.advance(TIMEOUT / 2 - Duration::from_millis(1));
    assert!(patient.begun.load(Ordering::SeqCst), "it came while its caller still waited");
    world.advance(SLACK);
    assert!(patient.over.load(Ordering::SeqCst), "the service believes that somebody waits");
}

/// The first step of caller 1 begins when one of caller 2 has arrived.
#[derive(Default)]
struct Dependent {
    has_arrived: rt::sync::Event,
    executed: AtomicBool,
}

impl Handler<Step, Done> for Dependent {
    fn handle(&self, _: Step, _: Option<IoBuf>) -> LocalFuture<'_, Result<Done>> {
        unreachable!("requests over a connection have a deadline")
    }

    fn handle_with_deadline<'a>(
        &'a self,
        _: &'a Caller,
        deadline: Deadline,
        step: Step,
        _: Option<IoBuf>,
    ) -> LocalFuture<'a, Result<Done>> {
        Box::pin(async move {
            if step.caller == 2 {
                self.has_arrived.set();
            } else {
                deadline.unless_disconnected(self.has_arrived.wait()).await?;
                assert!(!self.executed.swap(true, Ordering::SeqCst), "a step was executed twice");
            }
            Ok(Done { steps: step.sequence, sum: 0 })
        })
    }
}

/// The next connection is welcomed after the end of the earlier one's requests. One of those may
/// wait for a request that can only come over the next connection.
#[test]
fn a_request_that_has_not_begun_ends_with_its_connection() {
    let mut world = World::new(5);
    let (client, server) = (world.add_host("client"), world.add_host("server"));
    let address = SocketAddr::from((world.ip(server), PORT));
    let service: Arc<Dependent> = Arc::default();
    world.spawn(server, serve_by(vec![address], service.clone()));
    let answered = Rc::new(Cell::new(0));
    let seen = answered.clone();
    world.spawn(client, async move {
        let channel = Channel::<Step, Done>::remote(peer(address, 1));
        let call = async |caller, delay| {
            rt::sleep(delay).await;
            let step = Step { caller, sequence: 1, fills: false };
            channel.call(step, Some(IoBuf::from_slice(b"data"))).await.unwrap();
            seen.set(seen.get() + 1);
        };
        let calls = [call(1, Duration::ZERO), call(2, TIMEOUT / 4 + TIMEOUT / 40)];
        rt::join_all(calls.into()).await;
        std::future::pending::<()>().await;
    });
    world.advance(TIMEOUT / 4);
    world.reset_connections(client, server);
    world.advance(TIMEOUT);
    assert_eq!(answered.get(), 2, "both calls are answered");
}
