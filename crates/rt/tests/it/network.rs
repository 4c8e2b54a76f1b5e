//! Several simulated hosts: their network, their clocks, and the effects of faults on both.

use rt::net::{Address, Listener, Socket};
use rt::sim::{HostId, NetworkOptions, World};
use rt::{File, IoBuf, OpenOptions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 700;
const LIMIT: Duration = Duration::from_secs(5);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A value that tasks of hosts leave for the test.
type Shared<T> = Rc<RefCell<T>>;

struct Two {
    world: World,
    client: HostId,
    server: HostId,
}

fn two(seed: u64) -> Two {
    let mut world = World::new(seed);
    let client = world.add_host("client");
    let server = world.add_host("server");
    Two { world, client, server }
}

impl Two {
    fn address(&self) -> Address {
        Address::Inet((self.world.ip(self.server), PORT).into())
    }

    /// A server that answers each byte with its successor, and logs how connections end.
    fn start_echo(&mut self) -> Shared<Vec<io::Result<()>>> {
        let ends: Shared<Vec<io::Result<()>>> = Rc::default();
        let log = ends.clone();
        self.world.spawn(self.server, async move {
            let listener = Listener::bind(any_ip(PORT)).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let log = log.clone();
                rt::spawn(async move {
                    let end = echo(&socket).await;
                    log.borrow_mut().push(end);
                });
            }
        });
        // The listener exists before a client connects.
        self.world.advance(MS);
        ends
    }

    fn connect(&mut self) -> Rc<Socket> {
        let address = self.address();
        let socket = self.world.run(self.client, Socket::connect(address, LIMIT));
        Rc::new(socket.unwrap().unwrap())
    }

    /// Sends a request of the client in the background; stores the result when it is known.
    fn ask_later(&mut self, socket: &Rc<Socket>) -> Shared<Option<io::Result<()>>> {
        let answer: Shared<Option<io::Result<()>>> = Rc::default();
        let (slot, socket) = (answer.clone(), socket.clone());
        self.world.spawn(self.client, async move {
            let asked = ask(&socket).await;
            *slot.borrow_mut() = Some(asked);
        });
        answer
    }

    fn ask(&mut self, socket: &Rc<Socket>) -> io::Result<()> {
        let socket = socket.clone();
        self.world.run(self.client, async move { ask(&socket).await }).unwrap()
    }
}

fn any_ip(port: u16) -> Address {
    Address::Inet(([0, 0, 0, 0], port).into())
}

async fn echo(socket: &Socket) -> io::Result<()> {
    let buf = IoBuf::alloc(100);
    loop {
        match socket.recv(buf.clone()).await? {
            0 => return Ok(()),
            got => {
                let answer: Vec<u8> = buf.as_slice()[..got].iter().map(|byte| byte + 1).collect();
                socket.send(vec![IoBuf::from_slice(&answer)]).await?;
            }
        }
    }
}

async fn ask(socket: &Socket) -> io::Result<()> {
    socket.send(vec![IoBuf::from_slice(b"abc")]).await?;
    let answer = IoBuf::alloc(3);
    socket.recv_exact(answer.clone()).await?;
    assert_eq!(answer.as_slice(), b"bcd");
    Ok(())
}

fn kind_of<T: std::fmt::Debug>(result: io::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

/// Clients on three hosts talk to a server while paths are cut and hosts are stopped and killed.
fn busy_run(seed: u64) -> (u64, u64, Vec<String>) {
    let Two { mut world, client, server } = two(seed);
    world.set_network(NetworkOptions { resets_per_million: 5_000, ..NetworkOptions::default() });
    let other = world.add_host("other");
    let mut two = Two { world, client, server };
    two.start_echo();
    let log: Shared<Vec<String>> = Rc::default();
    let address = two.address();
    for host in [client, other] {
        let (address, log) = (address.clone(), log.clone());
        two.world.spawn(host, async move {
            for round in 0..30 {
                let asked = match Socket::connect(address.clone(), 50 * MS).await {
                    Ok(socket) => rt::timeout(50 * MS, ask(&socket)).await,
                    Err(error) => Some(Err(error)),
                };
                let kind = asked.map(|result| result.map_err(|error| error.kind()));
                log.borrow_mut().push(format!("{host:?} {round} {kind:?} {}", rt::monotonic_ns()));
                rt::sleep(MS).await;
            }
        });
    }
    for _ in 0..20 {
        let pause = two.world.random() % 20;
        two.world.advance(MS * pause as u32);
        match two.world.random() % 5 {
            0 => two.world.cut_one_way(server, client),
            1 => two.world.cut(client, server),
            2 => two.world.stop(other),
            3 => two.world.reset_connections(other, server),
            _ => {
                two.world.heal(client, server);
                two.world.resume(other);
            }
        }
    }
    two.world.kill(server);
    two.world.advance(SECOND);
    let lines = log.borrow().clone();
    (two.world.fingerprint(), two.world.steps(), lines)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        assert_eq!(busy_run(seed), busy_run(seed));
    }
    assert_ne!(busy_run(1).0, busy_run(2).0);
}

#[test]
fn bytes_arrive_in_order_however_they_are_cut() {
    let mut cuts = BTreeSet::new();
    for seed in 0..10 {
        let mut two = two(seed);
        let received: Shared<Vec<u8>> = Rc::default();
        let pieces: Shared<Vec<usize>> = Rc::default();
        let (all, sizes) = (received.clone(), pieces.clone());
        two.world.spawn(two.server, async move {
            let listener = Listener::bind(any_ip(PORT)).unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            let buf = IoBuf::alloc(1 << 20);
            loop {
                let got = socket.recv(buf.clone()).await.unwrap();
                if got == 0 {
                    break;
                }
                all.borrow_mut().extend(&buf.as_slice()[..got]);
                sizes.borrow_mut().push(got);
            }
        });
        two.world.advance(MS);
        let socket = two.connect();
        let whole = IoBuf::from_slice(&pattern(300_000));
        let mut parts: Vec<IoBuf> = (0..100).map(|i| whole.slice(i * 1000..(i + 1) * 1000)).collect();
        parts.push(IoBuf::alloc(0));
        parts.push(whole.slice(100_000..300_000));
        two.world.run(two.client, async move { socket.send(parts).await.unwrap() }).unwrap();
        two.world.advance(SECOND);
        assert!(*received.borrow() == pattern(300_000), "seed {seed}");
        cuts.insert(pieces.borrow().clone());
    }
    assert_eq!(cuts.len(), 10);
}

#[test]
fn a_port_without_a_listener_refuses_and_an_unknown_address_is_unreachable() {
    let mut two = two(1);
    let address = two.address();
    let refused = two.world.run(two.client, Socket::connect(address, LIMIT)).unwrap();
    assert_eq!(kind_of(refused), ErrorKind::ConnectionRefused);
    let nobody = Address::Inet(([10, 0, 0, 99], PORT).into());
    let unreachable = two.world.run(two.client, Socket::connect(nobody, LIMIT)).unwrap();
    assert_eq!(kind_of(unreachable), ErrorKind::HostUnreachable);
}

#[test]
fn addresses_are_those_of_the_hosts() {
    let mut two = two(1);
    let server_ip = two.world.ip(two.server);
    let foreign = Address::Inet((two.world.ip(two.client), PORT).into());
    let (seen, bound) = two
        .world
        .run(two.server, async move {
            assert_eq!(kind_of(Listener::bind(foreign)), ErrorKind::AddrNotAvailable);
            let listener = Listener::bind(Address::Inet((server_ip, 0).into())).unwrap();
            let bound = listener.local_addr().unwrap();
            assert_eq!(kind_of(Listener::bind(bound.clone())), ErrorKind::AddrInUse);
            let connected = Socket::connect(bound.clone(), LIMIT).await.unwrap();
            let (_accepted, from) = listener.accept().await.unwrap();
            assert_eq!(connected.peer_addr().unwrap(), bound);
            drop(listener);
            rt::sleep(MS).await;
            Listener::bind(bound.clone()).unwrap();
            (from, bound)
        })
        .unwrap();
    assert_eq!(seen.inet().unwrap().ip(), server_ip);
    assert_ne!(bound.inet().unwrap().port(), 0);
}

#[test]
fn the_window_bounds_what_is_sent_unread() {
    const WINDOW: usize = 10_000;
    let mut two = two(3);
    let options = NetworkOptions { window_bytes: (WINDOW, WINDOW), ..NetworkOptions::default() };
    two.world.set_network(options);
    let gate = Rc::new(rt::sync::Event::new());
    let open = gate.clone();
    two.world.spawn(two.server, async move {
        let listener = Listener::bind(any_ip(PORT)).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        open.wait().await;
        while socket.recv(IoBuf::alloc(3000)).await.unwrap() > 0 {}
    });
    two.world.advance(MS);
    let socket = two.connect();
    let sent = Rc::new(Cell::new(0));
    let count = sent.clone();
    two.world.spawn(two.client, async move {
        for _ in 0..100 {
            socket.send(vec![IoBuf::alloc(1000)]).await.unwrap();
            count.set(count.get() + 1000);
        }
    });
    two.world.advance(SECOND);
    assert_eq!(sent.get(), WINDOW);
    gate.set();
    two.world.advance(SECOND);
    assert_eq!(sent.get(), 100_000);
}

#[test]
fn a_closed_connection_ends_and_an_unread_one_breaks() {
    let mut two = two(1);
    let ends = two.start_echo();
    let socket = two.connect();
    two.ask(&socket).unwrap();
    drop(socket); // Outside of the world: nobody notices.
    let address = two.address();
    let unread = address.clone();
    two.world
        .run(two.client, async move {
            let socket = Socket::connect(address, LIMIT).await.unwrap();
            ask(&socket).await.unwrap();
        })
        .unwrap();
    two.world.advance(SECOND);
    assert!(matches!(&ends.borrow()[..], [Ok(())]));
    two.world
        .run(two.client, async move {
            let socket = Socket::connect(unread, LIMIT).await.unwrap();
            socket.send(vec![IoBuf::from_slice(b"x")]).await.unwrap();
            rt::sleep(SECOND).await;
        })
        .unwrap();
    two.world.advance(SECOND);
    assert_eq!(ends.borrow()[1].as_ref().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_shutdown_ends_the_receive_of_another_task() {
    let mut two = two(1);
    let ends = two.start_echo();
    let socket = two.connect();
    let other = socket.clone();
    two.world
        .run(two.client, async move {
            rt::spawn(async move { other.shutdown() });
            assert_eq!(socket.recv(IoBuf::alloc(10)).await.unwrap(), 0);
            assert_eq!(kind_of(socket.send(vec![IoBuf::alloc(10)]).await), ErrorKind::BrokenPipe);
        })
        .unwrap();
    two.world.advance(SECOND);
    assert!(matches!(&ends.borrow()[..], [Ok(())]));
}

#[test]
fn a_receive_that_is_given_up_takes_nothing_later() {
    let mut two = two(1);
    two.start_echo();
    let socket = two.connect();
    let other = socket.clone();
    two.world
        .run(two.client, async move {
            assert!(rt::timeout(5 * MS, other.recv(IoBuf::alloc(4096))).await.is_none());
        })
        .unwrap();
    two.ask(&socket).unwrap();
}

#[test]
fn the_peer_of_a_killed_process_sees_the_end_or_a_reset() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let mut two = two(seed);
        two.start_echo();
        let socket = two.connect();
        two.ask(&socket).unwrap();
        two.world.kill(two.server);
        let end = two.world.run(two.client, async move { socket.recv(IoBuf::alloc(1)).await }).unwrap();
        seen.insert(format!("{:?}", end.map_err(|error| error.kind())));
        let address = two.address();
        let refused = two.world.run(two.client, Socket::connect(address, LIMIT)).unwrap();
        assert_eq!(kind_of(refused), ErrorKind::ConnectionRefused);
        two.start_echo();
        let socket = two.connect();
        two.ask(&socket).unwrap();
    }
    assert_eq!(seen, BTreeSet::from(["Err(ConnectionReset)", "Ok(0)"].map(String::from)));
}

#[test]
fn a_crashed_host_is_silent_and_then_resets_old_connections() {
    let mut two = two(1);
    two.start_echo();
    let socket = two.connect();
    two.ask(&socket).unwrap();
    two.world.crash(two.server);
    let answer = two.ask_later(&socket);
    two.world.advance(60 * SECOND);
    assert!(answer.borrow().is_none());
    let address = two.address();
    let silent = two.world.run(two.client, Socket::connect(address, LIMIT)).unwrap();
    assert_eq!(kind_of(silent), ErrorKind::TimedOut);
    two.start_echo();
    two.world.advance(SECOND);
    let end = answer.borrow_mut().take().unwrap();
    assert_eq!(kind_of(end), ErrorKind::ConnectionReset);
    let socket = two.connect();
    two.ask(&socket).unwrap();
}

#[test]
fn a_cut_holds_what_is_sent_until_it_is_healed() {
    let mut ends = BTreeSet::new();
    for seed in 0..30 {
        for one_way in [false, true] {
            let mut two = two(seed);
            two.start_echo();
            let socket = two.connect();
            match one_way {
                true => two.world.cut_one_way(two.server, two.client),
                false => two.world.cut(two.client, two.server),
            }
            let answer = two.ask_later(&socket);
            two.world.advance(60 * SECOND);
            assert!(answer.borrow().is_none());
            two.world.heal(two.client, two.server);
            two.world.advance(SECOND);
            let end = answer.borrow_mut().take().expect("something comes after the cut");
            ends.insert(format!("{:?}", end.map_err(|error| error.kind())));
        }
    }
    assert_eq!(ends, BTreeSet::from(["Err(ConnectionReset)", "Ok(())"].map(String::from)));
}

#[test]
fn data_sent_against_a_one_way_cut_arrives_but_is_not_acknowledged() {
    const WINDOW: usize = 10_000;
    let mut two = two(1);
    let options = NetworkOptions { window_bytes: (WINDOW, WINDOW), ..NetworkOptions::default() };
    two.world.set_network(NetworkOptions { resets_on_heal_per_million: 0, ..options });
    let received = Rc::new(Cell::new(0));
    let count = received.clone();
    two.world.spawn(two.server, async move {
        let listener = Listener::bind(any_ip(PORT)).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        while let Ok(got @ 1..) = socket.recv(IoBuf::alloc(5000)).await {
            count.set(count.get() + got);
        }
    });
    two.world.advance(MS);
    let socket = two.connect();
    two.world.cut_one_way(two.server, two.client);
    let send = async move { socket.send(vec![IoBuf::alloc(3 * WINDOW)]).await };
    two.world.spawn(two.client, async move { send.await.unwrap() });
    two.world.advance(SECOND);
    assert_eq!(received.get(), WINDOW);
    two.world.heal(two.server, two.client);
    two.world.advance(SECOND);
    assert_eq!(received.get(), 3 * WINDOW);
}

#[test]
fn a_connection_whose_peer_does_not_read_ends_at_the_stall_limit() {
    for reads in [false, true] {
        let mut two = two(1);
        let socket = match reads {
            true => {
                two.start_echo();
                two.connect()
            }
            false => {
                two.world.spawn(two.server, async move {
                    let listener = Listener::bind(any_ip(PORT)).unwrap();
                    let _socket = listener.accept().await.unwrap();
                    std::future::pending::<()>().await;
                });
                two.world.advance(MS);
                two.connect()
            }
        };
        let end = two.world.run(two.client, async move {
            socket.set_stall_limit(3 * SECOND).unwrap();
            let begin = rt::monotonic_ns();
            // The kernel accepts data that fits into its buffers.
            socket.send(vec![IoBuf::alloc(100)]).await.unwrap();
            rt::sleep(10 * SECOND).await;
            socket.set_buffer_size(10_000).unwrap();
            if !reads {
                assert_eq!(kind_of(socket.send(vec![IoBuf::alloc(20_000)]).await), ErrorKind::TimedOut);
            }
            rt::monotonic_ns() - begin
        });
        let seconds = end.unwrap() / 1_000_000_000;
        assert_eq!(seconds, if reads { 10 } else { 13 });
    }
}

#[test]
fn a_connection_across_a_cut_is_made_after_healing_unless_it_timed_out() {
    let mut two = two(1);
    two.start_echo();
    two.world.cut_one_way(two.server, two.client);
    let address = two.address();
    let hasty = two.world.run(two.client, Socket::connect(address.clone(), SECOND)).unwrap();
    assert_eq!(kind_of(hasty), ErrorKind::TimedOut);
    let asked: Shared<Option<io::Result<()>>> = Rc::default();
    let slot = asked.clone();
    two.world.spawn(two.client, async move {
        let socket = Socket::connect(address, 100 * SECOND).await;
        let result = match socket {
            Ok(socket) => ask(&socket).await,
            Err(error) => Err(error),
        };
        *slot.borrow_mut() = Some(result);
    });
    two.world.set_network(NetworkOptions { resets_on_heal_per_million: 0, ..NetworkOptions::default() });
    two.world.advance(50 * SECOND);
    assert!(asked.borrow().is_none());
    two.world.heal(two.client, two.server);
    two.world.advance(SECOND);
    asked.borrow_mut().take().unwrap().unwrap();
}

#[test]
fn connections_break_on_demand_and_at_random() {
    let mut two = two(1);
    two.start_echo();
    let socket = two.connect();
    two.world.reset_connections(two.client, two.server);
    assert_eq!(kind_of(two.ask(&socket)), ErrorKind::ConnectionReset);
    two.world.set_network(NetworkOptions { resets_per_million: 100_000, ..NetworkOptions::default() });
    let mut broken = 0;
    for _ in 0..200 {
        let socket = two.connect();
        broken += two.ask(&socket).is_err() as i32;
    }
    assert!((20..80).contains(&broken), "{broken} of 200 broke");
}

#[test]
fn a_stopped_process_does_nothing_while_its_kernel_receives() {
    let mut two = two(1);
    two.start_echo();
    let socket = two.connect();
    two.ask(&socket).unwrap();
    two.world.stop(two.server);
    let answer = two.ask_later(&socket);
    // The kernel completes a connection that the server hasn't accepted.
    let late = two.connect();
    two.world.advance(60 * SECOND);
    assert!(answer.borrow().is_none());
    two.world.resume(two.server);
    two.world.advance(SECOND);
    answer.borrow_mut().take().unwrap().unwrap();
    two.ask(&late).unwrap();
}

#[test]
fn timers_of_a_stopped_process_are_late() {
    let mut two = two(1);
    let slept = Rc::new(Cell::new(0));
    let time = slept.clone();
    two.world.spawn(two.client, async move {
        let begin = rt::monotonic_ns();
        rt::sleep(SECOND).await;
        time.set(rt::monotonic_ns() - begin);
    });
    two.world.advance(MS);
    two.world.stop(two.client);
    two.world.advance(10 * SECOND);
    assert_eq!(slept.get(), 0);
    two.world.resume(two.client);
    two.world.advance(MS);
    assert!(slept.get() >= 10_000_000_000);
}

#[test]
fn each_host_has_its_own_clocks() {
    let mut two = two(1);
    const HOUR_NS: i64 = 3_600_000_000_000;
    two.world.set_clock(two.server, -HOUR_NS, 500_000);
    let right = two.world.run(two.client, async { (rt::now(), rt::monotonic_ns()) }).unwrap();
    let wrong = two.world.run(two.server, async { (rt::now(), rt::monotonic_ns()) }).unwrap();
    assert_ne!(right.1 / 1_000_000_000, wrong.1 / 1_000_000_000);
    let behind = (right.0.secs - wrong.0.secs) as f64;
    assert!((3599.0..=3601.0).contains(&behind));
    // Its clock runs fast by half: its ten seconds are less than seven.
    let before = two.world.clock_ns();
    two.world.run(two.server, async { rt::sleep(10 * SECOND).await }).unwrap();
    let passed = two.world.clock_ns() - before;
    assert!((6_600_000_000..6_700_000_000).contains(&passed), "{passed}");
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    let mtime = two.world.run(two.server, async move {
        let file = File::open(Path::new("/f"), options).await.unwrap();
        (file.stat().await.unwrap().mtime, rt::now())
    });
    let (mtime, now) = mtime.unwrap();
    assert!((now.secs - mtime.secs).abs() <= 1);
}

#[test]
fn each_host_has_its_own_disk_tasks_and_values() {
    #[derive(Default)]
    struct Counter(Cell<u32>);
    let count = || {
        let counter = rt::local::<Counter>();
        counter.0.set(counter.0.get() + 1);
        counter.0.get()
    };
    let mut two = two(1);
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    two.world.run(two.client, async move { drop(File::open(Path::new("/f"), options).await) }).unwrap();
    let names = |two: &mut Two| {
        [two.client, two.server].map(|host| {
            two.world.run(host, async { rt::read_dir(Path::new("/")).await.unwrap().len() }).unwrap()
        })
    };
    assert_eq!(names(&mut two), [1, 0]);
    assert_eq!(two.world.run(two.client, async move { (count(), count()) }).unwrap(), (1, 2));
    assert_eq!(two.world.run(two.server, async move { count() }).unwrap(), 1);
    let alive = Rc::new(());
    for host in [two.client, two.server] {
        let held = alive.clone();
        two.world.spawn(host, async move {
            rt::sleep(100 * SECOND).await;
            drop(held);
        });
    }
    two.world.advance(MS);
    two.world.kill(two.client);
    assert_eq!(Rc::strong_count(&alive), 2);
    assert_eq!(two.world.run(two.client, async move { count() }).unwrap(), 1);
    assert_eq!(two.world.run(two.server, async move { count() }).unwrap(), 2);
    assert_eq!(names(&mut two), [1, 0]);
}

#[test]
fn waiting_for_a_byte_that_is_never_sent_is_a_deadlock() {
    let mut two = two(1);
    two.start_echo();
    let socket = two.connect();
    let deadlock = two.world.run(two.client, async move { socket.recv(IoBuf::alloc(1)).await });
    assert!(deadlock.unwrap_err().tasks >= 3);
    // Packets held by a cut don't arrive until it is healed.
    let socket = two.connect();
    two.world.cut(two.client, two.server);
    two.world.run(two.client, async move { ask(&socket).await }).unwrap_err();
}

#[test]
#[should_panic(expected = "two receives or two sends")]
fn two_receives_at_once_are_noticed() {
    let mut two = two(1);
    two.start_echo();
    let socket = two.connect();
    let both =
        async move { rt::join_all(vec![socket.recv(IoBuf::alloc(1)), socket.recv(IoBuf::alloc(1))]).await };
    let _ = two.world.run(two.client, both);
}
