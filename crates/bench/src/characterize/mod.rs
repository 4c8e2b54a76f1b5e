//! Runs published experiments, fitted to a machine, and reports them.
//!
//! The caller provides a [`Generator`] that puts load on a directory; [`measure`] runs all
//! experiments through it, and [`files`] returns page, results and table.

mod commands;
mod csv;
mod page;

use crate::figure_parts::{Unit, display_name};
use crate::profiles::{Figure, Host, Profile, Quantity, fitted, largest_scale, profile, profiles};
use crate::text::{digits, size};
use crate::{Experiment, Measured, Results, binding_of, exceeded};
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// Content of a page.
pub struct Report {
    /// The profile.
    pub profile: Profile,
    /// 1: as published.
    pub scale: f64,
    /// Repetitions of each experiment.
    pub iterations: u32,
    /// The measured directory.
    pub place: String,
    /// Replicas of each byte there.
    pub copies: u32,
    /// In the order of the profile.
    pub parts: Vec<Part>,
    /// Results; [`measure`] adds the measurements at its end.
    pub results: Results,
    /// Results of other systems.
    pub beside: Vec<Results>,
}

/// A figure with its measurements.
pub struct Part {
    /// The figure.
    pub figure: Figure,
    /// Measurements so far.
    pub measured: Vec<Measured>,
}

/// Puts load on a directory.
pub trait Generator {
    /// Runs one experiment `iterations` times. Returns a measurement for each of its operations,
    /// with the complete runs, and notes for the reader.
    fn measure(&self, experiment: &Experiment, iterations: u32) -> Result<(Vec<Measured>, Vec<String>)>;
    /// Returns whether to stop.
    fn is_over(&self) -> bool;
}

/// Returns the profile with this name.
///
/// Errors: an unknown name; the hint lists the known ones.
pub fn find(name: &str) -> Result<Profile> {
    profile(name).ok_or_else(|| {
        let known: Vec<&str> = profiles().iter().map(|profile| profile.name).collect();
        Error::new(Errno::EINVAL, format!("no profile {name:?}"))
            .hint(format!("known profiles: {}", known.join(", ")))
    })
}

/// Returns the scale, and the figures at it; without a scale, the largest that fits.
///
/// Errors: a scale that doesn't fit, with the largest that does.
pub fn figures(profile: &Profile, scale: Option<f64>, host: &Host) -> Result<(f64, Vec<Figure>)> {
    // If none fits, the error for the published sizes shows what is missing.
    let scale = scale.or_else(|| largest_scale(profile, host)).unwrap_or(1.0);
    Ok((
        scale,
        fitted(profile, scale, host)
            .map_err(|refusal| Error::new(Errno::EINVAL, refusal.to_string()).hint(refusal.hint()))?,
    ))
}

/// Runs everything; stops when the generator requests it, and continues after experiments that
/// fail.
pub fn measure(report: &mut Report, generator: &dyn Generator, print_progress: &dyn Fn(String)) {
    let total: usize = report.parts.iter().map(|part| part.figure.experiments.len()).sum();
    let (mut done, began) = (0, Instant::now());
    let (mut failures, mut measurement_notes) = (Vec::new(), Vec::new());
    for part in &mut report.parts {
        for experiment in &part.figure.experiments {
            if generator.is_over() {
                break;
            }
            let measured = generator.measure(experiment, report.iterations);
            done += 1;
            let left = began.elapsed().mul_f64((total - done) as f64 / done as f64);
            match measured {
                Ok((mut measured, notes)) => {
                    for of in &mut measured {
                        let (ceilings, cores) = (&report.results.ceilings, report.results.machine.cores);
                        of.binding = binding_of(ceilings, cores, of, experiment.access(), report.copies);
                    }
                    print_progress(progress(
                        part.figure.quantity,
                        experiment,
                        &measured,
                        (done, total),
                        left,
                    ));
                    let what = format!("{}, {} threads", part.figure.title, experiment.threads());
                    measurement_notes.extend(notes.into_iter().map(|note| format!("{what}: {note}")));
                    part.measured.extend(measured.into_iter().filter(|of| !of.runs.is_empty()));
                }
                Err(error) if generator.is_over() && error.errno == Errno::EINTR => {}
                Err(error) => {
                    let failure =
                        format!("{}, {} threads: {}", part.figure.title, experiment.threads(), error.message);
                    print_progress(format!("[{done}/{total}] {failure}\n"));
                    failures.push(failure);
                }
            }
        }
    }
    let results = &mut report.results;
    results.measured = report.parts.iter().flat_map(|part| part.measured.clone()).collect();
    if generator.is_over() {
        results
            .notes
            .push(format!("ended by a signal after {done} of {total} experiments: figures are incomplete"));
    }
    results.notes.extend(exceeded(results.measured.iter().filter_map(|one| one.binding.as_ref())));
    results.notes.extend(report.parts.iter().filter_map(|part| left_out(&part.figure)));
    results.notes.extend(measurement_notes);
    results.notes.extend(failures.into_iter().map(|failure: String| format!("not measured: {failure}")));
    if report.profile.is_small {
        let note = "the files are small on purpose, to keep the run short: caches of servers and drives may answer, and the plateau of a large machine isn't reached";
        results.notes.push(note.into());
    }
    if results.ceilings.is_empty() {
        results.notes.push(format!("ceilings {}", page::NOT_MEASURED));
    }
}

/// Describes thread counts that are missing in a figure.
fn left_out(figure: &Figure) -> Option<String> {
    let counts: Vec<String> = figure.left_out.iter().map(u32::to_string).collect();
    (!counts.is_empty()).then(|| {
        format!(
            "{}: {} threads are left out: at this scale a thread would have less than a record or file, or transfers would take more than a quarter of the memory",
            figure.title,
            counts.join(", ")
        )
    })
}

/// Returns the progress line of an experiment.
fn progress(
    quantity: Quantity,
    experiment: &Experiment,
    measured: &[Measured],
    done: (usize, usize),
    left: Duration,
) -> String {
    let unit = Unit::of(quantity == Quantity::Bytes, measured);
    let rate = |of: &Measured| {
        let rate = unit.rates(of).map_or("nothing".into(), |rate| digits(rate.0));
        format!("{} {rate}", display_name(of.operation))
    };
    let rates: Vec<String> = measured.iter().map(rate).collect();
    let depth = if experiment.queue_depth() > 1 {
        format!(", depth {}", experiment.queue_depth())
    } else {
        String::new()
    };
    let left = match left.as_secs() {
        0 => String::new(),
        seconds if seconds < 120 => format!("; about {seconds} s left"),
        seconds => format!("; about {} min left", seconds / 60),
    };
    format!(
        "[{}/{}] {}, {}, {} threads{depth}: {} {}{left}\n",
        done.0,
        done.1,
        experiment.name(),
        size(experiment.record_bytes()),
        experiment.threads(),
        rates.join(", "),
        unit.name
    )
}

/// Returns names and contents of the report's files, the page last.
///
/// Errors: a figure with a number that its axis can't show.
pub fn files(report: &Report) -> Result<[(&'static str, String); 3]> {
    let json = serde_json::to_string_pretty(&report.results)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the results can't be written as JSON: {e}")))?;
    Ok([
        ("results.json", json + "\n"),
        ("results.csv", csv::csv(&report.results)),
        ("index.html", page::page(report)?),
    ])
}

/// Lists the commands that would be run.
pub fn list_commands(
    profile: &Profile,
    scale: f64,
    figures: &[Figure],
    place: &str,
    iterations: u32,
) -> String {
    let mut text = format!("profile {}, scale {scale}\n", profile.name);
    for figure in figures {
        text += &format!("\n{}\n", figure.title);
        for experiment in &figure.experiments {
            text += &format!("  {}\n", commands::command(experiment, place, iterations));
        }
        if let Some(note) = left_out(figure) {
            text += &format!("  {note}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests;
