//! The quick profile with real load, as small as possible.

use bench::characterize::{Generator, Part, Report, figures, files, find, measure};
use bench::load::{self, Observer};
use bench::profiles::Host;
use bench::{Experiment, FORMAT, Measured, Operation, Results};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Real load that is stopped when a number of experiments has begun.
struct Load<'a> {
    place: &'a Path,
    begun: AtomicUsize,
    ends_with: usize,
}

impl Observer for Load<'_> {
    fn is_stopped(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.ends_with
    }
}

impl Generator for Load<'_> {
    fn measure(
        &self,
        experiment: &Experiment,
        iterations: u32,
    ) -> types::Result<(Vec<Measured>, Vec<String>)> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        load::run(experiment, self.place, iterations, self).map(|loaded| (loaded.measured, loaded.notes))
    }

    fn is_over(&self) -> bool {
        self.is_stopped()
    }
}

fn run(place: &Path, ends_with: usize) -> Report {
    let host = Host { free_bytes: 1 << 40, memory_bytes: 64 << 30, drops_caches: false };
    let profile = find("quick").unwrap();
    // At most two threads, and phases of a few MiB.
    let (scale, mut figures) = figures(&profile, Some(1.0 / 16.0), &host).unwrap();
    // Random phases end by time. One point of them shows it; the others end with their bytes.
    for experiment in figures.iter_mut().flat_map(|figure| figure.experiments.iter_mut().skip(1)) {
        if let Experiment::Io(io) = experiment {
            io.seconds = None;
        }
    }
    let results = Results {
        weft_bench: FORMAT,
        system: "weft".into(),
        began: String::new(),
        command: Vec::new(),
        machine: load::machine(place),
        ceilings: Vec::new(),
        measured: Vec::new(),
        notes: Vec::new(),
    };
    let parts = figures.into_iter().map(|figure| Part { figure, measured: Vec::new() }).collect();
    let name = place.display().to_string();
    let mut report =
        Report { profile, scale, iterations: 1, place: name, copies: 1, parts, results, beside: Vec::new() };
    measure(&mut report, &Load { place, begun: AtomicUsize::new(0), ends_with }, &|_| ());
    report
}

#[test]
fn every_figure_is_measured_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), usize::MAX);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are removed");
    // A temporary directory in memory may not support direct transfers; a reported failure is
    // acceptable then.
    let failed = report.results.notes.iter().filter(|note| note.starts_with("not measured:")).count();
    for part in &report.parts {
        let wanted: usize =
            part.figure.experiments.iter().map(|experiment| experiment.operations().len()).sum();
        assert!(
            part.measured.len() == wanted || failed > 0,
            "{}: {:?}",
            part.figure.title,
            report.results.notes
        );
    }
    let files_made =
        report.results.measured.iter().find(|measured| measured.operation == Operation::Create).unwrap();
    assert!(files_made.ops_per_s().unwrap().0 > 0.0 && files_made.runs[0].errors == 0);
    let [.., (_, html)] = files(&report).unwrap();
    assert!(html.matches("<svg").count() >= 2);
}

#[test]
fn a_stop_leaves_no_files_and_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), 3);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are removed");
    assert!(
        report.results.notes.iter().any(|note| note.contains("ended by a signal")),
        "{:?}",
        report.results.notes
    );
    files(&report).unwrap();
}
