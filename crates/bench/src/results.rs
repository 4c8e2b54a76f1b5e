//! Results of measurements.

use crate::experiment::{Caching, FileSharing, Operation, Through};
use crate::roofline::Binding;
use ceilings::{Limit, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format that this code writes; others are refused.
pub const FORMAT: u32 = 1;

/// All measurements of one invocation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub weft_bench: u32,
    /// The measured system: `weft 0.1.0`, or what an importer knows.
    pub system: String,
    /// Start time, RFC 3339.
    pub began: String,
    /// The command line.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// Rates of the hardware without the file system.
    pub ceilings: Vec<Ceiling>,
    /// One for each operation, thread count and experiment.
    pub measured: Vec<Measured>,
    /// Notes for the reader: what was left out and why, interruptions.
    pub notes: Vec<String>,
}

/// The machine that generated the load.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Number of its cores.
    pub cores: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Kernel version.
    pub kernel: String,
    /// Clients that generated load.
    pub clients: u32,
    /// Other relevant settings, such as sysctls and mount options.
    pub tuning: BTreeMap<String, String>,
}

/// One result: the same measurement, several times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Name of the experiment.
    pub experiment: String,
    /// The operation.
    pub operation: Operation,
    /// Number of clients.
    pub clients: u32,
    /// Threads of all clients.
    pub threads: u32,
    /// Bytes per transfer, or per file in metadata experiments.
    pub record_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Transfers in flight per thread.
    pub queue_depth: u32,
    /// How threads share files.
    pub sharing: Option<FileSharing>,
    /// Which caches were allowed to answer.
    pub caching: Caching,
    /// Access path of the load; by default a mount, or that of another program.
    #[serde(default)]
    pub through: Through,
    /// Each repetition.
    pub runs: Vec<Run>,
    /// Why the result is one of caches, if it is.
    pub cached: Option<String>,
    /// The load generator's own time per operation, in nanoseconds, if known.
    #[serde(default)]
    pub generator_ns: Option<f64>,
    /// The ceiling that binds the median of the runs, if ceilings were known.
    #[serde(default)]
    pub binding: Option<Binding>,
}

/// One repetition.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// From the start of the first thread to the end of the last.
    pub seconds: f64,
    /// Operations that succeeded.
    pub operations: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Bytes that differ from what was written, if that was verified.
    pub wrong_bytes: u64,
    /// Latencies of operations, if known.
    pub latency: Option<Latency>,
    /// Processor time of the whole machine during the run, in seconds, if known.
    pub cpu_s: Option<f64>,
}

/// Latencies of operations, in microseconds.
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

/// Rate of a resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ceiling {
    /// The resource.
    pub limit: Limit,
    /// Its location: `target 3`, `node 1 to node 2`, `node 1`.
    pub place: String,
    /// Bytes or operations per second, depending on the limit.
    pub rate: f64,
    /// Number of streams or threads with the highest rate.
    pub streams: u32,
    /// Time of the measurement, RFC 3339.
    pub measured: String,
}

impl Results {
    /// Parses a file; the error says what is wrong with it.
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
    /// Returns bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns operations per second.
    pub fn ops_per_s(&self) -> f64 {
        self.operations as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl Measured {
    /// Returns median, minimum and maximum of the runs in bytes per second; `None` without runs.
    pub fn bytes_per_s(&self) -> Option<(f64, f64, f64)> {
        spread(self.runs.iter().map(Run::bytes_per_s))
    }

    /// Returns median, minimum and maximum of the runs in operations per second; `None` without
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
    fn medians_come_with_extremes() {
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
