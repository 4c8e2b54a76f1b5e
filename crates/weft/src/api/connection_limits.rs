//! Limits on connections and on concurrent requests.
//!
//! A connection waits until its request has arrived and its caller is authenticated. Waiting
//! connections can't block other callers: at the limit per network or in total, the oldest one is
//! closed. A request then takes a slot, of which some are reserved for administrators.

use super::access::Rights;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most connections with unauthenticated callers. Each has a thread.
pub(super) const MAX_WAITING: usize = 32;

/// Most of them from one network. A browser or a program opens fewer at a time.
pub(super) const MAX_WAITING_PER_NETWORK: usize = 8;

/// Most concurrent requests. Each has a thread.
pub(super) const MAX_RUNNING: usize = 16;

/// Slots reserved for administrators, so that polling readers don't block them.
pub(super) const RESERVED_FOR_ADMINISTRATORS: usize = 4;

/// Identifies a caller: an IPv4 address, or the upper 64 bits of an IPv6 address, which name a
/// network in which a machine chooses its addresses freely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Network(IpAddr);

impl Network {
    pub(super) fn of(address: IpAddr) -> Network {
        match address.to_canonical() {
            IpAddr::V6(address) => Network(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address => Network(address),
        }
    }
}

/// Waiting connections, oldest first, each with its handle to close it.
pub(super) struct WaitingConnections<C> {
    all: Vec<(u64, Network, C)>,
    next: u64,
}

impl<C> Default for WaitingConnections<C> {
    fn default() -> WaitingConnections<C> {
        WaitingConnections { all: Vec::new(), next: 0 }
    }
}

impl<C> WaitingConnections<C> {
    /// Adds a connection. Returns its number, and the connection that is evicted for it, if any.
    pub(super) fn enter(&mut self, network: Network, connection: C) -> (u64, Option<C>) {
        let gone = self.eviction_candidate(network).map(|at| self.all.remove(at).2);
        let number = self.next;
        self.next += 1;
        self.all.push((number, network, connection));
        (number, gone)
    }

    /// Removes a connection. Returns whether it was still waiting.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        let before = self.all.len();
        self.all.retain(|(known, ..)| *known != number);
        self.all.len() < before
    }

    /// Returns which connection to evict before this network gets another: its own oldest if it is
    /// at its limit, else the oldest of the network with the most.
    fn eviction_candidate(&self, network: Network) -> Option<usize> {
        let count = |of: Network| self.all.iter().filter(|(_, other, _)| *other == of).count();
        let oldest = |of: Network| self.all.iter().position(|(_, other, _)| *other == of);
        if count(network) >= MAX_WAITING_PER_NETWORK {
            return oldest(network);
        }
        if self.all.len() < MAX_WAITING {
            return None;
        }
        let most = self.all.iter().map(|(_, other, _)| *other).max_by_key(|other| count(*other))?;
        oldest(most)
    }
}

/// Counts requests that are being executed.
#[derive(Default)]
pub(super) struct RunningRequests {
    all: AtomicUsize,
}

/// A request's slot, released on drop.
pub(super) struct RequestSlot<'a>(&'a RunningRequests);

impl RunningRequests {
    /// Returns a slot if one is free for a caller with these rights.
    pub(super) fn take(&self, rights: Rights) -> Option<RequestSlot<'_>> {
        let limit = match rights {
            Rights::Read => MAX_RUNNING - RESERVED_FOR_ADMINISTRATORS,
            Rights::Administrate => MAX_RUNNING,
        };
        let slot = RequestSlot(self);
        (self.all.fetch_add(1, Ordering::Relaxed) < limit).then_some(slot)
    }
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        self.0.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> Network {
        Network::of(address.parse().unwrap())
    }

    #[test]
    fn a_caller_with_many_connections_loses_its_own() {
        let mut waiting = WaitingConnections::default();
        let (loud, quiet) = (network("10.0.0.1"), network("10.0.0.2"));
        let (first, gone) = waiting.enter(quiet, 1000);
        assert_eq!(gone, None);
        let gone: Vec<u32> = (0..20).filter_map(|at| waiting.enter(loud, at).1).collect();
        assert_eq!(gone, (0..12).collect::<Vec<u32>>(), "its oldest, and nobody else's");
        assert!(waiting.leave(first), "the quiet one is still there");
        assert!(!waiting.leave(first));
    }

    #[test]
    fn the_network_with_the_most_connections_loses_its_oldest() {
        let mut waiting = WaitingConnections::default();
        let of = |at: usize| network(&format!("10.0.{at}.1"));
        // Two networks at their limit, and many with one connection each.
        for at in 0..MAX_WAITING_PER_NETWORK {
            assert_eq!((waiting.enter(of(0), at).1, waiting.enter(of(1), 100 + at).1), (None, None));
        }
        for at in 2..2 + MAX_WAITING - 2 * MAX_WAITING_PER_NETWORK {
            assert_eq!(waiting.enter(of(at), 1000 + at).1, None);
        }
        let gone: Vec<usize> = (0..4).filter_map(|at| waiting.enter(of(200 + at), 2000).1).collect();
        assert_eq!(gone.len(), 4);
        assert!(gone.iter().all(|gone| *gone < 200), "{gone:?}");
        assert!(waiting.all.len() <= MAX_WAITING);
    }

    #[test]
    fn a_network_is_an_address_or_64_bits() {
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_eq!(network("fd00::1:2:3:4"), network("fd00::ffff"));
        assert_ne!(network("fd00::1"), network("fd00:0:0:1::1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    #[test]
    fn readers_leave_slots_for_administrators() {
        let running = RunningRequests::default();
        let mut slots: Vec<RequestSlot<'_>> = std::iter::from_fn(|| running.take(Rights::Read)).collect();
        assert_eq!(slots.len(), MAX_RUNNING - RESERVED_FOR_ADMINISTRATORS);
        slots.extend(std::iter::from_fn(|| running.take(Rights::Administrate)));
        assert_eq!(slots.len(), MAX_RUNNING);
        slots.pop();
        assert!(running.take(Rights::Read).is_none());
        assert!(running.take(Rights::Administrate).is_some());
        drop(slots);
        assert!(running.take(Rights::Read).is_some());
    }
}
