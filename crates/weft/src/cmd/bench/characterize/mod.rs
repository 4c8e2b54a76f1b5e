//! `weft bench characterize`: published experiments, fitted to this machine, as a report.

mod commands;
mod csv;
mod host;
mod page;

use super::draw::{self, Unit, digits, name};
use super::read::read;
use crate::cli::CharacterizeArgs;
use crate::output::{os_error, print, print_json};
use crate::size::format_size;
use bench::profiles::{Figure, Host, Profile, Quantity, Refusal, fitted, largest_scale, profile, profiles};
use bench::{Experiment, FORMAT, Machine, Measured, Results};
use std::path::Path;
use std::time::{Duration, Instant};
use types::{Errno, Error, Result};

/// All that a page tells.
struct Report {
    profile: Profile,
    scale: f64,
    iterations: u32,
    /// The directory that was measured.
    place: String,
    /// Copies that are kept of each byte there.
    copies: u32,
    parts: Vec<Part>,
    /// What is measured is put here at the end.
    results: Results,
    /// Other systems.
    beside: Vec<Results>,
}

/// A figure, and what was measured for it.
struct Part {
    figure: Figure,
    measured: Vec<Measured>,
}

/// Puts load on a directory.
trait Generator {
    /// One experiment, so often; a figure for each of its operations, with the runs that were complete.
    fn measure(&self, experiment: &Experiment, iterations: u32) -> Result<Vec<Measured>>;
    /// Whether it is to end.
    fn is_over(&self) -> bool;
}

/// Characterizes.
pub fn run(_args: &CharacterizeArgs) -> Result<()> {
    Ok(())
}

fn refused(refusal: &Refusal) -> Error {
    Error::new(Errno::EINVAL, refusal.to_string()).hint(refusal.hint())
}

fn find(name: &str) -> Result<Profile> {
    profile(name).ok_or_else(|| {
        let known: Vec<&str> = profiles().iter().map(|profile| profile.name).collect();
        Error::new(Errno::EINVAL, format!("no profile {name:?}"))
            .hint(format!("there are {}", known.join(", ")))
    })
}

/// The scale, and figures at it.
fn figures(profile: &Profile, scale: Option<f64>, host: &Host) -> Result<(f64, Vec<Figure>)> {
    // Without any that fits, the published sizes tell what is missing.
    let scale = scale.or_else(|| largest_scale(profile, host)).unwrap_or(1.0);
    Ok((scale, fitted(profile, scale, host).map_err(|refusal| refused(&refusal))?))
}

/// Runs everything; stops where the generator says so, and goes on after experiments that fail.
fn measure(report: &mut Report, generator: &dyn Generator, tell: &dyn Fn(String)) {
    let total: usize = report.parts.iter().map(|part| part.figure.experiments.len()).sum();
    let (mut done, began) = (0, Instant::now());
    let mut failures: Vec<String> = Vec::new();
    for part in &mut report.parts {
        for experiment in &part.figure.experiments {
            if generator.is_over() {
                break;
            }
            let measured = generator.measure(experiment, report.iterations);
            done += 1;
            let left = began.elapsed().mul_f64((total - done) as f64 / done as f64);
            match measured {
                Ok(measured) => {
                    tell(progress(part.figure.quantity, experiment, &measured, (done, total), left));
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
    results.notes.extend(failures.into_iter().map(|failure| format!("not measured: {failure}")));
    if report.profile.is_small {
        let note = "the files are small on purpose, so that it ends soon: caches of servers and drives may answer, and the plateau of a large machine isn't reached";
        results.notes.push(note.into());
    }
    if results.ceilings.is_empty() {
        results.notes.push(format!("ceilings {}", page::NOT_MEASURED));
    }
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
        format_size(experiment.record_bytes()),
        experiment.threads(),
        rates.join(", "),
        unit.name
    )
}

/// Writes page, results and table.
fn write(report: &Report, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| os_error(folder.display(), &e))?;
    let json = serde_json::to_string_pretty(&report.results)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the results can't be written as JSON: {e}")))?;
    // The page last: what it is made of is there when it fails.
    let put = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|e| os_error(file.display(), &e))
    };
    put("results.json", json + "\n")?;
    put("results.csv", csv::csv(&report.results))?;
    put("index.html", page::page(report)?)
}

/// What would be run.
fn listed(profile: &Profile, scale: f64, figures: &[Figure], place: &str, iterations: u32) -> String {
    let mut text = format!("profile {}, scale {scale}\n", profile.name);
    for figure in figures {
        text += &format!("\n{}\n", figure.title);
        for experiment in &figure.experiments {
            text += &format!("  {}\n", commands::command(experiment, place, iterations));
        }
    }
    text
}

#[cfg(test)]
mod tests;
