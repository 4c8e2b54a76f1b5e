//! What was measured.

use crate::experiment::{Caching, FileSharing, Operation, Through};
use crate::roofline::Binding;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the format that this code writes; others are refused.
pub const FORMAT: u32 = 1;

/// Everything that one call has measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub weft_bench: u32,
    /// What was measured: `weft 0.1.0`, or what an importer knows.
    pub system: String,
    /// When it began, RFC 3339.
    pub began: String,
    /// What was called.
    pub command: Vec<String>,
    /// Where.
    pub machine: Machine,
    /// What the hardware gives without the file system.
    pub ceilings: Vec<Ceiling>,
    /// One for each operation, number of threads and experiment.
    pub measured: Vec<Measured>,
    /// What a reader has to know: what was left out and why, interruptions.
    pub notes: Vec<String>,
}

/// The machine that made the load.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores of it.
    pub cores: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Clients that made load.
    pub clients: u32,
    /// Anything else that matters, such as sysctls and mount options.
    pub tuning: BTreeMap<String, String>,
}

/// One figure: the same thing done several times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the experiment.
    pub experiment: String,
    /// What was done.
    pub operation: Operation,
    /// Clients that took part.
    pub clients: u32,
    /// Threads of all of them.
    pub threads: u32,
    /// Bytes of a transfer, or of a file where files are made.
    pub record_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Transfers under way in each thread.
    pub queue_depth: u32,
    /// Whose files.
    pub sharing: Option<FileSharing>,
    /// Which caches were to answer.
    pub caching: Caching,
    /// Which way the load took; through a mount, or that of another program, unless said.
    #[serde(default)]
    pub through: Through,
    /// Each time that it was done.
    pub runs: Vec<Run>,
    /// Why the figure is a cache's, if it is one.
    pub cached: Option<String>,
    /// What the program that made the load spends on each operation itself, nanoseconds, where that
    /// is known.
    #[serde(default)]
    pub generator_ns: Option<f64>,
    /// Which ceiling binds the middle of the runs, where ceilings were known.
    #[serde(default)]
    pub binding: Option<Binding>,
}

/// One time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// From when the first thread began until the last had ended.
    pub seconds: f64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Bytes that weren't what had been written, where that was checked.
    pub wrong_bytes: u64,
    /// How long single operations took, where that is known.
    pub latency: Option<Latency>,
    /// Processor time of the whole machine meanwhile, seconds, where that is known.
    pub cpu_s: Option<f64>,
}

/// How long operations took, microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// What can bind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Sequential writes of targets, bytes a second.
    StorageWrite,
    /// Sequential reads of targets, bytes a second.
    StorageRead,
    /// Random 4 KiB writes of targets, operations a second.
    StorageRandomWrite,
    /// Random 4 KiB reads of targets, operations a second.
    StorageRandomRead,
    /// A pair of nodes, all streams together, bytes a second.
    Network,
    /// A message there and back between a pair of nodes, one after the other, operations a second.
    RoundTrips,
    /// Copies in memory, all cores together, bytes a second.
    MemoryCopy,
    /// Checksums, all cores together, bytes a second.
    Checksum,
    /// Stripes of Reed-Solomon 8+2 encoded, all cores together, bytes of content a second. Nothing
    /// is kept that way yet.
    Encoding,
    /// The processors of the machine that makes the load, servers on it included: how busy they
    /// were meanwhile tells what they would allow. Never measured by itself.
    Processors,
    /// Calls of a mount that does nothing else, all cores together, operations a second.
    FuseCalls,
}

/// What the hardware gives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ceiling {
    /// Of what.
    pub limit: Limit,
    /// Where: `target 3`, `node 1 to node 2`, `node 1`.
    pub place: String,
    /// Bytes or operations a second, as the limit says.
    pub rate: f64,
    /// The number of streams or threads that gave most.
    pub streams: u32,
    /// When it was measured, RFC 3339.
    pub measured: String,
}

impl Results {
    /// What a file holds; an error that says what is wrong with it otherwise.
    pub fn parse(text: &str) -> Result<Results, String> {
        #[derive(Deserialize)]
        struct Version {
            weft_bench: Option<u32>,
        }
        let version: Version = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
        match version.weft_bench {
            None => Err("no results of weft bench (no field weft_bench)".into()),
            Some(FORMAT) => serde_json::from_str(text).map_err(|error| format!("damaged: {error}")),
            Some(other) => Err(format!("results of version {other}; this weft reads version {FORMAT}")),
        }
    }
}

impl Run {
    /// Bytes a second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Operations a second.
    pub fn ops_per_s(&self) -> f64 {
        self.operations as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl Measured {
    /// The middle of the runs, bytes a second, with the least and the most; `None` without runs.
    pub fn bytes_per_s(&self) -> Option<(f64, f64, f64)> {
        spread(self.runs.iter().map(Run::bytes_per_s))
    }

    /// The middle of the runs, operations a second, with the least and the most; `None` without
    /// runs.
    pub fn ops_per_s(&self) -> Option<(f64, f64, f64)> {
        spread(self.runs.iter().map(Run::ops_per_s))
    }
}

fn spread(rates: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    Some((median(&rates)?, *rates.first()?, *rates.last()?))
}

/// The middle of sorted figures, or the mean of the two in the middle; `None` of none.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_refused_with_what_they_are() {
        let refused = |text: &str| Results::parse(text).unwrap_err();
        assert!(refused("fio-3.33").starts_with("no JSON"));
        assert!(refused("{\"jobs\": []}").contains("no results of weft bench"));
        assert!(refused("{\"weft_bench\": 7}").contains("version 7"));
        assert!(refused("{\"weft_bench\": 1}").starts_with("damaged"));
    }

    #[test]
    fn the_middle_is_told_with_the_extremes() {
        let run = |seconds| Run {
            seconds,
            operations: 10,
            bytes: 1000,
            errors: 0,
            wrong_bytes: 0,
            latency: None,
            cpu_s: None,
        };
        let measured = |runs| Measured {
            experiment: "e".into(),
            operation: Operation::Read,
            clients: 1,
            threads: 1,
            record_bytes: 100,
            total_bytes: 1000,
            queue_depth: 1,
            sharing: None,
            caching: Caching::Cold,
            through: Through::Mount,
            runs,
            cached: None,
            generator_ns: None,
            binding: None,
        };
        assert_eq!(measured(vec![]).bytes_per_s(), None);
        assert_eq!(measured(vec![run(1.0), run(4.0), run(2.0)]).bytes_per_s(), Some((500.0, 250.0, 1000.0)));
        assert_eq!(measured(vec![run(1.0), run(2.0)]).ops_per_s(), Some((7.5, 5.0, 10.0)));
    }
}
