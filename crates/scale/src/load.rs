//! Applications that read or write large files.

use crate::cluster::{POOL, Resource, SimulatedCluster, SimulationError};
use crate::engine::{Engine, Route};
use layout::pieces;
use types::{ByteRange, Chooser, Group, InodeId, Layout, StripePattern, TargetId};

/// Unit in which reads of a file alternate between the members of a group, as in clients, in bytes.
const READ_REGION_BYTES: u64 = 2 << 20;
/// Average requests per application before and during the measurement.
const WARM_UP: u64 = 6;
const MEASURED: u64 = 12;
/// Most applications.
const MAX_APPLICATIONS: u64 = 200_000;

/// The load on a cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Number of clients.
    pub clients: u32,
    /// Applications per client, each with one file and one request in flight.
    pub programs: u32,
    /// Connections of a client to each server, and between each two servers. Applications use them
    /// round-robin, and one connection keeps the order. Real clients and servers have one per core
    /// that sends requests.
    pub connections: u32,
    /// Bytes per request.
    pub record_bytes: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u32,
    /// Groups per file.
    pub stripe_count: u16,
    /// Whether applications write.
    pub writes: bool,
    /// Seed for the placement of files.
    pub seed: u64,
}

/// Result of a simulated load.
#[derive(Clone, Debug)]
pub struct LoadResult {
    /// Throughput of all applications together, in bytes per second.
    pub bytes_per_s: f64,
    /// Utilization of the busiest station of each kind, highest first.
    pub busy: Vec<(Resource, f64)>,
    /// Ratio of the busiest target's bytes to the mean target's.
    pub imbalance: f64,
}

/// The applications of a load, and their positions in their files.
pub(crate) struct Applications<'a> {
    farm: &'a SimulatedCluster,
    load: Load,
    files: Vec<(Layout, u64)>,
}

impl<'a> Applications<'a> {
    pub(crate) fn new(farm: &'a SimulatedCluster, load: Load) -> Result<Applications<'a>, SimulationError> {
        let count = u64::from(load.clients) * u64::from(load.programs);
        if count == 0 || count > MAX_APPLICATIONS || load.record_bytes == 0 || load.connections == 0 {
            return Err(SimulationError(format!(
                "{count} applications: 1 to {MAX_APPLICATIONS} can be simulated"
            )));
        }
        let pattern = StripePattern {
            pool: POOL,
            scheme: farm.hardware.scheme,
            chunk_size: load.chunk_bytes,
            stripe_count: load.stripe_count,
            chooser: Chooser::CapacityWeighted,
            ..StripePattern::default()
        };
        let choices = layout::GroupCandidates::find(&farm.map_at_creation, pattern.pool, pattern.scheme);
        let file = |at: u64| {
            let ino = InodeId(at + 2);
            let groups = choices
                .choose(&farm.map_at_creation, &pattern, ino, load.seed)
                .map_err(|error| SimulationError(error.to_string()))?;
            let layout = Layout {
                chunk_size: load.chunk_bytes,
                pool: POOL,
                scheme: pattern.scheme,
                groups,
                slots: Vec::new(),
            };
            // Applications start at different offsets.
            Ok((layout, at % 64 * load.record_bytes))
        };
        Ok(Applications { farm, load, files: (0..count).map(file).collect::<Result<_, SimulationError>>()? })
    }

    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    /// Returns the paths of the next request of an application.
    pub(crate) fn next(&mut self, program: usize) -> Vec<Route> {
        let (layout, offset) = &mut self.files[program];
        let range = ByteRange::at(*offset, self.load.record_bytes);
        *offset = range.end;
        let client = program / self.load.programs as usize;
        let line = program as u32 % self.load.connections;
        let farm = self.farm;
        let way = |piece: layout::Piece| {
            let group = farm.map.group(piece.group).expect("layouts name groups of the map");
            let bytes = piece.file.len();
            match self.load.writes {
                true => write_route(farm, (client, line), group, bytes),
                false => read_route(
                    farm,
                    (client, line),
                    group,
                    piece.local / READ_REGION_BYTES + program as u64,
                    bytes,
                ),
            }
        };
        pieces(layout, range).map(way).collect()
    }
}

/// Returns the path of a read from a member that is in sync; members alternate by region.
fn read_route(
    farm: &SimulatedCluster,
    (client, line): (usize, u32),
    group: &Group,
    region: u64,
    bytes: u64,
) -> Route {
    let good: Vec<TargetId> = group.in_sync_members().collect();
    let Some(from) = good.get((region % good.len().max(1) as u64) as usize) else { return Route::default() };
    let server = farm.server(*from);
    Route::of(vec![
        farm.drive(*from, bytes, farm.hardware.target_read),
        farm.cores(server, bytes),
        farm.server_sends(server, bytes, line),
        farm.client_receives(client, bytes),
    ])
}

/// Returns the path of a write to the primary, which stores and forwards the bytes at the same
/// time.
fn write_route(farm: &SimulatedCluster, (client, line): (usize, u32), group: &Group, bytes: u64) -> Route {
    let Some(primary) = group.primary() else { return Route::default() };
    let server = farm.server(primary);
    let gets =
        group.members_with_states().filter(|(_, state)| state.receives_writes()).map(|(member, _)| member);
    let store = |member: TargetId| match member == primary {
        true => Route::of(vec![farm.drive(member, bytes, farm.hardware.target_write)]),
        false => Route::of(farm.copy_hops(server, member, bytes, line)),
    };
    Route {
        hops: vec![
            farm.client_sends(client, bytes, line),
            farm.server_receives(server, bytes),
            farm.cores(server, bytes),
        ],
        then: gets.map(store).collect(),
    }
}

/// Runs a load until it is steady, and measures it.
///
/// Errors: no applications or too many, or no target accepts new files.
pub fn run(farm: &SimulatedCluster, load: Load) -> Result<LoadResult, SimulationError> {
    let mut programs = Applications::new(farm, load)?;
    let mut engine = Engine::new(farm.stations(load.clients as usize));
    let count = programs.count() as u64;
    for program in 0..programs.count() {
        engine.begin(0.0, program, programs.next(program));
    }
    let (mut ended, mut from, mut busy) = (0, 0.0, Vec::new());
    while let Some(program) = engine.run_until_next_end() {
        ended += 1;
        if ended == WARM_UP * count {
            (from, busy) = (engine.now(), engine.busy().to_vec());
        }
        if ended == (WARM_UP + MEASURED) * count {
            break;
        }
        engine.begin(engine.now(), program, programs.next(program));
    }
    let seconds = engine.now() - from;
    let worked: Vec<f64> = engine.busy().iter().zip(&busy).map(|(after, before)| after - before).collect();
    Ok(outcome(farm, (MEASURED * count * load.record_bytes) as f64 / seconds, &worked, seconds))
}

fn outcome(farm: &SimulatedCluster, bytes_per_s: f64, worked: &[f64], seconds: f64) -> LoadResult {
    let all = [Resource::Targets, Resource::ServerLinks, Resource::ServerCores, Resource::ClientLinks];
    let most = |resource: Resource| {
        let of_it = worked.iter().enumerate().filter(|(station, _)| farm.resource(*station) == resource);
        of_it.map(|(_, worked)| worked / seconds).fold(0.0, f64::max)
    };
    let mut busy: Vec<(Resource, f64)> = all.into_iter().map(|resource| (resource, most(resource))).collect();
    busy.sort_by(|a, b| b.1.total_cmp(&a.1));
    let targets = &worked[..farm.map.targets.len()];
    let there = targets.len() as f64;
    let mean = targets.iter().sum::<f64>() / there;
    LoadResult { bytes_per_s, busy, imbalance: targets.iter().copied().fold(0.0, f64::max) / mean }
}
