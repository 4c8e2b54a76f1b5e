//! Several clients that make one load together: which of them does what, and what all of them have
//! measured.
//!
//! Each client makes its share by [`super::run`], with a [`Watch`](super::Watch) that knows its
//! [`Seat`] and waits for the others before each phase. Threads are numbered through all clients.
//! Nobody reads what its own client has written, where there are several.

use super::{Histogram, Loaded};
use crate::results::{Measured, Run};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use types::{Errno, Error};

/// The place of one client among those that make a load together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seat {
    /// Its number, from 0.
    pub client: u32,
    /// How many there are.
    pub clients: u32,
    /// What all of them call this load.
    pub load: u64,
}

impl Seat {
    /// The only client.
    pub const ALONE: Seat = Seat { client: 0, clients: 1, load: 0 };

    /// The directory in which all clients of a load work.
    pub fn folder(self, place: &Path) -> PathBuf {
        place.join(format!("weft-bench-{:016x}", self.load))
    }

    /// The number among all threads of one of this client's, of which each client has so many.
    pub(super) fn thread(self, own: u32, each: u32) -> u32 {
        self.client * each + own
    }

    /// Threads of all clients.
    pub(super) fn threads(self, each: u32) -> u32 {
        self.clients * each
    }

    /// The thread whose things another one looks at: one of the next client; the next one where
    /// there is one client only.
    pub(super) fn next(self, thread: u32, each: u32) -> u32 {
        let step = if self.clients > 1 { each } else { 1 };
        (thread + step) % self.threads(each)
    }
}

/// What one client has to tell in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    measured: Vec<Measured>,
    histograms: Vec<Vec<Histogram>>,
    notes: Vec<String>,
    is_stopped: bool,
    /// Number and words of an error.
    failure: Option<(i32, String)>,
}

impl From<Loaded> for Told {
    fn from(loaded: Loaded) -> Told {
        let Loaded { measured, histograms, notes, is_stopped, failure } = loaded;
        Told { measured, histograms, notes, is_stopped, failure: failure.map(words) }
    }
}

impl From<Error> for Told {
    fn from(failure: Error) -> Told {
        Told { failure: Some(words(failure)), ..Told::default() }
    }
}

fn words(failure: Error) -> (i32, String) {
    let text = if failure.hint.is_empty() {
        failure.message.to_string()
    } else {
        format!("{}; {}", failure.message, failure.hint)
    };
    (failure.errno.0, text)
}

impl Told {
    /// Whether it went to its end.
    pub fn is_whole(&self) -> bool {
        !self.is_stopped && self.failure.is_none()
    }
}

/// What the clients of a load, by their names, have measured together. A run counts when all of
/// them have done it: their operations and bytes are added up, and it took as long as the slowest
/// client took. Processor time is that of all clients' machines.
pub fn merged(told: Vec<(String, Told)>) -> Loaded {
    let mut together = Loaded::default();
    if let Some((_, first)) = told.first() {
        for index in 0..first.measured.len() {
            together.measured.push(figure(&told, index));
        }
    }
    for (name, one) in told {
        together.is_stopped |= one.is_stopped;
        together.notes.extend(one.notes.into_iter().map(|note| format!("{name}: {note}")));
        if let (None, Some((errno, text))) = (&together.failure, one.failure) {
            together.failure = Some(Error::new(Errno(errno), format!("{name}: {text}")));
        }
    }
    together
}

fn figure(told: &[(String, Told)], index: usize) -> Measured {
    let those = || told.iter().filter_map(|(_, one)| one.measured.get(index).zip(one.histograms.get(index)));
    let mut measured = told[0].1.measured[index].clone();
    let all_tell = those().count() == told.len();
    let runs = those().map(|(one, _)| one.runs.len()).min().filter(|_| all_tell).unwrap_or(0);
    measured.runs = (0..runs).map(|run| together(those(), run)).collect();
    let mut reasons: Vec<String> = those().filter_map(|(one, _)| one.cached.clone()).collect();
    reasons.dedup();
    measured.cached = (!reasons.is_empty()).then(|| reasons.join("; "));
    measured.generator_ns = those().filter_map(|(one, _)| one.generator_ns).reduce(f64::max);
    measured
}

fn together<'a>(those: impl Iterator<Item = (&'a Measured, &'a Vec<Histogram>)>, run: usize) -> Run {
    let mut all = Run {
        seconds: 0.0,
        operations: 0,
        bytes: 0,
        errors: 0,
        wrong_bytes: 0,
        latency: None,
        cpu_s: Some(0.0),
    };
    let mut took = Histogram::default();
    for (measured, histograms) in those {
        let one = &measured.runs[run];
        all.seconds = all.seconds.max(one.seconds);
        all.operations += one.operations;
        all.bytes += one.bytes;
        all.errors += one.errors;
        all.wrong_bytes += one.wrong_bytes;
        all.cpu_s = all.cpu_s.zip(one.cpu_s).map(|(sum, one)| sum + one);
        if let Some(histogram) = histograms.get(run) {
            took.merge(histogram);
        }
    }
    all.latency = took.latency();
    all
}
