//! The network between simulated hosts: reachability, packets on their way, and faults.
//!
//! It carries streams as TCP does. Nothing within a stream is lost, duplicated or reordered: it is
//! delayed, held while the path is cut, or the connection breaks. Lost and retransmitted messages
//! arise from breaks, as they do over TCP.

use super::HostId;
use super::event_queue::{DurationRange, Event, EventQueue};
use super::rng::mix;
use super::stream::{Connection, End, EndId, EndState, Segment, Side};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// Connections that wait to be accepted by one listener; further ones are refused.
const MAX_BACKLOG: usize = 128;
/// First port that is assigned automatically.
const FIRST_FREE_PORT: u16 = 32_768;
/// One in this many pieces of a stream is only a few bytes long, so that messages are cut anywhere.
const SMALL_PIECES: u64 = 6;
/// The largest such piece, bytes.
const SMALL_PIECE_BYTES: u64 = 80;
/// The largest piece that arrives at once, bytes: what a network card delivers together.
const MAX_PIECE_BYTES: u64 = 64 << 10;
const MILLION: u32 = 1_000_000;

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// Minimum and maximum delay of a packet, in nanoseconds.
    pub delay_ns: (u64, u64),
    /// Packets in a million that take `slow_ns` instead.
    pub slow_per_million: u32,
    /// Minimum and maximum delay of those, in nanoseconds.
    pub slow_ns: (u64, u64),
    /// Minimum and maximum bytes that one direction of a connection holds; chosen for each
    /// connection.
    pub window_bytes: (usize, usize),
    /// Arriving pieces in a million that break their connection.
    pub resets_per_million: u32,
    /// Connections in a million that break when a cut that held their packets is healed.
    pub resets_on_heal_per_million: u32,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions {
            delay_ns: (20_000, 400_000),
            slow_per_million: 10_000,
            slow_ns: (1_000_000, 30_000_000),
            window_bytes: (16 << 10, 512 << 10),
            resets_per_million: 0,
            resets_on_heal_per_million: 300_000,
        }
    }
}

/// A packet on its way from one end of a connection to the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    from: EndId,
    what: PacketKind,
}

#[derive(Clone, Copy, Debug)]
enum PacketKind {
    /// The client requests a connection (SYN).
    Connect,
    /// The server's kernel accepts it.
    Accept,
    /// The client acknowledges that.
    Acknowledge,
    /// The next segment of the stream.
    Segment,
    /// The other program has received this many bytes.
    Received(usize),
    /// The connection is broken.
    Reset,
}

#[derive(Default)]
struct ListenQueue {
    backlog: VecDeque<EndId>,
    waiting: Vec<Waker>,
}

/// All connections.
#[derive(Default)]
pub(super) struct Network {
    pub(super) options: NetworkOptions,
    /// Whether each host has power.
    powered: Vec<bool>,
    /// Paths that are cut, from and to.
    cuts: BTreeSet<(HostId, HostId)>,
    listeners: BTreeMap<(HostId, u16), ListenQueue>,
    connections: BTreeMap<u64, Connection>,
    next_port: u16,
    /// Packets held at a cut or before a host without power.
    held: Vec<Packet>,
    woken: Vec<Waker>,
    /// Digest of all sent bytes.
    sent: u64,
}

impl Network {
    pub(super) fn add_host(&mut self) {
        self.powered.push(true);
    }

    /// Hosts have the addresses 10.0.0.1 and so on.
    pub(super) fn ip(host: HostId) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 1).to_bits() + host.0 as u32)
    }

    /// Takes the wakers of tasks to wake, which happens when nothing is borrowed.
    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// Digest of all bytes that programs have sent, and of their times.
    pub(super) fn sent_digest(&self) -> u64 {
        self.sent
    }

    fn host_of(&self, from: HostId, ip: IpAddr) -> io::Result<HostId> {
        if ip.is_loopback() || ip.is_unspecified() {
            return Ok(from);
        }
        let host = (0..self.powered.len()).map(HostId).find(|host| IpAddr::from(Self::ip(*host)) == ip);
        host.ok_or_else(|| io::Error::from_raw_os_error(libc::EHOSTUNREACH))
    }

    fn free_port(&mut self, host: HostId) -> u16 {
        loop {
            self.next_port = self.next_port.checked_add(1).unwrap_or(0).max(FIRST_FREE_PORT);
            if !self.listeners.contains_key(&(host, self.next_port)) {
                return self.next_port;
            }
        }
    }

    /// Listens at an address of `host`; returns the address with the assigned port.
    pub(super) fn listen(&mut self, host: HostId, address: SocketAddr) -> io::Result<SocketAddr> {
        if self.host_of(host, address.ip())? != host {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let port = if address.port() == 0 { self.free_port(host) } else { address.port() };
        if self.listeners.contains_key(&(host, port)) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        self.listeners.insert((host, port), ListenQueue::default());
        Ok(SocketAddr::new(address.ip(), port))
    }

    /// The next connection with its peer's address.
    pub(super) fn accept(
        &mut self,
        host: HostId,
        port: u16,
        waker: &Waker,
    ) -> io::Result<Option<(EndId, SocketAddr)>> {
        let closed = || io::Error::from_raw_os_error(libc::EINVAL);
        let listening = self.listeners.get_mut(&(host, port)).ok_or_else(closed)?;
        let Some(end) = listening.backlog.pop_front() else {
            listening.waiting.retain(|known| !known.will_wake(waker));
            listening.waiting.push(waker.clone());
            return Ok(None);
        };
        let connection = self.connections.get(&end.connection).ok_or_else(closed)?;
        Ok(Some((end, connection.end(Side::Client).address)))
    }

    /// Closes a listener; resets connections that haven't been accepted.
    pub(super) fn close_listener(&mut self, events: &mut EventQueue, host: HostId, port: u16) {
        let Some(listening) = self.listeners.remove(&(host, port)) else { return };
        self.woken.extend(listening.waiting);
        for end in listening.backlog {
            self.abort(events, end);
        }
    }

    /// Starts to connect.
    pub(super) fn connect(
        &mut self,
        events: &mut EventQueue,
        from: HostId,
        to: SocketAddr,
    ) -> io::Result<EndId> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let host = self.host_of(from, to.ip())?;
        let (least, most) = self.options.window_bytes;
        let mut window = || events.rng.between(least as u64, most as u64).max(1) as usize;
        let address = SocketAddr::new(Self::ip(from).into(), self.free_port(from));
        let client = End::new(from, address, window());
        let server = End::new(host, to, window());
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        self.connections.insert(connection, Connection::new(client, server));
        let end = EndId { connection, side: Side::Client };
        self.post(events, end, PacketKind::Connect);
        Ok(end)
    }

    /// An end, while its process holds it.
    pub(super) fn end_mut(&mut self, id: EndId) -> io::Result<&mut End> {
        let end = self.connections.get_mut(&id.connection).map(|connection| connection.end_mut(id.side));
        end.filter(|end| end.state != EndState::Closed)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Notes that the program has received `bytes` bytes; after a delay, the sender may send as
    /// many more.
    pub(super) fn received(&mut self, events: &mut EventQueue, end: EndId, bytes: usize) {
        if bytes > 0 {
            self.post(events, end, PacketKind::Received(bytes));
        }
    }

    /// Sends as much of `bytes` as fits into the window, cut anywhere.
    pub(super) fn send(&mut self, events: &mut EventQueue, end: EndId, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.end_mut(end)?.send_window()?.min(bytes.len());
        let mut left = &bytes[..sent];
        while !left.is_empty() {
            let most = match events.rng.below(SMALL_PIECES) {
                0 => SMALL_PIECE_BYTES,
                _ => MAX_PIECE_BYTES,
            };
            let len = events.rng.between(1, most.min(left.len() as u64)) as usize;
            // Most messages arrive in one piece.
            let len =
                if left.len() <= MAX_PIECE_BYTES as usize && events.rng.coin() { left.len() } else { len };
            let (piece, rest) = left.split_at(len);
            let now_ns = events.clock_ns;
            self.end_mut(end)?.push(Segment::Bytes(piece.to_vec()), now_ns);
            self.post(events, end, PacketKind::Segment);
            left = rest;
        }
        mix(&mut self.sent, events.clock_ns);
        mix(&mut self.sent, u64::from(types::crc32c(&bytes[..sent])));
        self.watch(events, end);
        Ok(sent)
    }

    /// Schedules a check of whether data that an end sent makes progress, if the end has a limit.
    fn watch(&mut self, events: &mut EventQueue, id: EndId) {
        let Ok(end) = self.end_mut(id) else { return };
        if let Some(until) = end.stalled_until_ns()
            && !std::mem::replace(&mut end.stall_watched, true)
        {
            events.at(until, Event::Stall(id));
        }
    }

    /// Breaks a connection whose peer has received nothing for longer than the limit.
    pub(super) fn check_stall(&mut self, events: &mut EventQueue, id: EndId) {
        let Some(connection) = self.connections.get_mut(&id.connection) else { return };
        let end = connection.end_mut(id.side);
        end.stall_watched = false;
        match end.stalled_until_ns() {
            Some(until) if until <= events.clock_ns => end.break_connection(libc::ETIMEDOUT, &mut self.woken),
            _ => self.watch(events, id),
        }
    }

    /// Shuts down both directions, as far as this end can.
    pub(super) fn shut_down(&mut self, events: &mut EventQueue, id: EndId) {
        let Some(connection) = self.connections.get_mut(&id.connection) else { return };
        let end = connection.end_mut(id.side);
        if end.state == EndState::Closed || std::mem::replace(&mut end.is_shut_down, true) {
            return;
        }
        end.wake(&mut self.woken);
        end.push(Segment::End, events.clock_ns);
        self.post(events, id, PacketKind::Segment);
    }

    /// Closes an end. Unreceived bytes make that a reset, as in Linux.
    pub(super) fn close(&mut self, events: &mut EventQueue, id: EndId) {
        let Ok(end) = self.end_mut(id) else { return };
        if end.has_unread() || end.state == EndState::Opening {
            self.abort(events, id);
            return;
        }
        self.shut_down(events, id);
        self.forget(id);
    }

    /// Breaks a connection from one end. Some of the segments on their way may still arrive.
    fn abort(&mut self, events: &mut EventQueue, id: EndId) {
        let Ok(end) = self.end_mut(id) else { return };
        let arrive = events.rng.below(end.segments_in_flight() as u64 + 1);
        end.drop_segments_after(arrive as usize);
        self.post(events, id, PacketKind::Reset);
        self.forget(id);
    }

    fn forget(&mut self, id: EndId) {
        let Some(connection) = self.connections.get_mut(&id.connection) else { return };
        connection.end_mut(id.side).state = EndState::Closed;
        if connection.is_over() {
            self.connections.remove(&id.connection);
        }
    }

    fn post(&self, events: &mut EventQueue, from: EndId, what: PacketKind) {
        let slow = events.rng.in_a_million(self.options.slow_per_million);
        let span: DurationRange = if slow { self.options.slow_ns } else { self.options.delay_ns };
        events.after(span, Event::Packet(Packet { from, what }));
    }

    /// Whether packets pass from one host to another.
    fn is_passable(&self, from: HostId, to: HostId) -> bool {
        self.powered[to.0] && !self.cuts.contains(&(from, to))
    }

    /// A packet arrives, or is held.
    pub(super) fn deliver(&mut self, events: &mut EventQueue, packet: Packet) {
        let Some(connection) = self.connections.get(&packet.from.connection) else { return };
        let side = packet.from.side.other();
        let (from, to) = (connection.end(packet.from.side).host, connection.end(side).host);
        if !self.is_passable(from, to) {
            self.held.push(packet);
            return;
        }
        let id = EndId { connection: packet.from.connection, side };
        match packet.what {
            PacketKind::Connect => self.deliver_connect(events, id),
            PacketKind::Accept => self.deliver_accept(events, id),
            PacketKind::Acknowledge => self.deliver_acknowledge(events, id),
            PacketKind::Segment => self.deliver_segment(events, id),
            PacketKind::Received(bytes) => {
                if let Some(connection) = self.connections.get_mut(&id.connection) {
                    connection.end_mut(side).acknowledge(bytes, events.clock_ns, &mut self.woken);
                }
            }
            PacketKind::Reset => self.deliver_reset(id),
        }
    }

    fn deliver_connect(&mut self, events: &mut EventQueue, server: EndId) {
        let Some(connection) = self.connections.get(&server.connection) else { return };
        let end = connection.end(Side::Server);
        let listens = self.listeners.contains_key(&(end.host, end.address.port()));
        self.post(events, server, if listens { PacketKind::Accept } else { PacketKind::Reset });
    }

    fn deliver_accept(&mut self, events: &mut EventQueue, client: EndId) {
        let Ok(end) = self.end_mut(client) else {
            return; // The client has closed its end.
        };
        end.state = EndState::Open;
        let mut woken = Vec::new();
        end.wake(&mut woken);
        self.woken.append(&mut woken);
        self.post(events, client, PacketKind::Acknowledge);
    }

    fn deliver_acknowledge(&mut self, events: &mut EventQueue, server: EndId) {
        match self.end_mut(server) {
            Ok(_) => self.establish(events, server),
            Err(_) => self.post(events, server, PacketKind::Reset),
        }
    }

    /// Opens the server's end, if it isn't open yet.
    fn establish(&mut self, events: &mut EventQueue, server: EndId) {
        let Some(connection) = self.connections.get_mut(&server.connection) else { return };
        let end = connection.end_mut(Side::Server);
        if end.state != EndState::Opening {
            return;
        }
        end.state = EndState::Open;
        match self.listeners.get_mut(&(end.host, end.address.port())) {
            Some(listening) if listening.backlog.len() < MAX_BACKLOG => {
                listening.backlog.push_back(server);
                self.woken.append(&mut listening.waiting);
            }
            _ => self.abort(events, server),
        }
    }

    fn deliver_segment(&mut self, events: &mut EventQueue, id: EndId) {
        // The first segment may overtake the end of the handshake.
        if id.side == Side::Server {
            self.establish(events, id);
        }
        if events.rng.in_a_million(self.options.resets_per_million) {
            self.reset_both_ends(id.connection);
            return;
        }
        let Some(connection) = self.connections.get_mut(&id.connection) else { return };
        let Some(segment) = connection.end_mut(id.side.other()).next_arrival(events.clock_ns) else { return };
        let end = connection.end_mut(id.side);
        if end.state == EndState::Closed {
            let is_end = matches!(segment, Segment::End);
            if !is_end {
                self.post(events, id, PacketKind::Reset);
            }
            return;
        }
        end.arrive(segment, &mut self.woken);
    }

    fn deliver_reset(&mut self, id: EndId) {
        let Some(connection) = self.connections.get_mut(&id.connection) else { return };
        let end = connection.end_mut(id.side);
        match (end.state, id.side) {
            (EndState::Closed, _) => {}
            (EndState::Opening, Side::Server) => self.forget(id),
            (EndState::Opening, Side::Client) => end.break_connection(libc::ECONNREFUSED, &mut self.woken),
            (EndState::Open, _) => end.break_connection(libc::ECONNRESET, &mut self.woken),
        }
    }

    /// Breaks a connection at both ends.
    fn reset_both_ends(&mut self, connection: u64) {
        for side in [Side::Client, Side::Server] {
            self.deliver_reset(EndId { connection, side });
        }
    }

    /// Cuts the path from one host to another. Packets on their way are held.
    pub(super) fn cut(&mut self, from: HostId, to: HostId) {
        self.cuts.insert((from, to));
    }

    /// Restores the path from one host to another.
    pub(super) fn heal(&mut self, events: &mut EventQueue, from: HostId, to: HostId) {
        if self.cuts.remove(&(from, to)) {
            self.release_held(events);
        }
    }

    /// Starts a host's kernel (again): it answers held packets.
    pub(super) fn power_on(&mut self, events: &mut EventQueue, host: HostId) {
        if !std::mem::replace(&mut self.powered[host.0], true) {
            self.release_held(events);
        }
    }

    fn release_held(&mut self, events: &mut EventQueue) {
        let mut decided: BTreeMap<u64, bool> = BTreeMap::new();
        for packet in std::mem::take(&mut self.held) {
            let Some(connection) = self.connections.get(&packet.from.connection) else { continue };
            let side = packet.from.side;
            if !self.is_passable(connection.end(side).host, connection.end(side.other()).host) {
                self.held.push(packet);
                continue;
            }
            let chances = self.options.resets_on_heal_per_million.min(MILLION);
            let breaks =
                *decided.entry(packet.from.connection).or_insert_with(|| events.rng.in_a_million(chances));
            match breaks {
                true => self.reset_both_ends(packet.from.connection),
                false => self.post(events, packet.from, packet.what),
            }
        }
    }

    /// Breaks the connections between two hosts.
    pub(super) fn reset_between(&mut self, a: HostId, b: HostId) {
        let between = |connection: &Connection| {
            let hosts = (connection.end(Side::Client).host, connection.end(Side::Server).host);
            hosts == (a, b) || hosts == (b, a)
        };
        let numbers: Vec<u64> =
            self.connections.iter().filter(|(_, c)| between(c)).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.reset_both_ends(number));
    }

    fn ends_of(&self, host: HostId) -> Vec<EndId> {
        let of = |connection: u64, c: &Connection, side: Side| {
            let end = c.end(side);
            // An end that isn't established doesn't belong to a process yet.
            let owned = end.state == EndState::Open || side == Side::Client && end.state == EndState::Opening;
            (end.host == host && owned).then_some(EndId { connection, side })
        };
        let ends =
            |(number, c): (&u64, &Connection)| [of(*number, c, Side::Client), of(*number, c, Side::Server)];
        self.connections.iter().flat_map(ends).flatten().collect()
    }

    /// Ends the process of a host: its kernel closes or resets its connections.
    pub(super) fn kill(&mut self, events: &mut EventQueue, host: HostId) {
        self.listeners.retain(|(of, _), _| *of != host);
        for end in self.ends_of(host) {
            if events.rng.coin() { self.abort(events, end) } else { self.close(events, end) }
        }
    }

    /// Cuts a host's power: its peers notice nothing until it answers again and doesn't know their
    /// connections.
    pub(super) fn crash(&mut self, events: &mut EventQueue, host: HostId) {
        self.listeners.retain(|(of, _), _| *of != host);
        self.powered[host.0] = false;
        for id in self.ends_of(host) {
            if let Ok(end) = self.end_mut(id) {
                let arrive = events.rng.below(end.segments_in_flight() as u64 + 1);
                end.drop_segments_after(arrive as usize);
            }
            self.forget(id);
        }
    }
}
