//! Importer for the output of `fio --output-format=json`.

use super::{bytes, results};
use crate::experiment::{Access, Caching, FileSharing, Operation};
use crate::names::io_name;
use crate::results::{Latency, Measured, Results, Run};
use serde::Deserialize;
use std::collections::BTreeMap;

type Options = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(default)]
    time: String,
    #[serde(rename = "global options", default)]
    global: Options,
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    #[serde(default)]
    groupid: u64,
    #[serde(default)]
    error: i64,
    #[serde(rename = "job options", default)]
    options: Options,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize, Default)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
    /// In milliseconds.
    runtime: u64,
    #[serde(default)]
    lat_ns: Times,
    #[serde(default)]
    clat_ns: Times,
}

#[derive(Deserialize, Default)]
struct Times {
    max: f64,
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// Parses the output. Jobs with the same name in one group are threads of one result.
///
/// Errors: no JSON, or jobs that can't be represented.
pub fn parse(text: &str) -> Result<Results, String> {
    // Warnings precede the JSON where both are written to the same file.
    let start = text.find('{').unwrap_or(0);
    let mut documents = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Output>();
    let output =
        documents.next().ok_or("no JSON of fio")?.map_err(|error| format!("no JSON of fio: {error}"))?;
    let mut all = results(&output.version, &output.time, "fio", 1);
    let mut figures: Vec<Vec<&Job>> = Vec::new();
    for job in &output.jobs {
        if job.error != 0 {
            all.notes.push(format!("job {} of fio ended with error {}", job.jobname, job.error));
        }
        let same = |figure: &&mut Vec<&Job>| {
            figure.iter().any(|other| (other.groupid, &other.jobname) == (job.groupid, &job.jobname))
        };
        match figures.iter_mut().find(same) {
            Some(figure) => figure.push(job),
            None => figures.push(vec![job]),
        }
    }
    for jobs in figures {
        match measured(&jobs, &output.global) {
            Some(measured) => all.measured.push(measured),
            None => {
                all.notes.push(format!("job {} of fio transferred no bytes and is left out", jobs[0].jobname))
            }
        }
    }
    Ok(all)
}

fn measured(jobs: &[&Job], global: &Options) -> Option<Measured> {
    let option = |name: &str| jobs[0].options.get(name).or_else(|| global.get(name)).map(String::as_str);
    let number = |name: &str| option(name).and_then(bytes);
    let is_on = |name: &str, default: bool| option(name).map_or(default, |value| value != "0");
    let access = match option("rw").or(option("readwrite")).unwrap_or("read").starts_with("rand") {
        true => Access::Random,
        false => Access::Sequential,
    };
    // One entry for a whole group, or one for each job.
    let threads = match jobs {
        [_] => number("numjobs").unwrap_or(1).max(1) as u32,
        several => several.len() as u32,
    };
    // A named file is shared by all jobs.
    let sharing = match threads > 1 && option("filename").is_some() {
        true => FileSharing::Segments,
        false => FileSharing::OwnFiles,
    };
    let moved = |of: fn(&Job) -> &Direction| jobs.iter().map(|job| of(job).io_bytes).sum::<u64>();
    let (read, written) = (moved(|job| &job.read), moved(|job| &job.write));
    let operation = match (read, written) {
        (0, 0) => return None,
        (_, 0) => Operation::Read,
        (0, _) => Operation::Write,
        _ => Operation::Mixed,
    };
    let run = run(jobs, operation)?;
    let caching = match (is_on("direct", false), is_on("invalidate", true)) {
        (true, _) => Caching::Direct,
        (_, true) => Caching::Cold,
        _ => Caching::Warm,
    };
    Some(Measured {
        experiment: io_name(sharing, access).into(),
        operation,
        clients: 1,
        threads,
        record_bytes: number("bs").or(number("blocksize")).unwrap_or(run.bytes / run.operations.max(1)),
        total_bytes: number("size").map_or(run.bytes, |size| size * u64::from(threads)),
        queue_depth: number("iodepth").unwrap_or(1).max(1) as u32,
        sharing: Some(sharing),
        caching,
        through: crate::Through::Mount,
        runs: vec![run],
        cached: None,
        generator_ns: None,
        binding: None,
    })
}

/// Merges all jobs, from the first start to the last end; they start together.
fn run(jobs: &[&Job], operation: Operation) -> Option<Run> {
    let directions = || jobs.iter().flat_map(|job| [&job.read, &job.write]).filter(|of| of.total_ios > 0);
    let milliseconds = directions().map(|of| of.runtime).max()?;
    let mut each = directions();
    // Quantiles of several jobs can't be merged.
    let latency = match (each.next(), each.next()) {
        (Some(only), None) if operation != Operation::Mixed => latency(only),
        _ => None,
    };
    (milliseconds > 0).then(|| Run {
        seconds: milliseconds as f64 / 1000.0,
        operations: directions().map(|of| of.total_ios).sum(),
        bytes: directions().map(|of| of.io_bytes).sum(),
        errors: 0,
        wrong_bytes: 0,
        latency,
        cpu_s: None,
    })
}

fn latency(of: &Direction) -> Option<Latency> {
    let at = |percent: &str| of.clat_ns.percentile.get(percent).map(|ns| ns / 1000.0);
    Some(Latency {
        mean_us: of.lat_ns.mean / 1000.0,
        p50_us: at("50.000000")?,
        p95_us: at("95.000000")?,
        p99_us: at("99.000000")?,
        p999_us: at("99.900000")?,
        max_us: of.lat_ns.max / 1000.0,
    })
}
