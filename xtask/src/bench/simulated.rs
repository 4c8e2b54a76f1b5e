//! What `scale`, the simulation of `weft plan`, says of small clusters, beside such clusters.
//!
//! Each node is in a network of its own (`e2e::netns`) and its wire carries little, so that wires
//! bind and not the cores, which all nodes share. Targets are on a RAM disk. Programs write or read
//! their own files in order, one record under way each, for some seconds; the simulation gets the
//! same servers, clients, programs and files, and what a connection was measured to get of a wire.
//! Nothing else is told to it.

mod model;
mod rebuilt;
mod site;
mod table;

use super::document::Document;
use crate::build;
use crate::e2e::{Failure, Stage, TestResult};
use model::Wires;
use site::Site;
use std::path::{Path, PathBuf};
use table::{Row, Table};
use types::Scheme;

/// Whose table it is in a document.
const COMMAND: &str = "cargo xtask bench simulated";

/// Options of `cargo xtask bench simulated`.
#[derive(clap::Args)]
pub struct Options {
    /// The binary to measure [default: the development build]
    #[arg(long)]
    weft: Option<PathBuf>,
    /// Where the targets go; on a RAM disk no drive binds.
    #[arg(long, default_value = "/dev/shm")]
    on: PathBuf,
    /// Numbers of storage nodes.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4", value_parser = clap::value_parser!(u8).range(1..=8))]
    servers: Vec<u8>,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u8).range(1..=8))]
    clients: Vec<u8>,
    /// Numbers of programs of each client.
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u8).range(1..=16))]
    programs: Vec<u8>,
    /// How files are kept.
    #[arg(long, value_delimiter = ',', default_value = "single,mirror:2")]
    schemes: Vec<Scheme>,
    /// What is measured: all servers there, one of them lost, what takes its place.
    #[arg(long, value_delimiter = ',', default_value = "whole,degraded,rebuild")]
    parts: Vec<Measured>,
    /// What the wire of a storage node carries in each direction with all headers, Mbit/s.
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(8..=10_000))]
    server_mbit: u64,
    /// The same of a client.
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u64).range(8..=10_000))]
    client_mbit: u64,
    /// How TCP takes its share of a wire: one of /proc/sys/net/ipv4/tcp_allowed_congestion_control.
    #[arg(long, default_value = "reno")]
    congestion: String,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=600))]
    seconds: u64,
    /// Measure again what was measured while more than so many percent of the cores were busy: then
    /// cores bind, or others work.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u8).range(1..=100))]
    busy: u8,
    /// So often at most.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    tries: u32,
    /// A document that gets the table between its two marks.
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

/// What is measured once.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Case {
    servers: u8,
    clients: u8,
    programs: u8,
    scheme: Scheme,
    writes: bool,
    /// The first server is lost.
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
        let mut site = Site::start(&stage, servers, options)?;
        if table.wires == Wires::default() {
            table.wires = Wires::measured(&site, options)?;
        }
        for &scheme in options.schemes.iter().filter(|scheme| scheme.members() <= servers.into()) {
            let folder = site.fill(scheme, options)?;
            if options.parts.contains(&Measured::Whole) {
                measure_programs(&site, &folder, (scheme, false), options, &mut table)?;
            }
            if scheme.is_mirrored() && options.parts.contains(&Measured::Degraded) {
                site.lose_one(&folder)?;
                measure_programs(&site, &folder, (scheme, true), options, &mut table)?;
                site.find_again()?;
            }
        }
        site.stop()?;
        if servers > 2 && options.parts.contains(&Measured::Rebuild) {
            let row = rebuilt::measure(&stage, servers, options, table.wires)?;
            eprintln!("{row}");
            table.rebuilt.push(row);
        }
    }
    Ok(table)
}

/// All numbers of clients and programs, writing and reading the files of a folder.
fn measure_programs(
    site: &Site,
    folder: &str,
    (scheme, degraded): (Scheme, bool),
    options: &Options,
    table: &mut Table,
) -> TestResult {
    for &clients in &options.clients {
        for &programs in &options.programs {
            for writes in [true, false] {
                let case = Case { servers: site.servers, clients, programs, scheme, writes, degraded };
                let real = site.measure(folder, case, options)?;
                let row = Row { case, real, simulated: model::simulate(case, table.wires)? };
                eprintln!("{row}");
                table.rows.push(row);
            }
        }
    }
    Ok(())
}
