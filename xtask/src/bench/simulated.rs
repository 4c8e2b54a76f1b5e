//! Predictions of `scale`, the simulation of `weft plan`, compared with real small clusters.
//!
//! Each node has its own network namespace (`e2e::netns`) and a slow link, so that links are the
//! bottleneck instead of the cores, which all nodes share. Targets are on a RAM disk. Programs
//! write or read their own files sequentially for some seconds, with one record in flight each. The
//! simulation gets the same servers, clients, programs and files, and the measured share of a link
//! that a connection gets. It gets no other input.

mod model;
mod real_cluster;
mod server_loss;
mod table;

use super::document::Document;
use crate::build;
use crate::e2e::{Failure, Stage, TestResult};
use model::LinkRates;
use real_cluster::RealCluster;
use std::path::{Path, PathBuf};
use table::{Row, Table};
use types::Scheme;

/// The command that owns the table in a document.
const COMMAND: &str = "cargo xtask bench simulated";

/// Options of `cargo xtask bench simulated`.
#[derive(clap::Args)]
pub struct Options {
    /// The binary to measure [default: the development build]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Folder of the targets; on a RAM disk, drives aren't the bottleneck.
    #[arg(long, default_value = "/dev/shm")]
    on: PathBuf,
    /// Numbers of storage nodes.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4", value_parser = clap::value_parser!(u8).range(1..=8))]
    servers: Vec<u8>,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u8).range(1..=8))]
    clients: Vec<u8>,
    /// Numbers of programs per client.
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u8).range(1..=16))]
    programs: Vec<u8>,
    /// Redundancy of files.
    #[arg(long, value_delimiter = ',', default_value = "single,mirror:2")]
    schemes: Vec<Scheme>,
    /// What to measure: all servers present, one of them lost, the resync that replaces it.
    #[arg(long, value_delimiter = ',', default_value = "whole,degraded,rebuild")]
    parts: Vec<Measured>,
    /// Capacity of a storage node's link in each direction with all headers, in Mbit/s.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(8..=10_000))]
    server_mbit: u64,
    /// The same of a client.
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u64).range(8..=10_000))]
    client_mbit: u64,
    /// Congestion control of TCP: one of /proc/sys/net/ipv4/tcp_allowed_congestion_control.
    #[arg(long, default_value = "reno")]
    congestion: String,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// Repeat a measurement if more than this percentage of the cores was busy: then cores are the
    /// bottleneck, or other programs run.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u8).range(1..=100))]
    busy: u8,
    /// Maximum number of attempts.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    tries: u32,
    /// A document in which the table replaces the text between two marks.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Measured {
    Whole,
    Degraded,
    Rebuild,
}

/// One measured configuration.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Case {
    servers: u8,
    clients: u8,
    programs: u8,
    scheme: Scheme,
    writes: bool,
    /// Whether the first server is lost.
    degraded: bool,
}

/// Measures and simulates all cases, and prints the table.
pub fn run(options: &Options) -> Result<(), String> {
    let document = options.write.as_deref().map(|path| Document::open(path, COMMAND)).transpose()?;
    let weft = match &options.weft {
        Some(weft) => weft.canonicalize().map_err(|error| format!("{}: {error}", weft.display()))?,
        None => build::weft(false)?,
    };
    let table = measure(options, &weft).map_err(|failure| match failure {
        Failure::Skipped(why) | Failure::Failed(why) => why,
    })?;
    let text = table.markdown(options);
    println!("{text}");
    document.map_or(Ok(()), |document| document.put(&text))
}

fn measure(options: &Options, weft: &Path) -> TestResult<Table> {
    let stage = Stage::on_folder(weft, &options.on)?;
    let mut table = Table::default();
    for &servers in &options.servers {
        let mut cluster = RealCluster::start(&stage, servers, options)?;
        if table.wires == LinkRates::default() {
            table.wires = LinkRates::measured(&cluster, options)?;
        }
        for &scheme in options.schemes.iter().filter(|scheme| scheme.members() <= servers.into()) {
            let folder = cluster.fill(scheme, options)?;
            if options.parts.contains(&Measured::Whole) {
                measure_programs(&cluster, &folder, (scheme, false), options, &mut table)?;
            }
            if scheme.is_redundant() && options.parts.contains(&Measured::Degraded) {
                cluster.lose_one(&folder)?;
                measure_programs(&cluster, &folder, (scheme, true), options, &mut table)?;
                cluster.restart_lost()?;
            }
        }
        cluster.stop()?;
        if servers > 2 && options.parts.contains(&Measured::Rebuild) {
            let row = server_loss::measure(&stage, servers, options, table.wires)?;
            eprintln!("{row}");
            table.rebuilt.push(row);
        }
    }
    Ok(table)
}

/// Measures all numbers of clients and programs, for writes and reads of the files in a folder.
fn measure_programs(
    cluster: &RealCluster,
    folder: &str,
    (scheme, degraded): (Scheme, bool),
    options: &Options,
    table: &mut Table,
) -> TestResult {
    for &clients in &options.clients {
        for &programs in &options.programs {
            for writes in [true, false] {
                let case = Case { servers: cluster.servers, clients, programs, scheme, writes, degraded };
                let real = cluster.measure(folder, case, options)?;
                let row = Row { case, real, simulated: model::simulate(case, table.wires)? };
                eprintln!("{row}");
                table.rows.push(row);
            }
        }
    }
    Ok(())
}
