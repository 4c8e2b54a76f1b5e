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
    pub applications: u32,
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
    cluster: &'a SimulatedCluster,
    load: Load,
    files: Vec<(Layout, u64)>,
}

impl<'a> Applications<'a> {
    pub(crate) fn new(
        cluster: &'a SimulatedCluster,
        load: Load,
    ) -> Result<Applications<'a>, SimulationError> {
        let count = u64::from(load.clients) * u64::from(load.applications);
        if count == 0 || count > MAX_APPLICATIONS || load.record_bytes == 0 || load.connections == 0 {
            return Err(SimulationError(format!(
                "{count} applications: 1 to {MAX_APPLICATIONS} can be simulated"
            )));
        }
        let pattern = StripePattern {
            pool: POOL,
            scheme: cluster.hardware.scheme,
            chunk_size: load.chunk_bytes,
            stripe_count: load.stripe_count,
            chooser: Chooser::CapacityWeighted,
            ..StripePattern::default()
        };
        let choices = layout::GroupCandidates::find(&cluster.map_at_creation, pattern.pool, pattern.scheme);
        let file = |at: u64| {
            let ino = InodeId(at + 2);
            let groups = choices
                .choose(&cluster.map_at_creation, &pattern, ino, load.seed)
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
        Ok(Applications {
            cluster,
            load,
            files: (0..count).map(file).collect::<Result<_, SimulationError>>()?,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    /// Returns the paths of the next request of an application.
    pub(crate) fn next(&mut self, application: usize) -> Vec<Route> {
        let (layout, offset) = &mut self.files[application];
        let range = ByteRange::at(*offset, self.load.record_bytes);
        *offset = range.end;
        let client = application / self.load.applications as usize;
        let connection = application as u32 % self.load.connections;
        let cluster = self.cluster;
        let route = |piece: layout::Piece| {
            let group = cluster.map.group(piece.group).expect("layouts name groups of the map");
            let bytes = piece.file.len();
            match self.load.writes {
                true => write_route(cluster, (client, connection), group, bytes),
                false => read_route(
                    cluster,
                    (client, connection),
                    group,
                    piece.local / READ_REGION_BYTES + application as u64,
                    bytes,
                ),
            }
        };
        pieces(layout, range).map(route).collect()
    }
}

/// Returns the path of a read from a member that is in sync; members alternate by region.
fn read_route(
    cluster: &SimulatedCluster,
    (client, connection): (usize, u32),
    group: &Group,
    region: u64,
    bytes: u64,
) -> Route {
    let in_sync: Vec<TargetId> = group.in_sync_members().collect();
    let Some(from) = in_sync.get((region % in_sync.len().max(1) as u64) as usize) else {
        return Route::default();
    };
    let server = cluster.server(*from);
    Route::of(vec![
        cluster.drive(*from, bytes, cluster.hardware.target_read),
        cluster.cores(server, bytes),
        cluster.server_sends(server, bytes, connection),
        cluster.client_receives(client, bytes),
    ])
}

/// Returns the path of a write to the primary, which stores and forwards the bytes at the same
/// time.
fn write_route(
    cluster: &SimulatedCluster,
    (client, connection): (usize, u32),
    group: &Group,
    bytes: u64,
) -> Route {
    let Some(primary) = group.primary() else { return Route::default() };
    let server = cluster.server(primary);
    let gets =
        group.members_with_states().filter(|(_, state)| state.receives_writes()).map(|(member, _)| member);
    let store = |member: TargetId| match member == primary {
        true => Route::of(vec![cluster.drive(member, bytes, cluster.hardware.target_write)]),
        false => Route::of(cluster.copy_hops(server, member, bytes, connection)),
    };
    Route {
        hops: vec![
            cluster.client_sends(client, bytes, connection),
            cluster.server_receives(server, bytes),
            cluster.cores(server, bytes),
        ],
        branches: gets.map(store).collect(),
    }
}

/// Runs a load until it is steady, and measures it.
///
/// Errors: no applications or too many, or no target accepts new files.
pub fn run(cluster: &SimulatedCluster, load: Load) -> Result<LoadResult, SimulationError> {
    let mut applications = Applications::new(cluster, load)?;
    let mut engine = Engine::new(cluster.stations(load.clients as usize));
    let count = applications.count() as u64;
    for application in 0..applications.count() {
        engine.begin(0.0, application, applications.next(application));
    }
    let (mut ended, mut from, mut busy) = (0, 0.0, Vec::new());
    while let Some(application) = engine.run_until_next_end() {
        ended += 1;
        if ended == WARM_UP * count {
            (from, busy) = (engine.now(), engine.busy().to_vec());
        }
        if ended == (WARM_UP + MEASURED) * count {
            break;
        }
        engine.begin(engine.now(), application, applications.next(application));
    }
    let seconds = engine.now() - from;
    let busy_seconds: Vec<f64> =
        engine.busy().iter().zip(&busy).map(|(after, before)| after - before).collect();
    Ok(outcome(cluster, (MEASURED * count * load.record_bytes) as f64 / seconds, &busy_seconds, seconds))
}

fn outcome(cluster: &SimulatedCluster, bytes_per_s: f64, busy_seconds: &[f64], seconds: f64) -> LoadResult {
    let all = [Resource::Targets, Resource::ServerLinks, Resource::ServerCores, Resource::ClientLinks];
    let most = |resource: Resource| {
        let of_it =
            busy_seconds.iter().enumerate().filter(|(station, _)| cluster.resource(*station) == resource);
        of_it.map(|(_, busy_seconds)| busy_seconds / seconds).fold(0.0, f64::max)
    };
    let mut busy: Vec<(Resource, f64)> = all.into_iter().map(|resource| (resource, most(resource))).collect();
    busy.sort_by(|a, b| b.1.total_cmp(&a.1));
    let targets = &busy_seconds[..cluster.map.targets.len()];
    let there = targets.len() as f64;
    let mean = targets.iter().sum::<f64>() / there;
    LoadResult { bytes_per_s, busy, imbalance: targets.iter().copied().fold(0.0, f64::max) / mean }
}
