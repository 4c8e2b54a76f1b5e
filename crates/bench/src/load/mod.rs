//! The load: what threads do to a directory by ordinary system calls, and how long that takes.
//!
//! Each operation of an experiment is a phase; its threads open what they need, meet at a barrier, and are timed from the first begin to the last end. A write's time
//! includes its fsync. Everything is below a directory of its own, which is removed however the load ends.

mod buffer;
mod content;
mod folder;
mod histogram;
mod io;
mod machine;
mod meta;
mod phase;
mod refuse;
mod ring;

pub use histogram::Histogram;
pub use io::null_overhead_ns;
pub use machine::machine;

use crate::experiment::{Caching, Experiment, Operation};
use crate::results::{Measured, Run};
use folder::Folder;
use std::path::Path;
use std::time::Duration;
use types::Result;

/// Whoever looks on: a progress line, Ctrl-C, a test.
pub trait Watch: Sync {
    /// Called some times a second.
    fn progress(&self, _progress: &Progress) {}
    /// Whether to end: asked some times a second; the phase under way isn't reported then.
    fn is_stopped(&self) -> bool {
        false
    }
    /// Before each measured phase, when the files are as it finds them, with the directory that holds them.
    fn before(&self, _operation: Operation, _folder: &Path) {}
}

/// Nobody looks on.
pub struct Unwatched;

impl Watch for Unwatched {}

/// How far the load is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What is done: `write`, or `making files` where that isn't measured.
    pub what: String,
    /// Its number among the phases, from 1.
    pub phase: u32,
    /// How many there are, all iterations together.
    pub phases: u32,
    /// Share of this phase that is done, 0 to 1.
    pub share: f64,
    /// What this phase will still take, if it goes on like that.
    pub left: Option<Duration>,
}

/// What came of a load.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Loaded {
    /// One for each operation, in order; those without a run weren't reached.
    pub measured: Vec<Measured>,
    /// What a reader has to know: first failures, wrong bytes, that it was stopped.
    pub notes: Vec<String>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

/// Puts the load of an experiment on a directory, so many times. Refuses what can't be done before anything is written; an error of preparing, of more than some
/// operations or of the clean-up ends all. The files are removed in any case.
pub fn run(experiment: &Experiment, place: &Path, iterations: u32, watch: &dyn Watch) -> Result<Loaded> {
    refuse::check(experiment, place)?;
    let operations = experiment.operations();
    let mut loaded = Loaded {
        measured: operations.iter().map(|one| experiment.measured(*one)).collect(),
        ..Loaded::default()
    };
    let phases = iterations * operations.len() as u32;
    for iteration in 0..iterations {
        let folder = Folder::make(place)?;
        let mut stage = Stage {
            folder: folder.path(),
            watch,
            seed: u64::from(iteration),
            phase: iteration * operations.len() as u32,
            phases,
            loaded: &mut loaded,
        };
        match experiment {
            Experiment::Io(io) => io::iterate(io, &mut stage)?,
            Experiment::Meta(meta) => meta::iterate(meta, &mut stage)?,
        }
        folder.remove()?;
        if loaded.is_stopped {
            break;
        }
    }
    Ok(loaded)
}

/// One iteration.
struct Stage<'a> {
    folder: &'a Path,
    watch: &'a dyn Watch,
    seed: u64,
    /// Phases that are over.
    phase: u32,
    phases: u32,
    loaded: &'a mut Loaded,
}

impl<'a> Stage<'a> {
    fn plan(&self, what: &str, threads: u32, operations: u64, deadline: Option<Duration>) -> phase::Plan<'a> {
        phase::Plan {
            watch: self.watch,
            what: what.to_string(),
            number: self.phase + 1,
            of: self.phases,
            threads,
            deadline,
            operations,
        }
    }

    /// Keeps what a measured phase told; whether to go on.
    fn keep(&mut self, index: usize, outcome: phase::Outcome) -> bool {
        self.phase += 1;
        if let Some(first) = outcome.first {
            self.loaded.notes.push(first);
        }
        if outcome.is_stopped {
            return self.stop();
        }
        self.loaded.measured[index].runs.push(outcome.run);
        !self.watch.is_stopped() || self.stop()
    }

    fn stop(&mut self) -> bool {
        self.loaded.is_stopped = true;
        self.loaded.notes.push("stopped before the end: what was under way isn't reported".to_string());
        false
    }

    /// Empties caches before a phase that reads, and notes where they answer all the same.
    fn make_cold(&mut self, index: usize, caching: Caching) {
        let is_dropped = caching != Caching::Warm && machine::drop_caches();
        let measured = &mut self.loaded.measured[index];
        let (total, memory) = (measured.total_bytes, machine::memory_bytes());
        measured.cached = match caching {
            Caching::Warm => Some("caches were left as they were (warm)".to_string()),
            _ if is_dropped || total >= 2 * memory => None,
            _ => Some(format!(
                "the servers' caches may have answered: only root can drop them, and {total} bytes are less than twice the memory ({memory})"
            )),
        };
    }
}

impl Experiment {
    fn measured(&self, operation: Operation) -> Measured {
        let runs: Vec<Run> = Vec::new();
        match self {
            Experiment::Io(io) => Measured {
                experiment: io.name.clone(),
                operation,
                clients: 1,
                threads: io.threads,
                record_bytes: io.record_bytes,
                total_bytes: u64::from(io.threads) * io.thread_bytes,
                queue_depth: io.queue_depth,
                sharing: Some(io.sharing),
                caching: io.caching,
                runs,
                cached: None,
            },
            Experiment::Meta(meta) => Measured {
                experiment: meta.name.clone(),
                operation,
                clients: 1,
                threads: meta.threads,
                record_bytes: meta.file_bytes,
                total_bytes: u64::from(meta.threads) * meta.thread_files * meta.file_bytes,
                queue_depth: 1,
                sharing: None,
                caching: meta.caching,
                runs,
                cached: None,
            },
        }
    }
}
