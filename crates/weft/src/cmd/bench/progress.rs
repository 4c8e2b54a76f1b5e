//! Progress display during a load, and the signals that end it.

use crate::output::os_error;
use crate::progress::{self, Done};
use bench::characterize::Generator;
use bench::load::{self, Observer, Progress};
use bench::{Experiment, FORMAT, Machine, Measured, Results, host, rfc3339};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use types::Result;

/// The load of this process on a directory.
pub(super) struct ProgressDisplay<'a> {
    place: &'a Path,
    stop: Arc<AtomicBool>,
    /// Of the running load.
    shown: Mutex<Option<progress::Progress>>,
}

impl<'a> ProgressDisplay<'a> {
    /// Installs signal handlers: the first signal ends the load, the second one ends the command at
    /// once.
    pub(super) fn new(place: &'a Path) -> Result<ProgressDisplay<'a>> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let caught = signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
            caught.map_err(|e| os_error("can't catch signals", &e))?;
        }
        Ok(ProgressDisplay { place, stop, shown: Mutex::default() })
    }

    fn shown(&self) -> MutexGuard<'_, Option<progress::Progress>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clears the progress.
    pub(super) fn clear(&self) {
        *self.shown() = None;
    }
}

impl Observer for ProgressDisplay<'_> {
    fn progress(&self, progress: &Progress) {
        let Progress { what, phase, phases, share, .. } = progress;
        let what = format!("{what} ({phase} of {phases})");
        let mut shown = self.shown();
        let shown = shown.get_or_insert_with(|| progress::Progress::start_stoppable(&what));
        shown.update(what, Done::Share(*share));
    }

    fn is_stopped(&self) -> bool {
        self.is_over()
    }
}

impl Generator for ProgressDisplay<'_> {
    fn measure(&self, experiment: &Experiment, iterations: u32) -> Result<(Vec<Measured>, Vec<String>)> {
        let loaded = load::run(experiment, self.place, iterations, self);
        self.clear();
        let mut loaded = loaded?;
        match loaded.failure.take() {
            Some(failure) if loaded.measured.iter().all(|measured| measured.runs.is_empty()) => Err(failure),
            // Results before the failure count.
            Some(failure) => {
                loaded.notes.push(format!("ended by a failure: {failure}"));
                Ok((loaded.measured, loaded.notes))
            }
            None => Ok((loaded.measured, loaded.notes)),
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Returns results that start now, without measurements and ceilings.
pub(super) fn new_results(mut machine: Machine) -> Results {
    machine.tuning.extend(host::settings());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Results {
        weft_bench: FORMAT,
        system: format!("weft {}", env!("CARGO_PKG_VERSION")),
        began: rfc3339(now as i64),
        command: std::env::args().collect(),
        machine,
        ceilings: Vec::new(),
        measured: Vec::new(),
        notes: Vec::new(),
    }
}
