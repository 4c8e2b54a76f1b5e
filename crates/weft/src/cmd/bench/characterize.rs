//! `weft bench characterize`: published experiments, fitted to this machine, as a report.

use super::read::read;
use crate::cli::CharacterizeArgs;
use crate::cmd::entry_info;
use crate::output::{os_error, print, print_json};
use bench::characterize::{Generator, Part, Report, figures, files, find, listed, measure};
use bench::load::{self, Progress, Watch};
use bench::{Experiment, FORMAT, Machine, Measured, Results, host, rfc3339};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use types::{Errno, Error, Result};

/// Characterizes.
pub fn run(args: &CharacterizeArgs) -> Result<()> {
    let profile = find(&args.profile)?;
    let beside = args.beside.iter().map(|file| read(file)).collect::<Result<Vec<Results>>>()?;
    let machine = load::machine(&args.place);
    let room =
        host::host(&args.place, machine.memory_bytes).map_err(|e| os_error(args.place.display(), &e))?;
    let (scale, figures) = figures(&profile, args.scale, &room)?;
    let place = args.place.display().to_string();
    if args.list {
        print(&listed(&profile, scale, &figures, &place, args.iterations));
        return Ok(());
    }
    // What can't be written to is told before the load, not after it.
    std::fs::create_dir_all(&args.out).map_err(|e| os_error(args.out.display(), &e))?;
    let mut report = Report {
        profile,
        scale,
        iterations: args.iterations,
        place,
        copies: copies(&args.place),
        parts: figures.into_iter().map(|figure| Part { figure, measured: Vec::new() }).collect(),
        results: empty(machine),
        beside,
    };
    let load = Load { place: &args.place, stop: stop_by_signals()?, shown: std::io::stderr().is_terminal() };
    measure(&mut report, &load, &|line| tell(&line));
    for (name, text) in files(&report)? {
        let file = args.out.join(name);
        std::fs::write(&file, text).map_err(|e| os_error(file.display(), &e))?;
    }
    if args.json {
        print_json(&report.results)?;
    } else {
        print(&format!("report: {}\n", args.out.join("index.html").display()));
    }
    ended(&report, load.is_over(), &args.out)
}

/// The load of this process on a directory.
struct Load<'a> {
    place: &'a Path,
    stop: Arc<AtomicBool>,
    shown: bool,
}

impl Watch for Load<'_> {
    fn progress(&self, progress: &Progress) {
        if self.shown {
            let share = (progress.share * 100.0).round();
            tell(&format!(
                "\r\x1b[K{} ({} of {}): {share} %",
                progress.what, progress.phase, progress.phases
            ));
        }
    }

    fn is_stopped(&self) -> bool {
        self.is_over()
    }
}

impl Generator for Load<'_> {
    fn measure(&self, experiment: &Experiment, iterations: u32) -> Result<(Vec<Measured>, Vec<String>)> {
        let loaded = load::run(experiment, self.place, iterations, self);
        if self.shown {
            tell("\r\x1b[K");
        }
        loaded.map(|loaded| (loaded.measured, loaded.notes))
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn tell(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Set by the first signal; the second one ends the command at once.
fn stop_by_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let caught = signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        caught.map_err(|e| os_error("can't catch signals", &e))?;
    }
    Ok(stop)
}

fn empty(mut machine: Machine) -> Results {
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

/// Copies that new files in a directory have; 1 elsewhere than on weft.
fn copies(place: &Path) -> u32 {
    let scheme = entry_info::describe(place).ok().map(|value| value["pattern"]["scheme"].clone());
    let count = scheme.and_then(|scheme| scheme.as_str()?.strip_prefix("mirror:")?.parse().ok());
    count.unwrap_or(1)
}

/// Nothing measured, or an end in the middle, is a failure; the report is there all the same.
fn ended(report: &Report, is_over: bool, out: &Path) -> Result<()> {
    let report_is = format!("the report in {} has what was measured", out.display());
    if is_over {
        return Err(Error::new(Errno::EINTR, "ended by a signal before the end").hint(report_is));
    }
    if report.results.measured.is_empty() {
        let first = report.results.notes.first().cloned().unwrap_or_default();
        return Err(Error::new(Errno::EIO, format!("nothing could be measured: {first}")).hint(report_is));
    }
    Ok(())
}
