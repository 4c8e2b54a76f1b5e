//! Fits a profile to a smaller machine: the same thread counts, and sizes multiplied by a scale.

use super::{Figure, Profile};
use crate::experiment::{Access, Caching, Experiment, IoExperiment, MetaExperiment, TreeShape};
use crate::text::size;
use std::fmt;

/// Largest permitted scale.
pub const MAX_SCALE: f64 = 16.0;
/// Smallest scale that the search tries, as a power of two.
const MIN_SCALE_POWER: i32 = -24;
/// Part of the free space that an experiment may fill: a file system that is nearly full is slow
/// for other reasons.
const SPACE_SHARE: f64 = 0.9;
/// Part of the memory that transfer buffers may use.
const BUFFER_SHARE: f64 = 0.25;
/// Minimum size of a cold read where caches can't be dropped, as a multiple of the memory.
const COLD_FACTOR: u64 = 2;
/// Shortest phase that ends by time, in seconds: in shorter ones the start and end of threads
/// distort the result.
const MIN_SECONDS: u64 = 3;

/// The machine that generates the load, and the space of the measured directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Free space of the file system, in bytes.
    pub free_bytes: u64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Whether caches can be dropped before a phase that reads.
    pub drops_caches: bool,
}

/// Why a scale doesn't fit.
#[derive(Clone, PartialEq, Debug)]
pub struct ScaleError {
    /// What is required, and what is available.
    pub cause: String,
    /// The largest power of two that fits; `None` if none does.
    pub largest: Option<f64>,
}

impl fmt::Display for ScaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for ScaleError {}

impl ScaleError {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self.largest {
            Some(scale) => format!("the largest scale that fits: --scale {scale}"),
            None => "no scale fits: free some space, run as root so that caches can be dropped, or use --profile quick".into(),
        }
    }
}

/// Returns the figures of a profile with sizes and durations multiplied by the scale, with at least
/// one experiment each.
///
/// Thread counts stay as published, since they determine the shape of a curve: they share a smaller
/// total. An experiment is left out if a thread would have less than one record or file, or if its
/// transfers need more than a quarter of the memory.
///
/// Errors: too little space or memory; or reads that caches would answer because they are smaller
/// than twice the memory and caches can't be dropped.
pub fn fitted(profile: &Profile, scale: f64, host: &Host) -> Result<Vec<Figure>, ScaleError> {
    let refused = |cause| ScaleError { cause, largest: largest_scale(profile, host) };
    if !(scale > 0.0 && scale <= MAX_SCALE) {
        return Err(refused(format!(
            "scale {scale}: it must be more than 0 and at most {MAX_SCALE}; 1 is as published"
        )));
    }
    let figures = scaled(profile, scale, host);
    match insufficient_resource(profile, &figures, host) {
        None => Ok(figures),
        Some(lack) => Err(refused(format!("profile {} at scale {scale}: {lack}", profile.name))),
    }
}

/// Returns the largest power of two up to 1 that fits; `None` if none does.
pub fn largest_scale(profile: &Profile, host: &Host) -> Option<f64> {
    let fits = |scale: &f64| insufficient_resource(profile, &scaled(profile, *scale, host), host).is_none();
    (MIN_SCALE_POWER..=0).rev().map(|power| 2f64.powi(power)).find(fits)
}

fn scaled(profile: &Profile, scale: f64, host: &Host) -> Vec<Figure> {
    let max_buffer_bytes = buffer_room(host);
    let figure = |figure: &Figure| {
        let (mut experiments, mut left_out) = (Vec::new(), Vec::new());
        for experiment in &figure.experiments {
            match scaled_experiment(experiment, scale) {
                Some(smaller) if smaller.buffer_bytes() <= max_buffer_bytes => experiments.push(smaller),
                _ => left_out.push(experiment.clone()),
            }
        }
        if experiments.is_empty() && !left_out.is_empty() {
            // A figure needs at least one point: its first one is as small as possible, and may be
            // refused.
            let first = left_out.remove(0);
            experiments.push(scaled_experiment(&first, scale).unwrap_or_else(|| minimal(&first)));
        }
        let left_out = left_out.iter().map(Experiment::threads).collect();
        Figure { experiments, left_out, ..figure.clone() }
    };
    profile.figures.iter().map(figure).collect()
}

/// Returns the experiment with sizes and durations multiplied; `None` if a thread would have less
/// than a record or file.
fn scaled_experiment(experiment: &Experiment, scale: f64) -> Option<Experiment> {
    let share = |published: u64| (published as f64 * scale) as u64;
    match experiment {
        Experiment::Io(io) => {
            let records = share(io.thread_bytes) / io.record_bytes;
            let seconds = io.seconds.map(|seconds| {
                let least = seconds.min(MIN_SECONDS);
                ((seconds as f64 * scale).round() as u64).clamp(least, seconds)
            });
            let thread_bytes = records * io.record_bytes;
            (records > 0).then(|| Experiment::Io(IoExperiment { thread_bytes, seconds, ..io.clone() }))
        }
        Experiment::Meta(meta) => {
            let shape = match meta.shape {
                TreeShape::OwnDirectories { directories } => {
                    TreeShape::OwnDirectories { directories: share(u64::from(directories)).max(1) as u32 }
                }
                shared => shared,
            };
            let thread_files = share(meta.thread_files);
            (thread_files > 0)
                .then(|| Experiment::Meta(MetaExperiment { thread_files, shape, ..meta.clone() }))
        }
    }
}

/// Returns the experiment with one record or file for each thread.
fn minimal(experiment: &Experiment) -> Experiment {
    match experiment {
        Experiment::Io(io) => Experiment::Io(IoExperiment { thread_bytes: io.record_bytes, ..io.clone() }),
        Experiment::Meta(meta) => Experiment::Meta(MetaExperiment { thread_files: 1, ..meta.clone() }),
    }
}

/// Returns the bytes that transfer buffers may use.
fn buffer_room(host: &Host) -> u64 {
    (host.memory_bytes as f64 * BUFFER_SHARE) as u64
}

/// Returns the first resource that is insufficient.
fn insufficient_resource(profile: &Profile, figures: &[Figure], host: &Host) -> Option<String> {
    let all = || {
        figures
            .iter()
            .flat_map(|figure| figure.experiments.iter().map(move |experiment| (figure, experiment)))
    };
    let (figure, most) = all().max_by_key(|(_, experiment)| experiment.space_bytes())?;
    let allowed = (host.free_bytes as f64 * SPACE_SHARE) as u64;
    if most.space_bytes() > allowed {
        return Some(format!(
            "\"{}\" needs {} of space; of {} free it may use {}",
            figure.title,
            size(most.space_bytes()),
            size(host.free_bytes),
            size(allowed)
        ));
    }
    let (figure, most) = all().max_by_key(|(_, experiment)| experiment.buffer_bytes())?;
    let allowed = buffer_room(host);
    if most.buffer_bytes() > allowed {
        return Some(format!(
            "\"{}\" needs {} of memory for transfers; of {} it may use {}",
            figure.title,
            size(most.buffer_bytes()),
            size(host.memory_bytes),
            size(allowed)
        ));
    }
    if host.drops_caches || profile.is_small {
        return None;
    }
    let cold = all().filter(|(_, experiment)| matches!(experiment, Experiment::Io(io) if io.caching == Caching::Cold && io.access == Access::Sequential));
    let (figure, least) = cold.min_by_key(|(_, experiment)| experiment.space_bytes())?;
    let need = host.memory_bytes * COLD_FACTOR;
    (least.space_bytes() < need).then(|| {
        format!(
            "\"{}\" has {} in all, and caches would answer below {} (twice the memory) since they can't be dropped without root",
            figure.title, size(least.space_bytes()), size(need)
        )
    })
}
