//! The load: what threads do to a directory by ordinary system calls, and how long that takes.
//!
//! Each operation of an experiment is a phase; its threads open what they need, meet at a barrier,
//! and are timed from the first begin to the last end. A write's time includes its fsync.
//! Everything is below a directory of its own, which is removed however the load ends. What was
//! measured before a failure is told with it.

mod buffer;
mod content;
mod cores;
mod folder;
mod histogram;
mod io;
mod kernel;
mod machine;
mod meta;
mod phase;
mod place;
mod refuse;
mod ring;
mod team;

pub use cores::Cores;
pub use histogram::Histogram;
pub use kernel::Kernel;
pub use machine::machine;
pub use place::{Place, Transfers};
pub use refuse::{check, check_for};
pub use team::{Seat, Told, merged};

use crate::experiment::{Caching, Experiment, Operation, Through};
use crate::results::{Measured, Run, median};
use folder::Folder;
use std::path::Path;
use std::time::Duration;
use types::{Error, Result};

/// Rounds of which the middle is what the generator takes for itself: another program may have had
/// the processor in one of them.
const NULL_ROUNDS: u32 = 5;

/// Whoever looks on: a progress line, Ctrl-C, a test.
pub trait Watch: Sync {
    /// Called some times a second.
    fn progress(&self, _progress: &Progress) {}
    /// Whether to end: asked many times a second; the phase under way isn't reported then.
    fn is_stopped(&self) -> bool {
        false
    }
    /// Which of the clients that make the load this one is.
    fn seat(&self) -> Seat {
        Seat::ALONE
    }
    /// Waits until all clients have come this far; false when that won't be any more, and nothing
    /// is to go on.
    fn meet(&self) -> bool {
        true
    }
    /// Before each measured phase, when the files are as it finds them, with the directory that
    /// holds them.
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
    /// How long the operations of each run took, in the order of the runs.
    pub histograms: Vec<Vec<Histogram>>,
    /// What a reader has to know: first failures, wrong bytes, that it was stopped.
    pub notes: Vec<String>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
    /// What ended it before its end: an error of preparing, of too many operations, of the
    /// clean-up. What was measured before is there.
    pub failure: Option<Error>,
}

/// Puts the load of an experiment on a directory, so many times, by system calls. The files are
/// removed in any case.
///
/// # Errors
/// What can't be done is refused before anything is written. What goes wrong later is in
/// [`Loaded::failure`].
pub fn run(experiment: &Experiment, dir: &Path, iterations: u32, watch: &dyn Watch) -> Result<Loaded> {
    run_through(&Kernel, experiment, dir, iterations, watch)
}

/// The same through another way to the same directory. Its own directory is made and removed by
/// system calls all the same.
///
/// # Errors
/// As of [`run`].
pub fn run_through(
    place: &impl Place,
    experiment: &Experiment,
    dir: &Path,
    iterations: u32,
    watch: &dyn Watch,
) -> Result<Loaded> {
    check(experiment, dir)?;
    let operations = experiment.operations();
    let figure = |one: &Operation| experiment.measured(*one, watch.seat(), place_of(place));
    let mut loaded = Loaded {
        measured: operations.iter().map(figure).collect(),
        histograms: vec![Vec::new(); operations.len()],
        ..Loaded::default()
    };
    for measured in &mut loaded.measured {
        measured.generator_ns = Some(null_overhead_ns(experiment, measured.operation)?);
    }
    for iteration in 0..iterations {
        loaded.failure = iterate(place, experiment, dir, (iteration, iterations), watch, &mut loaded).err();
        if loaded.failure.is_some() || loaded.is_stopped {
            break;
        }
    }
    Ok(loaded)
}

fn place_of<P: Place>(_: &P) -> Through {
    P::THROUGH
}

/// One of so many iterations, in a folder that is removed.
fn iterate(
    place: &impl Place,
    experiment: &Experiment,
    dir: &Path,
    (iteration, iterations): (u32, u32),
    watch: &dyn Watch,
    loaded: &mut Loaded,
) -> Result<()> {
    let seat = watch.seat();
    if iteration > 0 && seat == Seat::ALONE {
        // What the last one has removed may still be coming back.
        check(experiment, dir)?;
    }
    let folder = Folder::make(dir, seat, iteration)?;
    let operations = experiment.operations().len() as u32;
    let mut stage = Stage {
        folder: folder.path(),
        watch,
        seed: u64::from(iteration),
        phase: iteration * operations,
        phases: iterations * operations,
        loaded,
    };
    let outcome = match experiment {
        Experiment::Io(io) => io::iterate(io, place, &mut stage),
        Experiment::Meta(meta) => meta::iterate(meta, place, &mut stage),
    };
    if seat != Seat::ALONE && outcome.is_ok() && !stage.loaded.is_stopped && !watch.meet() {
        stage.stop();
    }
    match (outcome, folder.remove()) {
        (Err(error), Err(left)) => {
            // Both have to be known, and only one can end it.
            loaded.notes.push(left.to_string());
            Err(error)
        }
        (outcome, removed) => outcome.and(removed),
    }
}

/// What the generator itself spends on each operation, nanoseconds: the same loop (of one operation
/// at a time) against a target that does nothing. To be taken from latencies where it matters.
fn null_overhead_ns(experiment: &Experiment, operation: Operation) -> Result<f64> {
    let once = |_| match experiment {
        Experiment::Io(io) => io::null_overhead_ns(io, operation),
        Experiment::Meta(meta) => meta::null_overhead_ns(meta, operation),
    };
    let mut rounds = (0..NULL_ROUNDS).map(once).collect::<Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    // More digits would only look like knowledge.
    Ok(median(&rounds).unwrap_or_default().round())
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
        self.loaded.histograms[index].push(outcome.latency);
        let measured = &mut self.loaded.measured[index];
        let is_kept_back = measured.operation == Operation::Write && measured.caching != Caching::Direct;
        let own_bytes = measured.total_bytes / u64::from(measured.clients);
        let is_again = is_kept_back && outcome.run.bytes > own_bytes;
        measured.runs.push(outcome.run);
        if is_again {
            let reason = "records were written again in the client's cache before they were synced";
            self.note_cache(index, reason.to_string());
        }
        !self.watch.is_stopped() || self.stop()
    }

    fn stop(&mut self) -> bool {
        self.loaded.is_stopped = true;
        self.loaded.notes.push("stopped before the end: what was under way isn't reported".to_string());
        false
    }

    /// Empties caches before a phase that reads, and notes where they answer all the same.
    fn make_cold(&mut self, index: usize, caching: Caching) {
        let measured = &self.loaded.measured[index];
        let (total, memory) =
            (measured.total_bytes / u64::from(self.watch.seat().clients), machine::memory_bytes());
        let reads = !matches!(measured.operation, Operation::Write | Operation::Create);
        // Direct transfers of a device's file system pass all caches of this machine by; those of
        // others may come from a server on it, which has some.
        let is_past_all = || caching == Caching::Direct && machine::is_on_device(self.folder);
        let reason = match caching {
            Caching::Warm => "caches were left as they were (warm)".to_string(),
            _ if !reads || is_past_all() || machine::drop_caches() || total >= 2 * memory => return,
            _ => format!(
                "the servers' caches may have answered: only root can drop them, and {total} bytes are less than twice the memory ({memory})"
            ),
        };
        self.note_cache(index, reason);
    }

    /// Notes why a figure is a cache's; the reasons of all iterations are kept.
    fn note_cache(&mut self, index: usize, reason: String) {
        let cached = &mut self.loaded.measured[index].cached;
        match cached {
            Some(others) if others.contains(&reason) => {}
            Some(others) => *others += &format!("; {reason}"),
            None => *cached = Some(reason),
        }
    }
}

impl Experiment {
    fn measured(&self, operation: Operation, seat: Seat, through: Through) -> Measured {
        let clients = seat.clients;
        let runs: Vec<Run> = Vec::new();
        match self {
            Experiment::Io(io) => Measured {
                experiment: io.name.clone(),
                operation,
                clients,
                threads: seat.threads(io.threads),
                record_bytes: io.record_bytes,
                total_bytes: u64::from(seat.threads(io.threads)) * io.thread_bytes,
                queue_depth: io.queue_depth,
                sharing: Some(io.sharing),
                caching: io.caching,
                through,
                runs,
                cached: None,
                generator_ns: None,
                binding: None,
            },
            Experiment::Meta(meta) => Measured {
                experiment: meta.name.clone(),
                operation,
                clients,
                threads: seat.threads(meta.threads),
                record_bytes: meta.file_bytes,
                total_bytes: u64::from(seat.threads(meta.threads)) * meta.thread_files * meta.file_bytes,
                queue_depth: 1,
                sharing: None,
                caching: meta.caching,
                through,
                runs,
                cached: None,
                generator_ns: None,
                binding: None,
            },
        }
    }
}
