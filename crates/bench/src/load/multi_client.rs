//! Loads that several clients generate together: their ranks, and the merge of their results.
//!
//! Each client runs its share by [`super::run`], with a [`Observer`](super::Observer) that knows
//! its [`ClientRank`] and waits for the others before each phase. Threads are numbered across all
//! clients. With several clients, none reads the files that it has written itself.

use super::{Histogram, LoadResult};
use crate::results::{Measured, Run};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use types::{Errno, Error};

/// Rank of one client in a load of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientRank {
    /// Its number, from 0.
    pub client: u32,
    /// Number of clients.
    pub clients: u32,
    /// Id of the load, the same for all clients.
    pub load: u64,
}

impl ClientRank {
    /// The only client.
    pub const SINGLE: ClientRank = ClientRank { client: 0, clients: 1, load: 0 };

    /// Returns the directory that all clients of a load share.
    pub fn folder(self, place: &Path) -> PathBuf {
        place.join(format!("weft-bench-{:016x}", self.load))
    }

    /// Returns the global number of one of this client's threads; each client has `each` threads.
    pub(super) fn thread(self, own: u32, each: u32) -> u32 {
        self.client * each + own
    }

    /// Returns the threads of all clients.
    pub(super) fn threads(self, each: u32) -> u32 {
        self.clients * each
    }

    /// Returns the thread whose files a thread reads: one of the next client, or the next thread if
    /// there is only one client.
    pub(super) fn next(self, thread: u32, each: u32) -> u32 {
        let step = if self.clients > 1 { each } else { 1 };
        (thread + step) % self.threads(each)
    }
}

/// Final report of one client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    measured: Vec<Measured>,
    histograms: Vec<Vec<Histogram>>,
    notes: Vec<String>,
    is_stopped: bool,
    /// Number and text of an error.
    failure: Option<(i32, String)>,
}

impl From<LoadResult> for ClientReport {
    fn from(loaded: LoadResult) -> ClientReport {
        let LoadResult { measured, histograms, notes, is_stopped, failure } = loaded;
        ClientReport { measured, histograms, notes, is_stopped, failure: failure.map(errno_and_text) }
    }
}

impl From<Error> for ClientReport {
    fn from(failure: Error) -> ClientReport {
        ClientReport { failure: Some(errno_and_text(failure)), ..ClientReport::default() }
    }
}

fn errno_and_text(failure: Error) -> (i32, String) {
    let text = if failure.hint.is_empty() {
        failure.message.to_string()
    } else {
        format!("{}; {}", failure.message, failure.hint)
    };
    (failure.errno.number(), text)
}

impl ClientReport {
    /// Returns whether the load ran to its end.
    pub fn is_whole(&self) -> bool {
        !self.is_stopped && self.failure.is_none()
    }
}

/// Merges the reports of a load's clients, given by name. A run counts when all clients have done
/// it: operations and bytes are added, and its duration is that of the slowest client. Processor
/// time is that of all clients' machines.
pub fn merge_reports(reports: Vec<(String, ClientReport)>) -> LoadResult {
    let mut together = LoadResult::default();
    if let Some((_, first)) = reports.first() {
        for index in 0..first.measured.len() {
            together.measured.push(figure(&reports, index));
        }
    }
    for (name, one) in reports {
        together.is_stopped |= one.is_stopped;
        together.notes.extend(one.notes.into_iter().map(|note| format!("{name}: {note}")));
        if let (None, Some((errno, text))) = (&together.failure, one.failure) {
            together.failure = Some(Error::new(Errno::Number(errno), format!("{name}: {text}")));
        }
    }
    together
}

fn figure(reports: &[(String, ClientReport)], index: usize) -> Measured {
    let those =
        || reports.iter().filter_map(|(_, one)| one.measured.get(index).zip(one.histograms.get(index)));
    let mut measured = reports[0].1.measured[index].clone();
    let all_report = those().count() == reports.len();
    let runs = those().map(|(one, _)| one.runs.len()).min().filter(|_| all_report).unwrap_or(0);
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
