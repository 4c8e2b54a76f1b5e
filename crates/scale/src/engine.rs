//! The discrete-event engine: stations, and transfers over them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use types::HashMap;

/// Number of pieces per transfer. Pieces of concurrent transfers alternate.
const PIECES: u32 = 8;
/// Pieces in flight per connection: one for each of its two links.
const WINDOW: u32 = 2;

/// Service time at a station.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) station: usize,
    pub(crate) seconds: f64,
    /// This hop and the next one are the two ends of a connection: bytes are forwarded while they
    /// arrive, and alternate with those of other connections. Transfers with the same ends and the
    /// same number here use the same connection, one after the other.
    pub(crate) connection: Option<u32>,
}

/// A path over stations, one after the other, and then several parallel paths, possibly none.
#[derive(Clone, Default, Debug)]
pub(crate) struct Route {
    pub(crate) hops: Vec<Hop>,
    pub(crate) branches: Vec<Route>,
}

impl Route {
    /// Creates a path that doesn't fork.
    pub(crate) fn of(hops: Vec<Hop>) -> Route {
        Route { hops, branches: Vec::new() }
    }
}

struct Token {
    request: usize,
    route: Route,
    at: usize,
    /// Pieces of a transfer that haven't arrived.
    left: u32,
    /// Connection of that transfer.
    connection: usize,
}

struct PendingRequest {
    owner: usize,
    /// Paths that haven't ended.
    left: usize,
}

/// Events of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A token reaches its next hop, or its end.
    NextHop(usize),
    /// A piece of a token's transfer reaches the other end, or has passed it.
    PieceAtReceiver(usize),
    PieceDone(usize),
}

/// The two ends of a connection, and its number among those between these ends.
type Endpoints = (usize, usize, u32);

/// A connection.
struct Connection {
    endpoints: Endpoints,
    /// Tokens with unsent pieces.
    waiting: VecDeque<usize>,
    /// Unsent pieces of the first token.
    left: u32,
    in_flight: u32,
}

/// The clock, the stations, and the future events.
#[derive(Default)]
pub(crate) struct Engine {
    now: f64,
    free_at: Vec<f64>,
    busy: Vec<f64>,
    /// Sorted by time, then by insertion order. Times are never negative, so their bits sort like
    /// the numbers.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    tokens: Slab<Token>,
    requests: Slab<PendingRequest>,
    /// Connections in use, and the index of each.
    connections: Slab<Connection>,
    connection_index: HashMap<Endpoints, usize>,
}

impl Engine {
    pub(crate) fn new(stations: usize) -> Engine {
        Engine { free_at: vec![0.0; stations], busy: vec![0.0; stations], ..Engine::default() }
    }

    /// Returns the seconds since the beginning.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Returns the busy time of each station in seconds, including the work that has reached it.
    pub(crate) fn busy(&self) -> &[f64] {
        &self.busy
    }

    /// Starts a request, now or at a future time; [`Engine::run_until_next_end`] returns its owner
    /// when the last of its paths has ended.
    pub(crate) fn begin(&mut self, at: f64, owner: usize, routes: Vec<Route>) {
        assert!(!routes.is_empty(), "a request goes somewhere");
        let id = self.requests.put(PendingRequest { owner, left: 0 });
        self.spawn(at.max(self.now), id, routes);
    }

    fn spawn(&mut self, at: f64, request: usize, routes: Vec<Route>) {
        self.requests.get_mut(request).left += routes.len();
        for route in routes {
            let token = self.tokens.put(Token { request, route, at: 0, left: 0, connection: 0 });
            self.schedule(at, Event::NextHop(token));
        }
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at.to_bits(), self.scheduled, event)));
    }

    /// Runs until a request has ended. Returns its owner; `None` if no request is running.
    pub(crate) fn run_until_next_end(&mut self) -> Option<usize> {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = f64::from_bits(at);
            match event {
                Event::NextHop(id) => {
                    if let Some(owner) = self.advance(id) {
                        return Some(owner);
                    }
                }
                Event::PieceAtReceiver(id) => {
                    let (_, to) = self.endpoints(id);
                    let begin = self.occupy(to.station, to.seconds);
                    self.schedule(begin + to.seconds, Event::PieceDone(id));
                }
                Event::PieceDone(id) => self.piece_done(id),
            }
        }
        None
    }

    /// Makes the next step of a token. Returns the owner of its request if that ends.
    fn advance(&mut self, id: usize) -> Option<usize> {
        let token = self.tokens.get_mut(id);
        match token.route.hops.get(token.at).copied() {
            Some(Hop { connection: Some(_), .. }) => {
                token.left = PIECES;
                self.send(id);
                None
            }
            Some(hop) => {
                token.at += 1;
                let begin = self.occupy(hop.station, hop.seconds);
                self.schedule(begin + hop.seconds, Event::NextHop(id));
                None
            }
            None => {
                let Token { request, route, .. } = self.tokens.take(id);
                self.spawn(self.now, request, route.branches);
                let running = self.requests.get_mut(request);
                running.left -= 1;
                (running.left == 0).then(|| self.requests.take(request).owner)
            }
        }
    }

    /// Occupies a station for this time as soon as it is free. Returns when that begins.
    fn occupy(&mut self, station: usize, seconds: f64) -> f64 {
        let begin = self.free_at[station].max(self.now);
        self.free_at[station] = begin + seconds;
        self.busy[station] += seconds;
        begin
    }

    /// Returns both ends of a token's transfer, for one piece.
    fn endpoints(&mut self, id: usize) -> (Hop, Hop) {
        let token = self.tokens.get_mut(id);
        let piece = |hop: Hop| Hop { seconds: hop.seconds / f64::from(PIECES), ..hop };
        (piece(token.route.hops[token.at]), piece(token.route.hops[token.at + 1]))
    }

    /// Queues a transfer at its connection.
    fn send(&mut self, id: usize) {
        let (from, to) = self.endpoints(id);
        let ends = (from.station, to.station, from.connection.unwrap_or(0));
        let connections = &mut self.connections;
        let new = || {
            connections.put(Connection { endpoints: ends, waiting: VecDeque::new(), left: 0, in_flight: 0 })
        };
        let at = *self.connection_index.entry(ends).or_insert_with(new);
        let connection = self.connections.get_mut(at);
        if connection.waiting.is_empty() {
            connection.left = PIECES;
        }
        connection.waiting.push_back(id);
        self.tokens.get_mut(id).connection = at;
        self.fill(at);
    }

    /// Sends pieces up to the window.
    fn fill(&mut self, at: usize) {
        loop {
            let connection = self.connections.get_mut(at);
            let Some(id) = connection.waiting.front().copied().filter(|_| connection.in_flight < WINDOW)
            else {
                break;
            };
            connection.in_flight += 1;
            connection.left -= 1;
            if connection.left == 0 {
                connection.waiting.pop_front();
                connection.left = PIECES;
            }
            self.send_piece(id);
        }
        let connection = self.connections.get_mut(at);
        if connection.in_flight == 0 {
            let ends = connection.endpoints;
            self.connection_index.remove(&ends);
            self.connections.take(at);
        }
    }

    /// Sends a piece of a transfer.
    fn send_piece(&mut self, id: usize) {
        let (from, to) = self.endpoints(id);
        let begin = self.occupy(from.station, from.seconds);
        // The other end never waits for bytes within a piece: it gets the last byte when it has
        // handled all others.
        let arrival = begin.max(begin + from.seconds - to.seconds);
        self.schedule(arrival, Event::PieceAtReceiver(id));
    }

    /// Handles the arrival of a piece.
    fn piece_done(&mut self, id: usize) {
        let at = self.tokens.get_mut(id).connection;
        self.connections.get_mut(at).in_flight -= 1;
        self.fill(at);
        let token = self.tokens.get_mut(id);
        token.left -= 1;
        if token.left == 0 {
            token.at += 2;
            self.schedule(self.now, Event::NextHop(id));
        }
    }
}

/// Items by index; indexes are reused.
struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn put(&mut self, item: T) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.slots[at] = Some(item);
                at
            }
            None => {
                self.slots.push(Some(item));
                self.slots.len() - 1
            }
        }
    }

    fn get_mut(&mut self, at: usize) -> &mut T {
        self.slots[at].as_mut().expect("events name tokens, and tokens requests, that are under way")
    }

    fn take(&mut self, at: usize) -> T {
        self.free.push(at);
        self.slots[at].take().expect("events name tokens, and tokens requests, that are under way")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(station: usize, seconds: f64) -> Hop {
        Hop { station, seconds, connection: None }
    }

    /// Returns a transfer over both stations, on this connection between them.
    fn transfer(from: Hop, to: Hop, connection: u32) -> Vec<Route> {
        vec![Route::of(vec![Hop { connection: Some(connection), ..from }, to])]
    }

    fn ends(engine: &mut Engine) -> Vec<(usize, f64)> {
        std::iter::from_fn(|| Some((engine.run_until_next_end()?, engine.now()))).collect()
    }

    #[test]
    fn a_station_serves_one_after_the_other() {
        let mut engine = Engine::new(2);
        for owner in 0..3 {
            engine.begin(0.0, owner, vec![Route::of(vec![hop(0, 1.0), hop(1, 0.5)])]);
        }
        assert_eq!(ends(&mut engine), [(0, 1.5), (1, 2.5), (2, 3.5)]);
        assert_eq!(engine.busy(), [3.0, 1.5]);
    }

    #[test]
    fn bytes_are_forwarded_while_they_arrive() {
        for (first, second) in [(1.0, 4.0), (4.0, 1.0), (2.0, 2.0)] {
            let mut engine = Engine::new(2);
            for owner in 0..2 {
                engine.begin(0.0, owner, transfer(hop(0, first), hop(1, second), 0));
            }
            let slower = f64::max(first, second);
            // The second transfer uses the same connection, after the first.
            assert_eq!(ends(&mut engine), [(0, slower), (1, 2.0 * slower)]);
        }
    }

    #[test]
    fn connections_share_a_link() {
        let mut engine = Engine::new(4);
        // From one station to two: neither transfer waits for the whole other one.
        engine.begin(0.0, 0, transfer(hop(0, 4.0), hop(1, 4.0), 0));
        engine.begin(0.0, 1, transfer(hop(0, 4.0), hop(2, 4.0), 0));
        let both = ends(&mut engine);
        assert!(both.iter().all(|(_, end)| (7.0..=8.0).contains(end)), "{both:?}");
        // The same with two connections between the same ends.
        let mut engine = Engine::new(4);
        engine.begin(0.0, 0, transfer(hop(0, 4.0), hop(1, 4.0), 0));
        engine.begin(0.0, 1, transfer(hop(0, 4.0), hop(1, 4.0), 1));
        let both = ends(&mut engine);
        assert!(both.iter().all(|(_, end)| (7.0..=8.0).contains(end)), "{both:?}");
    }

    #[test]
    fn a_request_ends_with_its_last_branch() {
        let mut engine = Engine::new(3);
        let then = vec![Route::of(vec![hop(1, 1.0)]), Route::of(vec![hop(2, 4.0)])];
        engine.begin(0.0, 7, vec![Route { hops: vec![hop(0, 2.0)], branches: then }]);
        engine.begin(5.0, 8, vec![Route::default()]);
        assert_eq!(engine.run_until_next_end(), Some(8));
        assert_eq!((engine.run_until_next_end(), engine.now()), (Some(7), 6.0));
        assert_eq!(engine.run_until_next_end(), None);
    }
}
