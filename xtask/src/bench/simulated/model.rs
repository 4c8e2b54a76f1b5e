//! The same cluster as a simulation.

use super::rebuilt::{Copied, GROUP_BYTES, SLOWER};
use super::site::{RECORD_BYTES, Site};
use super::{Case, Options};
use crate::e2e::{Failure, TestResult};
use scale::{Farm, Hardware, Load, Rebuild, Resource};
use types::Scheme;

/// Other files each time: real ones are few, and where they are is chance.
const SEEDS: u64 = 32;
/// Chunks and stripes of files are the defaults.
const CHUNK_BYTES: u32 = 1 << 20;
const STRIPE_COUNT: u16 = 4;
/// What a server does of a rebuild at a time, as `weft plan` has it.
const MEMBERS_AT_ONCE: u32 = 2;
const PIECES_AT_ONCE: u32 = 8;
/// Connections of which the middle one tells what a wire carries.
const STREAMS: usize = 3;
/// What encryption adds to a record, and the largest record's plain bytes.
const TLS_ADDS: f64 = 22.0;
const TLS_RECORD: f64 = 16384.0;

/// What connections get of wires, bytes of content a second in each direction.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Wires {
    pub(super) server: f64,
    pub(super) client: f64,
}

impl Wires {
    /// From a connection over a server's wire: a client's is of the same kind.
    pub(super) fn measured(site: &Site, options: &Options) -> TestResult<Wires> {
        let mut streams = (0..STREAMS).map(|_| site.stream()).collect::<TestResult<Vec<f64>>>()?;
        streams.sort_by(f64::total_cmp);
        let server = streams[streams.len() / 2] * TLS_RECORD / (TLS_RECORD + TLS_ADDS);
        Ok(Wires { server, client: server * options.client_mbit as f64 / options.server_mbit as f64 })
    }
}

/// What comes of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simulated {
    pub(super) bytes_per_s: f64,
    /// What is busiest, and the part of the time that it is: the mean of all seeds.
    pub(super) busiest: (Resource, f64),
}

/// Wires, and nothing else that takes time.
fn farm(servers: u8, scheme: Scheme, wires: Wires) -> TestResult<Farm> {
    let hardware = Hardware {
        servers: servers.into(),
        targets: 1,
        racks: 0,
        target_read: f64::INFINITY,
        target_write: f64::INFINITY,
        server_link: wires.server,
        server_cores: f64::INFINITY,
        client_link: wires.client,
        scheme,
    };
    Farm::new(hardware).map_err(refused)
}

fn refused(why: scale::Refusal) -> Failure {
    Failure::Failed(why.to_string())
}

pub(super) fn simulate(case: Case, wires: Wires) -> TestResult<Simulated> {
    let whole = farm(case.servers, case.scheme, wires)?;
    let farm = if case.degraded { whole.without(0) } else { whole };
    // A client and a server have one to another for each of the cores, which all have together
    // here.
    let connections = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let mut rate = 0.0;
    let mut busy = [Resource::ServerLinks, Resource::ClientLinks].map(|resource| (resource, 0.0));
    for seed in 0..SEEDS {
        let load = Load {
            clients: case.clients.into(),
            programs: case.programs.into(),
            connections,
            record_bytes: RECORD_BYTES,
            chunk_bytes: CHUNK_BYTES,
            stripe_count: STRIPE_COUNT,
            writes: case.writes,
            seed,
        };
        let found = scale::run(&farm, load).map_err(refused)?;
        rate += found.bytes_per_s / SEEDS as f64;
        for (resource, share) in &mut busy {
            let of_it = found.busy.iter().find(|(other, _)| other == resource);
            *share += of_it.map_or(0.0, |(_, share)| *share) / SEEDS as f64;
        }
    }
    let busiest = if busy[0].1 >= busy[1].1 { busy[0] } else { busy[1] };
    Ok(Simulated { bytes_per_s: rate, busiest })
}

/// Loses the first server, and lets others take its place.
pub(super) fn rebuild(servers: u8, scheme: Scheme, wires: Wires) -> TestResult<Copied> {
    let slower = |rate| rate / SLOWER as f64;
    let farm = farm(servers, scheme, Wires { server: slower(wires.server), client: slower(wires.client) })?;
    let how = Rebuild {
        lost: 0,
        group_bytes: GROUP_BYTES,
        record_bytes: RECORD_BYTES,
        pieces: PIECES_AT_ONCE,
        members: MEMBERS_AT_ONCE,
        pace: f64::INFINITY,
    };
    let found = scale::rebuild(&farm, how, None).map_err(refused)?;
    Ok(Copied { bytes: found.bytes, seconds: found.seconds })
}
