//! A profile on a smaller machine: thread counts and sizes times a scale.

use super::{Figure, Profile};
use crate::experiment::{Access, Caching, Experiment, IoExperiment, MetaExperiment, TreeShape};
use crate::text::size;
use std::fmt;

/// Most threads of one experiment: what was published goes so far.
pub const MAX_THREADS: u32 = 1024;
/// Largest scale that is taken.
pub const MAX_SCALE: f64 = 16.0;
/// Smallest scale that is tried in a search, as a power of two.
const LEAST_POWER: i32 = -24;
/// Part of the free space that an experiment may fill: a file system that is nearly full is slow for another reason.
const SPACE_SHARE: f64 = 0.9;
/// Part of the memory that buffers of transfers may take.
const BUFFER_SHARE: f64 = 0.25;
/// What a cold read needs, as a multiple of the memory, where caches can't be dropped.
const COLD_FACTOR: u64 = 2;
/// Shortest phase that ends by time, seconds: start and end of threads weigh more in less.
const LEAST_SECONDS: u64 = 3;

/// The machine that makes the load, and the place that takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Free in the file system, bytes.
    pub free_bytes: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Whether caches can be dropped before a phase that reads.
    pub drops_caches: bool,
}

/// Why a scale doesn't fit.
#[derive(Clone, PartialEq, Debug)]
pub struct Refusal {
    /// What is needed, and what is there.
    pub cause: String,
    /// The largest power of two that fits; `None` if none does.
    pub largest: Option<f64>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self.largest {
            Some(scale) => format!("the largest scale that fits: --scale {scale}"),
            None => "no scale fits: free space, run as root so that caches can be dropped, or take --profile quick".into(),
        }
    }
}

/// The figures of a profile with thread counts and sizes times the scale, at least one experiment in each.
///
/// Thread counts stay powers of two where the published ones are; times of random phases shrink as well. Nothing is kept of counts below one thread.
///
/// Errors: more space or memory than there is; or reads that caches would answer because they are smaller than twice the memory and caches can't be dropped.
pub fn fitted(profile: &Profile, scale: f64, host: &Host) -> Result<Vec<Figure>, Refusal> {
    let refused = |cause| Refusal { cause, largest: largest_scale(profile, host) };
    if !(scale > 0.0 && scale <= MAX_SCALE) {
        return Err(refused(format!(
            "scale {scale}: more than 0 and at most {MAX_SCALE} is possible; 1 is as published"
        )));
    }
    let figures = scaled(profile, scale);
    match lacking(profile, &figures, host) {
        None => Ok(figures),
        Some(lack) => Err(refused(format!("profile {} at scale {scale}: {lack}", profile.name))),
    }
}

/// The largest power of two up to 1 that fits; `None` if none does.
pub fn largest_scale(profile: &Profile, host: &Host) -> Option<f64> {
    let fits = |scale: &f64| lacking(profile, &scaled(profile, *scale), host).is_none();
    (LEAST_POWER..=0).rev().map(|power| 2f64.powi(power)).find(fits)
}

fn scaled(profile: &Profile, scale: f64) -> Vec<Figure> {
    let figure = |figure: &Figure| {
        let mut experiments: Vec<Experiment> = Vec::new();
        // Counts below one thread fall away, but for the largest: a figure without points says nothing.
        let largest = figure.experiments.iter().map(Experiment::threads).max().unwrap_or(1);
        for experiment in &figure.experiments {
            if f64::from(experiment.threads()) * scale < 1.0 && experiment.threads() < largest {
                continue;
            }
            let smaller = times(experiment, scale);
            let is_there = |other: &Experiment| {
                (other.threads(), other.queue_depth()) == (smaller.threads(), smaller.queue_depth())
            };
            if !experiments.iter().any(is_there) {
                experiments.push(smaller);
            }
        }
        Figure { experiments, ..figure.clone() }
    };
    profile.figures.iter().map(figure).collect()
}

fn times(experiment: &Experiment, scale: f64) -> Experiment {
    let threads = threads(experiment.threads(), scale);
    let share = |of_thread: u64, before: u32| {
        // Unscaled figures stay exactly as they are.
        if threads == before && scale == 1.0 {
            return of_thread;
        }
        (of_thread as f64 * f64::from(before) * scale / f64::from(threads)) as u64
    };
    match experiment {
        Experiment::Io(io) => {
            let records = (share(io.thread_bytes, io.threads) / io.record_bytes).max(1);
            let seconds = io.seconds.map(|seconds| {
                let least = seconds.min(LEAST_SECONDS);
                ((seconds as f64 * scale).round() as u64).clamp(least, seconds)
            });
            Experiment::Io(IoExperiment {
                threads,
                thread_bytes: records * io.record_bytes,
                seconds,
                ..io.clone()
            })
        }
        Experiment::Meta(meta) => {
            let shape = match meta.shape {
                TreeShape::OwnDirectories { directories } => TreeShape::OwnDirectories {
                    directories: share(u64::from(directories), meta.threads).max(1) as u32,
                },
                shared => shared,
            };
            let thread_files = share(meta.thread_files, meta.threads).max(1);
            Experiment::Meta(MetaExperiment { threads, thread_files, shape, ..meta.clone() })
        }
    }
}

fn threads(published: u32, scale: f64) -> u32 {
    let threads = ((f64::from(published) * scale) as u32).clamp(1, MAX_THREADS);
    match published.is_power_of_two() {
        true => 1 << threads.ilog2(),
        false => threads,
    }
}

/// The first thing that there isn't enough of.
fn lacking(profile: &Profile, figures: &[Figure], host: &Host) -> Option<String> {
    let all = || {
        figures
            .iter()
            .flat_map(|figure| figure.experiments.iter().map(move |experiment| (figure, experiment)))
    };
    let (figure, most) = all().max_by_key(|(_, experiment)| experiment.space_bytes())?;
    let allowed = (host.free_bytes as f64 * SPACE_SHARE) as u64;
    if most.space_bytes() > allowed {
        return Some(format!(
            "\"{}\" needs {} of space, and of {} that are free it may take {}",
            figure.title,
            size(most.space_bytes()),
            size(host.free_bytes),
            size(allowed)
        ));
    }
    let (figure, most) = all().max_by_key(|(_, experiment)| experiment.buffer_bytes())?;
    let allowed = (host.memory_bytes as f64 * BUFFER_SHARE) as u64;
    if most.buffer_bytes() > allowed {
        return Some(format!(
            "\"{}\" needs {} of memory for transfers, and of {} it may take {}",
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
