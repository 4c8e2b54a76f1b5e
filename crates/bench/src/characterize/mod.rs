//! Published experiments, fitted to a machine, as a report.
//!
//! Whoever calls this has a [`Generator`] that puts load on a directory; [`measure`] runs all
//! experiments through it, and [`files`] are page, results and table.

mod commands;
mod csv;
mod page;

use crate::draw::{Unit, name};
use crate::profiles::{Figure, Host, Profile, Quantity, fitted, largest_scale, profile, profiles};
use crate::text::{digits, size};
use crate::{Experiment, Measured, Results, binding_of, exceeded};
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// All that a page tells.
pub struct Report {
    /// What was run.
    pub profile: Profile,
    /// 1: as published.
    pub scale: f64,
    /// How often each experiment was run.
    pub iterations: u32,
    /// The directory that was measured.
    pub place: String,
    /// Copies that are kept of each byte there.
    pub copies: u32,
    /// In the order of the profile.
    pub parts: Vec<Part>,
    /// What is measured is put here at the end.
    pub results: Results,
    /// Other systems.
    pub beside: Vec<Results>,
}

/// A figure, and what was measured for it.
pub struct Part {
    /// What belongs together.
    pub figure: Figure,
    /// What has come of it, so far.
    pub measured: Vec<Measured>,
}

/// Puts load on a directory.
pub trait Generator {
    /// One experiment, so often: a figure for each of its operations, with the runs that were
    /// complete, and what a reader has to know.
    fn measure(&self, experiment: &Experiment, iterations: u32) -> Result<(Vec<Measured>, Vec<String>)>;
    /// Whether it is to end.
    fn is_over(&self) -> bool;
}

/// The profile of a name.
///
/// Errors: none of that name; the hint has those there are.
pub fn find(name: &str) -> Result<Profile> {
    profile(name).ok_or_else(|| {
        let known: Vec<&str> = profiles().iter().map(|profile| profile.name).collect();
        Error::new(Errno::EINVAL, format!("no profile {name:?}"))
            .hint(format!("there are {}", known.join(", ")))
    })
}

/// The scale, and figures at it; without a scale the largest that fits.
///
/// Errors: one that doesn't fit, with the largest that does.
pub fn figures(profile: &Profile, scale: Option<f64>, host: &Host) -> Result<(f64, Vec<Figure>)> {
    // Without any that fits, the published sizes tell what is missing.
    let scale = scale.or_else(|| largest_scale(profile, host)).unwrap_or(1.0);
    Ok((
        scale,
        fitted(profile, scale, host)
            .map_err(|refusal| Error::new(Errno::EINVAL, refusal.to_string()).hint(refusal.hint()))?,
    ))
}

/// Runs everything; stops where the generator says so, and goes on after experiments that fail.
pub fn measure(report: &mut Report, generator: &dyn Generator, tell: &dyn Fn(String)) {
    let total: usize = report.parts.iter().map(|part| part.figure.experiments.len()).sum();
    let (mut done, began) = (0, Instant::now());
    let (mut failures, mut told) = (Vec::new(), Vec::new());
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
                    tell(progress(part.figure.quantity, experiment, &measured, (done, total), left));
                    let what = format!("{}, {} threads", part.figure.title, experiment.threads());
                    told.extend(notes.into_iter().map(|note| format!("{what}: {note}")));
                    part.measured.extend(measured.into_iter().filter(|of| !of.runs.is_empty()));
                }
                Err(error) if generator.is_over() && error.errno == Errno::EINTR => {}
                Err(error) => {
                    let failure =
                        format!("{}, {} threads: {}", part.figure.title, experiment.threads(), error.message);
                    tell(format!("[{done}/{total}] {failure}\n"));
                    failures.push(failure);
                }
            }
        }
    }
    let results = &mut report.results;
    results.measured = report.parts.iter().flat_map(|part| part.measured.clone()).collect();
    if generator.is_over() {
        results.notes.push(format!(
            "ended by a signal after {done} of {total} experiments: figures lack what was not measured"
        ));
    }
    results.notes.extend(exceeded(results.measured.iter().filter_map(|one| one.binding.as_ref())));
    results.notes.extend(report.parts.iter().filter_map(|part| left_out(&part.figure)));
    results.notes.extend(told);
    results.notes.extend(failures.into_iter().map(|failure: String| format!("not measured: {failure}")));
    if report.profile.is_small {
        let note = "the files are small on purpose, so that it ends soon: caches of servers and drives may answer, and the plateau of a large machine isn't reached";
        results.notes.push(note.into());
    }
    if results.ceilings.is_empty() {
        results.notes.push(format!("ceilings {}", page::NOT_MEASURED));
    }
}

/// What a reader misses in a figure.
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

/// A line for each experiment.
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
        format!("{} {rate}", name(of.operation))
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

/// Names and contents of the report's files, the page last.
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

/// What would be run.
pub fn listed(profile: &Profile, scale: f64, figures: &[Figure], place: &str, iterations: u32) -> String {
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
