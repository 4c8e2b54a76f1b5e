//! Pending events in order of time, and the randomness that decides their times.

use super::HostId;
use super::disk::Disk;
use super::network::Packet;
use super::rng::Rng;
use super::stream::EndId;
use std::collections::BTreeMap;
use std::task::Waker;

/// Minimum and maximum duration, in nanoseconds.
pub(super) type DurationRange = (u64, u64);

/// The effect of a disk operation; returns the waker of its task. The number is the host's time of
/// day.
pub(super) type Effect = Box<dyn FnOnce(&mut Disk, u64) -> Option<Waker>>;

/// An event at a known time.
pub(super) enum Event {
    /// An operation of a host's disk completes.
    Disk(HostId, Effect),
    /// A packet arrives, unless it is held.
    Packet(Packet),
    /// Checks whether data that an end sent makes progress.
    Stall(EndId),
}

/// The world's clock, which hosts can't see, and all pending events.
pub(super) struct EventQueue {
    pub(super) rng: Rng,
    pub(super) clock_ns: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_number: u64,
}

impl EventQueue {
    pub(super) fn new(rng: Rng) -> EventQueue {
        EventQueue { rng, clock_ns: 0, events: BTreeMap::new(), next_number: 0 }
    }

    /// Schedules an event after a random time.
    pub(super) fn after(&mut self, span: DurationRange, event: Event) {
        let at = self.clock_ns + self.rng.between(span.0, span.1);
        self.at(at, event);
    }

    /// Schedules an event at a time.
    pub(super) fn at(&mut self, at: u64, event: Event) {
        let number = self.next_number;
        self.next_number += 1;
        self.events.insert((at, number), event);
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.events.first_key_value().map(|(key, _)| key.0)
    }

    /// The next event that is due by now, with its time and number.
    pub(super) fn take_due(&mut self) -> Option<(u64, u64, Event)> {
        let first = self.events.first_entry()?;
        let (at, number) = *first.key();
        (at <= self.clock_ns).then(|| (at, number, first.remove()))
    }

    /// Removes the operations in flight of a host's disk.
    pub(super) fn take_disk_operations(&mut self, host: HostId) -> Vec<Effect> {
        let (of_host, others): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|(_, event)| matches!(event, Event::Disk(of, _) if *of == host));
        self.events = others;
        let effect = |event| match event {
            Event::Disk(_, effect) => Some(effect),
            Event::Packet(_) | Event::Stall(_) => None,
        };
        of_host.into_values().filter_map(effect).collect()
    }
}
