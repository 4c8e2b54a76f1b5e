//! The load generator compared with fio: the same four workloads of both on one directory,
//! alternating.
//!
//! Both create new files in each round, with the same record size, threads, depth and time, use
//! direct I/O, and include a sync after writes. By default fio preallocates a file that it writes;
//! this is disabled. The order alternates between rounds. Before a read phase, both drop caches if
//! permitted and if direct I/O doesn't reach a device of this machine.

use crate::{build, process};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Largest accepted difference between the two.
const MAX_DIFFERENCE: f64 = 0.10;

/// Deadline of one run of either.
const DEADLINE: Duration = Duration::from_secs(900);

/// Options of `cargo xtask bench generator`.
#[derive(clap::Args)]
pub struct Options {
    /// Directory for the load of both, such as a mount
    dir: PathBuf,
    /// The binary whose generator is checked [default: the release build]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Rounds; the median of their ratios counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Size of each thread's file in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Seconds of each random workload.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Threads, each with its own file.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// I/O depth of each thread in random workloads.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
}

/// One workload as options of both.
struct Workload {
    name: &'static str,
    /// Its name in weft bench.
    operation: &'static str,
    fio: &'static str,
    is_random: bool,
    /// Whether it reads existing files.
    reads: bool,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "sequential write, 1 MiB",
        operation: "write",
        fio: "--rw=write --end_fsync=1 --create_on_open=1",
        is_random: false,
        reads: false,
    },
    Workload {
        name: "sequential read, 1 MiB",
        operation: "read",
        fio: "--rw=read",
        is_random: false,
        reads: true,
    },
    Workload {
        name: "random read, 4 KiB",
        operation: "read",
        fio: "--rw=randread",
        is_random: true,
        reads: true,
    },
    Workload {
        name: "random 70/30, 4 KiB",
        operation: "mixed",
        fio: "--rw=randrw --rwmixread=70 --end_fsync=1",
        is_random: true,
        reads: true,
    },
];

/// Results of one workload in all rounds, in operations per second.
#[derive(Default)]
struct Row {
    fio: Vec<f64>,
    weft: Vec<f64>,
    /// CPU time of the generator itself, in nanoseconds per operation.
    own_ns: Vec<f64>,
}

/// Runs the measurement, prints the table, and names the workloads beyond the accepted difference.
pub fn run(options: &Options) -> Result<(), String> {
    let dir = options.dir.canonicalize().map_err(|error| format!("{}: {error}", options.dir.display()))?;
    let weft = match &options.weft {
        Some(weft) => weft.canonicalize().map_err(|error| format!("{}: {error}", weft.display()))?,
        None => build::weft(true)?,
    };
    process::run_ok(Command::new("fio").arg("--version"), DEADLINE)
        .map_err(|error| format!("{error}; hint: apt-get install fio"))?;
    let before = load_average();
    let mut rows: Vec<Row> = WORKLOADS.iter().map(|_| Row::default()).collect();
    for round in 0..options.rounds {
        for (work, row) in WORKLOADS.iter().zip(&mut rows) {
            if round % 2 == 0 {
                row.fio.push(of_fio(options, work, &dir)?);
            }
            let (rate, own_ns) = of_weft(options, work, &dir, &weft)?;
            row.weft.push(rate);
            row.own_ns.push(own_ns);
            if round % 2 == 1 {
                row.fio.push(of_fio(options, work, &dir)?);
            }
            eprintln!("round {} {}: fio {:.0}, weft bench {rate:.0}", round + 1, work.name, last(&row.fio));
        }
    }
    println!(
        "{} threads, depth {} of random workloads, {} rounds; load average {before} before, {} after\n",
        options.threads,
        options.depth,
        options.rounds,
        load_average()
    );
    println!("{}", table(&rows));
    Ok(())
}

fn last(rates: &[f64]) -> f64 {
    rates.last().copied().unwrap_or(0.0)
}

/// Returns the machine's load average of the last minute.
fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("").to_string()
}

fn of_weft(options: &Options, work: &Workload, dir: &Path, weft: &Path) -> Result<(f64, f64), String> {
    let mut command = Command::new(weft);
    command.args(["bench", "io"]).arg(dir).args(["--json", "--direct", "--operations", work.operation]);
    command.args(["--threads", &options.threads.to_string(), "--size", &format!("{}MiB", options.mib)]);
    if work.is_random {
        command.args(["--access", "random", "--record", "4096", "--depth", &options.depth.to_string()]);
        command.args(["--seconds", &options.seconds.to_string()]);
    }
    let done = process::run_ok(&mut command, DEADLINE)?;
    let results: Value =
        serde_json::from_str(&done.stdout).map_err(|e| format!("weft bench: no JSON: {e}"))?;
    let figure = &results["measured"][0];
    let run = &figure["runs"][0];
    let rate =
        run["operations"].as_f64().zip(run["seconds"].as_f64()).map(|(count, seconds)| count / seconds);
    let rate = rate.ok_or_else(|| format!("weft bench reported no rate: {results}"))?;
    Ok((rate, figure["generator_ns"].as_f64().unwrap_or(0.0)))
}

/// The directory of fio's files, removed when this is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

fn of_fio(options: &Options, work: &Workload, dir: &Path) -> Result<f64, String> {
    let folder = Folder(dir.join(format!("weft-generator-{}", std::process::id())));
    fs::create_dir(&folder.0).map_err(|error| format!("{}: {error}", folder.0.display()))?;
    if work.reads {
        // Created in the same way as by weft bench.
        fio(options, &folder.0, "--rw=write --bs=1M --ioengine=psync --direct=0 --end_fsync=1")?;
        drop_caches(&folder.0)?;
    }
    let words = match work.is_random {
        true => format!(
            "{} --bs=4k --direct=1 --ioengine=io_uring --iodepth={} --time_based --runtime={}",
            work.fio, options.depth, options.seconds
        ),
        false => format!("{} --bs=1M --direct=1 --ioengine=psync", work.fio),
    };
    rate_of_fio(&fio(options, &folder.0, &words)?)
}

/// Drops caches in the same cases as weft bench: only if direct I/O doesn't reach a device of this
/// machine, and only for root.
fn drop_caches(place: &Path) -> Result<(), String> {
    let device = fs::metadata(place).map_err(|error| format!("{}: {error}", place.display()))?.dev();
    // File systems without a block device have major number 0.
    if libc::major(device) == 0 {
        process::run_ok(Command::new("sync").arg("--file-system").arg(place), DEADLINE)?;
        // Fails without root, as in weft bench.
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    }
    Ok(())
}

fn fio(options: &Options, dir: &Path, words: &str) -> Result<Value, String> {
    let mut command = Command::new("fio");
    // The directory comes first: fio creates a file whose name precedes it in the working
    // directory. Files grow as they are written.
    command.arg("--directory").arg(dir);
    command.args(["--name=check", "--group_reporting", "--output-format=json", "--fallocate=none"]);
    command.args(["--thread", "--randrepeat=0", "--filename_format=file.$jobnum"]);
    command.arg(format!("--numjobs={}", options.threads)).arg(format!("--size={}M", options.mib));
    let done = process::run_ok(command.args(words.split(' ')), DEADLINE)?;
    // Notes may precede the JSON.
    let json = done.stdout.find('{').map_or("", |at| &done.stdout[at..]);
    serde_json::from_str(json).map_err(|error| format!("fio printed no JSON: {error}"))
}

/// Returns operations per second of both directions together, over the longer of their times.
fn rate_of_fio(results: &Value) -> Result<f64, String> {
    let job = &results["jobs"][0];
    let sides = [&job["read"], &job["write"]];
    let count: f64 = sides.iter().filter_map(|side| side["total_ios"].as_f64()).sum();
    let milliseconds = sides.iter().filter_map(|side| side["runtime"].as_f64()).fold(0.0, f64::max);
    match count > 0.0 && milliseconds > 0.0 && job["error"].as_i64() == Some(0) {
        true => Ok(count * 1000.0 / milliseconds),
        false => Err(format!("fio did no I/O, or failed with error {}", job["error"])),
    }
}

/// Returns the median, the lower of two middle values; 0 for an empty slice.
fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

impl Row {
    /// Returns the ratio of weft bench to fio per round: other activity of the machine changes
    /// least between consecutive runs.
    fn ratios(&self) -> Vec<f64> {
        self.weft.iter().zip(&self.fio).map(|(weft, fio)| weft / fio.max(f64::MIN_POSITIVE)).collect()
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = "| workload | fio, 1/s | weft bench, 1/s | weft bench / fio (least to most) | own time, ns each |\n|---|---|---|---|---|\n".to_string();
    let mut beyond = Vec::new();
    for (work, row) in WORKLOADS.iter().zip(rows) {
        let ratios = row.ratios();
        let (ratio, most) = (median(&ratios), ratios.iter().copied().fold(0.0, f64::max));
        let least = ratios.iter().copied().fold(most, f64::min);
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | {ratio:.3} ({least:.3} to {most:.3}) | {:.0} |",
            work.name,
            median(&row.fio),
            median(&row.weft),
            median(&row.own_ns)
        );
        if (ratio - 1.0).abs() > MAX_DIFFERENCE {
            beyond.push(format!("{} ({ratio:.3})", work.name));
        }
    }
    text.push('\n');
    text += &match beyond.is_empty() {
        true => format!("all workloads are within {:.0} % of fio", MAX_DIFFERENCE * 100.0),
        false => format!(
            "BEYOND {:.0} % of fio: {}; where rounds differ by as much, measure again on a quiet machine",
            MAX_DIFFERENCE * 100.0,
            beyond.join(", ")
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_directions_of_fio_count_over_the_longer_time() {
        let side = |ios: u64, ms: u64| json!({ "total_ios": ios, "runtime": ms });
        let results = json!({ "jobs": [{ "error": 0, "read": side(700, 1000), "write": side(300, 2000) }] });
        assert_eq!(rate_of_fio(&results), Ok(500.0));
        let nothing = json!({ "jobs": [{ "error": 5, "read": side(1, 1), "write": side(0, 0) }] });
        assert!(rate_of_fio(&nothing).unwrap_err().contains("error 5"));
    }

    #[test]
    fn only_workloads_beyond_the_limit_are_named() {
        let row = |fio: &[f64], weft: &[f64]| Row { fio: fio.into(), weft: weft.into(), own_ns: vec![80.0] };
        // One of three rounds is an outlier.
        let near = || row(&[100.0, 50.0, 300.0], &[95.0, 49.0, 900.0]);
        let text = table(&[near(), near(), near(), near()]);
        assert!(text.contains("| 100 | 95 | 0.980 (0.950 to 3.000) | 80 |"), "{text}");
        assert!(text.contains("all workloads are within 10 %") && !text.contains("BEYOND"));
        let text = table(&[near(), row(&[100.0], &[80.0]), near(), row(&[100.0], &[115.0])]);
        assert!(
            text.contains("BEYOND 10 % of fio: sequential read, 1 MiB (0.800), random 70/30, 4 KiB (1.150)")
        );
    }
}
