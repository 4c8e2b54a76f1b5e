//! Stations, and what is on its way over them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stay at a station.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub(crate) station: usize,
    pub(crate) seconds: f64,
}

/// A way over stations, one after the other, and then several ways at the same time, which may be none.
#[derive(Clone, Default, Debug)]
pub(crate) struct Way {
    pub(crate) hops: Vec<Hop>,
    pub(crate) then: Vec<Way>,
}

impl Way {
    /// One that doesn't part.
    pub(crate) fn of(hops: Vec<Hop>) -> Way {
        Way { hops, then: Vec::new() }
    }
}

struct Token {
    request: usize,
    way: Way,
    at: usize,
}

struct Running {
    owner: usize,
    /// Ways that haven't ended.
    left: usize,
}

/// The clock, the stations, and the events to come.
#[derive(Default)]
pub(crate) struct Engine {
    now: f64,
    free_at: Vec<f64>,
    busy: Vec<f64>,
    /// By time, then in the order in which they were noted. Times are never negative, so that their bits have their order.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    noted: u64,
    tokens: Slab<Token>,
    requests: Slab<Running>,
}

impl Engine {
    pub(crate) fn new(stations: usize) -> Engine {
        Engine { free_at: vec![0.0; stations], busy: vec![0.0; stations], ..Engine::default() }
    }

    /// Seconds since the beginning.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// How long each station has worked, or will have when it is done with what has reached it, seconds.
    pub(crate) fn busy(&self) -> &[f64] {
        &self.busy
    }

    /// Sends a request off, now or at a time to come; its owner is told when the last of its ways has ended.
    pub(crate) fn begin(&mut self, at: f64, owner: usize, ways: Vec<Way>) {
        assert!(!ways.is_empty(), "a request goes somewhere");
        let id = self.requests.put(Running { owner, left: 0 });
        self.spawn(at.max(self.now), id, ways);
    }

    fn spawn(&mut self, at: f64, request: usize, ways: Vec<Way>) {
        self.requests.get_mut(request).left += ways.len();
        for way in ways {
            let token = self.tokens.put(Token { request, way, at: 0 });
            self.note(at, token);
        }
    }

    fn note(&mut self, at: f64, token: usize) {
        self.noted += 1;
        self.events.push(Reverse((at.to_bits(), self.noted, token)));
    }

    /// Goes on until a request has ended; gives its owner. `None` when nothing is under way.
    pub(crate) fn next_ended(&mut self) -> Option<usize> {
        while let Some(Reverse((at, _, id))) = self.events.pop() {
            self.now = f64::from_bits(at);
            let token = self.tokens.get_mut(id);
            if let Some(hop) = token.way.hops.get(token.at).copied() {
                token.at += 1;
                let end = self.free_at[hop.station].max(self.now) + hop.seconds;
                self.free_at[hop.station] = end;
                self.busy[hop.station] += hop.seconds;
                self.note(end, id);
            } else {
                let Token { request, way, .. } = self.tokens.take(id);
                self.spawn(self.now, request, way.then);
                let running = self.requests.get_mut(request);
                running.left -= 1;
                if running.left == 0 {
                    return Some(self.requests.take(request).owner);
                }
            }
        }
        None
    }
}

/// Things with numbers, which are used again.
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
        Hop { station, seconds }
    }

    #[test]
    fn a_station_serves_one_after_the_other() {
        let mut engine = Engine::new(2);
        for owner in 0..3 {
            engine.begin(0.0, owner, vec![Way::of(vec![hop(0, 1.0), hop(1, 0.5)])]);
        }
        let ends: Vec<(usize, f64)> =
            std::iter::from_fn(|| Some((engine.next_ended()?, engine.now()))).collect();
        assert_eq!(ends, [(0, 1.5), (1, 2.5), (2, 3.5)]);
        assert_eq!(engine.busy(), [3.0, 1.5]);
    }

    #[test]
    fn a_request_ends_with_its_last_branch() {
        let mut engine = Engine::new(3);
        let then = vec![Way::of(vec![hop(1, 1.0)]), Way::of(vec![hop(2, 4.0)])];
        engine.begin(0.0, 7, vec![Way { hops: vec![hop(0, 2.0)], then }]);
        engine.begin(5.0, 8, vec![Way::default()]);
        assert_eq!(engine.next_ended(), Some(8));
        assert_eq!((engine.next_ended(), engine.now()), (Some(7), 6.0));
        assert_eq!(engine.next_ended(), None);
    }
}
