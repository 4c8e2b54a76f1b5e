//! weft compared with other file systems on this machine: the same fio workloads on all of them,
//! alternating.
//!
//! weft is measured as one process and as two (a node, and a mount over TCP), both with four
//! targets on an XFS file system in a loop file. That file system by itself is the ceiling. Peers
//! are existing mounts. Each round runs a workload on all systems one after the other before the
//! next workload, so that other activity of the machine affects all equally.

mod systems;
mod table;
mod workloads;

use super::document::Document;
use crate::build;
use crate::e2e::disk::{Disk, DiskKind};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use systems::System;
use table::Table;
use workloads::{Sizes, WORKLOADS, Workload};

/// The command that owns the table in a document.
const COMMAND: &str = "cargo xtask bench peers";

/// Bytes of the targets' file system per byte of a sequential workload: two clusters, and files
/// that are removed with a delay.
const SPACE_FACTOR: u64 = 6;
/// Additional space for journals, metadata and files, in MiB.
const EXTRA_SPACE_MIB: u64 = 2048;

/// Options of `cargo xtask bench peers`.
#[derive(clap::Args)]
pub struct Options {
    /// The binary to measure [default: the release build]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Another file system: its name in the table, and a directory on it; repeatable.
    #[arg(long, value_name = "NAME=DIR", value_parser = named)]
    peer: Vec<(String, PathBuf)>,
    /// Folder of the targets' loop file; on a RAM disk, the software is measured instead of a
    /// drive.
    #[arg(long, default_value = "/dev/shm")]
    on: PathBuf,
    /// Rounds; the table shows the median of each figure.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Size of each sequential workload in MiB.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mib: u64,
    /// Seconds of each time-limited workload.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Files of each of four jobs.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    files: u64,
    /// Only workloads whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Protection of connections.
    #[arg(long, default_value = "plain", value_parser = ["tls", "authenticated", "plain"])]
    protection: String,
    /// A document in which the table replaces the text between two marks.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => Ok((name.into(), dir.into())),
        _ => Err("not of the form NAME=DIR".into()),
    }
}

/// Runs all measurements, and prints the table.
pub fn run(options: &Options) -> Result<(), String> {
    let document = options.write.as_deref().map(|path| Document::open(path, COMMAND)).transpose()?;
    for (name, dir) in &options.peer {
        if !dir.is_dir() {
            return Err(format!(
                "{name}: {} is not a directory; hint: mount the file system first",
                dir.display()
            ));
        }
    }
    let chosen: Vec<&Workload> = WORKLOADS.iter().filter(|work| options.selects(work.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = WORKLOADS.iter().map(|work| work.name).collect();
        return Err(format!("no such workload; workloads: {}", names.join("; ")));
    }
    let weft = match &options.weft {
        Some(weft) => weft.canonicalize().map_err(|error| format!("{}: {error}", weft.display()))?,
        None => build::weft(true)?,
    };
    let base = tempfile::tempdir_in(&options.on).map_err(|e| format!("{}: {e}", options.on.display()))?;
    let bytes = (SPACE_FACTOR * options.mib + EXTRA_SPACE_MIB) << 20;
    // Dropped after everything that uses it.
    let disk =
        Disk::new(base.path(), "disk", DiskKind::Xfs, bytes).map_err(|failure| format!("{failure:?}"))?;
    let systems = systems::start(&weft, base.path(), disk.path(), options)?;
    let rows = measure(options, &chosen, &systems)?;
    drop((systems, disk));
    let table = Table { names: names(options), rows };
    let text = format!("{}\n{table}", setting(options));
    println!("{text}");
    document.map_or(Ok(()), |document| document.put(&text))
}

impl Options {
    fn selects(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|part| name.contains(part.as_str()))
    }
}

/// Returns the column names, in the order of `systems::start`.
fn names(options: &Options) -> Vec<String> {
    let own = [systems::CEILING, systems::ONE, systems::TWO].map(String::from);
    own.into_iter().chain(options.peer.iter().map(|(name, _)| name.clone())).collect()
}

fn measure(options: &Options, chosen: &[&Workload], systems: &[System]) -> Result<Vec<table::Row>, String> {
    let sizes = Sizes { mib: options.mib, seconds: options.seconds, files: options.files };
    let mut rows: Vec<table::Row> = chosen
        .iter()
        .map(|work| table::Row { name: work.name, unit: work.unit, samples: vec![Vec::new(); systems.len()] })
        .collect();
    for round in 1..=options.rounds {
        for (row, work) in rows.iter_mut().zip(chosen) {
            for (system, samples) in systems.iter().zip(&mut row.samples) {
                let sample = work.run(&system.dir, sizes).map_err(|e| format!("{}: {e}", system.name))?;
                eprintln!("round {round} {}: {}: {}", work.name, system.name, table::rounded(sample.rate));
                samples.push(sample);
            }
        }
    }
    Ok(rows)
}

/// Describes what was run, where and when, which the table needs to be meaningful.
fn setting(options: &Options) -> String {
    let first_line = |command: &mut Command| {
        let said = command.output().map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        said.unwrap_or_default().lines().next().unwrap_or("").trim().to_string()
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let peers: String = options.peer.iter().map(|(name, _)| format!(" --peer {name}=DIR")).collect();
    let only = options.only.as_ref().map_or(String::new(), |only| format!(" --only '{only}'"));
    format!(
        "{}, {cores} cores of {}, kernel {}, {}; `cargo xtask bench peers --rounds {} --mib {} --seconds {} --files {} --protection {}{peers}{only}`. Medians; in \
         brackets CPU time of the whole machine, fio included, for each operation (each MiB in rows of MiB/s), us.\n",
        first_line(Command::new("date").args(["-u", "+%F"])),
        model.trim_start_matches([' ', '\t', ':']),
        first_line(Command::new("uname").arg("-r")),
        first_line(Command::new("fio").arg("--version")),
        options.rounds,
        options.mib,
        options.seconds,
        options.files,
        options.protection,
    )
}
