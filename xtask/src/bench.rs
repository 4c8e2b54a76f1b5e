//! Rates of a mount beside the same machine's ceiling: the local directory that the targets stand on, in the same run.

mod node;
mod rebuild;
mod shared_dir;

use crate::{build, process};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Seconds of one measurement.
const SECONDS: u64 = 5;

/// Deadline of one run of fio, its preparation included.
const FIO_DEADLINE: Duration = Duration::from_secs(180);

/// Files of the metadata measurement.
const FILES: u64 = 5000;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    special: Option<Special>,
    /// A folder on the mount.
    #[arg(default_value = "mnt")]
    mount: PathBuf,
    /// The ceiling: a folder on the local file system below the targets.
    #[arg(long, default_value = "weft-data")]
    ceiling: PathBuf,
}

/// Measurements that bring their own cluster.
#[derive(clap::Subcommand)]
enum Special {
    /// Several clients create files at once: each in a directory of its own, and all in one.
    SharedDir(shared_dir::Options),
    /// A member of a mirrored group is rebuilt on another target: how fast, and what programs lose meanwhile.
    Rebuild(rebuild::Options),
}

/// One fio measurement: what it is called and how it differs from the others.
struct Job {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Where fio's JSON has the figure: side and key.
    figure: (&'static str, &'static str),
    unit: &'static str,
}

const JOBS: &[Job] = &[
    Job {
        name: "sequential write, 1 MiB",
        arguments: &["--rw=write", "--bs=1m"],
        figure: ("write", "bw"),
        unit: "KiB/s",
    },
    Job {
        name: "sequential read, 1 MiB",
        arguments: &["--rw=read", "--bs=1m"],
        figure: ("read", "bw"),
        unit: "KiB/s",
    },
    Job {
        name: "random read, 4 KiB",
        arguments: &["--rw=randread", "--bs=4k"],
        figure: ("read", "iops"),
        unit: "1/s",
    },
    Job {
        name: "random write, 4 KiB",
        arguments: &["--rw=randwrite", "--bs=4k"],
        figure: ("write", "iops"),
        unit: "1/s",
    },
    Job {
        name: "random read, 4 KiB, direct, depth 16",
        arguments: &["--rw=randread", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=16"],
        figure: ("read", "iops"),
        unit: "1/s",
    },
];

/// Measures both places and prints them side by side.
pub fn run(options: &Options) -> Result<(), String> {
    match &options.special {
        Some(Special::SharedDir(options)) => return shared_dir::run(options),
        Some(Special::Rebuild(options)) => return rebuild::run(options),
        None => {}
    }
    let mount = build::root().join(&options.mount);
    if !crate::e2e::is_mounted(&mount) {
        return Err(format!("{} is not mounted; hint: run `make up` first", mount.display()));
    }
    let places = [&mount, &build::root().join(&options.ceiling)].map(|place| place.join("bench"));
    println!("{:<40} {:>12} {:>12} {:>8}", "", "weft", "ceiling", "share");
    let outcome = measure(&places);
    for place in &places {
        drop(fs::remove_dir_all(place));
    }
    outcome
}

fn measure(places: &[PathBuf; 2]) -> Result<(), String> {
    for place in places {
        fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
    }
    for job in JOBS {
        line(job.name, job.unit, fio(job, &places[0])?, fio(job, &places[1])?);
    }
    let [ours, ceiling] = places.each_ref().map(|place| create_and_remove(place));
    let (ours, ceiling) = (ours.map_err(|e| e.to_string())?, ceiling.map_err(|e| e.to_string())?);
    line("create an empty file", "1/s", ours.0, ceiling.0);
    line("remove a file", "1/s", ours.1, ceiling.1);
    Ok(())
}

fn line(name: &str, unit: &str, ours: f64, ceiling: f64) {
    let share = 100.0 * ours / ceiling;
    println!("{:<40} {ours:>12.0} {ceiling:>12.0} {share:>7.0}%", format!("{name}, {unit}"));
}

fn fio(job: &Job, place: &Path) -> Result<f64, String> {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--size=256m", "--output-format=json", "--time_based"]);
    command.arg(format!("--runtime={SECONDS}")).args(job.arguments).arg("--directory").arg(place);
    let done = process::run_ok(&mut command, FIO_DEADLINE)?;
    let json: serde_json::Value =
        serde_json::from_str(&done.stdout).map_err(|error| format!("fio printed no JSON: {error}"))?;
    let (side, key) = job.figure;
    json["jobs"][0][side][key].as_f64().ok_or_else(|| format!("fio reports no {side} {key}"))
}

/// Creates and removes files one after another; answers both rates, per second.
fn create_and_remove(place: &Path) -> io::Result<(f64, f64)> {
    let names: Vec<PathBuf> = (0..FILES).map(|number| place.join(number.to_string())).collect();
    let watch = Instant::now();
    for name in &names {
        fs::File::create(name)?;
    }
    let created = FILES as f64 / watch.elapsed().as_secs_f64();
    let watch = Instant::now();
    for name in &names {
        fs::remove_file(name)?;
    }
    Ok((created, FILES as f64 / watch.elapsed().as_secs_f64()))
}
