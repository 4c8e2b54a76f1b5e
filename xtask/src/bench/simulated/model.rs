//! The simulation of the same cluster.

use super::real_cluster::{RECORD_BYTES, RealCluster};
use super::server_loss::{GROUP_BYTES, ResyncResult, SLOWER};
use super::{Case, Options};
use crate::e2e::{Failure, TestResult};
use scale::{Hardware, Load, Rebuild, Resource, SimulatedCluster};
use types::Scheme;

/// Number of seeds, each with other files: real clusters have few files, whose placement is random.
const SEEDS: u64 = 32;
/// Chunk size of files: the default, as is the stripe count.
const CHUNK_BYTES: u32 = 1 << 20;
const STRIPE_COUNT: u16 = 4;
/// Resyncs that a server runs concurrently, as in `weft plan`.
const MEMBERS_AT_ONCE: u32 = 2;
const PIECES_AT_ONCE: u32 = 8;
/// Number of connections whose median gives the capacity of a link.
const STREAMS: usize = 3;
/// Overhead of encryption per record, and the plain bytes of the largest record.
const TLS_ADDS: f64 = 22.0;
const TLS_RECORD: f64 = 16384.0;

/// Throughput of connections over links, in bytes of content per second in each direction.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct LinkRates {
    pub(super) server: f64,
    pub(super) client: f64,
}

impl LinkRates {
    /// Measured on a connection over a server's link; clients' links behave in the same way.
    pub(super) fn measured(site: &RealCluster, options: &Options) -> TestResult<LinkRates> {
        let mut streams = (0..STREAMS).map(|_| site.stream()).collect::<TestResult<Vec<f64>>>()?;
        streams.sort_by(f64::total_cmp);
        let server = streams[streams.len() / 2] * TLS_RECORD / (TLS_RECORD + TLS_ADDS);
        Ok(LinkRates { server, client: server * options.client_mbit as f64 / options.server_mbit as f64 })
    }
}

/// Predicted result of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simulated {
    pub(super) bytes_per_s: f64,
    /// The busiest resource and its utilisation: the mean over all seeds.
    pub(super) busiest: (Resource, f64),
}

/// Returns a cluster model in which only links take time.
fn farm(servers: u8, scheme: Scheme, wires: LinkRates) -> TestResult<SimulatedCluster> {
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
    SimulatedCluster::new(hardware).map_err(refused)
}

fn refused(why: scale::SimulationError) -> Failure {
    Failure::Failed(why.to_string())
}

pub(super) fn simulate(case: Case, wires: LinkRates) -> TestResult<Simulated> {
    let whole = farm(case.servers, case.scheme, wires)?;
    let farm = if case.degraded { whole.without(0) } else { whole };
    // A client and a server have one connection per core; here all nodes share the cores.
    let connections = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let mut rate = 0.0;
    let mut busy = [Resource::ServerLinks, Resource::ClientLinks].map(|resource| (resource, 0.0));
    for seed in 0..SEEDS {
        let load = Load {
            clients: case.clients.into(),
            applications: case.programs.into(),
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

/// Simulates the loss of the first server and its replacement by the others.
pub(super) fn rebuild(servers: u8, scheme: Scheme, wires: LinkRates) -> TestResult<ResyncResult> {
    let slower = |rate| rate / SLOWER as f64;
    let farm =
        farm(servers, scheme, LinkRates { server: slower(wires.server), client: slower(wires.client) })?;
    let how = Rebuild {
        lost: 0,
        group_bytes: GROUP_BYTES,
        record_bytes: RECORD_BYTES,
        pieces: PIECES_AT_ONCE,
        members: MEMBERS_AT_ONCE,
        max_bytes_per_s: f64::INFINITY,
    };
    let found = scale::rebuild(&farm, how, None).map_err(refused)?;
    Ok(ResyncResult { bytes: found.bytes, seconds: found.seconds })
}
